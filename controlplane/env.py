"""Every environment variable that Tonnage reads, in one place, checked once.

TONNAGE_DATA_DIR, TONNAGE_DATABASE_URL, TONNAGE_BROKER_URL, TONNAGE_SECRET_KEY, TONNAGE_ALLOWED_HOSTS, TONNAGE_PORT,
TONNAGE_DEBUG, TONNAGE_HTTPS, TONNAGE_LOG_JSON, TONNAGE_ENGINE_PORTS, TONNAGE_CURRENCY.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from planner.economics.currency import BASE, currency_code
from planner.errors import InputError

BASE_DIR = Path(__file__).resolve().parent.parent
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


class EnvError(Exception):
    """An environment variable is malformed, or the data directory cannot be used. One sentence, safe to show."""


@dataclass(frozen=True, slots=True)
class Env:
    """The settings that come from outside. ``database_url`` and ``broker_url`` are empty for the embedded defaults."""

    data_dir: Path
    database_url: str
    broker_url: str
    secret_key: str
    allowed_hosts: tuple[str, ...]
    port: int
    debug: bool
    https: bool
    log_json: bool
    engine_ports: tuple[int, int] = (18100, 18399)
    currency: str = BASE

    @property
    def embedded_database(self) -> bool:
        """Whether the database is a SQLite file that only this host can open."""
        return not self.database_url or self.database_url.startswith("sqlite")

    @property
    def embedded_broker(self) -> bool:
        """Whether messages travel through the data directory."""
        return not self.broker_url or self.broker_url.startswith("filesystem")


def load(environ: Mapping[str, str] | None = None) -> Env:
    """Read and check the variables; raises EnvError naming the one that is wrong."""
    source = os.environ if environ is None else environ
    hosts = tuple(h.strip() for h in source.get("TONNAGE_ALLOWED_HOSTS", "").split(",") if h.strip())
    return Env(
        data_dir=Path(source.get("TONNAGE_DATA_DIR") or BASE_DIR / "var").expanduser().resolve(),
        database_url=source.get("TONNAGE_DATABASE_URL", "").strip(),
        broker_url=source.get("TONNAGE_BROKER_URL", "").strip(),
        secret_key=source.get("TONNAGE_SECRET_KEY", ""),
        allowed_hosts=hosts or ("localhost", "127.0.0.1", "[::1]"),
        port=_port(source.get("TONNAGE_PORT", "8000")),
        debug=_flag(source, "TONNAGE_DEBUG"),
        https=_flag(source, "TONNAGE_HTTPS"),
        log_json=_flag(source, "TONNAGE_LOG_JSON"),
        engine_ports=_port_range(source.get("TONNAGE_ENGINE_PORTS", "18100-18399")),
        currency=_currency(source.get("TONNAGE_CURRENCY") or BASE),
    )


def secret_key(env: Env) -> str:
    """The signing key: from the environment, else generated once into the data directory (mode 0600)."""
    if env.secret_key:
        return env.secret_key
    path = env.data_dir / "secret_key"
    try:
        if not path.exists():
            env.data_dir.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"secret_key.{os.getpid()}.{secrets.token_hex(4)}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(64))
            try:
                os.link(fresh, path)  # atomic: of two first starts, one key wins and both use it
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise EnvError(
            f"The data directory {env.data_dir} cannot be used: {error.strerror}. "
            "Make it writable, or set TONNAGE_DATA_DIR to a directory that is."
        ) from error


def database(env: Env) -> dict[str, Any]:
    """Django's DATABASES["default"] for the configured URL; raises EnvError for a scheme it does not know."""
    url = env.database_url or f"sqlite:///{env.data_dir / 'tonnage.sqlite3'}"
    parts = urlsplit(url)
    if parts.scheme in ("sqlite", "sqlite3"):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path[1:] if parts.path.startswith("//") else parts.path) or ":memory:",
            "ATOMIC_REQUESTS": False,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": (
                    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728; "
                    "PRAGMA journal_size_limit=27103364; PRAGMA cache_size=-16000;"
                ),
            },
        }
    if parts.scheme in ("postgres", "postgresql"):
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")) or "tonnage",
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or ""),
            "CONN_MAX_AGE": 60,
            "CONN_HEALTH_CHECKS": True,
        }
    raise EnvError(
        f"TONNAGE_DATABASE_URL has the unknown scheme {parts.scheme!r}; use sqlite:///path or postgresql://user@host/name."
    )


def _flag(source: Mapping[str, str], name: str) -> bool:
    text = source.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise EnvError(f"{name} is {text!r}; use 1 or 0.")


def _port(text: str) -> int:
    if text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise EnvError(f"TONNAGE_PORT is {text!r}; use a number from 1 to 65535.")


def _currency(text: str) -> str:
    try:
        return currency_code(text, "TONNAGE_CURRENCY")
    except InputError as error:
        raise EnvError(str(error)) from error


def _port_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if first.isdigit() and last.isdigit() and 1024 <= int(first) <= int(last) < 65536:
        return int(first), int(last)
    raise EnvError(f"TONNAGE_ENGINE_PORTS is {text!r}; write the first and last port like 18100-18399, from 1024 up.")
