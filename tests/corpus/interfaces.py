"""Cases of Liger Kernel and flash-linear-attention: functions and modules, as models call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from tests.corpus.case import Draw, Given, case, given

__all__: list[str] = []

FUNCTIONAL = "liger_kernel.transformers.functional"
ROWS = ((2, 64), (3, 96), (4, 128))
HEADS = ((1, 4, 2, 2, 16), (2, 3, 4, 2, 32), (1, 8, 2, 1, 16))


@case(FUNCTIONAL, *ROWS)
def liger_geglu(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(FUNCTIONAL, *ROWS, ci=True)
def liger_swiglu(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@case(FUNCTIONAL, *ROWS)
def liger_relu_squared(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(FUNCTIONAL, *ROWS)
def liger_softmax(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(FUNCTIONAL, *ROWS)
def liger_sparsemax(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@case(FUNCTIONAL, *ROWS)
def liger_rms_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), 1e-6)


@case(FUNCTIONAL, *ROWS, function="liger_rms_norm")
def liger_rms_norm_with_grad(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols).requires_grad_(), draw(cols).requires_grad_(), 1e-6)


@case(FUNCTIONAL, *ROWS)
def liger_fused_add_rms_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(cols), 1e-6)


@case(FUNCTIONAL, *ROWS)
def liger_layer_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), 1e-6)


@case(FUNCTIONAL, *ROWS)
def liger_poly_norm(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(3), draw(1))


@case(FUNCTIONAL, *ROWS)
def liger_dyt(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(1), draw(cols), draw(cols))


@case(FUNCTIONAL, (2, 4, 16), (1, 8, 8), (3, 4, 32))
def liger_group_norm(draw: Draw, batch: int, channels: int, size: int) -> Given:
    return given(draw(batch, channels, size), draw(channels), draw(channels), channels, 2, 1e-5)


@case(FUNCTIONAL, *HEADS)
def liger_rope(draw: Draw, batch: int, length: int, queries: int, keys: int, size: int) -> Given:
    q, k = (draw(batch, length, heads, size).transpose(1, 2) for heads in (queries, keys))
    return given(q, k, draw(1, length, size), draw(1, length, size))


@case(FUNCTIONAL, *ROWS)
def liger_cross_entropy(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw.below(classes, rows))


@case(FUNCTIONAL, *ROWS)
def liger_kl_div(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes).log_softmax(-1), draw(rows, classes).softmax(-1))


@case(FUNCTIONAL, *ROWS)
def liger_jsd(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes).log_softmax(-1), draw(rows, classes).log_softmax(-1))


@case(FUNCTIONAL, *ROWS)
def liger_tvd(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes).softmax(-1), draw(rows, classes).softmax(-1))


@case(FUNCTIONAL, (4, 2, 16), (6, 4, 32), (8, 2, 64))
def liger_mhc_apply(draw: Draw, tokens: int, streams: int, size: int) -> Given:
    states = draw(tokens, streams, size), draw(tokens, size)
    mixing = draw(tokens, streams), draw(tokens, streams), draw(tokens, streams, streams)
    return given(*states, *mixing)


# -- modules: the parameters are theirs -----------------------------------------------------------


def module(where: str, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A function that makes a module once, and gives its `forward`."""

    @functools.cache
    def made() -> Any:
        torch.manual_seed(0)
        found = getattr(import_module(where), name)(*args, **kwargs)
        return found.requires_grad_(False).forward

    return made


def of_one_width(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape))


WIDTHS = ((2, 3, 64), (1, 5, 64), (4, 64))
TRANSFORMERS = "liger_kernel.transformers."

case(module(TRANSFORMERS + "rms_norm", "LigerRMSNorm", 64), *WIDTHS,
     project="liger", name="LigerRMSNorm.forward", late=True)(of_one_width)  # fmt: skip
case(module(TRANSFORMERS + "layer_norm", "LigerLayerNorm", 64), *WIDTHS,
     project="liger", name="LigerLayerNorm.forward", late=True)(of_one_width)  # fmt: skip
case(module(TRANSFORMERS + "dyt", "LigerDyT", 64), *WIDTHS,
     project="liger", name="LigerDyT.forward", late=True)(of_one_width)  # fmt: skip
case(module("fla.modules.norm", "RMSNorm", 64), *WIDTHS,
     project="fla", name="RMSNorm.forward", late=True)(of_one_width)  # fmt: skip
case(module("fla.modules.norm", "LayerNorm", 64), *WIDTHS,
     project="fla", name="LayerNorm.forward", late=True)(of_one_width)  # fmt: skip
case(module("fla.modules", "ShortConvolution", 64, 4), (2, 8, 64), (1, 6, 64), (1, 12, 64),
     project="fla", name="ShortConvolution.forward", late=True)(of_one_width)  # fmt: skip
