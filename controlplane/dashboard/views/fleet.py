"""Fleet: map, nodes, prices, discovered against recorded."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from controlplane.dashboard import fleetview, roomview, selectors
from controlplane.dashboard.pages import act, actor, page, paginate, show
from controlplane.inventory import services
from controlplane.inventory.models import Node

PER_PAGE = 100
BY = (("workload", "Workload"), ("engine", "Engine"), ("use", "Used and free"))


@page()
def fleet(request: HttpRequest) -> HttpResponse:
    """The GPU map."""
    by = request.GET.get("by") or "workload"
    by = by if by in dict(BY) else "workload"
    situation = fleetview.Situation.now()
    rows = fleetview.fleet(situation=situation)
    rooms = roomview.rooms(rows)
    plan = situation.shown
    context = {
        "map": fleetview.fleet_map(rows, by),
        "totals": fleetview.totals(rows),
        "by": by,
        "by_choices": BY,
        "kinds": fleetview.by_gpu(rows),
        "tab": "fleet",
        "plan": plan,
        "room_chart": roomview.chart(rooms) if rooms else None,
        "more_replicas": roomview.more_replicas(rows, selectors.verdicts_of(plan).values()),
    }
    return show(request, "dashboard/fleet_map.html", context)


@page()
def nodes(request: HttpRequest) -> HttpResponse:
    """All nodes as a table, filtered by the URL."""
    rows = fleetview.fleet()
    site, state, gpu = (request.GET.get(key, "") for key in ("site", "state", "gpu"))
    shown = [
        row
        for row in rows
        if (not site or row.node.site.slug == site)
        and (not state or row.node.state == state)
        and (not gpu or row.node.node_type.gpu_model.name == gpu)
    ]
    context = {
        "page": paginate(request, shown, PER_PAGE),
        "shown": len(shown),
        "totals": fleetview.totals(shown),
        "sites": sorted({(row.node.site.slug, row.node.site.name) for row in rows}),
        "states": Node.State.choices,
        "gpus": sorted({row.node.node_type.gpu_model.name for row in rows}),
        "tab": "nodes",
    }
    return show(request, "dashboard/fleet_nodes.html", context)


@page()
def node(request: HttpRequest, slug: str) -> HttpResponse:
    """One node: its GPUs and what is on them. A request from the map gets the side panel alone."""
    record = get_object_or_404(fleetview.node_rows(), slug=slug)
    row = fleetview.fleet([record])[0]
    context = {
        "row": row,
        "node": record,
        "holdings": row.grouped,
        "gpu_rows": list(record.gpus.all()),
        "map": fleetview.fleet_map([row], "workload"),
    }
    if request.headers.get("HX-Request"):
        return show(request, "dashboard/_node_panel.html", context, site=record.site)
    return show(request, "dashboard/fleet_node.html", context, site=record.site)


@page()
def prices(request: HttpRequest) -> HttpResponse:
    """What each GPU costs an hour today, by site, with its source."""
    return show(request, "dashboard/fleet_prices.html", {"rows": fleetview.price_table(), "tab": "prices"})


@page()
def discovered(request: HttpRequest) -> HttpResponse:
    """What the workers found against what is recorded."""
    rows = fleetview.discovered(fleetview.fleet())
    context = {"page": paginate(request, rows, PER_PAGE), "tab": "discovered"}
    return show(request, "dashboard/fleet_discovered.html", context)


@act
def discover(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask a node's worker what is in its host."""
    record = get_object_or_404(Node, slug=slug)
    job = services.discover_node(actor=actor(request), node=record)
    messages.info(request, f"Looking into {record.name}.")
    return redirect("dashboard:job", job.pk)
