"""Every page of the sample fleet by its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
"""Gives a signed-in page at a width and in a theme."""


def paths(sample: dict[str, Any]) -> list[str]:
    plan = sample["plan"].pk
    return [
        "/", "/help/", "/rules/", "/fleet/", "/fleet/nodes/", "/fleet/nodes/osl-h200-01/", "/fleet/prices/",
        "/fleet/discovered/", "/workloads/", "/workloads/new/", "/workloads/agent-tools/",
        "/workloads/agent-tools/edit/",
        "/workloads/models/Qwen/Qwen3-32B/", "/workloads/models/add/", "/memory/", "/plans/", "/plans/new/",
        f"/plans/compare/?ids={plan},{sample['other'].pk}", f"/plans/{plan}/", f"/plans/{plan}/what-if/",
        f"/plans/{plan}/runway/", f"/plans/{plan}/how/?figure=stranded",
        f"/plans/{plan}/candidate/?id={quote(sample['plan'].result['candidates'][0]['id'])}",
        f"/plans/{plan}/workloads/code-completion/",
        f"/plans/{plan}/workloads/embed-search/", "/deployments/", "/deployments/new/",
        f"/deployments/{sample['deployments'][0].pk}/", f"/deployments/{sample['deployments'][2].pk}/", "/validation/",
        "/jobs/", f"/jobs/{sample['job'].pk}/",
    ]  # fmt: skip
