"""Engine versions: parsing and comparing, and the range each set of rules was read from."""

from __future__ import annotations

import re
from functools import lru_cache

from planner.engines.types import EngineName
from planner.errors import InputError

_PATTERN = re.compile(r"^v?(\d+(?:\.\d+){0,3})(?:[.\-]?(dev|a|b|rc|post)(\d+))?(?:[.\-+].*)?$")
_PHASES = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}

VERIFIED_RANGE = {
    EngineName.VLLM: ("0.10.0", "0.33.99"),
    EngineName.TENSORRT_LLM: ("1.0.0", "1.4.99"),
}
"""First and last version whose own source the rules were read from; outside, the nearest rules apply with a warning."""

SCORED_SINCE = {EngineName.VLLM: "0.6.0", EngineName.TENSORRT_LLM: "0.14.0"}
"""First version of which published runs were held against predictions."""

VersionKey = tuple[int, int, int, int, int, int]


@lru_cache(maxsize=512)
def version_key(version: str, field: str = "version") -> VersionKey:
    """Turn ``0.19.1``, ``1.3.0rc20`` or ``0.19.2.dev0`` into a tuple that sorts like the versions do.

    Raises InputError, naming ``field``, when ``version`` is not of that form.
    """
    match = _PATTERN.match(version.strip())
    if match is None:
        raise InputError(
            "not an engine version", field=field, value=version, remedy="Give one such as 0.24.0 or 1.3.0rc20."
        )
    numbers = [int(part) for part in match.group(1).split(".")]
    numbers += [0] * (4 - len(numbers))
    phase = _PHASES[match.group(2) or ""]
    return (numbers[0], numbers[1], numbers[2], numbers[3], phase, int(match.group(3) or 0))


def at_least(version: str, floor: str) -> bool:
    """Whether ``version`` is ``floor`` or later; release candidates of ``floor`` count as ``floor``."""
    floor_key = version_key(floor)
    key = version_key(version)
    if floor_key[4] == 0:
        return key[:4] >= floor_key[:4]
    return key >= floor_key


def outside_verified_range(engine: EngineName, version: str) -> bool:
    """Whether ``version`` lies outside the versions whose rules were verified."""
    first, last = VERIFIED_RANGE[engine]
    return not (version_key(first)[:4] <= version_key(version)[:4] <= version_key(last)[:4])


def unknown_speed(engine: EngineName, version: str) -> bool:
    """Whether nothing is known of how fast ``version`` runs: older than any run scored, newer than any source read."""
    _, last = VERIFIED_RANGE[engine]
    return not (version_key(SCORED_SINCE[engine])[:4] <= version_key(version)[:4] <= version_key(last)[:4])
