"""The JSON-able messages that cross the broker between the control plane and a node worker.

The control plane sends a *command* (``LaunchCommand``, ``ProbeCommand``, ``CancelCommand``, ``StopCommand``,
``DiscoverCommand``) to queue ``node.<slug>``; the worker answers with any number of ``Observation`` on queue
``control``. Every message carries the id and the attempt of its Job, so that late or repeated messages are recognised
and dropped. Nothing here is secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CONTROL_QUEUE = "control"
OBSERVE_TASK = "tonnage.control.observe"
LAUNCH_TASK = "tonnage.node.launch"
PROBE_TASK = "tonnage.node.probe"
CANCEL_TASK = "tonnage.node.cancel"
STOP_TASK = "tonnage.node.stop"
DISCOVER_TASK = "tonnage.node.discover"
ADOPT_TASK = "tonnage.node.adopt"


def node_queue(slug: str) -> str:
    """Queue of one node's worker."""
    return f"node.{slug}"


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """What to start, without saying how: the engine adapter turns it into a command line for that version.

    ``model`` is a model id or a local directory; ``served_name`` what /v1/models must list. ``engine`` vllm |
    vllm_cpu | tensorrt_llm | emulated. ``flags`` are engine options by their planner name (tp, max_model_len,
    kv_cache_dtype...), scalars all; ``stated`` names those that a user or plan chose against the engine's own default
    (origin "user"), the others are written out only where capacity rests on them. ``emulation`` is the material of
    the emulated engine (runners.engines.emulated.spec.EmulationSpec as JSON), else empty.
    """

    engine: str
    version: str
    model: str
    served_name: str
    port: int
    gpu_indexes: tuple[int, ...]
    flags: dict[str, str | int | float | bool] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    emulation: dict = field(default_factory=dict)
    ready_timeout_s: float = 1800.0
    stated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Start an engine and report its phases until it is ready or has failed."""

    job_id: str
    attempt: int
    deployment_id: str
    launch: EngineLaunch


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """The load to put on an endpoint. ``rate_per_s`` 0 means a closed loop at ``concurrency``.

    ``slo_ms`` are limits that a request must meet to count as good, by metric: ttft, tpot, e2e. A ``completions`` load
    on an engine that only embeds is measured as ``embeddings``. ``mix`` draws the lengths from pairs (input tokens,
    output tokens, percent of the requests); ``input_tokens`` and ``output_tokens`` are then their means. The first
    ``shared_tokens`` of a prompt are one of ``shared_prefixes`` texts, the rest is its own.
    """

    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    rate_per_s: float = 0.0
    input_sd: float = 0.0
    output_sd: float = 0.0
    warmup_requests: int = 0
    seed: int = 0
    timeout_s: float = 1800.0
    endpoint: str = "completions"  # completions | chat | embeddings
    slo_ms: dict[str, float] = field(default_factory=dict)
    mix: tuple[tuple[int, int, float], ...] = ()
    shared_tokens: int = 0
    shared_prefixes: int = 1


@dataclass(frozen=True, slots=True)
class ProbeCommand:
    """Measure a running deployment."""

    job_id: str
    attempt: int
    deployment_id: str
    probe_id: str
    base_url: str
    served_name: str
    tokenizer: str  # local directory or name; "builtin" when the engine has none of its own
    engine: str
    load: ProbeLoad


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """End the load of the probe that ``cancelled_job`` asked for, or keep it from beginning; the engine stays."""

    job_id: str
    attempt: int
    deployment_id: str
    probe_id: str
    cancelled_job: str


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Stop an engine's whole process group and check that its memory is freed."""

    job_id: str
    attempt: int
    deployment_id: str
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DiscoverCommand:
    """Say what is in this host."""

    job_id: str
    attempt: int
    node_slug: str


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    """Take up again what an earlier worker left, and report every deployment of this node."""

    job_id: str
    attempt: int
    node_slug: str


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What an engine said of itself while starting; None where it said nothing. GiB per GPU, seconds.

    ``phases_s`` are the seconds of each phase in their order, as the worker saw them pass; they add up to ``ready_s``,
    the first token included. Empty where the worker did not see the whole start.
    """

    engine_version: str | None = None
    weights_gib: float | None = None
    kv_gib: float | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    graph_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    total_gib: float | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    graph_s: float | None = None
    ready_s: float | None = None
    phases_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeMetrics:
    """Measured by the load generator at the client. Milliseconds; TPOT = (E2E - TTFT) / (n - 1).

    ``achieved_concurrency`` is the mean number of requests in flight; ``prefix_hit`` from the engine's counters around
    the run. A figure that does not exist is absent: {} where nothing streams, None without an SLO, GPU or counter.
    ``goodput_per_s`` counts requests that met every limit of the load's ``slo_ms``; 0 when none did. ``slo_shares`` is
    the share of all requests that met each limit alone. TTFT ends with the first token, of reasoning too;
    ``first_answer_ms`` with the first token of the answer itself, {} where the engine does not tell them apart.
    ``completions_per_s`` = (n - 1) / (last end - first end): without the ramp that ``req_per_s`` contains.
    ``send_lag_ms``: how late the client sent; latencies do not contain it. ``cache_state`` warm where at least 80 % of
    the prompt tokens were cached, cold at most 2 %, else mixed; "" when the engine does not say. ``acceptance``: share
    of drafted tokens that were accepted; it depends on the text, and these prompts are random.
    """

    requests: int
    completed: int
    failed: int
    duration_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    req_per_s: float
    ttft_ms: dict[str, float]  # mean p50 p90 p95 p99
    tpot_ms: dict[str, float]
    itl_ms: dict[str, float]
    e2e_ms: dict[str, float]
    achieved_concurrency: float
    mean_input_tokens: float
    mean_output_tokens: float
    itl_kind: str = "tokens"  # "chunks" where the engine sends several tokens in one chunk
    prefix_hit: float | None = None
    preemptions: int | None = None
    mean_power_w: float | None = None
    goodput_per_s: float | None = None
    good_share: float | None = None
    slo_shares: dict[str, float] = field(default_factory=dict)
    first_answer_ms: dict[str, float] = field(default_factory=dict)
    completions_per_s: float | None = None
    send_lag_ms: dict[str, float] = field(default_factory=dict)
    cache_state: str = ""
    acceptance: float | None = None
    generator: str = ""  # name and version of the load generator
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveredSlice:
    """One MIG instance; ``profile`` as its name ends: "1g.10gb"."""

    profile: str
    uuid: str
    memory_total_mib: int


@dataclass(frozen=True, slots=True)
class DiscoveredGpu:
    """One accelerator as the driver reports it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    memory_used_mib: int
    pci_bus_id: str
    driver_version: str
    power_limit_w: float | None
    mig_enabled: bool
    orphaned_mib: int  # memory in use without a live process
    slices: tuple[DiscoveredSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveredHost:
    """The machine itself. ``engines`` maps an engine's name to the version installed on this node, "" when unknown."""

    hostname: str
    cpu_model: str
    cpu_cores: int
    memory_total_mib: int
    memory_available_mib: int
    engines: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """One message from a worker. ``kind`` decides which payload is set; ``phase`` is free text for people.

    ``state``: started | progress | log | ready | probed | stopped | discovered | failed | heartbeat. ``failed``
    carries ``reason`` (what happened) and ``remedy`` (what to do). ``sequence`` rises by one per job attempt.
    ``deployment_id`` and ``probe_id`` name what it is about, empty for the node itself; a heartbeat of the node has
    no job.
    """

    job_id: str
    attempt: int
    sequence: int
    state: Literal["started", "progress", "log", "ready", "probed", "stopped", "discovered", "failed", "heartbeat"]
    node: str
    at: float  # Unix time
    phase: str = ""
    progress: float | None = None  # 0..1
    lines: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""
    base_url: str = ""
    pid: int | None = None
    command_line: tuple[str, ...] = ()
    emulated: bool = False
    startup: StartupFacts | None = None
    metrics: ProbeMetrics | None = None
    gpus: tuple[DiscoveredGpu, ...] = ()
    deployment_id: str = ""
    probe_id: str = ""
    host: DiscoveredHost | None = None
