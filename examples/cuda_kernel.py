"""A kernel in CUDA C++, launched over a grid, inside a host function that is replayed."""

import torch

import tzero
from tzero.backends import cuda

saxpy_kernel = cuda.kernel(
    """
extern "C" __global__ void saxpy(const float *x, const float *y, float *out, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = by * x[i] + y[i];
}
""",
    block=256,
)


@tzero.kernel
def saxpy(by, x, y):
    out = torch.empty_like(x)
    saxpy_kernel[(-(-x.numel() // 256),)](x, y, out, x.numel(), by)
    return out


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("this example needs a GPU")
    x, y = torch.randn(2, 10_000, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(saxpy(2.0, x, y), 2 * x + y)
    print(saxpy.explain(2.0, x, y))
