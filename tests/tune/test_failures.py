"""Failures of the machine are told from those of a config, and only the latter are remembered."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

import tzero
from tests.tune.kernels import LARGE, SMALL, X, double, kernel
from tzero import Config, settings
from tzero import compile as compiling
from tzero.compile import worker
from tzero.compile.backend import find
from tzero.errors import (
    CompileFailed,
    CompilerFailed,
    CompilerMissing,
    CompileTimeout,
    TuningFailed,
    WorkerDied,
)
from tzero.tune.failures import passes
from tzero.tune.kernel_search import KernelSearch
from tzero.tune.trial import Trial

pytestmark = pytest.mark.usefixtures("own_memory")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def compile_failed(problem: str) -> CompileFailed:
    return CompileFailed(kernel="add", problem=problem, trace="")


def compiler_said(output: str) -> CompilerFailed:
    return CompilerFailed(kernel="add", command=["cc"], output=output)


PASSING: dict[str, BaseException] = {
    "a killed worker": WorkerDied(kernel="add", how="killed by SIGKILL"),
    "a compile that took too long": CompileTimeout(kernel="add", seconds=600),
    "a stopped compile": CancelledError("add: its compile was stopped"),
    "a full disk": OSError(errno.ENOSPC, "No space left on device"),
    "a full disk, in a worker": caused(compile_failed("OSError"), OSError(errno.ENOSPC, "full")),
    "a full disk, without a cause": compile_failed("OSError: [Errno 28] No space left on device"),
    "a full disk, said by a compiler": compiler_said("/tmp/a.s: No space left on device"),
    "a limit on the size of files": compiler_said("as: a.o: can't write 3 bytes: File too large"),
    "a killed compiler": compiler_said("cc: fatal error: Killed signal terminated program cc1"),
    "no file descriptors": OSError(errno.EMFILE, "Too many open files"),
    "no memory": MemoryError(),
    "no memory on the device": torch.OutOfMemoryError("CUDA out of memory"),
    "no memory, said by a driver": RuntimeError("CUDA error: out of memory"),
    "no compiler": CompilerMissing(searched=["cc"]),
}

LASTING: dict[str, BaseException] = {
    "an error in the source": compile_failed("NameError: BLOCK is not defined"),
    "an error in the generated code": compiler_said("add.c:3: error: unknown type"),
    "an exception of its run": ValueError("BLOCK is 100"),
    "too much shared memory": OutOfResources(1 << 20, 1 << 16, "shared memory"),
    "an illegal access": RuntimeError("CUDA error: an illegal memory access was encountered"),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_failure_of_the_machine_passes(name: str) -> None:
    assert passes(PASSING[name])


@pytest.mark.parametrize("name", LASTING)
def test_a_failure_of_the_config_lasts(name: str) -> None:
    assert not passes(LASTING[name])


def failing_once(error: BaseException) -> tuple[Callable[..., Any], list[Config]]:
    """A host function whose config LARGE fails the first time, and the configs of its calls."""
    called: list[Config] = []

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        called.append(config)
        if config == LARGE and called.count(LARGE) == 1:
            raise error
        return double(x, config)

    return host, called


@pytest.mark.parametrize("name", [*PASSING, *LASTING])
def test_only_failures_of_the_config_are_remembered(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelSearch, "_prepare", lambda *given: {c: [] for c in given[-1]})
    host, called = failing_once((PASSING | LASTING)[name])
    tzero.kernel(configs=[SMALL, LARGE])(host)(X)
    assert called.count(LARGE) == 1
    again = tzero.kernel(configs=[SMALL, LARGE])(host)
    torch.testing.assert_close(again(X), X * 2)
    assert (called.count(LARGE) > 1) == (name in PASSING)


def failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


@pytest.mark.parametrize("name", PASSING)
def test_a_compile_that_the_machine_failed_is_tried_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = KernelSearch._prepare

    def prepare(*given: Any) -> dict[Config, Sequence[Any]]:
        lost = {LARGE: [failed(PASSING[name])]}
        return {config: lost.get(config, []) for config in given[-1]}

    with monkeypatch.context() as patch:
        patch.setattr(KernelSearch, "_prepare", prepare)
        first = kernel()
        first(X)
    (found,) = first.tuning.searches.values()
    assert not found.outcomes[LARGE].usable
    assert KernelSearch._prepare is plain
    again = kernel()
    again(X)
    (found,) = again.tuning.searches.values()
    assert [step.config for step in found.steps] == [LARGE]
    assert found.outcomes[LARGE].usable


def test_a_first_config_that_the_machine_failed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KernelSearch, "_prepare", lambda *given: {c: [] for c in given[-1]})
    host, called = failing_once(MemoryError())
    first = tzero.kernel(configs=[LARGE, SMALL])(host)
    first(X)
    assert first.bind(X).config == SMALL
    called.clear()
    called.append(LARGE)
    tzero.kernel(configs=[LARGE, SMALL])(host)(X)
    assert called.count(LARGE) > 1


def test_after_a_config_broke_the_device_the_failures_of_others_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    third = Config(BLOCK=128, BY=2)
    broken: list[bool] = []

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        if config == third:
            broken.append(True)
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return double(x, config)

    monkeypatch.setattr(Trial, "device_lost", lambda trial: bool(broken))
    trial = Trial(lambda config: lambda x: host(x, config), (X,), X.device, SMALL)
    assert trial.outcome(SMALL, budget=0.01, best=None).usable
    assert not trial.outcome(third, budget=0.01, best=None).passing
    assert trial.outcome(LARGE, budget=0.01, best=None).passing


def test_where_every_config_fails_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    down = [True]

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        if down:
            raise OSError(errno.ENOSPC, "No space left on device")
        return double(x, config)

    monkeypatch.setattr(KernelSearch, "_prepare", lambda *given: {c: [] for c in given[-1]})
    made = tzero.kernel(configs=[SMALL, LARGE])(host)
    with pytest.raises(TuningFailed, match="No space left"):
        made(X)
    down.clear()
    torch.testing.assert_close(made(X), X * 2)


def test_a_config_that_crashes_each_worker_is_given_up_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not compiled in the program's own process, which would crash, too. A later process may
    have another compiler or more memory."""
    triton_backend: Any = find("triton")
    plain, crashes = triton_backend.compile, tmp_path / "crashes"

    def crash(request: Any) -> Any:
        if "256" not in request.program:  # the BLOCK of LARGE
            return plain(request)
        with crashes.open("a") as file:
            file.write("worker\n" if worker.inside() else "here\n")
        os.abort()

    monkeypatch.setattr(triton_backend, "compile", crash)
    monkeypatch.setattr(sys.modules["tzero.compile.service"], "_service", None)
    options = {"cache_dir": str(tmp_path / "cache"), "start_method": "fork", "compile_workers": 2}
    with settings.override(**options):
        for searches in (1, 2):
            made = kernel()
            torch.testing.assert_close(made(X), X * 2)
            assert made.bind(X).config == SMALL
            (found,) = made.tuning.searches.values()
            assert found.outcomes[LARGE].problem.startswith("WorkerDied: ")
            assert found.outcomes[LARGE].passing
            assert crashes.read_text().split() == ["worker"] * 2 * searches
        compiling.service().shutdown()
