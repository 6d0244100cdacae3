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

The packages, in the order in which a call uses them:

    api           the decorators, their options checked
    calls         the order of the stages: arguments -> key -> bound kernel -> run
    arguments     arguments -> keys, and what else is compared of them
    tune          which config a bound kernel gets
    plans         calls recorded once and replayed; reading, what a host function reads -> guards
    launches      launches of Triton kernels; native/, the C++ extension, does the same for hits
    compile       compiling in worker processes; backends, the compilers; cache, what they made
    cpu           the Triton backend for the CPU
    adapters      private parts of torch and Triton; integrations, Helion
    settings, errors, events, measure, config, versions, cli: modules of their own

Leaves: the public names below. Importing tzero does no work, starts nothing, and imports neither
torch nor triton: Triton imports ``tzero.cpu`` while it is itself being imported. Names that need
torch are brought in when they are first asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tzero.config import Config
from tzero.errors import *  # noqa: F403  every error is public
from tzero.errors import __all__ as _errors
from tzero.moved import PUBLIC as _SHORT_NAMES
from tzero.moved import Finder
from tzero.versions import TZERO as _TZERO
from tzero.versions import require as _require

if TYPE_CHECKING:
    from tzero import backends as backends
    from tzero import cache as cache
    from tzero import compile as compile
    from tzero import errors as errors
    from tzero import events as events
    from tzero import measure as measure
    from tzero import settings as settings
    from tzero import tune as tune
    from tzero.api.bundles import build_bundle
    from tzero.api.decorators import kernel
    from tzero.api.install import install, installed, uninstall
    from tzero.api.jit import JitKernel, jit
    from tzero.api.seal import seal, unseal
    from tzero.api.variants import multi_kernel
    from tzero.arguments import key as key
    from tzero.arguments.extract import ConstExpr
    from tzero.cache.place import fleet
    from tzero.calls.bound import BoundKernel
    from tzero.calls.coverage import coverage
    from tzero.calls.kernel import Kernel
    from tzero.calls.specialize import specialize
    from tzero.calls.warming import Warmed, warmup
    from tzero.integrations import helion as helion
    from tzero.integrations import ray as ray
    from tzero.launches.ahead import Precompiled, Spec, precompile
    from tzero.launches.bundles import load_bundle, unload_bundle
    from tzero.launches.ranges import Range
    from tzero.plans import outputs
    from tzero.reading.probes import constant
    from tzero.tune.background import pause_tuning, wait_for_tuning
    from tzero.tune.shipping import pretuned, ship
    from tzero.tune.space import Space

    pool = outputs

__version__ = _TZERO

__all__ = [
    *_errors,
    "BoundKernel",
    "Config",
    "ConstExpr",
    "JitKernel",
    "Kernel",
    "Precompiled",
    "Range",
    "Space",
    "Spec",
    "Warmed",
    "__version__",
    "build_bundle",
    "constant",
    "fleet",
    "coverage",
    "install",
    "installed",
    "jit",
    "kernel",
    "load_bundle",
    "multi_kernel",
    "pause_tuning",
    "precompile",
    "pretuned",
    "seal",
    "ship",
    "specialize",
    "uninstall",
    "unload_bundle",
    "unseal",
    "wait_for_tuning",
    "warmup",
]

_HOMES = {
    "BoundKernel": "tzero.calls.bound",
    "ConstExpr": "tzero.arguments.extract",
    "JitKernel": "tzero.api.jit",
    "Kernel": "tzero.calls.kernel",
    "Precompiled": "tzero.launches.ahead",
    "Range": "tzero.launches.ranges",
    "Space": "tzero.tune.space",
    "Spec": "tzero.launches.ahead",
    "Warmed": "tzero.calls.warming",
    "build_bundle": "tzero.api.bundles",
    "constant": "tzero.reading.probes",
    "fleet": "tzero.cache.place",
    "coverage": "tzero.calls.coverage",
    "install": "tzero.api.install",
    "installed": "tzero.api.install",
    "jit": "tzero.api.jit",
    "kernel": "tzero.api.decorators",
    "load_bundle": "tzero.launches.bundles",
    "multi_kernel": "tzero.api.variants",
    "pause_tuning": "tzero.tune.background",
    "precompile": "tzero.launches.ahead",
    "pretuned": "tzero.tune.shipping",
    "seal": "tzero.api.seal",
    "ship": "tzero.tune.shipping",
    "specialize": "tzero.calls.specialize",
    "uninstall": "tzero.api.install",
    "unload_bundle": "tzero.launches.bundles",
    "unseal": "tzero.api.seal",
    "wait_for_tuning": "tzero.tune.background",
    "warmup": "tzero.calls.warming",
}


_MODULES = (
    "backends",
    "cache",
    "compile",
    "errors",
    "events",
    "helion",
    "key",
    "measure",
    "pool",
    "ray",
    "settings",
    "tune",
)
"""Modules that are public as a whole, as `tzero.measure`."""

sys.meta_path.append(Finder())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        if name in _SHORT_NAMES:  # these import torch and triton
            _require("python", "torch", "triton")
        return importlib.import_module(f"tzero.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tzero' has no attribute {name!r}")
    _require("python", "torch", "triton")  # before an import of their private names fails
    importlib.import_module("tzero.logs").begin()
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
