"""The steady state is tzero's own launch and not Triton's: what the rows lean on.

A row that passes because every launch was handed over to Triton would prove nothing of tzero.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton.language as tl
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

import tzero
from tests.launches import kernels
from tests.launches.looking import kind_of, warm, watched
from tests.launches.rows_arguments import Mine, Pointer, integers
from tests.launches.rows_calls import Pair
from tests.launches.rows_world import alike
from tests.tiers import can_launch, jit_maker
from tzero.arguments.launch_facts import Reader
from tzero.launches.python import Launching

Call = Callable[[], Any]


class Colour(enum.Enum):
    """Members of it are constants of kernels."""

    RED = 1
    BLUE = 2


def filled(make: Any, device: Any, *variants: Any) -> tuple[Any, Call]:
    """A kernel, and calls of it with each of these after the other."""
    kernel = make(kernels.fill)
    out = integers(device, 33)

    def call() -> None:
        for view, value, options in variants:
            out.zero_()
            target = view(out)
            kernel[(1,)](target, value, 16, BLOCK=16, **options)
            assert target.tolist()[:16] == [value] * 16

    return kernel, call


def same(x: Any) -> Any:
    return x


def unaligned(x: Any) -> Any:
    return x[1:]


def pointed(make: Any, device: Any) -> tuple[Any, Call]:
    kernel, out = make(kernels.put), integers(device)
    pointer, mine = Pointer(out), out.as_subclass(Mine)
    return kernel, lambda: (kernel[(1,)](pointer, 7), kernel[(1,)](mine, 7))


COMMON: dict[str, Callable[[Any, Any], tuple[Any, Call]]] = {
    "one specialization": lambda make, device: filled(make, device, (same, 7, {})),
    "aligned and unaligned in turn": lambda make, device: filled(
        make, device, (same, 7, {}), (unaligned, 7, {})
    ),
    "integers in turn": lambda make, device: filled(
        make, device, (same, 7, {}), (same, 1, {}), (same, 16, {}), (same, 2**40, {})
    ),
    "options in turn": lambda make, device: filled(
        make, device, (same, 7, {"num_warps": 2}), (same, 7, {}), (same, 7, {"num_stages": 2})
    ),
    "dtypes in turn": lambda make, device: filled(
        make, device, (same, 7, {}), (lambda x: x.view(torch.int32), 7, {})
    ),
    "numbers of all kinds in turn": lambda make, device: filled(
        make, device, (same, 7, {}), (same, 2.0, {}), (same, True, {})
    ),
    "parameters of a module": lambda make, device: filled(
        make, device, (lambda x: torch.nn.Parameter(x, requires_grad=False), 7, {})
    ),
    "objects with pointers": pointed,
}
"""What native launches take on themselves."""


def described(kernel: Callable[[Any], Any], *values: Any) -> Callable[[Any, Any], tuple[Any, Call]]:
    """Calls of a kernel with an argument that Triton describes."""

    def case(make: Any, device: Any) -> tuple[Any, Call]:
        made, out = make(kernel), torch.zeros(8, device=device)

        def call() -> None:
            for value in values:
                made[(1,)](out, value)

        return made, call

    return case


def descriptors(make: Any, device: Any) -> tuple[Any, Call]:
    kernel, out = make(kernels.descriptor), torch.zeros(4, 8, device=device)
    source = torch.ones(8, 8, device=device)
    both = [
        TensorDescriptor.from_tensor(source, [4, 8]),
        TensorDescriptor(source, [2, 8], [8, 1], [4, 8]),
    ]

    def call() -> None:
        for each in both:
            kernel[(1,)](each, out, ROWS=4, COLUMNS=8)

    return kernel, call


HOLDING: dict[str, Callable[[Any, Any], tuple[Any, Call]]] = {
    "tuples": described(kernels.numbers, (7, 8), (1, 2.5), Pair(3, 4), (tl.constexpr(3), 5)),
    "sizes of a tensor": described(kernels.numbers, torch.ones(3, 4).shape, torch.ones(5, 1).shape),
    "tuples in tuples": described(kernels.count_first, ((7, 8), ((1,), ()))),
    "kernels in tuples": described(kernels.call_item, (kernels.plus_one, 3)),
    "wrapped constants": described(kernels.put, tl.constexpr(7), tl.constexpr(9)),
    "descriptors": descriptors,
}
"""What holds other values; on the CPU native launches take these too."""

CONSTANTS: dict[str, Callable[[Any, Any], tuple[Any, Call]]] = {
    "texts as constants": described(kernels.choose, "left", "right"),
    "dtypes as constants": described(kernels.cast, tl.float32, tl.int32),
    "tuples as constants": described(kernels.pair, (1, 2), (3, 4.5)),
    "members of enums as constants": described(kernels.choose, Colour.RED, Colour.BLUE),
    "wrapped texts as constants": described(kernels.choose, tl.constexpr("left")),
    "kernels as constants": described(kernels.call, kernels.plus_one, kernels.times_five),
}
"""Constants of all kinds, which native launches take."""


def cases() -> Any:
    every = {**COMMON, **HOLDING, **CONSTANTS}
    return pytest.mark.parametrize("case", every.values(), ids=every.keys())


@cases()
def test_a_steady_launch_is_seen_as_a_launch_and_as_nothing_else(
    case: Any, fast_tier: int, device: Any
) -> None:
    kernel, call = case(jit_maker(fast_tier), device)
    watched(kernel, call)  # by the Python twin, which tells more classes apart than native code
    for _ in range(3):
        _, kinds = watched(kernel, call)
        assert kinds and set(kinds) == {"launch"}


@cases()
def test_a_steady_launch_does_not_enter_tritons(
    case: Any, fast_tier: int, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, call = case(jit_maker(fast_tier), device)
    call()
    monkeypatch.setattr(JITFunction, "run", refuse)
    for _ in range(3):
        call()


NATIVE = {**COMMON, **CONSTANTS, **({} if torch.cuda.is_available() else HOLDING)}


@pytest.mark.parametrize("case", NATIVE.values(), ids=NATIVE.keys())
def test_a_steady_native_launch_does_not_enter_the_python_twins(
    case: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    can_launch(2)
    _, call = case(jit_maker(2), device)
    call()
    call()
    monkeypatch.setattr(Launching, "__call__", refuse)
    for _ in range(3):
        call()


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the slow path was taken")


def test_the_test_can_fail_because_a_new_specialization_enters_tritons(
    fast_tier: int, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.put), integers(device)
    warm(kernel, lambda: kernel[(1,)](out, 7))
    monkeypatch.setattr(JITFunction, "run", refuse)
    with pytest.raises(AssertionError, match="the slow path was taken"):
        kernel[(1,)](out, 16)


def test_a_launch_names_its_grid(fast_tier: int, device: Any) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.count_programs), integers(device)
    warm(kernel, lambda: kernel[(2,)](out))
    seen: list[tzero.events.Event] = []
    with tzero.events.observe(seen.append):
        kernel[lambda meta: (3, 2)](out)
    assert [(event.kind, event.kernel, event.facts["grid"]) for event in seen] == [
        ("launch", "count_programs", (3, 2, 1))
    ]


def test_a_first_launch_is_a_miss_and_says_why(fast_tier: int, device: Any) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.put), integers(device)
    seen: list[tzero.events.Event] = []
    with tzero.events.observe(seen.append):
        kernel[(1,)](out, 7)
        kernel[(1,)](out, 9)
        kernel[(1,)](out, 16)
    launches = [event.kind for event in seen if event.kind not in ("compile", "cache")]
    assert launches == ["miss", "launch", "miss"]
    assert all(event.reason for event in seen if event.kind == "miss")


def test_a_launch_that_triton_takes_over_says_why_and_once(fast_tier: int, device: Any) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.put), integers(device)
    warm(kernel, lambda: kernel[(1,)](out, 7))
    kernel.add_pre_run_hook(lambda *args, **kwargs: None)
    seen: list[tzero.events.Event] = []
    with tzero.events.observe(seen.append):
        for _ in range(3):
            kernel[(1,)](out, 7)
    assert [event.kind for event in seen] == ["fallback"]
    assert "pre-run hook" in seen[0].reason


def test_what_was_refused_is_remembered_in_bounded_memory(fast_tier: int, device: Any) -> None:
    class Broken:
        dtype = torch.int64

        def data_ptr(self) -> int:
            raise LookupError(f"nothing at {id(self)} {len(said)}")

    kernel, out = jit_maker(fast_tier)(kernels.put), integers(device)
    warm(kernel, lambda: kernel[(1,)](out, 7))
    said: list[int] = []
    for _ in range(2000):
        said.append(0)
        with pytest.raises(LookupError):
            kernel[(1,)](Broken(), 7)
    assert 1 <= len(kernel.fallbacks) < 1000


@pytest.mark.parametrize("options", [{}, {"num_warps": 2}], ids=["plain", "options"])
def test_launches_are_fast_whatever_parameters_are_called(
    options: Any, fast_tier: int, device: Any
) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.odd_names), integers(device)
    for _ in range(2):
        kernel[(1,)](out, 7, 2, 5, **options)
    _, kinds = watched(kernel, lambda: kernel[(1,)](out, 7, 2, 5, **options))
    assert kinds == ["launch"]


def test_threads_that_meet_new_types_together_do_not_confuse_them(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads have their function written before either can keep it."""
    kernel = jit_maker(1)(kernels.put)
    out = torch.zeros(8, device=device)
    kernel[(1,)](out, 7)
    both = threading.Barrier(2)
    original = Reader._write

    def write(self: Reader, types: Any) -> Any:
        written = original(self, types)
        if types is not None:
            both.wait(timeout=60)
        return written

    def work(value: Any) -> list[Any]:
        mine = torch.zeros(8, device=device)
        first = kernel[(1,)](mine, value)
        return [kernel[(1,)](mine, value) is first, mine[0].item()]

    monkeypatch.setattr(Reader, "_write", write)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(work, (2.5, True)))
    assert answers == [[True, 2.5], [True, 1.0]]
    monkeypatch.setattr(Reader, "_write", original)
    for value, kind in ((2.5, "fp32"), (True, "u1"), (2.5, "fp32"), (7, "i32")):
        assert kind_of(kernel[(1,)](out, value), "value") == kind
        assert out[0].item() == value


def test_launches_with_hooks_are_still_fast(
    fast_tier: int, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.put), integers(device)
    warm(kernel, lambda: kernel[(1,)](out, 7))
    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    monkeypatch.setattr(JITFunction, "run", refuse)
    kernel[(1,)](out, 9)
    assert len(seen) == 1 and out[0].item() == 9


def test_knobs_and_drivers_that_come_back_find_their_binaries(
    fast_tier: int, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.checked), integers(device)
    first, other = driver.active, alike()

    def call() -> None:
        for knobs.runtime.debug in (True, False):
            for each in (other, first):
                driver.set_active(each)
                kernel[(1,)](out, 7)

    call()
    call()
    monkeypatch.setattr(JITFunction, "run", refuse)
    call()


def test_a_kernel_keeps_no_more_specializations_than_it_may_and_stays_right(
    fast_tier: int, device: Any
) -> None:
    kernel, out = jit_maker(fast_tier)(kernels.give), integers(device)
    with tzero.settings.override(max_specializations=3):
        for _ in range(2):
            for value in range(8):
                kernel[(1,)](out, value)
                assert out[0].item() == value
        assert len(kernel.specs) <= 3
        _, kinds = watched(kernel, lambda: kernel[(1,)](out, 7))
    assert kinds == ["launch"]
