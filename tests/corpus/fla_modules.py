"""Cases of flash-linear-attention: its modules (activations, norms, convolutions, losses)."""

from __future__ import annotations

import torch

from tests.corpus.case import Draw, Given, case, given

MODULES = "fla.modules."
ROWS = ((2, 64), (3, 96), (4, 128))
SEQUENCES = ((1, 8, 32), (2, 12, 64), (1, 16, 96))  # batch, length, channels


# -- activations ----------------------------------------------------------------------------------


@case(MODULES + "activations.ops", *ROWS, ci=True)
def sigmoid_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def sigmoid_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def elu_p1_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def elu_p1_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def elu_p1(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS, ci=True)
def logsigmoid_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), temperature=2.0)


@case(MODULES + "activations.ops", *ROWS)
def logsigmoid_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), 2.0)


@case(MODULES + "activations.ops", *ROWS)
def logsigmoid(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def swish_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def swish_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def swiglu_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def swiglu_fwdbwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows, cols), use_weight=True)


@case(MODULES + "activations.ops", *ROWS)
def swiglu_linear(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(16, cols), draw(16))


@case(MODULES + "activations.ops", *ROWS)
def sigmoidglu_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def sigmoidglu_fwdbwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def powglu_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def powglu_fwdbwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def powglu(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(MODULES + "activations.ops", *ROWS)
def powglu_linear(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(16, cols), draw(16))


# -- norms ----------------------------------------------------------------------------------------


@case(MODULES + "norm.layernorm", *ROWS, ci=True)
def layer_norm_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols))


@case(MODULES + "norm.layernorm", *ROWS, function="layer_norm_fwd")
def layer_norm_fwd_residual(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), None, residual=draw(rows, cols), is_rms_norm=True)


@case(MODULES + "norm.layernorm", *ROWS)
def layer_norm_bwd(draw: Draw, rows: int, cols: int) -> Given:
    weights, moments = (draw(cols), draw(cols)), (draw(rows), draw.unit(rows))
    return given(draw(rows, cols), draw(rows, cols), *weights, *moments)


@case(MODULES + "norm.layernorm", *ROWS)
def layer_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols))


@case(MODULES + "norm.layernorm", *ROWS)
def rms_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), None)


@case(MODULES + "norm.layernorm", *ROWS)
def group_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), num_groups=2)


@case(MODULES + "norm.layernorm", *ROWS)
def layer_norm_linear(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), draw(16, cols), draw(16))


@case(MODULES + "norm.layernorm_gated", *ROWS, function="layer_norm_fwd", ci=True)
def gated_norm_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), 1e-5, z=draw(rows, cols))


@case(MODULES + "norm.layernorm_gated", *ROWS)
def rmsnorm_fn(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), None, z=draw(rows, cols))


@case(MODULES + "norm.layernorm_quant", *ROWS)
def layer_norm_quant_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), 1e-5)


@case(MODULES + "norm.layernorm_quant", *ROWS)
def layer_norm_quant_bwd(draw: Draw, rows: int, cols: int) -> Given:
    weights, moments = (draw(cols), draw(cols)), (draw(rows), draw.unit(rows))
    return given(draw(rows, cols), draw(rows, cols), *weights, *moments)


@case(MODULES + "norm.fused_norm_gate", *ROWS)
def layer_norm_gated_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(cols), draw(cols))


@case(MODULES + "norm.fused_norm_gate", *ROWS)
def layer_norm_gated_bwd(draw: Draw, rows: int, cols: int) -> Given:
    inputs = draw(rows, cols), draw(rows, cols), draw(cols), draw(cols)
    return given(draw(rows, cols), *inputs, mean=draw(rows), rstd=draw.unit(rows))


@case(MODULES + "norm.fused_norm_gate", *ROWS)
def rms_norm_gated(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(cols), None, activation="sigmoid")


@case(MODULES + "norm.l2norm", *ROWS, ci=True)
def l2norm_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(MODULES + "norm.l2norm", *ROWS)
def l2norm_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw.rows_of_unit_length(rows, cols), draw.unit(rows), draw(rows, cols))


@case(MODULES + "norm.l2norm", *ROWS)
def l2norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), output_dtype=torch.bfloat16)


# -- sequences ------------------------------------------------------------------------------------


@case(MODULES + "rotary.ops", (1, 8, 2, 16), (2, 6, 1, 32), (1, 12, 3, 16))
def rotary_embedding_fwdbwd(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    return given(draw(batch, length, heads, size), draw(length, size // 2), draw(length, size // 2))


@case(MODULES + "rotary.ops", (1, 8, 2, 16), (2, 6, 1, 32), (1, 12, 3, 16))
def rotary_embedding(draw: Draw, batch: int, length: int, heads: int, size: int) -> Given:
    angles = draw(length, size // 2), draw(length, size // 2)
    return given(draw(batch, length, heads, size), *angles, interleaved=True, inplace=True)


@case(MODULES + "causal_conv1d.ops", *SEQUENCES)
def causal_conv1d_fwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw(batch, length, size), draw(size, 4), draw(size), None, activation="silu")


@case(MODULES + "causal_conv1d.ops", *SEQUENCES)
def causal_conv1d_bwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    both = draw(batch, length, size), draw(batch, length, size)
    return given(*both, None, weight=draw(size, 4), bias=draw(size))


@case(MODULES + "causal_conv1d.ops", *SEQUENCES)
def causal_conv1d_update_states(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw(batch, length, size), 4)


@case(MODULES + "causal_conv1d.ops", *SEQUENCES)
def causal_conv1d_update(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(
        draw(batch, 1, size), draw(batch, size, 4), None, draw(size, 4), draw(size), "silu"
    )


@case(MODULES + "token_shift", *SEQUENCES)
def token_shift_fwd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


@case(MODULES + "token_shift", *SEQUENCES)
def token_shift_bwd(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw(batch, length, size), batch, length)


@case(MODULES + "token_shift", *SEQUENCES)
def token_shift(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


# -- losses ---------------------------------------------------------------------------------------


@case(MODULES + "fused_cross_entropy.ops", *ROWS)
def cross_entropy_fwd(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw.below(classes, rows))


@case(MODULES + "fused_cross_entropy.ops", *ROWS)
def cross_entropy_bwd(draw: Draw, rows: int, classes: int) -> Given:
    saved = draw.unit(rows) + 4, draw(rows)
    return given(draw(rows, classes), draw.below(classes, rows), *saved)


@case(MODULES + "fused_cross_entropy.ops", *ROWS)
def cross_entropy_loss(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw.below(classes, rows), label_smoothing=0.1)


@case(MODULES + "fused_linear_cross_entropy.ops", *ROWS)
def logsumexp_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), scale=0.5)


@case(MODULES + "fused_linear_cross_entropy.ops", (8, 16, 64), (12, 32, 96), (16, 16, 128))
def fused_linear_cross_entropy_fwd(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(rows, size), draw.below(classes, rows), draw(classes, size))


@case(MODULES + "fused_linear_cross_entropy.ops", (8, 16, 64), (12, 32, 96), (16, 16, 128))
def fused_linear_cross_entropy_bwd(draw: Draw, rows: int, size: int, classes: int) -> Given:
    return given(draw(), draw(rows, size), draw(classes, size), draw(classes))


@case(MODULES + "fused_kl_div.ops", (8, 16, 64), (12, 32, 96), (16, 16, 128))
def fused_kl_div_fwd(draw: Draw, rows: int, size: int, classes: int) -> Given:
    inputs = draw(rows, size), draw(rows, size)
    return given(*inputs, draw(classes, size), draw(classes, size))


@case(MODULES + "grpo.ops", (2, 5, 64), (1, 4, 96), (3, 3, 128))
def fused_grpo_loss(draw: Draw, batch: int, length: int, classes: int) -> Given:
    tokens = draw.below(classes, batch, length + 2)
    return given(draw(batch, length + 1, classes), draw(batch, length), tokens, draw(batch))


@case(MODULES + "fused_bitlinear", *ROWS)
def rms_norm_linear_quant(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), None, draw(16, cols), draw(16))
