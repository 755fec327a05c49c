"""What a workload costs on a candidate: the monthly bill, its parts, and dollars per million tokens.

Three unit costs divide the WHOLE bill by each kind of token (the convention of InferenceX and of NVIDIA's published
method: $/h / (tok/s x 3600) x 10^6). They answer different questions and must not be added. The *allocated* prices
split the bill between input and output by the GPU time of prefill and decode, so that
allocated input x input tokens + allocated output x output tokens = bill.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from planner.economics.money import CENT, round_parts, split_exactly
from planner.economics.operations import OperationsCosts, OperationsUse
from planner.economics.types import (
    CARRIED_LOAD,
    ELECTRICITY,
    HEAD_ROOM,
    OPERATIONS,
    PEOPLE,
    CostBreakdown,
    GpuHourPrice,
)
from planner.errors import InputError
from planner.evidence import Interval
from planner.units import HOURS_PER_YEAR

MTOK = Decimal(10**6)
TOKEN_PRICE_STEP = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """What is really carried over a month, over all replicas.

    ``req_per_s`` is the mean over ``hours``; ``capacity_req_per_s`` what the replicas could carry within the SLO.
    ``throughput_80`` the 80 % interval of output tokens/s around the prediction, as factors of the value (0.9, 1.1).
    """

    req_per_s: float
    input_tokens: float
    output_tokens: float
    capacity_req_per_s: float
    hours: float = 730.0
    prefill_time_share: float | None = None
    throughput_80: tuple[float, float] | None = None


def unit_costs(
    usd_per_hour: Decimal, input_tok_per_s: float, output_tok_per_s: float
) -> tuple[Decimal | None, Decimal | None, Decimal | None]:
    """USD per million input, output and total tokens: the whole cost over each kind; None where none is served."""
    kinds = (input_tok_per_s, output_tok_per_s, input_tok_per_s + output_tok_per_s)
    return tuple(
        (usd_per_hour / (Decimal(str(rate)) * 3600) * MTOK).quantize(TOKEN_PRICE_STEP) if rate > 0 else None
        for rate in kinds
    )  # type: ignore[return-value]


def workload_cost(
    *,
    price: GpuHourPrice,
    gpus: int | Decimal,
    load: ServedLoad,
    operations: OperationsUse | None = None,
    operations_costs: OperationsCosts | None = None,
    engine: str = "",
    energy_usd_per_hour: Decimal | None = None,
    currency: str = "USD",
    class_factor: Decimal = Decimal(1),
) -> CostBreakdown:
    """Monthly bill of ``gpus`` GPUs that serve ``load``; the parts add up to ``usd_per_month`` to the cent.

    ``gpus`` may be a part of one that is shared. The GPU bill is divided into what the carried load uses (mean rate /
    capacity) and what stands idle for peaks and spares. ``energy_usd_per_hour`` is added only when the GPU price holds
    no electricity of its own; None (unknown) adds nothing. ``class_factor`` is what the workload pays of the GPU price.
    Raises InputError when ``gpus`` or ``hours`` is not positive.
    """
    if gpus <= 0:
        raise InputError("must be above 0", field="gpus", value=gpus)
    if load.hours <= 0:
        raise InputError("must be positive", field="hours_per_month", value=load.hours)
    hours = Decimal(str(load.hours))
    gpu_hours = hours * gpus
    gpu_bill = gpu_hours * price.usd_per_gpu_hour * class_factor
    used = min(max(load.req_per_s / load.capacity_req_per_s, 0.0), 1.0) if load.capacity_req_per_s > 0 else 0.0
    carried = gpu_bill * Decimal(str(used))
    parts: list[tuple[str, Decimal]] = [(CARRIED_LOAD, carried), (HEAD_ROOM, gpu_bill - carried)]
    if operations is not None:
        parts.append((OPERATIONS, operations.gpu_hours * price.usd_per_gpu_hour * class_factor))
        if operations_costs is not None:
            parts.append((PEOPLE, operations.people_hours * operations_costs.people_usd_per_hour))
            licence = dict(operations_costs.licence_usd_per_gpu_year).get(engine, Decimal(0))
            parts.append(("engine licence", licence * gpus * hours / HOURS_PER_YEAR))
    if energy_usd_per_hour is not None and not price.holds_electricity:
        parts.append((ELECTRICITY, energy_usd_per_hour * hours))
    rounded = round_parts([part for i, part in enumerate(parts) if i < 2 or part[1]])
    bill = sum((usd for _, usd in rounded), Decimal(0).quantize(CENT))
    seconds = Decimal(str(load.req_per_s)) * hours * 3600
    inputs, outputs = (seconds * Decimal(str(n)) / MTOK for n in (load.input_tokens, load.output_tokens))
    allocated = _allocate(bill, inputs, outputs, load)
    return CostBreakdown(
        usd_per_month=bill,
        parts=rounded,
        usd_per_mtok_input=_per(bill, inputs),
        usd_per_mtok_output=_per(bill, outputs),
        usd_per_mtok_total=_per(bill, inputs + outputs),
        usd_per_mtok_output_80=_interval(_per(bill, outputs), load.throughput_80),
        gpu_hours_per_month=gpu_hours,
        mtok_input_per_month=inputs.quantize(TOKEN_PRICE_STEP),
        mtok_output_per_month=outputs.quantize(TOKEN_PRICE_STEP),
        allocated_usd_input=allocated[0],
        allocated_usd_output=allocated[1],
        currency=currency,
    )


def _per(bill: Decimal, mtok: Decimal) -> Decimal | None:
    return (bill / mtok).quantize(TOKEN_PRICE_STEP) if mtok > 0 else None


def _interval(value: Decimal | None, factors: tuple[float, float] | None) -> tuple[Decimal, Decimal] | None:
    if value is None or factors is None or factors[0] <= 0:
        return None
    low, high = (Decimal(str(factor)) for factor in factors)
    return (value / high).quantize(TOKEN_PRICE_STEP), (value / low).quantize(TOKEN_PRICE_STEP)


def _allocate(
    bill: Decimal, inputs: Decimal, outputs: Decimal, load: ServedLoad
) -> tuple[Decimal | None, Decimal | None]:
    """Split the bill into an input and an output amount by GPU time; None where the split is unknown."""
    if outputs == 0 and inputs == 0:
        return None, None
    if outputs == 0:
        return bill, Decimal(0).quantize(CENT)
    if load.prefill_time_share is None:
        return None, None
    share = Decimal(str(min(max(load.prefill_time_share, 0.0), 1.0)))
    first, second = split_exactly(bill, (share, 1 - share))
    return first, second


def throughput_factors(value: float, interval: Interval | None) -> tuple[float, float] | None:
    """An 80 % interval as factors of its value; None without one."""
    if interval is None or value <= 0:
        return None
    return interval.low / value, interval.high / value


def break_even_with_cloud(own_usd_per_gpu_hour: Decimal, cloud_usd_per_gpu_hour: Decimal) -> Decimal | None:
    """Share of all hours in use at which owning costs the same as renting only those; above 1 renting always wins.

    utilisation = own $/GPU-hour (paid always) / cloud $/GPU-hour (paid when used). None when the cloud costs nothing.
    """
    if cloud_usd_per_gpu_hour <= 0:
        return None
    return (own_usd_per_gpu_hour / cloud_usd_per_gpu_hour).quantize(Decimal("0.0001"))


def break_even_utilisation(
    *,
    usd_per_hour: Decimal,
    capacity_input_tok_per_s: float,
    capacity_output_tok_per_s: float,
    api_usd_per_mtok_input: Decimal,
    api_usd_per_mtok_output: Decimal,
) -> Decimal | None:
    """Share of capacity at which owning costs the same as an API that charges per token; above 1 the API always wins.

    utilisation = $/h / (capacity value at API prices per hour). None when the API price is zero.
    """
    worth = Decimal(str(capacity_input_tok_per_s)) * api_usd_per_mtok_input
    worth += Decimal(str(capacity_output_tok_per_s)) * api_usd_per_mtok_output
    worth_per_hour = worth * 3600 / MTOK
    return (usd_per_hour / worth_per_hour).quantize(Decimal("0.0001")) if worth_per_hour > 0 else None
