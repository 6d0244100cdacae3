"""`tzero.install`: compiled kernels by themselves, tuples, descriptors and constants of all kinds,
and what is left to Triton, with the reason."""

from __future__ import annotations

import enum
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

import tzero
from tests.launches import kernels
from tzero.adapters import triton_entries
from tzero.events import observe
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="about native launches")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_cpu = pytest.mark.skipif(
    DEVICE == "cuda" or not triton_entries.compiled_is_known(),
    reason="native on the CPU only, and with a Triton that is known",
)


@pytest.fixture
def installed() -> Iterator[None]:
    tzero.install()
    yield
    tzero.uninstall()


def counted(kernel: Any) -> Any:
    from tzero.launches.counted import launched

    found = [each for each in launched() if each.kernel is kernel]
    return found[0] if found else None


class LibEntry:
    """A cache in front of a kernel, as libraries have it: it keeps compiled kernels by a key of its
    own, and launches these."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Any, Any] = {}

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args: self.run(grid, args)

    def run(self, grid: Any, args: tuple[Any, ...]) -> Any:
        key = tuple(
            (each.dtype, each.data_ptr() % 16 == 0) if isinstance(each, torch.Tensor) else each
            for each in args
        )
        if key not in self.compiled:
            self.compiled[key] = self.kernel[grid](*args)
        else:
            self.compiled[key][(*grid, 1, 1)[:3]](*args)
        return self.compiled[key]


def entry() -> tuple[LibEntry, Callable[[int], list[float]]]:
    """A cached kernel, and launches of it."""
    made = LibEntry(triton.jit(kernels.copy))

    def launch(count: int) -> list[float]:
        x, y = torch.arange(40.0, device=DEVICE), torch.zeros(40, device=DEVICE)
        made[(2,)](x, y, count, 32)
        return y.tolist()

    return made, launch


def expected(count: int) -> list[float]:
    return [*map(float, range(count)), *[0.0] * (40 - count)]


# -- compiled kernels ------------------------------------------------------------------------------


@on_cpu
def test_a_compiled_kernel_is_launched_natively_and_counted(installed: None) -> None:
    made, launch = entry()
    for count in (33, 7):  # these compile
        assert launch(count) == expected(count)
    before = counted(made.kernel)
    for count in (33, 7, 33):
        assert launch(count) == expected(count)
    found = counted(made.kernel)
    assert found.launches - before.launches == found.native - before.native == 3
    assert found.left == {}


@on_cpu
def test_a_compiled_kernel_of_tzeros_is_launched_natively_too(installed: None) -> None:
    kernel = tzero.jit(kernels.put)
    out = torch.zeros(1, dtype=torch.int64)
    compiled = kernel[(1,)](out, 7)
    for value in (9, 11):
        compiled[(1, 1, 1)](out, value)
        assert out.item() == value
    assert counted(kernel).native == 2


def test_a_runner_that_is_kept_is_tritons_after_uninstall() -> None:
    made, launch = entry()
    tzero.install()
    try:
        launch(33)
        launch(33)
        (compiled,) = made.compiled.values()
        kept = compiled[(2, 1, 1)]
    finally:
        tzero.uninstall()
    before = counted(made.kernel).launches
    x, y = torch.arange(40.0, device=DEVICE), torch.zeros(40, device=DEVICE)
    kept(x, y, 33, 32)
    assert y.tolist() == expected(33)
    assert counted(made.kernel).launches == before
    assert type(compiled[(1, 1, 1)]).__name__ == "function"


def test_only_compiled_kernels_of_the_named_packages_are_launched() -> None:
    made, launch = entry()
    launch(33)
    tzero.install("json")
    try:
        assert launch(33) == expected(33)
        assert counted(made.kernel).launches == 0
        tzero.install("tests")
        assert launch(33) == expected(33)
        assert counted(made.kernel).launches == 1
    finally:
        tzero.uninstall()


@on_cpu
def test_a_profiler_attached_late_sees_a_compiled_kernel_and_that_is_an_event(
    installed: None,
) -> None:
    made, launch = entry()
    launch(33)
    launch(33)
    seen: list[str] = []
    reasons: list[str] = []

    def enter(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    knobs.runtime.launch_enter_hook.add(enter)
    try:
        assert launch(33) == expected(33)
        with observe(lambda event: reasons.append(event.reason)):
            assert launch(33) == expected(33)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    assert seen == ["copy", "copy"]
    assert launch(33) == expected(33)
    assert seen == ["copy", "copy"]
    assert counted(made.kernel).native == 2


def test_threads_install_while_compiled_kernels_are_launched() -> None:
    _, launch = entry()
    launch(33)
    faults: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                assert launch(33) == expected(33)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            tzero.install()
            launch(33)
            tzero.uninstall()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for each in threads:
            each.join()
    assert not faults


def test_a_host_function_with_a_compiled_kernel_is_right(installed: None) -> None:
    made, launch = entry()
    launch(33)
    launch(33)
    (compiled,) = made.compiled.values()
    kept = compiled[(2, 1, 1)]

    def host(x: Any) -> Any:
        out, other = torch.zeros_like(x), torch.zeros_like(x)
        compiled[(2, 1, 1)](x, out, 33, 32)
        kept(x, other, 33, 32)
        return out + other

    replayed = tzero.kernel(host)
    for _ in range(4):
        x = torch.randn(33, device=DEVICE)
        assert torch.equal(replayed(x), 2 * x)


# -- arguments -------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


class Colour(enum.Enum):
    """Members of it are constants."""

    RED = 1
    BLUE = 2


def plain(x: int) -> int:
    """A function that is a constant."""
    return x


CASES: dict[str, tuple[Any, list[Any]]] = {
    "tuples": (kernels.numbers, [(7, 8), (2.5, True), (7, 9), (7, 8)]),
    "named tuples": (kernels.named_items, [Pair(7, 8), Pair(9, 8), Pair(2.5, 1), Pair(7, 8)]),
    "tuples in tuples": (kernels.count_first, [((7, 8), (9,)), ((7,), (8, 9)), ((7, 8), (9,))]),
    "kernels in tuples": (kernels.call_item, [(kernels.plus_one, 3), (kernels.times_five, 3)]),
    "wrapped constants": (kernels.put, [tl.constexpr(7), tl.constexpr(9), 7]),
}

CONSTANTS: dict[str, tuple[Any, list[Any]]] = {
    "texts": (kernels.choose, ["left", "right", "other", None]),
    "members of enums": (kernels.choose, [Colour.RED, Colour.BLUE]),
    "functions": (kernels.choose, [plain, len]),
    "dtypes": (kernels.cast, [tl.float32, tl.int32]),
    "dtypes of torch": (kernels.choose, [torch.float32, torch.int32]),
    "wrapped constants": (kernels.give, [tl.constexpr(7), tl.constexpr(2.5), 7]),
    "tuples": (kernels.pair, [(1, 2), (3, 4.5)]),
    "kernels": (kernels.call, [kernels.plus_one, kernels.times_five]),
    "large integers": (kernels.choose, [2**70, 2**71]),
    "frozen sets": (kernels.choose, [frozenset({1}), frozenset({2})]),
}


def stored(kernel: Any, value: Any) -> list[float]:
    out = torch.ones(4, device=DEVICE)
    kernel[(1,)](out, value)
    return out.tolist()


def are_native(kernel: Any, values: list[Any]) -> None:
    by_triton = triton.jit(kernel)
    answers = [stored(by_triton, value) for value in values]
    tzero.install()
    try:
        made = triton.jit(kernel)
        for _ in range(2):
            assert [stored(made, value) for value in values] == answers
        before = counted(made)
        assert [stored(made, value) for value in values] == answers
        after = counted(made)
    finally:
        tzero.uninstall()
    assert after.native - before.native == len(values), after.left


@on_cpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_arguments_that_hold_others_are_native(case: tuple[Any, list[Any]]) -> None:
    are_native(*case)


@pytest.mark.parametrize("case", CONSTANTS.values(), ids=CONSTANTS)
def test_constants_of_every_kind_are_native(case: tuple[Any, list[Any]]) -> None:
    are_native(*case)


@on_cpu
def test_descriptors_are_native(installed: None) -> None:
    kernel = triton.jit(kernels.descriptor)
    source = torch.arange(64.0).reshape(8, 8)
    out = torch.zeros(4, 8)
    for offset in (0, 1, 2):
        given = TensorDescriptor.from_tensor(source + offset, [4, 8])
        kernel[(1,)](given, out, ROWS=4, COLUMNS=8)
        assert torch.equal(out, source[:4] + offset)
    found = counted(kernel)
    assert (found.missed, found.native, found.left) == (1, 2, {})


@on_cpu
def test_a_plan_with_a_tuple_is_right(installed: None) -> None:
    kernel = triton.jit(kernels.numbers)

    @tzero.kernel
    def host(x: Any, first: int) -> Any:
        out = torch.zeros_like(x)
        kernel[(1,)](out, (first, 8))
        return out

    for first in (7, 9, 7, 1, 7):
        assert host(torch.zeros(4), first).tolist() == [first, 8.0, 0.0, 0.0]


# -- what is left to Triton ------------------------------------------------------------------------

MOST = 256


def many_parameters(count: int, tmp_path: Path) -> Any:
    names = ", ".join(f"n{k}" for k in range(count - 1))
    path = tmp_path / f"many{count}.py"
    path.write_text(
        "import triton.language as tl\n"
        f"def many(out, {names}):\n    tl.store(out, n0 + n{count - 2})\n"
    )
    world: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), world)
    return triton.jit(world["many"])


def test_more_parameters_than_native_code_reads_are_tritons_with_an_event(
    installed: None, tmp_path: Path
) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for count, is_native in ((MOST - 3, True), (MOST + 1, False)):
        kernel, reasons = many_parameters(count, tmp_path), []
        given = [2 * k + 3 for k in range(count - 1)]
        with observe(lambda event, reasons=reasons: reasons.append(event.reason)):
            kernel[(1,)](out, *given)
        for _ in range(2):
            out.zero_()
            kernel[(1,)](out, *given)
            assert out.item() == 3 + given[-1]
        found = counted(kernel)
        said = f"it has {count} parameters, more than {MOST}"
        assert found.native == (1 if is_native else 0)  # the first was observed, the second missed
        assert (f"Triton launches: {said}" in reasons) is not is_native
        assert (found.left == {said: 3}) is not is_native


def test_names_of_parameters_that_the_python_reader_reserves_are_native(
    installed: None, tmp_path: Path
) -> None:
    path = tmp_path / "reserved.py"
    path.write_text(
        "import triton.language as tl\ndef put(out, _tz_n):\n    tl.store(out, _tz_n)\n"
    )
    world: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), world)
    kernel = triton.jit(world["put"])
    for _ in range(3):
        assert stored(kernel, 7)[0] == 7.0
    assert counted(kernel).native == 2


@on_cpu
def test_more_items_than_native_code_reads_are_tritons(installed: None) -> None:
    kernel, many = triton.jit(kernels.numbers), tuple(range(2, MOST + 40))
    for _ in range(3):
        assert stored(kernel, many)[:2] == [2.0, 3.0]
    assert counted(kernel).native == 0
    assert list(counted(kernel).left) == [
        "only Python reads an argument of this type, or in this state"
    ]


@on_cpu
def test_why_a_binary_is_not_native_is_kept_with_it(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_CPU_CHECK", "1")
    with tzero.settings.override(cpu_check=True):
        kernel, reasons = triton.jit(kernels.put), []
        with observe(lambda event: reasons.append(event.reason)):
            stored(kernel, 7)
        for _ in range(4):
            assert stored(kernel, 9)[0] == 9.0
    found = counted(kernel)
    assert found.left["the CPU backend checks every access"] >= 3
    assert found.native == 0
