"""Programs around autotuners, heuristics and hooks observe the same with `tzero.install`."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import triton

import tzero
from tests.api.rows_wrappers import DEVICE, ROWS, Program, Row, _put, on_grid, plain, tuned
from tests.launches.looking import restored
from tests.rows import by_row
from tests.tiers import can_launch
from tests.unit.test_locks import forked


def observed(program: Program) -> list[str]:
    """What a program tells of itself."""
    seen: list[str] = []
    with restored():
        program(lambda *values: seen.append(repr(values)))
    return seen


@by_row(ROWS)
def test_a_program_observes_the_same(row: Row) -> None:
    can_launch(2)
    expected = observed(row.run)
    tzero.install()
    try:
        found = observed(row.run)
    finally:
        tzero.uninstall()
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=False)):
        assert mine == theirs, f"{row.name}, observation {number}"
    assert len(found) == len(expected)


@pytest.mark.skipif(DEVICE == "cuda", reason="a forked child cannot use CUDA")
def test_children_forked_while_threads_launch_launch_too() -> None:
    can_launch(2)
    kernels = [plain(), tuned(), triton.heuristics({"BLOCK": lambda given: 32})(plain())]
    blocks: list[dict[str, Any]] = [{"BLOCK": 32}, {}, {}]

    def launched() -> list[float]:
        return [on_grid(each, **given) for each, given in zip(kernels, blocks, strict=True)]

    tzero.install()
    stop, faults = threading.Event(), []
    try:
        expected = launched()

        def work() -> None:
            while not stop.is_set():
                if launched() != expected:
                    faults.append("a thread launched something else")

        threads = [threading.Thread(target=work) for _ in range(2)]
        for each in threads:
            each.start()
        statuses = [forked(lambda: launched() == expected == launched()) for _ in range(5)]
    finally:
        stop.set()
        for each in threads:
            each.join()
        tzero.uninstall()
    assert statuses == [0] * 5
    assert not faults


def test_what_a_launch_returns_is_the_same_binary_after_uninstall() -> None:
    can_launch(2)
    x = torch.ones(64, device=DEVICE)
    kernel, held = plain(), []
    tzero.install()
    try:
        held += [kernel[(2,)], kernel.run]
        made = [held[0](x, x, x, 64, BLOCK=32) for _ in range(3)]
    finally:
        tzero.uninstall()
    launch, run = held
    made += [launch(x, x, x, 64, BLOCK=32), kernel[(2,)](x, x, x, 64, BLOCK=32)]
    made.append(run(x, x, x, 64, BLOCK=32, grid=(2,), warmup=False))
    assert all(each is made[0] for each in made)


def test_launches_of_a_binary_that_is_not_native_have_its_reason() -> None:
    can_launch(2)
    kernel, out = triton.jit(_put, do_not_specialize=["value"]), torch.zeros(1, device=DEVICE)
    tzero.install()
    try:
        kernel[(1,)](out, 2)
        kernel.params[1].do_not_specialize = False
        kernel.device_caches.clear()
        for _ in range(100):
            kernel[(1,)](out, 2)
        report = tzero.installed()
    finally:
        tzero.uninstall()
    (found,) = (each for each in report.kernels if each.kernel == "_put" and each.launches == 101)
    why = "its parameters are not those that Triton binds arguments to"
    assert found.reasons == {"the first launch with a binary": 2, why: 99}
    assert found.native == 0


def test_what_launches_nothing_is_not_counted() -> None:
    can_launch(2)
    kernel = triton.jit(_put)
    tzero.install()
    try:
        for value in range(40):  # one launch in 32 is timed
            kernel.warmup(torch.float32, value, grid=(1,))
        assert not [each for each in _counted(kernel) if each.launches]
        kernel[(1,)](torch.zeros(1, device=DEVICE), 7)
        (found,) = _counted(kernel)
    finally:
        tzero.uninstall()
    assert (found.launches, found.native, found.microseconds) == (1, 0, None)


def _counted(kernel: Any) -> list[Any]:
    from tzero.launches import counted

    return [each for each in counted.launched() if each.kernel is kernel]
