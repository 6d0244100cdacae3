"""`specialize`: calls with different values never share a bound kernel, however the value came
about, and existing bound kernels do not change.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import tzero
from tzero import Config, InvalidArgument, Kernel, events
from tzero.calls import specialize

X = torch.zeros(4)


# -- attribution ----------------------------------------------------------------------------------


def matched(n: Any, m: Any) -> Any:
    match m:
        case int() as n:
            pass
    return tzero.specialize(n)


def excepted(n: Any, m: Any) -> Any:
    try:
        raise KeyError(m)
    except KeyError as n:
        return tzero.specialize(n.args)


def imported(n: Any, m: Any) -> Any:
    if m == 5:
        import math as n
    else:
        import cmath as n
    return tzero.specialize(n)


def redefined(n: Any, m: Any) -> Any:
    def n() -> Any:
        return m

    return tzero.specialize(n())


def walrus(n: Any, m: Any) -> Any:
    return tzero.specialize(n) if (n := m) else None


def looped(n: Any, m: Any) -> Any:
    for n in (m,):  # noqa: B007
        pass
    return tzero.specialize(n)


def from_within(n: Any, m: Any) -> Any:
    def change() -> None:
        nonlocal n
        n = m

    change()
    return tzero.specialize(n)


def computed(n: Any, m: Any) -> Any:
    return tzero.specialize(n + m)


def helped(n: Any, m: Any) -> Any:
    return computed_outside(m)


def computed_outside(n: Any) -> Any:
    return tzero.specialize(n)


NOT_N = [matched, excepted, imported, redefined, walrus, looped, from_within, computed, helped]


@pytest.mark.parametrize("function", NOT_N, ids=lambda function: function.__name__)
def test_a_name_that_is_assigned_in_any_way_is_not_taken_for_the_argument(
    function: Callable[..., Any],
) -> None:
    kernel = tzero.kernel(function)
    five, six = (1, 5), (1, 6)
    for args in (five, six, five, six):
        kernel(*args)
    assert kernel.bind(*five) is not kernel.bind(*six)
    assert kernel.stats().entries == 2


def test_a_list_that_is_changed_before_counts_as_it_was_before_the_call() -> None:
    @tzero.kernel
    def bumped(values: list[int]) -> int:
        values[0] += 1
        tzero.specialize(values)
        return tzero.specialize(values[0])

    assert [bumped([n]) for n in (1, 2, 1, 2, 1, 2)] == [2, 3, 2, 3, 2, 3]
    assert bumped.bind(values=[1]) is not bumped.bind(values=[2])
    assert bumped.bind(values=[1]) is bumped.bind(values=[1])


def test_a_tensor_that_is_transposed_before_counts_as_it_was_before_the_call() -> None:
    @tzero.kernel(static_shapes=False)
    def rows(x: torch.Tensor) -> int:
        x.t_()
        return tzero.specialize(x.size(0))

    sizes = (5, 6, 7, 5, 6, 7)
    assert [rows(torch.zeros(4, n)) for n in sizes] == list(sizes)
    assert len({rows.bind(torch.zeros(4, n)) for n in sizes}) == 3


def test_arguments_are_counted_without_config_and_without_the_instance() -> None:
    class Scale:
        def by(self, x: Any, config: Config, n: Any) -> Any:
            return tzero.specialize(n)

    kernel = tzero.kernel(config=Config(B=1))(Scale().by)
    assert [kernel(X, n) for n in (1, 2, 1, 2)] == [1, 2, 1, 2]
    assert kernel.key(X, 1)[-1][0] == specialize.Extra("argument", 1)  # type: ignore[index]
    assert kernel.stats().entries == 2


def test_what_was_read_of_a_function_goes_with_it() -> None:
    before = len(specialize._sites)
    for k in range(20):
        world: dict[str, Any] = {"tzero": tzero}
        exec(f"def scaled(x, n): return tzero.specialize(n) + {k}", world)
        assert tzero.kernel(world["scaled"])(X, 1) == 1 + k
    del world
    gc.collect()
    assert len(specialize._sites) <= before + 1


# -- values that the arguments do not determine ---------------------------------------------------


@tzero.kernel
def total(x: torch.Tensor) -> int:
    return tzero.specialize(int(x.sum()))


@tzero.kernel
def graded(x: torch.Tensor) -> bool:
    return tzero.specialize(torch.is_grad_enabled())


class Counter:
    n = 0

    def up(self, x: torch.Tensor) -> int:
        return tzero.specialize(self.n)


def test_tensor_contents_that_change_are_refused_with_both_values_and_the_line() -> None:
    total.reset()
    total(X)
    assert total(X + 1) == 4  # fixed from here on: the first call came before it joined the key
    assert total(X + 1) == 4
    seen: list[events.Event] = []
    with pytest.raises(InvalidArgument) as raised, events.observe(seen.append):
        total(X)
    assert [event.kind for event in seen] == ["hit", "refusal"]
    line = total.function.__code__.co_firstlineno + 2
    assert str(raised.value).startswith(
        f"total: specialize was given 0 at {__file__}:{line}, and 4 in a call with the same"
    )
    assert "Make it an argument, a ConstExpr, or part of what key= returns." in str(raised.value)
    assert total(X + 1) == 4


def test_a_grad_mode_that_changes_is_refused() -> None:
    graded.reset()
    assert graded(X) and graded(X)
    with torch.no_grad(), pytest.raises(InvalidArgument, match=r"given False .* and True"):
        graded(X)


def test_an_attribute_of_a_bound_method_that_changes_is_refused() -> None:
    counter = Counter()
    kernel = tzero.kernel(counter.up)
    assert [kernel(X), kernel(X)] == [0, 0]
    counter.n = 1
    with pytest.raises(InvalidArgument, match=r"up: specialize was given 1 .* and 0"):
        kernel(X)


def test_one_call_may_give_a_site_many_values_and_recurse() -> None:
    @tzero.kernel
    def counted(x: Any, n: int) -> list[int]:
        inner = counted(x, n - 1) if n else []
        return [*inner, *(tzero.specialize(k * 2) for k in range(n))]

    wanted = [0, 0, 2, 0, 2, 4]
    assert [counted(X, 3) for _ in range(4)] == [wanted] * 4


def test_a_site_that_is_reached_late_may_have_many_values_too() -> None:
    late = False

    @tzero.kernel
    def counted(x: Any, n: int) -> int:
        tzero.specialize(n + 1)
        return sum(tzero.specialize(k * n) for k in range(3)) if late else 0

    for _ in range(3):
        counted(X, 1)
    late = True
    assert [counted(X, 1), counted(X, 1)] == [3, 3]


def test_a_call_that_fails_half_way_does_not_say_what_later_calls_give() -> None:
    fails = False

    @tzero.kernel
    def counted(x: Any, n: int) -> int:
        total = 0
        for k in range(3):
            total += tzero.specialize(k * n)
            if fails and k:
                raise ValueError("half way")
        return total

    assert counted(X, 1) == 3  # from here on all arguments are in the key in full
    for n in (1, 2):
        fails = True
        with pytest.raises(ValueError, match="half way"):
            counted(X, n)
        fails = False
        assert [counted(X, n), counted(X, n)] == [3 * n, 3 * n]


def test_a_site_that_is_reached_late_does_not_open_the_others() -> None:
    step = 0

    @tzero.kernel
    def stepping(x: Any, n: int) -> int:
        if step > 1:
            tzero.specialize(n * 2)
        return tzero.specialize(step // 2 + n)

    for step in range(2):  # noqa: B007
        assert stepping(X, 1) == 1
    step = 2
    with pytest.raises(InvalidArgument, match=r"specialize was given 2 at .* and 1 in a call"):
        stepping(X, 1)


def test_threads_may_be_in_one_first_call_at_once() -> None:
    meeting = threading.Barrier(8, timeout=30)
    wrong: list[Any] = []

    @tzero.kernel
    def counted(x: Any, n: int) -> int:
        if n:
            meeting.wait()
        return sum(tzero.specialize(k + n) for k in range(20))

    counted(X, 0)
    counted(X, 0)  # all arguments are in the key now, and n == 1 is not bound yet

    def work() -> None:
        try:
            for _ in range(3):
                counted(X, 1)
        except BaseException as error:
            wrong.append(error)
            meeting.abort()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- existing bound kernels -----------------------------------------------------------------------


@tzero.kernel(config=Config(B=1))
def sized(x: Any, n: int, config: Config) -> int:
    if n > 8:
        tzero.specialize(n)
    return config.B  # type: ignore[no-any-return]


def test_a_bound_kernel_never_moves_to_another_key() -> None:
    sized.reset()
    bound = sized.bind(X, 2)
    key = bound.key
    bound.set_config(Config(B=77))
    # 9 finds the bound kernel of 2, because their keys are equal until the host function runs.
    assert [sized(X, 2), sized(X, 9)] == [77, 77]
    assert bound.key == key
    assert [sized(X, 2), sized(X, 9), sized(X, 10)] == [1, 1, 1]
    assert bound not in [sized.bind(X, n) for n in (2, 9, 10)]
    sized.bind(X, 9).set_config(Config(B=99))
    assert [sized(X, n) for n in (2, 9, 10, 2, 9)] == [1, 99, 1, 1, 99]


def test_a_late_value_brings_nothing_back_after_a_reset() -> None:
    @tzero.kernel
    def forgets(x: Any, n: int) -> int:
        forgets.reset()
        return tzero.specialize(n)

    bound = forgets.bind(X, 1)
    forgets(X, 1)
    assert forgets.stats().entries == 0
    assert forgets.bind(X, 1) is not bound


def test_threads_in_one_bound_kernel_do_not_take_each_others_value() -> None:
    meeting, told = threading.Barrier(2, timeout=30), threading.Event()
    got: dict[int, int] = {}

    @tzero.kernel
    def both(x: Any, n: int) -> int:
        if n:
            meeting.wait()
        if n == 10:
            told.wait(30)
        if n:
            got[n] = tzero.specialize(n)
            told.set()
        return n

    both.bind(X, 0)
    threads = [threading.Thread(target=both, args=(X, n)) for n in (9, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {9: 9, 10: 10} and both.stats().entries == 0


# -- calls of bound kernels -----------------------------------------------------------------------


def doubled(x: torch.Tensor, n: Any = 2) -> Any:
    return tzero.specialize(n), x.dtype


def test_a_bound_kernel_is_called_as_its_kernel_is() -> None:
    kernel = tzero.kernel(doubled)
    bound = kernel.bind(X, 9)
    for _ in range(3):
        assert bound(X, 9) == bound(n=9, x=X) == bound(X, n=9) == (9, torch.float32)
    wrapped = kernel.bind(X, tzero.ConstExpr(3))
    assert wrapped(X, tzero.ConstExpr(3)) == (3, torch.float32)
    assert tzero.kernel(doubled).bind(X)(X) == (2, torch.float32)
    assert kernel.stats().calls == 10


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((X.double(), 2), "argument 'x' has dtype torch.float64, not torch.float32, for which"),
        ((X[:2], 2), r"argument 'x' has sizes \(2,\), not \(4,\), for which"),
        ((X, 2.0), "argument 'n' is float, not int, for which"),
        ((X, {1}), "argument 'n' is or holds a set"),
        ((X, 2, 3), "too many positional arguments"),
    ],
    ids=["dtype", "size", "type", "set", "too many"],
)
def test_a_bound_kernel_refuses_arguments_of_another_key(args: Any, words: str) -> None:
    kernel = tzero.kernel(doubled)
    with pytest.raises(InvalidArgument, match=f"^doubled: {words}"):
        kernel.bind(X, 2)(*args)


def test_a_bound_kernel_knows_what_it_was_bound_with() -> None:
    kernel = tzero.kernel(doubled)
    early = kernel.bind(X, 2)
    assert early(X, 2) == (2, torch.float32)
    late = kernel.bind(X, 2)
    assert late is not early and late(X, 2) == early(X, 2)
    with pytest.raises(InvalidArgument, match=r"doubled: part 3 of the key .* 3.* not .* 2"):
        late(X, 3)
    with pytest.raises(InvalidArgument, match=r"given 3 .* and 2 in the bound kernel.*Bind it ag"):
        early(X, 3)
    assert early(X, 2) == (2, torch.float32)


def test_a_call_of_a_bound_kernel_is_counted_and_measured() -> None:
    kernel = tzero.kernel(doubled)
    bound = kernel.bind(X, 2)
    seen: list[events.Event] = []
    with events.observe(seen.append), tzero.measure.recording() as record:
        bound(X, 2)
        with pytest.raises(InvalidArgument):
            bound(X, "a")
    assert [event.reason for event in seen[:2]] == ["", "not replayed: it launches no kernel"]
    assert [event.kind for event in seen] == ["hit", "fallback", "refusal"]
    assert record.count("call", "doubled") == record.count("run", "doubled") == 1
    assert kernel.stats()[:2] == (1, 1) and kernel.stats().hits == 1


# -- values that cannot be part of a key ----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"), [({1}, "a set"), (X, "a tensor"), ([bytearray()], "a bytearray")], ids=str
)
def test_values_that_change_are_refused_with_kernel_and_line(value: Any, named: str) -> None:
    @tzero.kernel
    def made(x: Any) -> Any:
        return tzero.specialize(value)

    with pytest.raises(InvalidArgument, match=f"^made: specialize was given {named} at {__file__}"):
        made(X)


def symbolic() -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.empty(5, 6), static_shapes=False)  # type: ignore[no-any-return]


def test_a_symbolic_size_is_refused_and_not_settled() -> None:
    @tzero.kernel(static_shapes=False)
    def rows(x: torch.Tensor) -> int:
        return tzero.specialize(x.size(0))

    tensor = symbolic()
    with pytest.raises(InvalidArgument, match=r"^rows: specialize was given a symbol without"):
        rows(tensor)
    assert not isinstance(tensor.size(0), int)


def test_a_symbol_for_an_argument_that_counts_is_refused_by_name() -> None:
    kernel = tzero.kernel(doubled)
    kernel(X, 2)
    with pytest.raises(InvalidArgument, match=r"^doubled: argument 'n' is or holds a symbol"):
        kernel(X, symbolic().size(0))


def test_a_computed_value_under_vmap_counts() -> None:
    @tzero.kernel
    def rows(x: torch.Tensor) -> torch.Tensor:
        return x * tzero.specialize(x.size(0) * 2)

    for _ in range(2):
        assert torch.equal(torch.func.vmap(rows)(torch.ones(2, 4)), torch.full((2, 4), 8.0))


# -- torch.compile --------------------------------------------------------------------------------


FOUR = tzero.ConstExpr(4)


@tzero.kernel(config=Config(B=3))
def configured(x: torch.Tensor, config: Config, n: Any = FOUR) -> torch.Tensor:
    return x * tzero.specialize(n) * config.B  # type: ignore[no-any-return]


def compiled(function: Callable[[torch.Tensor], Any], **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)(torch.ones(2))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: configured(x), 12.0),
        (lambda x: configured(x, 2), 6.0),
        (lambda x: configured(n=tzero.ConstExpr(5), x=x), 15.0),
    ],
    ids=["defaults", "by place", "by name"],
)
def test_torch_compile_traces_what_is_called(function: Any, wanted: float) -> None:
    assert torch.equal(compiled(function, fullgraph=True), torch.full((2,), wanted))
    assert torch.equal(function(torch.ones(2)), torch.full((2,), wanted))


def test_torch_compile_has_the_config_of_a_bound_kernel_where_that_is_called() -> None:
    bound = configured.bind(torch.ones(2), 1)
    bound.set_config(Config(B=100))
    assert compiled(lambda x: bound(x, 1), fullgraph=True).tolist() == [100.0, 100.0]
    assert compiled(lambda x: configured(x, 1), fullgraph=True).tolist() == [3.0, 3.0]


def test_torch_compile_refuses_a_config_as_an_argument() -> None:
    kernel: Kernel[Any] = configured
    with pytest.raises(InvalidArgument, match="unexpected keyword argument 'config'"):
        compiled(lambda x: kernel(x, config=Config(B=9)))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(lambda x: kernel(x, config=Config(B=9)), fullgraph=True)
