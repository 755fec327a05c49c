"""The network between nodes in step times of instances that span them."""

from __future__ import annotations

import numpy as np
import pytest

from planner.catalog import get_gpu, get_model
from planner.estimate import estimate
from planner.steptime import Fabric, build
from planner.steptime.graph import AllReduceOp, TransferOp
from planner.steptime.roofline import RooflineSource
from tests.planner.steptime_samples import settings

MODEL, GPU = "meta-llama/Llama-3.1-70B-Instruct", "H100-SXM-80GB"


def decode_ms(fabric: Fabric, **shape: int) -> float:
    step = build(get_model(MODEL), get_gpu(GPU), settings(MODEL, GPU, **shape), fabric=fabric)
    return step.mixed_ms(4096, 32, 2048.0)


@pytest.mark.parametrize("shape", [{"tp": 16}, {"tp": 8, "pp": 2}])
def test_a_faster_network_shortens_a_step_over_nodes(shape: dict[str, int]) -> None:
    slow, usual, fast = (decode_ms(Fabric(rate, 8), **shape) for rate in (3.125, 50.0, 100.0))
    assert slow > usual >= fast


def test_the_network_is_nothing_to_an_instance_inside_a_node() -> None:
    assert decode_ms(Fabric(1.0, 8), tp=8) == decode_ms(Fabric(100.0, 8), tp=8) == decode_ms(Fabric(), tp=8)


def test_tensor_parallelism_over_smaller_nodes_costs_more() -> None:
    assert decode_ms(Fabric(12.5, 4), tp=8) > decode_ms(Fabric(12.5, 8), tp=8)


def test_rings_over_nodes_share_the_ports_of_a_node() -> None:
    """Two nodes of eight: a message of S bytes crosses as 2 (n - 1) / n S over eight ports of 25 GB/s."""
    source = RooflineSource(get_gpu(GPU), "vllm", Fabric(25.0, 8))
    ms = source.rows(AllReduceOp(8192, 16), np.array([8192.0])).ms[0]
    moved = 2 * 15 / 16 * 2 * 8192 * 8192
    assert ms == pytest.approx(moved / (8 * 25e6 * source.efficiency.link), rel=0.1)


def test_a_stage_hands_over_through_one_port() -> None:
    source = RooflineSource(get_gpu(GPU), "vllm", Fabric(25.0, 8))
    ms = source.rows(TransferOp("p2p", 2 * 8192.0, 16), np.array([8192.0])).ms[0]
    assert ms == pytest.approx(4 * 8192 * 8192 / (25e6 * source.efficiency.link), rel=0.02)


def test_a_request_may_state_the_network() -> None:
    request = {
        "model": MODEL, "gpu": GPU, "engine": "vllm", "tp": 8, "pp": 2, "load": {"kind": "closed", "concurrency": 8},
        "input_tokens": 4096, "output_tokens": 64, "gpus_per_node": 8,
    }  # fmt: skip
    slow, fast = (estimate({**request, "network_gb_s": rate})["perf"]["ttft_ms"]["mean"] for rate in (1.0, 50.0))
    assert slow > fast
    assert estimate({**request, "network_gb_s": 0})["status"] == "error"
