"""Memory for log-probabilities, which an engine's start-up check does not see (nobody asks for any while it profiles).

vLLM's sampler keeps a log-softmax of the raw logits, in 32 bits, beside the sampling of the same step
(``v1/sample/sampler.py``). For prompts it computes the logits of every prompt token of the step and their log-softmax
(``GPUModelRunner._get_prompt_logprobs_dict``). TensorRT-LLM is taken to do the same: not verified.
"""

from __future__ import annotations

from planner.engines.types import ResolvedSettings
from planner.models.spec import ModelSpec
from planner.units import GIB

_LOG_SOFTMAX_BYTES = 4
_LOGIT_BYTES = 2


def logprobs_gib(model: ModelSpec, resolved: ResolvedSettings, activation_gib: float) -> float:
    """Peak beyond the profiled one, in GiB; 0 when nobody may ask for log-probabilities.

    Output tokens: one 32-bit tensor of (running sequences x vocabulary) on top of the sampler. Prompt tokens: logits
    and log-softmax of a whole step, when the layers' own activation (``activation_gib``) is free again.
    """
    if model.lm_head is None or not (resolved.logprobs or resolved.prompt_logprobs):
        return 0.0
    rows = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    extra = rows * model.vocab * _LOG_SOFTMAX_BYTES / GIB if resolved.logprobs else 0.0
    if resolved.prompt_logprobs:
        step = resolved.max_num_batched_tokens * model.vocab * (_LOG_SOFTMAX_BYTES + _LOGIT_BYTES) / GIB
        extra = max(extra, step - activation_gib)
    return extra
