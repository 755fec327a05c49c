"""How a checkpoint stores its weights: ``quantization_config`` of config.json, ModelOpt's hf_quant_config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InputError, UnsupportedError
from planner.models.fields import Fields
from planner.models.spec import Quantization

NONE = Quantization("none", "bf16", 16.0, 16)

STORED_BITS = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "fp8_block": 8.0 + 32 / (128 * 128),
    "int8": 8.0,
    "int4": 4.0 + 16 / 128,
    "fp4": 4.0 + 8 / 16,
    "mxfp4": 4.0 + 8 / 32,
}
"""Bits of one stored weight with its scales, for each precision at its usual group size.

fp8_block: one float32 per 128 x 128; int4: one 16-bit scale per 128; fp4 (NVFP4): one fp8 scale per 16; mxfp4: one
8-bit exponent per 32 (OCP Microscaling).
"""

_ALGORITHMS = {
    "FP8": ("fp8", 8),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", 8),
    "FP8_PB_WO": ("fp8_block", 8),
    "FP8_BLOCK": ("fp8_block", 8),
    "NVFP4": ("fp4", 4),
    "NVFP4_AWQ": ("fp4", 4),
    "W4A16_NVFP4": ("fp4", 16),
    "MXFP4": ("mxfp4", 16),
    "W4A8_MXFP4_FP8": ("mxfp4", 8),
    "W4A16_AWQ": ("int4", 16),
    "W4A8_AWQ": ("int4", 8),
    "W4A16": ("int4", 16),
    "W8A16": ("int8", 16),
    "W8A8_SQ_PER_CHANNEL": ("int8", 8),
    "INT8": ("int8", 8),
}


_FOREIGN = {
    "mlx": "MLX files run on Apple's processors only",
    "exl2": "EXL2 files are ExLlama's: neither engine reads them",
    "exl3": "EXL3 files are ExLlama's: neither engine reads them",
    "gguf": "GGUF files are llama.cpp's",
    "hqq": "HQQ checkpoints are read by neither engine",
    "aqlm": "AQLM checkpoints are read by neither engine any more",
    "torchao": "torchao checkpoints have kernels in vLLM alone, whose sizes and speed are not known here",
}
"""Methods that a configuration may state and that are not planned, and why."""

_ORIGINAL = "Give the config.json of the checkpoint that it was made from, or of its FP8, AWQ or NVFP4 export."

_PLAIN_HEAD = ("lm_head",)
"""The head stays in the model's type: engines load it so for these methods, and ModelOpt's recipes leave it out."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A checkpoint's quantisation, and which modules it covers.

    ``overrides`` maps module names to another precision (mixed checkpoints); when ``listed_only`` nothing else is
    quantised.
    """

    quantization: Quantization
    overrides: tuple[tuple[str, str], ...] = ()
    listed_only: bool = False
    activations: tuple[tuple[str, int], ...] = ()  # by precision: bits of the activations


def parse_quantization(config: Fields, language: Fields, side: Mapping[str, Any] | None) -> Scheme:
    """The scheme of a checkpoint; ``side`` (hf_quant_config.json) wins over the config's own section.

    Raises InputError for a malformed section and UnsupportedError for a method it does not know.
    """
    section = config.child("quantization_config", "compression_config") or language.child(
        "quantization_config", "compression_config"
    )
    if side is not None:
        return _modelopt(Fields(side, "hf_quant_config"), section)
    if section is None:
        section = config.child("quantization")  # older MLX files have it alone
        if section is None or not section.has("bits", "group_size"):
            return Scheme(NONE)
    method = section.text("quant_method").lower()
    if not method and section.has("quant_algo"):
        method = "modelopt"
    reader = _METHODS.get(method)
    if not method and section.has("bits", "group_size"):
        method = "mlx"  # the only exporter that names no method
    if method in _FOREIGN:
        raise UnsupportedError(_FOREIGN[method], field=section.name("quant_method"), value=method, remedy=_ORIGINAL)
    if reader is None:
        raise UnsupportedError(
            "this quantisation method is not known",
            field=section.name("quant_method"),
            value=method or None,
            remedy=f"Known methods: {', '.join(sorted(_METHODS))}.",
        )
    return reader(section)


def _fp8(section: Fields) -> Scheme:
    if section.has("quantized_layers"):
        return _mixed_layers(section, _fp8_base(section))
    return Scheme(_fp8_base(section))


def _fp8_base(section: Fields) -> Quantization:
    ignored = (*(section.texts("modules_to_not_convert") or section.texts("ignored_layers")), *_PLAIN_HEAD)
    if "lm_head" not in ignored:
        ignored += ("lm_head",)  # vLLM's fp8 method covers linear layers and experts, not the head
    blocks = section.ints("weight_block_size", low=1, high=10**6)
    static = section.text("activation_scheme", default="dynamic")
    if static not in ("dynamic", "static"):
        raise InputError("must be dynamic or static", field=section.name("activation_scheme"), value=static)
    if blocks:
        if len(blocks) != 2:
            raise InputError("must hold two numbers", field=section.name("weight_block_size"), value=blocks)
        scale = 32 / (blocks[0] * blocks[1])
        return Quantization("fp8", "fp8_block", 8.0, 8, scale, blocks[1], ignored)
    return Quantization("fp8", "fp8", 8.0, 8, 0.0, None, ignored)


def _int4(method: str) -> Callable[[Fields], Scheme]:
    def read(section: Fields) -> Scheme:
        bits = section.integer("bits", "w_bit", default=4, high=16)
        group = section.integer("group_size", "q_group_size", default=128, low=-1)
        if bits not in (4, 8):
            raise UnsupportedError("only 4 and 8 bits are known", field=section.name("bits"), value=bits)
        per_group = 16 + (0 if section.flag("sym", default=method == "gptq") and method == "awq" else bits)
        ignored = (*section.texts("modules_to_not_convert"), *_left_out(section, bits))
        scale = per_group / group if group > 0 else 0.0
        lm_head = () if section.flag("lm_head", default=False) else _PLAIN_HEAD
        return Scheme(
            Quantization(
                method,
                "int4" if bits == 4 else "int8",
                float(bits),
                16,
                scale,
                max(group, 0) or None,
                ignored + lm_head,
            )
        )

    return read


def _left_out(section: Fields, bits: int) -> list[str]:
    """Modules that GPTQModel's ``dynamic`` ("-:" and an expression) and AutoRound's ``extra_config`` leave as they are.

    Raises UnsupportedError where they give modules other bits (vLLM's ``gptq_utils.get_dynamic_override``, ``inc.py``).
    """
    found = []
    for key in ("dynamic", "extra_config"):
        rules = section.child(key)
        for name in rules.data if rules is not None else ():
            rule = rules.child(name) if rules is not None else None
            own = rule.integer("bits", default=bits if key == "dynamic" else 16, high=32) if rule is not None else bits
            if name.startswith("-:"):
                found.append("re:" + name[2:])
            elif key == "extra_config" and own >= 16:
                found.append(name)
            elif own != bits:
                raise UnsupportedError("other bits for some modules are not known", field=section.name(key), value=name)
    return found


def _auto_round(section: Fields) -> Scheme:
    kind = section.text("data_type", default="int")
    if kind != "int":
        raise UnsupportedError("only whole numbers are known", field=section.name("data_type"), value=kind)
    return _int4("auto-round")(section)


_QUARK = {"fp8_e4m3": "fp8", "int8": "int8", "uint4": "int4", "int4": "int4", "fp4": "mxfp4"}


def _quark(section: Fields) -> Scheme:
    """AMD Quark: one kind of weights for all layers but ``exclude``; vLLM leaves the cache as it is unless told.

    Layout as vLLM's ``quark.py`` reads it. Raises UnsupportedError for other kinds, and where layers differ.
    """
    whole = section.child("global_quant_config")
    weight = whole.child("weight") if whole is not None else None
    if whole is None or weight is None:
        raise InputError("is missing", field=section.name("global_quant_config.weight"))
    kind = weight.text("dtype")
    if kind not in _QUARK:
        raise UnsupportedError("this weight format is not known", field=weight.name("dtype"), value=kind)
    layers = section.child("layer_quant_config")
    for name in layers.data if layers is not None else ():
        other = layers.child(name) if layers is not None else None
        own = other.child("weight") if other is not None else None
        if own is not None and own.text("dtype") != kind:
            raise UnsupportedError("layers of several formats are not known", field=f"{section.path}.{name}")
    precision = _QUARK[kind]
    group = weight.optional_int("group_size", low=-1)
    group = group if group is not None and group > 0 else {"mxfp4": 32}.get(precision)
    bits = float(int(STORED_BITS[precision]))
    scale = ({"mxfp4": 8, "int4": 16}.get(precision, 32) / group) if group else 0.0
    inputs = whole.child("input_tensors")
    activation = {"fp8_e4m3": 8, "int8": 8, "fp4": 4}.get(inputs.text("dtype"), 16) if inputs is not None else 16
    ignored = (*section.texts("exclude"), *_PLAIN_HEAD)
    return Scheme(Quantization("quark", precision, bits, activation, scale, group, ignored))


def _mxfp4(section: Fields) -> Scheme:
    ignored = (*section.texts("modules_to_not_convert"), *_PLAIN_HEAD)
    return Scheme(Quantization("mxfp4", "mxfp4", 4.0, 16, 8 / 32, 32, ignored))


def _bitsandbytes(section: Fields) -> Scheme:
    ignored = (*section.texts("llm_int8_skip_modules"), *_PLAIN_HEAD)
    if section.flag("load_in_4bit", "_load_in_4bit", default=False):
        return Scheme(Quantization("bitsandbytes", "int4", 4.0, 16, 32 / 64, 64, ignored))
    return Scheme(Quantization("bitsandbytes", "int8", 8.0, 16, 0.0, None, ignored))


def _compressed_tensors(section: Fields) -> Scheme:
    sparsity = section.child("sparsity_config")
    if sparsity is not None and sparsity.text("format", default="dense") != "dense":
        raise UnsupportedError("sparse checkpoints are not planned", field=sparsity.name("format"), remedy=_ORIGINAL)
    groups = section.child("config_groups")
    if groups is None or not groups.data:
        raise InputError("is missing", field=section.name("config_groups"))
    ignored = tuple(section.texts("ignore"))
    cache = "fp8" if section.raw("kv_cache_scheme") else None
    readings = []
    for key in groups.data:
        group = groups.child(key)
        if group is None:
            raise InputError("must be an object", field=groups.name(key))
        readings.append((_weights(group), tuple(group.texts("targets"))))
    base = replace(readings[0][0], ignored=ignored, kv_cache_dtype=cache)
    if len(readings) == 1:
        return Scheme(base)
    overrides = tuple(
        (target, reading.precision) for reading, targets in readings for target in targets if target != "Linear"
    )
    bits = tuple({r.precision: r.weight_bits + r.scale_bits_per_weight for r, _ in readings}.items())
    everything = any("Linear" in targets for _, targets in readings)
    activations = tuple({r.precision: r.activation_bits for r, _ in readings}.items())
    return Scheme(replace(base, per_role_bits=bits), overrides, not everything, activations)


def _weights(group: Fields) -> Quantization:
    weights = group.child("weights")
    if weights is None:
        raise InputError("is missing", field=group.name("weights"))
    bits = weights.integer("num_bits", high=16)
    kind = weights.text("type", default="int")
    strategy = weights.text("strategy", default="")
    size = weights.optional_int("group_size", low=-1)
    inputs = group.child("input_activations")
    activation = inputs.integer("num_bits", high=16) if inputs is not None else 16
    form = group.text("format", default="")
    if kind == "float" and bits == 8:
        block = weights.ints("block_structure", low=1) if strategy == "block" else []
        scale = 32 / (block[0] * block[1]) if len(block) == 2 else 0.0
        return Quantization("compressed-tensors", "fp8_block" if block else "fp8", 8.0, activation, scale, size)
    if kind == "float" and bits == 4:
        mx = form.startswith("mxfp4") or weights.text("scale_dtype") == "torch.uint8"
        group_size = size or (32 if mx else 16)
        name = "mxfp4" if mx else "fp4"
        return Quantization("compressed-tensors", name, 4.0, activation, 8 / group_size, group_size)
    if kind == "int" and bits in (4, 8):
        zero = 0 if weights.flag("symmetric", default=True) else bits
        scale = (16 + zero) / size if size and size > 0 else 0.0
        return Quantization("compressed-tensors", f"int{bits}", float(bits), activation, scale, size)
    raise UnsupportedError("this weight format is not known", field=weights.name("num_bits"), value=f"{kind}{bits}")


def _modelopt(section: Fields, config_section: Fields | None = None) -> Scheme:
    body = section.child("quantization") or section
    algorithm = body.text("quant_algo").upper()
    cache_name = body.raw("kv_cache_quant_algo")
    scheme = body.raw("kv_cache_scheme")
    cache = "fp8" if cache_name == "FP8" or scheme else None
    ignored = tuple(body.texts("exclude_modules") or body.texts("ignore")) or _PLAIN_HEAD
    if algorithm == "MIXED_PRECISION":
        mixed = _mixed_layers(body, replace(NONE, method="modelopt", ignored=ignored, kv_cache_dtype=cache))
        if config_section is None or config_section.text("quant_method").lower() != "fp8":
            return mixed
        return _mixed_layers(body, replace(_fp8_base(config_section), kv_cache_dtype=cache))
    if not algorithm:
        raise InputError("is missing", field=body.name("quant_algo"))
    quantization = _algorithm(body, algorithm)
    return Scheme(replace(quantization, ignored=ignored, kv_cache_dtype=cache))


def _algorithm(body: Fields, algorithm: str) -> Quantization:
    if algorithm not in _ALGORITHMS:
        raise UnsupportedError(
            "this quantisation algorithm is not known",
            field=body.name("quant_algo"),
            value=algorithm,
            remedy=f"Known: {', '.join(sorted(_ALGORITHMS))}, MIXED_PRECISION.",
        )
    precision, activation = _ALGORITHMS[algorithm]
    weight_bits = float(int(STORED_BITS[precision]))
    group = body.optional_int("group_size")
    scale = STORED_BITS[precision] - weight_bits
    if group and precision in ("int4", "fp4", "mxfp4"):
        scale = (16 if precision == "int4" else 8) / group
    return Quantization("modelopt", precision, weight_bits, activation, scale, group)


def _mixed_layers(body: Fields, base: Quantization) -> Scheme:
    """``quantized_layers``: module -> algorithm; what is not listed keeps ``base`` (or stays unquantised)."""
    listed = body.child("quantized_layers")
    if listed is None or not listed.data:
        raise InputError("is missing although the algorithm is MIXED_PRECISION", field=body.name("quantized_layers"))
    overrides = []
    bits: dict[str, float] = {}
    activations: dict[str, int] = {}
    for module in listed.data:
        entry = listed.child(module)
        if entry is None:
            raise InputError("must be an object", field=listed.name(module))
        reading = _algorithm(entry, entry.text("quant_algo").upper())
        bits[reading.precision] = reading.weight_bits + reading.scale_bits_per_weight
        activations[reading.precision] = reading.activation_bits
        overrides.append((module, reading.precision))
    if base.precision == "bf16":
        main = max(bits, key=lambda name: sum(1 for _, precision in overrides if precision == name))
        weight_bits = float(int(bits[main]))
        base = replace(
            base,
            precision=main,
            weight_bits=weight_bits,
            scale_bits_per_weight=bits[main] - weight_bits,
            activation_bits=activations[main],
        )
        return Scheme(
            replace(base, per_role_bits=tuple(bits.items())), tuple(overrides), True, tuple(activations.items())
        )
    own = base.weight_bits + base.scale_bits_per_weight
    return Scheme(
        replace(base, per_role_bits=((base.precision, own), *bits.items())),
        tuple(overrides),
        False,
        tuple(activations.items()),
    )


_METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "auto-round": _auto_round,
    "awq": _int4("awq"),
    "gptq": _int4("gptq"),
    "mxfp4": _mxfp4,
    "quark": _quark,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
}
