"""The operator database: measured kernel times of one (system, engine, version) from ``aiconfigurator_core``.

Only model-less handles are opened, so nothing is ever looked up on the network. What the package returns outside its
measured grid carries no mark; ``grid`` tells where rows were really measured. Latencies are milliseconds of one GPU.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)

BACKENDS = {"vllm": "vllm", "tensorrt_llm": "trtllm"}
"""The planner's engine names in the package's words."""

BF16 = "bfloat16"  # in the package's words
_LARGEST_PREFILL = 131072  # batch x prompt in the prefill tables

AttentionKey = tuple[str, str, int, int]  # attention arithmetic, KV dtype, head_dim, window (0: full)
MoeShape = tuple[int, int, int, int]  # hidden, expert intermediate, top-k, experts


class NoOperatorDataError(LookupError):
    """The database has no row for what was asked. ``str`` says what is missing."""


def _in_words(message: str) -> str:
    """The package's message without its prefixes, the paths of its files and advice on its own configuration."""
    text = re.sub(r"^(perf database error: )+", "", message.splitlines()[0])
    text = re.sub(r"^missing system flops: quant mode '(\w+)'.*", r"no \1 arithmetic rate is known", text)
    text = text.split(" (first: ")[0]
    return re.sub(r"\S*/\S*/(\S+)", r"\1", text)


class OperatorDatabase:
    """One opened database. Queries are cached per operator; safe to share between threads."""

    def __init__(self, system: str, backend: str, version: str) -> None:
        from aiconfigurator_core.sdk import engine, perf_database

        self.system = system
        self.backend = backend
        self.version = version
        self._view = perf_database.get_database_view(system, backend, version, database_mode="SILICON")
        if self._view is None:
            raise NoOperatorDataError(f"no operator data for {system}, {backend} {version}")
        self._engine = engine
        self._handle = engine.EngineHandle.for_database(self._view)
        self._root = Path(self._view.systems_root) / "data" / system
        self._json: dict[tuple[Any, ...], str] = {}

    def serialise(self, key: tuple[Any, ...], make: Any) -> str:
        """JSON of the operator that ``make()`` builds, cached under ``key``."""
        text = self._json.get(key)
        if text is None:
            ops = [make()]
            self._engine._resolve_attention_lane_orders(ops, self._view, None)
            text = self._engine.build_ops_json(ops)
            self._json[key] = text
        return text

    def time_ms(
        self, ops_json: str, *, context: bool, batch: int, length: int, prefix: int = 0, tokens: int = 1
    ) -> float:
        """Milliseconds of one operator. Raises NoOperatorDataError when the tables cannot answer."""
        try:
            rows = self._handle.evaluate_ops_json(
                ops_json, is_context=context, batch_size=batch, s=length, prefix=prefix, x=tokens
            )
        except (RuntimeError, ValueError) as error:
            raise NoOperatorDataError(_in_words(str(error))) from error
        return float(sum(row[1] for row in rows))

    def prompts_ms(self, ops_json: str, prompts: float, each: float, past: float, factor: float = 1.0) -> float:
        """Milliseconds of one operator for ``prompts`` prompts of ``each`` tokens after ``past``, times ``factor``.

        What the tables do not hold (a part of a prompt, more tokens than were measured) is taken in proportion.
        """
        whole, length = max(1, round(prompts)), max(1, round(each))
        factor *= prompts / whole if prompts > 1 else 1.0
        if whole * length > _LARGEST_PREFILL:
            fewer = max(1, _LARGEST_PREFILL // length)
            factor *= whole / fewer
            whole = fewer
        past_tokens = max(0, round(past))
        return factor * self.time_ms(
            ops_json, context=True, batch=whole, length=length, prefix=past_tokens, tokens=whole * length
        )

    def columns(self, family: str, table: str, names: tuple[str, ...]) -> Mapping[str, pa.Array] | None:
        """Columns of a raw table of this database's own version (no inherited rows); zeros for a column that it
        lacks, None without the table."""
        path = self._root / family / self.backend / self.version / f"{table}.parquet"
        if not path.exists():
            return None
        present = parquet.read_schema(path).names
        frame = parquet.read_table(path, columns=[name for name in names if name in present])
        absent = pa.array(np.zeros(frame.num_rows, dtype=np.int64))
        return {name: frame[name].combine_chunks() if name in present else absent for name in names}

    @cache  # noqa: B019 - databases live as long as the process
    def attention_grid(self, decode: bool) -> Mapping[AttentionKey, Mapping[tuple[int, int], Mapping[int, int]]]:
        """Measured attention: key -> (heads, KV heads) -> batch -> longest KV (decode) or prompt (prefill)."""
        table = "generation_attention_perf" if decode else "context_attention_perf"
        numbers = ("head_dim", "window_size", "num_heads", "num_key_value_heads", "batch_size")
        columns = self.columns("attention", table, ("attn_dtype", "kv_cache_dtype", *numbers, "isl", "step"))
        grid: dict[AttentionKey, dict[tuple[int, int], dict[int, int]]] = {}
        if columns is None:
            return grid
        arithmetic, arithmetic_code = _codes(columns["attn_dtype"])
        kv_types, kv_code = _codes(columns["kv_cache_dtype"])
        rows, inverse = _distinct([arithmetic_code, kv_code, *(_integers(columns[name]) for name in numbers)])
        longest = np.zeros(len(rows), dtype=np.int64)
        np.maximum.at(longest, inverse, _integers(columns["isl"]) + _integers(columns["step"]))
        for row, length in zip(rows, longest.tolist(), strict=True):
            a, kv, head_dim, window, heads, kv_heads, batch = row
            key = (arithmetic[a], kv_types[kv], head_dim, window)
            grid.setdefault(key, {}).setdefault((heads, kv_heads), {})[batch] = length
        return grid

    @cache  # noqa: B019
    def gemm_grid(self) -> Mapping[str, tuple[int, int, int]]:
        """Measured GEMMs: dtype -> largest (m, n, k)."""
        columns = self.columns("gemm", "gemm_perf", ("gemm_dtype", "m", "n", "k"))
        if columns is None:
            return {}
        dtypes, code = _codes(columns["gemm_dtype"])
        axes = [_integers(columns[axis]) for axis in ("m", "n", "k")]
        grid = {}
        for index, dtype in enumerate(dtypes):
            m, n, k = (int(axis[code == index].max()) for axis in axes)
            grid[dtype] = (m, n, k)
        return grid

    @cache  # noqa: B019
    def moe_grid(self) -> Mapping[str, Mapping[MoeShape, frozenset[tuple[int, int]]]]:
        """Measured experts: dtype -> shape -> set of (tensor, expert) parallel sizes."""
        names = ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
        columns = self.columns("moe", "moe_perf", names)
        grid: dict[str, dict[MoeShape, set[tuple[int, int]]]] = {}
        if columns is None:
            return {}
        dtypes, index = _codes(columns["moe_dtype"])
        rows, _ = _distinct([index, *(_integers(columns[name]) for name in names[1:])])
        for dtype, hidden, inter, topk, experts, tp, ep in rows:
            shapes = grid.setdefault(dtypes[dtype], {})
            shapes.setdefault((hidden, inter, topk, experts), set()).add((tp, ep))
        return {dtype: {shape: frozenset(s) for shape, s in shapes.items()} for dtype, shapes in grid.items()}

    @cache  # noqa: B019
    def moe_kernels(self, mode: str) -> Mapping[str, frozenset[MoeShape]]:
        """Shapes whose experts were measured in ``mode``, by the table's name of the kernel."""
        sizes = ("hidden_size", "inter_size", "topk", "num_experts")
        columns = self.columns("moe", "moe_perf", ("moe_dtype", "kernel_source", *sizes))
        if columns is None:
            return {}
        dtypes, code = _codes(columns["moe_dtype"])
        kernels, kernel_code = _codes(columns["kernel_source"])
        rows, _ = _distinct([code, kernel_code, *(_integers(columns[name]) for name in sizes)])
        shapes: dict[str, set[MoeShape]] = {}
        for dtype, kernel, hidden, inter, topk, experts in rows:
            if dtypes[dtype] == mode:
                shapes.setdefault(kernels[kernel], set()).add((hidden, inter, topk, experts))
        return {kernel: frozenset(found) for kernel, found in shapes.items()}

    @cache  # noqa: B019
    def moe_kernel_ms(
        self, mode: str, kernel: str, shape: MoeShape, split: tuple[int, int], distribution: str
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(tokens, milliseconds) measured with one kernel where several timed the same shape; empty without rows."""
        names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
        words = {"moe_dtype": mode, "kernel_source": kernel, "distribution": distribution}
        columns = self.columns("moe", "moe_perf", (*names, *words, "latency"))
        if columns is None:
            return (), ()
        kept = np.ones(len(columns["latency"]), dtype=bool)
        for name, value in zip(names[1:], (*shape, *split), strict=True):
            kept &= _integers(columns[name]) == value
        for name, word in words.items():
            texts, code = _codes(columns[name])
            kept &= code == (texts.index(word) if word in texts else -1)
        tokens = _integers(columns["num_tokens"])[kept]
        ms = columns["latency"].to_numpy(zero_copy_only=False)[kept].astype(np.float64)
        order = np.argsort(tokens, kind="stable")
        return tuple(tokens[order].astype(float).tolist()), tuple(ms[order].tolist())

    @cache  # noqa: B019
    def mla_grid(self, sparse: bool) -> tuple[tuple[int, int], ...]:
        """Measured latent-attention decode: (batch, longest KV), by batch. Raises NoOperatorDataError without rows."""
        family = "sparse_attention" if sparse else "mla"
        table = "dsa_generation_module_perf" if sparse else "mla_generation_module_perf"
        columns = self.columns(family, table, ("batch_size", "isl", "step"))
        if columns is None:
            raise NoOperatorDataError(f"no latent attention rows for {self.backend} on {self.system}")
        batch, length = _integers(columns["batch_size"]), _integers(columns["isl"]) + _integers(columns["step"])
        return tuple((int(b), int(length[batch == b].max())) for b in np.unique(batch))

    @cache  # noqa: B019
    def all_reduce_gpus(self) -> frozenset[int]:
        """Group sizes whose all-reduce was measured."""
        columns = self.columns("comm", "custom_allreduce_perf", ("num_gpus",))
        return frozenset() if columns is None else frozenset(_integers(columns["num_gpus"]).tolist())


@lru_cache(maxsize=32)
def versions(system: str, engine: str) -> tuple[str, ...]:
    """Versions of ``engine`` that the package measured on ``system``, newest first; empty when it has none."""
    from aiconfigurator_core.sdk import perf_database

    backend = BACKENDS[engine]
    try:
        slots = perf_database.get_version_slots(system, backend)
    except (KeyError, ValueError, RuntimeError):
        return ()
    return tuple(str(slots[name]) for name in ("current", "previous") if slots and slots.get(name))


@lru_cache(maxsize=16)
def open_database(system: str, engine: str) -> OperatorDatabase | None:
    """The newest complete database of ``engine`` on ``system``; None when there is none."""
    for version in versions(system, engine):
        try:
            return OperatorDatabase(system, BACKENDS[engine], version)
        except NoOperatorDataError:
            continue
    return None


def _codes(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Distinct strings of a column and the index of each row among them."""
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _integers(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _distinct(columns: list[np.ndarray]) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Distinct rows of integer columns, and the index of each row among them (sorting single numbers, not rows)."""
    code = np.zeros(columns[0].size, dtype=np.int64)
    values: list[np.ndarray] = []
    for column in columns:
        found, position = np.unique(column, return_inverse=True)
        values.append(found)
        code = code * found.size + position
    unique, inverse = np.unique(code, return_inverse=True)
    rows = []
    for packed in unique.tolist():
        row = []
        for found in reversed(values):
            packed, digit = divmod(packed, found.size)
            row.append(int(found[digit]))
        rows.append(tuple(reversed(row)))
    return rows, inverse
