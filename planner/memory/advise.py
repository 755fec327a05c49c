"""What would make it fit, or fit better: found by trying, since fit is not monotone in any one setting.

A longer context can lower ``max_num_batched_tokens`` through the engine's clamps, more ranks replicate what cannot be
divided, a smaller pool of groups changes the page size: so each remedy is the ledger run again on changed settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from planner.catalog.types import GpuSpec
from planner.engines import EngineName, EngineSettings, resolve, support
from planner.engines import model_traits as mt
from planner.errors import PlannerError
from planner.memory.ledger import ledger
from planner.memory.types import MemoryLedger, Remedy
from planner.models.spec import ModelSpec
from planner.words import ENGINE_LABEL

_GRID_POINTS = 48
_SHORTEST = 256
_MOST_RANKS = 16
_TOKEN_BUDGETS = (8192, 4096, 2048, 1024, 512)
_SEQUENCES = (512, 256, 128, 64, 32)
_FEWEST_SEQUENCES = 16
_SHARES = (0.92, 0.95, 0.97)
_SMALLER_SHARES = tuple(hundredths / 100 for hundredths in range(90, 4, -5))
_FEWER_BITS = ("fp8", "int8", "int4", "fp4")


def advise(
    model: ModelSpec,
    gpu: GpuSpec,
    settings: EngineSettings,
    *,
    total_gib: float | None = None,
    used_by_others_gib: float = 0.0,
) -> tuple[Remedy, ...]:
    """Single changes to ``settings`` that would make the model fit, best first; empty when it fits already.

    Looked for, in this order: the largest context, the fewest GPUs, an 8-bit KV cache, fewer weight bits, a smaller
    token budget, fewer sequences, another share of memory. Every remedy is one that the ledger says fits and the
    engine supports.
    """

    def attempt(changed: EngineSettings) -> MemoryLedger | None:
        try:
            if not support(model, gpu, changed).ok:
                return None
            resolved = resolve(changed, model, gpu)
            return ledger(model, gpu, resolved, total_gib=total_gib, used_by_others_gib=used_by_others_gib)
        except PlannerError:
            return None

    def fits(changed: EngineSettings) -> bool:
        result = attempt(changed)
        return result is not None and result.fits

    if fits(settings):
        return ()
    remedies = [
        *_shorter(model, settings, fits),
        *_more_gpus(model, settings, fits),
        *_smaller_cache(settings, fits),
        *_fewer_bits(settings, fits),
        *_smaller_budgets(settings, fits),
        *_other_share(settings, fits),
    ]
    return tuple(remedies)


def fewer_sequences(
    model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, *, expected_len: int | None = None
) -> EngineSettings:
    """``settings`` with ``max_num_seqs`` lowered to the largest power of two that fits, where that alone helps.

    What an operator does when an engine's default refuses to start: state caches and samplers are sized by it. Settings
    that fit, that state ``max_num_seqs``, or that do not fit at 16 either are returned as they are.
    """
    if settings.max_num_seqs is not None:
        return settings
    resolved = resolve(settings, model, gpu, expected_len=expected_len)
    if ledger(model, gpu, resolved).fits:
        return settings
    sequences = 1 << (resolved.max_num_seqs - 1).bit_length() - 1
    while sequences >= _FEWEST_SEQUENCES:
        changed = replace(settings, max_num_seqs=sequences)
        if ledger(model, gpu, resolve(changed, model, gpu, expected_len=expected_len)).fits:
            return changed
        sequences //= 2
    return settings


def largest_context(model: ModelSpec, gpu: GpuSpec, settings: EngineSettings, *, total_gib: float | None = None) -> int:
    """Longest context at which the engine would start with these settings otherwise unchanged; 0 when none does."""

    def fits(changed: EngineSettings) -> bool:
        try:
            return ledger(model, gpu, resolve(changed, model, gpu), total_gib=total_gib).fits
        except PlannerError:
            return False

    return _search_context(model.max_position, settings, fits)


def _search_context(limit: int, settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> int:
    """Largest length on a geometric grid that fits, refined by bisection up to the next grid point that does not."""
    lengths = sorted({int(_SHORTEST * (limit / _SHORTEST) ** (i / (_GRID_POINTS - 1))) for i in range(_GRID_POINTS)})
    lengths = [length for length in lengths if 0 < length <= limit] or [limit]
    lengths[-1] = limit
    best = next((i for i in range(len(lengths) - 1, -1, -1) if fits(replace(settings, max_model_len=lengths[i]))), None)
    if best is None:
        return 0
    low = lengths[best]
    high = lengths[best + 1] if best + 1 < len(lengths) else low + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(replace(settings, max_model_len=middle)):
            low = middle
        else:
            high = middle
    return low


def _shorter(model: ModelSpec, settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    asked = settings.max_model_len or model.max_position
    longest = _search_context(asked, settings, fits)
    if longest:
        yield Remedy("max_model_len", longest, f"A context of {longest:,} tokens instead of {asked:,} would fit.")


def _more_gpus(model: ModelSpec, settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    heads = mt.query_heads(model) or 1
    for tp in range(settings.tp + 1, _MOST_RANKS + 1):
        if heads % tp:
            continue
        ep = tp * settings.dp if settings.ep > 1 else 1
        if fits(replace(settings, tp=tp, ep=ep)):
            yield Remedy("tp", tp, f"{tp * settings.pp * settings.dp} GPUs (tensor parallelism of {tp}) would fit.")
            return
    for pp in range(settings.pp + 1, _MOST_RANKS // settings.tp + 1):
        if fits(replace(settings, pp=pp)):
            yield Remedy("pp", pp, f"{settings.tp * pp * settings.dp} GPUs ({pp} pipeline stages) would fit.")
            return


def _smaller_cache(settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    if settings.kv_cache_dtype not in ("fp8", "fp4") and fits(replace(settings, kv_cache_dtype="fp8")):
        yield Remedy("kv_cache_dtype", "fp8", "An 8-bit KV cache would fit.")


def _fewer_bits(settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    for precision in _FEWER_BITS:
        if precision != settings.precision and fits(replace(settings, precision=precision)):
            yield Remedy("precision", precision, f"{precision} weights would fit.")
            return


def _smaller_budgets(settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    for budget in _TOKEN_BUDGETS:
        sequences = min(settings.max_num_seqs or budget, budget)
        changed = replace(settings, max_num_batched_tokens=budget, max_num_seqs=sequences)
        if budget < (settings.max_num_batched_tokens or 1 << 30) and fits(changed):
            sentence = f"A token budget of {budget:,} per step would fit; prefill slows down."
            yield Remedy("max_num_batched_tokens", budget, sentence)
            break
    for sequences in _SEQUENCES:
        if sequences < (settings.max_num_seqs or 1 << 30) and fits(replace(settings, max_num_seqs=sequences)):
            yield Remedy("max_num_seqs", sequences, f"At most {sequences} running sequences would fit.")
            break


def _other_share(settings: EngineSettings, fits: Callable[[EngineSettings], bool]) -> Iterable[Remedy]:
    vllm = settings.engine is EngineName.VLLM
    name = "gpu_memory_utilization" if vllm else "free_gpu_memory_fraction"
    current = settings.gpu_memory_utilization if vllm else settings.free_gpu_memory_fraction
    larger = [share for share in _SHARES if current is None or share > current]
    smaller = [share for share in _SMALLER_SHARES if current is None or share < current]
    for share in (*larger, *smaller):
        if vllm:
            changed = replace(settings, gpu_memory_utilization=share)
        else:
            changed = replace(settings, free_gpu_memory_fraction=share)
        if fits(changed):
            yield Remedy(name, share, f"{ENGINE_LABEL[settings.engine]} with {name} {share} would fit.")
            return
