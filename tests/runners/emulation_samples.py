"""Material for emulated engines, and a listener that keeps what a node sends."""

from __future__ import annotations

from typing import Any

from runners.contracts import Observation


def tables(decode_ms: float = 4.0) -> dict[str, Any]:
    """Step tables of a made-up GPU: a decode step of a few sequences takes about ``decode_ms`` milliseconds."""
    tokens = [1.0, 64.0, 512.0, 8192.0]
    return {
        "shared_tokens": tokens,
        "shared_ms": [decode_ms + 0.02 * value for value in tokens],
        "head_seqs": [1.0, 256.0],
        "head_ms": [0.1, 0.5],
        "prefill_tokens": [1.0, 8192.0],
        "prefill_context": [1.0, 8192.0],
        "prefill_ms": [[0.01, 0.02], [1.0, 8.0]],
        "decode_batch": [1.0, 256.0],
        "decode_kv": [1.0, 8192.0],
        "decode_ms": [[0.05, 0.2], [0.5, 20.0]],
        "fixed_ms": 0.2,
        "graph_sizes": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
        "pp": 1,
    }


def emulation(**changes: Any) -> dict[str, Any]:
    """An EmulationSpec as JSON."""
    data: dict[str, Any] = {
        "acts_as": "vllm",
        "version": "0.24.0",
        "gpu": "H100-SXM-80GB",
        "tables": tables(),
        "front_end": {
            "request_ms": 1.0,
            "request_ms_per_1k_tokens": 1.0,
            "response_ms": 0.5,
            "turnaround_ms": 0.0,
        },
        "limits": {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_model_len": 4096,
            "block_tokens": 16,
            "kv_blocks": 4000,
        },
        "startup": {"weights_gib": 15.27, "kv_gib": 50.0, "graph_gib": 1.0},
        "load_s": 0.1,
    }
    return {**data, **changes}


class Recorder:
    """Keeps what a node sends."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def __call__(self, observation: Observation) -> None:
        self.seen.append(observation)

    @property
    def states(self) -> list[str]:
        """States in order, heartbeats left out."""
        return [item.state for item in self.seen if item.state != "heartbeat"]

    @property
    def last(self) -> Observation:
        """The last observation."""
        return self.seen[-1]
