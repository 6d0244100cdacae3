"""`tzero.constant`: a marked function runs in plain calls and recordings, and not in replays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers
from tests.plans.tiers import counted
from tzero import settings

tier = tiers.fixture(0, 1, 2, override=True)


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def scaled(x, by=2.0):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, by, x.numel(), BLOCK=16)
    return out


RAN: list[Any] = []
ANSWERS = {"cpu": 3.0}
X = torch.arange(1.0, 6.0)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    RAN.clear()
    ANSWERS["cpu"] = 3.0
    yield


def looks_around(kind: str, plus: float = 0.0) -> float:
    """What tzero cannot guard: it has side effects, opens files, calls torch."""
    RAN.append(kind)
    with open("/proc/self/status", encoding="utf-8") as file:
        file.readline()
    torch.zeros(3).sum().item()
    return ANSWERS[kind] + plus


probe = tzero.constant(looks_around)


@tzero.constant
def properties(kind: str) -> Any:
    RAN.append(kind)
    return SimpleNamespace(count=ANSWERS[kind], name=kind)


@tzero.constant
@functools.cache
def cached() -> float:
    RAN.append("cached")
    return 3.0


class Namespace:
    @staticmethod
    @tzero.constant
    def probe(kind):
        return looks_around(kind)

    @tzero.constant
    def method(self):
        return 3.0


MODULE = SimpleNamespace(probe=probe)


def direct(x):
    return scaled(x, probe(x.device.type))


def by_name(x):
    return scaled(x, probe(kind=x.device.type, plus=0.0))


def in_a_branch(x):
    if probe("cpu") > 2:
        return scaled(x, 3.0)
    return x


def through_a_helper(x):
    return scaled(x, _through(x.device))


def _through(device):
    return probe(device.type)


def of_an_object(x):
    found = properties(x.device.type)
    return scaled(x, found.count if found.name == "cpu" else 0.0)


def of_a_cached_function(x):
    cached.function.cache_clear if False else None  # noqa: B018
    return scaled(x, cached())


def of_a_static_method(x):
    return scaled(x, Namespace.probe("cpu"))


def followed(x):
    """What is read besides makes tzero follow the call."""
    by = MODULE.probe("cpu")
    total = sum(each for each in (by, 0.0))
    return scaled(x, total)


def in_a_closure() -> Callable[..., Any]:
    local = probe

    def host(x):
        return scaled(x, local("cpu"))

    return host


HOSTS = [
    *(direct, by_name, in_a_branch, through_a_helper, of_an_object, of_a_cached_function),
    *(of_a_static_method, followed, in_closure := in_a_closure()),
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__qualname__)
def test_a_replay_does_not_call_it(host: Callable[..., Any], tier: int) -> None:
    cached.function.cache_clear()
    kernel = tzero.kernel(host)
    for k in range(4):
        RAN.clear()
        with counted(host) as runs:
            assert torch.equal(kernel(X), X * 3)
        assert runs[0] == (tier == 0 or k == 0), kernel.explain(X)
        assert bool(RAN) == (runs[0] > 0) or host is of_a_cached_function
    if tier:
        assert kernel.explain(X).replay is not None


def test_a_plain_call_runs_it_each_time(tier: int) -> None:
    assert [probe("cpu"), probe(kind="cpu", plus=1.0)] == [3.0, 4.0]
    ANSWERS["cpu"] = 5.0
    assert probe("cpu") == 5.0 and RAN == ["cpu"] * 3


def test_other_arguments_are_another_plan(tier: int) -> None:
    @tzero.kernel
    def host(x, plus):
        return scaled(x, probe("cpu", plus))

    for _ in range(3):
        for plus in (0.0, 1.0):
            assert torch.equal(host(X, plus), X * (3 + plus))
    if tier:
        RAN.clear()
        host(X, 0.0), host(X, 1.0)
        assert RAN == []


def test_another_function_under_its_name_is_called(
    tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tzero.kernel(direct)
    for _ in range(3):
        assert torch.equal(kernel(X), X * 3)
    monkeypatch.setitem(globals(), "probe", tzero.constant(lambda kind: 7.0))
    for _ in range(3):
        assert torch.equal(kernel(X), X * 7)


def test_what_it_computes_with_torch_and_launches_is_not_in_the_plan(tier: int) -> None:
    @tzero.constant
    def fastest() -> float:
        return float(scaled(torch.ones(3), 3.0).max())

    @tzero.kernel
    def host(x):
        return scaled(x, fastest())

    for _ in range(3):
        assert torch.equal(host(X), X * 3)
    if tier:
        kinds = [type(step).__name__ for step in host.explain(X).plan.steps]
        assert kinds == ["Allocate", "Launch"]


def takes(x):
    return scaled(x, of_tensor(x))


def returns(x):
    return scaled(x) + to_tensor()


@tzero.constant
def of_tensor(x: torch.Tensor) -> float:
    return float(x[0])


@tzero.constant
def to_tensor() -> torch.Tensor:
    return torch.ones(5) * len(RAN)


@pytest.mark.parametrize(
    ("host", "words"),
    [(takes, "of_tensor, which tzero.constant marks, is given a tensor"), (returns, "to_tensor")],
)
def test_a_call_with_tensors_is_not_replayed_and_right(host: Any, words: str, tier: int) -> None:
    kernel = tzero.kernel(host)
    for k in range(4):
        RAN.append(k)
        assert torch.equal(kernel(X + k), host(X + k))
    if tier:
        assert words in kernel.explain(X).refusal


def test_an_exception_is_raised_and_recording_goes_on(tier: int) -> None:
    @tzero.kernel
    def host(x):
        return scaled(x, probe("gpu"))

    with pytest.raises(KeyError, match="gpu"):
        host(X)
    ANSWERS["gpu"] = 4.0
    try:
        for _ in range(3):
            assert torch.equal(host(X), X * 4)
    finally:
        del ANSWERS["gpu"]


@pytest.mark.parametrize("tier", [1, 2])
def test_verify_mode_finds_a_result_that_changes(tier: int) -> None:
    with settings.override(tier=tiers.can_replay(tier), verify=True):
        kernel = tzero.kernel(direct)
        kernel(X)
        kernel(X)
        ANSWERS["cpu"] = 5.0
        with pytest.raises(tzero.PlanDrift):
            kernel(X)


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> int:
    return 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "given 3, which is not a function"),
        (Namespace, "given the class Namespace"),
        (scale_kernel, "given scale_kernel, which computes with tensors"),
        (tzero.kernel(direct), "given direct, which computes with tensors"),
        (torch.nn.Identity(), "given Identity, which computes with tensors"),
        (_generator, "a generator or coroutine"),
        (_coroutine, "a generator or coroutine"),
        (staticmethod(looks_around), "it belongs above @tzero.constant, not below it"),
    ],
)
def test_misuse_is_an_error_that_says_what_to_do(wrong: Any, words: str) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        tzero.constant(wrong)


def test_a_method_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(tzero.InvalidKernel, match=r"@staticmethod above @tzero.constant"):
        Namespace().method()
    assert Namespace.method is vars(Namespace)["method"]


def test_it_looks_like_its_function() -> None:
    assert probe.__name__ == "looks_around" and probe.__doc__ == looks_around.__doc__
    assert tzero.constant(probe) is probe and probe.function is looks_around
    assert repr(probe) == "<constant looks_around>"
