"""How numba compiles the planner's kernels: kept on disk, without reference counts.

Counting references to the arrays that a simulation's parts pass to each other would cost more than the steps they
compute. So a compiled function may index arrays and pass them on, and never makes one.

numba keeps what it compiled as long as the function's own file stays as it is, whatever became of the parts and
constants that were compiled into it. So what is kept goes by the content of all ``SOURCES``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
_WITHIN: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
SOURCES = (
    "serving/admission.py",
    "serving/aggregates.py",
    "serving/finish.py",
    "serving/front_loop.py",
    "serving/kernel.py",
    "serving/leap.py",
    "serving/lockstep.py",
    "serving/prefixcache.py",
    "serving/routing.py",
    "serving/state.py",
    "serving/step.py",
    "steptime/kernel.py",
)
"""Files of this package with compiled functions, and with the constants that they use."""


def compiled(function: F) -> F:
    """Compile what Python calls."""
    return cast(F, numba.njit(**_OPTIONS)(_named_by_content(function)))


def part(function: F) -> F:
    """Compile what only compiled functions call: without an entry from Python it takes less time."""
    return cast(F, numba.njit(**_OPTIONS, **_WITHIN)(_named_by_content(function)))


def content(files: Iterable[Path]) -> str:
    """A short name for what ``files`` hold, in hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@cache
def _kernels() -> str:
    return content(Path(__file__).parent / name for name in SOURCES)


def _named_by_content(function: F) -> F:
    function.__qualname__ = f"{function.__qualname__}_{_kernels()}"
    return function
