"""Serving rows that contradict what is published beside them: no prediction can be held to them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from planner.catalog import get_gpu, get_model
from planner.models.sharding import active_params
from planner.steptime.roofline import peak_flops_per_ms

OTHER_MODEL = "its page is of another model than its command"
OTHER_HARDWARE = "the same figures stand for other hardware too"
OTHER_LOAD = "its script sent 512 requests at once whatever the point of its sweep"
BEYOND_HARDWARE = "its prompts alone take more arithmetic than its GPUs have"
_FIGURES = ("output_tok_per_s", "total_tok_per_s", "req_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_TELLING = 4
"""So many equal figures of five digits are a copy, not chance."""


def contradictions(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    """Row id -> what contradicts what, for the rows of a published table that do.

    GPUStack's pages are each of one model, ``docs/performance-lab/MODEL/GPU.md``: a command that serves another one
    was copied from its page. Figures that are equal to the last digit under two GPUs or models belong to one at most,
    and nothing says to which. By Little's law the clients of a closed loop say how many prompts a second were served:
    where these take more than the data sheets' arithmetic, they were in a cache or spread over more GPUs.
    """
    found = {row["row_id"]: OTHER_MODEL for row in rows if _of_another_page(row)}
    found.update({row["row_id"]: OTHER_LOAD for row in rows if _of_another_load(row)})
    found |= {row["row_id"]: BEYOND_HARDWARE for row in rows if _arithmetic_used(row) > 1.0}
    copies: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        figures = tuple(value for name, value in row.items() if name.startswith(_FIGURES))
        if sum(bool(value) for value in figures) >= _TELLING:
            copies[figures].append(row)
    for same in copies.values():
        if len({(row["gpu"], row["model"]) for row in same}) > 1:
            found.update({row["row_id"]: OTHER_HARDWARE for row in same})
    return found


def _of_another_load(row: dict[str, str]) -> bool:
    """SemiAnalysisAI/InferenceX, ``gptoss_fp4_h100_docker.sh`` from d22bf9c (2025-11-21) to its repair in 4e135fd
    (2025-12-08): the load generator kept 512 requests under way, the server ran as many as the point of the sweep (4
    to 64), and the row holds the former alone.
    """
    if row.get("source_id") != "aic_silicon:inferencex" or row["gpu"] != "H100-SXM-80GB":
        return False
    swept = row["engine"] == "vllm" and "gpt-oss" in row["model"]
    return swept and row["concurrency"] == "512" and "2025-11-21" <= row["date"] <= "2025-12-08"


def _of_another_page(row: dict[str, str]) -> bool:
    page = re.search(r"performance-lab/([^/]+)/", row["source_path"])
    if page is None:
        return False
    name = row["model"].rpartition("/")[2].lower()
    return re.match(re.escape(page.group(1)).replace(r"\.x", r"\.\d") + r"(?![\w.])", name) is None


def _arithmetic_used(row: dict[str, str]) -> float:
    """Share of the GPUs' dense peak that the prompts of a closed loop take, two operations a parameter and token.

    0 where the row does not say.
    """
    try:
        clients, prompt, output = (float(row[key]) for key in ("concurrency", "isl", "osl"))
        request_ms = float(row["ttft_ms"]) + (output - 1.0) * float(row["tpot_ms"])
        gpus = int(row["n_gpus"])
        model, gpu = get_model(row["model"], allow_path=False), get_gpu(row["gpu"])
    except (KeyError, ValueError):
        return 0.0
    peak = peak_flops_per_ms(gpu, row["precision"])
    if peak is None or row["load_type"] != "concurrency" or request_ms <= 0:
        return 0.0
    return clients / request_ms * prompt * 2.0 * active_params(model) / (gpus * peak)
