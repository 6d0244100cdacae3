"""Cases of flash-linear-attention: the parts that its operations are made of, and its utilities."""

from __future__ import annotations

import torch

from tests.corpus.case import Draw, Given, case, given

OPS = "fla.ops."
HEADS = ((1, 16, 1, 16), (2, 16, 1, 16), (1, 32, 2, 16))  # batch, length, heads, size
SCALE, CHUNK = 0.25, 16


def states(draw: Draw, batch: int, length: int, heads: int, size: int) -> torch.Tensor:
    """A state of each chunk."""
    return draw(batch, length // CHUNK, heads, size, size)


def scores(draw: Draw, batch: int, length: int, heads: int, size: int) -> torch.Tensor:
    """A small lower triangle of each chunk."""
    inside = torch.arange(length)[:, None] % CHUNK > torch.arange(CHUNK)
    return draw(batch, length, heads, CHUNK) * 0.1 * inside[:, None]


# -- utilities ------------------------------------------------------------------------------------


@case(OPS + "utils.cumsum", *HEADS, ci=True)
def chunk_local_cumsum_scalar(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape[:3]), CHUNK)


@case(OPS + "utils.cumsum", *HEADS)
def chunk_local_cumsum_vector(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape), CHUNK)


@case(OPS + "utils.cumsum", *HEADS)
def chunk_global_cumsum_scalar(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape[:3]), reverse=True)


@case(OPS + "utils.cumsum", *HEADS)
def chunk_global_cumsum_vector(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape))


@case(OPS + "utils.cumsum", *HEADS)
def chunk_global_cumsum(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape))


@case(OPS + "utils.cumsum", *HEADS)
def chunk_local_cumsum(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape), chunk_size=CHUNK)


@case(OPS + "utils.logsumexp", (2, 64), (3, 96), (4, 128), function="logsumexp_fwd", ci=True)
def utils_logsumexp_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), scale=0.5)


@case(OPS + "utils.softmax", (2, 64), (3, 96), (4, 128), ci=True)
def softmax_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(OPS + "utils.softmax", (2, 64), (3, 96), (4, 128))
def softmax_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols).softmax(-1), draw(rows, cols))


@case(OPS + "utils.matmul", (16, 32, 16), (24, 32, 48), (32, 64, 32))
def matmul(draw: Draw, rows: int, inner: int, cols: int) -> Given:
    return given(draw(rows, inner), draw(inner, cols), activation="relu")


@case(OPS + "utils.matmul", (16, 32, 16), (24, 32, 48), (32, 64, 32))
def addmm(draw: Draw, rows: int, inner: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, inner), draw(inner, cols))


@case(OPS + "utils.pack", (2, 8, 16), (3, 6, 32), (1, 16, 16))
def pack_sequence_fwdbwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    ends = torch.arange(batch + 1, dtype=torch.int32) * (length - 2)
    return given(draw(batch, length, size), ends, "left")


@case(OPS + "utils.pack", (2, 8, 16), (3, 6, 32), (1, 16, 16))
def unpack_sequence_fwdbwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    ends = torch.arange(batch + 1, dtype=torch.int32) * (length - 2)
    packed = draw(batch * (length - 2), size)
    return given(packed, ends, "left", torch.Size((batch, length, size)))


@case(OPS + "utils.pooling", *HEADS)
def mean_pooling_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), CHUNK)


@case(OPS + "utils.pooling", *HEADS)
def mean_pooling_bwd(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    return given(draw(batch, length // CHUNK, heads, size), batch, length, CHUNK)


@case(OPS + "utils.pooling", *HEADS)
def mean_pooling(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), CHUNK)


@case(OPS + "utils.solve_tril", *HEADS)
def solve_tril(draw: Draw, *shape: int) -> Given:
    return given(scores(draw, *shape))


@case(OPS + "utils.sinkhorn.ops", (8, 4, 4), (6, 4, 4), (4, 8, 8))
def sinkhorn_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), 3)


@case(OPS + "utils.index", (2, 8), (3, 24), (4, 16))
def prepare_chunk_indices(draw: Draw, count: int, length: int) -> Given:
    return given(torch.arange(count + 1) * length, CHUNK)


@case(OPS + "common.gate", *HEADS)
def fused_beta_sigmoid_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape[:3]))


@case(OPS + "kda.gate", *HEADS)
def kda_gate_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(shape[2]), draw(shape[2] * shape[3]))


@case(OPS + "gated_delta_rule.gate", *HEADS)
def gdn_gate_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape[:3]), draw(shape[2]), draw(shape[2]))


@case(OPS + "gsa.gate", (1, 16, 2, 16), (2, 8, 1, 16), (1, 24, 1, 32))
def fused_additive_gate(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


# -- parts of chunked operations ------------------------------------------------------------------


@case(OPS + "common.chunk_h", *HEADS)
def chunk_fwd_h(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), g=draw.decay(*shape[:3]), chunk_size=CHUNK)


@case(OPS + "common.chunk_h", *HEADS)
def chunk_bwd_dh(draw: Draw, *shape: int) -> Given:
    inputs = (draw(*shape) for _ in range(4))
    return given(*inputs, None, None, SCALE, g=draw.decay(*shape[:3]), chunk_size=CHUNK)


@case(OPS + "common.chunk_h_parallel", *HEADS, function="chunk_fwd_h", ci=True)
def parallel_chunk_fwd_h(draw: Draw, *shape: int) -> Given:
    gates = draw.decay(*shape[:3]), None, None
    return given(draw(*shape), draw(*shape), *gates, None, False, chunk_size=CHUNK)


@case(OPS + "common.chunk_o", *HEADS)
def chunk_fwd_o(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape), states(draw, *shape)
    return given(*inputs, g=draw.decay(*shape[:3]), scale=SCALE, chunk_size=CHUNK)


@case(OPS + "common.chunk_o", *HEADS)
def chunk_bwd_dv(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape), states(draw, *shape)
    return given(*inputs, g=draw.decay(*shape[:3]), scale=SCALE, chunk_size=CHUNK)


@case(OPS + "common.chunk_o", *HEADS)
def chunk_bwd_dv_local(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape)
    return given(*inputs, g=draw.decay(*shape[:3]), scale=SCALE, chunk_size=CHUNK)


@case(OPS + "common.chunk_o", *HEADS)
def chunk_bwd_dqkwg(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape), draw(*shape)
    both = states(draw, *shape), states(draw, *shape)
    return given(*inputs, *both, g=draw.decay(*shape[:3]), scale=SCALE, chunk_size=CHUNK)


@case(OPS + "common.chunk_scaled_dot_kkt", *HEADS)
def chunk_scaled_dot_kkt_fwd(draw: Draw, *shape: int) -> Given:
    gates = {"g": draw.decay(*shape[:3]), "beta": draw.unit(*shape[:3])}
    return given(draw(*shape), **gates, chunk_size=CHUNK)


@case(OPS + "common.chunk_delta_h", *HEADS)
def chunk_gated_delta_rule_fwd_h(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape)
    return given(*inputs, g=draw.decay(*shape[:3]), chunk_size=CHUNK)


@case(OPS + "common.fused_chunk", *HEADS)
def fused_chunk_fwd(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape)
    return given(*inputs, g=draw.decay(*shape[:3]), scale=SCALE, chunk_size=CHUNK)


@case(OPS + "delta_rule.wy_fast", *HEADS, function="prepare_wy_repr_fwd")
def delta_rule_prepare_wy_repr_fwd(draw: Draw, *shape: int) -> Given:
    keys = draw.rows_of_unit_length(*shape)
    return given(keys, draw(*shape), draw.unit(*shape[:3]), None, chunk_size=CHUNK)


@case(OPS + "delta_rule.wy_fast", *HEADS, function="recompute_w_u_fwd", ci=True)
def delta_rule_recompute_w_u_fwd(draw: Draw, *shape: int) -> Given:
    keys = draw.rows_of_unit_length(*shape)
    return given(keys, draw(*shape), draw.unit(*shape[:3]), scores(draw, *shape), None)


@case(OPS + "delta_rule.wy_fast", *HEADS, function="prepare_wy_repr_bwd")
def delta_rule_prepare_wy_repr_bwd(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw.unit(*shape[:3]), scores(draw, *shape)
    return given(*inputs, draw(*shape), draw(*shape), None)


@case(OPS + "gated_delta_rule.wy_fast", *HEADS, function="recompute_w_u_fwd")
def gated_recompute_w_u_fwd(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw.unit(*shape[:3]), scores(draw, *shape)
    return given(*inputs, g=draw.decay(*shape[:3]))


@case(OPS + "comba.wy_fast", *HEADS)
def chunk_scaled_dot_comba_pkt_fwd(draw: Draw, *shape: int) -> Given:
    gates = {"g0": draw.decay(*shape[:3]), "g": draw.decay(*shape[:3])}
    return given(draw(*shape), draw(*shape), draw.unit(*shape[:3]), **gates, chunk_size=CHUNK)


@case(OPS + "comba.utils", *HEADS)
def chunk_comba_cumsum_scalar_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape[:3]), CHUNK)


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla_fwd_intra_gk(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw.decay(*shape), SCALE, chunk_size=CHUNK)


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla_fwd_o_gk(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw.decay(*shape)
    return given(*inputs, scores(draw, *shape), states(draw, *shape), SCALE, chunk_size=CHUNK)


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla_bwd_dA(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), SCALE, chunk_size=CHUNK)


@case(OPS + "gla.chunk", *HEADS)
def chunk_gla_bwd_dqk_intra(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw.decay(*shape), scores(draw, *shape)
    return given(*inputs, chunk_size=CHUNK)


@case(OPS + "rwkv6.chunk", *HEADS)
def chunk_rwkv6_fwd_cumsum(draw: Draw, *shape: int) -> Given:
    return given(draw.decay(*shape), CHUNK)


@case(OPS + "gated_oja_rule.chunk_o", *HEADS)
def chunk_oja_fwd_o(draw: Draw, *shape: int) -> Given:
    inputs = draw(*shape), draw(*shape), draw(*shape), draw.decay(*shape)
    return given(*inputs, states(draw, *shape), SCALE, chunk_size=CHUNK)


@case(OPS + "ttt.chunk", *HEADS)
def chunk_ttt_linear_fwd_h(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    inputs = draw(batch, length, heads, size), draw(batch, length, heads, size)
    rest = draw(heads, size), draw(heads, size), draw.unit(batch, length, heads, 1)
    return given(*inputs, *rest, 1e-6)


@case(OPS + "rwkv7.channel_mixing", (1, 8, 32), (2, 8, 64), (1, 12, 32))
def rwkv_mix_fwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw(batch, length, size), draw(batch, 1, size), draw(1, 1, size))


@case(OPS + "rwkv7.channel_mixing", (1, 8, 32), (2, 8, 64), (1, 12, 32))
def rwkv_relu_and_square_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(OPS + "rwkv7.fused_k_update", (1, 8, 32), (2, 8, 64), (1, 12, 32))
def k_update_fwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw(batch, length, size), draw(batch, length, size), draw(size))


@case(OPS + "rwkv7.gate_output_correction", *HEADS)
def gate_output_correction(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    flat, split = (batch, length, heads * size), (batch, length, heads, size)
    inputs = draw(*split), draw(*split), draw(heads, size), draw(*split)
    return given(draw(*flat), *inputs, draw(*flat))


@case(OPS + "rwkv7.fused_addcmul", (1, 8, 32), (2, 8, 64), (1, 12, 32))
def fused_addcmul_rwkv7(draw: Draw, batch: int, length: int, size: int) -> Given:
    mixed = (draw(1, 1, size) for _ in range(6))
    return given(draw(batch, length, size), draw(batch, length, size), *mixed)


@case(OPS + "path_attn.transform_q", *HEADS)
def transform_q_fwd_fn(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw(*shape), None, CHUNK, CHUNK, CHUNK)
