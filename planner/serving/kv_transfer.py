"""How long a prompt's KV cache takes from a prefill to a decode instance.

What moves is what the engine's block tables hold: whole blocks of the layers that keep all tokens, the window's blocks
of sliding layers, one state a sequence of recurrent ones; a latent cache (MLA) is read whole by every decode rank.

Time = hand-over + descriptors x posting time + bytes / (link x share). vLLM's NixlConnector posts a descriptor for K
and one for V of each block and layer: 2 x 64 layers x 313 blocks = 40,064 for 5,000 tokens of Qwen3-32B, as its log
prints (its issue 34054: 129 ms of posting, 3.2 us each; 50913 on L20: 1,785 in 6.7 ms, 3.75 us each). Over RDMA a
descriptor costs a twentieth of that (issue 55434). TensorRT-LLM gathers blocks into a buffer first and sends that:
10.7 ms for 8,192 tokens of Qwen3-235B (788 MB with an FP8 cache, 74 GB/s into one rank), plus 14.8 to 16.8 ms in its
queue (pull request 12273). Nothing public separates posting from moving over NVLink; its share is assumed, and a factor
of two either way is inside the band of TTFT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.catalog.types import GpuSpec
from planner.engines import model_traits as mt
from planner.engines.types import EngineName, ResolvedSettings
from planner.memory.kv_layout import KvGroup, KvLayout, kv_layout
from planner.models.spec import ModelSpec
from planner.serving.types import F64, I64
from planner.steptime.roofline import PCIE_GB_S

NVLINK_SHARE = 0.5
NETWORK_SHARE = 0.9  # nixlbench, 64 KiB pieces over two 100 Gb/s rails: 22.9 to 23.8 of 25 GB/s (LMCache pull 4161)
PCIE_SHARE = 0.65

POST_US_LOCAL = 3.3
POST_US_NETWORK = 0.17
TRT_QUEUE_MS = 15.0
TRT_GATHER_GB_S = 74.0
UNCERTAINTY = 2.0
"""Factor either way on the time of a transfer, for the band of TTFT."""

HANDSHAKE_MS = 1.0
"""Notification of the finished prefill and the request for its blocks, connection already up."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way between one prefill and one decode GPU: ``gb_s`` of one GPU in one direction, as built; ``share`` of it
    that transfers reach; ``post_us`` to post one descriptor."""

    kind: str  # nvlink | pcie | network
    gb_s: float
    share: float
    post_us: float

    @property
    def bytes_per_ms(self) -> float:
        """Bytes that one GPU moves a millisecond."""
        return self.gb_s * 1e6 * self.share


def link_within_node(gpu: GpuSpec, gpus: int, nvlink_domain: int) -> Link:
    """The link among ``gpus`` GPUs of one node: NVLink (or xGMI) when all share a domain, else PCIe."""
    if gpu.link_gb_s and "pcie" not in gpu.link.lower() and gpus <= nvlink_domain:
        return link_of("nvlink", gpu.link_gb_s)
    return link_of("pcie", PCIE_GB_S.get(gpu.pcie_gen or 4, PCIE_GB_S[4]))


def link_across_nodes(network_gb_s: float) -> Link:
    """The link over the network of nodes with ``network_gb_s`` a GPU, one direction."""
    return link_of("network", network_gb_s)


def link_of(kind: str, gb_s: float) -> Link:
    """The link of a known kind (nvlink | pcie | network) with ``gb_s`` a GPU, one direction."""
    share = {"nvlink": NVLINK_SHARE, "pcie": PCIE_SHARE, "network": NETWORK_SHARE}[kind]
    return Link(kind, gb_s, share, POST_US_NETWORK if kind == "network" else POST_US_LOCAL)


@dataclass(frozen=True, slots=True)
class KvShipment:
    """What moves for one prompt, seen from one decode rank.

    ``layout`` of a decode rank; ``regions`` descriptors a layer and block (2: K and V apart); ``fan_out`` how many
    times a decode rank's bytes leave one prefill rank; ``state_bytes`` of recurrent layers outside the pool, once a
    sequence.
    """

    layout: KvLayout
    regions: int
    fan_out: float
    state_bytes: float
    gathers: bool  # one buffer is sent instead of blocks

    def blocks(self, tokens: I64) -> list[tuple[KvGroup, F64]]:
        """Blocks of each layer group that prompts of ``tokens`` tokens send."""
        return [(group, _blocks(group, tokens)) for group in self.layout.groups]

    def bytes_in(self, tokens: I64) -> F64:
        """Bytes that one decode rank receives for prompts of ``tokens`` tokens."""
        found = np.full(tokens.shape, self.state_bytes, dtype=np.float64)
        for _, blocks in self.blocks(tokens):
            found += blocks * self.layout.block_bytes
        return found

    def bytes_total(self, tokens: int, ranks: int) -> float:
        """Bytes that all ``ranks`` decode ranks receive for one prompt."""
        return float(self.bytes_in(np.array([tokens], dtype=np.int64))[0]) * ranks

    def descriptors(self, tokens: I64) -> F64:
        """Transfers that one decode rank posts for prompts of ``tokens`` tokens."""
        if self.gathers:
            return np.ones(tokens.shape)
        found = np.zeros(tokens.shape, dtype=np.float64)
        for _, blocks in self.blocks(tokens):
            found += blocks * self.regions * self.layout.slots
        return found

    def post_ms(self, tokens: I64, link: Link) -> F64:
        """Time that the decode rank's worker posts descriptors: vLLM's stands still meanwhile."""
        return self.descriptors(tokens) * link.post_us / 1000.0

    def wire_ms(self, tokens: I64, link: Link) -> F64:
        """Time on the link: the busier of the receiving and the sending side."""
        rate = min(link.bytes_per_ms, TRT_GATHER_GB_S * 1e6) if self.gathers else link.bytes_per_ms
        return self.bytes_in(tokens) * max(1.0, self.fan_out) / rate

    def delay_ms(self) -> float:
        """Time of a transfer that is neither posting nor on the link."""
        return HANDSHAKE_MS + (TRT_QUEUE_MS if self.gathers else 0.0)

    def transfer_ms(self, tokens: int, link: Link) -> float:
        """Time of one transfer alone, from the end of prefill to the last byte."""
        one = np.array([tokens], dtype=np.int64)
        return self.delay_ms() + float(self.post_ms(one, link)[0] + self.wire_ms(one, link)[0])


def kv_shipment(model: ModelSpec, prefill: ResolvedSettings, decode: ResolvedSettings) -> KvShipment:
    """What moves between two instances of ``model``. Raises UnsupportedError as ``kv_layout`` does."""
    layout = kv_layout(model, decode)
    gathers = decode.engine is EngineName.TENSORRT_LLM
    # vLLM keeps a state in a block of the pool, TensorRT-LLM beside the pool
    states = layout.state_bytes_per_seq if gathers else 0.0
    return KvShipment(
        layout=layout,
        regions=1 if mt.is_mla(model) else 2,
        fan_out=decode.tp * decode.pp / (prefill.tp * prefill.pp),
        state_bytes=states,
        gathers=gathers,
    )


def _blocks(group: KvGroup, tokens: I64) -> F64:
    if group.kind == "state":
        return np.ones(tokens.shape)
    size = max(1, group.block_tokens)
    whole = np.ceil(tokens / size)
    if group.kind in ("sliding", "chunked") and group.window is not None:
        # blocks that the window left are freed before the prompt is done
        return np.minimum(whole, math.ceil(group.window / size) + 1)
    if group.kind == "cross" and group.window is not None:
        return np.full(tokens.shape, math.ceil(group.window / size), dtype=np.float64)
    return whole
