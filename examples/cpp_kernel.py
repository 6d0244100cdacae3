"""A kernel in C++, launched over a grid, inside a host function that is replayed."""

import torch

import tzero
from tzero.backends import cpp

clamp_kernel = cpp.kernel("""
void clamp(const float *x, float *out, int64_t n, float low, float high, tzero::Program program) {
    for (int64_t i = program.id[0]; i < n; i += program.grid[0]) {
        out[i] = x[i] < low ? low : x[i] > high ? high : x[i];
    }
}
""")


@tzero.kernel
def clamp(x, low, high):
    out = torch.empty_like(x)
    clamp_kernel[(4,)](x, out, x.numel(), low, high)
    return out


if __name__ == "__main__":
    x = torch.randn(1000)
    for _ in range(3):
        assert torch.equal(clamp(x, -1.0, 0.5), x.clamp(-1.0, 0.5))
    print(clamp.explain(x, -1.0, 0.5))
