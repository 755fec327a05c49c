"""Clocks under a power cap: why large steps run slower than the operator tables say.

Operator tables are taken in short bursts at full clock. A card that computes without pause reaches its power limit and
lowers its clock. Measured with vLLM 0.24.0 on an H200 (700 W): lone prompts of 2048-4096 tokens take 4-6 % longer than
their kernels at 1.7-1.85 GHz, full steps of 8192 tokens 3-9 % longer at 1.5-1.6 GHz under sustained load; decode steps
of up to 128 sequences agree with the tables within 2 % even at 1.6 GHz, since they wait for memory. On B200 (1000 W)
published runs of Llama-3.1-70B under vLLM, FP8 and NVFP4, take 13-18 % longer over prompts of 8192 tokens than their
kernels on 1 to 8 GPUs, at decode steps that agree.
"""

from __future__ import annotations

import numpy as np

from planner.catalog.types import GpuSpec
from planner.steptime.efficiency import family
from planner.steptime.sources import F64

SLOWDOWN = {"hopper": 0.07, "blackwell": 0.15}
"""Longer time of compute-bound operators under sustained load, as a share, by family; only what was measured."""

_MEMORY_BOUND, _COMPUTE_BOUND = 0.45, 0.65
"""Shares of peak arithmetic below and above which an operator counts as bound by memory and by arithmetic."""


def slowdown(gpu: GpuSpec, achieved_share: F64) -> F64:
    """Factor (>= 1) on operators that reach ``achieved_share`` of the peak arithmetic rate at full clock."""
    limit = SLOWDOWN.get(family(gpu), 0.0)
    if (gpu.tdp_w or 0.0) < 500.0:  # cards with a low cap throttle in the bursts of the tables too
        limit = 0.0
    return 1.0 + limit * np.clip((achieved_share - _MEMORY_BOUND) / (_COMPUTE_BOUND - _MEMORY_BOUND), 0.0, 1.0)
