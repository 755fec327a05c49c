"""Adapter of the emulated engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.errors import InputError
from runners.config import NodeConfig
from runners.contracts import EngineLaunch, StartupFacts
from runners.engines.base import Failure, MetricNames, Phase, ProcessPlan, check_launch
from runners.engines.emulated.spec import EmulationSpec, parse_spec
from runners.engines.logs import explain
from runners.engines.tensorrt_llm import TENSORRT_METRICS, TENSORRT_PHASES, TensorRtAdapter, parse_tensorrt_startup
from runners.engines.tokenizer import write_word_tokenizer
from runners.engines.vllm import VLLM_METRICS, VLLM_PHASES, VllmAdapter, parse_vllm_startup
from runners.errors import CommandRefusedError

_REPOSITORY = Path(__file__).resolve().parents[3]


class EmulatedAdapter:
    """An emulated vLLM or TensorRT-LLM; what it acts as decides names, phases and parsers."""

    name = "emulated"
    emulated = True
    uses_gpus = False
    tokenize_path: str | None = "/tokenize"

    def __init__(self, acts_as: str) -> None:
        self.acts_as = acts_as
        vllm = acts_as == "vllm"
        self.metrics: MetricNames = VLLM_METRICS if vllm else TENSORRT_METRICS
        self.phases: Sequence[Phase] = VLLM_PHASES if vllm else TENSORRT_PHASES

    def plan(self, launch: EngineLaunch, folder: Path, config: NodeConfig) -> ProcessPlan:
        """See ``EngineAdapter.plan``. Raises CommandRefusedError when the emulation's material is malformed."""
        check_launch(launch)
        spec = read_emulation(launch)
        (folder / "emulation.json").write_text(json.dumps(launch.emulation), encoding="utf-8")
        tokenizer = write_word_tokenizer(folder / "tokenizer", spec.vocab_size)
        argv = (sys.executable, "-m", "runners.engines.emulated", "--spec", str(folder / "emulation.json"))
        address = ("--served-name", launch.served_name, "--host", config.bind_host, "--port", str(launch.port))
        note = f"Emulated {spec.acts_as} {spec.version} on {spec.gpu}: its times are the planner's, not measured."
        return ProcessPlan((*argv, *address), {"PYTHONPATH": str(_REPOSITORY)}, tokenizer=str(tokenizer), notes=(note,))

    def listed_name(self, launch: EngineLaunch) -> str:
        """See ``EngineAdapter.listed_name``."""
        return launch.served_name

    def parse_startup(self, lines: Iterable[str]) -> StartupFacts:
        """See ``EngineAdapter.parse_startup``."""
        parse = parse_vllm_startup if self.acts_as == "vllm" else parse_tensorrt_startup
        return parse(line.removesuffix(" [emulated]") for line in lines)

    def explain_failure(self, lines: Sequence[str], returncode: int | None) -> Failure:
        """See ``EngineAdapter.explain_failure``."""
        real = VllmAdapter() if self.acts_as == "vllm" else TensorRtAdapter()
        failure = real.explain_failure(lines, returncode)
        generic = explain(lines, returncode, (), "vLLM" if self.acts_as == "vllm" else "TensorRT-LLM")
        if failure == generic:
            return explain(lines, returncode, (), "The emulated engine")
        return failure


def read_emulation(launch: EngineLaunch) -> EmulationSpec:
    """The emulation's material; raises CommandRefusedError naming the field that is wrong."""
    try:
        return parse_spec(launch.emulation)
    except InputError as error:
        raise CommandRefusedError(
            f"The emulation is malformed: {error}", "It must be what runners.engines.emulated.spec describes."
        ) from error
