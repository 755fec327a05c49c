"""``python -m benchmarks accuracy NAME`` and ``python -m benchmarks speed NAME``; without a name, the list of names.

Each benchmark is a module ``benchmarks/<group>/<name>.py`` with ``run(argv) -> dict`` that prints a readable table; the
last line printed here is that dict as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

BENCHMARKS = {
    "accuracy": ("memory", "latency", "engine-choice"),
    "speed": ("simulate", "size", "sessions", "place", "web"),
}


def main(argv: list[str]) -> int:
    """Run one benchmark; returns the exit status (2 for a name that is none)."""
    if len(argv) < 2 or argv[1] not in BENCHMARKS.get(argv[0], ()):
        lines = [f"  python -m benchmarks {group} {'|'.join(names)}" for group, names in BENCHMARKS.items()]
        print("usage:", *lines, sep="\n", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.{argv[0]}.{argv[1].replace('-', '_')}")
    run: Callable[[list[str]], dict[str, Any]] = module.run
    print(json.dumps(run(argv[2:]), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
