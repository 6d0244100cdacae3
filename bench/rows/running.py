"""Whole kernels on the CPU, compared with torch: how fast compiled code runs.

Both sides write to a given output if torch's function accepts one; otherwise both allocate.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from bench import kernels
from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]


def _add() -> Case:
    x, y = torch.randn(1 << 22), torch.randn(1 << 22)
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    return Case(
        {"triton": lambda: kernels.add(x, y, ours), "torch": lambda: torch.add(x, y, out=theirs)},
        lambda: torch.testing.assert_close(kernels.add(x, y), x + y, rtol=0, atol=0),
    )


def _softmax() -> Case:
    x = torch.randn(1024, 4096)
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    return Case(
        {
            "triton": lambda: kernels.softmax(x, ours),
            "torch": lambda: torch.softmax(x, 1, out=theirs),
        },
        lambda: torch.testing.assert_close(kernels.softmax(x), x.softmax(1)),
    )


def _layernorm() -> Case:
    x, weight, bias = torch.randn(1024, 1000), torch.randn(1000), torch.randn(1000)

    def expected() -> torch.Tensor:
        return functional.layer_norm(x, (1000,), weight, bias)

    return Case(
        {"triton": lambda: kernels.layernorm(x, weight, bias), "torch": expected},
        lambda: torch.testing.assert_close(kernels.layernorm(x, weight, bias)[0], expected()),
    )


def _matmul() -> Case:
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    ours, theirs = torch.empty(512, 512), torch.empty(512, 512)

    def check() -> None:
        expected = (a.double() @ b.double()).float()
        torch.testing.assert_close(kernels.matmul(a, b), expected, rtol=1e-4, atol=1e-3)

    return Case(
        {
            "triton": lambda: kernels.matmul(a, b, out=ours),
            "torch": lambda: torch.mm(a, b, out=theirs),
        },
        check,
    )


def _attention() -> Case:
    q, k, v = (torch.randn(1, 4, 512, 64, dtype=torch.float16) for _ in range(3))

    def check() -> None:
        wide = functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=True
        )
        ours = kernels.attention(q, k, v, causal=True)
        torch.testing.assert_close(ours, wide.half(), rtol=1e-2, atol=2e-3)

    return Case(
        {
            "triton": lambda: kernels.attention(q, k, v, causal=True),
            "torch": lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        },
        check,
    )


ROWS = (
    Row("cpu.add.4M.f32", "Add 4M fp32 elements on the CPU", _add, target=Target("ratio", 1.3)),
    Row(
        "cpu.softmax.1024x4096.f32",
        "Softmax of 1024×4096 on the CPU",
        _softmax,
        target=Target("ratio", 1.0),
    ),
    Row(
        "cpu.layernorm.1024x1000.f32",
        "Layer norm of 1024×1000 on the CPU",
        _layernorm,
        target=Target("ratio", 1.5),
    ),
    Row(
        "cpu.matmul.512.f32",
        "Matmul of 512×512, fp32, on the CPU",
        _matmul,
        target=Target("ratio", 2.0),
    ),
    Row(
        "cpu.attention.causal.1x4x512x64.f16",
        "Causal attention, fp16, on the CPU",
        _attention,
        target=Target("ratio", 0.6),
    ),
)
