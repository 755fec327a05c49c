#!/usr/bin/env python3
"""Django's command line for Tonnage."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("tonnage: Django is not installed in this Python. Run make demo, or .venv/bin/python manage.py.")
    from controlplane.env import EnvError

    try:
        execute_from_command_line(sys.argv)
    except EnvError as error:
        sys.exit(f"tonnage: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
