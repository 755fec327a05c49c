"""The estimate contract for prefill and decode pools: ``disagg`` in a request."""

from __future__ import annotations

import pytest

from planner.estimate import estimate

ASKED = {
    "id": "u",
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "gpu": "H100",
    "engine": "vllm",
    "precision": "fp8",
    "load": {"kind": "open", "rate_per_s": 4, "requests": 300},
    "input_tokens": 4000,
    "output_tokens": 500,
    "disagg": {"prefill": {"tp": 2, "instances": 2}, "decode": {"tp": 4}},
}


def test_a_unit_answers_like_any_deployment_and_says_what_each_pool_does() -> None:
    answer = estimate({**ASKED, "usd_per_gpu_hour": 2.5})
    assert answer["status"] == "ok"
    assert set(answer["perf"]) >= {"output_tok_per_s", "ttft_ms", "tpot_ms", "interval80"}
    pools = answer["disagg"]
    assert (pools["prefill"]["gpus"], pools["decode"]["gpus"]) == (4, 4)
    assert pools["transfer"]["link"] == "nvlink"
    # 4,000 tokens in blocks of 64, 80 layers, 8 heads of 128, K and V, bf16
    assert pools["transfer"]["mib_per_request"] == pytest.approx(63 * 64 * 80 * 8 * 128 * 2 * 2 / 2**20, rel=1e-5)
    assert 0 < pools["prefill"]["utilisation"] < 1


def test_cost_is_split_by_role() -> None:
    """Case C1: three figures over the whole bill, and each role's own: $/h / (tok/s x 3600) x 10^6."""
    answer = estimate({**ASKED, "usd_per_gpu_hour": 2.5})
    perf, cost = answer["perf"], answer["cost"]
    roles = cost["by_role"]
    inputs = perf["total_tok_per_s"] - perf["output_tok_per_s"]
    assert roles["prefill"]["usd_per_mtok_input"] == pytest.approx(4 * 2.5 / inputs / 3600 * 1e6, rel=1e-4)
    assert roles["decode"]["usd_per_mtok_output"] == pytest.approx(
        4 * 2.5 / perf["output_tok_per_s"] / 3600 * 1e6, rel=1e-4
    )
    assert roles["prefill"]["usd_per_hour"] + roles["decode"]["usd_per_hour"] == 8 * 2.5
    whole = cost["usd_per_mtok_output"] * perf["output_tok_per_s"]
    parts = (
        roles["prefill"]["usd_per_mtok_input"] * inputs
        + roles["decode"]["usd_per_mtok_output"] * perf["output_tok_per_s"]
    )
    assert parts == pytest.approx(whole, rel=1e-4)


def test_each_role_must_hold_its_longest_request() -> None:
    """Case D1: Llama-3.1-70B FP8 disaggregated on 8 GPUs, 131,072 tokens: TP 1 for prefill starts nowhere."""
    asked = {**ASKED, "max_model_len": 131_072, "input_tokens": 100_000}
    answer = estimate({**asked, "disagg": {"prefill": {"tp": 1, "instances": 4}, "decode": {"tp": 4}}})
    assert answer["status"] == "infeasible"
    assert answer["perf"] is None
    assert [reason.split(":")[0] for reason in answer["reasons"]] == ["prefill"]
    assert "the longest that fits" in answer["reasons"][0]
    assert answer["disagg"]["decode"]["memory"]["largest_model_len"] == 131_072
    wider = estimate({**asked, "disagg": {"prefill": {"tp": 4}, "decode": {"tp": 4}}})
    assert wider["status"] == "ok"


@pytest.mark.parametrize(
    ("disagg", "field"),
    [
        ("both", "disagg:"),
        ({"prefill": {"tp": 1}}, "disagg.decode:"),
        ({"prefill": {"tp": 1}, "decode": {}, "proxy": {}}, "disagg.proxy:"),
        ({"prefill": {"gpu": "H200"}, "decode": {}}, "disagg.prefill.gpu:"),
        ({"prefill": {"instances": 0}, "decode": {}}, "disagg.prefill.instances:"),
        ({"prefill": {}, "decode": {}, "link_gb_s": 0}, "disagg.link_gb_s:"),
        ({"prefill": {"tp": "two"}, "decode": {}}, "disagg.prefill.tp:"),
        ({"prefill": {"moe_backend": "abacus"}, "decode": {}}, "disagg.prefill.moe_backend:"),
        ({"prefill": {}, "decode": {"block_tokens": 7}}, "disagg.decode.block_tokens:"),
    ],
)
def test_a_wrong_unit_is_an_error_that_names_the_field(disagg: object, field: str) -> None:
    answer = estimate({**ASKED, "disagg": disagg})
    assert answer["status"] == "error"
    assert answer["reasons"][0].startswith(field)


def test_a_wrong_field_that_both_roles_take_over_is_named_where_it_stands() -> None:
    answer = estimate({**ASKED, "block_tokens": 7})
    assert answer["status"] == "error"
    assert answer["reasons"][0].startswith("block_tokens:")


def test_replicas_are_stated_as_instances_and_the_network_is_the_links() -> None:
    answer = estimate({**ASKED, "replicas": 2})
    assert answer["status"] == "error"
    assert "disagg.prefill.instances" in answer["reasons"][0]
    apart = estimate({**ASKED, "gpus_per_node": 4, "network_gb_s": 25})
    assert apart["disagg"]["transfer"]["link"] == "network"
    assert apart["disagg"]["transfer"]["link_gb_s"] == 25.0


def test_what_the_engine_cannot_disaggregate_is_a_state() -> None:
    answer = estimate({**ASKED, "disagg": {"prefill": {"pp": 2}, "decode": {"tp": 4}}})
    assert answer["status"] == "unsupported"
    assert "pipeline stages" in answer["reasons"][0]
    assert answer["perf"] is None


def test_a_slower_link_is_seen_in_the_first_token_alone() -> None:
    fast, slow = (estimate({**ASKED, "disagg": {**ASKED["disagg"], "link_gb_s": rate}}) for rate in (400, 12))
    assert slow["perf"]["ttft_ms"]["p50"] > fast["perf"]["ttft_ms"]["p50"] + 60
    assert slow["perf"]["tpot_ms"]["p50"] == pytest.approx(fast["perf"]["tpot_ms"]["p50"], rel=0.05)


def test_without_a_load_only_the_memory_of_each_role_is_answered() -> None:
    answer = estimate({key: value for key, value in ASKED.items() if key != "load"})
    assert answer["status"] == "ok"
    assert answer["perf"] is None
    assert answer["disagg"]["prefill"]["memory"]["kv_tokens"] > 0


def test_power_is_that_of_each_role_by_what_it_reads_and_computes() -> None:
    """By hand for 4 requests/s of 4,000 + 500 tokens: coefficients of the H100, 70.6 G parameters in FP8."""
    answer = estimate(ASKED)
    pools, perf = answer["disagg"], answer["perf"]
    weights = pools["prefill"]["memory"]["weights_gib"] * 2**30
    flops = 2 * 70.55e9 * 4000
    prompts = perf["total_tok_per_s"] - perf["output_tok_per_s"]
    requests = prompts / 4000 / 2  # of one of two instances, over two GPUs
    first = 60.4 + 614.1 * requests * weights / 3.35e12 + 983.5 * requests * flops / 2 / 989.4e12
    assert pools["prefill"]["power_w"] == pytest.approx(4 * first, rel=0.05)
    assert 4 * 60.4 < pools["decode"]["power_w"] < 4 * 690
    assert answer["power_w"] == pytest.approx(pools["prefill"]["power_w"] + pools["decode"]["power_w"], rel=1e-5)
    busier = estimate({**ASKED, "load": {"kind": "open", "rate_per_s": 6, "requests": 300}})
    assert busier["power_w"] > answer["power_w"]


def test_power_of_a_gpu_that_was_never_measured_stays_unknown() -> None:
    answer = estimate({**ASKED, "gpu": "B200"})
    assert answer["status"] == "ok"
    assert (answer["power_w"], answer["disagg"]["prefill"]["power_w"], answer["disagg"]["decode"]["power_w"]) == (
        None,
        None,
        None,
    )


def test_only_the_prefill_pool_needs_its_cache_for_stated_hits() -> None:
    """A decode instance takes prompts that are computed already: its prefix cache decides nothing."""
    for role, status in (("decode", "ok"), ("prefill", "error")):
        pools = {name: {**pool} for name, pool in ASKED["disagg"].items()}
        pools[role]["enable_prefix_caching"] = False
        answer = estimate({**ASKED, "prefix_hit": 0.5, "disagg": pools})
        assert answer["status"] == status
    assert "prefix_hit" in answer["reasons"][0]
