"""What people reported who started engines by a plan: flags that go and come with versions, and batches without SLO."""

from __future__ import annotations

import pytest
import yaml
from memory_samples import h100, trtllm, vllm

from planner.catalog import get_model
from planner.engines import command_line, config_files, resolve, support
from planner.estimate import estimate

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
REMOVED = {
    "--disable-log-requests", "--enable-reasoning", "--max-seq-len-to-capture", "--preemption-mode", "--swap-space",
    "--guided-decoding-backend", "--num-scheduler-steps", "--use-v2-block-manager",
}  # fmt: skip


def full(version: str) -> list[str]:
    """Every feature at once."""
    wanted = vllm(
        version, tp=2, max_loras=4, kv_cache_dtype="fp8", enforce_eager=True, speculative_tokens=2, precision="fp8"
    )
    return command_line(resolve(wanted, get_model(LLAMA), h100()), "/models/m", "m", 8123)


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.12.0", "0.17.1", "0.24.0", "0.33.0"])
def test_no_flag_that_any_release_took_away_is_written(version: str) -> None:
    """D13: reports disagree on which release dropped a flag, so none of them is ever used."""
    assert REMOVED.isdisjoint(full(version))


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0", "1.3.0rc20"])
def test_no_key_that_was_renamed_within_a_line_is_written(version: str) -> None:
    """D12: ``autotuner_enabled`` and ``use_cuda_graph`` went between release candidates of 1.0.0."""
    keys = yaml.safe_load(config_files(resolve(trtllm(version=version), get_model(LLAMA), h100()))["llm-api.yaml"])
    assert {"autotuner_enabled", "enable_autotuner", "use_cuda_graph", "cache_transceiver_config"}.isdisjoint(keys)
    assert keys["cuda_graph_config"]["batch_sizes"]


def test_the_engine_build_path_is_refused_where_it_is_gone() -> None:
    """D11: trtllm-build left the tree with 1.3.0rc21; what is started is trtllm-serve, with blocks of 32 tokens."""
    model, card = get_model(LLAMA), h100()
    gone = support(model, card, trtllm(version="1.3.0rc21", trt_backend="tensorrt"))
    assert not gone.ok
    assert "removed" in " ".join(gone.reasons)
    resolved = resolve(trtllm(version="1.3.0rc20"), model, card)
    assert resolved.block_tokens == 32
    assert command_line(resolved, "/m", "m", 8000)[0] == "trtllm-serve"


def test_a_massive_offline_batch_is_a_load_without_slo() -> None:
    """G6: Llama-3.1-70B on eight L40S over PCIe: throughput of N requests; a narrower batch carries less of it."""
    request = {
        "id": "batch", "model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "L40S", "engine": "vllm",
        "engine_version": "0.24.0", "tp": 8, "pp": 1, "ep": 1, "dp": 1, "max_model_len": 4096,
        "load": {"kind": "offline", "requests": 600}, "input_tokens": 512, "output_tokens": 256,
    }  # fmt: skip
    default = estimate(request)
    narrow = estimate({**request, "max_num_seqs": 16})
    assert default["status"] == narrow["status"] == "ok", default["reasons"]
    assert default["perf"]["output_tok_per_s"] > 2 * narrow["perf"]["output_tok_per_s"]
    assert default["perf"]["req_per_s"] == pytest.approx(default["perf"]["output_tok_per_s"] / 256, rel=0.01)
