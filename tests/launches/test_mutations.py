"""Each guard is needed: with it taken out, every row that claims it fails.

Guards of the Python launches are patched out. The native module is built a second time, with a
switch for each guard.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from tests.launches.looking import VERSION, NotWarm, restored
from tests.launches.mutable_native import mutable
from tests.launches.mutations import MUTATIONS, guard_out
from tests.launches.row import GUARDS, TWIN_GUARDS, Row
from tests.launches.rows import ROWS
from tests.tiers import can_launch, jit_maker

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
    assert failure(lambda: row.run(jit_maker(1), device)) is None, (
        "it fails with every guard in place"
    )
    with guard_out(guard):
        failed = failure(lambda: row.run(jit_maker(1), device))
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
    can_launch(2)
    module = mutable()
    if module is None:
        pytest.skip("the native module cannot be built a second time here")
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
    """The exception of a row; None if it passes. Knobs, hooks and driver are restored."""
    with restored():
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            return error
    return None


@functools.cache
def kind_of(module: Any) -> Any:
    """The class of kernels that a build of the native module launches."""
    from tzero.launches import native

    return native.make(module)


def mutable_maker(module: Any) -> Callable[..., Any]:
    """Makes kernels that this module launches; `tiers.maker` does so for the installed one."""
    kind = kind_of(module)

    def make(function: Any, **options: Any) -> Any:
        if isinstance(function, kind):
            return function
        plain = function if isinstance(function, JITFunction) else triton.jit(function, **options)
        return kind.of(plain)

    return make


SECONDS = 600
"""A child that hangs is ended by its alarm."""


def in_a_child(run: Callable[[], None]) -> int:
    """The exit status of a row in a child process: native code without a guard may crash.

    CUDA does not work after a fork, so with CUDA the row runs in this process.
    """
    if torch.cuda.is_initialized():
        return 0 if failure(run) is None else 1
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os._exit(0 if failure(run) is None else 1)
    _, status = os.waitpid(child, 0)
    return status
