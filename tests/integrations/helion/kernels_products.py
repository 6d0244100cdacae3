# mypy: allow-untyped-decorators, allow-any-generics
"""Products: matmul in its spellings and dtypes, batched, split, with epilogues; attention."""

from __future__ import annotations

from collections.abc import Callable

import helion.language as hl
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.integrations.helion.row import row


def factors(m: int = 32, k: int = 48, n: int = 16, dtype: torch.dtype = torch.float32) -> tuple[
    Tensor, Tensor
]:  # fmt: skip
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


@row("matmul with `torch.addmm`", factors, torch.matmul, block_sizes=[16, 16, 16], rtol=1e-4,
     atol=1e-4)  # fmt: skip
def matmul(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@row("matmul with masks, sizes that do not divide", lambda: factors(30, 45, 19), torch.matmul,
     block_sizes=[16, 16, 16], rtol=1e-4, atol=1e-4)  # fmt: skip
def matmul_masked(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@row("`hl.dot` with an accumulator, bfloat16", lambda: factors(dtype=torch.bfloat16),
     lambda x, y: (x.float() @ y.float()).bfloat16(), block_sizes=[16, 16, 16], rtol=2e-2,
     atol=2e-1)  # fmt: skip
def dot_bfloat16(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@row("`torch.matmul` (`@`) in float16", lambda: factors(dtype=torch.float16),
     lambda x, y: (x.float() @ y.float()).half(), block_sizes=[16, 16, 16], rtol=2e-2,
     atol=5e-2)  # fmt: skip
def at_float16(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += x[tile_m, tile_k] @ y[tile_k, tile_n]
        out[tile_m, tile_n] = acc
    return out


@row("`hl.dot` of int8", lambda: (torch.randint(-9, 9, (32, 32)).to(torch.int8),
     torch.randint(-9, 9, (32, 16)).to(torch.int8)), lambda x, y: x.int() @ y.int(),
     block_sizes=[16, 16, 32])  # fmt: skip
def dot_int8(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.int32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@row("`hl.dot` of float8", lambda: factors(32, 32, 16, torch.float8_e4m3fn),
     lambda x, y: x.float() @ y.float(), block_sizes=[16, 16, 32], rtol=1e-3,
     atol=1e-3)  # fmt: skip
def dot_float8(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@row("a weight that is unpacked from int8", lambda: (torch.randn(16, 32),
     torch.randint(-9, 9, (32, 16)).to(torch.int8), torch.rand(16)),
     lambda x, w, s: x @ (w.float() * s), block_sizes=[16, 16, 16], rtol=1e-4,
     atol=1e-4)  # fmt: skip
def matmul_dequantized(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    m, k = x.size()
    _, n = w.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            weight = w[tile_k, tile_n].to(torch.float32) * scale[tile_n][None, :]
            acc = torch.addmm(acc, x[tile_m, tile_k], weight)
        out[tile_m, tile_n] = acc
    return out


@row("batched matmul with `torch.baddbmm`", lambda: (torch.randn(3, 16, 32),
     torch.randn(3, 32, 16)), torch.bmm, block_sizes=[1, 16, 16, 16], rtol=1e-4,
     atol=1e-4)  # fmt: skip
def batched(x: Tensor, y: Tensor) -> Tensor:
    b, m, k = x.size()
    _, _, n = y.size()
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc
    return out


@row("split-k: parts of a product, added by atomics", lambda: factors(16, 64, 16), torch.matmul,
     block_sizes=[16, 16, 32, 16], rtol=1e-4, atol=1e-4)  # fmt: skip
def split_k(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.zeros([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n, outer_k in hl.tile([m, n, k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(outer_k.begin, outer_k.end):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


@row("matmul with a bias and GELU", lambda: (*factors(), torch.randn(16)),
     lambda x, y, b: F.gelu(x @ y + b), block_sizes=[16, 16, 16], rtol=1e-4,
     atol=1e-4)  # fmt: skip
def matmul_bias_gelu(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = F.gelu(acc + bias[tile_n])
    return out


def with_bias(bias: Tensor) -> Callable[..., Tensor]:
    def epilogue(acc: Tensor, tile: list[Tensor]) -> Tensor:
        return torch.relu(acc + bias[tile[1]])

    return epilogue


@row("an epilogue that is an argument, with a tensor in its closure", lambda: (*factors(),
     with_bias(torch.arange(16.0))), lambda x, y, e: torch.relu(x @ y + torch.arange(16.0)),
     block_sizes=[16, 16, 16], rtol=1e-4, atol=1e-4)  # fmt: skip
def matmul_epilogue(x: Tensor, y: Tensor, epilogue: Callable) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = epilogue(acc, [tile_m, tile_n])
    return out


def heads() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 32, 16), torch.randn(2, 32, 16), torch.randn(2, 32, 16)


@row("attention", heads, F.scaled_dot_product_attention, block_sizes=[1, 16, 16], rtol=1e-3,
     atol=1e-3)  # fmt: skip
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, m, d = q.size()
    n = k.size(1)
    d = hl.specialize(d)
    turned = k.transpose(1, 2)
    out = torch.empty_like(q)
    scale = 1.4426950408889634 / d**0.5
    for tile_b, tile_m in hl.tile([b, m]):
        top = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        total = torch.full_like(top, 1.0)
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        queries = q[tile_b, tile_m, :]
        for tile_n in hl.tile(n):
            scores = torch.bmm(queries, turned[tile_b, :, tile_n])
            new = torch.maximum(top, torch.amax(scores, -1) * scale)
            p = torch.exp2(scores * scale - new[:, :, None])
            alpha = torch.exp2(top - new)
            total = total * alpha + torch.sum(p, -1)
            acc = torch.baddbmm(acc * alpha[:, :, None], p, v[tile_b, tile_n, :])
            top = new
        out[tile_b, tile_m, :] = (acc / total[:, :, None]).to(q.dtype)
    return out


@row("causal attention: a loop that ends at the tile, a mask", heads,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
     block_sizes=[1, 16, 16], rtol=1e-3, atol=1e-3)  # fmt: skip
def attention_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, m, d = q.size()
    d = hl.specialize(d)
    turned = k.transpose(1, 2)
    out = torch.empty_like(q)
    scale = 1.4426950408889634 / d**0.5
    for tile_b, tile_m in hl.tile([b, m]):
        top = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        queries = q[tile_b, tile_m, :]
        for tile_n in hl.tile(tile_m.end):
            scores = torch.bmm(queries, turned[tile_b, :, tile_n]) * scale
            seen = tile_m.index[:, None] >= tile_n.index[None, :]
            scores = torch.where(seen[None, :, :], scores, float("-inf"))
            new = torch.maximum(top, torch.amax(scores, -1))
            p = torch.exp2(scores - new[:, :, None])
            alpha = torch.exp2(top - new)
            total = total * alpha + torch.sum(p, -1)
            acc = torch.baddbmm(acc * alpha[:, :, None], p, v[tile_b, tile_n, :])
            top = new
        out[tile_b, tile_m, :] = acc / total[:, :, None]
    return out


@row("matmul and layer norm in one kernel", lambda: factors(16, 32, 16),
     lambda x, y: F.layer_norm(x @ y, [16]), block_sizes=[8, 16], rtol=1e-3,
     atol=1e-3)  # fmt: skip
def matmul_layer_norm(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        var, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        out[tile_m, :] = (acc - mean) * torch.rsqrt(var + 1e-5)
    return out


@row("SwiGLU: two products, one output", lambda: (torch.randn(16, 32), torch.randn(32, 16),
     torch.randn(32, 16)), lambda x, a, b: F.silu(x @ a) * (x @ b), block_sizes=[16, 16, 16],
     rtol=1e-3, atol=1e-3)  # fmt: skip
def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    m, k = x.size()
    _, n = gate.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            values = x[tile_m, tile_k]
            first = torch.addmm(first, values, gate[tile_k, tile_n])
            second = torch.addmm(second, values, up[tile_k, tile_n])
        out[tile_m, tile_n] = first * torch.sigmoid(first) * second
    return out


@row("`hl.dot_scaled`", lambda: (torch.randn(32, 32).to(torch.float8_e4m3fn),
     torch.full((32, 1), 127, dtype=torch.uint8), torch.randn(32, 32).to(torch.float8_e4m3fn),
     torch.full((32, 1), 127, dtype=torch.uint8)), lambda x, a, y, b: x.float() @ y.float(),
     block_sizes=[32, 32, 32], rtol=1e-3, atol=1e-3)  # fmt: skip
def dot_scaled(x: Tensor, xs: Tensor, y: Tensor, ys: Tensor) -> Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot_scaled(
                x[tile_m, tile_k], xs[tile_m, :], "e4m3", y[tile_k, tile_n], ys[tile_n, :], "e4m3",
                acc=acc,
            )  # fmt: skip
        out[tile_m, tile_n] = acc
    return out
