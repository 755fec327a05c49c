"""Database failures that pass by themselves: a locked SQLite file, a deadlock, a server that restarts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

T = TypeVar("T")
TRANSIENT = (OperationalError, InterfaceError)


def retry_transient(act: Callable[[], T], *, limit_s: float = 30.0, first_wait_s: float = 0.05) -> T:
    """Run ``act`` until it is not met by a transient failure, at most ``limit_s`` seconds; then raise the failure.

    ``act`` must open its own transaction. Inside a surrounding transaction nothing is repeated.
    """
    wait_s = first_wait_s
    give_up_at = time.monotonic() + limit_s
    while True:
        try:
            return act()
        except TRANSIENT:
            if connection.in_atomic_block or time.monotonic() + wait_s > give_up_at:
                raise
            connection.close()
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, 2.0)
