"""manage.py scheduler: the tick loop, in the foreground."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import CommandError

from controlplane.core import scheduling
from controlplane.core.hostlease import HostError
from controlplane.core.management.base import PlainCommand


class Command(PlainCommand):
    """Keep jobs moving: send lost messages again, end dead ones, explain both."""

    help = "Runs the scheduler until SIGTERM or Ctrl-C."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Tick until a signal comes."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        try:
            scheduling.run(stop)
        except HostError as error:
            raise CommandError(str(error)) from error
