"""Reading figures out of start-up logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runners.engines.base import Failure, exit_in_words, shorten


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A line that explains a failure. ``reason`` may use the pattern's groups as {0}, {1}..."""

    pattern: re.Pattern[str]
    reason: str
    remedy: str


def last_number(pattern: str, lines: Iterable[str]) -> float | None:
    """The first group of the last match as a number (thousands separators dropped)."""
    numbers = all_numbers(pattern, lines)
    return numbers[-1] if numbers else None


def all_numbers(pattern: str, lines: Iterable[str]) -> list[float]:
    """The first group of every match as a number, in order."""
    compiled = re.compile(pattern)
    return [float(match[1].replace(",", "")) for line in lines for match in compiled.finditer(line)]


def explain(lines: Sequence[str], returncode: int | None, patterns: Sequence[FailurePattern], engine: str) -> Failure:
    """The first pattern, in their order, that any line matches (the last such line); else the exit code and last
    error.
    """
    for item in patterns:
        for line in reversed(lines):
            match = item.pattern.search(line)
            if match:
                groups = [group or "" for group in match.groups()]
                return Failure(item.reason.format(*groups), item.remedy)
    error = re.compile(r"\b(\w*(?:Error|Exception)\b: .+|ERROR .+|error: .+)")
    said = next((found[1] for line in reversed(lines) if (found := error.search(line))), lines[-1] if lines else "")
    how = exit_in_words(returncode)
    if returncode == -9:
        return Failure(
            f"{engine} {how}. Its last line: {shorten(said) or 'none'}",
            "The kernel kills processes when the host runs out of memory: look at its log (dmesg), free host memory.",
        )
    return Failure(
        f"{engine} {how}. Its last word: {shorten(said) or 'nothing was logged'}",
        "Read the engine's log in the deployment; change what it names, then launch again.",
    )
