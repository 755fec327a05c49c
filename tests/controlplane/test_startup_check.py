"""What an engine says while starting, held against the ledger of the gate; one ledger for search, gate and check."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from controlplane.dashboard.phases import memory_facts
from controlplane.deployments import prediction, reporting, services
from controlplane.deployments.models import Deployment, ProbeRun, Validation
from controlplane.planning import mapping
from planner.engines.types import EngineName
from planner.jsonio import to_json
from planner.placement.candidates import gpu_of_nodes
from runners.contracts import (
    EngineLaunch,
    Observation,
    StartupFacts,
)
from runners.engines.commands import engine_command
from tests.controlplane.deployment_samples import LOAD, MODEL

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_validation_needs_what_its_verdict_says(deployment: Deployment) -> None:
    probe = ProbeRun.objects.create(deployment=deployment, load=to_json(LOAD))
    for values in ({"verdict": "within"}, {"verdict": "no_prediction", "predicted": 1.0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Validation.objects.create(probe=probe, metric="ttft_ms", unit="ms", measured=1.0, **values)
    with pytest.raises(IntegrityError), transaction.atomic():
        ProbeRun.objects.filter(pk=probe.pk).update(state="done")
    assert replace(LOAD, requests=9).requests == 9


def ready_message(row: Deployment, facts: StartupFacts) -> Observation:
    """What a worker sends when the engine of ``row`` answers."""
    return Observation(
        job_id="1", attempt=1, sequence=1, state="ready", node=row.node.slug, at=time.time(), startup=facts
    )


def said_at_start(row: Deployment, **facts: Any) -> dict[str, Any]:
    """Tell the control plane that ``row`` is ready, and give the start-up validations by metric."""
    Deployment.objects.filter(pk=row.pk).update(state="loading", engine="vllm", emulated=False)
    row.refresh_from_db()
    reporting.apply_observation(row, ready_message(row, StartupFacts(**facts)))
    return {item.metric: item for item in row.validations.filter(probe=None)}


def test_start_up_facts_are_held_against_the_ledger_of_the_gate(deployment: Deployment) -> None:
    ledger = prediction.subject(deployment).ledger
    rows = said_at_start(
        deployment,
        weights_gib=ledger.weights_gib,
        kv_gib=ledger.kv_gib - 30.0,
        kv_tokens=ledger.kv_tokens,
        max_model_len=deployment.settings["max_model_len"],
    )
    assert set(rows) == {"weights_gib", "kv_gib", "kv_tokens", "max_model_len"}
    assert rows["weights_gib"].verdict == rows["kv_tokens"].verdict == rows["max_model_len"].verdict == "within"
    assert rows["kv_gib"].verdict == "outside"
    assert rows["kv_gib"].predicted == pytest.approx(ledger.kv_gib)
    assert not rows["kv_gib"].emulated


@pytest.mark.parametrize(("said", "verdict"), [(0.06, "within"), (0.07, "outside"), (0.05, "outside")])
def test_weights_of_a_tiny_model_are_judged_as_far_as_the_engine_prints_them(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, said: float, verdict: str
) -> None:
    what = prediction.subject(deployment)
    tiny = replace(what, ledger=replace(what.ledger, weights_gib=0.0630))
    monkeypatch.setattr(prediction, "subject", lambda row: tiny)
    row = said_at_start(deployment, weights_gib=said)["weights_gib"]
    assert (row.verdict, row.predicted) == (verdict, 0.0630)


def test_m4_a_context_other_than_the_one_asked_for_is_outside(deployment: Deployment) -> None:
    asked = deployment.settings["max_model_len"]
    rows = said_at_start(deployment, max_model_len=asked // 2)
    assert set(rows) == {"max_model_len"}
    assert rows["max_model_len"].verdict == "outside"
    assert rows["max_model_len"].predicted == asked
    again = said_at_start(deployment, max_model_len=asked)
    assert again["max_model_len"].verdict == "within", "repeating it replaces the row"


def test_emulated_start_up_facts_are_marked(deployment: Deployment) -> None:
    Deployment.objects.filter(pk=deployment.pk).update(state="loading", engine="emulated", emulated=True)
    deployment.refresh_from_db()
    reporting.apply_observation(deployment, ready_message(deployment, StartupFacts(kv_gib=1.0)))
    assert list(deployment.validations.values_list("metric", "emulated")) == [("kv_gib", True)]


def test_m19_search_gate_and_start_up_check_ask_one_ledger(deployment: Deployment, monkeypatch: Any) -> None:
    import planner.memory as memory
    from planner.placement import sizing as search

    asked: list[str] = []

    def spy(name: str, real: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return real(*args, **kwargs)

        return counted

    real = memory.ledger
    monkeypatch.setattr(memory, "ledger", spy("gate and check", real))
    services._check_fits(deployment)
    assert asked == ["gate and check"]
    said_at_start(deployment, kv_gib=1.0)
    assert asked == ["gate and check"] * 2
    assert search.ledger is real, "the search of candidates imports the very same function"


def test_memory_as_the_driver_reports_it_reaches_search_and_gate(deployment: Deployment) -> None:
    kind = deployment.node.node_type.gpu_model
    kind.memory_gib = 40.0
    kind.save()
    deployment.refresh_from_db()
    assert prediction.subject(deployment).ledger.total_gib == 40.0
    node = mapping.plan_node(deployment.node)
    assert gpu_of_nodes(kind.name, [node]).total_gib == 40.0
    kind.memory_gib = 16.0
    kind.save()
    deployment.refresh_from_db()
    with pytest.raises(ValidationError, match="does not fit"):
        services._check_fits(deployment)


def test_every_setting_that_memory_rests_on_reaches_the_engine(deployment: Deployment) -> None:
    resolved = replace(
        prediction.subject(deployment).resolved,
        engine=EngineName.TENSORRT_LLM,
        free_gpu_memory_fraction=0.8,
        capacity_policy="MAX_UTILIZATION",
        kv_cache_max_gpu_gib=12.0,
        kv_cache_host_gib=4.0,
        speculative_tokens=2,
        block_tokens=32,
    )
    launch = EngineLaunch(
        engine="tensorrt_llm", version="1.3.0rc20", model=MODEL, served_name=MODEL, port=8000, gpu_indexes=(0,),
        flags=prediction.engine_flags(resolved),
    )  # fmt: skip
    command = engine_command(launch, EngineName.TENSORRT_LLM, MODEL, "127.0.0.1", Path("/tmp"))
    text = command.files["llm-api.yaml"]
    for words in ("MAX_UTILIZATION", "max_gpu_total_bytes: 12884901888", "host_cache_size: 4294967296", "MTP"):
        assert words in text


def test_the_page_shows_what_the_facts_were_held_against(deployment: Deployment) -> None:
    checks = [Validation(metric="kv_gib", predicted=14.2), Validation(metric="kv_tokens", predicted=None)]
    deployment.startup = {"kv_gib": 14.2, "kv_tokens": 100}
    deployment.prediction = {}
    rows = {row["word"]: row for row in memory_facts(deployment, checks)}
    assert (rows["KV cache"]["predicted"], rows["KV cache"]["off"]) == (14.2, 0.0)
    assert (rows["KV tokens"]["predicted"], rows["KV tokens"]["off"]) == (None, None)
    deployment.prediction = {"memory": {"kv_gib": 7.1}}
    (row,) = (row for row in memory_facts(deployment, checks) if row["word"] == "KV cache")
    assert row["predicted"] == 7.1, "the deployment's own ledger goes first"
