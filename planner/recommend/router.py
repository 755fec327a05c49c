"""LiteLLM proxy configuration (``config.yaml``) that spreads each workload over the replicas of a plan.

Format: ``model_list`` entries of ``model_name`` and ``litellm_params`` (``model`` with the provider prefix ``openai/``
for any OpenAI-compatible server, ``api_base``, ``api_key``, ``weight``), ``router_settings`` with
``routing_strategy``; see docs.litellm.ai/docs/proxy/configs. Both engines speak the OpenAI API, so a hybrid plan needs
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from planner.catalog.models import model_name
from planner.mix_types import Mix
from planner.plan_types import Candidate, Placement, PlanRequest

FIRST_PORT = 8000
FIRST_SLICE_PORT = 9000
FIRST_SHARED_PORT = 10000
SHARES_OF_A_GPU = 8
RETRIES = 2


def endpoint_port(placement: Placement) -> int:
    """Port of a replica by convention: 8000 plus its first GPU, so that replicas on one node do not collide.

    On a slice 9000 plus the number of the slice, on a shared GPU 10000 plus eight times the GPU plus the slot.
    """
    if placement.slice_profile:
        return FIRST_SLICE_PORT + placement.slice_index
    if placement.sharers > 1:
        return FIRST_SHARED_PORT + SHARES_OF_A_GPU * placement.gpu_indexes[0] + placement.slot
    return FIRST_PORT + min(placement.gpu_indexes)


def endpoint_weights(candidates: Sequence[Candidate], mixes: Sequence[Mix]) -> dict[str, int]:
    """Weight of one replica of each candidate among those of its workload: as the mix placed was predicted with, else
    what a replica carries of the demand.
    """
    found = {candidate.id: max(1, round(1000 * min(candidate.replica_share, 1.0))) for candidate in candidates}
    return found | {part.candidate_id: part.endpoint_weight for mix in mixes if mix.placed for part in mix.parts}


def router_config(
    request: PlanRequest, candidates: Sequence[Candidate], placements: Sequence[Placement], mixes: Sequence[Mix] = ()
) -> str:
    """The YAML text; empty when nothing is placed. Weights are those of ``endpoint_weights``.

    Replicas of one workload share a ``model_name``, whatever engine they run on. Of a replica that spans nodes only the
    first node is an endpoint.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    weights = endpoint_weights(candidates, mixes)
    served = {workload.name: model_name(workload.model) for workload in request.workloads}
    seen: set[tuple[str, str, int]] = set()
    entries = []
    for placement in placements:
        key = (placement.workload, placement.candidate_id, placement.replica)
        candidate = by_id.get(placement.candidate_id)
        if key in seen or candidate is None or candidate.settings is None:
            continue
        seen.add(key)
        entries.append(
            {
                "model_name": placement.workload,
                "litellm_params": {
                    "model": f"openai/{served[placement.workload]}",
                    "api_base": f"http://{placement.node}:{endpoint_port(placement)}/v1",
                    "api_key": "os.environ/ENDPOINT_API_KEY",
                    "weight": weights[candidate.id],
                },
                "model_info": {
                    "id": f"{placement.candidate_id}#{placement.replica}",
                    "mode": "embedding" if candidate.performance and candidate.tok_s_per_gpu == 0 else "chat",
                },
            }
        )
    if not entries:
        return ""
    config = {
        "model_list": entries,
        "router_settings": {"routing_strategy": "simple-shuffle", "num_retries": RETRIES},
    }
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
