"""Cosine and sine tables of rotary embeddings: engines keep them in memory and log them with the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.models.fields import LARGEST_DIMENSION, Fields
from planner.models.spec import Attention, LayerGroup, Mla


def rope_cache_elements(fields: Fields, groups: Sequence[LayerGroup], positions: int) -> int:
    """Elements of all rotary tables of a model: rows x rotated dimensions, one table per distinct kind of rotation.

    Rows are the positions, times the factor of linear and dynamic scaling, or original length x factor for YaRN (vLLM's
    rotary classes). Layers with windows have a table of their own where the config gives them another base. Checked
    against logged weights: Llama-3.1-8B 32 MiB, Gemma-3-4B 576 MiB.
    """
    tables: dict[tuple[str, int], int] = {}
    scaling = fields.child("rope_scaling", "rope_parameters")
    rows = _rows(scaling, positions)
    local = fields.has("rope_local_base_freq", "swa_rope_theta") or fields.text("model_type").startswith("gemma3")
    share = fields.raw("partial_rotary_factor")
    factor = float(share) if isinstance(share, (int, float)) and 0 < share <= 1 else 1.0
    for group in groups:
        if isinstance(group.mixer, Mla):
            tables["global", group.mixer.qk_rope_head_dim] = rows
        elif isinstance(group.mixer, Attention) and group.mixer.kind in ("full", "sliding", "chunked"):
            dim = int(group.mixer.head_dim * factor)
            if local and group.mixer.kind == "sliding":
                tables["local", dim] = positions
            else:
                tables["global", dim] = rows
    return sum(count * dim for (_, dim), count in tables.items())


def _rows(scaling: Fields | None, positions: int) -> int:
    if scaling is None:
        return positions
    kind = scaling.raw("rope_type", "type")
    factor = scaling.raw("factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 10**4:
        return positions
    if kind in ("linear", "dynamic"):
        return min(math.ceil(positions * factor), LARGEST_DIMENSION)
    original = scaling.optional_int("original_max_position_embeddings")
    if kind == "yarn" and original is not None:
        return min(math.ceil(original * factor), LARGEST_DIMENSION)
    return positions
