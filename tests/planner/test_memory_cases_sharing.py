"""What else a start-up depends on: the GPU, its other users, the version and the engine (cases M19 to M32).

Not computed, and why: M22 gives no driver versions: the memory that the driver reports is an input, what it moves is
tested. M27 (graphs of 4.7 to 16.9 GiB on eight MI355X) gives no cause to compute from: the ledger says that its figure
was never measured there, and widens the interval. M29's older release (0.6.3, some 3,000 blocks where 0.6.4 had 5,000)
measured fragments of the allocator.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from memory_samples import account, answer, gpu, h100, pool_of, trtllm, vllm

from planner.catalog import get_model
from planner.catalog.models import DATA
from planner.engines import config_files, resolve
from planner.evidence import Evidence
from planner.memory import advise, kv_tokens_from_gib, memory_report
from planner.units import GIB

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def test_m19_gate_asks_for_one_sequence_and_shows_the_rest_as_capacity() -> None:
    """Reported for one deployment: 16 in the page, 1 in the gate, 256 in the job. Here one resolver gives all three."""
    got = memory_report(get_model("Qwen/Qwen2.5-7B-Instruct"), gpu("A40"), vllm("0.24.0", max_model_len=32_768))
    assert got.status == "ok"
    assert got.resolved is not None
    assert got.ledger is not None
    assert got.resolved.max_num_seqs == 256
    assert got.resolved.origin["max_num_seqs"].startswith("vLLM 0.24.0 default")
    assert 1 < got.ledger.max_concurrency < 17
    command = got.command_line
    assert command[command.index("--max-num-seqs") + 1] == "256"


@pytest.mark.parametrize(("name", "budget", "sequences"), [("H100", 8192, 1024), ("A100-80GB", 2048, 256)])
def test_m20_defaults_depend_on_the_gpu(name: str, budget: int, sequences: int) -> None:
    got = memory_report(get_model(LLAMA_8B), gpu(name), vllm("0.24.0", max_model_len=8192)).resolved
    assert got is not None
    assert (got.max_num_batched_tokens, got.max_num_seqs) == (budget, sequences)


def test_m21_the_second_generation_takes_four_times_the_sequences() -> None:
    model, settings = get_model("Qwen/Qwen3-32B"), vllm("0.7.3", max_model_len=8192)
    first, second = (memory_report(model, h100(), replace(settings, version=each)) for each in ("0.7.3", "0.8.0"))
    assert first.resolved is not None and second.resolved is not None  # noqa: PT018
    assert first.ledger is not None and second.ledger is not None  # noqa: PT018
    assert (first.resolved.max_num_seqs, second.resolved.max_num_seqs) == (256, 1024)
    assert second.ledger.activation_gib > first.ledger.activation_gib + 4.0
    lowered = account(model, h100(), replace(settings, version="0.8.0", max_num_seqs=256))
    assert lowered.kv_gib == pytest.approx(first.ledger.kv_gib, abs=0.1)


def test_m21_fewer_sequences_are_offered_when_the_sampler_takes_too_much() -> None:
    settings = vllm("0.16.0", max_model_len=30_000)
    assert not account("Qwen/Qwen3-32B", h100(), settings).fits
    remedies = {remedy.field: remedy.value for remedy in advise(get_model("Qwen/Qwen3-32B"), h100(), settings)}
    assert int(remedies["max_num_seqs"]) <= 512
    changed = replace(settings, max_num_seqs=int(remedies["max_num_seqs"]))
    assert account("Qwen/Qwen3-32B", h100(), changed).fits


def test_m22_memory_as_the_driver_reports_it_moves_the_pool() -> None:
    before = account(LLAMA_8B, h100(), vllm(max_model_len=8192))
    after = account(LLAMA_8B, h100(), vllm(max_model_len=8192), total_gib=79.19 - 0.6)
    assert before.kv_gib - after.kv_gib == pytest.approx(0.54, abs=0.01)


def test_m23_utilisation_is_of_the_total_and_others_count() -> None:
    asked = {"model": "Qwen/Qwen3-14B", "precision": "int4", "max_model_len": 4096, "engine": "vllm"}
    card = {"gpu": "A100-80GB", "gpu_memory_gib": 79.15}
    second = answer(**asked, **card, engine_version="0.11.0", gpu_memory_utilization=0.20, used_by_others_gib=68.01)
    assert second["status"] == "infeasible"
    assert any("Only 11.14 of 79.15 GiB are free at start" in reason for reason in second["reasons"])


@pytest.mark.parametrize(
    ("version", "share", "status"),
    # Versions of that time took the other process's memory for their own.
    [("0.8.5", 0.2, "infeasible"), ("0.8.5", 0.3, "ok"), ("0.11.0", 0.2, "ok")],
)
def test_m23_two_small_engines_on_one_card(version: str, share: float, status: str) -> None:
    got = answer(
        model="TinyLlama/TinyLlama-1.1B-Chat-v1.0", gpu="L40S", gpu_memory_gib=44.4, engine="vllm",
        engine_version=version, gpu_memory_utilization=share, used_by_others_gib=0.2 * 44.4,
    )  # fmt: skip
    assert got["status"] == status


def test_m24_the_engine_takes_its_share_whatever_the_router_planned() -> None:
    got = answer(
        model="google/gemma-3-27b-it", gpu="RTX-PRO-6000-Blackwell-Server", gpu_memory_gib=94.97, engine="vllm", tp=2,
        engine_version="0.24.0", gpu_memory_utilization=0.95, max_model_len=8192, used_by_others_gib=94.97 - 79.12,
    )  # fmt: skip
    assert got["status"] == "infeasible"
    assert "Only 79.12 of 94.97 GiB are free at start, less than the 90.22 GiB" in got["reasons"][0]
    assert "vLLM with gpu_memory_utilization 0.8 would fit." in got["reasons"]


def test_m25_unified_memory_is_one_pool() -> None:
    spark = gpu("GB10-DGX-Spark", total_gib=119.0)
    settings = vllm("0.24.0", gpu_memory_utilization=0.70, max_model_len=8192)
    got = account("google/gemma-4-26B-A4B", spark, settings)
    assert got.budget_gib == pytest.approx(83.3, abs=0.1)
    assert any("share one memory" in note for note in got.notes)
    busy = account("google/gemma-4-26B-A4B", spark, settings, used_by_others_gib=40.0)
    assert not busy.fits


def test_m26_a_pool_that_fits_may_still_die_in_graph_capture() -> None:
    model = "Qwen/Qwen3-32B"
    lean = vllm("0.24.0", gpu_memory_utilization=0.993, max_model_len=2048, max_num_batched_tokens=1024)
    got = account(model, gpu("H100"), replace(lean, max_num_seqs=512))
    assert got.kv_gib > 0
    assert not got.fits
    assert got.binding == "graphs"
    assert account(model, gpu("H100"), replace(lean, max_num_seqs=512, gpu_memory_utilization=0.95)).fits


@pytest.mark.parametrize(("share", "status"), [(0.98, "infeasible"), (0.97, "ok")])
def test_m26_a_last_hundredth_of_a_24_gib_card_is_too_much(share: float, status: str) -> None:
    got = answer(
        model="nvidia/Qwen3.6-27B-NVFP4", gpu="RTX-5090", gpu_memory_gib=23.89, engine="vllm", max_model_len=65_536,
        max_num_seqs=2, kv_cache_dtype="fp8", max_num_batched_tokens=2048, gpu_memory_utilization=share,
    )  # fmt: skip
    assert got["memory"]["kv_gib"] > 2.0
    assert got["status"] == status


@pytest.mark.parametrize("version", ["0.20.2", "0.21.0", "0.24.0"])
def test_m28_the_same_share_gives_less_after_graphs_are_counted(version: str) -> None:
    """.82 acts like .8048 did, .8352 gives the old pool; the log names 0.21.0, the code counts graphs since 0.20.2."""
    name = "Qwen/Qwen2.5-14B-Instruct"

    def pool(release: str, share: float) -> float:
        asked = {"gpu": "H100-SXM5-80GB", "gpu_memory_gib": 79.19, "engine": "vllm", "max_model_len": 8192}
        got = answer(model=name, engine_version=release, gpu_memory_utilization=share, **asked)
        return float(got["memory"]["kv_gib"])

    assert pool("0.19.0", 0.82) - pool(version, 0.82) == pytest.approx(0.0152 * 79.19, abs=0.1)
    assert pool(version, 0.82) == pytest.approx(pool("0.19.0", 0.8048), abs=0.1)
    assert pool(version, 0.8352) == pytest.approx(pool("0.19.0", 0.82), abs=0.1)


def test_m28_the_report_says_what_the_share_was_worth_before() -> None:
    settings = vllm("0.21.0", gpu_memory_utilization=0.82, max_model_len=8192)
    got = memory_report(get_model("Qwen/Qwen2.5-14B-Instruct"), h100(), settings).ledger
    assert got is not None
    worth = got.graph_gib / 79.19
    note = next(note for note in got.notes if "acts like" in note)
    assert f"0.82 acts like {0.82 - worth:.4f}" in note
    assert f"{0.82 + worth:.4f} gives the pool of then" in note
    older = account("Qwen/Qwen2.5-14B-Instruct", h100(), replace(settings, version="0.19.0"))
    assert not any("acts like" in note for note in older.notes)


def test_m29_an_old_start_up_is_that_of_its_version() -> None:
    """0.6.4, two V100, an adapter, 40,000 tokens: whole prompts, so 2.53 GiB of activation; 3,852 blocks, 1.54."""
    asked = {"model": LLAMA_8B, "gpu": "V100-SXM2-16GB", "engine": "vllm", "tp": 2, "gpu_memory_utilization": 0.9}
    old, new = (
        answer(**asked, gpu_memory_gib=15.77, max_model_len=40_000, max_loras=1, engine_version=version)["memory"]
        for version in ("0.6.4", "0.24.0")
    )
    assert old["weights_gib"] == pytest.approx(7.51, abs=0.01)
    assert old["activation_gib"] == pytest.approx(2.53, abs=0.1)
    assert old["kv_gib"] == pytest.approx(3.76, abs=0.25)
    assert new["activation_gib"] < 0.5, "the same arguments, another version: compare versions first"
    exact = pool_of(3852 / 1024 + 1e-4, **asked, max_model_len=40_000, max_loras=1, engine_version="0.6.4")["memory"]
    assert exact["kv_blocks"] == 3852
    assert exact["max_concurrency"] == pytest.approx(1.54, abs=0.005)


def test_m31_a_seven_gb_model_leaves_most_of_the_card_to_the_pool() -> None:
    """Logged for an engine of 7 GB on an A100-80: 69,524,783,104 bytes, 132,608 tokens."""
    name, card = "meta-llama/Llama-2-7b-hf", "A100-80GB"
    asked = {"model": name, "gpu": card, "engine": "tensorrt_llm", "max_model_len": 4096, "precision": "int8"}
    asked["trt_backend"] = "tensorrt"  # INT8 is the engine builder's; the PyTorch back end has no kernels for it
    free = answer(**asked, max_num_seqs=64)["memory"]
    assert free["kv_tokens"] == pytest.approx(132_608, rel=0.02)
    resolved = resolve(trtllm(max_model_len=4096), get_model(name), gpu(card))
    assert kv_tokens_from_gib(get_model(name), resolved, 69_524_783_104 / GIB)[:2] == (4144, 132_608)
    capped = answer(**asked, kv_cache_max_tokens=50_000)["memory"]
    assert capped["kv_tokens"] == 50_000 // 32 * 32
    bytes_win = answer(**asked, kv_cache_max_tokens=50_000, kv_cache_max_gpu_gib=20.0)["memory"]
    assert bytes_win["kv_tokens"] == 40_960  # of 512 KiB each


def test_m27_graphs_on_other_vendors_are_not_called_known() -> None:
    got = account("moonshotai/Kimi-K3", gpu("MI355X"), vllm("0.24.0", tp=8, max_model_len=8192))
    assert got.evidence is Evidence.EXTRAPOLATED
    assert any("never" in note or "4.7 to 16.9" in note for note in got.notes)
    assert got.kv_gib_80 is not None
    assert got.kv_gib_80.high - got.kv_gib_80.low > 1.0


def test_m31_a_limit_in_bytes_and_a_host_cache() -> None:
    card, name = gpu("A100-80GB"), "meta-llama/Llama-2-7b-hf"
    plain = account(name, card, trtllm(max_model_len=4096))
    assert plain.pool_limit == "free_gpu_memory_fraction"
    both = account(name, card, trtllm(max_model_len=4096, kv_cache_max_gpu_gib=20.0, kv_cache_max_tokens=50_000))
    assert both.pool_limit == "max_gpu_total_bytes"  # 20 GiB are 40,960 tokens of 512 KiB
    assert both.kv_tokens == 40_960
    fewer = account(name, card, trtllm(max_model_len=4096, kv_cache_max_gpu_gib=20.0, kv_cache_max_tokens=30_000))
    assert fewer.pool_limit == "max_tokens"
    assert fewer.kv_tokens == 30_000 // 32 * 32
    hosted = account(name, card, trtllm(max_model_len=4096, kv_cache_host_gib=8.0))
    assert hosted.kv_tokens == plain.kv_tokens
    assert hosted.host_kv_tokens == 8 * 2048
    files = config_files(resolve(trtllm(kv_cache_max_gpu_gib=20.0, kv_cache_host_gib=8.0), get_model(name), card))
    assert "max_gpu_total_bytes: 21474836480" in files["llm-api.yaml"]
    assert "host_cache_size: 8589934592" in files["llm-api.yaml"]


def test_m32_share_of_total_against_share_of_free(tmp_path: Path) -> None:
    """152 GiB of weights on 179 GiB at .92: of the total's share 8 GiB are left, of the free's three times as much."""
    config = json.loads((DATA / "models" / "meta-llama--Llama-3.1-70B-Instruct.json").read_text("utf-8"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "num_hidden_layers": 93}), "utf-8")
    card = {"model": str(path), "gpu": "B200-SXM", "gpu_memory_gib": 179.0, "max_model_len": 8192}
    of_total = answer(**card, engine="vllm", engine_version="0.20.2", gpu_memory_utilization=0.92)["memory"]
    of_free = answer(**card, engine="tensorrt_llm", free_gpu_memory_fraction=0.92, max_num_seqs=256)["memory"]
    assert of_total["weights_gib"] == pytest.approx(152, abs=0.5)
    assert of_total["kv_gib"] == pytest.approx(8.0, abs=0.5)
    assert 2.5 < of_free["kv_gib"] / of_total["kv_gib"] < 3.2
