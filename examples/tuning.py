"""Several configs: the first call finds the fastest, and a file takes it to other machines."""

import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@tzero.kernel(configs=tzero.Space(BLOCK=[64, 512, 4096]))
def scaled(x, by, config):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, by, x.numel(), **config)
    return out


if __name__ == "__main__":
    x = torch.randn(100_000, device=DEVICE)
    assert torch.equal(scaled(x, 2.0), x * 2)
    print(scaled.bind(x, 2.0).choice)
    with tempfile.TemporaryDirectory() as folder:
        shipped = Path(folder, "configs.json")
        tzero.ship(shipped, [scaled])
        print(shipped.read_text()[:400])
