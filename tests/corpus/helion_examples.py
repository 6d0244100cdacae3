"""Cases in the manner of Helion's examples, written for this corpus.

Each has one config, so that nothing is tuned.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

# Before Helion reads it; otherwise a kernel without a config would be tuned for minutes.
os.environ.setdefault("HELION_AUTOTUNE_EFFORT", "none")

import helion
import helion.language as hl
import torch

from tests.corpus.case import Draw, Given, case, given

__all__: list[str] = []

example = functools.partial(case, project="helion")
MATRICES = ((16, 32, 16), (32, 32, 48), (64, 32, 32))
ROWS = ((4, 64), (3, 100), (8, 128))


def configured(*blocks: int, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    config = helion.Config(block_sizes=list(blocks), num_warps=4, num_stages=1, **more)
    return helion.kernel(config=config, ignore_warnings=[helion.exc.TensorOperationInWrapper])


@configured(16, 16)
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@example(add, *ROWS, ci=True)
def broadcast_add(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@example(add, *ROWS)
def broadcast_add_row(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols))


@configured(16, 16, 16)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"size mismatch {k} != {k2}"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@example(matmul, *MATRICES)
def tiled_matmul(draw: Draw, m: int, k: int, n: int) -> Given:
    return given(draw(m, k), draw(k, n))


@configured(1, 16, 16, 16)
def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    b, k, n = y.size()
    out = torch.empty([b, m, n], device=x.device, dtype=x.dtype)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left, right = x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n]
            acc = torch.baddbmm(acc, left, right)
        out[tile_b, tile_m, tile_n] = acc
    return out


@example(bmm, *MATRICES)
def batched_matmul(draw: Draw, m: int, k: int, n: int) -> Given:
    return given(draw(2, m, k), draw(2, k, n))


@configured(1)
def softmax(x: torch.Tensor) -> torch.Tensor:
    n, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        out[tile, :] = torch.nn.functional.softmax(x[tile, :], dim=1)
    return out


@example(softmax, *ROWS)
def row_softmax(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@configured(2)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> Any:
    m, n = x.size()
    assert weight.size(0) == n
    out = torch.empty_like(x)
    inverse = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile in hl.tile(m):
        rows = x[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(rows * rows, dim=-1) + eps)
        out[tile, :] = (rows * scale[:, None] * weight[:].to(torch.float32)).to(out.dtype)
        inverse[tile] = scale
    return out, inverse


@example(rms_norm, *ROWS)
def rms_norm_with_inverse(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols))


@configured(2)
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        rows = x[tile, :]
        variance, mean = torch.var_mean(rows, dim=-1, keepdim=True, correction=0)
        out[tile, :] = (rows - mean) * torch.rsqrt(variance + 1e-5) * weight[:] + bias[:]
    return out


@example(layer_norm, *ROWS)
def layer_norm_rows(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols))


@configured(2)
def row_total(x: torch.Tensor) -> torch.Tensor:
    m, _ = x.shape
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        out[tile] = x[tile, :].sum(-1)
    return out


@example(row_total, *ROWS, ci=True)
def row_sums(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


@configured(128)
def exp(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(x[tile])
    return out


@example(exp, (256,), (1000,), (1024,))
def exponential(draw: Draw, n: int) -> Given:
    return given(draw(n))


@configured(128)
def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}"
    out = torch.empty_like(a)
    flat_a, flat_b, flat_out = a.view(-1), b.view(-1), out.view(-1)
    for tile in hl.tile(a.numel()):
        gate = flat_a[tile].to(torch.float32)
        flat_out[tile] = (gate * torch.sigmoid(gate)).to(out.dtype) * flat_b[tile]
    return out


@example(swiglu, *ROWS)
def swiglu_flat(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


@configured(4, 16)
def embedding(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1)
    _, size = weight.size()
    out = torch.empty([flat.size(0), size], dtype=weight.dtype, device=weight.device)
    for tile_b, tile_e in hl.tile([flat.size(0), size]):
        out[tile_b, tile_e] = weight[flat[tile_b], tile_e]
    return out.view(*x.size(), size)


@example(embedding, (2, 4, 32), (3, 5, 48), (1, 8, 64))
def embedding_lookup(draw: Draw, batch: int, length: int, size: int) -> Given:
    return given(draw.below(16, batch, length, dtype=torch.int32), draw(16, size))


@configured(2)
def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    n, classes = logits.shape
    losses = torch.zeros([n], dtype=logits.dtype, device=logits.device)
    flat = logits.view(-1)
    for tile in hl.tile(n):
        at = tile.index * classes + labels[tile]
        chosen = hl.load(flat, [at])
        rows = logits[tile, :]
        best = torch.amax(rows, dim=-1, keepdim=True)
        logarithm = torch.log(torch.sum(torch.exp(rows - best), dim=-1))
        losses[tile] = best.squeeze(-1) + logarithm - chosen
    return losses.mean()


@example(cross_entropy, *ROWS)
def cross_entropy_loss(draw: Draw, rows: int, classes: int) -> Given:
    return given(draw(rows, classes), draw.below(classes, rows))


@configured(1, 16, 16)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m, n, size = q.size(-2), k.size(-2), hl.specialize(q.size(-1))
    queries = q.reshape([-1, m, size])
    values = v.reshape([-1, n, size])
    keys = k.reshape([-1, n, size]).transpose(1, 2)
    out = torch.empty_like(queries)
    scale = size**-0.5
    for tile_b, tile_m in hl.tile([queries.size(0), m]):
        best = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        weight = torch.full_like(best, 1.0)
        acc = hl.zeros([tile_b, tile_m, size], dtype=torch.float32)
        rows = queries[tile_b, tile_m, :]
        for tile_n in hl.tile(n):
            scores = torch.bmm(rows, keys[tile_b, :, tile_n]) * scale
            higher = torch.maximum(best, torch.amax(scores, -1))
            power = torch.exp(scores - higher[:, :, None])
            shrunk = torch.exp(best - higher)
            weight = weight * shrunk + torch.sum(power, -1)
            acc = acc * shrunk[:, :, None]
            acc = torch.baddbmm(acc, power, values[tile_b, tile_n, :])
            best = higher
        out[tile_b, tile_m, :] = (acc / weight[:, :, None]).to(out.dtype)
    return out.view(q.size())


@example(attention, (1, 1, 16, 16), (1, 2, 32, 16), (2, 1, 32, 32))
def online_softmax_attention(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw(*shape))


@configured(16, 16)
def concatenate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert x.size(0) == y.size(0)
    out = torch.empty([x.size(0), x.size(1) + y.size(1)], dtype=x.dtype, device=x.device)
    for tile_r, tile_c in hl.tile(out.size()):
        left = hl.load(x, [tile_r, tile_c], extra_mask=(tile_c.index < x.size(1))[None, :])
        at = tile_c.index - x.size(1)
        right = hl.load(y, [tile_r, at], extra_mask=(tile_c.index >= x.size(1))[None, :])
        out[tile_r, tile_c] = torch.where((tile_c.index < x.size(1))[None, :], left, right)
    return out


@example(concatenate, *ROWS)
def concatenate_columns(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols // 2))


@configured(4)
def geglu_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        gate = x[tile, :]
        x[tile, :] = 0.5 * gate * (1.0 + torch.tanh(0.79788456 * gate)) * y[tile, :]
    return x


@example(geglu_in_place, *ROWS)
def geglu_on_its_argument(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols))


def two_kernels(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A plain function that calls Helion kernels."""
    return matmul(softmax(x), weight)


@example(two_kernels, (16, 32, 16), (32, 32, 48), (64, 32, 32))
def softmax_then_matmul(draw: Draw, m: int, k: int, n: int) -> Given:
    return given(draw(m, k), draw(k, n))
