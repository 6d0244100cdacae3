"""Helion kernels: Helion compiles and tunes, tzero makes the calls."""

import helion
import helion.language as hl
import torch
import triton

import tzero

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@helion.kernel(config=helion.Config(block_sizes=[128]))
def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * y[tile] + z[tile]
    return out


if __name__ == "__main__":
    tzero.helion.install()
    x, y, z = torch.randn(3, 4096, device=DEVICE)
    for _ in range(4):
        torch.testing.assert_close(multiply_add(x, y, z), x * y + z)
    print(multiply_add.explain(x, y, z))
    tzero.helion.uninstall()
