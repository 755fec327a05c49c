"""How long one engine iteration takes. ``build`` makes a StepModel from measured operators, a roofline and probes."""

from planner.steptime.build import build
from planner.steptime.sources import Fabric
from planner.steptime.types import FrontEnd, StepModel, StepTables, StepTime

__all__ = ["Fabric", "FrontEnd", "StepModel", "StepTables", "StepTime", "build"]
