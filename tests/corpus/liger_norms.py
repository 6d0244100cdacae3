"""Cases of Liger Kernel: norms, activations and rotary embeddings."""

from __future__ import annotations

import torch

from tests.corpus.case import Draw, Given, case, given

OPS = "liger_kernel.ops."
ROWS = ((2, 64), (3, 96), (4, 128))
LLAMA = 0  # a casting mode, as the forward functions return it


@case(OPS + "rms_norm", *ROWS, ci=True)
def rms_norm_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), 1e-6, 0.0, "llama", False)


@case(OPS + "rms_norm", *ROWS, function="rms_norm_forward")
def rms_norm_forward_gemma(draw: Draw, rows: int, cols: int) -> Given:
    half = torch.bfloat16
    return given(draw(2, rows, cols, dtype=half), draw(cols, dtype=half), 1e-6, 1.0, "gemma", True)


@case(OPS + "rms_norm", *ROWS, function="rms_norm_forward")
def rms_norm_forward_without_weight(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), None, 1e-6, 0.0, "none", None)


@case(OPS + "rms_norm", *ROWS)
def rms_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    x, grad = draw(rows, cols), draw(rows, cols)
    return given(grad, x, draw(cols), draw.unit(rows), 0.0, LLAMA, 128, 4, False, False)


@case(OPS + "rms_norm", *ROWS, function="rms_norm_backward")
def rms_norm_backward_in_place(draw: Draw, rows: int, cols: int) -> Given:
    x, grad = draw(rows, cols), draw(rows, cols)
    return given(grad, x, draw(cols), draw.unit(rows), 0.0, LLAMA, 128, 4, True, False)


@case(OPS + "fused_add_rms_norm", *ROWS, ci=True)
def fused_add_rms_norm_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(cols), 1e-6, 0.0, "llama")


@case(OPS + "fused_add_rms_norm", *ROWS)
def fused_add_rms_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    grads = draw(rows, cols), draw(rows, cols)
    rest = draw(rows, cols), draw(cols), draw.unit(rows)
    return given(*grads, *rest, 0.0, LLAMA, 128, 4, 2, True)


@case(OPS + "modulated_rms_norm", *ROWS)
def modulated_rms_norm_forward(draw: Draw, rows: int, cols: int) -> Given:
    modulation = draw(rows, cols), draw(rows, cols)
    return given(draw(rows, cols), draw(cols), *modulation, 1e-6, 0.0, "llama")


@case(OPS + "modulated_rms_norm", *ROWS)
def modulated_rms_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    x, weight = draw(rows, cols), draw(cols)
    modulation = draw(rows, cols), draw(rows, cols)
    rest = draw.unit(rows), 0.0, LLAMA, 128, 4, 1, True
    return given(draw(rows, cols), x, weight, *modulation, *rest)


@case(OPS + "layer_norm", *ROWS, ci=True)
def layer_norm_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), 1e-5)


@case(OPS + "layer_norm", *ROWS)
def layer_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    weights = draw(cols), draw(cols)
    return given(draw(rows, cols), draw(rows, cols), *weights, draw(rows), draw.unit(rows))


@case(OPS + "group_norm", (2, 4, 16), (1, 8, 8), (3, 4, 32))
def group_norm_forward(draw: Draw, batch: int, channels: int, size: int) -> Given:
    return given(draw(batch, channels, size), channels, 2, draw(channels), draw(channels), 1e-5)


@case(OPS + "group_norm", (2, 4, 16), (1, 8, 8), (3, 4, 32))
def group_norm_backward(draw: Draw, batch: int, channels: int, size: int) -> Given:
    x = draw(batch, channels, size)
    weights = draw(channels), draw(channels)
    moments = draw(batch, 2), draw.unit(batch, 2)
    return given(draw(batch, channels, size), x, *weights, *moments, channels, 2)


@case(OPS + "poly_norm", *ROWS)
def poly_norm_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(3), draw(1))


@case(OPS + "poly_norm", *ROWS)
def poly_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(3), draw.unit(rows, 3), 128, 4, False)


@case(OPS + "dyt", *ROWS)
def liger_dyt_fwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(1), draw(cols), draw(cols))


@case(OPS + "dyt", *ROWS)
def liger_dyt_bwd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(1), draw(cols), draw(cols))


# -- activations ----------------------------------------------------------------------------------


@case(OPS + "geglu", *ROWS, ci=True)
def geglu_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(OPS + "geglu", *ROWS)
def geglu_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows, cols))


@case(OPS + "swiglu", *ROWS, ci=True)
def swiglu_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(OPS + "swiglu", *ROWS)
def swiglu_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows, cols), gate_multiplier=1.5)


@case(OPS + "swiglu", *ROWS)
def swiglu_fused_gate_up_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(OPS + "swiglu", *ROWS)
def swiglu_fused_gate_up_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols // 2), in_place=True)


@case(OPS + "relu_squared", *ROWS, ci=True)
def relu_squared_forward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(OPS + "relu_squared", *ROWS)
def relu_squared_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


# -- rotary embeddings ----------------------------------------------------------------------------

HEADS = ((1, 4, 2, 2, 16), (2, 3, 4, 2, 32), (1, 8, 2, 1, 16))


def rotated(draw: Draw, batch: int, length: int, queries: int, keys: int, size: int) -> Given:
    q, k = (draw(batch, length, heads, size).transpose(1, 2) for heads in (queries, keys))
    return given(q, k, draw(1, length, size), draw(1, length, size))


@case(OPS + "rope", *HEADS, ci=True)
def rope_forward(draw: Draw, *shape: int) -> Given:
    return rotated(draw, *shape)


@case(OPS + "rope", *HEADS)
def rope_backward(draw: Draw, *shape: int) -> Given:
    return rotated(draw, *shape)


def rotated_by_section(draw: Draw, batch: int, length: int, *heads: int) -> Given:
    *both, size = heads
    q, k = (draw(batch, length, each, size).transpose(1, 2) for each in both)
    angles = draw(3, batch, length, size), draw(3, batch, length, size)
    return given(q, k, *angles, [size // 8, size // 8, size // 4])


@case(OPS + "qwen2vl_mrope", *HEADS)
def qwen2vl_mrope_forward(draw: Draw, *shape: int) -> Given:
    return rotated_by_section(draw, *shape)


@case(OPS + "qwen2vl_mrope", *HEADS)
def qwen2vl_mrope_backward(draw: Draw, *shape: int) -> Given:
    return rotated_by_section(draw, *shape)


@case(OPS + "llama4_rope", *HEADS)
def llama4_rope_forward(
    draw: Draw, batch: int, length: int, queries: int, keys: int, size: int
) -> Given:
    angles = torch.view_as_complex(draw(length, size // 2, 2))
    return given(draw(batch, length, queries, size), draw(batch, length, keys, size), angles)
