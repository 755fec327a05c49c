"""aiconfigurator's own KV-cache estimate of the same start-ups, for comparison."""

from __future__ import annotations

from benchmarks.accuracy.memory_rows import Case
from planner.engines import EngineName, resolve
from planner.errors import PlannerError
from planner.units import GIB

_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
}
_SYSTEMS = {"H100-SXM5-80GB": "h100_sxm", "H200-SXM-141GB": "h200_sxm", "A100-SXM4-80GB": "a100_sxm"}
_DATABASE_VERSION = "0.24.0"
_GEMM = {"as-config": None, "fp8": "fp8"}


def peer_kv_gib(case: Case) -> float | None:
    """KV pool in GiB by aiconfigurator's native memory model, given the same limits; None where it has no model.

    Its fallback (80 % of what the weights leave) is not asked: it uses neither version nor budget.
    """
    system = _SYSTEMS.get(case.gpu.name)
    if system is None or case.settings.precision not in _GEMM or case.settings.engine is not EngineName.VLLM:
        return None
    try:
        from aiconfigurator_core.sdk.memory import estimate_kv_cache
    except ImportError:  # no wheel for this platform
        return None
    try:
        resolved = resolve(case.settings, case.model, case.gpu)
        answer = estimate_kv_cache(
            _NAMES.get(case.model.model_id, case.model.model_id),
            system,
            "vllm",
            _DATABASE_VERSION,
            max_num_tokens=resolved.max_num_batched_tokens,
            max_batch_size=resolved.max_num_seqs,
            memory_fraction_kind="of_total",
            memory_fraction_value=float(resolved.gpu_memory_utilization or 0.0),
            tp_size=resolved.tp,
            pp_size=resolved.pp,
            moe_tp_size=resolved.tp,
            moe_ep_size=resolved.ep,
            gemm_quant_mode=_GEMM[case.settings.precision],
            gpu_memory_capacity_bytes_override=int((case.total_gib or case.gpu.total_gib) * GIB),
        )
    except (PlannerError, ValueError, KeyError, OSError, RuntimeError):
        return None
    return float(answer["total_kv_size_bytes"]) / GIB
