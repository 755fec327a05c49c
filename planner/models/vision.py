"""Weights of the image towers beside a language model, by the tower's ``vision_config``.

Sizes follow the reference implementations in Hugging Face transformers; each function names the tower it counts.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.models.fields import LARGEST_LAYERS, Fields
from planner.models.spec import VisionEncoder


def vision_of(root: Fields, text_hidden: int) -> tuple[VisionEncoder | None, str]:
    """The tower of a multimodal model and a note when it could not be counted; (None, "") for a text model."""
    vision = root.child("vision_config")
    if vision is None:
        return None, ""
    kind = root.text("model_type")
    counter = _TOWERS.get(kind)
    if counter is None:
        return None, f"The image tower of {kind or 'this model'} is not counted: its layout is not known."
    params, tokens, hidden = counter(vision, root, text_hidden)
    return VisionEncoder(params, tokens, hidden), ""


def _linear(n: int, k: int, bias: bool = True) -> int:
    return n * k + (n if bias else 0)


def _block(hidden: int, intermediate: int, *, gated: bool, bias: bool, norms: int, norm_bias: bool) -> int:
    """One transformer layer: four square projections, MLP, norms."""
    attention = 4 * _linear(hidden, hidden, bias)
    mlp = _linear(intermediate, hidden, bias) * (2 if gated else 1) + _linear(hidden, intermediate, bias)
    return attention + mlp + norms * hidden * (2 if norm_bias else 1)


def _depth(vision: Fields, *keys: str) -> int:
    return vision.integer(*keys, high=LARGEST_LAYERS)


def _qwen2_vl(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    """Short configurations leave the tower's sizes to the class; ``hidden_size`` is that of the language model."""
    hidden = vision.integer("embed_dim", default=1280)
    inner = hidden * vision.integer("mlp_ratio", default=4, high=100)
    patch = vision.integer("patch_size", default=14, high=1000)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    merged = hidden * vision.integer("spatial_merge_size", default=2, high=100) ** 2
    merger = 2 * hidden + _linear(merged, merged) + _linear(vision.integer("hidden_size", default=text), merged)
    stem = 3 * vision.integer("temporal_patch_size", default=2, high=100) * patch * patch * hidden
    return vision.integer("depth", default=32, high=LARGEST_LAYERS) * layer + merger + stem, 16384, hidden


def _qwen25_vl(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size", "embed_dim"), vision.integer("intermediate_size")
    patch = vision.integer("patch_size", default=14, high=1000)
    layer = _block(hidden, inner, gated=True, bias=True, norms=2, norm_bias=False)
    merged = hidden * vision.integer("spatial_merge_size", default=2, high=100) ** 2
    merger = hidden + _linear(merged, merged) + _linear(vision.integer("out_hidden_size", default=text), merged)
    stem = 3 * vision.integer("temporal_patch_size", default=2, high=100) * patch * patch * hidden
    return _depth(vision, "depth") * layer + merger + stem, 16384, hidden


def _qwen3_vl(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch = vision.integer("patch_size", default=16, high=1000)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    merged = hidden * vision.integer("spatial_merge_size", default=2, high=100) ** 2
    out = vision.integer("out_hidden_size", default=text)
    projections = _linear(merged, merged) + _linear(out, merged)
    deep = len(vision.ints("deepstack_visual_indexes"))
    mergers = (2 * hidden + projections) + deep * (2 * merged + projections)
    stem = _linear(hidden, 3 * vision.integer("temporal_patch_size", default=2, high=100) * patch * patch)
    positions = vision.integer("num_position_embeddings", default=2304) * hidden
    return _depth(vision, "depth") * layer + mergers + stem + positions, 16384, hidden


def _siglip_gemma3(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    stem = _linear(hidden, 3 * patch * patch) + (image // patch) ** 2 * hidden + 2 * hidden
    projector = hidden + hidden * text
    tokens = root.integer("mm_tokens_per_image", default=256)
    return _depth(vision, "num_hidden_layers") * layer + stem + projector, tokens, hidden


def _gemma4(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch = vision.integer("patch_size", high=1000)
    layer = _block(hidden, inner, gated=True, bias=False, norms=4, norm_bias=False)
    layer += 2 * vision.integer("head_dim", high=10**5)
    stem = 3 * patch * patch * hidden + 2 * vision.integer("position_embedding_size", default=10240) * hidden
    tokens = root.optional_int("vision_soft_tokens_per_image")
    return _depth(vision, "num_hidden_layers") * layer + stem + 2 * hidden + hidden * text, tokens, hidden


def _llama4(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    stem = 3 * patch * patch * hidden + hidden + ((image // patch) ** 2 + 1) * hidden + 4 * hidden
    adapter = vision.integer("projector_input_dim", default=4096)
    out = vision.integer("projector_output_dim", default=4096)
    projector = inner * adapter + out * out + vision.integer("vision_output_dim", default=out) * text
    return _depth(vision, "num_hidden_layers") * layer + stem + projector, None, hidden


def _mllama(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    tiles = vision.integer("max_num_tiles", default=4, high=100)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True) - 4 * hidden
    depth = _depth(vision, "num_hidden_layers") + vision.integer("num_global_layers", default=8, high=LARGEST_LAYERS)
    patches = (image // patch) ** 2 + 1
    aspects = 9
    positions = patches * hidden + aspects * tiles * patches * hidden + 2 * aspects * tiles * hidden
    stem = 3 * patch * patch * hidden + hidden + 4 * hidden
    projector = _linear(text, vision.integer("vision_output_dim"))
    return depth * layer + positions + stem + projector, None, hidden


def _pixtral(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch = vision.integer("patch_size", high=1000)
    layer = _block(hidden, inner, gated=True, bias=False, norms=2, norm_bias=False)
    merge = root.integer("spatial_merge_size", default=2, high=100)
    projector = hidden + hidden * hidden * merge * merge + hidden * text + text * text
    return _depth(vision, "num_hidden_layers") * layer + 3 * patch * patch * hidden + hidden + projector, None, hidden


def _moonvit(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, inner = (
        vision.integer("vt_hidden_size", "hidden_size"),
        vision.integer("vt_intermediate_size", "intermediate_size"),
    )
    patch = vision.integer("patch_size", default=14, high=1000)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    side = vision.integer("init_pos_emb_height", default=64, high=10**5)
    stem = _linear(hidden, 3 * patch * patch) + side * side * hidden + 2 * hidden
    merged = hidden * 4
    projector = 2 * hidden + _linear(merged, merged) + _linear(text, merged)
    return _depth(vision, "vt_num_hidden_layers", "num_hidden_layers") * layer + stem + projector, None, hidden


def _glm4v(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    hidden, context = vision.integer("hidden_size"), vision.integer("intermediate_size")
    out = vision.integer("out_hidden_size", default=text)
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    layer = _block(hidden, out, gated=True, bias=False, norms=2, norm_bias=False)
    merge = vision.integer("spatial_merge_size", default=2, high=100)
    merger = out * out + 2 * out + 3 * context * out + _linear(out, hidden * merge * merge)
    stem = _linear(hidden, 3 * vision.integer("temporal_patch_size", default=2, high=100) * patch * patch)
    positions = (image // patch) ** 2 * hidden
    return _depth(vision, "depth") * layer + merger + stem + positions + 2 * hidden, None, hidden


def _clip_llava(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    """CLIP's tower and LLaVA's two-layer projector; LLaVA-NeXT ends each row of an image with a vector of its own."""
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=True)
    patches = (image // patch) ** 2
    stem = 3 * patch * patch * hidden + hidden + (patches + 1) * hidden + 4 * hidden
    projector = _linear(text, hidden) + _linear(text, text)
    newline = text if root.text("model_type") != "llava" else 0
    tokens = patches if root.text("model_type") == "llava" else None
    return _depth(vision, "num_hidden_layers") * layer + stem + projector + newline, tokens, hidden


def _intern_vit(vision: Fields, root: Fields, text: int) -> tuple[int, int | None, int]:
    """InternViT with InternVL's projector: four pixels join, a norm, two linears."""
    hidden, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, image = vision.integer("patch_size", high=1000), vision.integer("image_size", high=10**5)
    layer_norm = vision.text("norm_type", default="rms_norm") != "rms_norm"
    layer = _block(hidden, inner, gated=False, bias=True, norms=2, norm_bias=layer_norm) + 2 * hidden
    layer -= 0 if vision.flag("qkv_bias", default=False) else 3 * hidden
    layer += 2 * hidden if vision.flag("qk_normalization", default=True) else 0
    patches = (image // patch) ** 2
    stem = _linear(hidden, 3 * patch * patch) + hidden + (patches + 1) * hidden
    projector = 8 * hidden + _linear(text, 4 * hidden) + _linear(text, text)
    return _depth(vision, "num_hidden_layers") * layer + stem + projector, None, hidden


_Counter = Callable[[Fields, Fields, int], tuple[int, int | None, int]]

_TOWERS: dict[str, _Counter] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen25_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "gemma3": _siglip_gemma3,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "llava": _clip_llava,
    "llava_next": _clip_llava,
    "mllama": _mllama,
    "ministral3": _pixtral,
    "mistral3": _pixtral,
    "internvl_chat": _intern_vit,
    "kimi_k25": _moonvit,
    "kimi_k3": _moonvit,
    "kimi_vl": _moonvit,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
}
