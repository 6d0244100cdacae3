"""Kernels under torch's modes, and with various kinds of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.integrations.torch import hosts
from tests.integrations.torch.hosts import Made, launched, scaled
from tests.plans.tiers import assert_same, counted, described, of_tier, outcome, verifying


@contextlib.contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Logging(TorchDispatchMode):
    """Collects the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Asking(TorchFunctionMode):
    """Collects the torch functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


AROUND: dict[str, Any] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast off inside on": lambda: torch.autocast("cpu", enabled=False),
    "the default device": lambda: default_device("cpu"),
    "a default device without memory": lambda: default_device("meta"),
    "a device as a mode": lambda: torch.device("cpu"),
    "another device as a mode": lambda: torch.device("meta"),
    "a dispatch mode": Logging,
    "a function mode": Asking,
    "a counter of operations": lambda: FlopCounterMode(display=False),
    "deterministic algorithms": deterministic,
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "a range of the profiler": lambda: record_function("tzero"),
    "one thread": lambda: contextlib.nullcontext(torch.set_num_threads(1)),
    "multithreading of autograd off": lambda: torch.autograd.set_multithreading_enabled(False),
    "saved tensors on the CPU": lambda: torch.autograd.graph.save_on_cpu(),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_call_under_a_mode_is_what_the_host_function_is_under_it(name: str, made: Made) -> None:
    threads = torch.get_num_threads()
    x = torch.randn(3, 3)
    before = made.square(x)
    try:
        for inside in (True, True, False, True):
            with AROUND[name]() if inside else contextlib.nullcontext():
                for found, expected in (
                    (made.square(x), made.square.function(x)),
                    (made.scaled(x, 2.0), scaled(x, 2.0)),
                    (launched(made.launch, x, 2.0), scaled(x, 2.0)),
                ):
                    assert described(found) == described(expected)
                    assert torch.equal(found, expected)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(made.square(x), before)


QUIET = ("deterministic algorithms", "anomaly mode", "a range of the profiler", "one thread")


@pytest.mark.parametrize("name", [*QUIET, "no_grad", "inference_mode"])
def test_calls_are_replayed_under_modes_that_are_facts_of_a_plan(name: str, made: Made) -> None:
    around = AROUND[name] if name in QUIET else getattr(torch, name)
    threads = torch.get_num_threads()
    x = torch.randn(7)
    try:
        with around():
            made.scaled(x, 2.0)
            with counted(scaled) as runs:
                assert torch.equal(made.scaled(x, 2.0), x * 2)
    finally:
        torch.set_num_threads(threads)
    assert runs[0] == (1 if made.tier == 0 or verifying() else 0)


def allocating(x):
    out = torch.zeros(4)
    hosts.scale_kernel[(1,)](x, out, 2.0, 4, BLOCK=64)
    return out, torch.zeros(1).device.type


def test_new_tensors_are_on_the_default_device_of_each_call(tier: int) -> None:
    kernel = of_tier(tier, allocating)
    x = torch.ones(4)
    for name in ("cpu", "meta", "cpu", None, "meta", None):
        around = contextlib.nullcontext() if name is None else torch.device(name)
        with around:
            assert_same(outcome(lambda: kernel(x)), outcome(lambda: allocating(x)))


def test_modes_see_what_the_host_function_shows_them(made: Made) -> None:
    x = torch.randn(3, 3)
    for mode in (Logging, Asking):
        with mode() as ours:
            made.square(x)
        with mode() as theirs:
            made.square.function(x)
        assert [each for each in theirs.seen if each in ours.seen] == theirs.seen


def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return scaled((x @ x).float(), 2.0)


def test_autocast_inside_a_host_function_is_kept(tier: int) -> None:
    kernel = of_tier(tier, in_autocast)
    for _ in range(3):
        x = torch.randn(4, 4)
        assert_same(kernel(x), in_autocast(x))
        assert not torch.is_autocast_enabled("cpu")


def test_the_profiler_sees_torchs_functions_of_calls_that_it_is_around(made: Made) -> None:
    x = torch.randn(3, 3)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(3):
            with record_function("a call"):
                assert_same(made.square(x), made.square.function(x))
    counts = {event.key: event.count for event in found.key_averages()}
    assert counts["a call"] == 3
    seen = counts["aten::mm"]  # of the kernel, and of the host function
    assert seen == 6 or (verifying() and seen > 6)  # a recording has some of its own


def test_a_profiler_that_starts_between_calls_changes_no_result(made: Made) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as found:
        for step in range(4):
            x = torch.randn(5)
            assert torch.equal(made.scaled(x, float(step)), x * step)
            found.step()


# -- kinds of tensors ------------------------------------------------------------------------------


class Named(torch.Tensor):
    """A subclass with its own memory that overrides nothing."""


class Counting(torch.Tensor):
    """A subclass that sees every torch function called with it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapping(torch.Tensor):
    """A subclass without memory, around a tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapping) else value

        plain = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        return Wrapping(out) if isinstance(out, torch.Tensor) else out


@pytest.mark.parametrize("kind", [Named, Counting])
def test_a_subclass_with_memory_is_computed_as_by_the_host_function(kind: Any, made: Made) -> None:
    for mine in (True, False, True, True):
        x = torch.randn(5)
        given = x.as_subclass(kind) if mine else x
        for found in (made.scaled(given, 2.0), launched(made.launch, given, 2.0)):
            assert type(found) is (kind if mine else torch.Tensor)
            assert torch.equal(found.as_subclass(torch.Tensor), x * 2)


def test_a_subclass_that_wraps_another_tensor_is_refused_as_by_the_host_function(
    made: Made,
) -> None:
    for _ in range(2):
        given = Wrapping(torch.ones(4))
        with pytest.raises((RuntimeError, ValueError), match=r"data pointer|has no memory"):
            made.fixed(given)
        with pytest.raises((RuntimeError, ValueError), match=r"data pointer|has no memory"):
            launched(made.launch, given, 2.0)
    assert torch.equal(made.fixed(torch.ones(4)), torch.full((4,), 2.0))


def test_parameters_and_buffers_are_read_where_they_are(made: Made) -> None:
    weight = torch.nn.Parameter(torch.randn(5))
    buffer = torch.nn.Buffer(torch.randn(5))
    lazy = torch.nn.parameter.UninitializedParameter()
    for step in range(3):
        assert torch.equal(made.summed(weight, buffer), weight.detach() + buffer)
        with torch.no_grad():
            weight.add_(1)
            weight.data = torch.full((5,), float(step))  # other memory, the same parameter
        assert torch.equal(made.summed(weight, buffer), weight.detach() + buffer)
    for _ in range(2):
        found = outcome(lambda: made.fixed(lazy))
        assert_same(found, outcome(lambda: of_tier(0, hosts.fixed)(lazy)))
        assert "Raised" in repr(found)


@pytest.mark.parametrize(
    "odd",
    [lambda x: x.to_sparse(), lambda x: x.to_mkldnn(), lambda x: torch.nested.nested_tensor([x])],
)
def test_tensors_that_are_no_plain_memory_are_as_without_tzero(odd: Any, made: Made) -> None:
    plain = outcome(lambda: hosts.fixed(odd(torch.ones(4))))
    for _ in range(3):
        found = outcome(lambda: made.fixed(odd(torch.ones(4))))
        assert type(found) is type(plain)
        if not isinstance(plain, torch.Tensor):
            assert repr(found) == repr(plain)


def test_memory_shared_with_numpy_and_dlpack_is_written_in_place(made: Made) -> None:
    for _ in range(3):
        array = torch.randn(5).numpy()
        before = torch.from_numpy(array.copy())
        made.grown(torch.from_numpy(array))
        made.grown(torch.from_dlpack(array))
        assert torch.equal(torch.from_numpy(array), before * 4)


def test_a_call_is_replayed_again_once_a_mode_is_over(made: Made) -> None:
    x = torch.randn(7)
    for name in ("autocast", "a dispatch mode", "a function mode", "a device as a mode"):
        with AROUND[name]():
            made.scaled(x, 2.0)
        made.scaled(x, 2.0)
        with counted(scaled) as runs:
            made.scaled(x, 2.0)
        assert runs[0] == (1 if made.tier == 0 or verifying() else 0)
