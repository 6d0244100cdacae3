"""Layer norm with its gradient: both passes are host functions, and both are replayed."""

import torch
import triton
import triton.language as tl

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def forward_kernel(x, weight, out, mean, scale, columns, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    average = tl.sum(value, axis=0) / columns
    centred = tl.where(inside, value - average, 0.0)
    factor = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    result = centred * factor * tl.load(weight + at, mask=inside)
    tl.store(out + row * columns + at, result, mask=inside)
    tl.store(mean + row, average)
    tl.store(scale + row, factor)


@triton.jit
def backward_kernel(grad, x, weight, mean, scale, to_x, to_weight, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    factor = tl.load(scale + row)
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    unit = tl.where(inside, (value - tl.load(mean + row)) * factor, 0.0)
    given = tl.load(grad + row * columns + at, mask=inside, other=0.0)
    scaled = given * tl.load(weight + at, mask=inside, other=0.0)
    along = tl.sum(scaled * unit, axis=0) / columns
    result = (scaled - tl.sum(scaled, axis=0) / columns - unit * along) * factor
    tl.store(to_x + row * columns + at, result, mask=inside)
    tl.atomic_add(to_weight + at, given * unit, mask=inside)


@tzero.kernel
def forward(x, weight, eps):
    rows, columns = x.shape
    out = torch.empty_like(x)
    mean, scale = torch.empty(rows, device=x.device), torch.empty(rows, device=x.device)
    block = triton.next_power_of_2(columns)
    forward_kernel[(rows,)](x, weight, out, mean, scale, columns, eps, BLOCK=block)
    return out, mean, scale


@tzero.kernel
def backward(grad, x, weight, mean, scale):
    rows, columns = x.shape
    to_x, to_weight = torch.empty_like(x), torch.zeros_like(weight)
    block = triton.next_power_of_2(columns)
    backward_kernel[(rows,)](grad, x, weight, mean, scale, to_x, to_weight, columns, BLOCK=block)
    return to_x, to_weight


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps=1e-5):
        out, mean, scale = forward(x, weight, eps)
        ctx.save_for_backward(x, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        return *backward(grad.contiguous(), *ctx.saved_tensors), None


if __name__ == "__main__":
    x = torch.randn(32, 200, device=DEVICE, requires_grad=True)
    weight = torch.randn(200, device=DEVICE, requires_grad=True)
    for _ in range(4):
        ours = torch.autograd.grad(LayerNorm.apply(x, weight).square().sum(), (x, weight))
    plain = torch.nn.functional.layer_norm(x, (200,), weight)
    theirs = torch.autograd.grad(plain.square().sum(), (x, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    print(f"forward: {forward.stats()}")
    print(f"backward: {backward.stats()}")
