"""manage.py demo: the sample fleet, then everything running."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command

from controlplane.core import launcher
from controlplane.core.management.base import PlainCommand


class Command(PlainCommand):
    """What ``make demo`` runs once the environment is there."""

    help = "Loads the sample fleet and workloads (once) and starts Tonnage; Ctrl-C stops it all."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        """--port, --host, --no-stop-engines."""
        launcher.options(parser, stop_engines=True)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check, migrate, load, run."""
        launcher.check_port(options["host"], options["port"])
        with launcher.single_instance():
            launcher.prepare(self.say)
            call_command("demo_setup", stdout=self.stdout)
            self.say("Starting web, scheduler, workers")
            launcher.serve(self.say, options["host"], options["port"], stop_engines=options["stop_engines"])
