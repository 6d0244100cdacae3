"""What can be a kernel, which of its parameters are constants, and how it gets its config; anything
else raises when it is decorated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
import torch

import tzero
import tzero as tz
from tzero import Config, ConstExpr, InvalidArgument, InvalidKernel, events
from tzero import ConstExpr as Fixed

if TYPE_CHECKING:
    from tzero import ConstExpr as Unseen

X = torch.zeros(4)


# -- constants ------------------------------------------------------------------------------------


def plain(x: Any, n: ConstExpr) -> Any: ...
def dotted(x: Any, n: tzero.ConstExpr) -> Any: ...
def renamed_module(x: Any, n: tz.ConstExpr) -> Any: ...
def renamed(x: Any, n: Fixed) -> Any: ...
def or_none(x: Any, n: ConstExpr | None = None) -> Any: ...
def optional(x: Any, n: Optional[Fixed] = None) -> Any: ...  # noqa: UP045
def or_number(x: Any, n: int | tz.ConstExpr) -> Any: ...
def annotated(x: Any, n: Annotated[Fixed, "block"]) -> Any: ...
def quoted(x: Any, n: "Optional[Fixed]") -> Any: ...  # noqa: UP037, UP045


CONSTANT = [
    *(plain, dotted, renamed_module, renamed, or_none, optional, or_number, annotated, quoted)
]


@pytest.mark.parametrize("function", CONSTANT, ids=lambda function: function.__name__)
def test_constexpr_is_found_under_every_name(function: Any) -> None:
    kernel = tzero.kernel(function)
    assert kernel.bind(X, 1) is not kernel.bind(X, 2)
    assert kernel.bind(X, 1) is kernel.bind(X, 1)


def test_an_annotation_may_name_a_local_of_the_outer_function() -> None:
    from tzero import ConstExpr as Local

    closed_over = Local

    @tzero.kernel
    def inside(x: Any, n: Local) -> Any: ...

    @tzero.kernel
    def closing(x: Any, n: closed_over) -> Any:  # type: ignore[valid-type]
        return closed_over

    for kernel in (inside, closing):
        assert kernel.bind(X, 1) is not kernel.bind(X, 2)


def test_an_annotation_is_read_through_wrappers() -> None:
    @functools.wraps(renamed)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    class Called:
        def __call__(self, x: Any, n: Fixed) -> Any: ...

    for function in (wrapper, functools.partial(renamed), Called(), Called().__call__):
        kernel = tzero.kernel(function)
        assert kernel.bind(X, 1) is not kernel.bind(X, 2)


def unseen(x: Any, n: Unseen) -> Any: ...
def misspelled(x: Any, n: tzero.ConstExp) -> Any: ...  # type: ignore[name-defined]
def no_expression(x: Any, n: "a ConstExpr") -> Any: ...  # type: ignore[valid-type] # noqa: F722


def test_an_annotation_that_cannot_be_resolved_is_an_ordinary_argument_and_an_event() -> None:
    seen: list[events.Event] = []
    with events.observe(seen.append):
        assert tzero.kernel(unseen).host.constants == (False, False)
    assert [event.kind for event in seen] == ["fallback"]
    assert "the annotation 'Unseen' of 'n' cannot be resolved" in seen[0].reason


@pytest.mark.parametrize("function", [misspelled, no_expression])
def test_an_annotation_that_cannot_be_resolved_is_refused(function: Any) -> None:
    with pytest.raises(InvalidKernel, match=f"^{function.__name__} .* of 'n' cannot be resolved"):
        tzero.kernel(function)


def test_other_annotations_are_no_constants() -> None:
    def free(x: torch.Tensor, n: int | None, m: "list[int]", k: 5) -> Unseen: ...  # type: ignore # noqa

    kernel = tzero.kernel(free)
    assert kernel.host.constants == (False, False, False, False)


# -- config ---------------------------------------------------------------------------------------


def first(config: Config, x: Any, y: Any) -> Any:
    return x, config, y


def middle(x: Any, config: Config, y: Any = 2) -> Any:
    return x, config, y


def last(x: Any, y: Any, config: Config) -> Any:
    return x, config, y


def by_name(x: Any, y: Any, *, config: Config) -> Any:
    return x, config, y


PLACED = pytest.mark.parametrize(
    "function", [first, middle, last, by_name], ids=lambda function: function.__name__
)


@PLACED
def test_a_config_reaches_its_parameter_at_any_position(function: Any) -> None:
    kernel = tzero.kernel(config=Config(B=1))(function)
    for _ in range(2):
        assert kernel(1, 2) == kernel(y=2, x=1) == (1, Config(B=1), 2)
    kernel.bind(1, 2).set_config(Config(B=2))
    assert kernel(1, 2) == (1, Config(B=2), 2)
    with pytest.raises(InvalidArgument, match="'config'"):
        kernel(1, 2, config=Config(B=3))


def test_the_default_of_the_parameter_is_used_unless_a_config_is_given() -> None:
    def host(x: Any, config: Config | None = Config(B=3)) -> Any:  # noqa: B008
        return config

    def without(x: Any, config: Config | None = None) -> Any:
        return config

    assert tzero.kernel(host)(X) == Config(B=3)
    assert tzero.kernel(config=Config(B=1))(host)(X) == Config(B=1)
    assert tzero.kernel(configs=[Config(B=2)])(host)(X) == Config(B=2)
    assert tzero.kernel(without)(X) is None


def test_set_config_takes_configs_and_only_where_there_is_a_parameter() -> None:
    bound = tzero.kernel(config=Config(B=1))(last).bind(1, 2)
    for wrong in (None, {"B": 1}):
        with pytest.raises(InvalidArgument, match=r"^last: set_config was given"):
            bound.set_config(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^plain: set_config has nothing to set"):
        tzero.kernel(plain).bind(X, 1).set_config(Config())


# -- invalid kernels ------------------------------------------------------------------------------


def generator(x: Any, config: Any = None) -> Iterator[Any]:
    yield x


async def coroutine(x: Any, config: Any = None) -> Any: ...


class Stepping:
    def __call__(self, x: Any) -> Iterator[Any]:
        yield x


def starred(x: Any, *config: Any) -> None: ...
def twice_starred(x: Any, **config: Any) -> None: ...
def odd_default(x: Any, config: Any = 3) -> None: ...


already = tzero.kernel(config=Config(B=1))(last)


def given(**options: Any) -> Callable[[Any], Any]:
    return tzero.kernel(**options)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "generator to tune": (
        lambda: given(configs=[Config(B=1), Config(B=2)])(generator),
        "generator .* a generator function.* cannot be timed",
    ),
    "coroutine to tune": (
        lambda: given(configs=[Config(B=1), Config(B=2)])(coroutine),
        "coroutine .* a coroutine function.* cannot be timed",
    ),
    "kernel": (lambda: tzero.kernel(already), "last .* it is a kernel already"),
    "number": (lambda: given()(5), "5 .* of type int. Put @tzero.kernel on a function"),
    "config by place": (
        lambda: tzero.kernel(Config(B=1)),  # type: ignore[call-overload]
        r"Config\(B=1\) .* Pass it as config=",
    ),
    "property": (lambda: given()(property(plain)), "of type property.*below @property"),
    "no config": (lambda: tzero.kernel(last), "last .* `config`, but config= is not given"),
    "config for nothing": (lambda: given(config=Config())(plain), "plain .* has no parameter"),
    "dict as config": (lambda: given(config={"B": 1})(last), "last .* of type dict"),
    "number in configs": (lambda: given(configs=[5])(last), r"last .* configs= is \[5\]"),
    "number as configs": (lambda: given(configs=5)(last), "last .* configs= is 5"),
    "*config": (lambda: given(config=Config())(starred), r"starred .* \*config"),
    "**config": (lambda: given(config=Config())(twice_starred), r"twice_starred .* \*\*config"),
    "default of config": (lambda: tzero.kernel(odd_default), "odd_default .* `config` is 3"),
    "index_dtype": (lambda: given(index_dtype="int32")(plain), "plain .* index_dtype= is 'int32'"),
    "float indices": (lambda: given(index_dtype=torch.float32)(plain), "index_dtype= is torch.fl"),
    "static_shapes": (lambda: given(static_shapes="no")(plain), "plain .* static_shapes= is 'no'"),
    "key": (lambda: given(key=5)(plain), "plain .* key= is 5"),
    "arity of key": (lambda: given(key=lambda x: 0)(plain), "plain .* Give it 2 parameters, for x"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_kernel_raises_when_it_is_decorated(make: Any, words: str) -> None:
    with pytest.raises(InvalidKernel, match=words):
        make()


# -- functions of other kinds ---------------------------------------------------------------------


def test_a_kernel_in_a_class_is_a_method() -> None:
    class Layer:
        @tzero.kernel
        def forward(self, x: Any) -> Any:
            return self, x

        @classmethod
        @tzero.kernel
        def make(cls, x: Any) -> Any:
            return cls, x

        @staticmethod
        @tzero.kernel
        def same(x: Any) -> Any:
            return x

        @tzero.kernel
        @staticmethod
        def also(x: Any) -> Any:
            return x

    layer = Layer()
    assert layer.forward(X) == (layer, X)
    assert isinstance(Layer.forward, tzero.Kernel)
    assert Layer.make(X)[0] is Layer().make(X)[0] is Layer
    for static in (Layer.same, Layer().same, Layer.also, Layer().also):
        assert static(X) is X


def test_attributes_of_the_host_function_hide_nothing() -> None:
    class Called:
        def __init__(self) -> None:
            self.stats, self.bind, self.name = 5, 3, "mine"

        def __call__(self, x: Any) -> Any:
            return x

    def host(x: Any) -> Any:
        return x

    host.key, host.reset, host.bind = 1, "r", None  # type: ignore[attr-defined]
    for function in (host, Called()):
        kernel = tzero.kernel(function)
        assert kernel(X) is X and kernel.bind(X).key == kernel.key(X)
        assert kernel.stats().calls == 1


def test_parameters_may_have_names_that_tzero_uses() -> None:
    @tzero.kernel
    def host(self: Any, args: Any, kwargs: Any, key: Any) -> Any:
        return self, args, kwargs, key

    assert host(self=1, args=2, kwargs=3, key=4) == (1, 2, 3, 4)
    assert host.explain(self=1, args=2, kwargs=3, key=4).hit
    assert host.bind(1, 2, 3, 4)(self=1, args=2, kwargs=3, key=4) == (1, 2, 3, 4)


def test_the_code_of_a_host_function_is_known_or_reported_missing() -> None:
    assert tzero.kernel(functools.partial(plain, X)).name == "plain"
    for function, words in (
        (functools.partial(plain, X), "def plain"),
        (Stepping, "source is not known"),
        (eval("lambda x, n: x"), "source is not known"),
    ):
        kernel = tzero.kernel(function)
        args = (X,) * len(kernel.host.parameters)
        assert words in kernel.bind(*args).to_code()
