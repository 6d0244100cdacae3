"""The methods of a kernel take arguments as the call does; a tuple of them is deprecated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tzero
from tests import tiers
from tests.briefly import tune_briefly
from tzero.config import Config

tier = tiers.fixture(0, 1, 2, override=True)


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    tune_briefly(monkeypatch)


X, Y = torch.ones(4), torch.zeros(4)


def scaled(x, y, *, eps=1.0):
    return x * eps + y


def named(x, *, eps):
    return x * eps


def one(x):
    return x


def optional(x, y=None):
    return x


def of_list(tensors):
    return torch.stack(tensors)


METHODS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "bind": lambda kernel: kernel.bind,
    "key": lambda kernel: kernel.key,
    "arguments": lambda kernel: kernel.arguments,
    "explain": lambda kernel: lambda *args, **kwargs: kernel.explain(*args, **kwargs).key,
    "plain": lambda kernel: lambda *args, **kwargs: kernel.plain(*args, **kwargs)().tolist(),
    "precompile": lambda kernel: lambda *args, **kwargs: len(kernel.precompile(*args, **kwargs)),
}
OLD = ("bind", "key", "arguments", "plain")


@pytest.mark.parametrize("method", METHODS)
def test_arguments_are_given_as_in_a_call(method: str, tier: int) -> None:
    kernel = tzero.kernel(scaled)
    ask = METHODS[method](kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = ask(X, Y, eps=2.0)
        assert ask(X, eps=2.0, y=Y) == expected
        assert ask(y=Y, x=X, eps=2.0) == expected
        assert ask(X, Y) == ask(X, Y, eps=1.0)


@pytest.mark.parametrize("method", METHODS)
def test_arguments_that_do_not_fit_are_refused_with_the_parameters(method: str) -> None:
    kernel = tzero.kernel(scaled)
    with pytest.raises(tzero.InvalidArgument, match=r"It takes x, y, eps\."):
        METHODS[method](kernel)(X, Y, X)
    with pytest.raises(tzero.InvalidArgument, match=r"It takes x, y, eps\."):
        METHODS[method](kernel)(X, other=Y)


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("method", OLD)
def test_a_tuple_of_arguments_still_works_with_a_warning(method: str, form: Any) -> None:
    kernel = tzero.kernel(scaled)
    ask = METHODS[method](kernel)
    expected = ask(X, Y)
    with pytest.warns(DeprecationWarning, match=rf"scaled\.{method}\(x, \.\.\.\), or ") as told:
        assert ask(form([X, Y])) == expected
    assert told[0].filename == __file__
    ask = METHODS[method](tzero.kernel(named))
    with pytest.warns(DeprecationWarning, match=r"or named\."):
        assert ask(form([X]), {"eps": 3.0}) == ask(X, eps=3.0)


@pytest.mark.parametrize("method", OLD)
def test_a_tuple_that_may_be_one_argument_is_one(method: str) -> None:
    ask = METHODS[method](tzero.kernel(of_list))
    expected = ask(tensors=[X])
    with pytest.warns(FutureWarning, match=rf"of_list\.{method}\(tensors=\.\.\.\) does not warn"):
        assert ask([X]) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask([X, X]) == ask(tensors=[X, X])  # two arguments would not fit


@pytest.mark.parametrize("host", [one, optional])
def test_a_tuple_for_one_parameter_counts_as_in_a_call_and_says_so(host: Any) -> None:
    kernel = tzero.kernel(host)
    with pytest.warns(FutureWarning, match=r"is the argument 'x', as it is in a call"):
        assert kernel.key((X,)) == kernel.key(x=(X,)) != kernel.key(X)


def test_a_tuple_that_fits_in_neither_way_is_refused() -> None:
    with pytest.raises(tzero.InvalidArgument, match="It takes x, y, eps"):
        tzero.kernel(scaled).bind((X, Y, X))


# -- autotune -------------------------------------------------------------------------------------

CONFIGS = [Config(BY=1.0), Config(BY=2.0)]


def tuned(x, y, config):
    return x * 0 + y * 0


def collides(x, tolerance, force=None, *, config):
    return x * 0 if tolerance == 0.5 and force in (None, "by all means") else x * config.BY


def test_autotune_takes_arguments_as_in_a_call_beside_its_options() -> None:
    kernel = tzero.kernel(configs=CONFIGS)(tuned)
    found = kernel.autotune(X, y=Y, effort="full", force=True)
    assert kernel.bind(X, Y).config == found.best
    assert kernel.bind(X, Y).autotune(X, y=Y, force=True).best in CONFIGS
    with pytest.warns(DeprecationWarning, match=r"tuned\.autotune\(x, \.\.\.\)"):
        assert kernel.autotune((X, Y), force=True).best in CONFIGS
    with pytest.warns(DeprecationWarning, match=r"tuned\.bind\(\.\.\.\)\.autotune\(x"):
        assert kernel.bind(X, Y).autotune((X, Y), force=True).best in CONFIGS


def test_a_name_that_is_a_parameter_and_an_option_is_the_parameters() -> None:
    kernel = tzero.kernel(configs=CONFIGS)(collides)
    found = kernel.autotune(X, tolerance=0.5, force="by all means")
    assert all(each.usable for each in found.outcomes.values())
    assert kernel.bind(X, tolerance=0.5, force="by all means").config == found.best
    # Here the two configs differ by a factor of two, which only the option accepts.
    assert not kernel.autotune(X, 0.1).outcomes[CONFIGS[1]].usable
    loose = kernel.bind(X, tolerance=0.1).autotune(X, 0.1, tolerance=0.6, force=True)
    assert loose.outcomes[CONFIGS[1]].usable


def test_a_bound_kernel_is_tuned_with_arguments_of_its_own_key_only() -> None:
    kernel = tzero.kernel(configs=CONFIGS)(tuned)
    with pytest.raises(tzero.InvalidArgument, match="for which this bound kernel was bound"):
        kernel.bind(X, Y).autotune(X[:2], Y)
    assert kernel.bind(X, Y).autotune().best in CONFIGS
