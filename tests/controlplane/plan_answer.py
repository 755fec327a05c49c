"""The answer to the scenario of ``plan_fixture``: candidates, verdicts and placements that fit each other."""

from __future__ import annotations

from decimal import Decimal

from planner.engines.types import EngineName
from planner.evidence import Evidence, Interval
from planner.mix_types import Mix, MixFlip, MixPart, MixRival
from planner.plan_types import Baseline, Candidate, EnginePlan, Placement, PlanResult, StrandedReport, Unplaced
from planner.verdict_types import FlipPoint, RuleOfThumb, Verdict
from tests.controlplane.plan_fixture import PRICES, WORKLOADS, candidate, nodes, refused

_V, _T = EngineName.VLLM, EngineName.TENSORRT_LLM


def _candidates() -> tuple[Candidate, ...]:
    code, chat, agent, docs, embed, batch = WORKLOADS
    rows = [
        candidate(
            code, _T, "H100-SXM5-80GB", 2, "fp8", weights_gib=16.4, replicas=3, ttft_ms=142, tpot_ms=9.8, rate=8.6
        ),
        candidate(
            code, _V, "H100-SXM5-80GB", 2, "fp8", weights_gib=16.4, replicas=4, ttft_ms=171, tpot_ms=11.2, rate=7.1
        ),
        candidate(
            code, _V, "H200-SXM-141GB", 2, "fp8", weights_gib=16.4, replicas=3, ttft_ms=166, tpot_ms=9.1, rate=8.8
        ),
        candidate(
            code, _T, "H200-SXM-141GB", 2, "fp8", weights_gib=16.4, replicas=3, ttft_ms=139, tpot_ms=8.2, rate=9.9
        ),
        candidate(
            code,
            _V,
            "L40S",
            4,
            "fp8",
            weights_gib=8.2,
            replicas=5,
            ttft_ms=344,
            tpot_ms=21.8,
            rate=5.0,
            evidence=Evidence.EXTRAPOLATED,
        ),
        candidate(
            chat, _V, "H200-SXM-141GB", 2, "fp8", weights_gib=33.9, replicas=3, ttft_ms=312, tpot_ms=23.6, rate=3.4
        ),
        candidate(
            chat, _T, "H200-SXM-141GB", 2, "fp8", weights_gib=33.9, replicas=3, ttft_ms=288, tpot_ms=22.4, rate=3.5
        ),
        candidate(
            chat, _V, "H100-SXM5-80GB", 4, "fp8", weights_gib=17.0, replicas=3, ttft_ms=270, tpot_ms=17.9, rate=4.2
        ),
        candidate(
            chat,
            _V,
            "MI300X",
            1,
            "bf16",
            weights_gib=131.6,
            replicas=6,
            ttft_ms=640,
            tpot_ms=41.0,
            rate=1.6,
            evidence=Evidence.ROOFLINE,
        ),
        candidate(
            agent, _V, "H100-SXM5-80GB", 2, "fp8", weights_gib=16.8, replicas=4, ttft_ms=880, tpot_ms=17.4, rate=1.6
        ),
        candidate(
            agent, _T, "H100-SXM5-80GB", 4, "fp8", weights_gib=8.4, replicas=3, ttft_ms=690, tpot_ms=13.1, rate=1.9
        ),
        candidate(
            agent,
            _V,
            "MI300X",
            1,
            "bf16",
            weights_gib=61.2,
            replicas=5,
            ttft_ms=1490,
            tpot_ms=27.3,
            rate=1.2,
            evidence=Evidence.ROOFLINE,
        ),
        candidate(
            docs,
            _V,
            "L40S",
            4,
            "fp8",
            weights_gib=5.9,
            replicas=2,
            ttft_ms=2110,
            tpot_ms=29.5,
            rate=0.9,
            evidence=Evidence.EXTRAPOLATED,
        ),
        candidate(
            docs,
            _T,
            "L40S",
            4,
            "fp8",
            weights_gib=5.9,
            replicas=2,
            ttft_ms=1930,
            tpot_ms=30.9,
            rate=0.85,
            evidence=Evidence.EXTRAPOLATED,
        ),
        candidate(
            batch,
            _V,
            "L40S",
            1,
            "fp8",
            weights_gib=7.6,
            replicas=2,
            ttft_ms=96,
            tpot_ms=13.4,
            rate=38.0,
            evidence=Evidence.CALIBRATED,
        ),
        candidate(batch, _T, "L40S", 1, "fp8", weights_gib=7.6, replicas=2, ttft_ms=88, tpot_ms=13.1, rate=41.0),
        candidate(
            embed,
            _V,
            "A10",
            1,
            "fp16",
            weights_gib=1.1,
            replicas=2,
            ttft_ms=38,
            tpot_ms=None,
            rate=74.0,
            evidence=Evidence.ROOFLINE,
        ),
        refused(code, _T, "MI300X", "unsupported", "TensorRT-LLM runs on NVIDIA GPUs only."),
        refused(
            code, _V, "A10", "infeasible", "Weights take 61.2 GiB; an A10 has 22.1 GiB. Needs TP 4, this node has 2."
        ),
        refused(chat, _T, "L40S", "infeasible", "At TP 4 the KV cache would get −2.4 GiB; needs 8 GPUs in one node."),
        refused(
            docs, _V, "B200-SXM", "no_data", "No data for this model in FP4 on B200, and no roofline for its kernels."
        ),
        refused(embed, _T, "A10", "unsupported", "TensorRT-LLM does not serve embedding models."),
    ]
    return tuple(rows)


def _placements(candidates: tuple[Candidate, ...], chosen: tuple[str, ...]) -> tuple[Placement, ...]:
    free = {node.name: list(range(node.gpus)) for node in nodes() if node.state == "active"}
    by_gpu: dict[str, list[str]] = {}
    for node in nodes():
        if node.state == "active":
            by_gpu.setdefault(node.gpu, []).append(node.name)
    placed = []
    by_id = {c.id: c for c in candidates}
    for key in chosen:
        c = by_id[key]
        for replica in range(c.replicas):
            name = next(n for n in by_gpu[c.gpu] if len(free[n]) >= c.gpus_per_replica)
            taken, free[name] = free[name][: c.gpus_per_replica], free[name][c.gpus_per_replica :]
            placed.append(Placement(c.workload, c.id, replica, name, tuple(taken)))
    return tuple(placed)


def hybrid(candidates: tuple[Candidate, ...]) -> Mix:
    """Both engines for the first workload, on H100: two replicas of TensorRT-LLM, two of vLLM."""
    parts = []
    for c, share, weight in zip(candidates[:2], (0.56, 0.44), (10_000, 7_857), strict=True):
        assert c.settings is not None
        assert c.performance is not None
        parts.append(
            MixPart(
                c.id, c.settings.engine.value, c.gpu, 2, 2 * c.gpus_per_replica, 2 * c.replica_rate_per_s / 24, share,
                weight, c.performance, Decimal("2920.00"),
            )
        )  # fmt: skip
    flip = MixFlip("request rate", "req/s", 24.0, 30.0, (0.8, 720.0), "From a request rate of 30 req/s it is cheaper.")
    rivals = (
        MixRival(
            "vllm", ((candidates[1].id, 4),), 1.0, candidates[1].performance, Decimal("5840.00"), Decimal("1.40"),
            Interval(0.0, -0.12, 0.1), True, (flip,),
        ),
        MixRival("tensorrt_llm", reason="TensorRT-LLM alone carries 80 % of it here."),
    )  # fmt: skip
    whole = candidates[0].performance
    assert whole is not None
    return Mix(
        "code-completion", False, 1.0, tuple(parts), "latency", 0.41, 0.44, 0.9, whole, Decimal("5840.00"),
        Decimal("1.40"), (Decimal("1.20"), Decimal("1.70")), rivals, "unsettled",
        "The cheapest hybrid of both engines, which the plan does not take, is as dear as vLLM alone (−12 to 10 %).",
    )  # fmt: skip


def engine_plans(usd: Decimal) -> tuple[EnginePlan, ...]:
    """The plan as chosen, all vLLM, and all TensorRT-LLM, which cannot serve the embedding model."""
    left = Unplaced("embed-search", 2, "no engine can serve it on these GPUs (unsupported)", "Allow another engine.")
    return (
        EnginePlan("", "optimal", usd, usd * 730, 0.0, 24, 0, 0.96),
        EnginePlan(
            "vllm", "optimal", usd, usd * 795, 0.0, 26, 0, 0.96, saving=Interval(0.08, -0.02, 0.2), too_close=True
        ),
        EnginePlan("tensorrt_llm", "feasible", usd, usd * 700, 0.004, 22, 0, 0.8, (left,)),
    )


def plan_result() -> PlanResult:
    """The answer."""
    made = _candidates()
    ids = {c.id.split("/", 1)[0]: [x.id for x in made if x.workload == c.workload and x.status == "ok"] for c in made}
    chosen = tuple(ids[w.name][0] for w in WORKLOADS)
    verdicts = (
        Verdict(
            "code-completion",
            chosen[0],
            ids["code-completion"][1],
            "tensorrt_llm",
            Interval(0.24, 0.12, 0.33),
            False,
            "TensorRT-LLM is 24 % cheaper here (12–33 %). Below 14 req/s the answer flips.",
            (
                "Its TTFT of 142 ms leaves room for a third more requests per replica within 400 ms.",
                "Three replicas carry 24 req/s; vLLM needs four.",
                "One revision a month costs 9 minutes of warm-up.",
            ),
            (
                FlipPoint("rate_per_s", "req/s", 24.0, 14.0, (1.0, 200.0), "Below 14 req/s vLLM is cheaper."),
                FlipPoint(
                    "revisions_per_month", "", 1.0, 44.0, (0.0, 200.0), "Above 44 revisions a month vLLM is cheaper."
                ),
            ),
        ),
        Verdict(
            "support-chat",
            chosen[1],
            ids["support-chat"][1],
            "vllm",
            Interval(0.006, -0.06, 0.08),
            True,
            "Too close to call: vLLM is 0.6 % cheaper (−6 to 8 %). Probe both at 3.4 req/s to settle it.",
            ("Both need three replicas of two H200.", "TensorRT-LLM answers 8 % sooner; the SLO does not ask for it."),
            (
                FlipPoint(
                    "prefix_hit",
                    "share",
                    0.46,
                    0.31,
                    (0.0, 0.95),
                    "Below a prefix hit of 31 % TensorRT-LLM is cheaper.",
                ),
            ),
            "Probe both engines on one H200 pair at 3.4 req/s for 6 minutes.",
        ),
        Verdict(
            "agent-tools",
            chosen[2],
            ids["agent-tools"][1],
            "vllm",
            Interval(0.34, 0.21, 0.44),
            False,
            "vLLM is 34 % cheaper here (21–44 %). No searched value flips it.",
            (
                "40 adapters change 12 times a month; vLLM loads them without a rebuild.",
                "TensorRT-LLM needs TP 4 for the same context.",
            ),
            (FlipPoint("adapters", "", 40.0, None, (0.0, 200.0), "No number of adapters up to 200 flips it."),),
        ),
        Verdict(
            "summarise-docs",
            chosen[3],
            ids["summarise-docs"][1],
            "vllm",
            Interval(0.02, -0.09, 0.13),
            True,
            "Too close to call: vLLM is 2 % cheaper (−9 to 13 %).",
            ("Rests on extrapolated prefill times above 16,384 tokens.",),
            (),
            "Probe vLLM at 0.9 req/s with 28,000 tokens.",
        ),
        Verdict(
            "classify-batch",
            chosen[5],
            ids["classify-batch"][1],
            "vllm",
            Interval(0.05, 0.01, 0.09),
            False,
            "vLLM is 5 % cheaper here (1–9 %): both need two L40S, and it has no build to run.",
            ("Calibrated by three probes on this node type.",),
        ),
        Verdict(
            "embed-search",
            chosen[4],
            None,
            "vllm",
            None,
            False,
            "vLLM only: TensorRT-LLM does not serve embedding models.",
            ("Rests on the roofline of the A10.",),
        ),
    )
    placements = _placements(made, chosen)
    by_id = {c.id: c for c in made}
    usd = sum((Decimal(PRICES[by_id[key].gpu]) * by_id[key].gpus for key in chosen), Decimal(0))
    owned = sum((node.price.usd_per_gpu_hour * node.gpus for node in nodes() if node.state == "active"), Decimal(0))
    return PlanResult(
        request_name="Both sites, December",
        model_version="0.1.0",
        status="optimal",
        objective_usd_per_hour=usd,
        bound_usd_per_hour=usd,
        gap=0.0,
        solve_s=3.41,
        candidates=made,
        verdicts=verdicts,
        placements=placements,
        unplaced=(
            Unplaced(
                "support-chat",
                1,
                "N+1 asks for a spare pair of H200 in another rack; none is free.",
                "Let the spare share a rack, or free 2 GPUs of osl-h200-02.",
            ),
        ),
        usd_per_hour=usd,
        idle_usd_per_hour=owned - usd,
        stranded_before=StrandedReport(108, 4.0, {}, 8),
        stranded_after=StrandedReport(80, 3.0, {"fra-l40s-03": 1.0, "fra-l40s-04": 2.0}, 8),
        moves=0,
        notes=("H100 prices are catalogue rental prices; a cost of ownership would be more exact.",),
        baselines=(
            Baseline("Best fit", usd * Decimal("1.12"), 1, 0.97),
            Baseline("First fit decreasing", usd * Decimal("1.09"), 0, 1.0),
        ),
        engine_plans=engine_plans(usd),
        mixes=(hybrid(made),),
        rules=(
            RuleOfThumb(
                "ttft-hopper",
                "TensorRT-LLM answers sooner on Hopper",
                "confirmed",
                "In 4 of 4 pairs on H100 and H200 its TTFT is lower, by 8 to 17 %.",
                (("code-completion on H100-SXM5-80GB", 0.17), ("support-chat on H200-SXM-141GB", 0.08)),
            ),
            RuleOfThumb(
                "density-128",
                "Past 128 streams TensorRT-LLM packs more per GPU",
                "not_testable",
                "No workload holds 128 streams on one replica.",
            ),
            RuleOfThumb(
                "lora-agility",
                "vLLM is the better home for many adapters",
                "confirmed",
                "With 40 adapters vLLM is 34 % cheaper on agent-tools.",
                (("agent-tools", 0.34),),
            ),
        ),
        router_config="model_list:\n  - model_name: support-chat\n",
    )
