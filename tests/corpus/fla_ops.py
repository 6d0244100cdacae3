"""Cases of flash-linear-attention: whole operations, recurrent, chunked and parallel."""

from __future__ import annotations

import torch

from tests.corpus.case import Draw, Given, case, given

OPS = "fla.ops."
HEADS = ((1, 16, 1, 16), (2, 16, 1, 16), (1, 32, 2, 16))  # batch, length, heads, size
SCALE = 0.25


def attended(draw: Draw, *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys of length 1, and values."""
    return draw(*shape), draw.rows_of_unit_length(*shape), draw(*shape)


# -- recurrences ----------------------------------------------------------------------------------


@case(OPS + "common.fused_recurrent", *HEADS)
def fused_recurrent_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), gk=draw.decay(*shape), scale=SCALE)


@case(OPS + "common.fused_recurrent", *HEADS)
def fused_recurrent_bwd(draw: Draw, *shape: int) -> Given:
    rest = {"o": draw(*shape), "do": draw(*shape), "scale": SCALE}
    return given(*attended(draw, *shape), gk=draw.decay(*shape), **rest)


@case(OPS + "common.fused_recurrent", *HEADS)
def fused_recurrent(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), g=draw.decay(*shape[:3]), output_final_state=True)


@case(OPS + "gla.fused_recurrent", *HEADS)
def fused_recurrent_gla(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), gk=draw.decay(*shape))


@case(OPS + "simple_gla.fused_recurrent", *HEADS)
def fused_recurrent_simple_gla(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), g=draw.decay(*shape[:3]))


@case(OPS + "retention.fused_recurrent", *HEADS)
def fused_recurrent_retention(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "lightning_attn.fused_recurrent", *HEADS)
def fused_recurrent_lightning_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), 1, 4)


@case(OPS + "linear_attn.fused_recurrent", *HEADS)
def fused_recurrent_linear_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "delta_rule.fused_recurrent", *HEADS, ci=True)
def fused_recurrent_delta_rule_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.unit(*shape[:3]), SCALE, None, False)


@case(OPS + "delta_rule.fused_recurrent", *HEADS)
def fused_recurrent_delta_rule_bwd(draw: Draw, *shape: int) -> Given:
    beta = draw.unit(*shape[:3])
    return given(*attended(draw, *shape), beta, None, draw(*shape), SCALE, None)


@case(OPS + "delta_rule.fused_recurrent", *HEADS)
def fused_recurrent_delta_rule(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.unit(*shape[:3]))


@case(OPS + "gated_delta_rule.fused_recurrent", *HEADS)
def fused_recurrent_gated_delta_rule_fwd(draw: Draw, *shape: int) -> Given:
    gates = {"g": draw.decay(*shape[:3]), "beta": draw.unit(*shape[:3])}
    return given(*attended(draw, *shape), **gates, scale=SCALE)


@case(OPS + "gated_delta_rule.fused_recurrent", *HEADS)
def fused_recurrent_gated_delta_rule(draw: Draw, *shape: int) -> Given:
    gates = {"g": draw.decay(*shape[:3]), "beta": draw.unit(*shape[:3])}
    return given(*attended(draw, *shape), **gates)


@case(OPS + "gated_oja_rule.fused_recurrent", *HEADS)
def fused_recurrent_oja_fwd(draw: Draw, *shape: int) -> Given:
    gates = {"gv": draw.decay(*shape), "beta": draw.unit(*shape[:3])}
    return given(*attended(draw, *shape), **gates, scale=SCALE)


@case(OPS + "comba.fused_recurrent", *HEADS)
def fused_recurrent_comba_fwd(draw: Draw, *shape: int) -> Given:
    gates = draw.decay(*shape[:3]), draw.unit(*shape[:3])
    return given(*attended(draw, *shape), draw(*shape), *gates, SCALE, None, False)


@case(OPS + "generalized_delta_rule.dplr.fused_recurrent", *HEADS)
def fused_recurrent_dplr_delta_rule_fwd(draw: Draw, *shape: int) -> Given:
    low_rank = draw.rows_of_unit_length(*shape), draw.rows_of_unit_length(*shape)
    return given(*attended(draw, *shape), *low_rank, draw.decay(*shape), SCALE)


@case(OPS + "hgrn.fused_recurrent", (1, 16, 32), (2, 16, 32), (1, 24, 64))
def fused_recurrent_hgrn_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw.decay(*shape))


@case(OPS + "hgrn.fused_recurrent", (1, 16, 32), (2, 16, 32), (1, 24, 64))
def fused_recurrent_hgrn_bwd(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape), draw(*shape), draw(*shape))


@case(OPS + "hgrn.fused_recurrent", (1, 16, 32), (2, 16, 32), (1, 24, 64))
def fused_recurrent_hgrn(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw.decay(*shape), output_final_state=True)


@case(OPS + "rwkv4.fused_recurrent", (1, 16, 32), (2, 16, 32), (1, 24, 64))
def fused_recurrent_rwkv4_forward(draw: Draw, batch: int, length: int, size: int) -> Given:
    keys = draw(batch, length, size), draw(batch, length, size)
    return given(-draw.unit(size), draw(size), *keys, draw(batch, 3, 1, size))


@case(OPS + "rwkv6.fused_recurrent", *HEADS)
def fused_recurrent_rwkv6_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.decay(*shape), draw(*shape[2:]), SCALE)


@case(OPS + "rwkv6.fused_recurrent", *HEADS)
def fused_recurrent_rwkv6_bwd(draw: Draw, *shape: int) -> Given:
    rest = draw.decay(*shape), draw(*shape[2:]), draw(*shape), SCALE
    return given(*attended(draw, *shape), *rest)


@case(OPS + "rwkv7.fused_recurrent", *HEADS)
def fused_recurrent_rwkv7_fwd(draw: Draw, *shape: int) -> Given:
    r, k, v = attended(draw, *shape)
    return given(r, draw.decay(*shape), k, v, draw.rows_of_unit_length(*shape), draw.unit(*shape))


@case(OPS + "gsa.fused_recurrent", *HEADS)
def fused_recurrent_gsa_fwd(draw: Draw, *shape: int) -> Given:
    slots = draw(*shape).softmax(-1)
    return given(*attended(draw, *shape), slots, draw.decay(*shape))


@case(OPS + "kda.fused_recurrent", *HEADS)
def fused_recurrent_kda_fwd(draw: Draw, *shape: int) -> Given:
    gates = draw.decay(*shape), draw.unit(*shape[:3])
    return given(*attended(draw, *shape), *gates, scale=SCALE, inplace_final_state=False)


@case(OPS + "mesa_net.decoding_one_step", (1, 1, 16), (2, 1, 16), (1, 2, 16))
def mesa_net_decoding_one_step(draw: Draw, batch: int, heads: int, size: int) -> Given:
    inputs = attended(draw, batch, heads, size)
    gates = draw.decay(batch, heads), draw.unit(heads, size) + 0.3, draw.unit(batch, heads)
    states = draw(batch, heads, size, size), draw(batch, heads, size, size)
    return given(*inputs, *gates, *states, max_CG_iteration=3)


@case(OPS + "attn.decoding", (2, 8, 1, 16), (1, 16, 2, 16), (3, 8, 1, 16))
def attn_decoding_one_step(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    packed = 1, batch * length, heads, size
    ends = torch.arange(batch + 1, dtype=torch.int32) * length
    return given(draw(1, batch, heads, size), draw(*packed), draw(*packed), cu_seqlens=ends)


# -- whole chunked operations ---------------------------------------------------------------------


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla_fwd(draw: Draw, *shape: int) -> Given:
    rest = None, SCALE, None, False
    return given(*attended(draw, *shape), draw.decay(*shape), *rest, chunk_size=16)


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.decay(*shape), output_final_state=True)


@case(OPS + "simple_gla.chunk", *HEADS)
def chunk_simple_gla_fwd(draw: Draw, *shape: int) -> Given:
    gate = draw.decay(*shape[:3])
    return given(*attended(draw, *shape), g=gate, scale=SCALE, chunk_size=16)


@case(OPS + "simple_gla.chunk", *HEADS)
def chunk_simple_gla(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), g=draw.decay(*shape[:3]))


@case(OPS + "simple_gla.parallel", *HEADS)
def parallel_simple_gla_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.decay(*shape[:3]), SCALE, chunk_size=32)


@case(OPS + "retention.chunk", *HEADS)
def chunk_retention(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "retention.parallel", *HEADS)
def parallel_retention(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "lightning_attn.chunk", *HEADS)
def chunk_lightning_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), 1, 4)


@case(OPS + "linear_attn.chunk", *HEADS)
def chunk_linear_attn(draw: Draw, *shape: int) -> Given:
    q, k, v = attended(draw, *shape)
    return given(q.abs(), k.abs(), v)


@case(OPS + "linear_attn.fused_chunk", *HEADS)
def fused_chunk_linear_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), normalize=False)


@case(OPS + "delta_rule.chunk", *HEADS)
def chunk_delta_rule_fwd(draw: Draw, *shape: int) -> Given:
    rest = draw.unit(*shape[:3]), SCALE, None, False
    return given(*attended(draw, *shape), *rest, chunk_size=16)


@case(OPS + "delta_rule.chunk", *HEADS)
def chunk_delta_rule(draw: Draw, *shape: int) -> Given:
    inputs = *attended(draw, *shape), draw.unit(*shape[:3])
    return given(*(each.bfloat16() for each in inputs))


@case(OPS + "gated_delta_rule.chunk", *HEADS)
def chunk_gated_delta_rule(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.decay(*shape[:3]), draw.unit(*shape[:3]))


@case(OPS + "comba.chunk", *HEADS)
def chunk_comba_fwd(draw: Draw, *shape: int) -> Given:
    rest = draw.decay(*shape[:3]), draw.unit(*shape[:3]), SCALE, None, False
    return given(*attended(draw, *shape), draw.rows_of_unit_length(*shape), *rest)


@case(OPS + "generalized_delta_rule.iplr.chunk", *HEADS)
def chunk_generalized_iplr_delta_rule_fwd(draw: Draw, *shape: int) -> Given:
    low_rank = draw.rows_of_unit_length(*shape), draw.rows_of_unit_length(*shape)
    return given(*attended(draw, *shape), *low_rank, SCALE, None, False, chunk_size=16)


@case(OPS + "hgrn.chunk", (1, 16, 32), (2, 16, 32), (1, 24, 64))
def chunk_hgrn(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw.decay(*shape))


@case(OPS + "rwkv6.chunk", *HEADS)
def chunk_rwkv6_fwd(draw: Draw, *shape: int) -> Given:
    rest = draw.decay(*shape), draw(*shape[2:]), SCALE, None, False
    return given(*attended(draw, *shape), *rest, chunk_size=16)


@case(OPS + "based.parallel", (1, 1, 16, 16), (2, 1, 16, 16), (1, 2, 16, 16))
def parallel_based(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "rebased.parallel", (1, 1, 16, 16), (2, 1, 16, 16), (1, 2, 16, 16))
def parallel_rebased(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape))


@case(OPS + "ttt.chunk", *HEADS)
def chunk_ttt_linear_fwd(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    inputs = attended(draw, batch, length, heads, size)
    rest = draw(heads, size), draw(heads, size), draw.unit(batch, length, heads, 1)
    return given(*inputs, *rest, SCALE, 1e-6, None, None, False)


@case(OPS + "attn.parallel", *HEADS)
def parallel_attn_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), None, None, SCALE)


@case(OPS + "attn.parallel", *HEADS)
def parallel_attn_bwd_preprocess(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape))


@case(OPS + "attn.parallel", *HEADS)
def parallel_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), window_size=8)


@case(OPS + "forgetting_attn.parallel", *HEADS)
def parallel_forgetting_attn(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), draw.decay(*shape[:3]))


@case(OPS + "stickbreaking_attn.parallel", *HEADS)
def parallel_stickbreaking_attn_fwd(draw: Draw, *shape: int) -> Given:
    return given(*attended(draw, *shape), SCALE)


@case(OPS + "nsa.parallel", (1, 32, 16, 16), (1, 16, 16, 16), (2, 32, 16, 16))
def parallel_nsa_fwd(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    keys = draw(batch, length, 1, size), draw(batch, length, 1, size)
    chosen = torch.zeros(batch, length, 1, 2, dtype=torch.int64)
    return given(draw(batch, length, heads, size), *keys, chosen, 1, 16, SCALE)
