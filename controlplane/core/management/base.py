"""What our own commands have in common."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class PlainCommand(BaseCommand):
    """A command whose refusals are one plain sentence, and whose progress is shown line by line."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run; on the command line a refusal ends with exit code 1 and no ceremony."""
        try:
            return super().execute(*args, **options)
        except CommandError as error:
            if not getattr(self, "_called_from_command_line", False):
                raise
            self.stderr.write(f"tonnage: {' '.join(str(error).split())}")
            sys.exit(error.returncode)

    def say(self, text: str) -> None:
        """One line, at once."""
        self.stdout.write(text)
        self.stdout.flush()
