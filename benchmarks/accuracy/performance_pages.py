"""What TensorRT-LLM's performance pages state beside their tables (NVIDIA/TensorRT-LLM, Apache-2.0,
``docs/source/performance/perf-overview.md`` of each version): requests by shape, and ``llm_options.yml``.
"""

from __future__ import annotations

import re
from typing import Any

PAGES = ("v0.14.0", "v0.20", "v1.0", "post-1.0")
_REQUESTS = {
    (128, 128): 30000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (1000, 2000): 1500,
    (1024, 1024): 3000,
    (1024, 2048): 1500,
    (1024, 8192): 1500,
    (1024, 32768): 1000,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (8192, 1024): 1500,
    (20000, 2000): 1000,
    (32768, 1024): 1000,
}
_EXPERTS = re.compile(r"-a\d+b|llama-4|deepseek|gpt-oss", re.IGNORECASE)


def requests(isl: int, osl: int) -> int:
    """Requests of one run. 1024/2048 is not in the tables; it has as many as 1000/2000."""
    return _REQUESTS[isl, osl]


def options(page: str, request: dict[str, Any]) -> dict[str, Any]:
    """Fields that the page's ``llm_options.yml`` adds to ``request``.

    v1.0 runs MoE models with attention DP (``enable_attention_dp``) and calls the number of ranks TP. After 1.0 the
    cache of gpt-oss on Blackwell and of DeepSeek-R1 is FP8.
    """
    model = str(request["model"]).lower()
    if not _EXPERTS.search(model):
        return {}
    ranks = request.get("tp", 1)
    if page == "v1.0" and ranks > 1:
        return {"tp": 1, "dp": ranks, "ep": ranks}
    hopper = str(request["gpu"]).startswith("H")
    if page == "post-1.0" and ("deepseek" in model or ("gpt-oss" in model and not hopper)):
        return {"kv_cache_dtype": "fp8"}
    return {}
