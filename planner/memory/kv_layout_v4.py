"""DeepSeek V4's pool in vLLM: latents kept whole in a window and compressed beyond it, with what compresses them.

Read from the source of 0.24.0: ``models/deepseek_v4/attention.py`` and ``compressor.py``, ``sparse_swa.py`` of
``v1/attention/backends/mla``, ``v1/kv_cache_interface.py``, and ``_get_kv_cache_groups_uniform_groups`` of
``v1/core/kv_cache_utils.py``. Two logged start-ups of vLLM 0.26 (vllm-project/vllm#51041) come out to the token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.engines.types import ResolvedSettings
from planner.memory.kv_layout_types import KvGroup, KvLayout
from planner.models.spec import Mla, ModelSpec

BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
STATE_BLOCK_TOKENS = {4: 4, 128: 8}
ENTRY_BYTES = 584  # 448 values in 8 bits, 64 rotary ones in 16, 8 scales (fp8_ds_mla)
ALIGNMENT_BYTES = 576
INDEX_SCALE_BYTES = 4
SPARSE_RATIO = 4
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Part:
    """Caches that need the same tokens: ``pages`` layers by page size, in blocks of ``tokens`` tokens."""

    kind: str
    tokens: int
    window: int | None
    pages: dict[int, int]

    @property
    def tuples(self) -> int:
        return max(self.pages.values())


def is_windowed_latent(model: ModelSpec) -> bool:
    """Whether the latents beyond a window are compressed or dropped."""
    return any(isinstance(group.mixer, Mla) and group.mixer.window for group in model.groups)


def windowed_latent_layout(
    model: ModelSpec, resolved: ResolvedSettings, stage: dict[int, int], in_flight: int, *, drafts: bool
) -> KvLayout:
    """The pool of one rank that holds ``stage`` (layers by group); every rank of a tensor-parallel group keeps all.

    ``drafts`` adds the layer of multi-token prediction, which keeps a window alone. One block of the pool is a page of
    each size for as many layers as the largest group has; ``KvGroup.share`` weighs its groups as the engine's own
    figure of concurrency does.
    """
    layers: Counter[int] = Counter()
    dim = index = window = 0
    for number, count in stage.items():
        mixer = model.groups[number].mixer
        if isinstance(mixer, Mla) and mixer.window:
            layers[mixer.compress_ratio or 0] += count
            dim, window = mixer.kv_lora_rank + mixer.qk_rope_head_dim, mixer.window
            index = max(index, mixer.index_head_dim or 0)
    if drafts:
        layers[0] += 1
    parts = _parts(layers, dim, index, window, eight_bits=resolved.kv_cache_dtype == "fp8")
    size = _fewest_paddings([part.tuples for part in parts])
    pieces: list[tuple[_Part, dict[int, int]]] = []
    for part in parts:
        number = math.ceil(part.tuples / size) if part.window else 1
        pieces += [
            (part, {page: len(range(piece, held, number)) for page, held in part.pages.items()})
            for piece in range(number)
        ]
    block = sum(page * max(held.get(page, 0) for _, held in pieces) for page in {p for _, h in pieces for p in h})
    first = sum(page * held for page, held in pieces[0][1].items())
    groups = tuple(
        KvGroup(part.kind, max(held.values()), part.tokens, part.window, sum(p * n for p, n in held.items()) / first)
        for part, held in pieces
    )
    return KvLayout(groups, size, float(sum(parts[0].pages)), float(block), 0, 0.0, in_flight, 0, 0.0, BLOCK_TOKENS)


def _parts(layers: Counter[int], dim: int, index: int, window: int, *, eight_bits: bool) -> list[_Part]:
    entry, align = (ENTRY_BYTES, ALIGNMENT_BYTES) if eight_bits else (2 * dim, 1)
    compressed: dict[int, int] = {}
    states: list[tuple[int, int, dict[int, int]]] = []
    for ratio, count in sorted(layers.items()):
        if not ratio:
            continue
        overlap = 2 if ratio == SPARSE_RATIO else 1
        tokens = STATE_BLOCK_TOKENS[ratio]
        pages = {_up(BLOCK_TOKENS // ratio * entry, align): count}
        state = {_up(tokens * 2 * overlap * dim * _STATE_BYTES, align): count}
        if ratio == SPARSE_RATIO:
            pages[_up(BLOCK_TOKENS // ratio * (index + INDEX_SCALE_BYTES), ALIGNMENT_BYTES)] = count
            state[_up(tokens * 2 * overlap * index * _STATE_BYTES, align)] = count
        compressed |= pages
        states.append((tokens, overlap * ratio, state))
    whole = {_up(WINDOW_BLOCK_TOKENS * entry, align): sum(layers.values())}
    if not compressed:
        return [_Part("sliding", WINDOW_BLOCK_TOKENS, window, whole)]
    parts = [_Part("full", BLOCK_TOKENS, None, compressed), _Part("sliding", WINDOW_BLOCK_TOKENS, window, whole)]
    parts += [_Part("sliding", tokens, kept, state) for tokens, kept, state in states]
    return [parts[0], *(_padded(part, compressed) for part in parts[1:])]


def _padded(part: _Part, sizes: dict[int, int]) -> _Part:
    """``part`` with each page enlarged to the nearest of ``sizes`` that holds it."""
    pages = {min((size for size in sizes if size >= page), default=page): held for page, held in part.pages.items()}
    return _Part(part.kind, part.tokens, part.window, pages)


def _fewest_paddings(counts: Sequence[int]) -> int:
    """Layers per group that pad least in all, at least those of the first group; the larger of equals."""
    candidates = range(counts[0], max(counts) + 1)
    return min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
