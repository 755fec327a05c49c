"""fleet.yaml: what it means, and errors that name the path."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from planner.cli import main
from planner.errors import InputError
from planner.fleet_file import load_fleet_file, parse_fleet
from planner.plan_types import PlanResult, StrandedReport
from planner.serving.types import SloTarget

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "fleet.yaml"

SMALL = {
    "sites": {"east": {"usd_per_kwh": 0.1, "pue": 1.2}},
    "pools": [{"name": "h", "site": "east", "node_type": "8xH100-SXM", "count": 2, "price": 2.5}],
    "workloads": [
        {
            "name": "chat",
            "model": "Qwen/Qwen3-8B",
            "load": {"rate_per_s": 3},
            "input_tokens": 512,
            "output_tokens": {"mean": 200, "sd": 50},
            "slo": {"ttft_p99_ms": 900},
        }
    ],
}


def changed(path: str, value: object) -> str:
    data = yaml.safe_load(yaml.safe_dump(SMALL))
    keys = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return yaml.safe_dump(data)


def test_example_is_read() -> None:
    request = load_fleet_file(EXAMPLE)
    assert [workload.name for workload in request.workloads] == ["chat", "code", "assistant", "search", "nightly"]
    assert len(request.nodes) == 11
    by_name = {node.name: node for node in request.nodes}
    h100 = by_name["h100-2"]
    assert (h100.gpu, h100.gpus, h100.nvlink_domain, h100.failure_domain) == ("H100-SXM5-80GB", 8, 8, "rack-2")
    assert h100.price.basis == "tco"
    assert sum(usd for _, usd in h100.price.parts) == h100.price.usd_per_gpu_hour
    assert by_name["l40s-1"].price.basis == "catalogue"
    assert by_name["l40s-1"].nvlink_domain == 1
    assert by_name["lab-1"].busy_gpus == (0,)
    assert by_name["lab-2"].state == "maintenance"
    assert request.energy is not None
    assert request.energy.usd_per_kwh == Decimal("0.19")
    assert request.workloads[0].input_tokens.kind == "samples"
    assert request.workloads[2].load.kind == "closed"


def test_short_forms() -> None:
    request = parse_fleet(yaml.safe_dump(SMALL), name="small")
    assert request.name == "small"
    assert [node.name for node in request.nodes] == ["h-1", "h-2"]
    assert request.nodes[0].price.usd_per_gpu_hour == Decimal("2.5000")
    workload = request.workloads[0]
    assert workload.slo == (SloTarget("ttft", "p99", 900),)
    assert (workload.input_tokens.value, workload.output_tokens.mean) == (512, 200.0)
    assert workload.load.rate_per_s == 3.0


def test_trace_with_arrivals_gives_the_load() -> None:
    text = changed("workloads.0", {"name": "code", "model": "Qwen/Qwen3-8B", "load": {}, "trace": "azure_2023_code"})
    workload = parse_fleet(text).workloads[0]
    assert workload.load.arrival == "trace"
    assert len(workload.load.times_s) == len(workload.input_tokens.samples)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("pools.0.gpus", "eight", "pools[0].gpus"),
        ("pools.0.colour", "red", "pools[0].colour"),
        ("pools.0.site", "west", "pools[0].site"),
        ("pools.0.count", 0, "pools[0].count"),
        ("pools.0.price", "dear", "pools[0].price"),
        ("pools.0.price", {"purchase_usd": 1, "life_years": 0}, "pools[0].price.life_years"),
        ("pools.0.price", {"purchase_usd": 1, "years": 4}, "pools[0].price.years"),
        ("pools.0.nodes", [{"name": "x", "gpu": "T4"}, {"name": "y"}], "pools[0].nodes[0].gpu"),
        ("workloads.0.load", {"rate_per_s": "many"}, "workloads[0].load.rate_per_s"),
        ("workloads.0.load", {}, "workloads[0].load"),
        ("workloads.0.input_tokens", 0, "workloads[0].input_tokens"),
        ("workloads.0.input_tokens", {"mean": 3}, "workloads[0].input_tokens"),
        ("workloads.0.slo", {"ttft_p42_ms": 3}, "workloads[0].slo.ttft_p42_ms"),
        ("workloads.0.slo", [{"metric": "ttft", "stat": "p99"}], "workloads[0].slo[0].limit_ms"),
        ("workloads.0.priority", 1.5, "workloads[0].priority"),
        ("sites.east.usd_per_kwh", "nan", "sites.east.usd_per_kwh"),
        ("mode", "rented", "mode"),
        ("seed", "x", "seed"),
        ("workloads", None, "workloads"),
        ("calibrations", [{"engine": "vllm"}], "calibrations[0].gpu"),
    ],
)
def test_error_names_the_path(path, value, where) -> None:
    with pytest.raises(InputError) as caught:
        parse_fleet(changed(path, value))
    assert caught.value.field == where


@pytest.mark.parametrize("text", ["", "[]", "a: [", "pools: 3"])
def test_what_is_no_fleet_is_refused(text) -> None:
    with pytest.raises(InputError):
        parse_fleet(text)


def test_owners_fences_slices_and_the_objective_are_read() -> None:
    data = yaml.safe_load(changed("objective", "total_cost"))
    data |= {"orchestrators": ["none", "slurm"], "share_gpus": False}
    data["pools"][0] |= {"orchestrator": "slurm", "cluster": "hpc", "partition": "gpu", "min_replica_gpus": 4}
    data["pools"][0]["slices"] = [{"gpu": 0, "profile": "1g.10gb", "uuid": "MIG-1"}, {"gpu": 0, "profile": "2g.20gb"}]
    request = parse_fleet(yaml.safe_dump(data))
    node = request.nodes[0]
    assert (request.objective, request.orchestrators, request.share_gpus) == ("total_cost", ("none", "slurm"), False)
    assert (node.orchestrator, node.cluster, node.partition, node.min_replica_gpus) == ("slurm", "hpc", "gpu", 4)
    assert [(s.gpu, s.profile, s.uuid) for s in node.slices] == [(0, "1g.10gb", "MIG-1"), (0, "2g.20gb", "")]


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("objective", "cheapest", "objective"),
        ("orchestrators", ["nomad"], "orchestrators[0]"),
        ("pools.0.orchestrator", "nomad", "pools[0].orchestrator"),
        ("pools.0.slices", [{"profile": "1g.10gb"}], "pools[0].slices[0].gpu"),
    ],
)
def test_wrong_owners_and_slices_name_their_path(path, value, where) -> None:
    with pytest.raises(InputError) as caught:
        parse_fleet(changed(path, value))
    assert caught.value.field == where


def test_operations_by_engine() -> None:
    text = changed("operations", {"licence_usd_per_gpu_year": {"tensorrt_llm": 4500}, "start_up_minutes": {"vllm": 3}})
    operations = parse_fleet(text).operations
    assert operations.licence_usd_per_gpu_year == (("tensorrt_llm", Decimal(4500)),)
    assert operations.start_up_minutes == (("vllm", Decimal(3)),)


def test_purchase_takes_power_and_space_from_the_node_type() -> None:
    text = changed("purchase", [{"name": "new", "node_type": "8xH200-SXM", "price": 3, "max_count": 2}])
    option = parse_fleet(text).purchase_options[0]
    assert (option.power_kw, option.rack_units, option.max_count) == (10.2, 8, 2)
    assert option.node.state == "planned"


def test_command_line_says_what_is_wrong_with_status_two(tmp_path, capsys) -> None:
    wrong = tmp_path / "fleet.yaml"
    wrong.write_text(changed("pools.0.count", 0), encoding="utf-8")
    assert main(["plan", str(wrong)]) == 2
    assert "pools[0].count" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "none.yaml")]) == 2


def test_command_line_writes_the_plan_and_its_deployment_files(tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    empty = StrandedReport(0, 0.0)
    answer = PlanResult(
        "small",
        "0",
        "infeasible",
        Decimal(0),
        Decimal(0),
        0.0,
        0.0,
        (),
        (),
        (),
        (),
        Decimal(0),
        Decimal(0),
        empty,
        empty,
    )
    monkeypatch.setattr("planner.plan.make_plan", lambda request, progress: answer)
    assert main(["plan", str(file), "--json", "--export", "router", "--out", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["request_name"] == "small"
    assert "1 files written" in captured.err
    assert (tmp_path / "out" / "config.yaml").exists()
