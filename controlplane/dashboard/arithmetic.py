"""The arithmetic behind a figure: formula, what was put in, what came out, how it is known, and where it comes from.

Everything is read from a plan's snapshot. Where the result can be computed again from the lines it is, so that a page
shows when a snapshot and its arithmetic part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from controlplane.dashboard import fmt, planrow
from controlplane.dashboard.planrow import Json
from planner.units import HOURS_PER_MONTH

Band = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Term:
    """One line that goes in: its symbol in the formula, what it is, its value, and where it comes from."""

    word: str
    value: Any
    unit: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        """The value with its unit, exact to six decimals where it is a number; an amount begins with its currency."""
        if fmt.as_float(self.value) is None:
            return f"{self.value} {self.unit}".strip()
        shown = fmt.exact(self.value)
        if not self.unit.startswith(fmt.sign()):
            return f"{shown} {self.unit}".strip()
        whole, _, cents = shown.partition(".")
        return f"{fmt.sign()}{whole}{f'.{cents:0<2}' if cents else ''}{self.unit.removeprefix(fmt.sign())}"


@dataclass(frozen=True, slots=True)
class Working:
    """How one figure came about. ``again`` is the result of the lines; None where that takes a simulation."""

    key: str
    title: str
    value: Any
    unit: str
    formula: str
    terms: tuple[Term, ...]
    evidence: str = ""
    band: Band = (None, None)
    source: str = ""
    again: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the lines give the figure (to a thousandth, or a cent); None where they cannot be computed again."""
        value = fmt.as_float(self.value)
        if self.again is None or value is None:
            return None
        return abs(self.again - value) <= max(1e-3 * abs(value), 0.011 if self.unit.startswith(fmt.sign()) else 1e-6)


_LEDGER = {
    "weights_gib": "Weights", "activation_gib": "Activation", "graph_gib": "CUDA graphs",
    "non_torch_gib": "Outside PyTorch", "lora_gib": "Adapters",
}  # fmt: skip


def of_candidate(request: Json, candidate: Json) -> list[Working]:
    """Every figure of a candidate that can be opened, in the order in which they build on each other.

    None of one that its engine does not support: there is no figure of it.
    """
    if candidate.get("status") == "unsupported":
        return []
    makers: tuple[Callable[[Json, Json], Working | None], ...] = (
        _memory, _rate, _replicas, _ttft, _tpot, _output, _price, _month, _per_token,
    )  # fmt: skip
    made = (make(request, candidate) for make in makers)
    return [working for working in made if working is not None]


def of_plan(request: Json, result: Json) -> list[Working]:
    """The totals of a plan: cost of the placed GPUs, idle GPUs, stranded GPUs, gap."""
    nodes = {n["name"]: n for n in (*request.get("nodes", ()), *result.get("purchased_nodes", ()))}
    placed: dict[str, int] = {}
    whole = all(item.get("sharers", 1) == 1 and not item.get("slice_profile") for item in result["placements"])
    for item in result["placements"]:
        placed[item["node"]] = placed.get(item["node"], 0) + len(item["gpu_indexes"])
    kinds: dict[tuple[str, str, str], int] = {}
    for name, gpus in placed.items():
        price = nodes[name]["price"]
        key = (nodes[name]["gpu"], str(price["usd_per_gpu_hour"]), price["source"])
        kinds[key] = kinds.get(key, 0) + gpus
    terms = [
        Term(f"{count} × {gpu}", Decimal(usd), fmt.per("GPU-h"), source) for (gpu, usd, source), count in kinds.items()
    ]
    total = sum(float(usd) * count for (_, usd, _), count in kinds.items())
    stranded, gap = result["stranded_after"], result["gap"]
    made = [
        Working(
            "usd_per_hour", "Cost of the placed GPUs", result["usd_per_hour"], fmt.per("h"),
            "sum over the placed GPUs of their price per hour", tuple(terms), again=total if whole else None,
            source="" if whole else "Of shared and sliced GPUs only the parts in use count.",
        ),
        Working(
            "idle_usd_per_hour", "Cost of idle GPUs", result["idle_usd_per_hour"], fmt.per("h"),
            "sum over active and bought GPUs that neither this plan nor others use of their price per hour",
            (Term("GPUs free", stranded["free_gpus"]),),
        ),
        Working(
            "stranded", "Stranded GPUs", stranded["stranded_gpus"], "GPUs",
            "sum over nodes of the free GPUs that a shape drawn from the workload mix cannot take, weighted by the mix",
            (
                Term("GPUs free", stranded["free_gpus"]), Term("Largest free block", stranded["largest_free_block"]),
                *(Term(node, gpus, "GPUs stranded") for node, gpus in list(stranded["by_node"].items())[:12] if gpus),
            ),
            source="Fragmentation gradient descent (Weng et al., USENIX ATC 2023): the expectation over the mix.",
            again=sum(stranded["by_node"].values()) if stranded["by_node"] else None,
        ),
        Working(
            "gap", "Distance from the bound", 100 * gap, "%", "(objective − bound) / objective",
            (
                Term("Objective", result["objective_usd_per_hour"], fmt.per("h"), "placed GPUs and their operation"),
                Term("Bound", result["bound_usd_per_hour"], fmt.per("h"), "no plan costs less: the solver proves it"),
            ),
            again=_gap(result),
        ),
    ]  # fmt: skip
    return made


def _gap(result: Json) -> float | None:
    objective, bound = float(result["objective_usd_per_hour"]), float(result["bound_usd_per_hour"])
    return None if objective <= 0 else 100 * (objective - bound) / objective


def margin(row: planrow.WorkloadRow) -> Working | None:
    """How the verdict's margin came about: both bills an hour at whole replicas."""
    found = row.verdict.get("margin")
    if not found or row.chosen is None or row.other is None:
        return None
    bills = [float(m["usd_per_hour"]) for m in (row.verdict.get("tornado") or ())[:1]]
    names = [f"{fmt.engine_label(planrow.engine_of(c))}, {c['replicas']} replicas" for c in (row.chosen, row.other)]
    terms = [Term(names[0], bills[0], fmt.per("h"))] if bills else []
    if bills and found["value"] != 1:
        terms.append(Term(names[1], bills[0] / (1 - found["value"]), fmt.per("h")))
    for word, candidate in (("Chosen", row.chosen), ("Runner-up", row.other)):
        band = candidate.get("replica_rate_80")
        if band:
            low, high = fmt.sig(band["low"]), fmt.sig(band["high"])
            terms.append(Term(f"{word}: a replica carries", f"{fmt.sig(band['value'])} ({low}–{high})", "req/s"))
    return Working(
        "margin", "Margin", 100 * found["value"], "%", "(cost of runner-up − cost of choice) / cost of runner-up",
        tuple(terms), evidence=row.chosen.get("evidence", ""), band=(100 * found["low"], 100 * found["high"]),
        source="The band prices both engines over the 80 % bands of what a replica carries, taken as independent, "
        "with whole replicas.",
    )  # fmt: skip


def _memory(request: Json, candidate: Json) -> Working | None:
    ledger = candidate.get("memory")
    if not ledger:
        return None
    inside = [key for key in _LEDGER if key != "graph_gib" or ledger.get("graph_in_budget", True)]
    terms = [
        Term("Memory of the GPU", ledger["total_gib"], "GiB", candidate["gpu"]),
        Term("Budget of the engine", ledger["budget_gib"], "GiB", "what it allows itself of it"),
        *(Term(f"− {_LEDGER[key]}", ledger[key], "GiB") for key in inside if ledger.get(key)),
        Term("Blocks", ledger.get("kv_blocks"), f"of {ledger.get('block_tokens')} tokens"),
        Term("Full-length requests at once", ledger.get("max_concurrency")),
    ]
    band = ledger.get("kv_gib_80") or {}
    plain = planrow.engine_of(candidate) == "vllm" and not ledger.get("pool_limit")
    rest = float(ledger["budget_gib"]) - sum(float(ledger.get(key) or 0) for key in inside)
    return Working(
        "memory", "KV cache of one decode GPU" if candidate.get("disagg") else "KV cache of one GPU", ledger["kv_gib"],
        "GiB", "budget − weights − activation − graphs − rest", tuple(terms),
        evidence=ledger.get("evidence", ""), band=(band.get("low"), band.get("high")), again=rest if plain else None,
        source="The rule of the engine in that version; the page Memory shows each flag.",
    )  # fmt: skip


def _rate(request: Json, candidate: Json) -> Working | None:
    if not candidate.get("replica_rate_per_s"):
        return None
    workload = _workload(request, candidate)
    terms = [
        Term("Demand of all replicas", planrow.load_words(workload.get("load") or {})),
        Term("Input, mean", planrow.expected(workload.get("input_tokens")), "tokens"),
        Term("Output, mean", planrow.expected(workload.get("output_tokens")), "tokens"),
        Term("Objectives", ", ".join(map(planrow.slo_word, workload.get("slo", ()))) or "none"),
        Term("Share of the demand", candidate["replica_share"], "", "that one replica carries"),
    ]
    terms += [Term("Note", reason) for reason in candidate.get("reasons", ())]
    band = candidate.get("replica_rate_80") or {}
    return Working(
        "rate", "What one replica carries", candidate["replica_rate_per_s"], "req/s",
        "largest load at which every objective holds, by bisection over simulated runs", tuple(terms),
        evidence=candidate["evidence"], band=(band.get("low"), band.get("high")),
        source=fmt.EVIDENCE_MEANING[candidate["evidence"]],
    )  # fmt: skip


def _replicas(request: Json, candidate: Json) -> Working | None:
    share = candidate.get("replica_share")
    if not share:
        return None
    spare = bool(_workload(request, candidate).get("n_plus_1"))
    needed = -int(-(1 / share - 1e-9) // 1) + spare
    terms = [
        Term("Share that one carries", share, "", "what one carries / demand"),
        Term("One to spare", "yes" if spare else "no"),
        Term("GPUs a replica", candidate["gpus_per_replica"]),
    ]
    return Working(
        "replicas", "Replicas", candidate["replicas"], "", "1 / share, rounded up" + (", and one to spare" * spare),
        tuple(terms), evidence=candidate["evidence"], again=float(needed),
    )  # fmt: skip


def _latency(candidate: Json, key: str, word: str, formula: str, *more: Term) -> Working | None:
    performance = candidate.get("performance") or {}
    band = performance.get(f"{key}_ms_80")
    if not band:
        return None
    spread = performance[f"{key}_ms"]
    terms = [Term(stat, spread[stat], "ms") for stat in ("mean", "p50", "p90", "p95", "p99")]
    batch = "of the decode pool" if candidate.get("disagg") else ""
    terms += [
        *more,
        Term("Mean batch", performance["mean_batch"], "requests", batch),
        Term("Load", performance.get("load_region") or "unknown", "", "the band is of errors at such loads"),
    ]
    return Working(
        key, f"{word} p50", band["value"], "ms", formula, tuple(terms), evidence=candidate["evidence"],
        band=(band["low"], band["high"]), source=fmt.EVIDENCE_MEANING[candidate["evidence"]],
    )  # fmt: skip


def _ttft(request: Json, candidate: Json) -> Working | None:
    pools = candidate.get("disagg")
    if not pools:
        return _latency(
            candidate, "ttft", "TTFT", "queue + prefill steps + front end, of each simulated request; the median"
        )
    way = {"nvlink": "NVLink", "pcie": "PCIe", "network": "the network"}[pools["link"]]
    moved = Term("Transfer, mean", pools["transfer_ms"], "ms", f"of the KV cache over {way}, waiting for it included")
    return _latency(
        candidate, "ttft", "TTFT",
        "queue + prefill steps + front end + transfer + wait for decode, of each simulated request; the median", moved,
    )  # fmt: skip


def _tpot(request: Json, candidate: Json) -> Working | None:
    return _latency(
        candidate, "tpot", "TPOT", "(E2E − TTFT) / (output tokens − 1), of each simulated request; the median"
    )


def _output(request: Json, candidate: Json) -> Working | None:
    performance = candidate.get("performance")
    if not performance or not performance["output_tok_per_s"]:
        return None
    band = performance["output_tok_per_s_80"]
    tokens = planrow.expected(_workload(request, candidate).get("output_tokens")) or 0.0
    terms = (
        Term("Requests", performance["req_per_s"], "req/s", "of all replicas, at the planned load"),
        Term("Output, mean asked", tokens, "tokens"),
        Term("Replicas", candidate["replicas"]),
        Term("KV in use", fmt.percent(performance["mean_kv_used"])),
        Term("Busy", fmt.percent(performance["utilisation"])),
    )
    return Working(
        "output", "Output", performance["output_tok_per_s"], "tok/s", "output tokens / duration of the simulated run",
        terms, evidence=candidate["evidence"], band=(band["low"], band["high"]),
    )  # fmt: skip


def _price(request: Json, candidate: Json) -> Working | None:
    options = [option["node"] for option in request.get("purchase_options", ())]
    prices = [n["price"] for n in (*request.get("nodes", ()), *options) if n["gpu"] == candidate["gpu"]]
    if not prices:
        return None
    price = min(prices, key=lambda item: Decimal(str(item["usd_per_gpu_hour"])))
    parts = tuple(
        Term(label.capitalize(), Decimal(str(usd)), fmt.per("GPU-h")) for label, usd in price.get("parts", ())
    )
    return Working(
        "price", f"Price of {candidate['gpu']}", price["usd_per_gpu_hour"], fmt.per("GPU-h"),
        "sum of the parts" if parts else "as stated", parts or (Term("Basis", price["basis"]),), source=price["source"],
        again=sum(float(term.value) for term in parts) if parts else None,
    )  # fmt: skip


def _month(request: Json, candidate: Json) -> Working | None:
    cost = candidate.get("cost")
    if not cost:
        return None
    parts = tuple(
        Term(label[:1].upper() + label[1:], Decimal(str(usd)), fmt.per("month")) for label, usd in cost["parts"]
    )
    hours = fmt.sig(_workload(request, candidate).get("hours_per_month", HOURS_PER_MONTH))
    made_of = f"{candidate['replicas']} × {candidate['gpus_per_replica']} GPUs × {hours} h"
    used = Term("GPU-hours", float(cost["gpu_hours_per_month"]), "a month", made_of)
    return Working(
        "month", "Bill of a month", cost["usd_per_month"], fmt.per("month"), "sum of the parts", (used, *parts),
        evidence=candidate["evidence"], again=sum(float(term.value) for term in parts),
        source="Carried load and idle head-room divide the GPU bill by mean load / what the replicas could carry.",
    )  # fmt: skip


def _per_token(request: Json, candidate: Json) -> Working | None:
    cost = candidate.get("cost")
    if not cost:
        return None
    output = cost.get("usd_per_mtok_output")
    tokens = Decimal(str(cost["mtok_output_per_month"] if output is not None else cost["mtok_input_per_month"]))
    kind = "output" if output is not None else "input"
    value = output if output is not None else cost.get("usd_per_mtok_input")
    if value is None:
        return None
    band = cost.get("usd_per_mtok_output_80") or (None, None)
    return Working(
        "cost", f"Cost per million {kind} tokens", value, fmt.per("M tok"),
        f"bill of a month / million {kind} tokens of it",
        (
            Term("Bill of a month", Decimal(str(cost["usd_per_month"])), fmt.sign()),
            Term(f"{kind.capitalize()} tokens", tokens, "M / month", "mean demand × seconds × mean length"),
        ),
        evidence=candidate["evidence"], band=(fmt.as_float(band[0]), fmt.as_float(band[1])),
        again=float(Decimal(str(cost["usd_per_month"])) / tokens) if tokens > 0 else None,
        source="The whole bill over one kind of token, idle included; the band is that of what a replica carries.",
    )  # fmt: skip


def _workload(request: Json, candidate: Json) -> Json:
    return next((w for w in request.get("workloads", ()) if w["name"] == candidate["workload"]), {})
