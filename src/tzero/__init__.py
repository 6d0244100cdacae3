"""tzero: calling a kernel written in Python should cost what the driver launch costs.

With tzero installed, ordinary Triton kernels compile and run on a machine without a GPU; no
import of tzero is needed, Triton finds the backend by itself::

    import torch, triton, triton.language as tl

    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    x = torch.randn(1000)
    y = torch.empty_like(x)
    double[(triton.cdiv(1000, 256),)](x, y, 1000, BLOCK=256)

Leaves: the public names below. Importing tzero does no work, starts nothing, and imports neither
torch nor triton: Triton imports ``tzero.cpu`` while it is itself being imported.
"""

from tzero.config import Config
from tzero.errors import (
    CompilerFailed,
    CompilerMissing,
    InvalidConfig,
    InvalidSetting,
    KernelAssertion,
    OutOfBounds,
    TzeroError,
    UnsupportedOperation,
)

__version__ = "0.1.0"

__all__ = [
    "CompilerFailed",
    "CompilerMissing",
    "Config",
    "InvalidConfig",
    "InvalidSetting",
    "KernelAssertion",
    "OutOfBounds",
    "TzeroError",
    "UnsupportedOperation",
    "__version__",
]
