"""``fleet.yaml``: a fleet, its workloads and its costs as one file, for ``python -m planner plan``.

Read strictly: an unknown or ill-typed field is an error that names its path (``pools[0].price.life_years``). The
format is described in docs/planner.md; docs/examples/fleet.yaml is a complete example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from planner import fleet_money
from planner.calibration import CalibrationFactor
from planner.catalog import get_gpu, get_node_type, get_rate_profile, get_trace
from planner.demand import check_profile, hour_of_week, mean_share
from planner.economics.currency import Converter
from planner.economics.types import EnergyPrice, PriceSheet
from planner.errors import InputError
from planner.jsonio import from_json, to_json
from planner.plan_types import (
    Placement,
    PlanNode,
    PlanRequest,
    PlanWorkload,
    PriceClass,
    PurchaseLimits,
    PurchaseOption,
    SiteEnergy,
)
from planner.serving.types import Lengths, Load, SloTarget

MAX_BYTES = 8 * 2**20
MAX_TRACE_SAMPLES = 20_000
MAX_NODES = 20_000
_TOP = (
    "name", "mode", "sites", "pools", "workloads", "purchase", "limits", "operations", "api_prices", "calibrations",
    "current", "time_limit_s", "seed", "price_erosion_per_year", "lead_time_months", "currency", "rates_as_of",
    "exchange_rates", "price_classes", "cloud_prices", "horizon_months", "objective", "orchestrators",
    "share_gpus", "disaggregate",
)  # fmt: skip
_POOL = (
    "name", "site", "node_type", "gpu", "gpus", "nvlink_domain", "count", "price", "state", "busy_gpus", "tenant",
    "failure_domain", "failure_domains", "network_gb_s", "allowed_engines", "nodes", "orchestrator", "cluster",
    "partition", "min_replica_gpus", "slices", "reserved_for",
)  # fmt: skip
_NODE = (
    "name", "state", "busy_gpus", "tenant", "failure_domain", "allowed_engines", "orchestrator", "cluster", "partition",
    "min_replica_gpus", "slices", "reserved_for",
)  # fmt: skip
_PURCHASE = (
    "name",
    "site",
    "node_type",
    "gpu",
    "gpus",
    "nvlink_domain",
    "price",
    "max_count",
    "power_kw",
    "rack_units",
    "network_gb_s",
)
_SLO_STATS = ("mean", "p50", "p90", "p95", "p99")


def load_fleet_file(path: str | Path) -> PlanRequest:
    """Read a fleet file; raises InputError naming the path of whatever is wrong, OSError when it cannot be read."""
    file = Path(path)
    if file.stat().st_size > MAX_BYTES:
        raise InputError("the file is too large", field=str(path), value=file.stat().st_size)
    return parse_fleet(file.read_text(encoding="utf-8"), name=file.stem)


def parse_fleet(text: str, *, name: str = "fleet") -> PlanRequest:
    """Parse the text of a fleet file; ``name`` is the scenario's name when the file gives none."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", field="fleet.yaml") from None
    top = _mapping(data, "fleet.yaml", _TOP)
    money = fleet_money.converter(top)
    named = _object(top.get("sites", {}), "sites")
    sites = {key: fleet_money.energy(value, f"sites.{key}", money) for key, value in named.items()}
    sheets: list[PriceSheet] = []
    nodes: list[PlanNode] = []
    for i, pool in enumerate(_list(top.get("pools", []), "pools")):
        nodes += _pool_nodes(pool, f"pools[{i}]", sites, money, sheets)
    if len(nodes) > MAX_NODES:
        raise InputError(f"at most {MAX_NODES} nodes", field="pools", value=len(nodes))
    options = _list(top.get("purchase", []), "purchase")
    request = PlanRequest(
        name=_text(top.get("name", name), "name"),
        nodes=tuple(nodes),
        workloads=tuple(
            _workload(w, f"workloads[{i}]") for i, w in enumerate(_list(top.get("workloads"), "workloads"))
        ),
        mode=from_json(_HINTS["mode"], top.get("mode", "owned"), "mode"),
        objective=from_json(_HINTS["objective"], top.get("objective", "new_spend"), "objective"),
        orchestrators=_orchestrators(top.get("orchestrators", ["none", "kubernetes", "slurm"])),
        share_gpus=from_json(bool, top.get("share_gpus", True), "share_gpus"),
        energy=next((energy for energy in sites.values() if energy is not None), None),
        calibrations=_records(CalibrationFactor, top, "calibrations"),
        current=_records(Placement, top, "current"),
        time_limit_s=from_json(float, top.get("time_limit_s", 30.0), "time_limit_s"),
        seed=from_json(int, top.get("seed", 0), "seed"),
        purchase_options=tuple(_purchase(o, f"purchase[{i}]", sites, money, sheets) for i, o in enumerate(options)),
        limits=from_json(PurchaseLimits, top["limits"], "limits") if "limits" in top else None,
        operations=fleet_money.operations(top.get("operations", {}), money),
        api_prices=fleet_money.api_prices(top.get("api_prices", []), money),
        price_erosion_per_year=_share(top, "price_erosion_per_year"),
        lead_time_months=from_json(float, top.get("lead_time_months", 3.0), "lead_time_months"),
        disaggregate=from_json(bool, top.get("disaggregate", True), "disaggregate"),
        currency=money.reporting,
        rates_as_of=money.as_of,
        site_energy=tuple(SiteEnergy(site, energy) for site, energy in sites.items() if energy is not None),
        price_sheets=tuple({sheet.pool: sheet for sheet in reversed(sheets)}.values())[::-1],
        price_classes=_records(PriceClass, top, "price_classes"),
        cloud_prices=fleet_money.cloud_prices(top.get("cloud_prices", []), money),
        horizon_months=from_json(int, top.get("horizon_months", 36), "horizon_months"),
    )
    return replace(request, rates=money.used)


_HINTS = get_type_hints(PlanRequest)
_OWNERS = get_args(get_type_hints(PlanNode)["orchestrator"])


def _orchestrators(value: Any) -> tuple[str, ...]:
    found = tuple(_text(item, f"orchestrators[{i}]") for i, item in enumerate(_list(value, "orchestrators")))
    for i, name in enumerate(found):
        if name not in _OWNERS:
            raise InputError(
                "unknown orchestrator", field=f"orchestrators[{i}]", value=name, remedy=f"Use: {', '.join(_OWNERS)}."
            )
    return found


def _share(top: Mapping[str, Any], key: str) -> float:
    value = from_json(float, top.get(key, 0.0), key)
    if not 0 <= value < 1:
        raise InputError("must be at least 0 and below 1", field=key, value=value)
    return value


def _records(kind: Any, top: Mapping[str, Any], key: str) -> tuple:
    return tuple(from_json(kind, item, f"{key}[{i}]") for i, item in enumerate(_list(top.get(key, []), key)))


def _pool_nodes(
    value: Any, path: str, sites: Mapping[str, EnergyPrice | None], money: Converter, sheets: list[PriceSheet]
) -> list[PlanNode]:
    pool = _mapping(value, path, _POOL)
    base = _base_node(pool, path, sites, money, sheets)
    listed = _list(pool.get("nodes", []), f"{path}.nodes")
    count = from_json(int, pool.get("count", len(listed) or 1), f"{path}.count")
    if not 1 <= count <= MAX_NODES:
        raise InputError(f"must be between 1 and {MAX_NODES}", field=f"{path}.count", value=count)
    if listed and count != len(listed):
        raise InputError(
            f"is {count}, but {len(listed)} nodes are listed", field=f"{path}.count", remedy="Leave it out."
        )
    domains = _list(pool.get("failure_domains", []), f"{path}.failure_domains")
    found = []
    for i in range(count):
        fields = {**base}
        if domains:
            fields["failure_domain"] = _text(domains[i % len(domains)], f"{path}.failure_domains[{i % len(domains)}]")
        fields["name"] = f"{base['pool']}-{i + 1:0{len(str(count))}d}" if count > 1 else str(base["pool"])
        if listed:
            own = listed[i] if isinstance(listed[i], Mapping) else {"name": listed[i]}
            fields |= _mapping(own, f"{path}.nodes[{i}]", _NODE)
        found.append(from_json(PlanNode, fields, f"{path}.nodes[{i}]" if listed else path))
    return found


def _base_node(
    pool: Mapping[str, Any],
    path: str,
    sites: Mapping[str, EnergyPrice | None],
    money: Converter,
    sheets: list[PriceSheet],
) -> dict[str, Any]:
    """Fields of a node as JSON data: node type first, then what the pool states."""
    fields: dict[str, Any] = {"pool": _text(pool.get("name"), f"{path}.name"), "site": ""}
    if "node_type" in pool:
        kind = get_node_type(_text(pool["node_type"], f"{path}.node_type"))
        fields |= {"gpu": kind.gpu, "gpus": kind.gpus, "nvlink_domain": kind.nvlink_domain}
        fields["network_gb_s"] = kind.network_gb_s
    elif "gpu" not in pool:
        raise InputError("is missing", field=f"{path}.gpu", remedy="Give gpu and gpus, or a node_type.")
    fields |= {
        key: pool[key] for key in pool if key not in ("name", "node_type", "count", "nodes", "failure_domains", "price")
    }
    fields["gpu"] = get_gpu(_text(fields["gpu"], f"{path}.gpu")).name
    fields.setdefault("gpus", 1)
    fields["gpus"] = from_json(int, fields["gpus"], f"{path}.gpus")
    fields.setdefault("nvlink_domain", _domain(fields))
    site = _text(fields["site"], f"{path}.site", empty=True)
    if site and sites and site not in sites:
        raise InputError("no such site", field=f"{path}.site", value=site, remedy=f"Sites: {', '.join(sites)}.")
    sheet, price = fleet_money.price(pool.get("price"), f"{path}.price", fields, sites.get(site), money)
    sheets.append(sheet)
    fields["price"] = {
        "usd_per_gpu_hour": str(price.usd_per_gpu_hour),
        "basis": price.basis,
        "source": price.source,
        "parts": [[label, str(usd)] for label, usd in price.parts],
    }
    return fields


def _domain(fields: Mapping[str, Any]) -> int:
    """NVLink or xGMI joins all GPUs of a node when the card has it; else they only share PCIe."""
    link = get_gpu(str(fields["gpu"])).link
    return int(fields["gpus"]) if link and not link.startswith("PCIe") else 1


def _purchase(
    value: Any, path: str, sites: Mapping[str, EnergyPrice | None], money: Converter, sheets: list[PriceSheet]
) -> PurchaseOption:
    option = _mapping(value, path, _PURCHASE)
    apart = ("max_count", "power_kw", "rack_units")
    fields = _base_node({key: option[key] for key in option if key not in apart}, path, sites, money, sheets)
    fields |= {"name": fields["pool"], "state": "planned"}
    if "node_type" in option:
        kind = get_node_type(str(option["node_type"]))
        power = None if kind.max_power_w is None else kind.max_power_w / 1000
        option = {"power_kw": power, "rack_units": kind.rack_units, **option}
    limits = {key: option.get(key) for key in apart}
    return from_json(PurchaseOption, {"node": fields, **limits}, path)


def _workload(value: Any, path: str) -> PlanWorkload:
    known = tuple(name for name in PlanWorkload.__slots__)
    fields = dict(_mapping(value, path, (*known, "trace")))
    trace = fields.pop("trace", None)
    load = dict(_object(fields.get("load"), f"{path}.load"))
    if trace is not None:
        _apply_trace(_text(trace, f"{path}.trace"), fields, load, path)
    if isinstance(load.get("turns"), (int, dict)):
        load["turns"] = to_json(_lengths(load["turns"], f"{path}.load.turns"))
    fields["load"] = _load(load, f"{path}.load")
    if isinstance(fields.get("hour_profile"), str):
        fields["hour_profile"] = hour_of_week(get_rate_profile(fields["hour_profile"]))
    for key in ("input_tokens", "output_tokens"):
        if key in fields and not isinstance(fields[key], Lengths):
            fields[key] = _lengths(fields[key], f"{path}.{key}")
    fields.setdefault("output_tokens", Lengths("fixed", value=1))
    fields["slo"] = _slo(fields.get("slo", {}), f"{path}.slo")
    ready: dict[str, Any] = {
        key: fields.pop(key) for key in ("load", "input_tokens", "output_tokens", "slo") if key in fields
    }
    if "input_tokens" not in ready:
        raise InputError("is missing", field=f"{path}.input_tokens", remedy="Give lengths, or a trace.")
    plain: dict[str, Any] = {"load": {"kind": "offline"}}
    plain |= {key: {"kind": "fixed"} for key in ("input_tokens", "output_tokens")}
    made = from_json(PlanWorkload, {**fields, **plain}, path)
    check_profile(made.hour_profile, f"{path}.hour_profile")
    if made.hour_profile and "mean_load_share" not in fields:
        ready["mean_load_share"] = mean_share(made.hour_profile)
    return replace(made, **ready)


def _apply_trace(name: str, fields: dict[str, Any], load: dict[str, Any], path: str) -> None:
    """Lengths of the trace, and its arrivals when the load states no rate of its own."""
    trace = get_trace(name)
    count = min(len(trace.input_tokens), MAX_TRACE_SAMPLES)
    fields.setdefault("input_tokens", Lengths("samples", samples=tuple(map(int, trace.input_tokens[:count]))))
    fields.setdefault("output_tokens", Lengths("samples", samples=tuple(map(int, trace.output_tokens[:count]))))
    if trace.prefix_hit is not None:
        load.setdefault("prefix_hit", trace.prefix_hit)
    if load.get("kind", "open") == "open" and "rate_per_s" not in load:
        if trace.times_s is None:
            raise InputError(
                "the trace has lengths only", field=f"{path}.load.rate_per_s", remedy="Give the rate of arrivals."
            )
        load |= {"kind": "open", "arrival": "trace", "times_s": [float(t) for t in trace.times_s[:count]]}


def _load(load: dict[str, Any], path: str) -> Load:
    if "kind" not in load:
        guesses = {"rate_per_s": "open", "concurrency": "closed", "times_s": "open", "requests": "offline"}
        load["kind"] = next((kind for key, kind in guesses.items() if key in load), None)
    if load["kind"] is None:
        raise InputError(
            "is missing", field=path, remedy="Give rate_per_s (open), concurrency (closed) or requests (offline)."
        )
    return from_json(Load, load, path)


def _lengths(value: Any, path: str) -> Lengths:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise InputError("must be at least 1", field=path, value=value)
        return Lengths("fixed", value=value)
    data = _mapping(value, path, ("mean", "sd", "low", "high"))
    if set(data) == {"mean", "sd"}:
        return from_json(Lengths, {"kind": "normal", **data}, path)
    if set(data) == {"low", "high"}:
        return from_json(Lengths, {"kind": "uniform", **data}, path)
    raise InputError("must be a number, {mean, sd} or {low, high}", field=path, value=value)


def _slo(value: Any, path: str) -> tuple[SloTarget, ...]:
    """``{ttft_p99_ms: 800}`` or a list of {metric, stat, limit_ms}."""
    if isinstance(value, list):
        return tuple(from_json(SloTarget, item, f"{path}[{i}]") for i, item in enumerate(value))
    found = []
    for key, limit in _object(value, path).items():
        parts = str(key).split("_")
        if len(parts) != 3 or parts[1] not in _SLO_STATS or parts[2] != "ms":
            raise InputError("unknown target", field=f"{path}.{key}", remedy="Write for example ttft_p99_ms: 800.")
        target = {"metric": parts[0], "stat": parts[1], "limit_ms": limit}
        found.append(from_json(SloTarget, target, f"{path}.{key}"))
    return tuple(found)


def _mapping(value: Any, path: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    data = _object(value, path)
    unknown = sorted(set(data) - set(known))
    if unknown:
        where = unknown[0] if path == "fleet.yaml" else f"{path}.{unknown[0]}"
        raise InputError("unknown field", field=where, remedy=f"Known fields: {', '.join(known)}.")
    return data


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("must be a mapping" if value is not None else "is missing", field=path, value=value)
    return {str(key): item for key, item in value.items()}


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError("must be a list" if value is not None else "is missing", field=path, value=value)
    return value


def _text(value: Any, path: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value.strip() or empty):
        raise InputError("must be a text" if value is not None else "is missing", field=path, value=value)
    return value.strip()
