"""In a host function that runs as written, Triton's own kernels are launched natively."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.jit import JITFunction, KernelInterface

import tzero
from tests.calls.test_fallback import frames_of_tzero
from tzero.adapters import intercept, triton_launch

pytestmark = pytest.mark.usefixtures("native_calls")

GAIN = tl.constexpr(1.0)


def scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by * GAIN, mask=at < n)


Host = Callable[..., float]


@pytest.fixture
def kernel() -> Any:
    return triton.jit(scale)


def summing(kernel: Any, grid: Any = (1,), **options: Any) -> Host:
    """A host function that launches a kernel, and is never replayed, since it reads the result."""

    def host(x, by=2.0):
        out = torch.empty_like(x)
        kernel[grid](x, out, by, x.numel(), BLOCK=16, **options)
        return float(out.sum())

    return host


X = torch.arange(4.0)


def warm(host: Host) -> tzero.Kernel:
    """The host function as a kernel whose calls are fallbacks that native code makes."""
    made = tzero.kernel(host)
    for _ in range(20):  # what prevents a recording is tried sixteen times
        assert made(X) == 12.0
    assert made._count() == 1 and "not replayed" in str(made.explain(X))
    return made


@contextlib.contextmanager
def frames() -> Iterator[list[str]]:
    """The names of the Python functions that run in the block on this thread."""
    seen: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def triton_launches(call: Callable[[], Any]) -> int:
    """How many launches Triton makes itself in a call."""
    with frames() as seen:
        call()
    return seen.count("JITFunction.run")


def test_a_launch_in_a_fallback_is_native(kernel: Any) -> None:
    host = summing(kernel)
    made = warm(host)
    assert triton_launches(lambda: made(X)) == 0
    assert triton_launches(lambda: made(X + 1, 3.0)) == 0 and made(X + 1, 3.0) == 30.0
    assert triton_launches(lambda: host(X)) == 1 and host(X) == 12.0


def test_the_compiled_kernel_is_returned(kernel: Any) -> None:
    found = []

    def host(x):
        out = torch.empty_like(x)
        found.append(kernel[(1,)](x, out, 2.0, x.numel(), BLOCK=16))
        return float(out.sum())

    warm(host)
    (device,) = kernel.device_caches
    assert set(map(id, found)) == {id(each) for each in kernel.device_caches[device][0].values()}


def test_a_grid_may_be_a_function_or_a_list(kernel: Any) -> None:
    grids = [[1], (1, 1), lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)]
    for grid in grids:
        made = warm(summing(kernel, grid))
        assert triton_launches(lambda call=made: call(X)) == 0


def test_heuristics_and_autotuners_launch_natively(kernel: Any) -> None:
    def host(x):
        out = torch.empty_like(x)
        heuristic[(1,)](x, out, 2.0, x.numel())
        return float(out.sum())

    heuristic = triton.heuristics({"BLOCK": lambda args: 16})(kernel)
    made = warm(host)
    assert triton_launches(lambda: made(X)) == 0

    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    heuristic = triton.autotune(configs, key=["n"])(triton.jit(scale))
    made = warm(host)
    assert triton_launches(lambda: made(X)) == 0
    heuristic.cache.clear()
    assert made(X) == 12.0  # tuned again


def test_hooks_are_called_with_what_triton_gives_them(kernel: Any) -> None:
    made, seen = warm(summing(kernel)), []

    def note(*args: Any, **kwargs: Any) -> None:
        seen.append((len(args), sorted(kwargs)))

    kernel.add_pre_run_hook(note)
    assert made(X) == 12.0
    assert [(count, "BLOCK" in names) for count, names in seen] == [(4, True)]
    kernel.pre_run_hooks.clear()
    seen.clear()
    knobs.runtime.launch_enter_hook.add(note)
    try:
        assert made(X) == 12.0
    finally:
        knobs.runtime.launch_enter_hook.remove(note)
    assert len(seen) == 1
    assert triton_launches(lambda: made(X)) == 0


def test_flags_knobs_and_caches_are_those_of_tritons_kernel(kernel: Any) -> None:
    made = warm(summing(kernel))
    (device,) = kernel.device_caches
    compiled = kernel.device_caches[device][0]
    assert len(compiled) == 1
    kernel.debug = True
    assert made(X) == 12.0 and len(compiled) == 2
    kernel.debug = None
    assert triton_launches(lambda: made(X)) == 0
    knobs.runtime.debug, before = True, knobs.runtime.debug
    try:
        assert made(X) == 12.0 and len(compiled) == 2
    finally:
        knobs.runtime.debug = before
    kernel.device_caches.clear()
    assert made(X) == 12.0 and list(kernel.device_caches) == [device]
    assert triton_launches(lambda: made(X)) == 0


def test_a_changed_global_is_an_error(kernel: Any) -> None:
    made = warm(summing(kernel))
    global GAIN
    GAIN, before = tl.constexpr(3.0), GAIN
    try:
        with pytest.raises(RuntimeError, match="GAIN has changed"):
            made(X)
    finally:
        GAIN = before
    assert made(X) == 12.0


@pytest.mark.parametrize(
    "wrong", [{"BLOCK": 16, "n": 4}, {"bad_option": 1}, {"BLOCK": [16]}], ids=str
)
def test_errors_are_tritons_own(kernel: Any, wrong: dict[str, Any]) -> None:
    how: dict[str, Any] = {}

    def host(x):
        out = torch.empty_like(x)
        given = {"BLOCK": 16} | how
        kernel[(1,)](x, out, 2.0, x.numel(), **given)
        return float(out.sum())

    made = warm(host)
    how |= wrong
    with pytest.raises(Exception) as plain:
        host(X)
    with pytest.raises(type(plain.value)) as ours:
        made(X)
    assert str(ours.value) == str(plain.value)
    how.clear()
    assert made(X) == 12.0


class Computed(tuple):
    """A tuple that says itself what its items are."""

    def __getitem__(self, index):
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [tuple, Computed])
def test_arguments_that_only_python_reads_are_left_to_triton(kind: type) -> None:
    @triton.jit
    def pair(both, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(both[0] + at) * both[1])

    def host(x):
        out = torch.empty_like(x)
        pair[(1,)](kind((x, 2.0)), out, BLOCK=4)
        return float(out.sum())

    made = warm(host)
    is_native = kind is tuple and X.is_cpu
    assert triton_launches(lambda: made(X)) == (0 if is_native else 1)


def test_a_kernel_whose_launches_always_differ_is_left_to_triton() -> None:
    @triton.jit
    def constant(out, VALUE: tl.constexpr):
        tl.store(out, VALUE)

    values = iter(range(1000))
    latest = []

    @tzero.kernel
    def host(out):
        latest.append(next(values))
        constant[(1,)](out, VALUE=latest[-1])
        return out.item()

    out = torch.zeros(1)
    for _ in range(50):
        assert host(out) == latest[-1]
    with frames() as seen:
        assert host(out) == latest[-1]
    assert "JITFunction.run" in seen and not any("Beside" in each for each in seen)


def test_threads_and_generators_outside_a_fallback_use_tritons_launch(kernel: Any) -> None:
    plain, counted = summing(kernel), []

    def stepping(x):
        yield plain(x)
        yield plain(x)

    def host(x):
        thread = threading.Thread(target=lambda: counted.append(triton_launches(lambda: plain(x))))
        thread.start()
        thread.join()
        steps = stepping(x)
        next(steps)
        counted.append(steps)
        return plain(x)

    made = warm(host)
    counted.clear()
    assert made(X) == 12.0
    elsewhere, steps = counted
    assert elsewhere == 1
    assert triton_launches(lambda: next(steps)) == 1


def test_a_kernel_is_recorded_and_replayed_in_a_fallback(kernel: Any) -> None:
    @tzero.kernel
    def inner(x):
        out = torch.empty_like(x)
        kernel[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
        return out

    made = warm(lambda x: float(inner(x).sum()))
    assert inner.explain(X).plan is not None
    y = torch.arange(6.0)
    assert made(y) == 30.0 and made(y) == 30.0
    assert inner.explain(y).plan is not None


def test_an_error_ends_the_fallback(kernel: Any) -> None:
    def host(x, fail=None):
        if fail is not None:
            raise KeyError(fail)
        return plain(x)

    plain = summing(kernel)
    made = warm(host)
    for _ in range(3):
        with pytest.raises(KeyError):
            made(X, "oh")
    assert triton_launches(lambda: plain(X)) == 1


def test_a_class_of_the_program_keeps_its_own_launch() -> None:
    class Counting(JITFunction):
        count = 0

        def run(self, *args, grid, warmup, **kwargs):
            self.count += 1
            return super().run(*args, grid=grid, warmup=warmup, **kwargs)

    counting = Counting(scale)
    made = warm(summing(counting))
    assert counting.count >= 4
    assert triton_launches(lambda: made(X)) == 1


class Asking(KernelInterface):
    """A kernel of the program's own, which reads its arguments before it launches another."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def run(self, *args, grid, warmup, **kwargs):
        assert args[0].dtype is torch.float32
        return self.kernel.run(*args, grid=grid, warmup=warmup, **kwargs)


def test_what_prevents_recordings_for_good_costs_no_python_of_tzero(kernel: Any) -> None:
    made = warm(summing(Asking(kernel)))
    assert frames_of_tzero(made, X) == []
    assert triton_launches(lambda: made(X)) == 0


def test_a_launch_that_the_program_replaces_is_used(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen, usual = warm(summing(kernel)), [], JITFunction.run

    def run(self, *args, **kwargs):
        seen.append(self)
        return usual(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(JITFunction, "run", run)
        assert made(X) == 12.0 and seen == [kernel]
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "run", lambda *args, **kwargs: seen.append("own"))
        made(X)
        assert seen == [kernel, "own"]
    assert made(X) == 12.0 and len(seen) == 2


def test_a_copy_has_attributes_of_its_own(kernel: Any) -> None:
    warm(summing(kernel))
    other, seen = copy.copy(kernel), []
    other.pre_run_hooks = [lambda *args, **kwargs: seen.append("copy")]
    assert warm(summing(other))(X) == 12.0 and len(seen) >= 5
    seen.clear()
    assert warm(summing(kernel))(X) == 12.0 and not seen
    assert warm(summing(tzero.jit(kernel)))(X) == 12.0


def test_a_kernel_is_freed(kernel: Any) -> None:
    def make() -> Any:
        mine = triton.jit(scale)
        warm(summing(mine))
        return weakref.ref(mine)

    gone = make()
    gc.collect()
    assert gone() is None


def test_the_launch_looks_like_tritons_own(kernel: Any) -> None:
    warm(summing(kernel))
    assert inspect.unwrap(JITFunction.run) is triton_launch.plain_run
    assert JITFunction.run.__name__ == "run" and "pre_run_hooks" in inspect.getsource(
        JITFunction.run
    )
    assert inspect.signature(JITFunction.run) == inspect.signature(triton_launch.plain_run)
    assert inspect.ismethod(kernel.run) and kernel.run.__self__ is kernel


def test_warmup_is_tritons_own(kernel: Any) -> None:
    def host(x):
        kernel.warmup(x, x, 2.0, x.numel(), BLOCK=32, grid=(1,))
        return plain(x)

    plain = summing(kernel)
    warm(host)
    (device,) = kernel.device_caches
    assert len(kernel.device_caches[device][0]) == 2


def test_recorders_see_launches_of_every_kernel(kernel: Any) -> None:
    made, seen = warm(summing(kernel)), []
    with intercept.intercepted(
        lambda function, grid, args, kwargs, launch: seen.append(function) or launch(grid)
    ):
        assert made(X) == 12.0
    assert seen == [kernel]
    assert triton_launches(lambda: made(X)) == 0
