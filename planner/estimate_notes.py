"""What a request states and the answer does not read, in words: nothing that is stated is passed over silently."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from planner.engines import ResolvedSettings
from planner.estimate_request import Query
from planner.serving import Load
from planner.steptime import StepModel, build

_OF_A_LOAD = ("prefix_hit", "seed", "replicas", "router", "usd_per_gpu_hour")
_NODE = ("network_gb_s", "gpus_per_node")


def changes_nothing(query: Query, resolved: ResolvedSettings, *, pools: bool = False) -> list[str]:
    """A sentence for each stated field of the request that this request gives no effect; settings apart, which
    ``support`` judges. ``pools``: prefill and decode on instances of their own, which a network may join.
    """
    stated, found = query.stated, []
    if query.load is None:
        idle = [name for name in _OF_A_LOAD if name in stated]
        found += [f"{name} changes nothing without a load." for name in idle]
        found += _idle_lengths(query)
    else:
        if "router" in stated and query.replicas == 1:
            found.append("router changes nothing: there is one replica.")
        if "seed" in stated and not _draws(query.load, query):
            found.append("seed changes nothing: nothing is drawn at random.")
        found += _short_run(query.load)
    found += [f"{name} changes nothing: one GPU needs no network." for name in _NODE
              if name in stated and resolved.gpus == 1 and not pools]  # fmt: skip
    if query.model.task != "generate" and "output_tokens" in stated:
        found.append("output_tokens changes nothing: the model generates none.")
    return found


def _idle_lengths(query: Query) -> list[str]:
    given = [name for name in ("input_tokens", "output_tokens") if name in query.stated]
    if query.settings.max_model_len is not None:
        return [f"{name} changes nothing: without a load it only stands in for max_model_len." for name in given]
    if query.model.task == "generate" and len(given) == 1:
        return [f"{given[0]} changes nothing: without a load only both lengths together set the context."]
    return []


def _draws(load: Load, query: Query) -> bool:
    """Whether the simulation draws anything at random."""
    lengths = [each for each in (query.inputs, query.outputs, load.turns) if each is not None]
    random_gaps = load.kind == "open" and load.arrival != "constant"
    return random_gaps or bool(load.think_s or load.prefix_hit) or load.turns is not None or any(
        each.kind != "fixed" for each in lengths
    )  # fmt: skip


def _short_run(load: Load) -> list[str]:
    if load.kind != "open" or load.arrival != "onoff" or load.requests is None:
        return []
    spans = load.requests / load.rate_per_s
    if spans >= load.period_s:
        return []
    return [
        f"The {load.requests:,} requests span {spans:.3g} s, less than one period of {load.period_s:g} s: the figures"
        " are of its burst alone. State more requests, or none."
    ]


def kernel_note(query: Query, resolved: ResolvedSettings, step: StepModel) -> list[str]:
    """Whether the stated experts' kernel is timed as the engine's default."""
    if query.settings.moe_backend is None:
        return []
    plain = build(query.model, query.gpu, replace(resolved, moe_backend=None), fabric=query.fabric)
    if not _same(step.tables, plain.tables):
        return []
    return [
        f"moe_backend {query.settings.moe_backend} leaves the step times as they are: nothing was measured with it that"
        " differs from the default kernel."
    ]


def _same(first: Any, second: Any) -> bool:
    pairs = ((getattr(first, each.name), getattr(second, each.name)) for each in fields(first))
    return all(np.array_equal(one, other) for one, other in pairs)
