"""Each guard is needed: with it taken out, every row that claims it fails.

The Python twin is changed where it stands. Of the native one a second module is built, in which
each guard can be switched off by its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from tests.launches.conftest import available, maker
from tests.launches.looking import VERSION, NotWarm, restored
from tests.launches.mutations import MUTATIONS, guard_out
from tests.launches.row import GUARDS, TWIN_GUARDS, Row
from tests.launches.rows import ROWS

CLAIMS = [(guard, row) for guard in (*GUARDS, *TWIN_GUARDS) for row in ROWS if guard in row.guards]
"""Every guard with every row that fails without it."""


def claims(guards: tuple[str, ...]) -> Any:
    """Parametrized by guard and row."""
    chosen = [(guard, row) for guard, row in CLAIMS if guard in guards]
    return pytest.mark.parametrize(
        ("guard", "row"), chosen, ids=[f"{guard}-{row.name}" for guard, row in chosen]
    )


def test_every_guard_has_a_row_and_a_mutation() -> None:
    assert {guard for guard, _ in CLAIMS} == set(MUTATIONS) == {*GUARDS, *TWIN_GUARDS}


@claims((*GUARDS, *TWIN_GUARDS))
def test_a_row_fails_when_its_guard_is_out_of_the_python_twin(
    guard: str, row: Row, device: Any
) -> None:
    skip_what_triton_does_not_ask(guard)
    assert failure(lambda: row.run(maker(1), device)) is None, "it fails with every guard in place"
    with guard_out(guard):
        failed = failure(lambda: row.run(maker(1), device))
    assert failed is not None, f"without the guard {guard!r} {row.name!r} passes"
    assert not isinstance(failed, NotWarm), f"the mutation of {guard!r} is not about it: {failed}"


@claims(GUARDS)
def test_a_row_fails_when_its_guard_is_out_of_the_native_twin(
    guard: str, row: Row, device: Any
) -> None:
    skip_what_triton_does_not_ask(guard)
    if guard in ("device", "stream") and device.type == "cpu":
        pytest.skip(f"native launches on the CPU have no {guard}: the check is CUDA's")
    if guard == "device" and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices: native code leaves a driver of another kind to Python")
    available(2)
    module = mutable()
    make = mutable_maker(module)

    def run() -> None:
        row.run(make, device)

    assert in_a_child(run) == 0, "it fails with every guard in place"
    module.guards_off(frozenset({guard}))
    try:
        assert in_a_child(run) != 0, f"without the guard {guard!r} {row.name!r} passes"
    finally:
        module.guards_off(frozenset())


def skip_what_triton_does_not_ask(guard: str) -> None:
    if guard == "stages_hook" and VERSION < (3, 7):
        pytest.skip("a launch of this Triton does not ask the hook on the compiler's stages")


def failure(run: Callable[[], None]) -> BaseException | None:
    """What a row fails with; None if it passes. The world is put back either way."""
    with restored():
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            return error
    return None


def mutable() -> Any:
    """The native module whose guards can be switched off."""
    if importlib.util.find_spec("tests.launches.mutable_native") is None:
        pytest.skip("tests/launches/mutable_native.py, which builds the module, is not written yet")
    module = importlib.import_module("tests.launches.mutable_native").mutable()
    if module is None:
        pytest.skip("the native module cannot be built a second time here")
    return module


def mutable_maker(module: Any) -> Callable[..., Any]:
    """What makes kernels over that module; as `conftest.maker` does over the one that is built."""
    from tzero.launches import native as native_launch

    kind = native_launch.make(module)

    def make(function: Any, **options: Any) -> Any:
        if isinstance(function, kind):
            return function
        plain = function if isinstance(function, JITFunction) else triton.jit(function, **options)
        return kind.of(plain)

    return make


SECONDS = 60
"""A child that takes longer hangs, and is ended by its alarm."""


def in_a_child(run: Callable[[], None]) -> int:
    """The exit status of a row in a child process: native code without a guard may crash.

    CUDA does not survive a fork, so there the row runs in this process.
    """
    if torch.cuda.is_initialized():
        return 0 if failure(run) is None else 1
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os._exit(0 if failure(run) is None else 1)
    _, status = os.waitpid(child, 0)
    return status
