"""Fitted constants of the memory model, each with what it was fitted on.

Sources: *A* 34 start-ups of vLLM 0.19.0 on one to four H100 (llm-d-planner PR 205, raw results), *B* start-ups of vLLM
0.10 to 0.16 on H100 (same planner, GPU memory tables), *C* start-up logs quoted in public issues
(benchmarks/data/kvmem, by row), *D* six own start-ups of vLLM 0.24.0 on an H200. Sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerCost:
    """Peak of the dummy sampling pass: ``units`` x (rows x vocabulary x 4 bytes) + ``fixed_gib`` + one hidden state.

    A unit is one fp32 logits tensor. Applies from version ``since`` on, up to the next entry.
    """

    since: str
    units: float
    fixed_gib: float
    source: str


SAMPLER_V1 = (
    SamplerCost("0.0.0", 9.46, 0.02, "C kv007, kv070, kv073: torch sort of the logits, V0 engine"),
    SamplerCost("0.9.0", 9.46, 0.08, "B, four models at 1024 rows; C kv042 at 256: torch sort, V1 engine"),
    SamplerCost("0.17.0", 3.58, 0.08, "A, fourteen dense models, worst 0.05 GiB off; PR 33538 (Triton top-k/top-p)"),
)
"""Sampler of the V0 and V1 model runners."""

SAMPLER_FLASHINFER = SamplerCost("0.9.0", 1.50, 0.08, "C kv041, kv045, whose logs name FlashInfer: nothing sorted")
"""FlashInfer's sampling kernels: 16-bit logits and their fp32 copy."""

SAMPLER_V2 = SamplerCost("0.22.1", 1.92, 0.08, "D, five start-ups at 1024 rows: -0.1 to +0.3; C kv028: +0.03")
"""Sampler of the V2 model runner. Kernels need 1.5 units; a cold compile adds up to 0.3 GiB to the logged peak."""

FORWARD_FIXED_GIB = 0.08
"""Beside the layer's own tensors in the dummy forward pass. A: CodeLlama-7b 0.77, granite-3.1-8b 0.85."""

FORWARD_HIDDEN_COPIES = 3.0
"""Hidden states alive at the widest point of a layer: input, residual, norm output. A, as above."""

PIPELINE_HIDDEN_COPIES = 2.0
"""Hidden state and residual received from the stage before. A: Llama-3.1-8B, PP4, 1.05."""

MULTIMODAL_FIXED_GIB = 0.06
"""Encoder outputs kept during profiling cost one hidden state of the encoder budget plus this. A: six models."""

MOE_WORKSPACE_SINCE = "0.13.0"
"""From here the experts' workspace outlives the layer and adds to the sampler's peak. A: Mixtral, Qwen3-30B-A3B,
DeepSeek-V2-Lite and Kimi-VL at TP1 and TP2."""

CUDA_CONTEXT_GIB = 0.51
"""In use on an NVIDIA GPU before the engine allocates anything; not part of vLLM's budget. D, six start-ups."""

GRAPH_MIB_PER_GRAPH_LAYER = 0.272
"""Memory of a captured CUDA graph per layer. D: 1.00 GiB for 102 graphs x 36 layers, 0.98 for 32, 1.87 for 64, but 0.50
for 28 narrow ones; C kv041 0.50 GiB for 67 x 28."""


@dataclass(frozen=True, slots=True)
class NonTorch:
    """CUDA context growth and communication buffers of one rank, by interconnect, from version ``since`` on.

    ``per_doubling_gib`` is added for each doubling of TP beyond two.
    """

    since: str
    single_gib: float
    pcie_gib: float
    nvlink_gib: float
    nvswitch_gib: float
    per_doubling_gib: float
    source: str


NON_TORCH = (
    NonTorch("0.0.0", 0.03, 0.35, 0.5, 0.5, 0.0, "C kv007 0.03, kv070 0.01, kv072 0.10; 0.39 at TP2 over PCIe"),
    NonTorch("0.9.0", 0.13, 0.40, 0.40, 0.54, 0.0, "B: 0.13 at TP1, 0.54 at TP2 on H100; C kv045 0.40 on A100"),
    NonTorch("0.17.0", 0.25, 0.50, 0.60, 2.07, 0.07, "A: 0.25 at TP1, 2.07 at TP2, 2.13 to 2.21 at TP4; D 0.25"),
    NonTorch("0.20.2", 0.22, 0.50, 0.60, 2.07, 0.07, "D, five start-ups, and C kv028: 0.22 at TP1; TP as for 0.17"),
    NonTorch("0.28.0", 0.25, 0.50, 0.60, 0.60, 0.0, "no jump at TP2 on GH200, 0.28.0; others not measured"),
)

PIPELINE_NON_TORCH_GIB = 0.20
"""Last stage of a pipeline without TP. A: Llama-3.1-8B PP2 and PP4, from tokens."""


@dataclass(frozen=True, slots=True)
class TrtllmCost:
    """TensorRT-LLM: what lies outside torch on one rank, and what the engine-build back end allocates up front.

    ``context_gib`` CUDA context and libraries (``engine_context_gib`` with the TensorRT runtime); ``nccl_gib`` more
    with several ranks; ``graph_mib_per_graph_layer`` of captured graphs; ``decoder_units`` x (max_batch_size x
    vocabulary x 4 bytes) for logits and sampling.
    """

    context_gib: float
    engine_context_gib: float
    nccl_gib: float
    graph_mib_per_graph_layer: float
    decoder_units: float
    source: str


TRTLLM = TrtllmCost(
    0.73,
    1.2,
    0.4,
    0.272,
    4.3,
    "context as D measured for torch; C kv029 for the engine build; graphs as in vLLM",
)
