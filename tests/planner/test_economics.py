"""Prices, bills, operations and power: exact sums, and agreement with independent figures."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import get_gpu, get_model
from planner.economics import (
    OperationsCosts,
    RentalInputs,
    ServedLoad,
    TcoInputs,
    break_even_utilisation,
    gpu_hour_price,
    operations_use,
    power_model,
    power_w,
    unit_costs,
    with_price,
    workload_cost,
)
from planner.economics.energy import energy_usd_per_hour, joules_per_token
from planner.economics.money import round_parts, split_exactly
from planner.economics.price import capital_recovery_factor
from planner.economics.types import EnergyPrice
from planner.engines.types import EngineName
from planner.errors import InputError

RENT = gpu_hour_price(RentalInputs(Decimal("2.50")))

amounts = st.decimals(min_value=0, max_value=10**6, places=5, allow_nan=False)


@given(st.lists(amounts, min_size=1, max_size=12))
def test_rounded_parts_add_up_to_the_rounded_sum(values) -> None:
    parts = round_parts([(str(i), value) for i, value in enumerate(values)])
    total = sum(value for _, value in parts)
    assert abs(total - sum(values)) <= Decimal("0.005")
    assert total == total.quantize(Decimal("0.01"))
    assert all(abs(part - value) < Decimal("0.02") for (_, part), value in zip(parts, values, strict=True))


@given(amounts, st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
def test_split_adds_up_exactly(total, weights) -> None:
    shares = split_exactly(total, [Decimal(w) for w in weights])
    assert sum(shares) == total.quantize(Decimal("0.01"))


def test_split_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="all zero"):
        split_exactly(Decimal(1), [Decimal(0)])


def test_annuity_matches_the_textbook() -> None:
    # 10,000 over 5 years at 10 %: 2,637.97 a year (Park, Contemporary Engineering Economics, A/P factor 0.2638)
    assert capital_recovery_factor(Decimal("0.10"), Decimal(5)) * 10000 == pytest.approx(
        Decimal("2637.97"), abs=Decimal("0.01")
    )


def test_ownership_price_by_hand() -> None:
    """280,320 USD for 8 GPUs over 4 years: 1.0 USD/h; hosting 150 USD/kW on 10.2 kW; 6.5 kW x 1.3 x 0.10 USD."""
    inputs = TcoInputs(
        purchase_usd=Decimal(280320),
        gpus=8,
        hosting_usd_per_kw_month=Decimal(150),
        provisioned_kw=Decimal("10.2"),
        power_kw=Decimal("6.5"),
        licence_usd_per_gpu_year=Decimal(4500),
    )
    price = gpu_hour_price(inputs, EnergyPrice(Decimal("0.10"), Decimal("1.3")))
    parts = dict(price.parts)
    assert parts["purchase less residual"] == Decimal("1.0000")
    assert parts["hosting"] == Decimal("0.2620")
    assert parts["electricity"] == Decimal("0.1056")
    assert parts["licence"] == Decimal("0.5137")
    assert sum(parts.values()) == price.usd_per_gpu_hour
    assert price.basis == "tco"


def test_financing_costs_what_the_annuity_adds() -> None:
    plain = TcoInputs(purchase_usd=Decimal(280320), gpus=8, residual_share=Decimal("0.2"))
    financed = TcoInputs(
        purchase_usd=Decimal(280320), gpus=8, residual_share=Decimal("0.2"), financing_rate_per_year=Decimal("0.08")
    )
    annual = (280320 - 56064 / Decimal("1.08") ** 4) * capital_recovery_factor(Decimal("0.08"), Decimal(4))
    assert gpu_hour_price(plain).usd_per_gpu_hour == Decimal("0.8000")
    assert gpu_hour_price(financed).usd_per_gpu_hour == pytest.approx(annual / 8760 / 8, abs=Decimal("0.0002"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpus", 0), ("life_years", Decimal(0)), ("residual_share", Decimal(2)), ("purchase_usd", Decimal(-1))],
)
def test_absurd_ownership_names_the_field(field, value) -> None:
    values = {"purchase_usd": Decimal(1000), "gpus": 8} | {field: value}
    with pytest.raises(InputError) as caught:
        gpu_hour_price(TcoInputs(**values))
    assert caught.value.field == field


def test_electricity_without_a_price_is_refused() -> None:
    with pytest.raises(InputError, match="usd_per_kwh"):
        gpu_hour_price(TcoInputs(Decimal(1000), 8, power_kw=Decimal(5)))


def test_price_scaled_keeps_its_parts_exact() -> None:
    price = gpu_hour_price(RentalInputs(Decimal("2.00"), licence_usd_per_gpu_year=Decimal(4500)))
    scaled = with_price(price, Decimal("1.2345"))
    assert scaled.usd_per_gpu_hour == Decimal("1.2345")
    assert sum(usd for _, usd in scaled.parts) == Decimal("1.2345")


def test_three_unit_costs_follow_the_published_formula() -> None:
    """$/h / (tok/s x 3600) x 10^6: 8 H100 at 1.69 USD (SemiAnalysis, neocloud), 10,000 out and 8,000 in tok/s."""
    per_input, per_output, per_total = unit_costs(Decimal("13.52"), 8000, 10000)
    assert float(per_output) == pytest.approx(13.52 / (10000 * 3600) * 1e6, abs=1e-6)
    assert float(per_input) == pytest.approx(0.469444, abs=1e-6)
    assert float(per_total) == pytest.approx(0.208642, abs=1e-6)
    assert unit_costs(Decimal(1), 10, 0)[1] is None


def bill(**change):
    load = ServedLoad(10.0, 1000.0, 250.0, 20.0, prefill_time_share=0.4, throughput_80=(0.9, 1.1))
    return workload_cost(**({"price": RENT, "gpus": 4, "load": load} | change))


def test_bill_adds_up_and_shows_idle_apart() -> None:
    cost = bill()
    assert cost.usd_per_month == Decimal("7300.00")
    assert dict(cost.parts) == {"GPUs, carried load": Decimal("3650.00"), "GPUs, idle head-room": Decimal("3650.00")}
    assert cost.mtok_output_per_month == Decimal("6570.000000")
    assert cost.usd_per_mtok_output == pytest.approx(Decimal("1.111111"), abs=Decimal("0.000001"))
    low, high = cost.usd_per_mtok_output_80
    assert low < cost.usd_per_mtok_output < high


def test_allocation_between_input_and_output_gives_the_bill_back() -> None:
    cost = bill()
    assert cost.allocated_usd_input + cost.allocated_usd_output == cost.usd_per_month
    assert cost.allocated_usd_input == Decimal("2920.00")


def test_embeddings_have_no_output_price() -> None:
    cost = bill(load=ServedLoad(10.0, 512.0, 0.0, 20.0))
    assert cost.usd_per_mtok_output is None
    assert cost.usd_per_mtok_input == cost.usd_per_mtok_total
    assert cost.allocated_usd_input == cost.usd_per_month


def test_operations_are_in_the_bill() -> None:
    costs = OperationsCosts(
        people_usd_per_hour=Decimal(90),
        people_hours_per_revision=Decimal(2),
        licence_usd_per_gpu_year=(("tensorrt_llm", Decimal(4500)),),
    )
    use = operations_use(
        EngineName.TENSORRT_LLM, "tensorrt", replicas=2, gpus_per_replica=2, revisions_per_month=4, costs=costs
    )
    cost = bill(operations=use, operations_costs=costs, engine="tensorrt_llm")
    parts = dict(cost.parts)
    assert parts["people"] == Decimal("720.00")
    assert parts["engine licence"] == Decimal("1500.00")
    assert parts["engine operations"] == (use.gpu_hours * Decimal("2.50")).quantize(Decimal("0.01"))
    assert sum(parts.values()) == cost.usd_per_month


def test_engine_build_costs_minutes_per_topology_and_revision() -> None:
    """TensorRT back end: 10-25 min per topology and revision on one instance; the PyTorch one only warms up."""
    common = {"replicas": 3, "gpus_per_replica": 4, "revisions_per_month": 6.0, "costs": OperationsCosts()}
    built = operations_use(EngineName.TENSORRT_LLM, "tensorrt", **common)
    warm = operations_use(EngineName.TENSORRT_LLM, "pytorch", **common)
    assert warm.build_gpu_hours == 0
    assert 6 * 4 * 10 / 60 <= built.build_gpu_hours <= 6 * 4 * 25 / 60
    assert built.surge_gpu_hours == warm.surge_gpu_hours == Decimal("2.4")
    own = operations_use(
        EngineName.VLLM, "pytorch", **(common | {"costs": OperationsCosts(start_up_minutes=(("vllm", Decimal(9)),))})
    )
    assert own.surge_gpu_hours == Decimal(6 * 3 * 4 * 9) / 60


def test_electricity_is_added_once() -> None:
    energy = EnergyPrice(Decimal("0.12"), Decimal("1.25"))
    hourly = energy_usd_per_hour(500.0, 4, energy)
    assert hourly == Decimal("0.300")
    assert dict(bill(energy_usd_per_hour=hourly).parts)["electricity"] == Decimal("219.00")
    tco = gpu_hour_price(TcoInputs(Decimal(280320), 8, power_kw=Decimal(6)), energy)
    assert "electricity" not in dict(bill(price=tco, energy_usd_per_hour=hourly).parts)


def test_break_even_against_an_api() -> None:
    # 8 x 2.50 USD/h; 10,000 out and 40,000 in tok/s at 0.60 and 0.15 USD/Mtok are worth 43.2 USD/h
    share = break_even_utilisation(
        usd_per_hour=Decimal(20),
        capacity_input_tok_per_s=40000,
        capacity_output_tok_per_s=10000,
        api_usd_per_mtok_input=Decimal("0.15"),
        api_usd_per_mtok_output=Decimal("0.60"),
    )
    assert share == Decimal("0.4630")


# isl, osl, concurrency, output tok/s, mean TPOT ms, mean W: vLLM 0.24.0, Qwen3-8B bf16 on one H200, 2026-12-01
H200_RUNS = [
    (1024, 256, 1, 184.01, 5.231, 478.1),
    (1024, 256, 32, 3307.72, 7.765, 639.1),
    (1024, 256, 128, 5354.75, 18.831, 688.8),
    (512, 1024, 32, 4566.52, 6.701, 609.5),
    (2048, 128, 128, 1988.31, 51.344, 690.5),
    (128, 128, 32, 4681.87, 5.886, 553.3),
]


def measured_load(model, gpu, run, weights_gib=15.26, kv_bytes=147456) -> float:
    isl, osl, _, rate, tpot_ms, _ = run
    return power_w(
        gpu,
        model,
        weights_gib_per_gpu=weights_gib,
        kv_bytes_per_token_per_gpu=kv_bytes,
        gpus=1,
        output_tok_per_s=rate,
        total_tok_per_s=rate * (isl + osl) / osl,
        mean_batch=rate * tpot_ms / 1000,
        mean_context_tokens=isl + osl / 2,
    )


@pytest.mark.parametrize("run", H200_RUNS)
def test_power_agrees_with_the_runs_it_was_fitted_on(run) -> None:
    watts = measured_load(get_model("Qwen/Qwen3-8B"), get_gpu("H200-SXM-141GB"), run)
    assert watts == pytest.approx(run[-1], rel=0.10)


# LLM-Inference-Bench (argonne-lcf, BSD-3-Clause), Meta-Llama-3-8B fp16 on one H100, 1024/1024: batch, total tok/s, W
ANL_RUNS = [(1, 252.9, 363.3), (16, 2972.2, 404.2), (32, 5019.4, 435.2), (64, 6968.7, 455.5)]


@pytest.mark.parametrize(("batch", "total", "watts"), ANL_RUNS)
def test_power_holds_on_another_laboratory_and_gpu(batch, total, watts) -> None:
    run = (1024, 1024, batch, total / 2, batch / (total / 2) * 1000, watts)
    predicted = measured_load(get_model("meta-llama/Meta-Llama-3.1-8B"), get_gpu("H100-SXM5-80GB"), run, 14.96, 131072)
    assert predicted == pytest.approx(watts, rel=0.25)


def test_power_is_not_tdp_and_energy_per_token_falls_with_load() -> None:
    """gpt-oss-120b on 8 x H100 drew 159-205 W a GPU (TDP 700): 1.23 J per output token at 4 users, 0.16 at 64."""
    assert joules_per_token(159, 8, 159 * 8 / 1.23) == pytest.approx(1.23)
    model, gpu = get_model("openai/gpt-oss-120b"), get_gpu("H100-SXM5-80GB")
    watts = {}
    for users, rate in ((4, 159 * 8 / 1.23), (64, 205 * 8 / 0.16)):
        watts[users] = power_w(
            gpu,
            model,
            weights_gib_per_gpu=60.8 / 8,
            kv_bytes_per_token_per_gpu=73728 / 8,
            gpus=8,
            output_tok_per_s=rate,
            total_tok_per_s=2 * rate,
            mean_batch=users,
            mean_context_tokens=1536,
        )
    assert watts[4] < watts[64] < 0.5 * gpu.tdp_w
    assert watts[4] == pytest.approx(159, rel=0.6)
    assert watts[64] == pytest.approx(205, rel=0.6)


def test_power_of_an_unmeasured_gpu_is_unknown() -> None:
    assert power_model("L4") is None
    assert measured_load(get_model("Qwen/Qwen3-8B"), get_gpu("L4"), H200_RUNS[0]) is None
