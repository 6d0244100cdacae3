"""A recording that fails, or is prevented again and again, costs no call its result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward
from triton.runtime.jit import KernelInterface

from tests.plans.hosts import scaled
from tests.plans.kernels import scale
from tests.plans.tiers import of_tier
from tzero import events, settings
from tzero.errors import UnsupportedType
from tzero.plans import record, slots, torch_ops, wrapper


@pytest.fixture(autouse=True)
def unverified():
    """While plans are verified, errors of the recorder are raised."""
    with settings.override(verify=False):
        yield


@pytest.fixture
def seen():
    found: list[events.Event] = []
    with events.observe(found.append):
        yield found


def reasons(seen: list[events.Event]) -> list[str]:
    return [event.reason for event in seen if event.kind == "fallback"]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "module, name",
    [(torch_ops, "obstacle"), (record, "situation"), (slots, "constant_of")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_an_error_of_the_recorder_is_a_fallback(
    module: Any, name: str, tier: int, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args, **kwargs):
        raise KeyError("oh")

    def host(x):
        return scaled(x, 2.0), torch.zeros(3).add(1.0)

    kernel, x = of_tier(tier, host), torch.arange(4.0)
    with monkeypatch.context() as patched:
        patched.setattr(module, name, fails)
        for _ in range(3):
            found = kernel(x)
            assert found[0].tolist() == [0.0, 2.0, 4.0, 6.0] and found[1].tolist() == [1.0] * 3
        with settings.override(verify=True), pytest.raises(KeyError, match="oh"):
            of_tier(tier, host)(x)
    assert len(reasons(seen)) == 1
    assert "recording it failed (KeyError: 'oh')" in reasons(seen)[0]
    assert kernel(x)[1].tolist() == [1.0] * 3


def test_an_error_while_a_wrapper_is_written_is_a_fallback(
    tier: int, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args, **kwargs):
        raise KeyError("oh")

    monkeypatch.setattr("tzero.plans.planner.write", fails)
    assert wrapper.write is not fails
    kernel, x = of_tier(tier, lambda x: scaled(x, 2.0)), torch.arange(4.0)
    for _ in range(3):
        assert kernel(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert len(reasons(seen)) == 1


def test_a_result_that_holds_itself_is_returned(tier: int, seen: Any) -> None:
    def host(x):
        made: list[Any] = [scaled(x, 2.0)]
        made.append(made)
        return made

    kernel, x = of_tier(tier, host), torch.arange(4.0)
    for _ in range(3):
        found = kernel(x)
        assert found[1] is found and found[0].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert len(reasons(seen)) == 1


def test_dual_numbers_are_computed(tier: int) -> None:
    def host(x):
        primal, tangent = forward.unpack_dual(x)
        return scaled(primal.detach(), 2.0), tangent

    kernel, x = of_tier(tier, host), torch.arange(4.0)
    with forward.dual_level():
        for _ in range(3):
            found = kernel(forward.make_dual(x, torch.ones(4)))
            assert found[0].tolist() == [0.0, 2.0, 4.0, 6.0] and found[1].tolist() == [1.0] * 4


class Asking(KernelInterface):
    """A kernel of the program's own, which reads its arguments before it launches another."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.recorded = kernel, 0

    def run(self, *args, grid, warmup, **kwargs):
        self.recorded += torch.overrides._is_torch_function_mode_enabled()
        assert args[0].dtype is torch.float32
        return self.kernel.run(*args, grid=grid, warmup=warmup, **kwargs)


asking = Asking(scale)


def test_a_recording_that_is_prevented_each_time_is_given_up(tier: int, seen: Any) -> None:
    def host(x):
        out = torch.empty_like(x)
        asking[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
        return out

    asking.recorded = 0
    kernel, x = of_tier(tier, host), torch.arange(4.0)
    for _ in range(60):
        assert kernel(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert 1 < asking.recorded < 30
    assert "ran in the middle of it" in kernel.explain(x).refusal


def test_it_is_given_up_for_all_shapes_after_some_time(tier: int, seen: Any) -> None:
    def host(x):
        out = torch.empty_like(x)
        asking[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
        return out

    asking.recorded = 0
    kernel = of_tier(tier, host)
    for size in range(1, 17):
        x = torch.arange(float(size))
        for _ in range(16):
            assert torch.equal(kernel(x), x * 2)
    assert asking.recorded < 100
    assert "ran in the middle of it" in kernel.explain(x).refusal


def test_a_situation_without_a_key_is_not_recorded_forever(
    tier: int, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args, **kwargs):
        raise UnsupportedType(kind="thing")

    asking.recorded = 0
    monkeypatch.setattr("tzero.plans.planner.situation", fails)

    def host(x):
        out = torch.empty_like(x)
        asking[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
        return out

    kernel, x = of_tier(tier, host), torch.arange(4.0)
    for _ in range(60):
        assert kernel(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert 1 < asking.recorded < 30
