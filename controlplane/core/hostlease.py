"""One host at a time may use an embedded (SQLite) database.

SQLite's locks do not hold over network file systems. The scheduler renews a lease in the data directory; a process on
another host that finds a fresh lease of a different host refuses to start and says why.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from pathlib import Path

from django.conf import settings

LEASE_S = 30.0


class HostError(Exception):
    """Another host uses this SQLite database. One sentence, safe to show."""


def host_id() -> str:
    """A name for this machine that differs between machines and between containers."""
    return f"{socket.gethostname()}/{uuid.getnode():012x}"


def check(path: Path | None = None) -> None:
    """Raise HostError when another host holds a fresh lease; does nothing with a database server."""
    if not settings.ENV.embedded_database:
        return
    holder, age_s = _read(path or _default())
    if holder and holder != host_id() and age_s < LEASE_S:
        raise HostError(
            f"The database is a SQLite file in use by the host {holder.split('/')[0]}, and SQLite cannot be shared "
            "between hosts. Set TONNAGE_DATABASE_URL to a PostgreSQL database, and TONNAGE_BROKER_URL to Redis or "
            "RabbitMQ, on both."
        )


def renew(path: Path | None = None) -> None:
    """Take or extend the lease; raises HostError as ``check`` does."""
    if not settings.ENV.embedded_database:
        return
    check(path)
    target = path or _default()
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps({"host": host_id(), "at": time.time()}))
    fresh.replace(target)


def _default() -> Path:
    return Path(settings.DATA_DIR) / "host.json"


def _read(path: Path) -> tuple[str, float]:
    """Holder of the lease and its age in seconds; an unreadable lease is none."""
    try:
        data = json.loads(path.read_text())
        return str(data["host"]), time.time() - float(data["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0.0
