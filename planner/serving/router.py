"""Replicas behind a router, for requests that must be dealt out one by one."""

from __future__ import annotations

from typing import Literal

import numpy as np

from planner.errors import InputError
from planner.serving import routing
from planner.serving import state as k
from planner.serving.arrivals import RequestSet
from planner.serving.engine import InstanceRules, InstanceRun, check_fit, stacked, stuck
from planner.serving.types import F64
from planner.steptime.types import StepModel

Router = Literal["round_robin", "least_loaded", "prefix_aware"]
ROUTERS: dict[str, int] = {
    "round_robin": routing.ROUND_ROBIN,
    "least_loaded": routing.LEAST_LOADED,
    "prefix_aware": routing.PREFIX_AWARE,
}
WINDOW_MS = 2.0
"""How far replicas run between two looks at what ended, where the front end takes no time."""

MOST_CELLS = 20_000_000
"""Requests and cache units of all replicas together: about 600 MB."""


def run_routed(
    step: StepModel,
    rules: InstanceRules,
    requests: RequestSet,
    instances: int,
    router: Router,
    *,
    timeline_rows: int = 0,
) -> tuple[list[InstanceRun], F64]:
    """Deal ``requests`` out to ``instances`` instances; the instances and the records of all requests.

    round_robin: in turn. least_loaded: to the one with the fewest requests at hand. prefix_aware: by what the cache of
    each holds of the prompt against its load. Raises InfeasibleError when a request can never be served.
    """
    if router not in ROUTERS:
        raise InputError("unknown router", field="router", value=router, remedy=f"Use one of: {', '.join(ROUTERS)}.")
    check_fit(requests.inputs, requests.outputs, rules)
    prefixes = requests.prefixes if rules.policy.prefix_caching else None
    cells = instances * (requests.size + (0 if prefixes is None else prefixes.units))
    if cells > MOST_CELLS:
        raise InputError(
            "too many replicas for so many requests and tokens",
            field="replicas",
            value=instances,
            remedy="Simulate a share of the load on a share of the replicas.",
        )
    engines = []
    for index in range(instances):
        engine = InstanceRun(step, rules, record_rows=0, timeline_rows=timeline_rows)
        engine.make_queue(requests.size)
        if prefixes is not None:
            engine.keep_prefixes(prefixes)
        if index > 0:
            engine.floats[k.F_NEXT_SAMPLE] = np.inf
        engines.append(engine)
    stack = stacked(engines)
    follows = requests.following is not None
    following = requests.following if requests.following is not None else np.full(requests.size, -1, dtype=np.int64)
    alone = np.ones(requests.size, dtype=bool)
    alone[following[following >= 0]] = False
    numbers = np.flatnonzero(alone)
    sent = requests.sent_ms.astype(np.float64, copy=True)
    order = numbers[np.argsort(sent[numbers], kind="stable")]
    front = step.front_end
    comes_back = front.response_ms + front.turnaround_ms + front.request_serial_ms + front.request_ms
    records = np.zeros((requests.size, k.R_COUNT))
    done = routing.route(
        stack,
        engines[0].tables,
        routing.Routed(
            sent, requests.inputs, requests.outputs, requests.hits, requests.think_ms, following, order
        ),
        ROUTERS[router],
        (max(comes_back, WINDOW_MS) if follows else 0.0),
        np.zeros(requests.size),
        np.zeros(requests.size, dtype=np.int64),
        np.full(instances, -1, dtype=np.int64),
        np.zeros(routing.PAUSES, dtype=np.int64),
        records,
    )  # fmt: skip
    if done < 0:
        raise stuck(rules)
    for index, engine in enumerate(engines):
        engine.take_state(stack, index)
    return engines, records[:done]
