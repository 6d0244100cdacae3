"""torch's profilers see each call and each launch while they look, and nothing is different
afterwards."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function, schedule

import tzero
import tzero._native as native
from tests.integrations.torch.hosts import add_kernel, launched, made, scale_kernel, scaled
from tzero.adapters import torch_profilers
from tzero.adapters.torch_layout import in_a_new_thread
from tzero.calls.native import NativeKernel

pytestmark = pytest.mark.skipif(
    bool(NativeKernel.unavailable), reason=f"native calls: {NativeKernel.unavailable}"
)

X = torch.ones(4)
LAUNCH = "tzero: scale_kernel[grid]"


@tzero.kernel
def twice(x):
    return scaled(scaled(x, 2.0), 3.0)


@tzero.kernel
def added(x):
    """A host function that reads a tensor, so that it is never replayed."""
    return float(scaled(x, 2.0).sum())


@pytest.fixture(autouse=True)
def warm() -> None:
    for _ in range(3):
        twice(X)
        added(X)


def ranges(found: profile) -> list[tuple[str, str | None]]:
    """The ranges of tzero, each with the one around it."""
    return [
        (each.name, each.cpu_parent.name if each.cpu_parent else None)
        for each in found.events()
        if each.name.startswith("tzero: ")
    ]


def natively(kernel: Any) -> int:
    found: int = kernel._made()[0]
    return found


def test_a_replay_is_a_range_with_its_launches_inside():
    before = natively(twice)
    with profile() as found, record_function("step"):
        result = twice(X)
    assert ranges(found) == [
        ("tzero: twice", "step"),
        (LAUNCH, "tzero: twice"),
        (LAUNCH, "tzero: twice"),
    ]
    assert torch.equal(result, X * 6) and natively(twice) == before + 1


def test_a_launch_is_a_range_also_with_a_grid_function():
    kernel = tzero.jit(add_kernel)
    out = torch.empty(4)
    grids: list[Any] = [(1,), lambda meta: (1,)]
    for grid in grids:
        kernel[grid](X, X, out, 4, BLOCK=64)
    with profile() as found:
        for grid in grids:
            kernel[grid](X, X, out.zero_(), 4, BLOCK=64)
            assert torch.equal(out, X + X)
    assert ranges(found) == [("tzero: add_kernel[grid]", None)] * 2


def test_launches_of_installed_kernels_are_ranges_and_others_are_not():
    def launch() -> None:
        add_kernel[(1,)](X, X, torch.empty(4), 4, BLOCK=64)

    tzero.install()
    try:
        launch()
        with profile() as found:
            launch()
    finally:
        tzero.uninstall()
    assert ranges(found) == [("tzero: add_kernel[grid]", None)]
    with profile() as found:
        launch()
    assert ranges(found) == []


def test_launches_of_a_compiled_kernel_by_itself_are_ranges():
    tzero.install()
    try:
        out = torch.empty(4)
        compiled = add_kernel[(1,)](X, X, out, 4, BLOCK=64)
        compiled[(1, 1, 1)](X, X, out, 4, 64)
        with profile() as found:
            compiled[(1, 1, 1)](X, X, out.zero_(), 4, 64)
    finally:
        tzero.uninstall()
    assert torch.equal(out, X + X)
    assert ranges(found) == [("tzero: add_kernel[grid]", None)]


def test_a_host_function_that_runs_as_written_is_a_range_with_what_it_does_inside():
    with profile() as found:
        assert added(X) == 8.0
    names = [each.name for each in found.events() if each.cpu_parent is not None]
    assert ranges(found) == [("tzero: added", None), (LAUNCH, "tzero: added")]
    assert "aten::sum" in names


def test_the_first_call_with_new_arguments_is_a_range_too():
    with profile() as found:
        twice(torch.ones(7, dtype=torch.float64))
    assert ("tzero: twice", None) in ranges(found)


def test_a_call_that_raises_closes_its_range_and_keeps_its_error():
    @tzero.kernel
    def fails(x):
        raise ValueError("no")

    with profile() as found:
        for _ in range(4):
            with pytest.raises(ValueError, match="no"):
                fails(X)
        with pytest.raises(TypeError):
            twice(X, X, X)
        twice(X)
    outer = [name for name, around in ranges(found) if around is None]
    assert outer == ["tzero: fails"] * 4 + ["tzero: twice"] * 2


def in_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_profiler_sees_the_threads_that_it_looks_at():
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile() as here:
        in_a_thread(lambda: twice(X))
        assert native.profilers_look() == (True, False)
    with profile(experimental_config=everywhere) as found:
        twice(X)
        in_a_thread(lambda: twice(X))
        assert native.profilers_look()[1]
    assert ranges(here) == []
    assert len(ranges(found)) == 6
    threads = {each.thread for each in found.events() if each.name == "tzero: twice"}
    assert len(threads) == 2


def test_after_the_profiler_calls_are_native_and_make_no_ranges():
    launch = made(2).launch
    before = natively(twice)
    looks = []
    steps = schedule(wait=1, warmup=1, active=1, repeat=1)
    with profile(schedule=steps) as found:
        for _ in range(4):
            looks.append(native.profilers_look())
            twice(X)
            launched(launch, X, 2.0)
            found.step()
    assert looks == [(False, False), (False, False), (True, False), (False, False)]
    assert [name for name, _ in ranges(found)] == ["tzero: twice", LAUNCH, LAUNCH, LAUNCH]
    assert natively(twice) == before + 4
    assert native.profilers_look() == (False, False)


@pytest.mark.skipif(not torch.profiler.itt.is_available(), reason="this torch has no ITT")
def test_ranges_for_other_tools_are_made_as_long_as_they_are_emitted():
    """`emit_nvtx` works in the same way, and needs CUDA."""
    opened: list[str] = []

    def opening(name: str) -> Any:
        opened.append(name)
        return torch._C._profiler._RecordFunctionFast(name)

    native.configure_profilers(opening)
    try:
        with torch.autograd.profiler.emit_itt():
            twice(X)
        twice(X)
    finally:
        native.configure_profilers(torch._C._profiler._RecordFunctionFast)
    assert opened == ["tzero: twice", LAUNCH, LAUNCH]


def test_the_guards_of_a_launch_are_checked_after_its_range_was_opened():
    """Opening a range may run any code. Here it attaches a hook before the second launch."""
    seen: list[Any] = []
    opened: list[str] = []

    def opening(name: str) -> Any:
        opened.append(name)
        if opened == ["tzero: twice", LAUNCH, LAUNCH]:
            scale_kernel.pre_run_hooks.append(lambda *args, **kwargs: seen.append(args))
        return torch._C._profiler._RecordFunctionFast(name)

    native.configure_profilers(opening)
    try:
        with profile() as found:
            result = twice(X)
    finally:
        scale_kernel.pre_run_hooks.clear()
        native.configure_profilers(torch._C._profiler._RecordFunctionFast)
    assert len(seen) == 1 and torch.equal(result, X * 6)
    assert [name for name, _ in ranges(found)][:3] == opened


def test_a_torch_without_profilers_gives_a_reason():
    class Without:
        def open_profilers(self) -> str:
            return "at::get_record_function_tls_"

    class Blind:
        def open_profilers(self) -> str:
            return ""

        def profilers_look(self) -> tuple[bool, bool]:
            return False, False

    def reason(module: Any) -> str:
        return in_a_new_thread(lambda: torch_profilers.configure(module))

    assert reason(Without()) == "this torch does not have at::get_record_function_tls_"
    assert reason(Blind()) == "native code reads wrongly whether a profiler looks at a thread"
    assert reason(native) == ""
