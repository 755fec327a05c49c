"""Everything there is to say of one (model, GPU, engine, settings): what the pages, the REST API and the CLI show."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.catalog.types import GpuSpec
from planner.engines import EngineSettings, ResolvedSettings, command_line, config_files, resolve, support
from planner.errors import UnsupportedError
from planner.memory.advise import advise
from planner.memory.cliff import PreemptionCliff, preemption_cliff
from planner.memory.ledger import ledger
from planner.memory.types import MemoryLedger, Remedy
from planner.models.spec import ModelSpec

PORT = 8000


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The answer. ``status`` ok | infeasible | unsupported; ``reasons`` say why it is not ok, ``warnings`` what changes
    silently. ``ledger`` and what follows are None or empty where the engine cannot run the combination at all.
    """

    status: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    resolved: ResolvedSettings | None = None
    ledger: MemoryLedger | None = None
    cliff: PreemptionCliff | None = None
    remedies: tuple[Remedy, ...] = ()
    command_line: tuple[str, ...] = ()
    config_files: dict[str, str] = field(default_factory=dict)


def memory_report(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: EngineSettings,
    *,
    expected_len: int | None = None,
    total_gib: float | None = None,
    used_by_others_gib: float = 0.0,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    concurrency: int | None = None,
    model_path: str = "",
) -> MemoryReport:
    """Support, ledger, preemption cliff (given both lengths), remedies, and the command line that gives all this.

    ``total_gib`` and ``used_by_others_gib`` as in ``ledger``; ``model_path`` is what the engine is told to load, by
    default the model's id. Raises InputError for values that are absurd or lengths beyond the context.
    """
    able = support(model, gpu, settings)
    if not able.ok:
        return MemoryReport("unsupported", able.reasons, able.warnings)
    try:
        resolved = resolve(settings, model, gpu, expected_len=expected_len)
        memory = ledger(model, gpu, resolved, total_gib=total_gib, used_by_others_gib=used_by_others_gib)
    except UnsupportedError as error:
        return MemoryReport("unsupported", (str(error),), able.warnings)
    cliff = None
    if input_tokens is not None and output_tokens is not None and memory.kv_gib > 0:
        cliff = preemption_cliff(
            model, resolved, memory, input_tokens=input_tokens, output_tokens=output_tokens, concurrency=concurrency
        )
    remedies: tuple[Remedy, ...] = ()
    if not memory.fits:
        remedies = advise(model, gpu, settings, total_gib=total_gib, used_by_others_gib=used_by_others_gib)
    path = model_path or model.model_id
    return MemoryReport(
        "ok" if memory.fits else "infeasible",
        memory.reasons,
        (*model.assumed, *able.warnings),
        resolved,
        memory,
        cliff,
        remedies,
        tuple(command_line(resolved, path, model.model_id, PORT)),
        config_files(resolved),
    )
