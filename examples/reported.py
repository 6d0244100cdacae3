"""A program with everything that a report shows: replays, a fallback, searches, compiles.

tzero report examples/reported.py        and open tzero-report.html
tzero trace examples/reported.py         and open tzero-trace.json at ui.perfetto.dev
"""

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 512, 4096)], key=["n"])
@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, by * tl.load(x + at, mask=at < n), mask=at < n)


@tzero.kernel
def add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@tzero.kernel
def positive(x, y):
    out = add(x, y)
    return out if out.sum() > 0 else -out  # reads the value of a tensor: a fallback


@tzero.kernel(configs=[tzero.Config(BLOCK=block) for block in (64, 512, 4096)])
def tuned(x, y, config):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, y, out, x.numel(), **config)
    return out


if __name__ == "__main__":
    x, y = torch.ones(50_000, device=DEVICE), torch.ones(50_000, device=DEVICE)
    scaled = torch.empty_like(x)
    for _ in range(1000):
        assert add(x, y)[0] == positive(x, y)[0] == tuned(x, y)[0] == 2
        scale_kernel[lambda given: (triton.cdiv(50_000, given["BLOCK"]),)](x, scaled, 3.0, 50_000)
    print(f"scaled: {scaled[:3].tolist()}; {positive.stats().plain_calls} calls as written")
