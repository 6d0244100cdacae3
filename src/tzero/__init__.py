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
torch nor triton: Triton imports ``tzero.cpu`` while it is itself being imported. Names that need
torch are brought in when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tzero.config import Config
from tzero.errors import *  # noqa: F403  every error is public
from tzero.errors import __all__ as _errors
from tzero.versions import require as _require

if TYPE_CHECKING:
    from tzero.bind import BoundKernel
    from tzero.decorating import kernel
    from tzero.dispatch import Kernel
    from tzero.extract import ConstExpr
    from tzero.jitting import jit
    from tzero.precompiling import Precompiled, Spec, precompile
    from tzero.specializing import specialize
    from tzero.tune.space import Space
    from tzero.tuning import pretuned, ship
    from tzero.variants import multi_kernel

__version__ = "0.1.0"

__all__ = [
    *_errors,
    "BoundKernel",
    "Config",
    "ConstExpr",
    "Kernel",
    "Precompiled",
    "Space",
    "Spec",
    "__version__",
    "jit",
    "kernel",
    "multi_kernel",
    "precompile",
    "pretuned",
    "ship",
    "specialize",
]

_ROOMS = {
    "BoundKernel": "tzero.bind",
    "ConstExpr": "tzero.extract",
    "Kernel": "tzero.dispatch",
    "Precompiled": "tzero.precompiling",
    "Space": "tzero.tune.space",
    "Spec": "tzero.precompiling",
    "jit": "tzero.jitting",
    "kernel": "tzero.decorating",
    "multi_kernel": "tzero.variants",
    "precompile": "tzero.precompiling",
    "pretuned": "tzero.tuning",
    "ship": "tzero.tuning",
    "specialize": "tzero.specializing",
}


_OPEN = (
    "backends",
    "cache",
    "compile",
    "errors",
    "events",
    "key",
    "measure",
    "pool",
    "settings",
    "tune",
)
"""Rooms that are public as a whole, as `tzero.measure`."""


_INTEGRATIONS = ("helion",)
"""Rooms of other people's kernels, public as `tzero.helion`."""


def __getattr__(name: str) -> Any:
    if name in _OPEN:
        return importlib.import_module(f"tzero.{name}")
    if name not in _ROOMS and name not in _INTEGRATIONS:
        raise AttributeError(f"module 'tzero' has no attribute {name!r}")
    _require("python", "torch", "triton")  # before an import of their private names fails
    if name in _INTEGRATIONS:
        return importlib.import_module(f"tzero.integrations.{name}")
    value = globals()[name] = getattr(importlib.import_module(_ROOMS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_OPEN, *_INTEGRATIONS})
