"""Host functions that are followed instruction by instruction, and a change of what each reads.

Native code checks all of their guards itself, and calls no Python code of torch: see
`test_native_hits`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import torch
import torch.distributed.tensor

from tests.plans.case import cases
from tests.plans.hosts import scaled

CASES = cases()
case = CASES.add


class Options:
    """A class of the program that source code alone does not explain."""

    def __init__(self) -> None:
        self.by = 2.0

    def times(self, x: torch.Tensor, *, more: float = 1.0) -> torch.Tensor:
        return scaled(x, self.by * more)


OPTIONS = Options()


def with_named(x, *, more=1.0, text="a"):
    return scaled(x, OPTIONS.by * more)


# -- functions -------------------------------------------------------------------------------------


@case(lambda patch: patch.setattr(with_named, "__kwdefaults__", {"more": 5.0, "text": "a"}))
def a_named_default(x):
    return with_named(x)


@case(lambda patch: patch.setitem(with_named.__kwdefaults__, "more", 5.0))
def an_item_of_the_named_defaults(x):
    return with_named(x)


@case(lambda patch: patch.setattr(Options.times, "__kwdefaults__", {"more": 5.0}))
def a_named_default_of_a_method(x):
    return OPTIONS.times(x)


def backward(x):
    return x


@case(lambda patch: patch.setitem(globals(), "backward", a_named_default))
def a_function_that_is_returned(x):
    return scaled(x, OPTIONS.by), backward


@staticmethod
def static(x):
    return scaled(x, OPTIONS.by)


@case(lambda patch: patch.setattr(OPTIONS, "by", 3.0))
def a_static_method_that_is_called_as_it_is(x):
    return static(x)


class Scaling(torch.autograd.Function):
    """A function of autograd whose forward a library wraps."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        return scaled(x, OPTIONS.by)


@case(lambda patch: patch.setattr(OPTIONS, "by", 3.0))
def a_function_of_autograd_under_a_decorator_of_torch(x):
    return Scaling.apply(x)


# -- containers ------------------------------------------------------------------------------------

TABLE = {"one": (1.0, ["a"]), "two": {"by": 2.0}}


@case(lambda patch: patch.setitem(TABLE["two"], "by", 9.0))
def what_is_deep_in_a_table(x):
    return scaled(x, TABLE["two"]["by"])


@case(lambda patch: patch.setitem(globals(), "TABLE", {"two": {"by": 9.0}}))
def another_table(x):
    return scaled(x, TABLE["two"]["by"])


# -- events, types, modules ------------------------------------------------------------------------

EVENTS = {"ready": threading.Event()}


@contextlib.contextmanager
def set_event() -> Iterator[None]:
    EVENTS["ready"].set()
    try:
        yield
    finally:
        EVENTS["ready"].clear()


@case(lambda patch: set_event())
def an_event(x):
    return scaled(x, 3.0 if EVENTS["ready"].is_set() else OPTIONS.by)


@case(lambda patch: patch.setitem(EVENTS, "ready", None))
def an_event_that_is_there(x):
    return scaled(x, OPTIONS.by if EVENTS.get("ready") else 3.0)


Number = object()


@case(lambda patch: patch.setattr(OPTIONS, "by", 3.0))
def a_cast(x):
    return scaled(cast(Number, x), OPTIONS.by)


@case(lambda patch: patch.setattr(torch.distributed.tensor, "DTensor", torch.Tensor))
def a_class_of_tensors_in_an_impure_module(x):
    by = 3.0 if isinstance(x, torch.distributed.tensor.DTensor) else OPTIONS.by
    return scaled(x, by)


FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
sys.path.append(str(FOLDER))


def an_import_that_fails(x):
    try:
        from tzero_not_installed.inner import by
    except ImportError:
        by = 2.0
    return scaled(x, by)


def a_module(by: float) -> ModuleType:
    found = ModuleType("tzero_not_installed.inner")
    found.by = by  # type: ignore[attr-defined]
    return found


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """The module is written to a directory in which modules are searched."""
    package = FOLDER / "tzero_not_installed"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("by = 5.0\n")
    os.utime(FOLDER, (1, 1))  # as if that was long ago: the time differs all the same
    try:
        yield
    finally:
        shutil.rmtree(package)
        for name in ("tzero_not_installed", "tzero_not_installed.inner"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()


def load(patch) -> None:
    """Another part of the program puts the module where imports find it."""
    patch.setitem(sys.modules, "tzero_not_installed", ModuleType("tzero_not_installed"))
    patch.setitem(sys.modules, "tzero_not_installed.inner", a_module(5.0))


class Finder:
    """An import hook that knows the module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("tzero_not_installed"):
            return None
        return importlib.machinery.ModuleSpec(name, Finder, is_package=name.count(".") == 0)

    @staticmethod
    def create_module(spec):
        return a_module(5.0)

    @staticmethod
    def exec_module(module):
        return None


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    sys.meta_path.append(Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(Finder)
        for name in ("tzero_not_installed", "tzero_not_installed.inner"):
            sys.modules.pop(name, None)


@case(load)
def an_import_that_fails_until_the_module_is_loaded(x):
    return an_import_that_fails(x)


@case(lambda patch: installed())
def an_import_that_fails_until_the_module_is_installed(x):
    return an_import_that_fails(x)


@case(lambda patch: hooked())
def an_import_that_fails_until_a_hook_finds_the_module(x):
    return an_import_that_fails(x)


# -- Python functions of torch ---------------------------------------------------------------------


@case(lambda patch: patch.setattr(torch.Tensor, "__rsub__", lambda self, other: self + other))
def a_difference_from_a_number(x):
    return scaled(2 - x, OPTIONS.by)


@case(lambda patch: patch.setattr(torch.Tensor, "__rtruediv__", lambda self, other: self + other))
def a_quotient_of_a_number(x):
    return scaled(2 / (x * x + 1), OPTIONS.by)


@case(lambda patch: patch.setattr(torch.Tensor, "__rpow__", lambda self, other: self + other))
def a_power_of_a_number(x):
    return scaled(2**x, OPTIONS.by)


@case(lambda patch: patch.setattr(torch.Tensor, "reciprocal", torch.Tensor.neg, raising=False))
def what_a_python_function_of_torch_calls(x):
    return scaled(2 / (x * x + 1), OPTIONS.by)


@case(lambda patch: patch.setattr(OPTIONS, "by", 3.0))
def a_broadcast(x):
    one, other = torch.broadcast_tensors(x[:, None], x[None, :])
    return scaled((one + other).flatten(), OPTIONS.by), one, other


@case(lambda patch: patch.setattr(torch, "broadcast_tensors", lambda a, b: (a + 1, b)))
def a_broadcast_of_equal_shapes(x):
    one, other = torch.broadcast_tensors(x, x)
    return scaled(one + other, OPTIONS.by), one is other
