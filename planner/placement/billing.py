"""What the replicas of a candidate cost in a month."""

from __future__ import annotations

from decimal import Decimal

from planner.economics.classes import factor_of
from planner.economics.cost import ServedLoad, workload_cost
from planner.economics.operations import operations_use
from planner.economics.types import GPU_BILL, CostBreakdown, GpuHourPrice
from planner.engines import ResolvedSettings
from planner.plan_types import PlanRequest, PlanWorkload
from planner.units import HOURS_PER_MONTH


def bill_of(
    workload: PlanWorkload,
    request: PlanRequest,
    settings: ResolvedSettings,
    served: ServedLoad,
    *,
    price: GpuHourPrice,
    pool: str,
    gpus: Decimal | int,
    replicas: int,
    gpus_per_replica: int,
    electricity: Decimal | None,
) -> CostBreakdown:
    """The bill of a month of ``replicas`` on ``gpus`` GPUs of ``pool``.

    ``electricity`` is money an hour of all of them, None where their power is unknown.
    """
    return workload_cost(
        price=price,
        gpus=gpus,
        load=served,
        operations=operations_use(
            settings.engine,
            settings.trt_backend,
            replicas=replicas,
            gpus_per_replica=gpus_per_replica,
            revisions_per_month=workload.revisions_per_month,
            costs=request.operations,
        ),
        operations_costs=request.operations,
        engine=settings.engine.value,
        energy_usd_per_hour=electricity,
        currency=request.currency,
        class_factor=factor_of(request.price_classes, workload.price_class, pool),
    )


def beyond_gpus_usd_per_hour(cost: CostBreakdown, replicas: int) -> Decimal:
    """USD an hour of one replica beyond its GPUs: operations, people, engine licence, electricity."""
    beyond = sum((usd for label, usd in cost.parts if not label.startswith(GPU_BILL)), Decimal(0))
    return (beyond / HOURS_PER_MONTH / replicas).quantize(Decimal("0.000001"))
