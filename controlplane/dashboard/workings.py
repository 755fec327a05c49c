"""Which arithmetic belongs to what of a plan: its totals, one candidate's figures, or the verdict on a workload."""

from __future__ import annotations

from controlplane.dashboard import arithmetic, planview
from controlplane.dashboard.arithmetic import Working
from controlplane.dashboard.planrow import Json


class UnknownPartError(LookupError):
    """The plan has no candidate or workload of that name; the message says which."""


def of(request: Json, result: Json, *, candidate: str = "", workload: str = "", figure: str = "") -> list[Working]:
    """The workings of a candidate by its id, of the verdict on a workload by its name, else of the whole plan.

    ``figure`` keeps the one of that key. Empty where nothing was computed. Raises UnknownPartError.
    """
    if candidate:
        found = next((item for item in result.get("candidates", ()) if item["id"] == candidate), None)
        if found is None:
            raise UnknownPartError(f"The plan has no candidate {candidate[:120]!r}.")
        made = arithmetic.of_candidate(request, found)
    elif workload:
        row = next((row for row in planview.workload_rows(request, result) if row.name == workload), None)
        if row is None:
            raise UnknownPartError(f"The plan has no workload {workload[:120]!r}.")
        margin = arithmetic.margin(row)
        made = [margin] if margin else []
    else:
        made = arithmetic.of_plan(request, result) if result else []
    return [working for working in made if figure in ("", working.key)]
