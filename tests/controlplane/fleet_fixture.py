"""Rows for tests of the pages: the fleet, workloads and plan of ``plan_fixture``, with jobs, deployments and probes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
from django.utils import timezone
from django.utils.text import slugify

from controlplane.core.models import Role, User
from controlplane.deployments.models import Calibration, Deployment, ProbeRun, Validation
from controlplane.inventory.models import ExchangeRate, Gpu, GpuModel, Node, NodeType, Price, Site
from controlplane.jobs.models import Job, JobLog
from controlplane.planning.models import Plan, Scenario
from controlplane.planning.services import store_request, store_result
from controlplane.workloads.models import SloTarget, Trace, Workload
from planner.jsonio import to_json
from tests.controlplane import plan_answer, plan_fixture

PASSWORD = "a-long-test-password"


def make_user(name: str = "ada", role: str = Role.ADMIN) -> User:
    """A user who can sign in with PASSWORD."""
    user = User(username=name, role=role, is_staff=role in (Role.OPERATOR, Role.ADMIN), is_superuser=role == Role.ADMIN)
    user.set_password(PASSWORD)
    user.save()
    return user


def make_fleet() -> list[Node]:
    """The nodes of ``plan_fixture`` with GPUs and prices; one GPU is faulty, one used by others."""
    vendors = {"MI300X": "amd"}
    made = []
    for pool, site_name, gpu_name, count, gpus, domain, state in plan_fixture.POOLS:
        site, _ = Site.objects.get_or_create(
            name=site_name, slug=slugify(site_name), defaults={"usd_per_kwh": Decimal("0.14")}
        )
        gpu, fresh = GpuModel.objects.get_or_create(name=gpu_name, defaults={"vendor": vendors.get(gpu_name, "nvidia")})
        if fresh:
            Price.objects.create(
                gpu_model=gpu,
                basis="catalogue",
                usd_per_gpu_hour=Decimal(plan_fixture.PRICES[gpu_name]),
                source="Price catalogue, median of three rental offers",
                valid_from=dt.date(2026, 11, 1),
            )
        kind, _ = NodeType.objects.get_or_create(
            name=f"{gpus} × {gpu_name}",
            slug=slugify(f"{gpus}-{gpu_name}"),
            defaults={"gpu_model": gpu, "gpus": gpus, "nvlink_domain": domain},
        )
        for number in range(1, count + 1):
            name = f"{site_name[:3].lower()}-{pool}-{number:02d}"
            made.append(Node.objects.create(site=site, node_type=kind, name=name, slug=name, state=state))
    Gpu.objects.bulk_create(Gpu(node=node, index=index) for node in made for index in range(node.node_type.gpus))
    Gpu.objects.filter(node__name="fra-h100-05", index=7).update(state=Gpu.State.FAULTY)
    Gpu.objects.filter(node__name="osl-h200-04", index__in=[0, 1]).update(state=Gpu.State.RESERVED)
    return made


def make_workloads() -> list[Workload]:
    """The workloads of ``plan_fixture``; the agents take lengths and arrivals from a trace."""
    rng = np.random.default_rng(7)
    times = np.cumsum(rng.exponential(0.18, 4000) * (1 + 0.8 * np.sin(np.arange(4000) / 300)))
    trace = Trace(name="Agent tool calls", slug="agent-tool-calls", source="made for tests", licence="CC0")
    trace.pack(times, rng.lognormal(8.5, 0.9, 4000).astype(int) + 40, rng.lognormal(5.2, 0.8, 4000).astype(int) + 1)
    trace.save()
    made = []
    for item in plan_fixture.WORKLOADS:
        row = Workload.objects.create(
            name=item.name,
            slug=item.name,
            kind=item.kind,
            model_ref=item.model,
            rate_per_s=item.load.rate_per_s,
            arrival=item.load.arrival,
            prefix_hit=item.load.prefix_hit,
            priority=item.priority,
            adapters=item.adapters,
            revisions_per_month=item.revisions_per_month,
            input_tokens=to_json(item.input_tokens),
            output_tokens=to_json(item.output_tokens),
        )
        for target in item.slo:
            SloTarget.objects.create(workload=row, metric=target.metric, stat=target.stat, limit_ms=target.limit_ms)
        made.append(row)
    agents = next(row for row in made if row.name == "agent-tools")
    agents.trace, agents.input_tokens, agents.output_tokens = trace, {"kind": "trace"}, {"kind": "trace"}
    agents.save()
    return made


def make_plan(user: User, *, approved: bool = False, name: str = "Both sites, December") -> Plan:
    """A computed plan, in force when ``approved``."""
    scenario, _ = Scenario.objects.get_or_create(name=name, slug=slugify(name), defaults={"time_limit_s": 30})
    number = scenario.plans.count() + 1
    plan = Plan.objects.create(scenario=scenario, number=number, created_by=user)
    store_request(plan, plan_fixture.plan_request())
    plan.refresh_from_db()
    store_result(plan, plan_answer.plan_result())
    if approved:
        plan.state, plan.approved_by, plan.approved_at = Plan.State.APPROVED, user, timezone.now()
        plan.save()
    return plan


def make_job(user: User, kind: str, state: str, **values: Any) -> Job:
    """A job with a short log."""
    now = timezone.now()
    final = state in (Job.State.SUCCEEDED, Job.State.FAILED, Job.State.CANCELLED)
    job = Job.objects.create(
        kind=kind,
        state=state,
        created_by=user,
        attempt=1,
        started_at=now - dt.timedelta(seconds=19),
        finished_at=now - dt.timedelta(seconds=2) if final else None,
        **{"progress": 1.0 if final else 0.4, **values},
    )
    for at, text in enumerate(("Claimed by control-1.", "Read 20 nodes and 6 workloads.", "312 candidates sized.")):
        JobLog.objects.create(job=job, sequence=at, text=text)
    return job


PERCENTS = {"mean": 1.0, "p50": 0.95, "p90": 1.3, "p95": 1.5, "p99": 2.1}


def metrics(ttft_ms: float, tpot_ms: float, output: float) -> dict[str, Any]:
    """ProbeMetrics JSON."""
    scaled = [{key: base * share for key, share in PERCENTS.items()} for base in (ttft_ms, tpot_ms)]
    return {
        "requests": 200,
        "completed": 200,
        "failed": 0,
        "duration_s": 62.0,
        "output_tok_per_s": output,
        "total_tok_per_s": output * 6,
        "req_per_s": output / 200,
        "ttft_ms": scaled[0],
        "tpot_ms": scaled[1],
        "itl_ms": scaled[1],
        "e2e_ms": dict.fromkeys(PERCENTS, ttft_ms + tpot_ms * 200),
        "achieved_concurrency": 8.0,
        "mean_input_tokens": 480.0,
        "mean_output_tokens": 200.0,
        "generator": "aiperf 0.5",
    }


def make_probe(deployment: Deployment, job: Job, figures: list[tuple[str, str, float, float]]) -> ProbeRun:
    """A finished probe with (metric, unit, predicted, measured) held against each other."""
    now = timezone.now()
    probe = ProbeRun.objects.create(
        deployment=deployment,
        job=job,
        state=ProbeRun.State.DONE,
        emulated=deployment.emulated,
        started_at=now,
        finished_at=now,
        metrics=metrics(300, 23, 640),
        load={"input_tokens": 480, "output_tokens": 200, "concurrency": 8, "requests": 200, "rate_per_s": 0.0},
    )
    for metric, unit, predicted, measured in figures:
        inside = predicted * 0.85 <= measured <= predicted * 1.15
        Validation.objects.create(
            probe=probe,
            metric=metric,
            unit=unit,
            predicted=predicted,
            low=predicted * 0.85,
            high=predicted * 1.15,
            measured=measured,
            error_ratio=predicted / measured - 1,
            verdict="within" if inside else "outside",
            evidence="silicon",
            emulated=deployment.emulated,
        )
    return probe


def make_deployments(user: User, plan: Plan) -> list[Deployment]:
    """Four deployments of the plan: ready, emulated and ready, failed, waiting."""
    now = timezone.now()
    workloads = {row.name: row for row in Workload.objects.all()}
    nodes = {row.name: row for row in Node.objects.all()}
    performance = to_json(plan_answer.plan_result().candidates[0].performance)
    memory = to_json(plan_answer.plan_result().candidates[0].memory)
    startup = {
        "engine_version": "0.24.0",
        "weights_gib": 16.41,
        "kv_gib": 51.2,
        "kv_tokens": 335872,
        "kv_blocks": 20992,
        "block_tokens": 16,
        "graph_gib": 0.71,
        "max_model_len": 32768,
        "max_concurrency": 10.25,
        "load_s": 41.2,
        "compile_s": 33.0,
        "graph_s": 9.1,
        "ready_s": 92.4,
    }
    rows = []
    for name, node, engine, state, extra in (
        ("support-chat", "osl-h200-01", "vllm", "ready", {}),
        ("code-completion", "fra-h100-01", "tensorrt_llm", "ready", {"emulated": True, "engine": "emulated"}),
        (
            "classify-batch",
            "fra-l40s-03",
            "vllm",
            "failed",
            {
                "reason": "The engine ended with code 1 after 12 s: CUDA out of memory while capturing graphs.",
                "remedy": "Lower --gpu-memory-utilization to 0.88, or --max-num-seqs to 128.",
            },
        ),
        ("embed-search", "fra-a10-01", "vllm", "pending", {}),
    ):
        ready = state == "ready"
        rows.append(
            Deployment.objects.create(
                name=f"{name} / {engine} / 1 (plan 1)",
                plan=plan,
                workload=workloads[name],
                node=nodes[node],
                model_ref=workloads[name].model_ref,
                planned_engine=engine,
                state=state,
                gpu_indexes=[0, 1],
                engine_version="0.24.0",
                prediction={"memory": memory, "performance": performance},
                startup=startup if ready else None,
                base_url="http://10.2.0.11:18100" if ready else "",
                port=18100 if ready else None,
                ready_at=now if ready else None,
                pid=4711 if ready else None,
                host=nodes[node],
                phase="",
                **{"engine": engine, **extra},
            )
        )
    return rows


def make_everything() -> dict[str, Any]:
    """The whole sample: an administrator, fleet, workloads, an approved and a ready plan, jobs, probes."""
    user = make_user()
    nodes, workloads = make_fleet(), make_workloads()
    ExchangeRate.objects.create(currency="EUR", date="2026-11-27", usd_per_unit="1.0862", source="reference rate")
    plan = make_plan(user, approved=True)
    other = make_plan(user, name="H200 only")
    deployments = make_deployments(user, plan)
    job = make_job(user, "plan.compute", "succeeded", step="Stored.")
    make_job(user, "plan.compute", "running", step="Sizing support-chat on H200-SXM-141GB", progress=0.62)
    make_job(
        user, "deployment.probe", "failed", error="The load generator lost the endpoint.", remedy="Look at the log."
    )
    Deployment.objects.filter(pk=deployments[0].pk).update(job=job)
    real = [("output_tok_per_s", "tok/s", 650, 612), ("ttft_ms", "ms", 312, 290), ("tpot_ms", "ms", 23.6, 28.9)]
    fake = [("output_tok_per_s", "tok/s", 670, 668), ("ttft_ms", "ms", 142, 143), ("tpot_ms", "ms", 9.8, 9.9)]
    make_probe(deployments[0], job, real)
    make_probe(deployments[1], job, fake)
    Calibration.objects.create(
        engine="vllm",
        engine_version="0.24.0",
        gpu="H200-SXM-141GB",
        model="meta-llama/Llama-3.3-70B-Instruct",
        precision="fp8",
        tp=2,
        step_factor=1.08,
        ttft_extra_ms=4.2,
        samples=3,
        residual_log_sd=0.06,
        source="probe 1",
    )
    return {
        "user": user,
        "nodes": nodes,
        "workloads": workloads,
        "plan": plan,
        "other": other,
        "job": job,
        "deployments": deployments,
    }
