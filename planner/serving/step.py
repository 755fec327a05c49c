"""The time of one iteration of an instance, pipeline stages included."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.compiling import compiled
from planner.steptime.kernel import step_ms


@compiled
def iteration_ms(
    tables: Any, pp: int, budget: int, new: float, prompts: float, pairs: float, batch: float, kv: float
) -> float:
    """Time of one iteration.

    With pipeline stages as many micro-batches are under way as there are stages, one after the other. One that carries
    a prompt chunk comes out of the last stage only after its whole passage, and the first stage waits for it: a turn
    of all micro-batches lasts as long as its slowest passage.
    """
    if pp <= 1:
        return step_ms(*tables, new, prompts, pairs, batch, kv)  # type: ignore[call-arg]
    parts = max(1.0, min(float(pp), batch))
    if new <= 0.0:
        return step_ms(*tables, 0.0, 0.0, 0.0, batch / parts, kv / parts)  # type: ignore[call-arg]
    chunks = max(1.0, min(float(pp), np.ceil(new / budget)))
    per_chunk = max(1.0, prompts / chunks)
    part, share = new / chunks, pairs / chunks
    return step_ms(*tables, part, per_chunk, share, batch / parts, kv / parts)  # type: ignore[call-arg]
