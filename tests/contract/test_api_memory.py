"""Memory over the API: the cliff, the waste, and what else uses the GPU."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.contract.conftest import V1
from tests.contract.test_api_errors import problem

pytestmark = pytest.mark.django_db


def test_memory_knows_the_cliff_the_waste_and_who_else_is_there(viewer_api: APIClient) -> None:
    asked = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "engine": "vllm",
        "settings": {"max_model_len": 8192, "logprobs": 5}, "input_tokens": 2000, "output_tokens": 500,
        "concurrency": 400, "trace": "lengths_mlperf_llama3_1_8b_datacenter",
    }  # fmt: skip
    answer = viewer_api.post(f"{V1}/memory/", asked).json()
    assert answer["status"] == "ok"
    assert 0 < answer["cliff"]["safe_sequences"] < answer["cliff"]["mean_sequences"]
    assert answer["cliff"]["load"] > 1
    live = {policy["policy"]: policy["live_share"] for policy in answer["kv_waste"]["report"]["policies"]}
    assert live["contiguous"] < live["paged"]
    band = answer["ledger"]["kv_gib_80"]
    assert band["low"] < answer["ledger"]["kv_gib"] < band["high"]
    assert answer["ledger"]["logprobs_gib"] > 0
    shared = viewer_api.post(f"{V1}/memory/", {**asked, "used_by_others_gib": 30}).json()
    assert shared["status"] == "infeasible"
    assert "gpu_memory_utilization" in {remedy["field"] for remedy in shared["remedies"]}
    problem(viewer_api.post(f"{V1}/memory/", {**asked, "output_tokens": 9000}), 400, "validation")
    problem(viewer_api.post(f"{V1}/memory/", {**asked, "trace": "none-such"}), 400, "validation")
