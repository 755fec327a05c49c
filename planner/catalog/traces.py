"""Request traces and length sets that ship with the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.catalog.prefixes import prefix_share
from planner.catalog.tables import nearest, read_csv
from planner.errors import InputError

_MLPERF = "MLPerf Inference reference set, openshift-psap/performance-dashboard 7100702"
_SERVEGEN = "alibaba/ServeGen f891d11 (arXiv 2505.09999)"

_REQUESTS = {
    "azure_2023_code": (
        "Code completion in production, 57 minutes of November 2023",
        "Azure/AzurePublicDataset b469a11; Patel et al., Splitwise, ISCA 2024",
        "CC-BY",
    ),
    "mooncake_synthetic": (
        "Long prompts with shared prefixes; lengths of public data sets, Poisson arrivals (not production)",
        "kvcache-ai/Mooncake 3b5a594",
        "Apache-2.0",
    ),
    "lengths_mlperf_llama2_70b_99": ("Chat questions and answers (OpenOrca), lengths only", _MLPERF, "Apache-2.0"),
    "lengths_mlperf_llama3_1_8b_datacenter": ("News summaries (CNN/DailyMail), lengths only", _MLPERF, "Apache-2.0"),
    "lengths_mlperf_deepseek_r1": ("Reasoning answers, lengths only", _MLPERF, "Apache-2.0"),
    "lengths_arxiv_summarization": (
        "Scientific papers cut at 4k tokens, lengths only",
        "microsoft/vidur 7d47513",
        "MIT",
    ),
}

_RATES = {
    "rate_servegen_deepseek_r1": "Reasoning model, one day in 10-minute windows",
    "rate_servegen_m_small": "Small chat model, two weeks in 10-minute windows",
    "rate_servegen_m_mid": "Mid-size chat model, two weeks in 10-minute windows",
}

_PREFIX_BLOCK_TOKENS = 512


@dataclass(frozen=True, eq=False)
class TraceData:
    """Requests of one trace, equal-length arrays in order of arrival.

    ``times_s`` seconds from the first request, None for a set of lengths without arrivals. ``prefix_hit`` is the share
    of prompt tokens that an unbounded prefix cache would have held already, None when the trace does not tell.
    """

    name: str
    description: str
    times_s: NDArray[np.float64] | None
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    prefix_hit: float | None
    source: str
    licence: str


@dataclass(frozen=True, eq=False)
class RateProfile:
    """Arrivals per second over time: window starts in seconds and the mean rate of each window."""

    name: str
    description: str
    window_s: float
    start_s: NDArray[np.float64]
    rate_per_s: NDArray[np.float64]
    source: str
    licence: str


def list_traces() -> tuple[str, ...]:
    """Names for ``get_trace``."""
    return tuple(_REQUESTS)


def list_rate_profiles() -> tuple[str, ...]:
    """Names for ``get_rate_profile``."""
    return tuple(_RATES)


@cache
def get_trace(name: str) -> TraceData:
    """The trace of that name; InputError gives the nearest names. Requests without a token on one side are left out."""
    if name not in _REQUESTS:
        raise InputError("no trace of that name", field="trace", value=name, remedy=nearest(str(name), _REQUESTS))
    description, source, licence = _REQUESTS[name]
    rows = [row for row in read_csv("traces", f"{name}.csv.gz") if _positive(row)]
    timed = all(row["timestamp_s"] for row in rows)
    if timed:
        rows.sort(key=lambda row: float(row["timestamp_s"]))
    return TraceData(
        name=name,
        description=description,
        times_s=_frozen([float(row["timestamp_s"]) for row in rows], np.float64) if timed else None,
        input_tokens=_frozen([int(row["input_tokens"]) for row in rows], np.int64),
        output_tokens=_frozen([int(row["output_tokens"]) for row in rows], np.int64),
        prefix_hit=_prefix_hit(rows),
        source=source,
        licence=licence,
    )


@cache
def get_rate_profile(name: str) -> RateProfile:
    """The rate profile of that name; raises InputError with the nearest names."""
    if name not in _RATES:
        raise InputError("no rate profile of that name", field="rate_profile", value=name, remedy=nearest(name, _RATES))
    rows = read_csv("traces", f"{name}.csv.gz")
    starts = [float(row["window_start_s"]) for row in rows]
    return RateProfile(
        name=name,
        description=_RATES[name],
        window_s=starts[1] - starts[0],
        start_s=_frozen(starts, np.float64),
        rate_per_s=_frozen([float(row["req_per_s"]) for row in rows], np.float64),
        source=_SERVEGEN,
        licence="Apache-2.0",
    )


def _positive(row: dict[str, str]) -> bool:
    return int(row["input_tokens"] or 0) > 0 and int(row["output_tokens"] or 0) > 0


def _frozen(values: list, dtype: type) -> NDArray:
    array: NDArray = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def _prefix_hit(rows: list[dict[str, str]]) -> float | None:
    """Share of prompt tokens in leading 512-token blocks that an earlier request had already."""
    if "prefix_block_ids" not in rows[0]:
        return None
    lengths = (int(row["input_tokens"]) for row in rows)
    return prefix_share(lengths, (row["prefix_block_ids"].split() for row in rows), _PREFIX_BLOCK_TOKENS)
