"""The step-time contract: tables that any source fills and the simulator's kernel reads.

One iteration processes ``P`` new prefill tokens of ``n`` prompts and ``b`` decoding sequences. Its time is

    step = shared(P + b) + head(n + b) + prefill_attention(P, C) + decode_attention(b, L) + fixed

with ``C`` the mean number of keys that a new prefill token attends to (pairs / P) and ``L`` the mean KV length of the
decoding sequences. All times in milliseconds for the whole instance (TP communication inside, PP stages in sequence).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.evidence import Evidence

F64 = NDArray[np.float64]

AS_MEASURED = "as measured"
"""Marks the residuals of runs of which nothing is left to guess, behind the engine's name."""
SETTINGS_STATED = "settings stated"
"""Marks those of runs whose engine settings are known."""


@dataclass(frozen=True, eq=False)
class StepTables:
    """Sampled step times; every axis ascending. Arrays are float64 so that a numba kernel takes them as they are.

    ``shared_ms[i]`` at ``shared_tokens[i]``; ``head_ms[i]`` at ``head_seqs[i]``;
    ``prefill_ms[i, j]`` at (``prefill_tokens[i]``, ``prefill_context[j]``);
    ``decode_ms[i, j]`` at (``decode_batch[i]``, ``decode_kv[j]``).
    ``experts_ms[i]`` is the part of ``shared_ms[i]`` for which the tokens of all data-parallel ranks count; empty with
    one rank.
    ``graph_sizes`` are captured decode batch sizes: a pure-decode batch pads up to the next one (empty: no padding).

    The host prepares a step while the one before runs: no step is shorter than ``host_ms`` plus
    ``host_ms_per_sequence`` for each sequence in it, and one with prompt tokens and more tokens than the largest
    captured size, which launches kernel by kernel, not shorter than ``launch_ms``.

    ``mixed_rows`` query rows that prefill attention spends on a decode which shares a step with a prompt; 0 where
    decodes keep their own kernel.
    """

    shared_tokens: F64
    shared_ms: F64
    head_seqs: F64
    head_ms: F64
    prefill_tokens: F64
    prefill_context: F64
    prefill_ms: F64
    decode_batch: F64
    decode_kv: F64
    decode_ms: F64
    fixed_ms: float  # per step, not overlapped: host work, sampler
    graph_sizes: F64
    pp: int = 1
    host_ms: float = 0.0
    host_ms_per_sequence: float = 0.0
    launch_ms: float = 0.0
    mixed_rows: float = 0.0
    experts_ms: F64 = field(default_factory=lambda: np.zeros(0))


def scaled(tables: StepTables, factor: float) -> StepTables:
    """``tables`` with every time multiplied by ``factor``."""
    times = {item.name: getattr(tables, item.name) for item in fields(tables) if "ms" in item.name.split("_")}
    return replace(tables, **{name: factor * value for name, value in times.items()})


_AXES = {
    "shared_ms": ("shared_tokens",),
    "head_ms": ("head_seqs",),
    "prefill_ms": ("prefill_tokens", "prefill_context"),
    "decode_ms": ("decode_batch", "decode_kv"),
}
MAX_TABLE_CELLS = 1_000_000


def check_tables(tables: StepTables, path: str) -> None:
    """Check tables that were read from elsewhere (``jsonio`` writes and reads them).

    Raises InputError naming the field under ``path`` whose shape does not fit, which does not rise or is negative.
    """
    for name, axes in _AXES.items():
        values = getattr(tables, name)
        expected = tuple(getattr(tables, axis).size for axis in axes)
        if values.shape != expected:
            raise InputError(f"must have the shape {expected}", field=f"{path}.{name}", value=values.shape)
        if not 0 < values.size <= MAX_TABLE_CELLS:
            raise InputError("has no cells or too many", field=f"{path}.{name}", value=expected)
        if len(axes) == 2 and min(expected) < 2:
            raise InputError("needs two points an axis", field=f"{path}.{name}", value=expected)
        if (values < 0).any():
            raise InputError("holds a negative time", field=f"{path}.{name}")
        for axis in axes:
            if (np.diff(getattr(tables, axis)) <= 0).any():
                raise InputError("must rise", field=f"{path}.{axis}")
    if tables.experts_ms.shape not in ((0,), tables.shared_ms.shape) or (tables.experts_ms < 0).any():
        raise InputError("must be empty or as many times as shared_ms", field=f"{path}.experts_ms")
    for item in fields(tables):
        value = getattr(tables, item.name)
        if not isinstance(value, np.ndarray) and value < 0:
            raise InputError("must not be negative", field=f"{path}.{item.name}", value=value)


@dataclass(frozen=True)
class EventLoop:
    """What an API server with one event loop does for each request and token, in milliseconds of that loop.

    ``request_ms`` and ``request_ms_per_1k_tokens`` from a request's arrival until the engine has it, of which
    ``parsing_share`` comes before the tokeniser, a thread of its own (``tokenise_ms_per_1k_tokens``); ``end_ms`` after
    its last token. ``chunk_ms`` a message to a client, ``large_step_chunk_ms`` a message of a step that is handled in
    slices (more tokens than ``FrontEnd.merge_below``), ``step_ms`` once a step. A request that was parsed is kept from
    the engine by others, which arrived since, for at most ``turns`` passes of the loop.
    """

    request_ms: float
    request_ms_per_1k_tokens: float
    parsing_share: float
    turns: int
    end_ms: float
    chunk_ms: float
    large_step_chunk_ms: float
    step_ms: float
    tokenise_ms_per_1k_tokens: float


@dataclass(frozen=True)
class FrontEnd:
    """Delays outside the step, in milliseconds, as a streaming client sees them.

    ``request_ms`` tokenisation and front end before the scheduler sees a request, plus ``request_ms_per_1k_tokens``;
    ``response_ms`` from the end of the step to the client's token; ``turnaround_ms`` from the last token at the client
    to its next request in a closed loop.

    The front end works on one thing at a time. Each request occupies it for ``request_serial_ms`` (before
    ``request_ms``) and waits for those before it; requests that arrive together are worked on together and come out
    together, when all of them are done. Each streamed token
    costs ``chunk_ms`` there, one after another: a step with n tokens occupies the front end for n x ``chunk_ms`` from
    its end, or from when the front end has done the steps before, whichever is later; its tokens reach the client then
    (on average half of that time earlier). When n x ``chunk_ms`` exceeds the step, the front end falls behind: clients
    see the lag in their last token and send their next request that much later. With at most ``merge_below`` tokens a
    step a lagging front end sends several tokens of a stream in one chunk, so its lag stays below n x ``chunk_ms``;
    above, the lag grows.

    Closed loops of single requests on one instance go through ``loop`` instead, where it was measured
    (``planner.serving.front_loop``).
    """

    request_ms: float
    request_ms_per_1k_tokens: float
    response_ms: float
    turnaround_ms: float
    request_serial_ms: float = 0.0
    chunk_ms: float = 0.0
    merge_below: int = 0
    loop: EventLoop | None = None


class StepTime(Protocol):
    """A source of step times."""

    evidence: Evidence

    def decode_ms(self, batch: int, kv_tokens: float) -> float:
        """Time of a pure-decode step of ``batch`` sequences with ``kv_tokens`` mean KV length each."""
        ...

    def mixed_ms(self, prefill_tokens: int, decode_batch: int, kv_tokens: float) -> float:
        """Time of a step with one prompt chunk of ``prefill_tokens`` beside ``decode_batch`` decodes."""
        ...


@dataclass(frozen=True, eq=False)
class StepModel:
    """Tables with what is known of them. ``planner.steptime.build`` makes it; it satisfies ``StepTime``."""

    tables: StepTables
    front_end: FrontEnd
    evidence: Evidence
    max_decode_kv_in_range: F64 | None = None  # per decode_batch row: largest mean KV length measured; None: no limit
    notes: tuple[str, ...] = ()
    operators: dict[str, Evidence] = field(default_factory=dict)  # evidence by operator family
    factors: dict[str, float] = field(default_factory=dict)  # calibration factors applied, by name
    engine: str = ""  # whose residuals the bands are made of (``build.residuals_of``); empty: those of all engines

    def decode_ms(self, batch: int, kv_tokens: float) -> float:
        """See ``StepTime.decode_ms``."""
        from planner.steptime.kernel import step_ms

        return float(step_ms(*kernel_args(self.tables), 0.0, 0.0, 0.0, float(batch), float(batch) * kv_tokens))  # type: ignore[call-arg]

    def mixed_ms(self, prefill_tokens: int, decode_batch: int, kv_tokens: float) -> float:
        """See ``StepTime.mixed_ms``."""
        from planner.steptime.kernel import step_ms

        pairs = prefill_tokens * (prefill_tokens + 1) / 2
        total_kv = float(decode_batch) * kv_tokens
        args = kernel_args(self.tables)
        return float(step_ms(*args, float(prefill_tokens), 1.0, pairs, float(decode_batch), total_kv))  # type: ignore[call-arg]


def kernel_args(tables: StepTables) -> tuple:
    """The tables as positional arguments of ``planner.steptime.kernel.step_ms`` (numba takes no dataclass)."""
    return (
        tables.shared_tokens,
        tables.shared_ms,
        tables.head_seqs,
        tables.head_ms,
        tables.prefill_tokens,
        tables.prefill_context,
        tables.prefill_ms,
        tables.decode_batch,
        tables.decode_kv,
        tables.decode_ms,
        tables.fixed_ms,
        tables.graph_sizes,
        tables.host_ms,
        tables.host_ms_per_sequence,
        tables.launch_ms,
        tables.mixed_rows,
    )
