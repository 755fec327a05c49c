"""Electricity where a replica stands: the site's tariff, over the hours of the week that the workload is busy."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from planner.economics.energy import energy_usd_per_hour, power_profile
from planner.economics.tariff import EnergyPrice
from planner.plan_types import PlanNode, PlanRequest, PlanWorkload


def energy_at(request: PlanRequest, site: str) -> EnergyPrice | None:
    """The tariff of ``site``; that of the request where the site states none, None where neither is known."""
    return next((entry.energy for entry in request.site_energy if entry.site == site), request.energy)


def electricity_at(
    request: PlanRequest, workload: PlanWorkload, gpu: str, watts_per_gpu: float | None, gpus: Decimal | int, site: str
) -> Decimal | None:
    """Amount an hour for ``gpus`` GPUs at ``site``; None where power or tariff is unknown."""
    energy = energy_at(request, site)
    if watts_per_gpu is None or energy is None:
        return None
    profile = power_profile(gpu, watts_per_gpu, workload.hour_profile)
    return energy_usd_per_hour(watts_per_gpu, gpus, energy, profile)


def mean_electricity(
    request: PlanRequest,
    workload: PlanWorkload,
    gpu: str,
    watts_per_gpu: float | None,
    gpus: Decimal | int,
    nodes: Iterable[PlanNode],
) -> Decimal | None:
    """As ``electricity_at``, the mean over the sites of ``nodes`` by their GPUs: before a place is chosen."""
    weight: dict[str, int] = {}
    for node in nodes:
        weight[node.site] = weight.get(node.site, 0) + node.gpus
    found = {site: electricity_at(request, workload, gpu, watts_per_gpu, gpus, site) for site in weight}
    known = [(amount, weight[site]) for site, amount in found.items() if amount is not None]
    if not known:
        return None
    return sum((amount * count for amount, count in known), Decimal(0)) / sum(count for _, count in known)
