"""A program that knows nothing of tzero, for `tzero bench bench/unaware.py`: steps of a small model
with two Triton kernels, of which one is behind a heuristic."""

from __future__ import annotations

import argparse

import torch
import triton
import triton.language as tl

N = 4096


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(min(given["n"], 1024))})
@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, by * tl.load(x + at, mask=at < n), mask=at < n)


def main() -> None:
    """Take the steps, and print their result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    x, bias = torch.zeros(N), torch.ones(N)
    for _ in range(steps):
        moved = torch.empty_like(x)
        add_kernel[(triton.cdiv(N, 1024),)](x, bias, moved, N, BLOCK=1024)
        x = torch.empty_like(moved)
        scale_kernel[lambda given: (triton.cdiv(N, given["BLOCK"]),)](moved, x, 0.5, N)
    print(f"{x.mean():.3f}")


if __name__ == "__main__":
    main()
