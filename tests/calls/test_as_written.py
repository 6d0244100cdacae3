"""Without native code, host functions run as written: quicker than a replay in Python."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton.language as tl

import tzero
from tests.calls.test_signatures import CALLS, MISFITS, named, same
from tests.plans.hosts import scaled
from tzero import ConstExpr, events, settings
from tzero.arguments import extract
from tzero.launches import tiers


@pytest.fixture(autouse=True)
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No native extension, and no tier that is set."""
    monkeypatch.setattr(tiers, "_native", lambda: None)
    monkeypatch.setattr(extract, "wrapped", False)
    with settings.override(tier=None, disable=False):
        yield


def frames(call: Any) -> list[str]:
    """The Python functions that run in a call, but not those of torch and Triton."""
    seen: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and "site-packages" not in frame.f_code.co_filename:
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


X = torch.arange(4.0)


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_call_gives_what_the_function_gives(call: Any) -> None:
    function, args, kwargs = call
    kernel = tzero.kernel(function)
    for _ in range(3):
        assert same(kernel(*args, **kwargs), function(*args, **kwargs))
    assert inspect.signature(kernel) == inspect.signature(function)


@pytest.mark.parametrize("call", MISFITS, ids=named)
def test_what_the_function_rejects_is_rejected(call: Any) -> None:
    function, args, kwargs = call
    with pytest.raises(TypeError, match=function.__name__):
        tzero.kernel(function)(*args, **kwargs)


def test_a_call_adds_one_frame_and_records_nothing() -> None:
    def host(x, by=2.0):
        return x * by

    kernel = tzero.kernel(host)
    for _ in range(3):
        assert frames(lambda: kernel(X)) == ["<lambda>", "host", "host"]
    found = kernel.explain(X)
    assert kernel.tier == 0 and found.plan is None
    assert "without its native extension" in found.refusal and "reinstall" in found.refusal


def test_the_reason_is_told_once() -> None:
    tiers._say_once.cache_clear()
    seen: list[events.Event] = []
    with events.observe(seen.append):
        for _ in range(2):
            tzero.kernel(lambda x: x)
    assert len(seen) == 1
    assert "without its native extension" in seen[0].reason
    assert "host functions run as written" in seen[0].reason


def test_a_tier_that_is_set_is_used() -> None:
    with settings.override(tier=1):
        assert tzero.kernel(lambda x: x).tier == 1


def test_a_build_of_torch_that_native_code_does_not_know_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = pytest.importorskip("tzero.calls.native", reason="the native extension is not built")
    monkeypatch.undo()
    monkeypatch.setattr(native.NativeKernel, "unavailable", "a tensor has three strides")
    with settings.override(tier=None, disable=False):
        kernel = tzero.kernel(lambda x: x + 1)
    assert kernel(1) == 2 and kernel.tier == 0
    assert "a tensor has three strides" in kernel.explain(1).refusal


def test_constants_are_unwrapped() -> None:
    @tzero.kernel
    def host(x, n: ConstExpr, m=3):
        return n, m

    assert host(X, 2) == (2, 3)
    assert len(frames(lambda: host(X, 2))) == 3
    one = ConstExpr(4)  # made after the kernel, and after calls of it
    assert host(X, one) == (4, 3) and host(X, 2, m=one) == (2, 4) and host(X, n=2) == (2, 3)
    assert tzero.kernel(lambda n: n)(one) == 4


def test_configs_are_used() -> None:
    @tzero.kernel(config=tzero.Config(BY=2))
    def host(x, config, plus=0):
        return x * config.BY + plus

    assert [host(3), host(3, plus=1), host(3, 1), host(plus=1, x=3)] == [6, 7, 7, 7]
    host.bind(3).set_config(tzero.Config(BY=3))
    assert [host(3), host(3, plus=1), host(3.0)] == [9, 10, 6.0]
    host.reset()
    assert host(3) == 6

    @tzero.kernel(configs=[tzero.Config(BY=2), tzero.Config(BY=2, MORE=1)])
    def tuned(x, config):
        return x * config.BY

    assert torch.equal(tuned(X), X * 2) and tuned.has_choice


def test_values_may_be_specialized_on() -> None:
    def helper(n):
        return tzero.specialize(n)

    @tzero.kernel
    def host(n):
        return helper(n) + tzero.specialize(1)

    assert [host(n) for n in range(4)] == [1, 2, 3, 4]
    with pytest.raises(tzero.NotInKernel):
        tzero.specialize(1)


def test_it_is_a_method_and_can_be_traced() -> None:
    @tzero.kernel
    def doubled(x):
        return scaled(x, 2.0)

    class Model:
        by = 3.0

        @tzero.kernel
        def tripled(self, x):
            return doubled(x) * self.by

    assert torch.equal(Model().tripled(X), X * 6)
    traced = torch.compile(lambda x: doubled(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(traced(X), X * 2 + 1)


def test_a_kernel_is_freed() -> None:
    def make() -> Any:
        kernel = tzero.kernel(lambda x: x)
        kernel(X)
        return weakref.ref(kernel), weakref.ref(type(kernel))

    gone = make()
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_launches_are_made_in_python() -> None:
    @tzero.jit
    def one(x):
        tl.store(x, 1.0)

    x = torch.zeros(1)
    for _ in range(3):
        one[(1,)](x)
    assert x.item() == 1.0 and type(one).__name__ == "PythonJit"
