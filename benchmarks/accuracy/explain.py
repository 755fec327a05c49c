"""What most likely lies behind a row that is far off, from what the row and its prediction show."""

from __future__ import annotations

from benchmarks.accuracy.scoring import Scored

_FAR = 3.0
"""A wait that many times off is a queue on one side only."""

_MET = 0.1
"""A row this near in every metric needs no cause."""


def explanation(s: Scored) -> str:
    """One clause for the list of the worst rows."""
    request, ratio = s.row.request, s.ratio
    if all(abs(r - 1.0) <= _MET for r in ratio.values()):
        return f"met within {_MET:.0%}"
    ttft, tpot, rate = (ratio.get(metric) for metric in ("ttft", "tpot", "output_tok_per_s"))
    drafts = request["engine"] == "tensorrt_llm" and "deepseek" in request["model"].lower()
    if drafts and tpot is not None and tpot > 1.5:
        return "measured steps are too short for one token each: multi-token prediction that the row does not state"
    if ttft is not None and ttft > _FAR:
        return "a queue for KV room or steps is predicted that the run did not have: memory settings not stated"
    if ttft is not None and ttft < 1.0 / _FAR:
        return "the run queued where nothing stated makes it: a limit, a stall or the load generator"
    if tpot is not None and rate is not None and tpot < 0.7 and rate > 1.4:
        return "the run is slower in every step: host, clock or another GPU than stated"
    if rate is not None and tpot is not None and rate > 1.4:
        return "steps agree, requests do not keep the seats full: front end, client or lengths"
    if tpot is not None and tpot > _FAR:
        return "steps are predicted with more sequences than ran at once"
    return "steps of this deployment are timed too fast or too slow"
