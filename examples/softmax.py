"""Softmax over rows: a host function whose calls are replayed, and what that saves."""

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < columns, other=float("-inf"))
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + at, power / tl.sum(power, axis=0), mask=at < columns)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


fast_softmax = tzero.kernel(softmax)

if __name__ == "__main__":
    x = torch.randn(8, 300, device=DEVICE)
    for _ in range(3):
        torch.testing.assert_close(fast_softmax(x), x.softmax(1))
    print(fast_softmax.explain(x))
    for name, call in (("as written", softmax), ("with tzero", fast_softmax)):
        print(f"{name}: {tzero.measure.nanoseconds(lambda: call(x)) / 1000:.1f} µs")  # noqa: B023
