"""Sharding rules: what each rank holds, and that nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from planner.catalog import get_model, list_models
from planner.errors import InputError
from planner.models.precision import PRECISIONS, with_precision
from planner.models.sharding import (
    DTYPE_BITS,
    Parallel,
    rank_linears,
    stage_groups,
    stage_layers,
    total_weights_bytes,
    weights_bytes,
)

LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def _of(model_id: str, role: str, parallel: Parallel):
    return next(linear for linear in rank_linears(get_model(model_id), parallel) if linear.role == role)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    spec = get_model("Qwen/Qwen3-30B-A3B")
    assert [_of(spec.model_id, "kv", Parallel(tp=tp)).n for tp in (1, 2, 4, 8)] == [1024, 512, 256, 256]
    assert [_of(spec.model_id, "q", Parallel(tp=tp)).n for tp in (1, 2, 4, 8)] == [4096, 2048, 1024, 512]


def test_experts_split_by_tp_or_by_ep() -> None:
    whole = _of("Qwen/Qwen3-30B-A3B", "expert_gate_up", Parallel())
    by_tp = _of("Qwen/Qwen3-30B-A3B", "expert_gate_up", Parallel(tp=4))
    by_ep = _of("Qwen/Qwen3-30B-A3B", "expert_gate_up", Parallel(tp=4, ep=4))
    by_both = _of("Qwen/Qwen3-30B-A3B", "expert_gate_up", Parallel(tp=4, ep=2))
    assert (whole.n, whole.copies) == (1536, 128)
    assert (by_tp.n, by_tp.copies) == (384, 128)
    assert (by_ep.n, by_ep.copies) == (1536, 32)
    assert (by_both.n, by_both.copies) == (768, 64)
    assert by_tp.bytes == by_ep.bytes == by_both.bytes == whole.bytes / 4


def test_attention_data_parallel_replicates_attention_and_spreads_experts() -> None:
    spread = Parallel(tp=1, dp=8, ep=8)
    assert _of("deepseek-ai/DeepSeek-V2-Lite", "q", spread).n == 16 * 192
    assert _of("deepseek-ai/DeepSeek-V2-Lite", "mla_kv_a", spread).n == 576
    experts = next(
        linear
        for linear in rank_linears(get_model("deepseek-ai/DeepSeek-V2-Lite"), spread)
        if linear.role == "expert_down"
    )
    assert (experts.copies, experts.k) == (8, 1408)


def test_latent_down_projection_and_router_are_replicated() -> None:
    for role in ("mla_q_a", "mla_kv_a", "router"):
        one, eight = (_of("deepseek-ai/DeepSeek-V3", role, Parallel(tp=tp)) for tp in (1, 8))
        assert (one.n, one.k) == (eight.n, eight.k)


def test_vocabulary_is_padded_to_64() -> None:
    assert _of("Qwen/Qwen2.5-7B-Instruct", "lm_head", Parallel()).n == 152064
    assert _of("openai/gpt-oss-20b", "embed", Parallel(tp=2)).n == 100544
    assert _of("Qwen/Qwen3-Embedding-8B", "embed", Parallel()).n == 151680  # 151665 rows


@given(st.integers(1, 400), st.integers(1, 64))
def test_pipeline_stages_hold_every_layer_and_differ_by_one(layers: int, pp: int) -> None:
    if pp > layers:
        with pytest.raises(InputError, match="pp"):
            stage_layers(layers, pp)
        return
    counts = stage_layers(layers, pp)
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1
    assert counts[-1] == layers // pp


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_stage_groups_add_up(pp: int) -> None:
    spec = get_model("google/gemma-3-27b-it")
    seen: dict[int, int] = {}
    for stage in range(pp):
        for group, layers in stage_groups(spec, pp, stage).items():
            seen[group] = seen.get(group, 0) + layers
    assert seen == {index: group.count for index, group in enumerate(spec.groups)}


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(list_models()),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_ranks_together_hold_at_least_the_model(model_id: str, tp: int, pp: int, dp: int, spread: bool) -> None:
    spec = get_model(model_id)
    parallel = Parallel(tp, pp, tp * dp if spread and any(g.ffn and g.ffn.experts for g in spec.groups) else 1, dp)
    try:
        stages = [weights_bytes(spec, parallel, stage=stage) for stage in range(pp)]
    except InputError:
        reject()
    assert sum(stages) * tp * dp >= total_weights_bytes(spec) * (1 - 1e-9)
    assert weights_bytes(spec, parallel) == max(stages)


@pytest.mark.parametrize("model_id", list_models())
def test_one_gpu_holds_exactly_the_parameters(model_id: str) -> None:
    spec = get_model(model_id)
    bits = DTYPE_BITS[spec.dtype]
    linears = rank_linears(spec, Parallel())
    held = sum(linear.layers * linear.copies * (linear.n * linear.k + linear.n * linear.bias) for linear in linears)
    padding = 2 * 63 * spec.hidden
    assert 0 <= held + (spec.vision.params if spec.vision else 0) - spec.total_params <= padding
    if spec.quantization.method == "none":
        assert total_weights_bytes(spec) == pytest.approx(spec.total_params * bits / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("parallel", "field"),
    [
        (Parallel(tp=3), "tp"),
        (Parallel(tp=0), "tp"),
        (Parallel(tp=True), "tp"),
        (Parallel(pp=33), "pp"),
        (Parallel(tp=2, ep=2), "ep"),
    ],
)
def test_impossible_splits_name_the_setting(parallel: Parallel, field: str) -> None:
    with pytest.raises(InputError) as caught:
        rank_linears(get_model(LLAMA), parallel)
    assert caught.value.field == field


def test_precision_changes_the_linears_alone() -> None:
    spec = get_model(LLAMA)
    fp8 = with_precision(spec, "fp8")
    assert fp8.total_params == spec.total_params
    kept = {linear.role for group in fp8.groups for linear in group.linears if not linear.quantised}
    assert kept == {"norm"}
    assert fp8.lm_head is not None
    assert not fp8.lm_head.quantised
    assert with_precision(fp8, "fp8") == fp8
    plain = with_precision(get_model("Qwen/Qwen3-32B-FP8"), "bf16")
    assert total_weights_bytes(plain) == pytest.approx(total_weights_bytes(get_model("Qwen/Qwen3-32B")))
    with pytest.raises(InputError, match="precision"):
        with_precision(spec, "fp7")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_narrower_precision_never_weighs_more(precision: str) -> None:
    spec = get_model("Qwen/Qwen3-30B-A3B")
    wide = total_weights_bytes(with_precision(spec, "fp32"))
    assert total_weights_bytes(with_precision(spec, precision)) <= wide
