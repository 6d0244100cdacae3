"""Plans whose launches are on "CUDA" without a GPU: tests/native/standin.c is the driver.

Enters: host functions that launch `add` and `scale`, which the CPU backend compiles and records.
Leaves: kernels that replay them natively, in a native module of their own. Nothing of tzero is
replaced: descriptions say that the binaries are CUDA's, the driver is a shared library that records
its calls and does the work, and DLPack's table, which torch gives, names its stream.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tzero._native as installed
from tests.native.native_plans import native_plan
from tzero.adapters import torch_profilers
from tzero.adapters.torch_layout import in_a_new_thread
from tzero.arguments.key import Options
from tzero.cpu import toolchain
from tzero.launches import native as native_launches
from tzero.launches.native import BinaryDescription, CudaDescription
from tzero.plans.describe import FillDescription, LaunchDescription, PlanDescription
from tzero.plans.describe_copies import CopyDescription
from tzero.plans.describe_parts import PartDescription

__all__ = ["Driver", "driver", "kernel_of", "launched_by", "on_cuda"]

SOURCE = Path(__file__).with_name("standin.c")
FUNCTIONS = {"add": "standin_add", "scale": "standin_scale"}


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32 * 2), ("previous", ctypes.c_void_p))


class _ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("header", _Header),
        ("managed", ctypes.c_void_p * 3),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


class Driver:
    """The stand-in for CUDA's driver."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.standin_calls.restype = ctypes.c_char_p
        self.library.standin_stream.argtypes = [ctypes.c_size_t]

    def calls(self) -> list[str]:
        """The calls since this was asked last."""
        found = self.library.standin_calls().decode().splitlines()
        self.library.standin_forget()
        return found

    def fail(self, name: str, result: int = 999, after: int = 0, then: str = "") -> None:
        """Let the next call of a function fail, or one after some others; and the next call of
        another one after that."""
        self.library.standin_fail(name.encode(), result, after)
        self.library.standin_fail_next(then.encode(), result)

    def slow(self, name: str, seconds: float) -> None:
        """Let the next call of a function take so long."""
        self.library.standin_slow(name.encode(), int(seconds * 1e6))

    def disturbing(self) -> int:
        """How many calls would have broken a capture of another thread."""
        return int(self.library.standin_disturbing())

    def use_stream(self, number: int) -> None:
        self.library.standin_stream(number)

    def capture(self, status: int) -> None:
        self.library.standin_capturing(status)

    def reset(self) -> None:
        """Reset the device: what was made before is gone."""
        self.library.standin_reset()

    def use_device(self, number: int) -> None:
        """Make one of two devices the current one."""
        self.library.standin_device(number)

    def widen(self, yes: bool) -> None:
        """Read fills of single bytes back with elements of four, where that is possible."""
        self.library.standin_widen(int(yes))

    def pitches(self, how: int) -> None:
        """Read copies back without pitches (0), with them (1), or with two rows (2)."""
        self.library.standin_pitches(how)

    def stale(self) -> int:
        """How many calls had a graph whose context has ended, or is not the current one."""
        return int(self.library.standin_stale())

    def latest_grid(self) -> int:
        """The first size of the grid that was set last."""
        return int(self.library.standin_latest_grid())

    def alive(self) -> int:
        """How many graphs and executables were not destroyed."""
        return int(self.library.standin_alive())

    def address(self, name: str) -> int:
        found = ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value
        assert found is not None
        return found


@functools.cache
def driver() -> Driver:
    """The stand-in, loaded under the name of CUDA's driver, so that native code finds it."""
    flags = ("-Wl,-soname,libcuda.so.1",)  # glibc finds a loaded library by the name inside it
    binary = toolchain.find().build(SOURCE.read_text(encoding="utf-8"), "standin", [], flags, 0)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary)
        file.flush()
        return Driver(ctypes.CDLL(file.name))


def _capsule(library: Driver) -> Any:
    """torch's table for DLPack, with the stand-in's current stream."""
    new, pointer = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    new.restype, pointer.restype = ctypes.py_object, ctypes.c_void_p
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    known = pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    table = _ExchangeApi.from_buffer_copy(_ExchangeApi.from_address(known or 0))
    table.current_stream = library.address("standin_current_stream")
    _kept.append(table)
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


_kept: list[Any] = []


class _WithStreams:
    """The native module, configured with another table for DLPack."""

    def __init__(self, native: ModuleType, capsule: Any) -> None:
        self.native, self.capsule = native, capsule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def configure(self, **given: Any) -> None:
        self.native.configure(**{**given, "exchange_api": self.capsule})


@functools.cache
def on_cuda() -> Any:
    """The class of kernels whose launches are the stand-in's."""
    library = driver()
    spec = importlib.util.spec_from_file_location("tzero._native", installed.__file__)
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    module: Any = _WithStreams(native, _capsule(library))
    made: Any = native_plan.make(module)
    launched: Any = native_launches.make(module)
    if made.unavailable:
        pytest.skip(f"no native plans here: {made.unavailable}")
    assert not in_a_new_thread(functools.partial(torch_profilers.configure, native))
    assert native.open_cuda(), "native code does not find the stand-in"

    class OnCuda(made):  # type: ignore[misc]
        module = native
        launched_class = launched
        how: Mapping[str, Any] = {}  # fields of a `CudaDescription` that are not the usual ones

        def _described_plan(self, planned: Any, generation: int) -> Any:
            found = super()._described_plan(planned, generation)
            if found is None or found[1] is None:
                return found
            bound, description, *rest = found
            return (bound, _moved(description, library, self.how), *rest)

    native.enable_calls(OnCuda)
    return OnCuda


def _moved(plan: PlanDescription, library: Driver, how: Mapping[str, Any]) -> PlanDescription:
    steps = (step._replace(details=_on_device(step.details, library, how)) for step in plan.steps)
    sizes = plan.sizes
    if sizes is not None:
        launches = tuple(
            launch._replace(
                variants=tuple(
                    variant._replace(launch=_on_device(variant.launch, library, how))
                    for variant in launch.variants
                )
            )
            for launch in sizes.launches
        )
        sizes = sizes._replace(launches=launches)
    return plan._replace(steps=tuple(steps), sizes=sizes)


def _on_device(details: Any, library: Driver, how: Mapping[str, Any]) -> Any:
    if isinstance(details, (FillDescription, CopyDescription, PartDescription)):
        return details._replace(cuda_device=how.get("device", 0))
    if isinstance(details, LaunchDescription):
        return details._replace(binary=_of_cuda(details.binary, library, how))
    return details


def _of_cuda(
    binary: BinaryDescription, library: Driver, how: Mapping[str, Any]
) -> BinaryDescription:
    name = FUNCTIONS[binary.name.lstrip("_")]
    cuda = CudaDescription(128, 0, 1, False, False, 0)._replace(**how)
    return binary._replace(cpu=None, cuda=cuda, function=library.address(name))


def kernel_of(
    host: Any,
    *,
    pool: bool = False,
    over_sizes: bool = False,
    graph: bool = False,
    **how: Any,
) -> Any:
    """A kernel over a host function, whose launches are the stand-in's. `how` are fields of
    `CudaDescription` that are not the usual ones, such as `cluster` and `device`."""
    options, free = Options(static_shapes=not over_sizes), "everything" if over_sizes else "nothing"
    given = {"options": options, "pool": pool, "free": free, "graph": graph}
    kind = on_cuda()
    if how:
        kind = type("OnCuda", (kind,), {"how": how})
        kind.module.enable_calls(kind)
    return kind(host, config=None, key=None, **given)


def launched_by(kernel: Any, **how: Any) -> Any:
    """A kernel of `tzero.jit` whose launches are the stand-in's, once Triton has compiled it. It
    must take addresses as integers: native launches of CUDA take no tensors of the CPU."""
    library, made = driver(), on_cuda().launched_class

    class Launched(made):  # type: ignore[misc, valid-type]
        def _launched(self, *given: Any) -> Any:
            result, said = super()._launched(*given)
            assert not isinstance(said, str), said
            return result, None if said is None else _of_cuda(said, library, how)

    return Launched(kernel.fn)
