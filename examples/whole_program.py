"""A program that knows nothing of tzero: an optimizer step by Triton kernels, one of them tuned.

python -m tzero run examples/whole_program.py
"""

import argparse

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune(
    [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024})],
    key=["n"],
    restore_value=["weight", "state"],
    cache_results=True,  # later runs need not time the configs again
)
@triton.jit
def momentum_kernel(weight, grad, state, rate, keep, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    now = tl.load(state + at, mask=inside) * keep + tl.load(grad + at, mask=inside)
    tl.store(state + at, now, mask=inside)
    tl.store(weight + at, tl.load(weight + at, mask=inside) - rate * now, mask=inside)


@triton.jit
def decay_kernel(weight, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(weight + at, tl.load(weight + at, mask=at < n) * by, mask=at < n)


def step(weights, grads, states):
    for weight, grad, state in zip(weights, grads, states, strict=True):
        n = weight.numel()
        decay_kernel[(triton.cdiv(n, 1024),)](weight, 0.999, n, BLOCK=1024)
        grid = lambda given: (triton.cdiv(n, given["BLOCK"]),)  # noqa: B023, E731
        momentum_kernel[grid](weight, grad, state, 0.01, 0.9, n)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    weights = [torch.ones(size, device=DEVICE) for size in (64, 1000, 4096)]
    grads, states = [torch.ones_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for _ in range(steps):
        step(weights, grads, states)
    print(f"after {steps} steps: {[round(float(each[0]), 4) for each in weights]}")
