"""Tests of a kernel that run on any machine: `pytest --triton-check examples/ci`."""

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@pytest.mark.parametrize("n", [1, 100, 1025])
def test_scale(triton_device, n):
    x = torch.randn(n, device=triton_device)
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(n, 256),)](x, out, 2.0, n, BLOCK=256)
    torch.testing.assert_close(out, x * 2)


@pytest.mark.triton_gpu
def test_that_needs_a_gpu(triton_device):
    torch.cuda.synchronize()
