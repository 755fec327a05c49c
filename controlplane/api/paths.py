"""Paths of the API, with their closing slash."""

from __future__ import annotations

from typing import Any

from django.urls import reverse


def path_to(name: str, *arguments: Any) -> str:
    """The path of a route of the API by name."""
    path = reverse(f"api:{name}", args=arguments)
    return path if path.endswith("/") else f"{path}/"
