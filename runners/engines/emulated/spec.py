"""What an emulated engine is told: step times, scheduler limits, start-up facts and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from planner.errors import InputError
from planner.jsonio import from_json
from planner.steptime.types import FrontEnd, StepTables, check_tables
from runners.contracts import StartupFacts


@dataclass(frozen=True, slots=True)
class Limits:
    """The scheduler's limits. ``reserve_output`` is TensorRT-LLM's GUARANTEED_NO_EVICT."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_tokens: int
    kv_blocks: int
    chunked_prefill: bool = True
    prefix_caching: bool = True
    async_scheduling: bool = True
    reserve_output: bool = False


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on purpose, for tests.

    ``exit_at_once`` with ``exit_code``; ``hang_in_loading`` says nothing more after the weights; ``die_after_tokens``
    ends the process by SIGKILL once that many tokens were sent; ``refuse_generation`` lists the model but answers 500;
    ``leave_child`` starts a process that outlives it; ``ignore_sigterm`` must be killed; ``slow_factor`` stretches
    steps;
    ``error_share`` of the requests answer 500.
    """

    exit_at_once: bool = False
    exit_code: int = 1
    hang_in_loading: bool = False
    die_after_tokens: int = 0
    refuse_generation: bool = False
    leave_child: bool = False
    ignore_sigterm: bool = False
    slow_factor: float = 1.0
    error_share: float = 0.0


@dataclass(frozen=True, slots=True)
class EmulationSpec:
    """All that an emulated engine needs. ``load_s`` is how long it pretends to load; ``prefix_hit`` the share of each
    prompt that it treats as cached (whole blocks), ``vocab_size`` the words of its tokenizer.
    """

    acts_as: Literal["vllm", "tensorrt_llm"]
    version: str
    gpu: str
    tables: StepTables
    front_end: FrontEnd
    limits: Limits
    startup: StartupFacts = field(default_factory=StartupFacts)
    load_s: float = 2.0
    prefix_hit: float = 0.0
    vocab_size: int = 8192
    embeds: bool = False  # answers on /v1/embeddings alone
    faults: Faults = field(default_factory=Faults)


def parse_spec(data: Any) -> EmulationSpec:
    """Read and check the material of an emulated engine; raises InputError naming the field that is wrong."""
    spec = from_json(EmulationSpec, data, "emulation")
    limits = spec.limits
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_tokens", "kv_blocks"):
        if getattr(limits, name) < 1:
            raise InputError("must be at least 1", field=f"emulation.limits.{name}", value=getattr(limits, name))
    if not 0.0 <= spec.prefix_hit < 1.0:
        raise InputError("must be in 0..1", field="emulation.prefix_hit", value=spec.prefix_hit)
    if not 0.0 <= spec.load_s <= 3600.0:
        raise InputError("must be in 0..3600 seconds", field="emulation.load_s", value=spec.load_s)
    if not 16 <= spec.vocab_size <= 1_000_000:
        raise InputError("must be in 16..1000000", field="emulation.vocab_size", value=spec.vocab_size)
    if not 0.0 < spec.faults.slow_factor <= 1000.0:
        raise InputError("must be in 0..1000", field="emulation.faults.slow_factor", value=spec.faults.slow_factor)
    check_tables(spec.tables, "emulation.tables")
    return spec
