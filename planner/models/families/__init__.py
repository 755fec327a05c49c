"""Architecture families: ``model_type`` of the language part -> the function that builds its layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.models.blocks import Draft
from planner.models.families import decoder
from planner.models.families.deepseek_v4 import DEEPSEEK_V4
from planner.models.families.dense import DENSE, DENSE_DEFAULTS, LEAVES_OUT_DEFAULTS, NESTED_DEFAULTS
from planner.models.families.encoders import ENCODERS
from planner.models.families.hybrid import HYBRID
from planner.models.families.irregular import IRREGULAR, IRREGULAR_DEFAULTS
from planner.models.families.mla import MLA
from planner.models.families.moe import MOE
from planner.models.families.windowed import WINDOWED
from planner.models.fields import Fields

Builder = Callable[[Fields], Draft]

FAMILIES: dict[str, Builder] = {
    **{name: partial(decoder.build, traits=traits) for name, traits in (DENSE | MOE).items()},
    **MLA,
    **DEEPSEEK_V4,
    **HYBRID,
    **WINDOWED,
    **IRREGULAR,
    **ENCODERS,
}

DEFAULTS: dict[str, dict[str, object]] = {**DENSE_DEFAULTS, **IRREGULAR_DEFAULTS}

__all__ = ["DEFAULTS", "FAMILIES", "LEAVES_OUT_DEFAULTS", "NESTED_DEFAULTS", "Builder"]
