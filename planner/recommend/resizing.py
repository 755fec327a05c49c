"""The cheapest candidates of both engines, sized again for a workload that differs in lengths, adapters or users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.catalog import get_model
from planner.engines.disaggregation import refusals
from planner.errors import PlannerError
from planner.placement.candidates import gpu_of_nodes
from planner.placement.disaggregation import deployed
from planner.placement.pools import unit_size
from planner.placement.sharing import on_share
from planner.placement.sizing import expected, instance, size
from planner.plan_types import Candidate, PlanRequest, PlanWorkload
from planner.recommend.costing import Change, best_of
from planner.recommend.preference import engine_of
from planner.serving.disaggregated import Disaggregated
from planner.serving.instance import Instance
from planner.serving.sessions import longest_prompt
from planner.serving.types import Lengths
from planner.words import ENGINE_LABEL

SIMULATED_CANDIDATES = 2  # of each engine, the cheapest ones

Times = Mapping[str, float]
"""What a replica carries / what Little's law expects of it, by candidate: it changes little with lengths or adapters,
so that the next search begins near its end.
"""

Instances = Mapping[str, Instance | Disaggregated | None]


def times_expected(candidates: Sequence[Candidate], instances: Instances, workload: PlanWorkload) -> dict[str, float]:
    """How many times what is expected of it each of ``candidates`` carries of ``workload``."""
    found = {}
    for candidate in candidates:
        made = instances[candidate.id]
        by_law = expected(made, workload, workload.output_tokens) if isinstance(made, Instance) else 0.0
        if by_law > 0:
            closed = workload.load.kind == "closed"
            carried = candidate.replica_share * workload.load.concurrency if closed else candidate.replica_rate_per_s
            found[candidate.id] = carried / by_law
    return found


def cheapest_of_each(usable: Sequence[Candidate], workload: PlanWorkload, request: PlanRequest) -> list[Candidate]:
    """The cheapest candidates of each engine, those to simulate again."""
    found = []
    for engine in ENGINE_LABEL:
        own = [c for c in usable if engine_of(c) == engine]
        for _ in range(min(SIMULATED_CANDIDATES, len(own))):
            best = best_of(own, workload, request, Change())
            if best is not None:
                found.append(best[1])
                own.remove(best[1])
    return found


def redeployed(workload: PlanWorkload, candidate: Candidate, request: PlanRequest) -> Instance | Disaggregated:
    """What a replica of ``candidate`` runs, made again."""
    return deployed(candidate, get_model(workload.model), gpu_of_nodes(candidate.gpu, request.nodes), request)


def adapted(
    made: Instance | Disaggregated, count: int, candidate: Candidate, workload: PlanWorkload, request: PlanRequest
) -> Instance | Disaggregated | None:
    """``made`` with ``count`` adapters in a batch; None where pools cannot serve adapters."""
    gpu = gpu_of_nodes(candidate.gpu, request.nodes)

    def changed(one: Instance) -> Instance:
        resolved = replace(one.resolved, max_loras=count, max_lora_rank=workload.adapter_rank)
        return on_share(instance(one.model, gpu, resolved, request), gpu, candidate.sharers)

    if isinstance(made, Instance):
        return changed(made)
    unit = replace(made, prefill=changed(made.prefill), decode=changed(made.decode))
    refused = refusals(unit.decode.model, gpu, unit.prefill.resolved, unit.decode.resolved)
    return None if refused else unit


def lengthened(
    made: Instance | Disaggregated, candidate: Candidate, workload: PlanWorkload, request: PlanRequest
) -> Instance | Disaggregated:
    """``made`` with room in a step for the longest prompt of ``workload``, as an operator has to give it where prompts
    are not cut into chunks.
    """
    if not isinstance(made, Instance) or made.resolved.enable_chunked_prefill:
        return made
    longest = longest_prompt(workload.load, workload.input_tokens, workload.output_tokens)
    needed = min(longest, made.resolved.max_model_len)
    if needed <= made.resolved.max_num_batched_tokens:
        return made
    gpu = gpu_of_nodes(candidate.gpu, request.nodes)
    resolved = replace(made.resolved, max_num_batched_tokens=needed)
    return on_share(instance(made.model, gpu, resolved, request), gpu, candidate.sharers)


def resized(
    top: Sequence[Candidate],
    instances: Instances,
    workload: PlanWorkload,
    request: PlanRequest,
    times: Times | None = None,
) -> list[Candidate]:
    """The candidates with what they carry of the changed workload; those that no longer fit are left out.

    ``times``: about how many times what is expected of it each may carry, where that is known.
    """
    found = []
    outputs = workload.output_tokens
    if get_model(workload.model).task != "generate":
        outputs = Lengths("fixed", value=1)
    for candidate in top:
        made = instances[candidate.id]
        if made is None:
            continue
        try:
            if isinstance(made, Disaggregated):
                sized = unit_size(made, workload, request.seed)
            elif made.memory.fits:
                known = (times or {}).get(candidate.id, 0.0)
                near = known * expected(made, workload, outputs) if known > 0 else 0.0
                sized = size(made, workload, outputs, request.seed, near)
            else:
                continue
        except PlannerError:
            continue
        if sized.share > 0:
            found.append(replace(candidate, replica_share=sized.share, replica_rate_per_s=sized.rate_per_s))
    return found
