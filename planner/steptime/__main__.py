"""``python -m planner.steptime MODEL GPU``: step times and where each operator's time comes from."""

from __future__ import annotations

import argparse
import sys

from planner.catalog import get_gpu, get_model
from planner.engines import resolve
from planner.engines.types import EngineName, EngineSettings
from planner.errors import PlannerError
from planner.steptime.build import build
from planner.steptime.types import StepModel

_BATCHES = (1, 8, 32, 64, 128, 256)
_LENGTHS = (1024, 4096, 16384)
_PROMPTS = (128, 512, 2048, 8192)


def main(argv: list[str]) -> int:
    """Print the step model of one deployment; returns the exit status (2 for a request that cannot be served)."""
    parser = argparse.ArgumentParser(prog="python -m planner.steptime", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("gpu")
    parser.add_argument("--engine", choices=[engine.value for engine in EngineName], default=EngineName.VLLM.value)
    parser.add_argument("--engine-version")
    for name in ("tp", "pp", "ep", "dp"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--precision", default="as-config")
    parser.add_argument("--kv-cache-dtype", default="auto")
    options = parser.parse_args(argv)
    settings = EngineSettings(
        engine=EngineName(options.engine),
        version=options.engine_version,
        tp=options.tp,
        pp=options.pp,
        ep=options.ep,
        dp=options.dp,
        precision=options.precision,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    try:
        model, gpu = get_model(options.model), get_gpu(options.gpu)
        step = build(model, gpu, resolve(settings, model, gpu))
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    print(_report(step))
    return 0


def _report(step: StepModel) -> str:
    lines = [f"evidence {step.evidence.value}"]
    lines += [f"  {family}: {evidence.value}" for family, evidence in sorted(step.operators.items())]
    lines += [f"  note: {note}" for note in step.notes]
    lines.append("decode step, ms" + "".join(f"{f'KV {length}':>12}" for length in _LENGTHS))
    for batch in _BATCHES:
        lines.append(f"  batch {batch:5d}  " + "".join(f"{step.decode_ms(batch, kv):12.2f}" for kv in _LENGTHS))
    lines.append("prompt alone, ms")
    lines += [f"  {tokens:5d} tokens {step.mixed_ms(tokens, 0, 0.0):10.2f}" for tokens in _PROMPTS]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
