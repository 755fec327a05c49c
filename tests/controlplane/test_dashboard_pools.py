"""How pages name a candidate with prefill and decode pools."""

from __future__ import annotations

from controlplane.dashboard import fmt, planrow

POOL = {"settings": {"tp": 2, "pp": 1}, "instances": 2, "utilisation": 0.6, "usd_per_month": "100.00"}
UNIT = {
    "settings": {"engine": "vllm", "version": "0.24.0", "tp": 4, "precision": "fp8"},
    "replicas": 3,
    "replica_rate_per_s": 4.0,
    "performance": {"mean_batch": 30.0, "output_tok_per_s": 2000.0, "mean_kv_used": 0.4, "utilisation": 0.8},
    "disagg": {
        "prefill": {**POOL, "usd_per_mtok": "0.13"},
        "decode": {**POOL, "settings": {"tp": 4}, "instances": 1, "usd_per_mtok": None},
        "link": "nvlink",
        "transfer_ms": 31.4,
    },
}


def test_both_pools_are_named() -> None:
    assert fmt.shape(UNIT) == "prefill 2 × TP 2, decode 1 × TP 4"
    assert fmt.shape({"settings": {"tp": 4}}) == "TP 4"
    assert fmt.shape(None) == "–"


def test_the_arithmetic_of_a_unit_shows_each_pool_and_the_way_between() -> None:
    rows = dict(planrow.arithmetic(UNIT))
    assert rows["Replicas"] == "3 of prefill 2 × TP 2, decode 1 × TP 4"
    assert "per million input tokens" in rows["Prefill"]
    assert "a month" in rows["Decode"]
    assert rows["KV transfer"].endswith("over NVLink")
    assert "Prefill" not in dict(planrow.arithmetic({**UNIT, "disagg": None}))
