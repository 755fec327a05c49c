"""The estimate contract: fields, statuses, errors per line, order, and the command line."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from planner.cli import main
from planner.estimate import estimate, estimate_lines

BASE: dict[str, Any] = {
    "id": "a",
    "model": "Qwen/Qwen3-8B",
    "gpu": "H200",
    "engine": "vllm",
    "load": {"kind": "closed", "concurrency": 16},
    "input_tokens": 1024,
    "output_tokens": 256,
}
MEMORY_FIELDS = {
    "weights_gib",
    "activation_gib",
    "non_torch_gib",
    "graph_gib",
    "kv_gib",
    "kv_blocks",
    "block_tokens",
    "kv_tokens",
    "max_concurrency",
    "largest_model_len",
    "interval80",
}


def ask(**changes: Any) -> dict[str, Any]:
    """The answer to the base request with ``changes``; None removes a field."""
    request = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return estimate(request)


def test_an_answer_has_every_field_of_the_contract() -> None:
    answer = ask(usd_per_gpu_hour=2.5)
    assert answer["status"] == "ok"
    assert answer["id"] == "a"
    assert set(answer["memory"]) == MEMORY_FIELDS
    perf = answer["perf"]
    assert set(perf["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert perf["total_tok_per_s"] == pytest.approx(perf["output_tok_per_s"] * 5, rel=0.02)
    for metric in ("output_tok_per_s", "ttft_ms", "tpot_ms"):
        low, high = perf["interval80"][metric]
        assert low < high
    cost = answer["cost"]
    assert cost["usd_per_mtok_output"] == pytest.approx(2.5 / (perf["output_tok_per_s"] * 3600) * 1e6, rel=1e-3)
    assert answer["evidence"] == "silicon"
    assert answer["model_version"]
    json.dumps(answer, allow_nan=False)


def test_without_a_load_only_memory_is_answered() -> None:
    answer = ask(load=None, input_tokens=None, output_tokens=None)
    assert answer["status"] == "ok"
    assert answer["memory"]["kv_tokens"] > 700_000
    assert answer["perf"] is None


@pytest.mark.parametrize(
    "load",
    [
        {"kind": "closed", "concurrency": 4, "requests": 40},
        {"kind": "open", "rate_per_s": 5, "arrival": "constant", "requests": 100},
        {"kind": "open", "rate_per_s": 5},
        {"kind": "offline", "requests": 200},
    ],
)
def test_every_kind_of_load(load: dict[str, Any]) -> None:
    answer = ask(load=load, input_tokens={"mean": 900, "sd": 100}, output_tokens={"low": 100, "high": 200})
    assert answer["status"] == "ok"
    assert answer["perf"]["req_per_s"] > 0


def test_an_open_load_beyond_capacity_says_so() -> None:
    answer = ask(load={"kind": "open", "rate_per_s": 500, "requests": 2000})
    assert answer["perf"]["load_region"] == "saturated"
    assert any("queue grows" in reason for reason in answer["reasons"])


def test_cached_prefixes_make_the_first_token_faster() -> None:
    cold, warm = ask(), ask(prefix_hit=0.8)
    assert warm["perf"]["ttft_ms"]["p50"] < cold["perf"]["ttft_ms"]["p50"]


def test_a_pool_for_one_prompt_at_a_time_does_not_compute_the_next_again_and_again() -> None:
    """GPUStack's Qwen3-32B on one A100: prompts of 32,000 tokens, 4.32 tokens/s and 67 ms a token measured (vLLM 0.11).

    A second prompt beside the first never fits. Without the prefix cache each try computes its chunks anew.
    """
    one = {"model": "Qwen/Qwen3-32B", "gpu": "A100-SXM-80GB", "engine_version": "0.11.0", "precision": "bf16"}
    load = {"load": {"kind": "closed", "concurrency": 100, "requests": 100}, "input_tokens": 32_000}
    kept = ask(**one, **load, output_tokens=77)["perf"]
    lost = ask(**one, **load, output_tokens=77, enable_prefix_caching=False)["perf"]
    assert kept["output_tok_per_s"] == pytest.approx(4.32, rel=0.15)
    assert kept["tpot_ms"]["p50"] == pytest.approx(67.3, rel=0.15)
    assert lost["output_tok_per_s"] < 0.5 * kept["output_tok_per_s"]
    assert ask(enable_prefix_caching="no")["status"] == "error"


def test_the_engines_differ_and_tensor_parallelism_helps_one_stream() -> None:
    single = {"load": {"kind": "closed", "concurrency": 1}}
    assert ask(engine="tensorrt_llm")["status"] == "ok"
    assert ask(tp=2, **single)["perf"]["tpot_ms"]["p50"] < ask(**single)["perf"]["tpot_ms"]["p50"]


def test_what_does_not_fit_is_infeasible_and_still_shows_its_memory() -> None:
    answer = ask(model="meta-llama/Meta-Llama-3.1-70B", gpu="H100")
    assert answer["status"] == "infeasible"
    assert answer["reasons"]
    assert answer["memory"]["weights_gib"] > 100
    assert answer["perf"] is None


def test_the_cause_comes_before_the_notes() -> None:
    answer = ask(model="deepseek-ai/DeepSeek-V3", gpu="L40S", tp=2, precision="int4")
    assert answer["status"] == "infeasible"
    assert answer["reasons"][0].startswith("The weights alone")
    assert any("latent cache is held whole" in reason for reason in answer["reasons"][1:])
    answer = ask(gpu="RTX-4090", precision="fp8", max_model_len=512, tp=16)
    assert answer["status"] == "infeasible"
    assert answer["reasons"][0].startswith("max_model_len: a request of")
    assert any("each head is held by" in reason for reason in answer["reasons"][1:])


def test_notes_hold_no_path_of_the_installation() -> None:
    """On A100 the operator package answers for latent attention with the path of the table that it did not find."""
    answer = ask(model="deepseek-ai/DeepSeek-V3", gpu="A100", tp=8, precision="int4", load=BASE["load"])
    notes = [reason for reason in answer["reasons"] if reason.startswith("mla by roofline")]
    assert notes
    assert not [note for note in notes if "/" in note or "parquet" in note or "error" in note]


def test_a_request_longer_than_the_context_is_infeasible() -> None:
    answer = ask(max_model_len=1024)
    assert answer["status"] == "infeasible"
    assert "max_model_len" in answer["reasons"][-1]


def test_whole_prompts_get_room_in_a_step_or_are_refused() -> None:
    """TensorRT-LLM without chunked prefill: an unstated step limit follows the prompt, a stated one is kept."""
    roomy = ask(engine="tensorrt_llm", input_tokens=10_000)
    assert roomy["status"] == "ok"
    assert any("max_num_batched_tokens raised" in reason for reason in roomy["reasons"])
    strict = ask(engine="tensorrt_llm", input_tokens=10_000, max_num_batched_tokens=8192)
    assert strict["status"] == "infeasible"


def test_a_precision_without_measured_operators_is_said_to_have_none() -> None:
    """P6: MXFP4 on an H200 runs weight-only in 16 bits and is told so; 4-bit weights of GPTQ have no operator data."""
    mxfp4 = ask(model="openai/gpt-oss-120b", gpu="H200", engine_version="0.12.0")
    assert any("no mxfp4 tensor cores" in reason for reason in mxfp4["reasons"])
    gptq = ask(model="Qwen/Qwen3-8B", gpu="H200", precision="int4")
    assert gptq["status"] == "ok"
    assert gptq["evidence"] == "roofline"
    wide, narrow = (
        answer["perf"]["interval80"]["tpot_ms"] for answer in (gptq, ask(model="Qwen/Qwen3-8B", gpu="H200"))
    )
    assert wide[1] / wide[0] > narrow[1] / narrow[0]


def test_what_an_engine_cannot_run_is_unsupported_with_its_reason() -> None:
    """P6: no number before support is settled."""
    answer = ask(engine="tensorrt_llm", gpu="MI300X")
    assert answer["status"] == "unsupported"
    assert answer["reasons"]
    assert answer["memory"] is None
    assert answer["perf"] is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"engine": "sglang"}, "engine"),
        ({"model": "nobody/nothing"}, "model"),
        ({"gpu": "H2OO"}, "gpu"),
        ({"tp": 0}, "tp"),
        ({"tp": "2"}, "tp"),
        ({"load": {"kind": "burst"}}, "load.kind"),
        ({"load": {"kind": "closed"}}, "load.concurrency"),
        ({"load": {"kind": "open", "rate_per_s": 0}}, "load.rate_per_s"),
        ({"input_tokens": None}, "input_tokens"),
        ({"input_tokens": 0}, "input_tokens"),
        ({"input_tokens": {"low": 9, "high": 3}}, "input_tokens"),
        ({"output_tokens": {"mean": 3}}, "output_tokens"),
        ({"prefix_hit": 2}, "prefix_hit"),
        ({"prefix_hit": 0.5, "enable_prefix_caching": False}, "prefix_hit"),
        ({"trt_backend": "PyTorch"}, "trt_backend"),
        ({"capacity_policy": "evict"}, "capacity_policy"),
        ({"usd_per_gpu_hour": "cheap"}, "usd_per_gpu_hour"),
        ({"precision": "fp3"}, "precision"),
        ({"speed": 1}, "speed"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], word: str) -> None:
    answer = ask(**changes)
    if "input_tokens" in changes and changes["input_tokens"] is None:
        answer = estimate({key: value for key, value in BASE.items() if key != "input_tokens"})
    assert answer["status"] == "error"
    assert word in answer["reasons"][0]


def test_lines_keep_their_order_and_one_bad_request_spoils_no_other() -> None:
    lines = [json.dumps({**BASE, "id": 1}), "", json.dumps({"id": 2}), "[1]", json.dumps({**BASE, "id": 3})]
    answers = [json.loads(line) for line in estimate_lines(lines)]
    assert [answer["id"] for answer in answers] == [1, 2, None, 3]
    assert [answer["status"] for answer in answers] == ["ok", "error", "error", "ok"]


def test_the_same_request_gets_the_same_bytes() -> None:
    line = json.dumps({**BASE, "load": {"kind": "open", "rate_per_s": 8}, "seed": 5})
    assert list(estimate_lines([line])) == list(estimate_lines([line]))


def test_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(BASE) + "\n" + json.dumps({**BASE, "gpu": "?"}) + "\n"))
    assert main(["estimate"]) == 0
    assert [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()] == ["ok", "error"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("{not json\n"))
    assert main(["estimate"]) == 2
    assert "line 1" in capsys.readouterr().err


def test_single_stream_time_is_what_one_stream_gets() -> None:
    """P15, P18: E2E = TTFT + (n - 1) x TPOT for one stream, and its rate is 1 / E2E."""
    perf = ask(load={"kind": "closed", "concurrency": 1, "requests": 10})["perf"]
    e2e = perf["ttft_ms"]["mean"] + 255 * perf["tpot_ms"]["mean"]
    assert perf["e2e_ms"]["mean"] == pytest.approx(e2e, rel=1e-3)
    assert perf["req_per_s"] == pytest.approx(1000.0 / e2e, rel=0.02)


def test_concurrency_comes_from_kv_not_from_bandwidth() -> None:
    """P18: a 70B on four H100 holds a few hundred sequences of 4K, and that bounds its batch."""
    answer = ask(
        model="meta-llama/Meta-Llama-3.1-70B",
        gpu="H100",
        tp=4,
        max_model_len=4096,
        load=None,
        input_tokens=None,
        output_tokens=None,
    )
    assert 80 < answer["memory"]["max_concurrency"] < 200
    eight_bits = {
        "precision": "fp8",
        "kv_cache_dtype": "fp8",
        "load": None,
        "input_tokens": None,
        "output_tokens": None,
    }
    half = ask(model="meta-llama/Meta-Llama-3.1-70B", gpu="H100", tp=4, max_model_len=4096, **eight_bits)
    assert half["memory"]["max_concurrency"] == pytest.approx(360, rel=0.1)


def _sessions(**changes: Any) -> dict[str, Any]:
    load = {"kind": "open", "rate_per_s": 4, "turns": {"low": 2, "high": 10}, "think_s": 10, "shared_tokens": 500}
    request = {
        "model": "Qwen/Qwen3-8B", "gpu": "H200", "engine": "vllm", "load": load,
        "input_tokens": {"low": 50, "high": 800}, "output_tokens": {"low": 100, "high": 500}, "usd_per_gpu_hour": 2.5,
    }  # fmt: skip
    return {**request, **changes}


def test_sessions_find_their_earlier_turns_in_the_cache() -> None:
    answer = estimate(_sessions())
    assert answer["status"] == "ok"
    assert answer["perf"]["prefix_hit"] > 0.8
    fresh = estimate(_sessions(load={"kind": "open", "rate_per_s": 4}, input_tokens=3000))
    assert fresh["perf"]["prefix_hit"] == 0.0
    assert answer["perf"]["ttft_ms"]["p50"] < fresh["perf"]["ttft_ms"]["p50"]


def test_replicas_behind_a_router_pay_for_all_of_them() -> None:
    load = {**_sessions()["load"], "rate_per_s": 12}
    turn = estimate(_sessions(load=load, replicas=4))
    aware = estimate(_sessions(load=load, replicas=4, router="prefix_aware"))
    assert aware["perf"]["prefix_hit"] > turn["perf"]["prefix_hit"] + 0.1
    assert aware["perf"]["ttft_ms"]["p50"] < turn["perf"]["ttft_ms"]["p50"]
    one = estimate(_sessions())
    per_token = [answer["cost"]["usd_per_mtok_total"] for answer in (one, aware)]
    assert per_token[1] == pytest.approx(
        per_token[0] * 4 * 4 / 12, rel=0.1
    )  # four times the bill, three times the rate


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"router": "sticky"}, "router"),
        ({"replicas": 0}, "replicas"),
        ({"prefix_hit": 0.5}, "prefix_hit: comes out of the simulation when load.turns is stated"),
        ({"load": {"kind": "closed", "concurrency": 2, "turns": 0}}, "load.turns"),
        ({"load": {"kind": "closed", "concurrency": 2, "shared_tokens": 9}}, "load.shared_tokens"),
        ({"load": {"kind": "open", "rate_per_s": 1, "arrival": "onoff", "on_share": 2}}, "load.on_share"),
    ],
)
def test_senseless_sessions_and_routers_are_named(changes: dict[str, Any], named: str) -> None:
    answer = estimate(_sessions(**changes))
    assert answer["status"] == "error"
    assert named in answer["reasons"][0]


def test_bursts_wait_longer_than_a_steady_stream() -> None:
    steady = {"kind": "open", "rate_per_s": 8, "requests": 600}
    bursts = {**steady, "arrival": "onoff", "on_share": 0.2, "period_s": 20}
    smooth, bursty = (
        estimate(_sessions(load=load, input_tokens=2000))["perf"]["ttft_ms"]["p90"] for load in (steady, bursts)
    )
    assert bursty > 1.5 * smooth


def test_a_pool_that_may_not_exist_ends_at_nothing_and_is_told() -> None:
    asked = {"model": "Qwen/Qwen3.5-122B-A10B", "gpu": "H20-96GB", "engine": "tensorrt_llm", "precision": "fp4"}
    narrow = estimate({**asked, "tp": 4})
    assert narrow["status"] == "ok"
    low, high = narrow["memory"]["interval80"]["kv_gib"]
    assert low == 0.0 < narrow["memory"]["kv_gib"] < high
    assert any("there may be no pool" in reason for reason in narrow["reasons"])
    roomy = estimate({**asked, "tp": 8})
    assert roomy["memory"]["interval80"]["kv_gib"][0] > 0
    assert not any("there may be no pool" in reason for reason in roomy["reasons"])
    short = estimate({**asked, "tp": 1})
    assert (short["status"], short["memory"]["interval80"]["kv_gib"][0] < 0) == ("infeasible", True)
