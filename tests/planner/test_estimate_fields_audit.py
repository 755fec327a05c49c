"""Every field of the estimate contract: wrong values are refused by name, right ones act or are told to do nothing."""

from __future__ import annotations

import json
import re
from operator import gt, lt, ne
from pathlib import Path
from typing import Any

import pytest

from planner.errors import as_written
from planner.estimate import estimate
from planner.estimate_request import KNOWN_FIELDS, LOAD_FIELDS, ROLE_FIELDS, ROLES
from tests.planner.estimate_field_lines import (
    BASE,
    CLOSED,
    LINES,
    LOAD_LINES,
    ROLE_EFFECTS,
    Effect,
    Line,
    Moves,
    Refuses,
    Says,
)

ENGINES = ("vllm", "tensorrt_llm")
_HUGE = 10**400
_NO_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), float("-inf"), _HUGE, -1, True, [], {}, "", "many")
_NO_WORDS: tuple[Any, ...] = (7, float("nan"), True, [], {}, "", " ", "n0 such word")
WRONG: dict[str, tuple[Any, ...]] = {
    "any": (float("nan"), float("inf")),
    "word": _NO_WORDS,
    "number": _NO_NUMBERS,
    "whole": (*_NO_NUMBERS, 1.5),
    "price": _NO_NUMBERS,
    "flag": (1, 0, "yes", "", [], {}, float("nan")),
    "length": (*_NO_NUMBERS, 0, 1.5, {"mean": 9}, {"low": 9, "high": 3}, {"mean": "x", "sd": 1}, {"low": 0, "high": 3},
               {"mean": None, "sd": None}, {"mean": float("nan"), "sd": 1}, {"mean": 5, "sd": _HUGE}),
    "object": (7, "x", True, [], float("nan")),
}  # fmt: skip
REMEDY = re.compile(
    r"must be (between|at least|above)|Give |Use |Use one of|State |Name one|Such as|Leave |Or leave|Known fields|"
    r"Did you mean|See the list|Exchange|is missing"
)


def test_every_field_has_a_line() -> None:
    assert set(LINES) == set(KNOWN_FIELDS)
    assert set(LOAD_LINES) == set(LOAD_FIELDS)
    assert set(ROLE_EFFECTS) == set(ROLE_FIELDS)


def test_every_field_is_in_the_documentation() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "planner.md").read_text(encoding="utf-8")
    for name in (*KNOWN_FIELDS, *(f"load.{each}" for each in LOAD_FIELDS), "disagg.link_gb_s"):
        assert re.search(rf"^\| `{re.escape(name)}` \|", text, re.MULTILINE), name


def refused(request: dict[str, Any], path: str, value: Any) -> None:
    """The answer is an error that names ``path``, or a part of it, shows the value as written and says what to do."""
    answer = estimate(request)
    assert answer["status"] == "error", (path, value, answer["reasons"])
    first = answer["reasons"][0]
    assert re.match(rf"{re.escape(path)}(\.\w+)*: ", first), (path, first)
    assert REMEDY.search(first), first
    if not isinstance(value, dict):
        shown = as_written(value.strip() if isinstance(value, str) and value.strip() else value)
        assert f"(got {shown[:70]}" in first, first
    json.dumps(answer, allow_nan=False)


def cases(lines: dict[str, Line]) -> list[Any]:
    return [pytest.param(name, line, id=name) for name, line in lines.items()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "line"), cases(LINES))
def test_a_wrong_value_is_refused_by_name(name: str, line: Line, engine: str) -> None:
    for value in (*WRONG[line.kind], *line.wrong):
        refused({**BASE, "engine": engine, **line.around, name: value}, name, value)


@pytest.mark.parametrize(("name", "line"), cases(LOAD_LINES))
def test_a_wrong_value_of_the_load_is_refused_by_name(name: str, line: Line) -> None:
    for value in (*WRONG[line.kind], *line.wrong):
        refused({**BASE, "engine": "vllm", "load": {**line.around, name: value}}, f"load.{name}", value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ROLE_FIELDS)
def test_a_wrong_value_of_a_role_is_refused_by_its_path(name: str, role: str) -> None:
    kind, more = ("whole", (0, 129)) if name == "instances" else (LINES[name].kind, LINES[name].wrong)
    for value in (*WRONG[kind], *more):
        pools: dict[str, Any] = {each: {} for each in ROLES}
        pools[role] = {name: value}
        refused({**BASE, "engine": "vllm", "disagg": pools}, f"disagg.{role}.{name}", value)


def test_a_wrong_link_between_pools_is_refused_by_its_path() -> None:
    for value in (*_NO_NUMBERS, 0):
        pools = {"prefill": {}, "decode": {}, "link_gb_s": value}
        refused({**BASE, "engine": "vllm", "disagg": pools}, "disagg.link_gb_s", value)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"acceptance_rate": 0.5}, "acceptance_rate"),
        ({"prefix_hit": 0.5, "enable_prefix_caching": False}, "prefix_hit"),
        ({"prefix_hit": 0.5, "load": {**CLOSED, "turns": 3}}, "prefix_hit"),
        ({"load": {**CLOSED, "rate_per_s": 3}}, "load.rate_per_s"),
        ({"load": {**CLOSED, "shared_tokens": 9}}, "load.shared_tokens"),
        ({"load": {"kind": "open", "rate_per_s": 3, "concurrency": 9}}, "load.concurrency"),
        ({"load": {"kind": "open", "rate_per_s": 3, "cv": 2}}, "load.cv"),
        ({"load": {"kind": "open", "rate_per_s": 3, "arrival": "gamma", "period_s": 9}}, "load.period_s"),
        ({"load": {"kind": "open", "rate_per_s": 3, "think_s": 9}}, "load.think_s"),
        ({"load": {"kind": "offline", "requests": 3, "think_s": 9}}, "load.think_s"),
        ({"load": {"kind": "offline"}}, "load.requests"),
        ({"load": {**CLOSED, "turns": 10_000_000}}, "load.turns"),
        ({"disagg": {"prefill": {}, "decode": {}}, "replicas": 2}, "replicas"),
        ({"disagg": {"prefill": {}, "decode": {}}, "router": "least_loaded"}, "router"),
    ],
)
def test_a_contradiction_is_refused_by_the_field_that_does_not_fit(changes: dict[str, Any], path: str) -> None:
    refused({**BASE, "engine": "vllm", **changes}, path, {})


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"load": {**CLOSED, "turns": 2}}, "load.turns"),
        ({"load": {**CLOSED, "think_s": 2}}, "load.think_s"),
        ({"load": {**CLOSED, "stream_interval": 8}}, "load.stream_interval"),
        ({"prefix_hit": 0.5}, "prefix_hit"),
        ({"speculative_tokens": 2}, "speculative_tokens"),
        ({"dp": 2}, "dp"),
    ],
)
def test_one_pass_models_refuse_what_belongs_to_generation_with_a_remedy(changes: dict[str, Any], path: str) -> None:
    refused({**BASE, "engine": "vllm", "model": "BAAI/bge-m3", **changes}, path, {})


def test_fields_that_are_null_are_not_stated() -> None:
    plain = {**BASE, "engine": "vllm"}
    nulls = dict.fromkeys(set(KNOWN_FIELDS) - set(plain))
    arrival = {"kind": "open", "rate_per_s": 2, "requests": 50}
    assert estimate({**plain, **nulls}) == estimate(plain)
    unstated = {**dict.fromkeys(LOAD_FIELDS), **arrival}
    assert estimate({**plain, "load": unstated}) == estimate({**plain, "load": arrival})


def figure(answer: dict[str, Any], path: str) -> Any:
    found: Any = answer
    for step in path.split("."):
        found = found[step]
    return found


def acts(effect: Effect, before: dict[str, Any], after: dict[str, Any], inside: str = "") -> None:
    if isinstance(effect, Refuses):
        assert after["status"] == "unsupported"
        assert any(effect.words in reason for reason in after["reasons"]), after["reasons"]
        return
    assert (before["status"], after["status"]) == ("ok", "ok"), (before["reasons"], after["reasons"])
    if isinstance(effect, Says):
        assert any(effect.words in reason for reason in after["reasons"]), after["reasons"]
        kept = ("memory", "perf", "cost", "power_w", "disagg")
        assert [after.get(part) for part in kept] == [before.get(part) for part in kept]
        return
    first, second = figure(before, inside + effect.figure), figure(after, inside + effect.figure)
    moved = {"up": gt, "down": lt, "else": ne}[effect.way]
    assert moved(second, first), (first, second)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "line"), cases(LINES))
def test_a_right_value_acts_or_is_said_to_do_nothing(name: str, line: Line, engine: str) -> None:
    effect: Effect = getattr(line, engine)
    request = {**BASE, "engine": engine, **effect.base}
    acts(effect, estimate(request), estimate({**request, name: effect.value, **effect.beside}))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "line"), cases(LOAD_LINES))
def test_a_right_value_of_the_load_acts(name: str, line: Line, engine: str) -> None:
    effect: Effect = getattr(line, engine)
    request = {**BASE, "engine": engine, **effect.base}
    stated = {**request["load"], name: effect.value}
    if name == "kind":
        stated = {"kind": "offline", "requests": 128}
    acts(effect, estimate(request), estimate({**request, "load": stated}))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ROLE_FIELDS)
def test_a_right_value_of_a_role_acts_on_that_role(name: str, engine: str) -> None:
    effect = ROLE_EFFECTS[name][engine]
    request = {**BASE, "engine": engine, **effect.base, "disagg": {"prefill": {}, "decode": {}}}
    pools = {"prefill": {name: effect.value, **effect.beside}, "decode": {}}
    acts(effect, estimate(request), estimate({**request, "disagg": pools}), "disagg.prefill.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"router": "least_loaded"}, "router changes nothing: there is one replica."),
        ({"seed": 3}, "seed changes nothing: nothing is drawn at random."),
        ({"network_gb_s": 10}, "network_gb_s changes nothing: one GPU needs no network."),
        ({"max_lora_rank": 64}, "max_lora_rank changes nothing: max_loras is 0."),
        ({"mm_items_per_prompt": 4}, "mm_items_per_prompt changes nothing: the model takes no images."),
        ({"moe_backend": "triton"}, "moe_backend changes nothing: the model has no experts."),
    ],
)
def test_what_has_nothing_to_act_on_is_told(changes: dict[str, Any], words: str) -> None:
    plain = {**BASE, "engine": "vllm"}
    before, after = estimate(plain), estimate({**plain, **changes})
    acts(Says(None, words), before, after)


@pytest.mark.parametrize("name", ["prefix_hit", "seed", "replicas", "router", "usd_per_gpu_hour"])
def test_without_a_load_its_fields_are_told_to_do_nothing(name: str) -> None:
    value: Any = {"prefix_hit": 0.5, "router": "least_loaded"}.get(name, 3)
    answer = estimate({"model": BASE["model"], "gpu": "H200", "engine": "vllm", name: value})
    assert f"{name} changes nothing without a load." in answer["reasons"]


def test_a_run_shorter_than_a_period_of_bursts_is_told() -> None:
    load = {"kind": "open", "rate_per_s": 5, "requests": 100, "arrival": "onoff", "on_share": 0.5, "period_s": 60}
    answer = estimate({**BASE, "engine": "vllm", "load": load})
    assert any("less than one period of 60 s" in reason for reason in answer["reasons"])
    longer = estimate({**BASE, "engine": "vllm", "load": {**load, "requests": 400}})
    assert not any("less than one period" in reason for reason in longer["reasons"])


def test_a_wrong_cache_limit_of_a_role_names_the_request_and_a_pools_notes_name_the_role() -> None:
    answer = estimate({**BASE, "engine": "vllm", "kv_cache_max_tokens": 9, "disagg": {"prefill": {}, "decode": {}}})
    assert answer["reasons"][0].startswith("kv_cache_max_tokens: ")
    pools = {"prefill": {"moe_backend": "triton"}, "decode": {}}
    told = estimate({**BASE, "engine": "vllm", "disagg": pools})
    assert "prefill: moe_backend changes nothing: the model has no experts." in told["reasons"]


def test_moves_is_what_most_fields_do() -> None:
    """The table is no list of excuses: where a field only says something, another engine or a role has it act."""
    idle = [name for name, line in LINES.items() if not isinstance(line.vllm, Moves | Refuses)
            and not isinstance(line.tensorrt_llm, Moves | Refuses)]  # fmt: skip
    assert idle == ["logprobs", "prompt_logprobs"]
