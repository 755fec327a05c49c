"""The start-up of an engine as a row of phases, and what it said of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import fmt
from controlplane.deployments.models import Deployment, Validation

ORDER = ("pending", "launching", "loading", "ready")
SHOWN_FROM_S = 1.0
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
    spent: dict[str, Any] = facts.get("phases_s") or {}
    notes = {
        "loading": [f"{phase} {fmt.duration(seconds)}" for phase, seconds in spent.items() if seconds >= SHOWN_FROM_S]
        or _seconds(facts, "load_s", "weights")
        + _seconds(facts, "compile_s", "compile")
        + _seconds(facts, "graph_s", "graphs"),
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
        look = "done" if at < reached else ""
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
    ("weights_gib", "weights_gib", "Weights", "GiB"),
    ("activation_gib", "activation_gib", "Activation", "GiB"),
    ("graph_gib", "graph_gib", "CUDA graphs", "GiB"),
    ("non_torch_gib", "non_torch_gib", "Outside PyTorch", "GiB"),
    ("kv_gib", "kv_gib", "KV cache", "GiB"),
    ("kv_blocks", "kv_blocks", "KV blocks", "blocks"),
    ("kv_tokens", "kv_tokens", "KV tokens", "tokens"),
    ("max_concurrency", "max_concurrency", "Full-length requests", "at once"),
    ("total_gib", "total_gib", "Memory in all", "GiB"),
)
"""Field of the ledger, field of ``runners.contracts.StartupFacts``, word, unit."""


def memory_facts(deployment: Deployment, checks: Iterable[Validation] = ()) -> list[dict[str, Any]]:
    """The ledger's figures beside what the engine said of itself; rows of which neither speaks are left out.

    Where the deployment keeps no ledger, what the ``checks`` at its start were held against.
    """
    held = {check.metric: check.predicted for check in checks}
    ledger: dict[str, Any] = (deployment.prediction or {}).get("memory") or {}
    said: dict[str, Any] = deployment.startup or {}
    rows = []
    for predicted_key, said_key, word, unit in FACTS:
        predicted, told = fmt.as_float(ledger.get(predicted_key, held.get(said_key))), fmt.as_float(said.get(said_key))
        if predicted is None and told is None:
            continue
        off = predicted / told - 1 if predicted is not None and told else None
        rows.append({"word": word, "unit": unit, "predicted": predicted, "said": told, "off": off})
    return rows
