"""Estimates of prefill and decode pools: a request with ``disagg``.

Every role's support and memory is checked before anything is predicted, so that no figure is shown of a unit of which
one role would not start.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from planner.catalog.types import GpuSpec
from planner.economics import unit_costs
from planner.economics.poolenergy import pool_watts
from planner.engines import EngineName, ResolvedSettings, support
from planner.engines.disaggregation import ROLES, Role, refusals, role_settings
from planner.estimate_answer import cost_answer, memory_answer, perf_answer, rounded
from planner.estimate_notes import changes_nothing, kernel_note
from planner.estimate_request import PoolsQuery, naming_role
from planner.memory import MAY_BE_MISSING, MemoryLedger, ledger, remarks_of
from planner.serving.disaggregated import Disaggregated, PoolUse
from planner.serving.disaggregated_sizing import predict_disaggregated
from planner.serving.instance import Instance
from planner.serving.kv_transfer import Link, link_across_nodes, link_within_node
from planner.serving.sessions import longest_prompt, mean_prompt
from planner.serving.types import Performance
from planner.steptime import Fabric, build
from planner.units import MIB

NODE_GPUS = 8
"""GPUs that are taken to stand in one node when the request does not say."""


def answer_pools(query: PoolsQuery, answer: dict[str, Any]) -> None:
    """Fill ``answer``; ``memory`` is the decode role's, both roles' stand in ``disagg``.

    Raises UnsupportedError when the engine or the data cannot serve it, InfeasibleError when a request never fits.
    """
    checked = _checked(query, answer)
    if answer["status"] != "ok":
        return
    decode = query.roles["decode"][0]
    against = refusals(decode.model, decode.gpu, *(checked[role][0] for role in ROLES))
    if against:
        answer["status"] = "unsupported"
        answer["reasons"] = [*against, *answer["reasons"]]
        return
    answer["reasons"] += changes_nothing(decode, checked["decode"][0], pools=True)
    if decode.load is None or decode.inputs is None or decode.outputs is None:
        return
    instances = {}
    for role in ROLES:
        asked, (resolved, memory) = query.roles[role][0], checked[role]
        instances[role] = Instance(
            asked.model, resolved, memory, build(asked.model, asked.gpu, resolved, fabric=asked.fabric)
        )
    counts = {role: query.roles[role][1] for role in ROLES}
    gpus = sum(instances[role].resolved.gpus * counts[role] for role in ROLES)
    link = _link(decode.gpu, gpus, decode.fabric, query.link_gb_s)
    unit = Disaggregated(instances["prefill"], instances["decode"], counts["prefill"], counts["decode"], link)
    performance, use = predict_disaggregated(unit, decode.load, decode.inputs, decode.outputs, seed=decode.seed)
    answer["perf"] = perf_answer(performance)
    answer["evidence"] = performance.evidence.value
    notes = dict.fromkeys(f"{role}: {note}" for role in ROLES for note in instances[role].step.notes)
    answer["reasons"] += [*decode.model.assumed, *notes]
    for role in ROLES:
        query_of, (resolved, _) = query.roles[role][0], checked[role]
        answer["reasons"] += [f"{role}: {note}" for note in kernel_note(query_of, resolved, instances[role].step)]
    if performance.saturated:
        answer["reasons"].append("The rate is above what the pools carry: the queue grows without bound.")
    _describe(answer["disagg"], unit, use)
    context = mean_prompt(decode.load, decode.inputs, decode.outputs) + decode.outputs.expected / 2
    watts = pool_watts(decode.gpu, unit, performance, context_tokens=context)
    answer["power_w"] = None if watts is None else rounded(watts.mean * unit.gpus)
    by_role = (None, None) if watts is None else (watts.prefill * unit.prefill_gpus, watts.decode * unit.decode_gpus)
    for role, each in zip(ROLES, by_role, strict=True):
        answer["disagg"][role]["power_w"] = rounded(each)
    if decode.usd_per_gpu_hour is not None:
        answer["cost"] = cost_answer(decode.usd_per_gpu_hour * unit.gpus, performance)
        answer["cost"]["by_role"] = _cost_by_role(decode.usd_per_gpu_hour, unit, performance)


def _checked(query: PoolsQuery, answer: dict[str, Any]) -> dict[Role, tuple[ResolvedSettings, MemoryLedger]]:
    """Settings and memory of the roles that are supported; the answer's status says when one cannot run."""
    decode = query.roles["decode"][0]
    prompt = decode.inputs.longest if decode.inputs else None
    if decode.load is not None and decode.inputs and decode.outputs:
        prompt = longest_prompt(decode.load, decode.inputs, decode.outputs)
    expected = prompt + decode.outputs.longest if prompt and decode.outputs else None
    found: dict[Role, tuple[ResolvedSettings, MemoryLedger]] = {}
    answer["disagg"] = {}
    notes: list[str] = []
    for role in ROLES:
        asked, count = query.roles[role]
        with naming_role(role, query.stated[role]):
            able = support(asked.model, asked.gpu, asked.settings)
            if not able.ok:
                answer["status"] = "unsupported"
                answer["reasons"] += [f"{role}: {reason}" for reason in able.reasons]
                continue
            resolved = role_settings(
                asked.settings, asked.model, asked.gpu, role, expected_len=expected, longest_prompt=prompt
            )
            total, others = asked.gpu_memory_gib, asked.used_by_others_gib
            memory = ledger(asked.model, asked.gpu, resolved, total_gib=total, used_by_others_gib=others)
        said = [*able.warnings, *remarks_of(resolved, memory, others)]
        said += [MAY_BE_MISSING] * (MAY_BE_MISSING in memory.notes)
        if asked.settings.async_scheduling is not None and _without_overlap(role, resolved):
            said.append("async_scheduling changes nothing: context servers run without the overlap scheduler.")
        notes += [f"{role}: {note}" for note in said]
        answer["disagg"][role] = {
            "instances": count,
            "gpus": count * resolved.gpus,
            "max_model_len": resolved.max_model_len,
            "memory": memory_answer(memory),
        }
        if role == "decode":
            answer["memory"] = memory_answer(memory)
            answer["evidence"] = memory.evidence.value
        if not memory.fits:
            if answer["status"] == "ok":
                answer["status"] = "infeasible"
            answer["reasons"] += [f"{role}: {reason}" for reason in memory.reasons or ("It does not fit.",)]
        found[role] = resolved, memory
    answer["reasons"] += notes  # the cause before them
    return found


def _without_overlap(role: Role, resolved: ResolvedSettings) -> bool:
    return role == "prefill" and resolved.engine is EngineName.TENSORRT_LLM


def _link(gpu: GpuSpec, gpus: int, fabric: Fabric, stated: float | None) -> Link:
    """The link of a unit of ``gpus`` GPUs: inside a scale-up domain, a node, or over the network."""
    domain = gpu.scale_up_domain or 1
    inside = gpus <= (fabric.gpus_per_node or max(domain, NODE_GPUS))
    found = link_within_node(gpu, gpus, domain) if inside else link_across_nodes(fabric.network_gb_s)
    return found if stated is None else replace(found, gb_s=stated)


def _describe(answer: dict[str, Any], unit: Disaggregated, use: PoolUse) -> None:
    answer["prefill"]["utilisation"] = rounded(use.prefill_utilisation)
    answer["decode"]["utilisation"] = rounded(use.decode_utilisation)
    moved = unit.shipment.bytes_total(round(use.moved_tokens_mean), unit.decode.resolved.tp * unit.decode.resolved.pp)
    answer["transfer"] = {
        "link": unit.link.kind,
        "link_gb_s": rounded(unit.link.gb_s),
        "tokens_per_request": rounded(use.moved_tokens_mean),
        "mib_per_request": rounded(moved / MIB),
        "ms_mean": rounded(use.transfer_ms_mean),
        "link_utilisation": rounded(use.link_utilisation),
    }


def _cost_by_role(usd_per_gpu_hour: Decimal, unit: Disaggregated, performance: Performance) -> dict[str, Any]:
    """What each pool costs an hour; prefill's divided by the input tokens, decode's by the output tokens."""
    output = performance.output_tok_per_s
    first, second = usd_per_gpu_hour * unit.prefill_gpus, usd_per_gpu_hour * unit.decode_gpus
    per_input = unit_costs(first, performance.total_tok_per_s - output, 0.0)[0]
    per_output = unit_costs(second, 0.0, output)[1]
    return {
        "prefill": {
            "usd_per_hour": float(first),
            "usd_per_mtok_input": None if per_input is None else float(per_input),
        },
        "decode": {
            "usd_per_hour": float(second),
            "usd_per_mtok_output": None if per_output is None else float(per_output),
        },
    }
