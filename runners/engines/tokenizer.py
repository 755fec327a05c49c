"""A word-level tokenizer folder for models without one: token ``i`` is the word ``t<i>``.

Encoding what was decoded gives the same ids, and a prompt of n words is n tokens, so prompt lengths are exact. The
end token is a long word on purpose: vLLM refuses a text prompt longer than (context - output) x the longest token's
characters.
"""

from __future__ import annotations

import json
from pathlib import Path

END_TOKEN = "<|endoftext|>"  # noqa: S105 - a token of the vocabulary
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def words(vocab_size: int, end_id: int = 2) -> dict[str, int]:
    """Vocabulary: word -> id for ids 0..vocab_size - 1; raises ValueError when ``end_id`` is outside."""
    if not 0 <= end_id < vocab_size:
        raise ValueError(f"end token {end_id} is outside the vocabulary of {vocab_size}")
    return {END_TOKEN if i == end_id else f"t{i}": i for i in range(vocab_size)}


def write_word_tokenizer(folder: Path, vocab_size: int, end_id: int = 2, max_length: int = 1_000_000) -> Path:
    """Write tokenizer.json and tokenizer_config.json (Hugging Face fast tokenizer) into ``folder``; returns it.

    Raises OSError when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    added = {
        "id": end_id,
        "content": END_TOKEN,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words(vocab_size, end_id), "unk_token": END_TOKEN},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TOKEN,
        "pad_token": END_TOKEN,
        "unk_token": END_TOKEN,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
