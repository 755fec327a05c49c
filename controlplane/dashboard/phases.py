"""The start-up of an engine as a row of phases, and what it said of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import fmt
from controlplane.deployments.models import Deployment

ORDER = ("pending", "launching", "loading", "ready")
WORDS = {"pending": "Waits", "launching": "Launch", "loading": "Load the model", "ready": "Serve"}


@dataclass(frozen=True)
class Phase:
    """One phase. ``look`` done | now | failed | ''; ``note`` what is known of it."""

    word: str
    look: str
    note: str


def phases_of(deployment: Deployment) -> list[Phase]:
    """Phases from waiting to serving; the one in which it failed is marked."""
    facts: dict[str, Any] = deployment.startup or {}
    state = deployment.state
    notes = {
        "loading": _seconds(facts, "load_s", "weights") + _seconds(facts, "compile_s", "compile") + _seconds(facts, "graph_s", "graphs"),
        "ready": _seconds(facts, "ready_s", "after launch"),
    }
    if state in {"stopping", "stopped"}:
        reached = ORDER.index("ready") if deployment.ready_at else ORDER.index("launching")
    elif state == "failed":
        reached = ORDER.index("loading") if deployment.pid else ORDER.index("launching")
    else:
        reached = ORDER.index(state)
    made = []
    for at, name in enumerate(ORDER):
        look = "done" if at < reached or state == "stopped" and at <= reached else ""
        if at == reached:
            look = {"failed": "failed", "ready": "done", "stopped": "done"}.get(state, "now")
        text = ", ".join(notes.get(name, []))
        made.append(Phase(WORDS[name], look, (deployment.phase or text) if look == "now" else text))
    if state in {"stopping", "stopped"}:
        made.append(Phase("Stop", "now" if state == "stopping" else "done", ""))
    return made


def _seconds(facts: dict[str, Any], key: str, word: str) -> list[str]:
    value = facts.get(key)
    return [f"{word} {fmt.duration(value)}"] if value else []


FACTS = (
    ("engine_version", "Engine version", ""), ("weights_gib", "Weights", "GiB"), ("kv_gib", "KV cache", "GiB"),
    ("kv_tokens", "KV tokens", ""), ("kv_blocks", "KV blocks", ""), ("block_tokens", "Block", "tokens"),
    ("graph_gib", "CUDA graphs", "GiB"), ("activation_gib", "Activation", "GiB"), ("non_torch_gib", "Outside PyTorch", "GiB"),
    ("total_gib", "Memory", "GiB"), ("max_model_len", "Context", "tokens"), ("max_concurrency", "Full-length requests", ""),
)  # fmt: skip


def startup_facts(deployment: Deployment) -> list[tuple[str, Any, str]]:
    """What the engine said of itself while starting, as (word, value, unit)."""
    facts: dict[str, Any] = deployment.startup or {}
    return [(word, facts[key], unit) for key, word, unit in FACTS if facts.get(key) is not None]
