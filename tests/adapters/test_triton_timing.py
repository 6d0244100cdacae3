"""Launches and binaries are told to whoever times them, and Triton is as before afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

import tzero
from tzero.adapters import triton_timing
from tzero.adapters.triton_launch import ASTSource
from tzero.launches.native import NativeJit
from tzero.launches.python import PythonJit


def double(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


X = torch.ones(100)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return triton.jit(double)


@pytest.fixture(params=["triton", "installed", "tzero.jit"])
def launched(request: pytest.FixtureRequest, kernel: Any) -> Iterator[Any]:
    if request.param == "installed":
        tzero.install()
    yield tzero.jit(double) if request.param == "tzero.jit" else kernel
    tzero.uninstall()


def test_each_launch_is_told_with_its_times(launched: Any) -> None:
    told: list[tuple[Any, int, int]] = []
    out = torch.empty_like(X)
    kinds = (PythonJit, NativeJit)
    with triton_timing.launches_timed(lambda *each: told.append(each), kinds):
        for _ in range(3):
            launched[(2,)](X, out, 100, BLOCK=64)
        thread = threading.Thread(target=lambda: launched[(2,)](X, out, 100, BLOCK=64))
        thread.start()
        thread.join()
    launched[(2,)](X, out, 100, BLOCK=64)
    assert [each[0] for each in told] == [launched] * 4
    assert all(start < end for _, start, end in told)
    assert torch.equal(out, 2 * X)


def test_a_launch_that_raises_is_told_too(kernel: Any) -> None:
    told: list[Any] = []
    with (
        triton_timing.launches_timed(lambda *each: told.append(each)),
        pytest.raises(TypeError),
    ):
        kernel[(1,)](X)
    assert len(told) == 1


def test_host_functions_are_recorded_and_replayed_meanwhile(kernel: Any) -> None:
    @tzero.kernel
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(2,)](x, out, 100, BLOCK=64)
        return out

    with triton_timing.launches_timed(lambda *each: None, (PythonJit, NativeJit)):
        for _ in range(5):
            assert torch.equal(doubled(X), 2 * X)
    assert doubled.stats().native_replays >= 3


def test_binaries_are_told_and_whether_they_were_compiled_here(kernel: Any) -> None:
    told: list[tuple[str, bool]] = []

    def note(kernel: Any, start: int, end: int, is_compiled: bool) -> None:
        assert start < end
        told.append((kernel.__name__, is_compiled))

    out = torch.empty_like(X)
    with triton_timing.binaries_timed(note):
        for each in (kernel, kernel, triton.jit(double)):  # the third finds it in Triton's cache
            each[(2,)](X, out, 100, BLOCK=64)
    triton.jit(double)[(2,)](X, out, 100, BLOCK=64)
    assert told == [("double", True), ("double", False)]


def test_triton_is_as_before_afterwards() -> None:
    def state() -> list[Any]:
        places = [(KernelInterface, "__getitem__"), (PythonJit, "__getitem__")]
        places += [(NativeJit, "__getitem__"), (JITFunction, "_do_compile"), (ASTSource, "make_ir")]
        return [vars(kind).get(name) for kind, name in places]

    before = state()
    with (
        triton_timing.binaries_timed(lambda *each: None),
        triton_timing.launches_timed(lambda *each: None, (PythonJit, NativeJit)),
    ):
        assert state() != before
    assert state() == before


def test_what_an_autotuner_has_timed_is_found_through_heuristics(kernel: Any) -> None:
    configs = [triton.Config({"BLOCK": each}) for each in (32, 64)]
    tuned = triton.autotune(configs, key=["n"])(kernel)
    around = triton.heuristics({"unused": lambda given: 1})(tuned)
    assert isinstance(tuned, Autotuner) and triton_timing.tuner_of(around) is tuned
    assert triton_timing.tuner_of(kernel) is None and triton_timing.tuned(tuned) == 0
    tuned[lambda given: (triton.cdiv(100, given["BLOCK"]),)](X, torch.empty_like(X), 100)
    assert triton_timing.tuned(tuned) == 1
    rows, chosen = triton_timing.candidates(tuned)
    assert {each.config for each in rows} == set(map(str, configs))
    assert min(rows, key=lambda each: each.seconds).config == chosen
