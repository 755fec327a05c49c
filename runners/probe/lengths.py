"""Do client and server count the same tokens? Ask before the run: a wrong tokenizer measures another load."""

from __future__ import annotations

import random
from pathlib import Path

import httpx

from runners.errors import ProbeError

SAMPLE_TOKENS = 64
TOLERATED_SHARE = 0.05


def check_lengths(base_url: str, served_name: str, tokenizer: str, tokenize_path: str | None, seed: int) -> str | None:
    """Compare a text's length by the client's tokenizer with the engine's own count.

    Returns a sentence when they cannot be compared or differ a little, None when they agree (special tokens apart).
    Raises ProbeError when they differ by more than 5 %.
    """
    file = Path(tokenizer) / "tokenizer.json"
    if tokenize_path is None:
        return "The engine has no route that counts tokens: prompt lengths are checked by its usage figures alone."
    if not file.is_file():
        return "The tokenizer is no local folder with a tokenizer.json: prompt lengths were not checked before the run."
    text, client = _sample(file, seed)
    body = {"model": served_name, "prompt": text}
    try:
        response = httpx.post(base_url + tokenize_path, json=body, timeout=30.0)
        server = int(response.json()["count"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return "The engine did not count tokens when asked: prompt lengths were not checked before the run."
    if abs(server - client) > max(TOLERATED_SHARE * client, 2):
        raise ProbeError(
            f"Client and engine do not use the same tokenizer: {client} tokens here are {server} tokens there.",
            "Give the probe the tokenizer of the model that the engine serves.",
        )
    if server != client:
        return f"The engine adds {server - client} special token(s) to a prompt."
    return None


def _sample(file: Path, seed: int) -> tuple[str, int]:
    """A text that this tokenizer reads back as it wrote it, and its length."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    chooser = random.Random(seed)
    size = tokenizer.get_vocab_size()
    text = tokenizer.decode([chooser.randrange(size) for _ in range(SAMPLE_TOKENS)])
    return text, len(tokenizer.encode(text, add_special_tokens=False).ids)
