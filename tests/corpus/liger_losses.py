"""Cases of Liger Kernel: losses, softmaxes, attention and routing."""

from __future__ import annotations

import torch

from tests.corpus.case import Draw, Given, case, given

OPS = "liger_kernel.ops."
LOGITS = ((4, 64), (6, 96), (8, 128))
PROJECTED = ((4, 16, 64), (6, 32, 96), (8, 16, 128))
IGNORED = -100


def probabilities(draw: Draw, *shape: int) -> torch.Tensor:
    return draw(*shape).softmax(-1)


def logarithms(draw: Draw, *shape: int) -> torch.Tensor:
    return draw(*shape).log_softmax(-1)


@case(OPS + "cross_entropy", *LOGITS)
def cross_entropy_forward(draw: Draw, rows: int, classes: int) -> Given:
    target = draw.below(classes, rows)
    return given(draw(rows, classes), target, None, IGNORED, 0.0, 0.0, "mean", None, False)


@case(OPS + "cross_entropy", *LOGITS)
def cross_entropy_backward(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw())


@case(OPS + "cross_entropy", *LOGITS, function="cross_entropy_backward")
def cross_entropy_backward_rows(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw(rows))


@case(OPS + "fused_linear_cross_entropy", *PROJECTED)
def fused_linear_cross_entropy_forward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(rows, size), draw(classes, size), draw.below(classes, rows))


@case(OPS + "fused_linear_cross_entropy", *PROJECTED)
def fused_linear_cross_entropy_backward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(), draw(rows, size), draw(classes, size), draw(classes))


@case(OPS + "fused_linear_jsd", *PROJECTED)
def fused_linear_jsd_forward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    student = draw(rows, size), draw(classes, size)
    teacher = draw(rows, size), draw(classes, size)
    return given(*student, *teacher, None, 0.5, IGNORED, False, 1.0)


@case(OPS + "fused_linear_jsd", *PROJECTED)
def fused_linear_jsd_backward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(), draw(rows, size), draw(classes, size))


@case(OPS + "fused_linear_kl_div", *PROJECTED)
def fused_linear_kl_div_forward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    student = draw(rows, size), draw(classes, size)
    target = probabilities(draw, rows, classes)
    return given(*student, target, None, "batchmean", IGNORED, False, 1.0, 1e-10)


@case(OPS + "fused_linear_kl_div", *PROJECTED)
def fused_linear_kl_div_backward(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(), draw(rows, size), draw(classes, size))


@case(OPS + "jsd", *LOGITS)
def jsd_forward(draw: Draw, rows: int, classes: int) -> Given:
    both = logarithms(draw, rows, classes), logarithms(draw, rows, classes)
    return given(*both, None, 0.5, IGNORED, False)


@case(OPS + "jsd", *LOGITS)
def jsd_backward(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw())


@case(OPS + "kl_div", *LOGITS)
def kldiv_forward_triton(draw: Draw, rows: int, classes: int) -> Given:
    both = logarithms(draw, rows, classes), probabilities(draw, rows, classes)
    return given(*both, False, "batchmean", 1e-10)


@case(OPS + "kl_div", *LOGITS)
def kldiv_backward_triton(draw: Draw, rows: int, classes: int) -> Given:
    grads = torch.empty(rows, classes)
    return given(probabilities(draw, rows, classes), draw(), grads, False)


@case(OPS + "tvd", *LOGITS)
def tv_distance_forward_triton(draw: Draw, rows: int, classes: int) -> Given:
    both = probabilities(draw, rows, classes), probabilities(draw, rows, classes)
    return given(*both, None, "batchmean", IGNORED, False)


@case(OPS + "tvd", *LOGITS, function="tv_distance_forward_triton")
def tv_distance_forward_labels(draw: Draw, rows: int, classes: int) -> Given:
    both = probabilities(draw, rows, classes), probabilities(draw, rows, classes)
    return given(*both, draw.below(classes, rows), "sum", IGNORED, True)


@case(OPS + "tvd", *LOGITS)
def tvd_backward_triton(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(), draw(rows, classes))


@case(OPS + "fused_ce_tvd", *LOGITS)
def fused_ce_tvd_forward(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw(rows, classes), draw.below(classes, rows), IGNORED)


@case(OPS + "fused_ce_tvd", *LOGITS)
def fused_ce_tvd_backward(draw: Draw, rows: int, classes: int) -> Given:
    logits = draw(rows, classes), draw(rows, classes), draw.below(classes, rows)
    saved = draw.unit(rows) + 4, draw.unit(rows) + 4, draw(rows)
    return given(draw(rows), draw(rows), *logits, *saved, IGNORED)


@case(OPS + "grpo_loss", (2, 5, 64), (1, 4, 96), (3, 3, 128))
def fused_selective_log_softmax(draw: Draw, batch: int, length: int, classes: int) -> Given:
    return given(draw(batch, length, classes), draw.below(classes, batch, length))


# -- softmaxes ------------------------------------------------------------------------------------


@case(OPS + "softmax", *LOGITS, function="_softmax_forward", ci=True)
def softmax_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(OPS + "softmax", *LOGITS, function="_softmax_backward", ci=True)
def softmax_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), probabilities(draw, rows, cols), 128, 4, False)


@case(OPS + "sparsemax", *LOGITS, function="_sparsemax_forward")
def sparsemax_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), -1)


@case(OPS + "sparsemax", *LOGITS, function="_sparsemax_backward")
def sparsemax_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw.unit(rows, cols), -1)


# -- attention and routing ------------------------------------------------------------------------

SCORES = ((1, 2, 16, 16), (2, 1, 24, 24), (1, 1, 32, 32))


@case(OPS + "multi_token_attention", *SCORES, function="_mask_inf_forward", ci=True)
def mask_inf_forward(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(OPS + "multi_token_attention", *SCORES, function="_mask_inf_backward")
def mask_inf_backward(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(OPS + "multi_token_attention", *SCORES, function="_mask_zero_forward")
def mask_zero_forward(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(OPS + "multi_token_attention", *SCORES, function="_mask_zero_backward")
def mask_zero_backward(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(OPS + "fused_neighborhood_attention", (1, 1, 16, 16), (1, 2, 16, 16), (2, 1, 32, 16))
def fused_neighborhood_attention_forward(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw(*shape), kernel_size=5)


@case(OPS + "attn_res", (3, 1, 4, 16), (4, 2, 3, 32), (2, 1, 8, 64))
def attn_res_forward(draw: Draw, blocks: int, batch: int, length: int, size: int) -> Given:
    return given([draw(batch, length, size) for _ in range(blocks)], draw(size), draw(size))


@case(OPS + "attn_res", (3, 1, 4, 16), (4, 2, 3, 32), (2, 1, 8, 64))
def attn_res_backward(draw: Draw, blocks: int, batch: int, length: int, size: int) -> Given:
    stacked, tokens = draw(blocks, batch * length, size), batch * length
    saved = probabilities(draw, tokens, blocks), draw.unit(tokens, blocks)
    return given(draw(batch, length, size), stacked, draw(size), draw(size), *saved)


@case(OPS + "fused_moe", (8, 2, 4), (12, 1, 8), (16, 2, 4))
def compute_routing_metadata(draw: Draw, tokens: int, top: int, experts: int) -> Given:
    return given(draw.below(experts, tokens, top, dtype=torch.int32), experts)


@case(OPS + "fused_moe", (4, 2, 16), (6, 1, 32), (8, 2, 64), function="_token_aggregation")
def token_aggregation(draw: Draw, tokens: int, top: int, size: int) -> Given:
    rows = tokens * top
    order = draw.below(rows, rows, dtype=torch.int32)
    return given(draw(rows, size), draw(rows), order, tokens, top, size)


@case(
    OPS + "experimental.mm_int8int2",
    (16, 256, 32),
    (32, 512, 32),
    (16, 1024, 64),
    function="matmul",
)
def matmul_int8int2(draw: Draw, rows: int, inner: int, cols: int) -> Given:
    left = draw.below(100, rows, inner, dtype=torch.int8)
    return given(left, draw.below(256, inner // 4, cols, dtype=torch.uint8))


@case(OPS + "mlp", (1, 32, 64, 64), (2, 32, 64, 64), (1, 64, 64, 128))
def gemm_swiglu(draw: Draw, batch: int, length: int, size: int, hidden: int) -> Given:
    half = torch.float16
    weights = draw(hidden, size, dtype=half), draw(hidden, size, dtype=half)
    return given(draw(batch, length, size, dtype=half), *weights, 1.0)


# -- hyper-connections ----------------------------------------------------------------------------

STREAMS = ((4, 2, 16), (6, 4, 32), (8, 2, 64))  # tokens, streams, channels


@case(OPS + "mhc", *STREAMS, ci=True)
def mhc_mm_norm_fwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    inner, outer = streams * size, streams * streams + 2 * streams
    return given(draw(tokens, inner), draw(inner, outer), 1e-6)


@case(OPS + "mhc", *STREAMS)
def mhc_mm_norm_bwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    inner, outer = streams * size, streams * streams + 2 * streams
    saved = draw(tokens, outer), draw.unit(tokens), draw(tokens, outer)
    return given(draw(tokens, inner), draw(inner, outer), *saved)


@case(OPS + "mhc", *STREAMS)
def mhc_split_sinkhorn_fwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    outer = streams * streams + 2 * streams
    values = draw(tokens, outer), draw(outer), draw(1), draw(1), draw(1)
    return given(*values, tmax=3, pre_eps=1e-4, sinkhorn_eps=1e-6, post_mult=2.0)


@case(OPS + "mhc", *STREAMS)
def mhc_sinkhorn_bwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    outer = streams * streams + 2 * streams
    values = draw(tokens, outer), draw(outer), draw(1), draw(tokens, streams, streams)
    return given(*values, tmax=3, sinkhorn_eps=1e-6)


@case(OPS + "mhc", *STREAMS)
def mhc_pre_fwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    return given(draw(tokens, streams, size), draw(tokens, streams))


@case(OPS + "mhc", *STREAMS)
def mhc_pre_bwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    return given(draw(tokens, streams, size), draw(tokens, streams), draw(tokens, size))


@case(OPS + "mhc", *STREAMS)
def mhc_post_res_fwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    states = draw(tokens, streams, size), draw(tokens, size)
    return given(*states, draw(tokens, streams), draw(tokens, streams, streams))


@case(OPS + "mhc", *STREAMS)
def mhc_post_res_bwd(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    states = draw(tokens, streams, size), draw(tokens, size)
    mixing = draw(tokens, streams), draw(tokens, streams, streams)
    return given(*states, *mixing, draw(tokens, streams, size))
