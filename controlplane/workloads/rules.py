"""What makes a workload's load and lengths sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError

from planner.demand import check_profile, mean_share
from planner.errors import InputError
from planner.jsonio import from_json
from planner.serving.types import Lengths

if TYPE_CHECKING:
    from controlplane.workloads.models import Workload

MAX_TOKENS = 10_000_000  # of one request, uploaded traces included
# Far above any load: beyond, arithmetic of the planner no longer holds in floating point or a database's integers.
MOST = (
    ("rate_per_s", 1_000_000, "requests/s"), ("concurrency", 100_000_000, "users"),
    ("requests", 2_000_000_000, "requests"), ("adapters", 1_000_000, "adapters"),
    ("max_model_len", 20_000_000, "tokens"),
)  # fmt: skip
MOST_VARIATION = 100


def check_workload(workload: Workload) -> None:
    """Raise ValidationError naming each field that does not go with the others."""
    errors: dict[str, str] = {}
    kind = workload.load_kind
    if kind == "open" and not workload.rate_per_s > 0:
        errors["rate_per_s"] = "Arrivals at a rate need a rate above 0 requests/s."
    if kind == "closed" and not workload.concurrency:
        errors["concurrency"] = "A fixed number of users needs at least 1."
    if kind == "offline" and not workload.requests:
        errors["requests"] = "An offline load needs at least 1 request."
    has_trace = workload.trace_id is not None
    if workload.arrival == "trace" and not has_trace:
        errors["arrival"] = "Arrivals as in the trace need a trace; choose one, or another arrival."
    elif workload.arrival == "trace" and workload.trace is not None and not workload.trace.has_arrivals:
        errors["arrival"] = f"{workload.trace} holds lengths without arrival times; choose another arrival."
    for name, most, unit in MOST:
        if (getattr(workload, name) or 0) > most:
            errors[name] = f"At most {most:,} {unit} can be planned for; divide what is larger over several workloads."
    if workload.arrival_cv > MOST_VARIATION:
        errors["arrival_cv"] = f"At most {MOST_VARIATION}; 1 is that of Poisson arrivals."
    errors |= _session_errors(workload) | _profile_errors(workload)
    for name in ("input_tokens", "output_tokens"):
        if problem := length_problem(getattr(workload, name), has_trace=has_trace):
            errors[name] = problem
    if errors:
        raise ValidationError(errors)


def _session_errors(workload: Workload) -> dict[str, str]:
    if workload.turns_high < workload.turns_low:
        return {"turns_high": f"Is below the least number of turns, {workload.turns_low}."}
    if not workload.has_sessions:
        if workload.shared_tokens:
            return {"shared_tokens": "Belongs to sessions: state more than one turn, or a prefix hit."}
        return {}
    if workload.prefix_hit:
        return {"prefix_hit": "Leave it at 0 for sessions: what they find cached comes out of the simulation."}
    if workload.arrival == "trace":
        return {"arrival": "A trace holds single requests; let sessions arrive otherwise."}
    return {}


def _profile_errors(workload: Workload) -> dict[str, str]:
    profile = workload.hour_profile
    if profile in (None, []):
        return {}
    try:
        values = from_json(tuple[float, ...], profile, "hour_profile")
        check_profile(values, "hour_profile")
    except InputError as error:
        return {"hour_profile": str(error)}
    share = mean_share(values)
    if workload.mean_load_share != 1.0 and abs(workload.mean_load_share - share) > 1e-9:
        return {"mean_load_share": f"Leave it empty: by the hours of the week it is {share:.3g}."}
    return {}


def length_problem(value: Any, *, has_trace: bool) -> str:
    """What is wrong with request lengths given as JSON, in one sentence; empty when they are sound."""
    if isinstance(value, dict) and value.get("kind") == "trace":
        return "" if has_trace else "Lengths as in the trace need a trace; choose one, or state the lengths."
    try:
        lengths = from_json(Lengths, value, "lengths")
    except InputError as error:
        return str(error)
    if lengths.kind == "fixed":
        numbers: tuple[float, ...] = (lengths.value,)
    elif lengths.kind == "normal":
        numbers = (lengths.mean,)
        if lengths.sd < 0:
            return f"sd is {lengths.sd:g}; it cannot be negative."
    elif lengths.kind == "uniform":
        numbers = (lengths.low, lengths.high)
        if lengths.high < lengths.low:
            return f"high ({lengths.high}) is below low ({lengths.low})."
    else:
        numbers = lengths.samples
        if not numbers:
            return "samples is empty; give at least one length."
    if any(not 1 <= number <= MAX_TOKENS for number in numbers):
        return f"Lengths must lie between 1 and {MAX_TOKENS:,} tokens."
    return ""
