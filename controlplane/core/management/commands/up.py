"""manage.py up: the whole installation on this host under one supervisor."""

from __future__ import annotations

from typing import Any

from controlplane.core import launcher
from controlplane.core.management.base import PlainCommand


class Command(PlainCommand):
    """Web application, scheduler, control and planning workers, and the worker of this host."""

    help = "Starts Tonnage and everything it needs; Ctrl-C stops it all."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        """--port, --host, --stop-engines."""
        launcher.options(parser, stop_engines=False)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check, migrate, run."""
        launcher.check_port(options["host"], options["port"])
        with launcher.single_instance():
            launcher.prepare(self.say)
            self.say("Starting web, scheduler, workers")
            launcher.serve(self.say, options["host"], options["port"], stop_engines=options["stop_engines"])
