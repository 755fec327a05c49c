"""What the planner is given about a fleet and its workloads, and what a plan answers.

These dataclasses are the contract between the planner, ``python -m planner plan``, the REST API and the web
application. ``planner.jsonio`` turns them into JSON and back. Money is Decimal, in USD unless ``currency`` says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from planner.calibration import CalibrationFactor
from planner.economics.currency import ExchangeRate
from planner.economics.operations import OperationsCosts
from planner.economics.types import CostBreakdown, EnergyPrice, GpuHourPrice, PriceSheet
from planner.engines.types import ResolvedSettings
from planner.evidence import Evidence, Interval
from planner.memory.types import MemoryLedger
from planner.mix_types import Mix
from planner.serving.types import Lengths, Load, Performance, SloTarget
from planner.verdict_types import MonthView, RuleOfThumb, Runway, Verdict


@dataclass(frozen=True, slots=True)
class GpuSlice:
    """A MIG instance of GPU ``gpu`` of a node; ``busy`` when others hold it. A GPU with slices is no whole GPU."""

    gpu: int
    profile: str  # "1g.10gb", see planner.catalog.mig
    uuid: str = ""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One server. ``gpus`` equal GPUs in NVLink domains of ``nvlink_domain``; ``busy_gpus`` are taken by others.

    ``orchestrator`` says who starts processes there: a deployment on a node of Kubernetes or Slurm is exported as that
    kind, and a replica over several nodes stays in one ``cluster``. ``min_replica_gpus`` fences a large node: replicas
    of fewer GPUs are kept off it.
    """

    name: str
    pool: str
    site: str
    gpu: str  # catalogue name
    gpus: int
    nvlink_domain: int
    price: GpuHourPrice
    state: Literal["active", "planned", "maintenance"] = "active"
    busy_gpus: tuple[int, ...] = ()
    failure_domain: str = ""
    network_gb_s: float = 50.0  # per GPU, one direction
    allowed_engines: tuple[str, ...] = ("vllm", "tensorrt_llm")
    tenant: str = ""  # empty: shared
    gpu_memory_gib: float | None = None  # of one GPU, as its driver reports it; None: the catalogue's
    orchestrator: Literal["none", "kubernetes", "slurm"] = "none"
    cluster: str = ""  # name of the Kubernetes or Slurm cluster
    partition: str = ""  # Slurm partition, or Kubernetes node pool
    min_replica_gpus: int = 1
    slices: tuple[GpuSlice, ...] = ()
    slice_of: str = ""  # set by planner.placement.devices: this stands for slices of that node
    reserved_for: str = ""  # who holds ``busy_gpus``, where known: said when there is no room


@dataclass(frozen=True, slots=True)
class PlanWorkload:
    """What has to be served. ``load`` is the demand over all replicas, at the peak to plan for."""

    name: str
    model: str  # catalogue id or path of a config.json
    load: Load
    input_tokens: Lengths
    output_tokens: Lengths
    slo: tuple[SloTarget, ...] = ()
    kind: str = "chat"  # code, chat, agent, summarise, batch, embed: shown, and used in the rules of thumb
    priority: int = 100  # larger is more important
    tenant: str = ""
    site: str = ""  # empty: any
    adapters: int = 0
    adapter_rank: int = 16
    revisions_per_month: float = 0.0
    allowed_engines: tuple[str, ...] = ("vllm", "tensorrt_llm")
    allowed_precisions: tuple[str, ...] = ("as-config",)  # by quality, best first
    max_model_len: int | None = None
    n_plus_1: bool = False
    spread: bool = False  # replicas over different failure domains
    hours_per_month: float = 730.0
    mean_load_share: float = 1.0  # mean of demand over the month / the peak planned for
    growth_per_month: float = 0.0  # of the demand, compound: 0.05 is five percent a month
    price_class: str = ""  # of ``PlanRequest.price_classes``: what this workload pays of the price of its pool
    plan_for_month: int = 0  # how many months of growth to plan for
    hour_profile: tuple[float, ...] = ()  # 168 hours from Monday 0:00, largest = the load; gives mean_load_share


@dataclass(frozen=True, slots=True)
class PurchaseOption:
    """A kind of node that may be bought: ``node`` is the pattern (its name is the prefix of new nodes)."""

    node: PlanNode
    max_count: int | None = None
    power_kw: float | None = None  # provisioned, for ``PurchaseLimits.power_kw``
    rack_units: int | None = None


@dataclass(frozen=True, slots=True)
class PurchaseLimits:
    """What a purchase must stay within; None: no limit."""

    usd_per_hour: Decimal | None = None
    power_kw: float | None = None
    rack_units: int | None = None


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """What an API charges for a comparable model, for the break-even of one workload."""

    workload: str
    usd_per_mtok_input: Decimal
    usd_per_mtok_output: Decimal
    source: str = ""


@dataclass(frozen=True, slots=True)
class SiteEnergy:
    """Electricity of one site."""

    site: str
    energy: EnergyPrice


@dataclass(frozen=True, slots=True)
class PriceClass:
    """Workloads of class ``name`` pay ``factor`` times the GPU price in ``pool`` (empty: everywhere).

    Interactive queues at twice the price, pre-emptible ones at half. It moves the bill, not the placement: what GPUs
    cost their owner stays.
    """

    name: str
    factor: Decimal
    pool: str = ""


@dataclass(frozen=True, slots=True)
class CloudPrice:
    """What a GPU of the kind costs elsewhere, an hour that it is used, for the break-even of owning."""

    gpu: str
    usd_per_gpu_hour: Decimal
    source: str = ""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A scenario, ready to compute. Every amount is in ``currency``, converted by ``rates`` as of ``rates_as_of``."""

    name: str
    nodes: tuple[PlanNode, ...]
    workloads: tuple[PlanWorkload, ...]
    mode: Literal["owned", "owned_plus_purchase", "purchase"] = "owned"
    # where both owned and bought nodes may be used: spend least on new nodes first, or least in all, owned included
    objective: Literal["new_spend", "total_cost"] = "new_spend"
    orchestrators: tuple[str, ...] = ("none", "kubernetes", "slurm")  # whose nodes may be used
    share_gpus: bool = True  # several small engines of one tenant on one GPU, by memory share
    disaggregate: bool = True  # offer prefill and decode on pools of their own where the SLO may gain by it
    energy: EnergyPrice | None = None
    calibrations: tuple[CalibrationFactor, ...] = ()
    current: tuple[Placement, ...] = ()  # what runs today, for the fewest moves
    time_limit_s: float = 30.0
    seed: int = 0
    purchase_options: tuple[PurchaseOption, ...] = ()  # empty in a purchase mode: more of the node kinds in ``nodes``
    limits: PurchaseLimits | None = None
    operations: OperationsCosts = field(default_factory=OperationsCosts)
    api_prices: tuple[ApiPrice, ...] = ()  # for the break-even
    price_erosion_per_year: float = 0.0  # by how much GPUs bought or rented later are cheaper, compound
    lead_time_months: float = 3.0  # from order to service
    currency: str = "USD"  # of every amount in the request and in its plan, whatever ``usd`` a name says
    rates_as_of: str = ""  # ISO day
    rates: tuple[ExchangeRate, ...] = ()  # those that amounts were converted by, for the record
    site_energy: tuple[SiteEnergy, ...] = ()  # a site without one has ``energy``
    price_sheets: tuple[PriceSheet, ...] = ()  # how the prices of the nodes come about, by pool
    price_classes: tuple[PriceClass, ...] = ()
    cloud_prices: tuple[CloudPrice, ...] = ()
    horizon_months: int = 36  # of the view ahead


@dataclass(frozen=True, slots=True)
class PoolRole:
    """One pool of a disaggregated replica: ``instances`` of the same settings.

    ``utilisation`` share of time with a step running, at the planned load. ``usd_per_month`` this pool's part of the
    bill by its GPUs; ``usd_per_mtok`` that part over the input tokens (prefill) or the output tokens (decode).
    ``watts_per_gpu`` mean over the month, None where the GPU was never measured.
    """

    settings: ResolvedSettings
    memory: MemoryLedger
    instances: int
    utilisation: float
    usd_per_month: Decimal
    usd_per_mtok: Decimal | None
    watts_per_gpu: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.instances * self.settings.gpus


@dataclass(frozen=True, slots=True)
class Pools:
    """Prefill and decode on instances of their own, the KV cache carried over ``link`` (nvlink | pcie | network)."""

    prefill: PoolRole
    decode: PoolRole
    link: str
    link_gb_s: float  # of one GPU, one direction
    transfer_ms: float  # mean, from the end of prefill to the last byte


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve one workload on one kind of GPU: an engine with settings, tuned, and what one replica carries.

    ``replica_rate_per_s`` is the largest load within the SLO (requests/s); ``performance`` is predicted at the load
    that each of ``replicas`` carries. ``usd_per_mtok_*`` at the load really carried. ``status`` other than ok has its
    reasons. With ``disagg`` a replica is a unit of both pools; ``settings`` and ``memory`` are then its decode role's.
    """

    id: str  # stable: "<workload>/<engine>/<gpu>/tp..pp..ep..dp../<precision>"; units: "2xtp2..-1xtp4.."
    workload: str
    gpu: str
    settings: ResolvedSettings | None
    status: Literal["ok", "infeasible", "unsupported", "no_data"]
    reasons: tuple[str, ...] = ()
    memory: MemoryLedger | None = None
    performance: Performance | None = None
    replica_rate_per_s: float = 0.0
    replica_rate_80: Interval | None = None
    replicas: int = 0
    gpus_per_replica: int = 0
    tok_s_per_gpu: float = 0.0  # output tokens/s/GPU at the planned load
    tok_s_per_user: float = 0.0  # 1000 / mean TPOT
    cost: CostBreakdown | None = None
    evidence: Evidence = Evidence.ROOFLINE
    max_nvlink_domain_needed: int = 1
    replica_share: float = 0.0  # share of the workload's demand that one replica carries within the SLO
    replica_extra_usd_per_hour: Decimal = Decimal(0)  # operations and electricity of one replica, beyond the GPU price
    watts_per_gpu: float | None = None  # None: nothing measured covers this GPU
    sharers: int = 1  # engines that the GPU is divided among, equal shares; 1: a whole GPU
    disagg: Pools | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all replicas; a shared one counts as one each time."""
        return self.replicas * self.gpus_per_replica

    @property
    def gpus_charged(self) -> Fraction:
        """GPUs that one replica pays for."""
        return Fraction(self.gpus_per_replica, self.sharers)


@dataclass(frozen=True, slots=True)
class Placement:
    """One replica on concrete GPUs. Several entries with one ``replica`` when it spans nodes."""

    workload: str
    candidate_id: str
    replica: int
    node: str
    gpu_indexes: tuple[int, ...]
    sharers: int = 1  # engines that divide the GPU between them
    slot: int = 0  # which of the shares: engines on one GPU have different ones
    slice_profile: str = ""  # MIG profile where the replica runs on a slice of ``gpu_indexes[0]``
    slice_index: int = -1  # which of the node's slices, in their order
    slice_uuid: str = ""  # what CUDA_VISIBLE_DEVICES takes


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Replicas that found no place: which constraint binds, and the least relaxation."""

    workload: str
    replicas: int
    reason: str
    relaxation: str


@dataclass(frozen=True, slots=True)
class StrandedReport:
    """Fragmentation of the fleet (FGD expectation over the workload mix)."""

    free_gpus: int
    stranded_gpus: float  # expected free GPUs that the mix cannot take
    by_node: dict[str, float] = field(default_factory=dict)
    largest_free_block: int = 0
    free_by_shape: dict[str, int] = field(default_factory=dict)  # largest usable shape in GPUs -> free GPUs
    free_slices: dict[str, int] = field(default_factory=dict)  # MIG profile -> free slices
    memory_stranded_gib: float = 0.0  # of the stranded GPUs
    memory_unused_gib: float = 0.0  # shares of GPUs in use that no engine holds


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a simpler way of placing would have cost: best-fit, first-fit-decreasing."""

    name: str
    usd_per_hour: Decimal
    unplaced_replicas: int
    served_share: float  # mean over the workloads of the share of demand served, 0..1


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The plan with one engine alone, or (``engine`` empty) as chosen: what it costs, and what it leaves out.

    ``objective_usd_per_hour`` is what the solver minimised: it bears the people of an engine with every workload.
    ``usd_per_month`` (730 hours) holds them once for each engine in use: a second engine is paid for. ``saving`` is how
    much cheaper a month of the chosen plan is, as a share of this one's, with the 80 % interval; None for the chosen
    plan and where the two do not serve the same. ``too_close`` when that interval holds zero.
    """

    engine: str
    status: Literal["optimal", "feasible", "greedy", "infeasible"]
    objective_usd_per_hour: Decimal
    usd_per_month: Decimal
    gap: float
    gpus: int
    purchased_nodes: int
    served_share: float  # mean over the workloads of the share of demand served, 0..1
    unplaced: tuple[Unplaced, ...] = ()
    saving: Interval | None = None
    too_close: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One replica to another node: the new one starts first (``minutes``), then the old one drains."""

    workload: str
    candidate_id: str
    replica: int
    from_node: str
    to_node: str
    to_gpu_indexes: tuple[int, ...]
    minutes: float


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Moves among what runs today that leave fewer GPUs stranded; empty when none helps."""

    moves: tuple[Move, ...]
    before: StrandedReport
    after: StrandedReport


@dataclass(frozen=True, slots=True)
class WorkloadBill:
    """What one workload costs a month by the plan's bill; ``parts`` add up to it, and the workloads to the plan's.

    Money per million tokens is the whole of it over each kind of tokens; None where none of the kind is served.
    """

    workload: str
    usd_per_month: Decimal
    usd_per_mtok_input: Decimal | None
    usd_per_mtok_output: Decimal | None
    usd_per_mtok_total: Decimal | None
    parts: tuple[tuple[str, Decimal], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The answer. ``status`` optimal | feasible (time ran out, see gap) | greedy | infeasible."""

    request_name: str
    model_version: str
    status: Literal["optimal", "feasible", "greedy", "infeasible"]
    objective_usd_per_hour: Decimal
    bound_usd_per_hour: Decimal
    gap: float
    solve_s: float
    candidates: tuple[Candidate, ...]
    verdicts: tuple[Verdict, ...]
    placements: tuple[Placement, ...]
    unplaced: tuple[Unplaced, ...]
    usd_per_hour: Decimal  # of the GPUs placed; of a shared or sliced one the parts in use
    idle_usd_per_hour: Decimal  # of the owned GPUs, and parts of GPUs, left over
    stranded_before: StrandedReport
    stranded_after: StrandedReport
    moves: int = 0
    notes: tuple[str, ...] = ()
    purchased_nodes: tuple[PlanNode, ...] = ()  # nodes that the plan buys; placements may name them
    baselines: tuple[Baseline, ...] = ()
    rules: tuple[RuleOfThumb, ...] = ()
    months: tuple[MonthView, ...] = ()
    runways: tuple[Runway, ...] = ()
    consolidation: Consolidation | None = None  # of what runs today, without any other change
    engine_plans: tuple[EnginePlan, ...] = ()  # as chosen, all vLLM, all TensorRT-LLM
    mixes: tuple[Mix, ...] = ()  # workloads served by several configurations at once, and what a hybrid would be
    router_config: str = ""  # LiteLLM proxy config.yaml that spreads the workloads over the planned endpoints
    usd_per_month: Decimal | None = None  # the bill of all workloads; None in answers stored before it was kept
    usd_per_mtok_output: Decimal | None = None  # of the workloads that give output, by that bill
    bills: tuple[WorkloadBill, ...] = ()  # of each workload, in the order of the request; adds up to ``usd_per_month``
