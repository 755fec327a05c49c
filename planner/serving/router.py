"""A least-loaded router in front of replicas: each request goes to the replica with the fewest requests at hand."""

from __future__ import annotations

import numpy as np

from planner.serving import state as k
from planner.serving.arrivals import RequestSet
from planner.serving.engine import InstanceRules, InstanceRun
from planner.steptime.types import StepModel


def run_least_loaded(
    step: StepModel, rules: InstanceRules, requests: RequestSet, instances: int, *, timeline_rows: int = 0
) -> list[InstanceRun]:
    """Simulate open-loop ``requests`` on ``instances`` instances; ties go to the one served longest ago.

    All replicas are advanced to each arrival before it is assigned, so the router sees true queue lengths.
    """
    engines = [
        InstanceRun(step, rules, record_rows=requests.size, timeline_rows=timeline_rows if i == 0 else 0)
        for i in range(instances)
    ]
    visible = engines[0].visible_ms(requests.sent_ms, requests.inputs)
    order = np.argsort(visible, kind="stable")
    for engine in engines:
        engine.visible = np.full(requests.size, np.inf)
        engine.sent = np.zeros(requests.size)
        engine.inputs = np.zeros(requests.size, dtype=np.int64)
        engine.outputs = np.zeros(requests.size, dtype=np.int64)
        engine.hits = np.zeros(requests.size, dtype=np.int64)
    last_given = [-1] * instances
    for turn, i in enumerate(order):
        best, best_load = 0, None
        for index, engine in enumerate(engines):
            if engine.ints[k.I_RUNNING] or engine.ints[k.I_NEXT] < engine.ints[k.I_ISSUED]:
                engine.run(float(visible[i]))
            waiting = engine.ints[k.I_ISSUED] - engine.ints[k.I_NEXT] + engine.ints[k.I_PREEMPTED]
            load = (int(engine.ints[k.I_RUNNING] + waiting), last_given[index])
            if best_load is None or load < best_load:
                best, best_load = index, load
        engine = engines[best]
        at = int(engine.ints[k.I_ISSUED])
        engine.visible[at] = visible[i]
        engine.sent[at] = requests.sent_ms[i]
        engine.inputs[at] = requests.inputs[i]
        engine.outputs[at] = requests.outputs[i]
        engine.hits[at] = requests.hits[i]
        engine.ints[k.I_ISSUED] = at + 1
        last_given[best] = turn
    for engine in engines:
        engine.run()
    return [engine for engine in engines if engine.ints[k.I_DONE] > 0]
