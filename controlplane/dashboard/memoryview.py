"""What the memory page asks the planner: model, GPU and settings in; ledger, origins and remedies out."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from controlplane.dashboard import figures, figures_load, figures_memory
from controlplane.dashboard.chart import Chart
from controlplane.dashboard.memoryform import LENGTHS_ABOVE, REMEDY_FIELDS, MemoryForm
from planner import catalog, engines, fragmentation, memory
from planner.catalog.types import GpuSpec
from planner.engines.types import EngineSettings, ResolvedSettings
from planner.errors import InputError, PlannerError
from planner.fragmentation import PoolWaste
from planner.jsonio import to_json
from planner.memory.types import MemoryLedger
from planner.models.spec import Attention, Mla, ModelSpec

FLAGS = {
    "vllm": {
        "max_model_len": "--max-model-len", "gpu_memory_utilization": "--gpu-memory-utilization",
        "max_num_seqs": "--max-num-seqs", "max_num_batched_tokens": "--max-num-batched-tokens",
        "kv_cache_dtype": "--kv-cache-dtype", "tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size",
        "block_tokens": "--block-size", "max_loras": "--max-loras", "logprobs": "--max-logprobs",
        "mm_items_per_prompt": "--limit-mm-per-prompt", "speculative_tokens": "--speculative-config",
        "kv_cache_max_tokens": "--num-gpu-blocks-override",
    },
    "tensorrt_llm": {
        "max_model_len": "--max_seq_len", "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_num_seqs": "--max_batch_size", "max_num_batched_tokens": "--max_num_tokens",
        "kv_cache_dtype": "kv_cache_config.dtype", "tp": "--tp_size", "pp": "--pp_size",
        "block_tokens": "kv_cache_config.tokens_per_block", "capacity_policy": "capacity_scheduler_policy",
        "kv_cache_max_tokens": "kv_cache_config.max_tokens",
        "kv_cache_max_gpu_gib": "kv_cache_config.max_gpu_total_bytes",
        "kv_cache_host_gib": "kv_cache_config.host_cache_size", "max_loras": "lora_config.max_loras",
        "speculative_tokens": "speculative_config.num_nextn_predict_layers",
    },
}  # fmt: skip
"""The option that sets each value, by engine."""

SHOWN = (
    ("max_model_len", "Context"), ("max_num_seqs", "Sequences at once"), ("max_num_batched_tokens", "Tokens a step"),
    ("gpu_memory_utilization", "Share of total memory"), ("free_gpu_memory_fraction", "Share of free memory"),
    ("kv_cache_dtype", "KV cache"), ("precision", "Precision"), ("block_tokens", "Block"),
    ("capacity_policy", "When memory is short"), ("kv_cache_max_tokens", "Pool, tokens at most"),
    ("kv_cache_max_gpu_gib", "Pool, GiB at most"), ("kv_cache_host_gib", "Host cache, GiB"),
    ("max_loras", "Adapters loaded"), ("speculative_tokens", "Speculated tokens"),
    ("mm_items_per_prompt", "Images a prompt"), ("logprobs", "Log-probabilities a token"),
)  # fmt: skip
HIDDEN_AT_ZERO = ("max_loras", "speculative_tokens", "mm_items_per_prompt", "logprobs")


@dataclass(frozen=True)
class MemoryAnswer:
    """What one GPU holds; ``waste_problem`` says why the KV waste that was asked for cannot be shown."""

    model: ModelSpec
    gpu: GpuSpec
    report: memory.MemoryReport
    asked: EngineSettings
    device: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    waste: PoolWaste | None = None
    waste_problem: PlannerError | None = None

    @property
    def resolved(self) -> ResolvedSettings | None:
        """The settings as the engine fills them in; None where it does not run at all."""
        return self.report.resolved

    @property
    def ledger(self) -> MemoryLedger | None:
        """The memory; None where the engine does not run at all."""
        return self.report.ledger

    @property
    def command(self) -> str:
        """The command line, ready for a shell."""
        return shlex.join(self.report.command_line)

    @property
    def remedies(self) -> list[tuple[str, str]]:
        """What would fit: the sentence, and the query of this page with that one change."""
        found = []
        for remedy in self.report.remedies:
            changed = {**self.fields, REMEDY_FIELDS.get(remedy.field, remedy.field): str(remedy.value)}
            sequences = self.asked.max_num_seqs
            if remedy.field == "max_num_batched_tokens":
                changed["max_num_seqs"] = str(min(sequences or int(remedy.value), int(remedy.value)))
            if remedy.field == "tp" and self.asked.ep > 1:
                changed["ep"] = str(int(remedy.value) * self.asked.dp)
            found.append((remedy.sentence, urlencode(changed)))
        return found

    @property
    def policies(self) -> list[tuple[str, Any]]:
        """The three ways of giving out the pool, in words, with their figures."""
        if self.waste is None:
            return []
        return [(figures_memory.POLICY_WORDS[item.policy], item) for item in self.waste.report.policies]

    @property
    def shares_chart(self) -> Chart | None:
        """What the pool holds on average, by policy."""
        if self.waste is None:
            return None
        return figures_load.kv_fragmentation([(word, to_json(item)) for word, item in self.policies])

    @property
    def waste_chart(self) -> Chart | None:
        """The pool over time."""
        return None if self.waste is None else figures_memory.live_over_time(self.waste.report)

    @property
    def evidence_facts(self) -> list[tuple[str, str]]:
        """What the pool's interval rests on."""
        if self.ledger is None or self.resolved is None:
            return []
        row = memory.residual(self.resolved.engine, self.ledger.evidence)
        return [("Rests on", row.source), ("Interval", f"80 % of {row.rows} rows, widened {row.widening:g} times")]

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
        return self.ledger.kv_bytes_per_token / 1024 if self.ledger is not None else 0.0

    @property
    def chart(self) -> Chart:
        """How many requests of one length the pool holds at once, as the engine counts them."""
        if self.ledger is None or self.resolved is None:
            return figures_load.concurrency([], 1)
        longest = max(self.ledger.largest_model_len, self.resolved.max_model_len)
        points = []
        for length in lengths_up_to(min(longest, self.model.max_position)):
            asked = dataclasses.replace(self.asked, max_model_len=length)
            resolved = engines.resolve(asked, self.model, self.gpu)
            row = memory.ledger(self.model, self.gpu, resolved, **self.device)
            points.append((length, row.max_concurrency if row.fits else 0.0))
        return figures_load.concurrency(points, self.resolved.max_model_len)

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Each setting with its value, flag and where the value came from."""
        if self.resolved is None:
            return []
        engine = str(self.resolved.engine)
        rows: list[dict[str, Any]] = []
        for name, word in SHOWN:
            value = getattr(self.resolved, name)
            if value is None or (name in HIDDEN_AT_ZERO and not value):
                continue
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            origin = self.resolved.origin.get(name, "")
            origin = "set here" if origin == "user" else origin
            rows.append({"word": word, "value": shown, "flag": FLAGS[engine].get(name, ""), "origin": origin})
        return rows


def lengths_up_to(longest: int) -> list[int]:
    """1,024, 2,048, 4,096... and ``longest`` itself."""
    return [*(2**k for k in range(10, 24) if 2**k < longest), longest] if longest > 0 else []


def answer(model: ModelSpec, form: MemoryForm) -> MemoryAnswer:
    """Ask the planner what a valid ``form`` asks; raises PlannerError with the field, the value and the remedy."""
    gpu = catalog.get_gpu(form.cleaned_data["gpu"])
    asked, device = form.settings(), form.device()
    report = memory.memory_report(model, gpu, asked, **device, **form.requests())
    waste, problem = None, None
    if report.ledger is not None and report.resolved is not None and report.ledger.fits:
        try:
            waste = _waste(form, report.ledger, report.resolved)
        except PlannerError as error:
            problem = error
    fields = {name: str(form.data.get(name)) for name in form.fields if form.data.get(name)}
    return MemoryAnswer(model, gpu, report, asked, device, fields, waste, problem)


def _waste(form: MemoryForm, row: MemoryLedger, resolved: ResolvedSettings) -> PoolWaste | None:
    data = form.cleaned_data
    if not data["demand"]:
        return None
    if not row.kv_tokens:
        raise InputError("this model keeps no KV cache", field="demand", value=data["demand"])
    if data["demand"] != LENGTHS_ABOVE:
        trace = catalog.get_trace(data["demand"])
        return fragmentation.waste_in_pool(row, resolved, trace.input_tokens, trace.output_tokens)
    for name in ("input_tokens", "output_tokens"):
        if data[name] is None:
            raise InputError("is missing", field=name, remedy="State the lengths, or choose a trace.")
    spread = data["spread"] or 0.0
    count = fragmentation.requests_to_load(row, data["input_tokens"] + data["output_tokens"])
    return fragmentation.waste_in_pool(
        row,
        resolved,
        fragmentation.lengths(data["input_tokens"], spread, count, seed=1),
        fragmentation.lengths(data["output_tokens"], spread, count, seed=2),
    )


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
