"""Plans over sizes of launches through autotuners, heuristics, and classes that extend them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner, Heuristics

import tzero
from tests.plans.tiers import assert_same, verifying


@triton.jit
def scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


class Named(Autotuner):
    """An autotuner that looks at its arguments, as those of some projects do."""

    def run(self, *args, **kwargs):
        every = {**dict(zip(self.arg_names, args)), **kwargs}  # noqa: B905
        known = {name: value for name, value in every.items() if name in self.arg_names}
        key = [known[name] for name in self.keys if name in known]
        for value in known.values():
            if hasattr(value, "dtype"):
                key.append(str(value.dtype))
        assert len(key) == 2
        return super().run(*args, **kwargs)


class Doubling(Autotuner):
    """An autotuner that launches with other arguments."""

    def run(self, *args, **kwargs):
        x, out, by, n = args
        return super().run(x, out, by, min(2 * n, 128), **kwargs)


def tuned(kind: type[Autotuner], *key: str) -> Any:
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    return kind(scale, scale.arg_names, configs, list(key), None, None)


def block_of(args):
    return triton.next_power_of_2(args["n"])


def even_block(args):
    return 64 if args["n"] % 2 else 128


autotuned = tuned(Autotuner)
autotuned_by_n = tuned(Autotuner, "n")
with_heuristic = Heuristics(scale, scale.arg_names, {"BLOCK": lambda args: 64})
by_heuristic = Heuristics(scale, scale.arg_names, {"BLOCK": block_of})
by_parity = Heuristics(scale, scale.arg_names, {"BLOCK": even_block})
replacing = Heuristics(scale, scale.arg_names, {"BLOCK": lambda args: 128, "n": lambda args: 17})
around_tuned = Heuristics(tuned(Autotuner), scale.arg_names, {})
around_named = Heuristics(tuned(Named), scale.arg_names, {})
doubling = tuned(Doubling)


def launches(kernel: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def host(x):
        out, n = torch.zeros_like(x), x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, 2.0, n)
        return out

    return host


def launches_by_name(kernel: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def host(x):
        out, n = torch.zeros_like(x), x.numel()
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x=x, out=out, by=2.0, n=n)
        return out

    return host


def replaced(x):
    out, n = torch.zeros_like(x), x.numel()
    replacing[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x=x, out=out, by=2.0, n=n)
    return out


def by_run(x):
    out, n = torch.zeros_like(x), x.numel()
    autotuned.run(x, out, 2.0, n, grid=lambda meta: (triton.cdiv(n, meta["BLOCK"]),), warmup=False)
    return out


OVER_SIZES = {
    "autotuner": launches(autotuned),
    "heuristic that reads nothing": launches(with_heuristic),
    "heuristic of the size": launches(by_heuristic),
    "heuristic that compares": launches(by_parity),
    "heuristics around an autotuner": launches(around_tuned),
    "a class that extends the autotuner": launches_by_name(tuned(Named)),
    "heuristics around such a class": launches_by_name(around_named),
    "the run of an autotuner": by_run,
}
ONE_BY_ONE = {
    "autotuner whose key is the size": launches(autotuned_by_n),
    "heuristic that replaces the size": replaced,
}


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autotuners take their first config."""
    monkeypatch.setattr(
        Autotuner, "_bench", lambda self, *_, config, **__: [self.configs.index(config) + 1.0] * 3
    )


SIZES = [20, 21, 23, 25, 34, 35, 37, 18, 19, 36, 41, 29, 31, 33, 27]


def called(host: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, int]:
    """A kernel after calls with several sizes, each compared with the plain call; and how many of
    the later ones were native replays."""
    kernel, before = tzero.kernel(host), 0
    for k, size in enumerate(SIZES):
        x = torch.randn(size)
        host(x)  # tuned and compiled before: compilers may interrupt a call that is followed
        if k == 7:
            before = kernel.stats().native_replays
        assert_same(kernel(x), host(x))
    return kernel, kernel.stats().native_replays - before


@pytest.mark.parametrize("name", OVER_SIZES)
def test_a_launch_through_others_is_replayed_for_sizes_never_seen(name: str) -> None:
    kernel, replays = called(OVER_SIZES[name])
    assert verifying() or replays >= 5, kernel.explain(torch.randn(20))


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_chooses_or_replaces_an_argument_is_pinned(name: str) -> None:
    _, replays = called(ONE_BY_ONE[name])
    assert replays == 0


def test_an_autotuner_that_launches_with_other_arguments_is_followed() -> None:
    def host(x):
        out, n = torch.zeros(128), x.numel()
        doubling[(2,)](x, out, 2.0, n)
        return out[:n]

    base = torch.randn(256)
    kernel = tzero.kernel(host)
    for size in SIZES:
        host(base[:size])
        assert_same(kernel(base[:size]), host(base[:size]))
