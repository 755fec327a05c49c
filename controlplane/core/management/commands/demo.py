"""manage.py demo: the sample fleet, then everything running."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.core import launcher


class Command(BaseCommand):
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

    def say(self, text: str) -> None:
        """One line, at once."""
        self.stdout.write(text)
        self.stdout.flush()
