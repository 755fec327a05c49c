"""What the memory page asks the planner: model, GPU and settings in; ledger, origins and remedies out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from controlplane.dashboard import figures, figures_load, fmt
from controlplane.dashboard.chart import Chart
from planner import catalog, engines, memory
from planner.catalog.types import GpuSpec
from planner.engines.types import EngineSettings, ResolvedSettings
from planner.jsonio import to_json
from planner.memory.types import MemoryLedger
from planner.models.spec import Attention, Mla, ModelSpec

FLAGS = {
    "vllm": {
        "max_model_len": "--max-model-len", "gpu_memory_utilization": "--gpu-memory-utilization",
        "max_num_seqs": "--max-num-seqs", "max_num_batched_tokens": "--max-num-batched-tokens",
        "kv_cache_dtype": "--kv-cache-dtype", "tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size",
        "block_tokens": "--block-size", "max_loras": "--max-loras",
    },
    "tensorrt_llm": {
        "max_model_len": "--max_seq_len", "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_num_seqs": "--max_batch_size", "max_num_batched_tokens": "--max_num_tokens",
        "kv_cache_dtype": "kv_cache_config.dtype", "tp": "--tp_size", "pp": "--pp_size",
        "block_tokens": "kv_cache_config.tokens_per_block", "capacity_policy": "capacity_scheduler_policy",
    },
}  # fmt: skip
"""The option that sets each value, by engine."""

SHOWN = (
    ("max_model_len", "Context"), ("max_num_seqs", "Sequences at once"), ("max_num_batched_tokens", "Tokens a step"),
    ("gpu_memory_utilization", "Share of total memory"), ("free_gpu_memory_fraction", "Share of free memory"),
    ("kv_cache_dtype", "KV cache"), ("precision", "Precision"), ("block_tokens", "Block"),
    ("capacity_policy", "When memory is short"), ("max_loras", "Adapters loaded"),
)  # fmt: skip


@dataclass(frozen=True)
class MemoryAnswer:
    """What one GPU holds."""

    model: ModelSpec
    gpu: GpuSpec
    resolved: ResolvedSettings
    ledger: MemoryLedger
    support: Any
    asked: EngineSettings
    remedies: tuple[Any, ...]

    @property
    def parts(self) -> list[tuple[str, str, float, str]]:
        """Bar parts: key, word, GiB, hover."""
        return figures.memory_segments(to_json(self.ledger))

    @property
    def segments(self) -> list[tuple[str, float, str]]:
        """The bar."""
        return [(key, size, hover) for key, _, size, hover in self.parts]

    @property
    def kv_kib(self) -> float:
        """KiB of KV cache for one token, on one GPU."""
        return self.ledger.kv_bytes_per_token / 1024

    @property
    def chart(self) -> Chart:
        """How many requests of one length the pool holds at once, as the engine counts them."""
        longest = max(self.ledger.largest_model_len, self.resolved.max_model_len)
        points = []
        for length in lengths_up_to(min(longest, self.model.max_position)):
            asked = dataclasses.replace(self.asked, max_model_len=length)
            row = memory.ledger(self.model, self.gpu, engines.resolve(asked, self.model, self.gpu))
            points.append((length, row.max_concurrency if row.fits else 0.0))
        return figures_load.concurrency(points, self.resolved.max_model_len)

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        row = self.ledger
        if row.fits:
            room = fmt.sig(row.margin_gib, 2)
            if row.largest_model_len > self.resolved.max_model_len:
                return f"Fits with {room} GiB to spare; context could grow to {row.largest_model_len:,} tokens."
            return f"Fits with {room} GiB to spare beyond one request of {self.resolved.max_model_len:,} tokens."
        return "Does not fit. " + " ".join(row.reasons)

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Each setting with its value, flag and where the value came from."""
        engine = str(self.resolved.engine)
        rows = []
        for name, word in SHOWN:
            value = getattr(self.resolved, name)
            if value is None or (name == "max_loras" and not value):
                continue
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            origin = self.resolved.origin.get(name, "")
            origin = "set here" if origin == "user" else origin
            rows.append({"word": word, "value": shown, "flag": FLAGS[engine].get(name, ""), "origin": origin})
        return rows


def lengths_up_to(longest: int) -> list[int]:
    """1,024, 2,048, 4,096... and ``longest`` itself."""
    return [*(2**k for k in range(10, 24) if 2**k < longest), longest] if longest > 0 else []


def answer(model_ref: ModelSpec, gpu_name: str, settings: EngineSettings) -> MemoryAnswer:
    """Ask the planner; raises PlannerError with the field, the value and the remedy."""
    gpu = catalog.get_gpu(gpu_name)
    resolved = engines.resolve(settings, model_ref, gpu)
    row = memory.ledger(model_ref, gpu, resolved)
    supported = engines.support(model_ref, gpu, settings)
    remedies = () if row.fits else tuple(memory.advise(model_ref, gpu, settings))
    return MemoryAnswer(model_ref, gpu, resolved, row, supported, settings, remedies)


def engines_for(model: ModelSpec, gpu_names: list[str]) -> list[dict[str, Any]]:
    """Which engine can run a model on each GPU, at the precision of its checkpoint, with the reason where it cannot."""
    table = []
    for name in gpu_names:
        gpu = catalog.get_gpu(name)
        cells = {
            str(engine): engines.support(model, gpu, EngineSettings(engine=engine)) for engine in engines.EngineName
        }
        table.append({"gpu": gpu, "support": [cells["vllm"], cells["tensorrt_llm"]]})
    return table


def layer_groups(model: ModelSpec) -> list[dict[str, Any]]:
    """Layer groups in words: mixer, its shape, feed-forward."""
    rows = []
    for group in model.groups:
        mixer, ffn = group.mixer, group.ffn
        if mixer is None:
            name, shape = "none", ""
        elif isinstance(mixer, Attention):
            name = f"{mixer.kind} attention" + (f", window {mixer.window:,}" if mixer.window else "")
            shape = f"{mixer.heads} heads, {mixer.kv_heads} KV heads of {mixer.head_dim}"
        elif isinstance(mixer, Mla):
            name, shape = (
                "multi-head latent attention",
                f"{mixer.heads} heads, latent {mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}",
            )
        else:
            name, shape = (
                f"recurrent state ({mixer.kind})",
                f"{mixer.state_elements + mixer.conv_elements:,} elements a sequence",
            )
        words = "none"
        if ffn is not None:
            words = f"{ffn.intermediate:,} wide{', gated' if ffn.gated else ''}"
            if ffn.experts:
                words = f"{ffn.experts} experts of {ffn.expert_intermediate:,}, {ffn.experts_per_token} a token"
        rows.append({"count": group.count, "mixer": name, "shape": shape, "ffn": words})
    return rows
