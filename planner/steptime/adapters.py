"""What low-rank adapters (LoRA) add to a step: the products with A and B beside each adapted GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.catalog.types import GpuSpec
from planner.engines.gpu_traits import is_sm90
from planner.engines.types import EngineName
from planner.evidence import Evidence

F64 = NDArray[np.float64]

_SMALL_STEP = 128
"""Steps of fewer tokens split A's inner dimension more finely (vLLM 0.24 ``lora/ops/triton_ops/utils.py``)."""
_SHRINK_TOKENS, _SHRINK_RANK = 32, 16  # rows and columns of one thread block of the product with A
_EXPAND_TOKENS = 64  # and of that with B
_EXPAND_MERGED, _EXPAND_ALONE = 64, 128  # columns where several matrices are merged, and where one stands alone
_SPLITS_SMALL, _SPLITS, _INNER_SMALL, _INNER = 64, 8, 256, 32

_KERNEL_MS, _SHRINK_MS, _EXPAND_MS, _PASS_MS = 4.2e-3, 7.6e-6, 14.7e-6, 0.68e-3
"""Of a kernel, of a thread block of either product that has work, and of one pass along A's inner dimension.

vLLM 0.24.0, Llama-3.1-8B in bf16 on an H200 with adapters on all linear layers: decode steps of 1-128 sequences with 1,
4 and 8 adapters of rank 16 and 64 take 1.4-5.2 ms more than without, prompts of 2,048 tokens 16 and 20 ms, of 8,192
about 38 (least squares over 13 such differences, each met within 20 %). The bytes moved would take a tenth of that.
"""

ADAPTER_LAUNCH_MS = 0.24
"""In which the host launches both kernels of one GEMM's adapters in a step that no graph holds: the same server takes
48 ms for a prompt of 1,024 tokens with one adapter, where 32 layers without one take 26 on the GPU."""

_MEASURED_ON = "an H200"


@dataclass(frozen=True, slots=True)
class AdapterOp:
    """Products with A (``k`` x ``rank``) and B (``rank`` x ``n``) of ``adapters`` different adapters in a step.

    ``merged`` matrices of one GEMM (Q, K and V; gate and up) have an A each.
    """

    k: int
    n: int
    merged: int
    rank: int
    adapters: int
    count: float = 1.0


def distinct_adapters(adapters: int, rows: F64) -> F64:
    """Mean number of different adapters among ``rows`` tokens of as many requests, each as likely as the others."""
    return adapters * -np.expm1(rows * np.log1p(-1.0 / adapters)) if adapters > 1 else np.ones_like(rows)


def adapter_ms(op: AdapterOp, rows: F64) -> F64:
    """Milliseconds of one run on ``rows`` tokens: two kernels, whose thread blocks are counted as vLLM's grid has them.

    A block multiplies rows of one adapter alone, so that few tokens of many adapters take many blocks.
    """
    distinct = distinct_adapters(op.adapters, rows)
    each = rows / distinct
    small = rows < _SMALL_STEP
    splits = np.where(small, _SPLITS_SMALL, _SPLITS)
    inner = np.where(small, _INNER_SMALL, _INNER)
    columns = _EXPAND_MERGED if op.merged > 1 else _EXPAND_ALONE
    shrink = splits * np.ceil(each / _SHRINK_TOKENS) * np.ceil(op.rank / _SHRINK_RANK) * op.merged
    expand = np.ceil(each / _EXPAND_TOKENS) * np.ceil(op.n / columns)
    passes = np.ceil(op.k / splits / inner)
    blocks = distinct * (_SHRINK_MS * shrink + _EXPAND_MS * expand)
    return np.asarray(2 * _KERNEL_MS + blocks + _PASS_MS * passes, dtype=np.float64)


def adapter_evidence(engine: str, gpu: GpuSpec) -> tuple[Evidence, tuple[str, ...]]:
    """How well the time of adapters is known, with what to say where they were not measured."""
    if engine != EngineName.VLLM.value:
        return Evidence.EXTRAPOLATED, (f"adapters are taken to cost what vLLM's kernels cost on {_MEASURED_ON}",)
    if not is_sm90(gpu):
        return Evidence.EXTRAPOLATED, (f"adapters are taken to cost what they cost on {_MEASURED_ON}",)
    return Evidence.SILICON, ()
