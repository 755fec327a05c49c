"""``python -m benchmarks speed web``: how long the server takes for a page, with the sample fleet and with 1,200 nodes.

In one process, without the network: Django's test client over a SQLite database of its own, templates and queries as in
production. Wall and processor time of the median request, queries and size, after one request to warm up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

PAGES = (
    "/",
    "/fleet/",
    "/workloads/",
    "/memory/",
    "/plans/",
    "/deployments/",
    "/validation/",
    "/jobs/",
    "/api/v1/nodes/?limit=100",
    "/api/v1/workloads/",
)


def run(argv: list[str]) -> dict[str, Any]:
    """Time every page with the sample fleet, then with ``--nodes`` nodes more; returns milliseconds by page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed web")
    parser.add_argument("--nodes", type=int, default=1200, help="nodes added for the second pass")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=int, default=0, help="at most so many pages")
    options = parser.parse_args(argv)
    pages = PAGES[: options.limit] if options.limit else PAGES
    with tempfile.TemporaryDirectory(prefix="tonnage-web-") as folder:
        os.environ |= {"TONNAGE_DATA_DIR": folder, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        for name in ("TONNAGE_DATABASE_URL", "TONNAGE_BROKER_URL"):
            os.environ.pop(name, None)
        client = _sample_client()
        result = {"sample": _timed(client, pages, options.repeats, "sample fleet, 21 nodes")}
        _add_nodes(options.nodes)
        label = f"sample fleet and {options.nodes:,} nodes more"
        return result | {f"plus_{options.nodes}_nodes": _timed(client, pages, options.repeats, label)}


def _sample_client() -> Any:
    """A logged-in client on a fresh database with the sample fleet."""
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.test import Client

    settings.ALLOWED_HOSTS = ["testserver"]
    quiet = {"verbosity": 0}
    call_command("migrate", **quiet)
    with open(os.devnull, "w") as nowhere:
        call_command("demo_setup", stdout=nowhere)
    from controlplane.core.models import User

    client = Client()
    client.force_login(User.objects.get(is_superuser=True), backend="django.contrib.auth.backends.ModelBackend")
    return client


def _add_nodes(count: int) -> None:
    from controlplane.inventory.models import Gpu, Node, NodeType, Site

    site = Site.objects.order_by("pk").first()
    kind = NodeType.objects.filter(gpus=8).order_by("pk").first()
    if site is None or kind is None:
        raise RuntimeError("the sample fleet has no site or no node type with 8 GPUs")
    names = [f"bench-{i:04d}" for i in range(count)]
    nodes = Node.objects.bulk_create(Node(site=site, node_type=kind, name=name, slug=name) for name in names)
    Gpu.objects.bulk_create(Gpu(node=node, index=i) for node in nodes for i in range(kind.gpus))


def _timed(client: Any, pages: tuple[str, ...], repeats: int, label: str) -> dict[str, Any]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    print(f"{label}\n  {'page':28s} {'wall ms':>9s} {'cpu ms':>9s} {'queries':>8s} {'KiB':>8s}")
    found = {}
    for page in pages:
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(page)
        count = len(queries)  # read now: the next request empties the log
        if answer.status_code != 200:
            raise RuntimeError(f"{page} answered {answer.status_code}")
        walls, cpus = [], []
        for _ in range(repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            client.get(page)
            walls.append(1000 * (time.perf_counter() - wall))
            cpus.append(1000 * (time.process_time() - cpu))
        row = {
            "wall_ms": round(statistics.median(walls), 2),
            "cpu_ms": round(statistics.median(cpus), 2),
            "queries": count,
            "kib": round(len(answer.content) / 1024, 1),
        }
        print(f"  {page:28s} {row['wall_ms']:9.1f} {row['cpu_ms']:9.1f} {row['queries']:8d} {row['kib']:8.1f}")
        found[page] = row
    return found
