"""Python code that runs in the middle of a launch: grid functions, and constants that compare."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
import torch
import triton.language as tl

import tzero
from tests import warm
from tests.tiers import Make, jit_maker


def put(out, value):
    tl.store(out, value)


def scaled(out, value, BY: tl.constexpr):
    tl.store(out, value * BY)


def marked(out, MARK: tl.constexpr, BY: tl.constexpr):
    tl.store(out, BY)


def oddly_named(out, _tz_a0):
    tl.store(out, _tz_a0)


def integers(device: Any) -> torch.Tensor:
    return torch.zeros(8, dtype=torch.int64, device=device)


def test_what_a_grid_function_does_to_a_tensors_memory_counts(make: Make, device: Any) -> None:
    kernel = make(put)
    for _ in range(3):
        out, fresh = integers(device), integers(device)

        def grid(meta: Any, fresh: torch.Tensor = fresh) -> tuple[int]:
            meta["out"].data = fresh
            return (1,)

        old = out.data
        kernel[grid](out, 7)
        assert fresh[0].item() == 7
        assert not old.any()


def test_a_grid_function_may_make_room_for_the_output(make: Make, device: Any) -> None:
    kernel = make(put)
    for _ in range(3):
        out = torch.zeros(0, dtype=torch.int64, device=device)

        def grid(meta: Any) -> tuple[int]:
            meta["out"].resize_(8)
            return (1,)

        kernel[grid](out, 7)
        assert out[0].item() == 7


def test_a_binary_is_chosen_before_the_grid_is_asked(make: Make, device: Any) -> None:
    kernel, out = make(scaled), integers(device)
    for _ in range(3):
        kernel[(1,)](out, 5, BY=2)

    def grid(meta: Any) -> tuple[int]:
        meta["BY"] = 10
        return (1,)

    for _ in range(3):
        kernel[grid](out, 5, BY=2)
        assert out[0].item() == 10


def test_a_pre_run_hook_that_a_grid_function_adds_is_for_the_next_launch(
    make: Make, device: Any
) -> None:
    kernel, out = make(put), integers(device)
    called: list[str] = []
    for _ in range(3):
        kernel[(1,)](out, 7)

    def grid(meta: Any) -> Any:
        kernel.add_pre_run_hook(lambda *args, **kwargs: called.append("hook"))
        return torch.Size((1,))

    kernel[grid](out, 9)
    assert out[0].item() == 9
    assert called == []
    kernel[(1,)](out, 7)
    assert called == ["hook"]


def test_a_grid_function_must_not_answer_with_a_function(make: Make, device: Any) -> None:
    kernel, out = make(put), integers(device)
    for _ in range(3):
        kernel[lambda meta: (1,)](out, 7)
    with pytest.raises(TypeError):
        kernel[lambda meta: lambda meta: (1,)](out, 9)


class Mark:
    """A constant that does something when it is compared, once."""

    def __init__(self, then: Any = None) -> None:
        self.then = then

    def __hash__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "Mark"

    def __eq__(self, other: object) -> bool:
        then, self.then = self.then, None
        if then is not None:
            then()
        return True


def test_a_binary_that_is_dropped_while_it_is_compared_is_not_found(device: Any) -> None:
    out = integers(device)
    with tzero.settings.override(max_specializations=2):
        kernel = jit_maker(2)(marked)
    kernel[(1,)](out, Mark(), 1)
    kernel[(1,)](out, Mark(), 2)

    def grid(meta: Any) -> tuple[int]:
        kernel[(1,)](out, Mark(), 2)
        kernel[(1,)](out, Mark(lambda: kernel[(1,)](out, Mark(), 3)), 1)
        return (1,)

    kernel[grid](out, Mark(), 1)
    for by in (2, 1, 3, 2):
        kernel[(1,)](out, Mark(), by)
        assert out[0].item() == by


def test_an_interrupt_in_the_hash_of_a_constant_is_not_lost(make: Make, device: Any) -> None:
    class Interrupting(Mark):
        armed = False

        def __hash__(self) -> int:
            if self.armed:
                Interrupting.armed = False
                raise KeyboardInterrupt
            return 3

    kernel, out, mark = make(marked), integers(device), Interrupting()
    for _ in range(3):
        kernel[(1,)](out, mark, 1)
    Interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        kernel[(1,)](out, mark, 1)
    kernel[(1,)](out, mark, 1)


def test_the_names_of_parameters_do_not_matter(make: Make, device: Any) -> None:
    kernel, out = make(oddly_named), integers(device)
    for value in (2**40 + 1, 2**40 + 3, 2**40 + 5):
        kernel[(1,)](out, value)
        assert out[0].item() == value


def test_threads_make_room_for_one_another(device: Any) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failed: list[BaseException] = []
    try:
        with tzero.settings.override(max_specializations=1):
            kernel = jit_maker(1)(scaled)

            def work(by: int) -> None:
                out = integers(device)
                try:
                    for _ in range(150):
                        kernel[(1,)](out, 5, BY=by)
                        assert out[0].item() == 5 * by
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(by,)) for by in range(2, 8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


DEEP = """
import sys, threading, torch, triton, triton.language as tl, tzero
from tests.launches.test_reentry import put

kernel, out = tzero.jit(put), torch.zeros(8, dtype=torch.int64)
kernel[(1,)](out, 3)

def grid(meta):
    kernel[grid](out, 3)
    return (1,)

def work():
    try:
        kernel[grid](out, 3)
    except RecursionError:
        print("RecursionError")

threading.stack_size(1 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_launches_that_launch_themselves_end_in_a_recursion_error(tier: int, device: Any) -> None:
    if device.type != "cpu":
        pytest.skip("about the stack, which is the same on the CPU")
    variables = {**os.environ, "TZERO_TIER": str(tier)}
    done = warm.run([sys.executable, "-c", DEEP], env=variables, timeout=120)
    assert done.stdout.strip() == "RecursionError", done.stderr
