"""Ready means: /v1/models lists the served name, and one generation of one token returns."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

LIST_TIMEOUT_S = 5.0
_NO_SUCH_ROUTE = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint said. ``detail`` is what is still missing, "" when it is ready."""

    ready: bool
    detail: str = ""
    max_model_len: int | None = None
    emulated: bool = False


def list_model(base_url: str, served_name: str) -> Answer:
    """Whether /v1/models lists ``served_name``."""
    try:
        response = httpx.get(f"{base_url}/v1/models", timeout=LIST_TIMEOUT_S)
        rows = response.json()["data"] if response.status_code == httpx.codes.OK else []
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return Answer(False, "the server does not answer yet")
    if response.status_code != httpx.codes.OK:
        return Answer(False, f"/v1/models answers {response.status_code}")
    for row in rows:
        if isinstance(row, dict) and row.get("id") == served_name:
            length = row.get("max_model_len")
            return Answer(True, "", length if isinstance(length, int) else None, row.get("emulated") is True)
    names = ", ".join(str(row.get("id")) for row in rows if isinstance(row, dict))
    return Answer(False, f"/v1/models lists {names or 'nothing'}, not {served_name}")


def generate_one(base_url: str, served_name: str, timeout_s: float) -> Answer:
    """Ask for one token (or one embedding where the engine generates none). The first request pays for what the engine
    compiles late, so it may take long.
    """
    body = {"model": served_name, "prompt": "t5", "max_tokens": 1, "temperature": 0.0}
    try:
        response = httpx.post(f"{base_url}/v1/completions", json=body, timeout=timeout_s)
        if response.status_code in _NO_SUCH_ROUTE:
            response = _embed(base_url, served_name, timeout_s)
    except httpx.TimeoutException:
        return Answer(False, f"one generation did not return within {timeout_s:.0f} s")
    except httpx.HTTPError as error:
        return Answer(False, f"one generation failed: {type(error).__name__}")
    if response.status_code != httpx.codes.OK:
        return Answer(False, f"one generation answers {response.status_code}: {response.text[:200]}")
    return Answer(True)


def embeds_only(base_url: str, served_name: str) -> bool:
    """Whether the engine generates no text but answers on /v1/embeddings; False when it does not answer at all."""
    body = {"model": served_name, "prompt": "t5", "max_tokens": 1, "temperature": 0.0}
    try:
        if httpx.post(f"{base_url}/v1/completions", json=body, timeout=60.0).status_code not in _NO_SUCH_ROUTE:
            return False
        return _embed(base_url, served_name, 60.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _embed(base_url: str, served_name: str, timeout_s: float) -> httpx.Response:
    return httpx.post(f"{base_url}/v1/embeddings", json={"model": served_name, "input": "t5"}, timeout=timeout_s)
