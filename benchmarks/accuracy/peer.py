"""aiconfigurator's own estimate (``BaseBackend.run_agg`` of aiconfigurator-core) of the rows that we predict.

It answers (batch, context tokens per step) points by a mean-field formula; the batch is the row's concurrency per
attention-DP rank, the context tokens per step the prompt length (its default). Quantisation is passed explicitly.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy.scoring import Scored
from planner.catalog import get_gpu, get_model
from planner.errors import PlannerError

SYSTEM_BACKENDS = {"vllm": "vllm", "tensorrt_llm": "trtllm"}
GEMM = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "fp4": "nvfp4"}
MOE = {**GEMM, "mxfp4": "w4a16_mxfp4", "int4": "int4_wo"}
LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


class PeerUnavailableError(Exception):
    """aiconfigurator has no answer for this request; the text says why."""


def peer_estimate(request: dict[str, Any], *, isl: int, osl: int, batch: int) -> dict[str, float]:
    """TTFT and TPOT in ms and output tokens/s of the deployment. Raises PeerUnavailableError."""
    try:
        backend, model, database = _model(
            request["model"], request["gpu"], request["engine"], request.get("precision", "as-config"),
            request.get("tp", 1), request.get("pp", 1), request.get("ep", 1), request.get("dp", 1),
        )  # fmt: skip
        from aiconfigurator_core.sdk.config import RuntimeConfig

        runtime = RuntimeConfig(batch_size=max(1, batch), isl=isl, osl=osl, prefix=0)
        summary = backend.run_agg(model, database, runtime, ctx_tokens=isl)
        row = summary.get_summary_df().iloc[0]
    except PeerUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 - the package raises many kinds; each means "no answer"
        raise PeerUnavailableError(f"{type(error).__name__}: {error}") from None
    gpus = request.get("tp", 1) * request.get("pp", 1) * request.get("dp", 1)
    return {
        "ttft": float(row["ttft"]),
        "tpot": float(row["tpot"]),
        "output_tok_per_s": float(row["tokens/s/gpu"]) * gpus,
    }


@cache
def _model(
    name: str, gpu_name: str, engine: str, precision: str, tp: int, pp: int, ep: int, dp: int
) -> tuple[Any, Any, Any]:
    try:
        from aiconfigurator_core.sdk.backends.factory import get_backend
        from aiconfigurator_core.sdk.config_builders import build_model_config
        from aiconfigurator_core.sdk.models import get_model as get_peer_model
        from aiconfigurator_core.sdk.perf_database import get_database, get_latest_database_version
    except ImportError as error:
        raise PeerUnavailableError(str(error)) from None
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    try:
        system = get_gpu(gpu_name).aic_system
        spec = get_model(name)
    except PlannerError as error:
        raise PeerUnavailableError(str(error)) from None
    if system is None:
        raise PeerUnavailableError(f"no operator data for {gpu_name}")
    word = spec.quantization.precision if precision == "as-config" and spec.quantization.method != "none" else precision
    word = "bf16" if word == "as-config" else word
    word = "mxfp4" if spec.quantization.precision == "mxfp4" else word
    if word == "fp8" and spec.quantization.precision == "fp8_block":
        word = "fp8_block"
    if word not in MOE:
        raise PeerUnavailableError(f"no quantisation mode for {word}")
    backend_name = SYSTEM_BACKENDS[engine]
    version = get_latest_database_version(system, backend_name)
    if version is None:
        raise PeerUnavailableError(f"no {backend_name} data for {system}")
    database = get_database(system, backend_name, version)
    if database is None:
        raise PeerUnavailableError(f"no {backend_name} data for {system}")
    experts = any(group.ffn is not None and group.ffn.experts for group in spec.groups)
    config = build_model_config(
        tp_size=tp,
        pp_size=pp,
        attention_dp_size=dp,
        moe_tp_size=tp * dp // ep if experts else 1,
        moe_ep_size=ep if experts else 1,
        gemm_quant_mode=GEMM.get(word, "bfloat16"),
        moe_quant_mode=MOE[word],
        kvcache_quant_mode="bfloat16" if word in ("bf16", "fp16") else "fp8",
    )
    model = get_peer_model(_config_folder(name), config, backend_name)
    return get_backend(backend_name), model, database


@cache
def _folders() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="peer-model-")


@cache
def _config_folder(name: str) -> str:
    """A folder with the model's config.json, under an architecture that the package knows where the shapes allow it."""
    config = dict(get_model(name).config)
    architecture = (config.get("architectures") or [""])[0]
    if architecture in LLAMA_LIKE:
        config["architectures"] = ["LlamaForCausalLM"]
    config.pop("quantization_config", None)
    folder = Path(tempfile.mkdtemp(dir=_folders().name))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def compare(scored: Sequence[Scored]) -> dict[str, Any]:
    """Median |error| of aiconfigurator and of ours on the rows that both answer, by kind of row and metric."""
    errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
    refused: dict[str, int] = {}
    for s in scored:
        request = s.row.request
        load = request["load"]
        if load["kind"] == "open":
            continue
        ranks = request.get("dp", 1) * request.get("pp", 1)
        batch = load.get("concurrency", 0) or 256
        try:
            guess = peer_estimate(
                request,
                isl=_mean(request["input_tokens"]),
                osl=_mean(request["output_tokens"]),
                batch=max(1, batch // ranks),
            )
        except PeerUnavailableError as error:
            refused[str(error)[:80]] = refused.get(str(error)[:80], 0) + 1
            continue
        for metric, (value, _) in s.row.measured.items():
            if load["kind"] == "offline" and metric != "output_tok_per_s":
                continue
            if metric in s.ratio and guess[metric] > 0:
                pair = (abs(guess[metric] / value - 1.0), abs(s.ratio[metric] - 1.0))
                errors.setdefault((s.row.kind, metric), []).append(pair)
    result: dict[str, Any] = {}
    print("-- aiconfigurator's own estimate of the same rows: median |error| in % (ours beside it)")
    for (kind, metric), pairs in sorted(errors.items()):
        theirs = statistics.median(p[0] for p in pairs)
        ours = statistics.median(p[1] for p in pairs)
        print(f"{kind:8s} {metric:18s} {len(pairs):5d} rows  {100 * theirs:7.1f}  ({100 * ours:.1f})")
        result[f"{kind}.{metric}"] = {"rows": len(pairs), "aiconfigurator": theirs, "ours": ours}
    for reason, count in sorted(refused.items(), key=lambda item: -item[1])[:8]:
        print(f"{count:5d} rows without its answer: {reason}")
    return result


def _mean(tokens: Any) -> int:
    if isinstance(tokens, int):
        return tokens
    return round(tokens["mean"] if "mean" in tokens else (tokens["low"] + tokens["high"]) / 2)
