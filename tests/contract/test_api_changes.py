"""Create, read, change, delete; versions, bulk, idempotency, files."""

from __future__ import annotations

import io
import json
from typing import Any

import openpyxl
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from controlplane.core.models import ChangeLog, IdempotencyKey
from controlplane.inventory.models import Gpu, Node, NodeType, Price, Site
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload
from tests.contract.conftest import V1
from tests.contract.test_api_errors import faults, problem

pytestmark = pytest.mark.django_db

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_a_site_from_birth_to_death(operator_api: APIClient) -> None:
    made = operator_api.post(f"{V1}/sites/", {"name": "Oslo North", "usd_per_kwh": "0.05"})
    assert made.status_code == 201
    assert (made.json()["slug"], made.json()["usd_per_kwh"], made["ETag"]) == ("oslo-north", "0.0500", '"1"')
    path = made["Location"]
    read = operator_api.get(path)
    assert read.json() == made.json()
    assert read["ETag"] == '"1"'
    changed = operator_api.put(path, {**read.json(), "notes": "by the sea"})  # the version travels in the body
    assert (changed.status_code, changed.json()["notes"], changed["ETag"]) == (200, "by the sea", '"2"')
    patched = operator_api.patch(path, {"pue": "1.1"}, HTTP_IF_MATCH=changed["ETag"])
    assert (patched.json()["pue"], patched.json()["notes"], patched.json()["version"]) == ("1.10", "by the sea", 3)
    assert operator_api.delete(path, HTTP_IF_MATCH='"3"').status_code == 204
    assert operator_api.get(path).status_code == 404
    actions = list(ChangeLog.objects.filter(model="inventory.Site").order_by("id").values_list("action", flat=True))
    assert actions == ["create", "update", "update", "delete"]


def test_if_match_takes_several_versions_and_any(operator_api: APIClient, site: Site) -> None:
    path = f"{V1}/sites/{site.pk}/"
    assert operator_api.patch(path, {"notes": "a"}, HTTP_IF_MATCH='"9", W/"1"').status_code == 200
    assert operator_api.patch(path, {"notes": "b"}, HTTP_IF_MATCH="*").json()["version"] == 3


def test_a_node_is_known_by_names_and_gets_its_gpus(operator_api: APIClient, site: Site, node_type: NodeType) -> None:
    made = operator_api.post(f"{V1}/nodes/", {"name": "n7", "site": site.slug, "node_type": node_type.pk})
    assert made.status_code == 201
    body = made.json()
    assert (body["site"], body["node_type"], body["gpu_model"], body["gpu_count"]) == (
        "test-site", "8xh100", "H100-SXM5-80GB", 8,
    )  # fmt: skip
    assert Gpu.objects.filter(node_id=body["id"]).count() == 8


def test_a_list_narrows_filters_searches_and_orders(viewer_api: APIClient, make_node: Any) -> None:
    for name in ("a1", "a2", "b1"):
        make_node(name, state="maintenance" if name == "a2" else "active")
    body = viewer_api.get(f"{V1}/nodes/?brief=true&ordering=-name&search=h100").json()
    assert body["count"] == 3
    assert set(body["results"][0]) == {"id", "name", "slug", "site", "state"}
    assert [row["name"] for row in viewer_api.get(f"{V1}/nodes/?name__icontains=A&state=active").json()["results"]] == [
        "a1"
    ]
    two = viewer_api.get(f"{V1}/nodes/?site=test-site&state=active&state=maintenance&fields=name&limit=2&offset=1")
    assert two.json()["results"] == [{"name": "a2"}, {"name": "b1"}]
    assert two.json()["previous"]
    one = viewer_api.get(f"{V1}/nodes/{Node.objects.get(name='b1').pk}/?fields=name,version").json()
    assert one == {"name": "b1", "version": 1}
    ids = ",".join(str(pk) for pk in Node.objects.values_list("pk", flat=True)[:2])
    assert viewer_api.get(f"{V1}/nodes/?id={ids}").json()["count"] == 2


def test_the_closing_slash_may_be_left_out(viewer_api: APIClient, site: Site) -> None:
    for path in ("sites", f"sites/{site.pk}", "catalogue/gpus", "me"):
        assert viewer_api.get(f"{V1}/{path}").json() == viewer_api.get(f"{V1}/{path}/").json()


def test_many_are_made_changed_and_deleted_at_once(operator_api: APIClient) -> None:
    made = operator_api.post(f"{V1}/sites/bulk/", [{"name": f"S{i}"} for i in range(3)])
    assert made.status_code == 201
    rows = made.json()
    assert [row["name"] for row in rows] == ["S0", "S1", "S2"]
    changes = [{"id": row["id"], "version": row["version"], "notes": "new"} for row in rows]
    changed = operator_api.patch(f"{V1}/sites/bulk/", changes)
    assert [(row["notes"], row["version"]) for row in changed.json()] == [("new", 2)] * 3
    gone = [{"id": row["id"], "version": 2} for row in rows]
    assert operator_api.delete(f"{V1}/sites/bulk/", gone).status_code == 204
    assert not Site.objects.exists()


def test_of_many_none_is_changed_when_one_is_wrong(operator_api: APIClient, node: Node) -> None:
    body = problem(
        operator_api.post(f"{V1}/sites/bulk/", [{"name": "A"}, {"name": "B", "pue": 0.5}, {"nam": "C"}]),
        400,
        "validation",
    )
    assert {"[1].pue", "[2].nam", "[2].name"} <= set(faults(body))
    assert faults(body)["[1].pue"]["value"] == 0.5
    both = [{"name": "A", "slug": "same"}, {"name": "B", "slug": "same"}]
    found = faults(problem(operator_api.post(f"{V1}/sites/bulk/", both), 400, "validation"))
    assert "[1].slug" in found
    assert Site.objects.count() == 1
    site = Site.objects.get()
    wrong = [{"id": site.pk, "version": 1, "notes": "x"}, {"id": 999, "version": 1}, {"id": "x"}, {"id": site.pk}]
    found = faults(problem(operator_api.patch(f"{V1}/sites/bulk/", wrong), 400, "validation"))
    assert {"[1].id", "[2].id", "[3].id"} == set(found)
    problem(operator_api.patch(f"{V1}/sites/bulk/", [{"id": site.pk}]), 428, "precondition-required")
    problem(operator_api.patch(f"{V1}/sites/bulk/", [{"id": site.pk, "version": 5}]), 412, "stale-version")
    problem(operator_api.delete(f"{V1}/sites/bulk/", [{"id": site.pk, "version": 1}]), 409, "conflict")
    problem(operator_api.post(f"{V1}/sites/bulk/", [{"name": f"S{i}"} for i in range(501)]), 400, "validation")


def test_a_repeated_request_gets_the_first_answer(operator_api: APIClient) -> None:
    first = operator_api.post(f"{V1}/sites/", {"name": "Oslo"}, HTTP_IDEMPOTENCY_KEY="k-1")
    again = operator_api.post(f"{V1}/sites/", {"name": "Oslo"}, HTTP_IDEMPOTENCY_KEY="k-1")
    assert first.status_code == again.status_code == 201
    assert again.json() == first.json()
    assert (again["Location"], again["ETag"]) == (first["Location"], first["ETag"])
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert Site.objects.count() == 1
    other = operator_api.post(f"{V1}/sites/", {"name": "Bergen"}, HTTP_IDEMPOTENCY_KEY="k-1")
    assert "Idempotency-Key" in faults(problem(other, 422, "idempotency-key-reused"))
    problem(operator_api.post(f"{V1}/sites/", {"name": "B"}, HTTP_IDEMPOTENCY_KEY="x" * 200), 400, "malformed")


def test_a_refused_request_frees_its_key(operator_api: APIClient, viewer_api: APIClient) -> None:
    problem(operator_api.post(f"{V1}/sites/", {"name": ""}, HTTP_IDEMPOTENCY_KEY="k"), 400, "validation")
    assert operator_api.post(f"{V1}/sites/", {"name": "Oslo"}, HTTP_IDEMPOTENCY_KEY="k").status_code == 201
    problem(viewer_api.post(f"{V1}/sites/", {"name": "Oslo"}, HTTP_IDEMPOTENCY_KEY="k"), 403, "permission-denied")
    assert IdempotencyKey.objects.count() == 1


def test_an_idempotent_deletion_and_change(operator_api: APIClient, site: Site) -> None:
    path = f"{V1}/sites/{site.pk}/"
    for _ in range(2):
        changed = operator_api.patch(path, {"notes": "x", "version": 1}, HTTP_IDEMPOTENCY_KEY="change")
        assert (changed.status_code, changed["ETag"]) == (200, '"2"')
    for _ in range(2):
        assert operator_api.delete(path, HTTP_IF_MATCH='"2"', HTTP_IDEMPOTENCY_KEY="delete").status_code == 204


def test_a_price_from_cost_of_ownership_is_computed(operator_api: APIClient, h100: Any, site: Site) -> None:
    values = {"gpu_model": "H100-SXM5-80GB", "site": site.slug, "valid_from": "2026-06-01", "source": "quote"}
    inputs = {"purchase_usd": 280_000, "gpus": 8, "life_years": 4}
    made = operator_api.post(f"{V1}/prices/", {**values, "basis": "tco", "usd_per_gpu_hour": "0", "tco_inputs": inputs})
    assert made.status_code == 201, made.content
    assert float(made.json()["usd_per_gpu_hour"]) == pytest.approx(280_000 / 8 / (4 * 365.25 * 24), rel=0.01)
    wrong = operator_api.post(
        f"{V1}/prices/", {**values, "basis": "tco", "usd_per_gpu_hour": "0", "tco_inputs": {"gold": 1}}
    )
    assert "tco_inputs" in faults(problem(wrong, 400, "validation"))
    nan = operator_api.post(f"{V1}/prices/", {**values, "basis": "rental", "usd_per_gpu_hour": "NaN"})
    assert "usd_per_gpu_hour" in faults(problem(nan, 400, "validation"))


@pytest.mark.parametrize("table", ["sites", "gpu-models", "node-types", "nodes", "gpus", "prices"])
def test_what_is_exported_can_be_imported(operator_api: APIClient, node: Node, table: str) -> None:
    for form in ("csv", "xlsx"):
        file = operator_api.get(f"{V1}/{table}/?format={form}")
        assert file.status_code == 200
        assert file["Content-Disposition"].endswith(f'{table}.{form}"')
        again = operator_api.generic(
            "POST", f"{V1}/{table}/import/", file.content, content_type=file["Content-Type"].partition(";")[0]
        )
        assert again.status_code == 200, again.content
        report = again.json()
        assert (report["created"], report["updated"]) == (0, 0)
        assert report["unchanged"] > 0


def test_an_export_keeps_the_filters(viewer_api: APIClient, make_node: Any) -> None:
    make_node("a1")
    make_node("b1", state="maintenance")
    text = viewer_api.get(f"{V1}/nodes/?format=csv&state=maintenance").content.decode()
    assert "b1" in text
    assert "a1" not in text
    book = openpyxl.load_workbook(io.BytesIO(viewer_api.get(f"{V1}/nodes/?format=xlsx").content))
    assert book.worksheets[0].max_row == 3


def test_an_import_can_be_tried_first(operator_api: APIClient) -> None:
    file = SimpleUploadedFile("sites.csv", b"name,usd_per_kwh\nOslo,0.1\n", "text/csv")
    tried = operator_api.post(f"{V1}/sites/import/?dry_run=true", {"file": file}, format="multipart")
    assert tried.json() == {"created": 1, "updated": 0, "unchanged": 0, "dry_run": True}
    assert not Site.objects.exists()
    file.seek(0)
    done = operator_api.post(f"{V1}/sites/import/", {"file": file}, format="multipart")
    assert done.json()["created"] == 1
    assert Site.objects.get().slug == "oslo"


def test_a_workload_with_its_objectives(planner_api: APIClient) -> None:
    body = {
        "name": "Support chat", "model_ref": "meta-llama/Llama-3.1-8B-Instruct", "rate_per_s": 3,
        "input_tokens": {"kind": "normal", "mean": 900.0, "sd": 200.0},
        "output_tokens": {"kind": "fixed", "value": 128},
        "slo_targets": [{"metric": "ttft", "stat": "p90", "limit_ms": 800}, {"metric": "tpot", "limit_ms": 40}],
    }  # fmt: skip
    made = planner_api.post(f"{V1}/workloads/", body)
    assert made.status_code == 201, made.content
    path = made["Location"]
    assert {(row["metric"], row["stat"]) for row in made.json()["slo_targets"]} == {("ttft", "p90"), ("tpot", "p90")}
    changed = planner_api.patch(path, {"slo_targets": [{"metric": "ttft", "limit_ms": 500}], "version": 1})
    assert [(row["metric"], row["limit_ms"]) for row in changed.json()["slo_targets"]] == [("ttft", 500.0)]
    kept = planner_api.patch(path, {"rate_per_s": 4, "version": 2})
    assert len(kept.json()["slo_targets"]) == 1
    again = planner_api.put(path, kept.json())  # what was read can be sent back
    assert again.status_code == 200, again.content
    assert SloTarget.objects.count() == 1
    listed = planner_api.get(f"{V1}/slo-targets/?workload=support-chat").json()["results"]
    assert listed[0]["workload"] == "support-chat"
    facts = planner_api.get(f"{path}facts/").json()
    assert facts["model"]["parameters"] > 7e9


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_ref": "../../etc/passwd"}, "model_ref"),
        ({"model_ref": "planner/catalog"}, "model_ref"),
        ({"model_ref": "nobody/nothing"}, "model_ref"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"rate_per_s": "fast"}, "rate_per_s"),
        ({"input_tokens": {"kind": "fixed", "value": 0}}, "input_tokens"),
        ({"input_tokens": {"kind": "trace"}}, "input_tokens"),
        ({"input_tokens": [1]}, "input_tokens"),
        ({"input_tokens": {"kind": "samples", "samples": ["a"]}}, "input_tokens"),
        ({"arrival": "trace"}, "arrival"),
        ({"allowed_engines": ["triton"]}, "allowed_engines.0[0]"),
        ({"allowed_engines": []}, "allowed_engines"),
        ({"slo_targets": [{"metric": "ttft", "limit_ms": -1}]}, "slo_targets[0].limit_ms"),
        (
            {"slo_targets": [{"metric": "ttft", "limit_ms": 1}, {"metric": "ttft", "limit_ms": 2}]},
            "slo_targets[1].stat",
        ),
        ({"slo_targets": {"metric": "ttft"}}, "slo_targets"),
        ({"trace": "none-such"}, "trace"),
        ({"prefix_hit": 1}, "prefix_hit"),
    ],
)
def test_a_workload_that_is_not_sound(planner_api: APIClient, change: dict[str, Any], field: str) -> None:
    body = {"name": "W", "model_ref": "meta-llama/Llama-3.1-8B-Instruct", "rate_per_s": 3, **change}
    found = faults(problem(planner_api.post(f"{V1}/workloads/", body), 400, "validation"))
    assert any(name.startswith(field.partition(".0")[0]) for name in found), found
    assert not Workload.objects.exists()


def test_a_model_is_uploaded_as_json_or_as_a_file(planner_api: APIClient) -> None:
    made = planner_api.post(f"{V1}/models/", {"model_id": "acme/tiny", "config": TINY, "source": "ours"})
    assert made.status_code == 201, made.content
    assert made.json()["architecture"] == "LlamaForCausalLM"
    file = SimpleUploadedFile("config.json", json.dumps({**TINY, "num_hidden_layers": 8}).encode())
    other = planner_api.post(f"{V1}/models/", {"model_id": "acme/small", "config": file}, format="multipart")
    assert other.json()["parameters"] > made.json()["parameters"]
    noted = planner_api.patch(made["Location"], {"notes": "kept", "version": 1})
    assert (noted.json()["notes"], noted.json()["config"]) == ("kept", TINY)
    listed = planner_api.get(f"{V1}/models/").json()["results"]
    assert "config" not in listed[0]
    used = planner_api.post(f"{V1}/workloads/", {"name": "W", "model_ref": "acme/tiny", "rate_per_s": 1})
    assert used.status_code == 201
    problem(planner_api.delete(made["Location"], HTTP_IF_MATCH="*"), 409, "conflict")
    assert planner_api.delete(other["Location"], HTTP_IF_MATCH="*").status_code == 204


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**TINY, "hidden_size": None},
        {**TINY, "num_hidden_layers": -4},
        {**TINY, "model_type": "unheard"},
        "x",
        5,
        [],
    ],
)
def test_a_model_that_is_none(planner_api: APIClient, config: Any) -> None:
    response = planner_api.post(f"{V1}/models/", {"model_id": "acme/bad", "config": config})
    assert "config" in faults(problem(response, 400, "validation"))
    assert not LlmModel.objects.exists()


def test_a_trace_goes_in_and_comes_out(planner_api: APIClient) -> None:
    text = b"timestamp_s,input_tokens,output_tokens\n0,10,5\n1.5,20,6\n4,30,7\n"
    file = SimpleUploadedFile("t.csv", text)
    made = planner_api.post(f"{V1}/traces/", {"name": "Mine", "file": file, "licence": "CC0"}, format="multipart")
    assert made.status_code == 201, made.content
    assert (made.json()["rows"], made.json()["duration_s"]) == (3, 4.0)
    back = planner_api.get(f"{made['Location']}requests/").content.decode().splitlines()
    assert back[0] == "timestamp_s,input_tokens,output_tokens"
    assert back[2] == "1.5,20,6"
    ids = SimpleUploadedFile(
        "m.jsonl", b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [4, 5]}\n'
        b'{"timestamp": 250, "input_length": 700, "output_length": 6, "hash_ids": [4, 6]}\n',
    )  # fmt: skip
    prefixes = planner_api.post(f"{V1}/traces/", {"name": "Prefixes", "file": ids}, format="multipart")
    assert prefixes.json()["prefix_hit"] == pytest.approx(512 / 1300)
    back = planner_api.get(f"{prefixes['Location']}requests/").content.decode().splitlines()
    assert back == ["timestamp_s,input_tokens,output_tokens,prefix_block_ids", "0.0,600,5,4 5", "0.25,700,6,4 6"]
    renamed = planner_api.patch(made["Location"], {"name": "Ours", "version": 1})
    assert (renamed.json()["name"], renamed.json()["rows"]) == ("Ours", 3)
    installed = planner_api.post(f"{V1}/traces/", {"catalogue_name": "azure_2023_code"})
    assert installed.json()["rows"] == 8819
    wrong = SimpleUploadedFile("t.csv", b"timestamp_s,input_tokens,output_tokens\n0,-3,5\n0,nan,5\n")
    body = problem(
        planner_api.post(f"{V1}/traces/", {"name": "Bad", "file": wrong}, format="multipart"), 400, "validation"
    )
    assert {fault["row"] for fault in body["errors"]} == {2, 3}
    problem(planner_api.post(f"{V1}/traces/", {"catalogue_name": "/etc/passwd"}), 400, "validation")
    assert Trace.objects.count() == 3


def test_a_scenario_names_its_sites_and_workloads(planner_api: APIClient, site: Site, workload: Workload) -> None:
    made = planner_api.post(f"{V1}/scenarios/", {"name": "Q1", "sites": [site.slug], "workloads": [workload.pk]})
    assert made.status_code == 201, made.content
    assert (made.json()["sites"], made.json()["workloads"]) == (["test-site"], ["chat"])
    changed = planner_api.patch(made["Location"], {"sites": [], "version": 1})
    assert (changed.json()["sites"], changed.json()["workloads"]) == ([], ["chat"])
    problem(planner_api.post(f"{V1}/scenarios/", {"name": "Q2", "sites": ["nowhere"]}), 400, "validation")
    assert planner_api.get(f"{V1}/scenarios/?workload=chat").json()["count"] == 1


def test_prices_are_exact(operator_api: APIClient, h100: Any) -> None:
    values = {"gpu_model": "H100-SXM5-80GB", "basis": "rental", "source": "invoice", "valid_from": "2026-02-01"}
    made = operator_api.post(f"{V1}/prices/", {**values, "usd_per_gpu_hour": 2.1})
    assert made.json()["usd_per_gpu_hour"] == "2.1000"
    twice = operator_api.post(f"{V1}/prices/", {**values, "usd_per_gpu_hour": 2.2})
    problem(twice, 400, "validation")
    assert Price.objects.count() == 2


def test_exchange_rates_come_and_go(operator_api: APIClient) -> None:
    rate = {"currency": "EUR", "date": "2026-11-27", "usd_per_unit": "1.0862", "source": "reference rate"}
    made = operator_api.post(f"{V1}/exchange-rates/", rate)
    assert made.status_code == 201, made.content
    assert made.json()["usd_per_unit"] == "1.08620000"
    problem(operator_api.post(f"{V1}/exchange-rates/", rate), 400, "validation")
    refused = operator_api.post(f"{V1}/exchange-rates/", {**rate, "currency": "euro", "usd_per_unit": "0"})
    assert {"currency", "usd_per_unit"} <= set(faults(problem(refused, 400, "validation")))
    dollar = operator_api.post(f"{V1}/exchange-rates/", {**rate, "currency": "USD"})
    assert "currency" in faults(problem(dollar, 400, "validation"))
    file = operator_api.get(f"{V1}/exchange-rates/?format=csv")
    again = operator_api.generic(
        "POST", f"{V1}/exchange-rates/import/", file.content, content_type=file["Content-Type"].partition(";")[0]
    )
    assert again.json()["unchanged"] == 1


def test_a_scenario_carries_its_money(planner_api: APIClient, workload: Workload) -> None:
    money = {
        "currency": "EUR",
        "rates_as_of": "2026-11-30",
        "operations": {"people_usd_per_hour": "95", "licence_usd_per_gpu_year": {"tensorrt_llm": "4500"}},
        "api_prices": [
            {"workload": workload.name, "usd_per_mtok_input": "0.1", "usd_per_mtok_output": "0.3", "currency": "USD"}
        ],
        "price_classes": [{"name": "preempt", "factor": "0.5", "workloads": [workload.name]}],
    }
    made = planner_api.post(f"{V1}/scenarios/", {"name": "Euro", **money})
    assert made.status_code == 201, made.content
    assert {key: made.json()[key] for key in money} == money
    wrong = planner_api.post(f"{V1}/scenarios/", {"name": "Wrong", "operations": {"gold": 1}})
    assert "operations" in faults(problem(wrong, 400, "validation"))
    below = {**money["api_prices"][0], "usd_per_mtok_input": "-1"}
    for field, value in (("operations", {"people_usd_per_hour": "-1"}), ("api_prices", [below])):
        fault = faults(
            problem(planner_api.post(f"{V1}/scenarios/", {"name": "Below", field: value}), 400, "validation")
        )
        assert "must not be negative" in str(fault[field]), field
    api, cloud = money["api_prices"][0], {"gpu": "H1000", "usd_per_gpu_hour": "2"}
    for field, value, said in (
        ("api_prices", [{**api, "workload": "nobody"}], "api_prices[0].workload is no workload of this scenario"),
        ("price_classes", [{"name": "x", "factor": "1", "workloads": ["nobody"]}], "price_classes[0].workloads"),
        ("cloud_prices", [cloud], "cloud_prices[0].gpu: is not in the catalogue"),
    ):
        fault = faults(
            problem(planner_api.post(f"{V1}/scenarios/", {"name": "Named", field: value}), 400, "validation")
        )
        assert said in str(fault[field]), fault


def test_a_tariff_is_checked(operator_api: APIClient, site: Site) -> None:
    band = {"days": ["mon"], "from_hour": 0, "to_hour": 6, "usd_per_kwh": "0.0900"}
    values = {"name": "Bergen", "tariff_bands": [band], "demand_usd_per_kw_month": "9"}
    made = operator_api.post(f"{V1}/sites/", values)
    assert made.status_code == 201, made.content
    assert made.json()["tariff_bands"] == [band]
    twice = operator_api.post(f"{V1}/sites/", {**values, "name": "Two", "tariff_bands": [band, band]})
    assert "tariff_bands" in faults(problem(twice, 400, "validation"))
    path = f"{V1}/sites/{made.json()['id']}/"
    part = operator_api.patch(path, {"tariff_bands": [{"days": ["sun"]}]}, HTTP_IF_MATCH="*")
    assert "tariff_bands[0].usd_per_kwh" in faults(problem(part, 400, "validation"))
    misspelt = operator_api.patch(path, {"tariff_bands": [{**band, "hour": 3}]}, HTTP_IF_MATCH="*")
    assert "tariff_bands[0].hour" in faults(problem(misspelt, 400, "validation"))
