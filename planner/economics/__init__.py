"""What a GPU-hour and a million tokens cost."""

from planner.economics.cost import (
    ServedLoad,
    break_even_utilisation,
    break_even_with_cloud,
    unit_costs,
    workload_cost,
)
from planner.economics.currency import Converter, ExchangeRate
from planner.economics.energy import power_model, power_w
from planner.economics.operations import OperationsCosts, operations_use
from planner.economics.price import Offer, RentalInputs, TcoInputs, gpu_hour_price, price_terms, with_price
from planner.economics.published import default_price
from planner.economics.tariff import EnergyPrice, TariffBand

__all__ = [
    "Converter",
    "EnergyPrice",
    "ExchangeRate",
    "Offer",
    "OperationsCosts",
    "RentalInputs",
    "ServedLoad",
    "TariffBand",
    "TcoInputs",
    "break_even_utilisation",
    "break_even_with_cloud",
    "default_price",
    "gpu_hour_price",
    "operations_use",
    "power_model",
    "power_w",
    "price_terms",
    "unit_costs",
    "with_price",
    "workload_cost",
]
