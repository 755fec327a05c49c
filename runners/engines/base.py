"""What every engine adapter answers. An adapter knows one engine; hosts and tasks know none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runners.config import NodeConfig
from runners.contracts import EngineLaunch, StartupFacts
from runners.errors import CommandRefusedError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_ENV_NAME = re.compile(
    r"(VLLM|TRTLLM|TLLM|CUDA|NCCL|UCX|OMP|MKL|TORCH|PYTORCH|HF|NVIDIA|ROCR|HIP|OPAL|OMPI)_[A-Z0-9_]+"
)
_REFUSED_ENV = frozenset({"VLLM_PLUGINS", "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_SERVER_DEV_MODE"})


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """How to start an engine. ``tokenizer`` is the folder a load generator can read for it, "" when it has none."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    tokenizer: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an engine ended, from its log: what happened and what to do."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Where an engine's Prometheus text is and what its counters are called; None where it has no such counter.

    ``prompt_cached`` counts each prompt once. vLLM's ``prefix_queries`` and ``prefix_hits`` count a waiting request
    again at every look, so they tell the share of a run only while nothing waits.
    """

    path: str
    prompt_tokens: str | None
    output_tokens: str | None
    prompt_cached: str | None
    prefix_queries: str | None
    prefix_hits: str | None
    preemptions: str | None
    drafted: str | None = None
    accepted: str | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage of start-up that a log line shows; ``progress`` 0..1 of the way to ready."""

    pattern: re.Pattern[str]
    text: str
    progress: float


class EngineAdapter(Protocol):
    """One engine."""

    name: str
    emulated: bool
    uses_gpus: bool  # whether the launch's GPU indexes are devices of this host that it really holds
    metrics: MetricNames
    phases: Sequence[Phase]
    tokenize_path: str | None

    def plan(self, launch: EngineLaunch, folder: Path, config: NodeConfig) -> ProcessPlan:
        """Command line, environment and files for ``launch``; files are written into ``folder``.

        Raises CommandRefusedError for what this node does not run, EngineMissingError when the engine is not
        installed, OSError when a file cannot be written.
        """
        ...

    def listed_name(self, launch: EngineLaunch) -> str:
        """The name that /v1/models lists and requests must use."""
        ...

    def parse_startup(self, lines: Iterable[str]) -> StartupFacts:
        """What the engine said of itself while starting."""
        ...

    def explain_failure(self, lines: Sequence[str], returncode: int | None) -> Failure:
        """Why it ended, from the end of its log and its exit code (negative: signal; None: unknown)."""
        ...


def clean_lines(text: str) -> list[str]:
    """Log text as lines: terminal escapes gone, progress bars (carriage returns) cut into lines, blanks dropped."""
    plain = _ESCAPE.sub("", text).replace("\r", "\n")
    return [line.rstrip() for line in plain.split("\n") if line.strip()]


def check_launch(launch: EngineLaunch) -> None:
    """Refuse what no contract should carry; raises CommandRefusedError."""
    if not 1024 <= launch.port <= 65535:
        raise CommandRefusedError(f"Port {launch.port} is outside 1024..65535.", "Choose a port in that range.")
    if not launch.served_name or any(c in launch.served_name for c in "\n\r\0\"'") or launch.served_name[0] == "-":
        raise CommandRefusedError(f"Not a served name: {launch.served_name!r}.", "Use a model id.")
    path = Path(launch.model)
    if not path.is_absolute() and not _MODEL_ID.fullmatch(launch.model):
        raise CommandRefusedError(
            f"Not a model: {launch.model!r}.", "Give a Hugging Face id (owner/name) or an absolute directory."
        )
    for name in launch.env:
        if not _ENV_NAME.fullmatch(name) or name in _REFUSED_ENV:
            raise CommandRefusedError(
                f"The variable {name} may not be set for an engine.",
                "Only engine, CUDA, NCCL, OpenMP and Hugging Face variables may be.",
            )


def last_matching(lines: Sequence[str], words: Sequence[str]) -> str:
    """The last line holding one of ``words``, "" when there is none."""
    return next((line for line in reversed(lines) if any(word in line for word in words)), "")


def exit_in_words(returncode: int | None) -> str:
    """An exit code for people."""
    if returncode is None:
        return "was killed together with its keeper"
    if returncode < 0:
        names = {-9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS", -2: "SIGINT"}
        return f"was ended by {names.get(returncode, f'signal {-returncode}')}"
    return f"ended with exit code {returncode}"


def shorten(text: str, limit: int = 400) -> str:
    """``text`` cut to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
