"""What a GPU-hour and a million tokens cost."""

from planner.economics.cost import ServedLoad, break_even_utilisation, unit_costs, workload_cost
from planner.economics.energy import power_model, power_w
from planner.economics.operations import OperationsCosts, operations_use
from planner.economics.price import RentalInputs, TcoInputs, gpu_hour_price, with_price

__all__ = [
    "OperationsCosts",
    "RentalInputs",
    "ServedLoad",
    "TcoInputs",
    "break_even_utilisation",
    "gpu_hour_price",
    "operations_use",
    "power_model",
    "power_w",
    "unit_costs",
    "with_price",
    "workload_cost",
]
