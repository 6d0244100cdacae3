"""A server from cold to sealed: warm up for all sizes, seal, answer; a bundle for the next one.

python examples/serving.py                       warms up, seals, serves, and writes a bundle
python examples/serving.py --bundle kernels.tzb  starts from that bundle, and compiles nothing
"""

import argparse
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()
HIDDEN, MOST_TOKENS = 128, 64


@triton.jit
def norm_kernel(x, weight, out, n, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < n, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value) / n + eps)
    tl.store(out + row + at, value * scale * tl.load(weight + at, mask=at < n), mask=at < n)


@tzero.kernel
def norm(x, weight, eps):
    out = torch.empty_like(x)
    tokens, n = x.shape
    norm_kernel[(tokens,)](x, weight, out, n, eps, BLOCK=triton.next_power_of_2(n))
    return out


def answer(tokens, weight):
    """One request: its number of tokens is never known before."""
    x = torch.randn(tokens, HIDDEN, device=DEVICE)
    expected = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(norm(x, weight, 1e-6), expected, rtol=1e-4, atol=1e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", type=Path, help="start from this bundle")
    bundle = parser.parse_args().bundle
    if bundle is not None:
        tzero.load_bundle(bundle)
    weight = torch.ones(HIDDEN, device=DEVICE)
    batch = tzero.Spec((tzero.Range(1, MOST_TOKENS), HIDDEN), device=DEVICE)
    for warmed in tzero.warmup([(norm, batch, weight, 1e-6)]):
        print(warmed)
    with tzero.seal("error"):  # from here on, whatever was forgotten is an error
        for tokens in (1, 7, 16, 33, 64):
            answer(tokens, weight)
        try:
            norm(torch.randn(4, HIDDEN, dtype=torch.float16, device=DEVICE), weight, 1e-6)
        except tzero.SealBroken as error:
            print(f"refused: {str(error).partition('. ')[0]}")
    compiled = sum(tzero.compile.service().stats().compiled.values())
    print(f"5 requests answered while sealed; {compiled} compiles before")
    if bundle is None:
        folder = Path(tempfile.mkdtemp())
        made = tzero.build_bundle(folder / "kernels.tzb")
        print(f"the next one needs no compiler: --bundle {made.path}")


if __name__ == "__main__":
    main()
