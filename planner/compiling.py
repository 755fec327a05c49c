"""How numba compiles the planner's kernels: kept on disk, without reference counts.

Counting references to the arrays that a simulation's parts pass to each other would cost more than the steps they
compute. So a compiled function may index arrays and pass them on, and never makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_WITHIN: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: F) -> F:
    """Compile what Python calls."""
    return cast(F, numba.njit(**_OPTIONS)(function))


def part(function: F) -> F:
    """Compile what only compiled functions call: without an entry from Python it takes less time."""
    return cast(F, numba.njit(**_OPTIONS, **_WITHIN)(function))
