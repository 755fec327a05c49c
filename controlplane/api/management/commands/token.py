"""``manage.py token USER --name NAME``: an API token from the command line, for those who have the machine."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from controlplane.core.models import User
from controlplane.core.tokens import create_token


class Command(BaseCommand):
    """Make a token and print it, this once."""

    help = "Makes an API token for a user and prints it; it is shown this once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Whose, and how far it reaches."""
        parser.add_argument("user", help="user name")
        parser.add_argument("--name", required=True, help="what it is for; each user's names differ")
        parser.add_argument("--read-only", action="store_true", help="it can change nothing")
        parser.add_argument("--days", type=int, help="it ends after so many days (default: never)")
        parser.add_argument("--network", action="append", default=[], help="only from there, as 10.0.0.0/8; may repeat")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the token alone on standard output, so that a script can take it."""
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']!r}.")
        if options["days"] is not None and not 1 <= options["days"] <= 36_500:
            raise CommandError("--days must lie between 1 and 36500.")
        ends = timezone.now() + dt.timedelta(days=options["days"]) if options["days"] else None
        try:
            _, token = create_token(
                actor=None,
                user=user,
                name=options["name"],
                expires_at=ends,
                networks=tuple(options["network"]),
                read_only=options["read_only"],
            )
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stdout.write(token)
