"""Reading an engine's Prometheus text."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from runners.engines.base import MetricNames

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of an engine at one moment, summed over its ranks; None where it has no such counter."""

    prompt_cached: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    drafted: float | None = None
    accepted: float | None = None


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The KV cache as the engine's ``cache_config_info`` states it."""

    blocks: int | None = None
    block_tokens: int | None = None


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Prometheus text as name -> [(labels, value)]; raises ValueError when it is malformed."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def read_counters(text: str, names: MetricNames) -> Counters:
    """The counters that validation needs."""
    found = samples(text)

    def total(name: str | None) -> float | None:
        rows = found.get(name or "")
        return sum(value for _, value in rows) if rows else None

    return Counters(
        prompt_cached=total(names.prompt_cached),
        prefix_queries=total(names.prefix_queries),
        prefix_hits=total(names.prefix_hits),
        preemptions=total(names.preemptions),
        prompt_tokens=total(names.prompt_tokens),
        output_tokens=total(names.output_tokens),
        drafted=total(names.drafted),
        accepted=total(names.accepted),
    )


def read_cache_info(text: str) -> CacheInfo:
    """Blocks and block size out of vLLM's ``cache_config_info``; empty where there is none."""
    rows = samples(text).get("vllm:cache_config_info", [])
    if not rows:
        return CacheInfo()
    labels = rows[0][0]
    blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return CacheInfo(int(blocks) if blocks.isdigit() else None, int(block) if block.isdigit() else None)


def fetch_text(base_url: str, names: MetricNames) -> str | None:
    """The engine's Prometheus text, None when it has none or does not answer."""
    try:
        response = httpx.get(base_url + names.path, timeout=TIMEOUT_S)
    except httpx.HTTPError:
        return None
    is_text = response.headers.get("content-type", "").startswith("text/plain")
    return response.text if response.status_code == httpx.codes.OK and is_text else None
