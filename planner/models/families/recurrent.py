"""Building blocks with a fixed-size state: gated delta net, Kimi delta attention, Mamba 1 and 2, RWKV."""

from __future__ import annotations

from planner.errors import InputError
from planner.models.blocks import norm
from planner.models.fields import Fields
from planner.models.spec import Linear, RecurrentState, Shard

_STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 4}


def state_bytes(fields: Fields, *keys: str, default: str = "float32") -> int:
    """Bytes of one state element, from a data type field."""
    name = fields.text(*keys, default=default).removeprefix("torch.")
    if name not in _STATE_BYTES:
        raise InputError("unknown data type", field=fields.name(keys[0]), value=name)
    return _STATE_BYTES[name]


def gated_delta_net(fields: Fields, hidden: int) -> tuple[RecurrentState, list[Linear]]:
    """Qwen3-Next and Qwen3.5 linear attention (transformers ``Qwen3_5GatedDeltaNet``)."""
    key_heads = fields.integer("linear_num_key_heads", high=10**5)
    value_heads = fields.integer("linear_num_value_heads", high=10**5)
    key_dim = fields.integer("linear_key_head_dim", high=10**5)
    value_dim = fields.integer("linear_value_head_dim", high=10**5)
    kernel = fields.integer("linear_conv_kernel_dim", high=1000)
    conv = 2 * key_heads * key_dim + value_heads * value_dim
    value = value_heads * value_dim
    state = RecurrentState(
        "gdn",
        conv_elements=conv * (kernel - 1),
        state_elements=value_heads * key_dim * value_dim,
        heads=value_heads,
        head_dim=value_dim,
        state_dtype_bytes=state_bytes(fields, "mamba_ssm_dtype"),
    )
    prefix = "linear_attn"
    return state, [
        Linear(
            "state_in",
            conv + value,
            hidden,
            Shard.COLUMN,
            module=f"{prefix}.in_proj_qkv|{prefix}.in_proj_z|{prefix}.in_proj_qkvz",
        ),
        Linear("other", 2 * value_heads, hidden, Shard.COLUMN, module=f"{prefix}.in_proj_ba"),
        Linear("conv", conv, kernel, Shard.COLUMN, module=f"{prefix}.conv1d"),
        Linear("norm", value_heads, 1, Shard.COLUMN, 2, module=f"{prefix}.dt_bias"),
        norm(value_dim, module=f"{prefix}.norm"),
        Linear("state_out", hidden, value, Shard.ROW, module=f"{prefix}.out_proj"),
    ]


def kimi_delta_attention(fields: Fields, hidden: int) -> tuple[RecurrentState, list[Linear]]:
    """Kimi Linear's delta attention (transformers ``KimiLinearDeltaAttention``); K3 has a full-rank output gate."""
    linear = fields.child("linear_attn_config") or fields
    heads = linear.integer("num_heads", "linear_num_heads", high=10**5)
    dim = linear.integer("head_dim", "linear_head_dim", high=10**5)
    kernel = linear.integer("short_conv_kernel_size", "linear_conv_kernel_dim", high=1000)
    width = heads * dim
    state = RecurrentState(
        "kda",
        conv_elements=3 * width * (kernel - 1),
        state_elements=heads * dim * dim,
        heads=heads,
        head_dim=dim,
    )
    prefix = "self_attn"
    linears = [
        Linear("state_in", 3 * width, hidden, Shard.COLUMN, module=f"{prefix}.q_proj|{prefix}.k_proj|{prefix}.v_proj"),
        Linear("conv", 3 * width, kernel, Shard.COLUMN, module=f"{prefix}.conv1d"),
        Linear("other", dim, hidden, Shard.REPLICATED, module=f"{prefix}.f_a_proj"),
        Linear("other", width, dim, Shard.COLUMN, bias=True, module=f"{prefix}.f_b_proj"),
        Linear("other", heads, hidden, Shard.COLUMN, module=f"{prefix}.b_proj"),
        Linear("norm", heads, 1, Shard.COLUMN, module=f"{prefix}.A_log"),
        norm(dim, module=f"{prefix}.o_norm"),
        Linear("state_out", hidden, width, Shard.ROW, module=f"{prefix}.o_proj"),
    ]
    if linear.flag("use_full_rank_gate", default=False):
        linears.append(Linear("state_in", width, hidden, Shard.COLUMN, module=f"{prefix}.g_proj"))
    else:
        linears.append(Linear("other", dim, hidden, Shard.REPLICATED, module=f"{prefix}.g_a_proj"))
        linears.append(Linear("other", width, dim, Shard.COLUMN, module=f"{prefix}.g_b_proj"))
    return state, linears


def mamba2(
    hidden: int,
    *,
    heads: int,
    head_dim: int,
    state_size: int,
    groups: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    bytes_per_state: int,
    prefix: str,
) -> tuple[RecurrentState, list[Linear]]:
    """Mamba 2 mixer (transformers ``NemotronHMamba2Mixer``): gate, x, B, C and dt in one input projection."""
    inner = heads * head_dim
    conv = inner + 2 * groups * state_size
    state = RecurrentState(
        "mamba2",
        conv_elements=conv * (kernel - 1),
        state_elements=inner * state_size,
        heads=heads,
        head_dim=head_dim,
        state_dtype_bytes=bytes_per_state,
    )
    return state, [
        Linear("state_in", inner + conv + heads, hidden, Shard.COLUMN, bias=bias, module=f"{prefix}.in_proj"),
        Linear("conv", conv, kernel, Shard.COLUMN, bias=conv_bias, module=f"{prefix}.conv1d"),
        Linear("norm", heads, 1, Shard.COLUMN, 3, module=f"{prefix}.dt_bias"),
        Linear("norm", inner, 1, Shard.COLUMN, module=f"{prefix}.norm"),
        Linear("state_out", hidden, inner, Shard.ROW, bias=bias, module=f"{prefix}.out_proj"),
    ]


def mamba1(fields: Fields, hidden: int) -> tuple[RecurrentState, list[Linear]]:
    """Mamba 1 mixer with Jamba's three norms (transformers ``JambaMambaMixer``)."""
    inner = fields.integer("mamba_expand", high=1000) * hidden
    size = fields.integer("mamba_d_state", high=10**5)
    kernel = fields.integer("mamba_d_conv", high=1000)
    rank = fields.optional_int("mamba_dt_rank") or -(-hidden // 16)
    bias = fields.flag("mamba_proj_bias", default=False)
    state = RecurrentState("mamba1", conv_elements=inner * (kernel - 1), state_elements=inner * size)
    return state, [
        Linear("state_in", 2 * inner, hidden, Shard.COLUMN, bias=bias, module="mamba.in_proj"),
        Linear(
            "conv",
            inner,
            kernel,
            Shard.COLUMN,
            bias=fields.flag("mamba_conv_bias", default=True),
            module="mamba.conv1d",
        ),
        Linear("other", rank + 2 * size, inner, Shard.ROW, module="mamba.x_proj"),
        Linear("other", inner, rank, Shard.COLUMN, bias=True, module="mamba.dt_proj"),
        Linear("norm", inner, size, Shard.COLUMN, module="mamba.A_log"),
        Linear("norm", inner, 1, Shard.COLUMN, module="mamba.D"),
        norm(rank + 2 * size, module="mamba.layernorms"),
        Linear("state_out", hidden, inner, Shard.ROW, bias=bias, module="mamba.out_proj"),
    ]


def rwkv5(fields: Fields, hidden: int) -> tuple[RecurrentState, list[Linear]]:
    """RWKV 5 time mixing: four projections in, one out, a head_size x head_size state per head."""
    width = fields.integer("attention_hidden_size", default=hidden)
    size = fields.integer("head_size", high=10**5)
    if width % size:
        raise InputError("must divide the attention width", field=fields.name("head_size"), value=size)
    state = RecurrentState(
        "rwkv",
        conv_elements=2 * hidden,
        state_elements=width * size,
        heads=width // size,
        head_dim=size,
    )
    prefix = "attention"
    return state, [
        Linear("state_in", 4 * width, hidden, Shard.COLUMN, module=f"{prefix}.receptance"),
        Linear("norm", width, 1, Shard.COLUMN, 2, module=f"{prefix}.time_decay"),
        norm(hidden, 4, module=f"{prefix}.time_mix"),
        norm(width, bias=True, module=f"{prefix}.ln_x"),
        Linear("state_out", hidden, width, Shard.ROW, module=f"{prefix}.output"),
    ]
