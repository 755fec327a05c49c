"""Keep with each stored answer the bill that its pages would compute anew."""

from typing import Any

from django.db import migrations


def keep_bills(apps: Any, schema_editor: Any) -> None:
    """Complete the answers that can be read; pages compute the bill of the others."""
    from controlplane.planning.exporting import bill_kept
    from planner.errors import PlannerError
    from planner.jsonio import from_json
    from planner.plan_types import PlanRequest, PlanResult

    plans = apps.get_model("planning", "Plan")._base_manager
    for pk in list(plans.filter(result__isnull=False, request__isnull=False).values_list("pk", flat=True)):
        plan = plans.get(pk=pk)
        if plan.result.get("bills"):
            continue
        try:
            kept = bill_kept(from_json(PlanRequest, plan.request), from_json(PlanResult, plan.result))
        except (PlannerError, KeyError, ArithmeticError):
            continue
        plans.filter(pk=pk).update(result={**plan.result, **kept})


class Migration(migrations.Migration):
    dependencies = [("planning", "0005_installation_currency")]

    operations = [migrations.RunPython(keep_bills, migrations.RunPython.noop)]
