"""Integers of a call that are formulas of sizes, comparisons that are conditions, and pins."""

from __future__ import annotations

import operator
import sys
from typing import Any

import pytest
import torch
import triton

from tests.reading import size_hosts as hosts
from tests.reading.following import Followed, follow
from tzero.adapters import python_frames
from tzero.reading import integers_steps, steps
from tzero.reading.integers import Integers
from tzero.reading.path import Path
from tzero.reading.special import Callee
from tzero.reading.world import World
from tzero.symbolic.formulas import Formulas, Source

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)

NAMES = {
    "size(0, 0)": "X0",
    "size(0, 1)": "X1",
    "size(1, 0)": "Y0",
    "stride(0, 0)": "S0",
    "stride(0, 1)": "S1",
    "number(2)": "N",
}

# A host function; its result, with formulas for integers; the conditions, where `=` is a pin.
CASES: list[tuple[Any, Any, str]] = [
    (hosts.unpacks, "(N + (X0 * X1))", ""),
    (hosts.last_size, ("X1", "X1", "X1"), ""),
    (hosts.leading, ("X0", "N"), ""),
    (hosts.starred, (["X0"], "X1"), ""),
    (hosts.starred_first, ("X0", ["X1", "N", 3]), ""),
    (hosts.product, ("(X0 * X1)", "(X0 * X1)", "(X0 * X1)", "(X0 * X1)"), ""),
    (hosts.sums, ("(X0 + X1)", "max(X0, X1)", "min(9, min(Y0, N))"), ""),
    (hosts.strides, ("S0", "S1", "S1"), ""),
    (
        hosts.ceilings,
        ("cdiv(N, 4)", "-(-N // 4)", "((N + 3) // 4)", "ceil(N / 4)", "int(N / 4)"),
        "",
    ),
    (
        hosts.powers,
        ("next_power_of_2(N)", "(1 << (N - 1).bit_length())", "(2 ** N)", "(N & -N)"),
        "(N - 1).bit_length() >= 0; N >= 0",
    ),
    (hosts.bits, ("(N >> 1)", "(N | 8)", "(N ^ 3)", "~N", "(N & (N - 1))", "abs(-N)", "N"), ""),
    (hosts.halves, ("(N // 4)", "(N % 4)"), ""),
    (hosts.by_helper, ("cdiv(N, 16)", "cdiv(N, 8)", "cdiv(N, 4)", "cdiv(N, X0)"), "X0 != 0"),
    (hosts.spread, ("(X0 + 2)", "(2 + (X0 * N))", "(1 + (N * N))"), ""),
    (hosts.closure, ("cdiv(N, 4)", "X0"), ""),
    (hosts.sharing, "(X0 + N)", ""),
    (hosts.grid_function, ("cdiv(N, 4)",), ""),
    (hosts.grid_function_of_a_size, ("cdiv(N, 4)", "N"), ""),
    (hosts.comprehension, (["(X0 * 2)", "(X1 * 2)"], ("X0", "X1", "N")), ""),
    (hosts.loop_over_sizes, "(X0 * X1)", ""),
    (hosts.lists, ["X0", "N", 3, "Y0", "N", "N"], ""),
    (hosts.dicts, ({"n": "N", "b": "(N + 1)", "m": "X0"}, "N", {"a": "N", "b": "N"}), ""),
    (hosts.dict_items, ({"n": "(N * 2)", "b": 8, "m": "(X0 * 2)"}, "(X0 + (N + 4))", True), ""),
    (hosts.dict_items_one_by_one, ("b", 4, 8), "N = 7"),
    (hosts.dict_view_elsewhere, ([("b", 4), ("n", 7)], [6]), "N = 7; X0 = 6"),
    (hosts.dict_values_unpacked, (11, [12]), "N = 7; Y0 = 12"),
    (hosts.has_attributes, "(N + 1)", ""),
    (hosts.context_of_autograd, (3, "N", "X0", 8), "(N + 1) = 8"),
    (hosts.context_changed_elsewhere, (7, 6, 40), "N = 7; X0 = 6"),
    (hosts.context_kept, "N", ""),
    (hosts.named_dict, ({"n": "N", "b": 4}, "N", "X0", None), ""),
    (hosts.late_entry, {"a": 1, "b": "N"}, ""),
    (hosts.nested, ("X0", "N", (("N", ("X0", "X1")), ["N", {"a": "N"}])), ""),
    (hosts.repeated, (("N", "N"), [1, "N", 1, "N"]), ""),
    (hosts.swapped, ("X1", "X0"), ""),
    (hosts.ternary, "N", "N > 3"),
    (hosts.walrus, "((N + 1) + (N + 1))", ""),
    (hosts.deleted, "(N * 2)", ""),
    (hosts.finally_, "(N + 2)", ""),
    (hosts.same_tensor, "X0", ""),
    (hosts.method, "(N * 3)", ""),
    (hosts.bound_size, ("X0", "X1"), ""),
    (hosts.checked_type, "N", ""),
    (hosts.branch, "N", "N > 5; not (X0 % 4) == 0"),
    (hosts.truth, 1, "N != 0"),
    (hosts.negated, False, "N != 0"),
    (hosts.asserted, "N", "N > 0; (X0 * 2) == Y0"),
    (hosts.chained, 1, "0 < N; N < X1"),
    (hosts.member, (False, True, False), "not N == 1; not N == 2; not N == 3; N = 7"),
    (hosts.either, ("N", "X0"), "N != 0"),
    (hosts.while_loop, 2, "N > 1; (N // 2) > 1; not ((N // 2) // 2) > 1"),
    (hosts.same_shapes, (True, True, False), "X0 = 6; X1 = 40; not X1 == N"),
    (hosts.truth_of_shape, 1, ""),
    (hosts.is_none, False, ""),
    (hosts.boolean, (True, False), "N != 0; N > 3"),
    (hosts.recursion, 2, "not N <= 1; not (N // 2) <= 1; ((N // 2) // 2) <= 1"),
    (hosts.zero_division, "N", "N = 7; (X0 - 6) = 0"),
    (hosts.quotient, "N", "N != 0"),
    (hosts.printed, 0, "N = 7"),
    (hosts.formatted, ("7", "7", "7", "7"), "N = 7"),
    (hosts.dict_key, 1, "N = 7"),
    (hosts.dict_lookup, 1, "N = 7"),
    (hosts.dict_of_pairs, {"n": 7}, "N = 7"),
    (hosts.list_index, 7, "N = 7"),
    (hosts.ranged, 21, "N = 7"),
    (hosts.float_division, 3.5, "N = 7"),
    (hosts.floats, (7.0, 3.5, 2.6457513110645907, 4), "N = 7"),
    (hosts.generator, [0, 1, 2, 3, 4, 5, 6], "N = 7"),
    (hosts.yielded, [7], "N = 7"),
    (hosts.generator_expression, (7, 41), "(X0 + 1) = 7; (X1 + 1) = 41"),
    (hosts.mapped, [7, 41], "X0 = 6; X1 = 40"),
    (hosts.callback, [8], "(N + 1) = 8"),
    (hosts.reduced, 240, "X0 = 6; X1 = 40"),
    (hosts.sorted_, ([6, 40], [40, 6]), "X0 = 6; X1 = 40"),
    (hosts.zipped, [6, 80], "X0 = 6; X1 = 40"),
    (hosts.attribute, 14, "N = 7"),
    (hosts.subscript, 8, "N = 7"),
    (hosts.class_, 7, "N = 7"),
    (hosts.global_, 0, "N = 7"),
    (hosts.default, 7, "N = 7"),
    (hosts.partial, 1, "N = 7"),
    (hosts.in_set, ({1, 7}, frozenset({7})), "N = 7"),
    (hosts.sliced_by, [1, 2, 3, 4, 5, 6, 7], "N = 7"),
    (hosts.exception, 7, "N = 7"),
    (hosts.list_method, [7, 6], "X0 = 6; X1 = 40; N = 7"),
    (hosts.dict_method, [7, 7], "N = 7"),
    (hosts.held_list, "[7]", "N = 7"),
    (hosts.iterator, 6, "X0 = 6; X1 = 40"),
    (hosts.by_getattr, 6, "X0 = 6; X1 = 40; S0 = 40; S1 = 1"),
    (hosts.in_library, (6, 40), "X0 = 6; X1 = 40"),
    (hosts.tensor_of_sizes, 7, "N = 7"),
    (hosts.tensor_power, 14.0, "N = 7"),
    (hosts.compared_with_float, (True, True), "N = 7"),
    (hosts.enumerated, [0, 40], "X0 = 6; X1 = 40"),
    (hosts.huge, 8873554201597605810476922437632, "N = 7"),
]


def short(value: Any) -> Any:
    """The same, with short names for the inputs."""
    if isinstance(value, str):
        for name, other in NAMES.items():
            value = value.replace(name, other)
        return value
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(short, value))
    return value


def texts(found: Followed, marks: Any) -> list[Any]:
    """Marks as text."""
    return [each if each is None else short(found.formulas.text(each)) for each in marks]


def followed(host: Any, *args: Any, **options: Any) -> Followed:
    given = args or (torch.empty(6, 40), torch.empty(12), 7)
    return follow(host, *given, helpers=hosts.HELPERS, **options)


IDS = [host.__name__ for host, _, _ in CASES]


@pytest.mark.parametrize(("host", "result", "conditions"), CASES, ids=IDS)
def test_formulas_and_conditions(host: Any, result: Any, conditions: str):
    found = followed(host)
    assert found.integers.lost == ""
    assert short(found.shown) == result
    assert short("; ".join(found.conditions)) == conditions


@pytest.mark.parametrize("host", [host for host, _, _ in CASES], ids=IDS)
@pytest.mark.parametrize("sizes", [(6, 40, 12, 7), (6, 40, 12, 4), (8, 40, 16, 7), (6, 1, 0, 1)])
def test_other_sizes_give_what_is_predicted(host: Any, sizes: tuple[int, ...]):
    found = followed(host)
    x0, x1, y0, n = sizes
    args = torch.empty(x0, x1), torch.empty(y0), n
    predicted = found.predicted(args)
    if sizes == (6, 40, 12, 7):
        assert predicted is not None
    if predicted is not None:
        got = host(*args)
        assert predicted[0] == (tuple(got) if isinstance(got, torch.Size) else got)


@pytest.mark.parametrize("host", [host for host, _, _ in CASES], ids=IDS)
def test_instructions_that_are_passed_over_make_no_difference(host: Any):
    few, all_ = followed(host), followed(host, each=True)
    assert few.integers.lost == all_.integers.lost
    assert few.shown == all_.shown and few.conditions == all_.conditions
    assert few.pinned == all_.pinned


# -- offers ----------------------------------------------------------------------------------------


def test_a_call_that_is_taken_is_not_pinned_and_has_the_marks_of_its_arguments():
    def host(x, y, n):
        torch.narrow(x, 0, 0, n - 2)
        return n

    found = followed(host, takes=(torch.narrow,))
    (offer,) = found.taken
    assert offer.function is torch.narrow and offer.names == ()
    assert texts(found, offer.marks) == [None, None, None, "(N - 2)"]
    assert found.pinned == set()
    assert "(N - 2)" in short(list(followed(host).pinned))


def test_the_object_of_a_method_is_its_first_argument():
    def host(x, y, n):
        narrow = y.narrow
        y.view(n - 1, length=2) if n == 0 else y.view(-1, n - 5)
        narrow(0, start=n - 6, length=2)
        return n

    found = followed(host, takes=(torch.Tensor.view, torch.Tensor.narrow))
    view, narrow = found.taken
    assert view.args[0] is narrow.args[0] is found.args[1]
    assert view.function is torch.Tensor.view and narrow.function is torch.Tensor.narrow
    assert narrow.names == ("start", "length")
    assert texts(found, narrow.marks) == [None, None, "(N - 6)", None]


def test_containers_and_slices_in_a_taken_call_have_marks():
    def host(x, y, n):
        torch.empty((n, 3))
        x[: n - 3, 1:n]
        y[n - 1] = 3
        return 0

    takes = (torch.empty, torch.Tensor.__getitem__, torch.Tensor.__setitem__)
    found = followed(host, takes=takes)
    empty, item, stored = found.taken
    assert short(found.marks(empty.args[0])) == ("N", 3)
    rows, columns = (found.integers.items_of(each) for each in item.args[1])
    assert texts(found, rows) == [None, "(N - 3)", None]
    assert texts(found, columns) == [None, "N", None]
    assert texts(found, stored.marks) == [None, "(N - 1)", None]
    assert found.pinned == set()


def test_arithmetic_with_a_tensor_is_offered():
    def host(x, y, n):
        return (y * n).dim()

    found = followed(host, takes=(torch.Tensor.mul,))
    assert found.taken[0].function is operator.mul
    assert texts(found, found.taken[0].marks) == [None, "N"]
    assert found.pinned == set()
    assert "N" in short(list(followed(host).pinned))


def test_an_offer_that_is_over_cannot_be_taken():
    def host(x, y, n):
        torch.empty(n)
        return n

    found = followed(host, takes=(torch.empty,))
    with pytest.raises(ValueError, match="over"):
        found.integers.take(found.taken[0])


@triton.jit
def kernel(x, n, BLOCK: triton.language.constexpr):
    pass


def launches(x, y, n):
    kernel[(triton.cdiv(n, 4), 1)](x, n, BLOCK=n * 2)
    return n


def test_a_launch_is_offered_with_its_kernel_and_its_grid(monkeypatch: pytest.MonkeyPatch):
    offers = []
    offer_it = Integers.make_offer

    def note(self: Integers, shadow: Any, offer: Any) -> None:
        offers.append(offer)
        offer_it(self, shadow, offer)

    monkeypatch.setattr(Integers, "make_offer", note)
    found = followed(launches)
    (offer,) = offers
    assert offer.subscript[0] is kernel and offer.subscript[1] == (2, 1)
    assert offer.args[1:] == [7, 14] and offer.names == ("BLOCK",)
    assert texts(found, offer.marks) == [None, "N", "(N * 2)"]
    assert set(short(list(found.pinned))) >= {"cdiv(N, 4)", "N", "(N * 2)"}


def test_lists_of_the_arguments_have_marks():
    def host(x, y, sizes):
        first, second = sizes
        sizes2 = [*sizes, first * second]
        return sizes2

    found = follow(host, torch.empty(2), torch.empty(3), [4, 5])
    assert found.shown == ["number(200)", "number(201)", "(number(200) * number(201))"]


def test_a_list_that_escaped_has_no_marks_any_more():
    def host(x, y, n):
        sizes = [1]
        str(sizes)
        sizes.append(n)
        return sizes

    found = followed(host)
    assert found.shown == [1, 7]
    assert short(list(found.pinned)) == ["N"]


# -- geometry --------------------------------------------------------------------------------------


def test_a_read_of_geometry_that_is_not_understood_is_not_announced():
    def host(x, y, n):
        x.size(0)
        torch.numel(y)
        return 0

    found = followed(host)
    assert found.pinned == {"size(1, 0)", "stride(1, 0)"}


# -- getting lost ----------------------------------------------------------------------------------


def test_who_is_lost_pins_all_inputs():
    def host(x, y, n):
        return n + 1

    with pytest.MonkeyPatch.context() as patch:
        handler = integers_steps.HANDLERS["BINARY_OP"]._replace(takes=0)
        patch.setitem(integers_steps.HANDLERS, "BINARY_OP", handler)
        found = followed(host)
    assert found.integers.lost
    assert len(found.pinned) == 7
    assert found.result == 8 and found.integers.result is None


def test_an_instruction_that_is_not_known_pins_what_is_on_the_stack():
    def host(x, y, n):
        return (n, x.size(0) + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(integers_steps.HANDLERS, "BINARY_OP")
        found = followed(host)
    assert found.integers.lost == ""
    assert sorted(short(list(found.pinned))) == ["N", "X0"]
    assert found.result == (7, 7) and found.predicted(found.args) == ((7, 7),)


def test_items_that_are_not_those_of_a_container_are_noticed():
    these = Formulas()
    integers = Integers(these, None)  # type: ignore[arg-type]
    n = these.input(Source("size", 0), 3)
    integers.mark_items([4], [n])
    assert "should be" in integers.lost and len(these.conditions) == 1
    assert integers.items_of([4]) is None


def test_a_host_function_that_is_not_followed_pins_all_inputs():
    these = Formulas()
    integers = Integers(these, None)  # type: ignore[arg-type]
    these.input(Source("size", 0), 3)
    integers.enter(sys._getframe(), is_host=False)
    assert "not followed" in integers.lost
    assert len(these.conditions) == 1


def test_instructions_are_those_of_the_path():
    known = {*steps._HANDLERS, *steps._HARMLESS}
    assert {*integers_steps.HANDLERS, *integers_steps.MOVE_NOTHING} <= known | {"RERAISE", "CALL"}


# -- the path --------------------------------------------------------------------------------------


def through_path(host: Any, *args: Any) -> tuple[Any, Integers, list[str]]:
    """Call a function while the path is followed, with its integers."""
    these, refused = Formulas(), []
    shapes = {
        id(value): [these.input(Source("size", k, d), n) for d, n in enumerate(value.shape)]
        for k, value in enumerate(args)
        if isinstance(value, torch.Tensor)
    }

    class Known:
        def sizes(self, tensor: torch.Tensor) -> Any:
            return shapes.get(id(tensor))

        strides = sizes

    integers = Integers(these, Known())
    for k, value in enumerate(args):
        if type(value) is int:
            name = host.__code__.co_varnames[k]
            integers.arguments[name] = these.input(Source("number", k), value)
    world = World(lambda *told: None)
    path = Path(
        Callee.of(host, list(args)), args, world, lambda *told: refused.append(told[0]), integers
    )
    with path.followed():
        result = host(*args)
    path.finish()
    return result, integers, refused


def test_the_path_follows_integers():
    def host(x, n):
        blocks = hosts.helper(x.size(0), block=n)
        sizes = [s + 1 for s in x.shape]
        return (blocks, *sizes) if n > 2 else None

    result, integers, refused = through_path(host, torch.empty(6, 40), 4)
    assert refused == [] and integers.lost == ""
    texts = [integers.formulas.text(each) for each in integers.items_of(result)]
    assert texts == ["cdiv(size(0, 0), number(1))", "(size(0, 0) + 1)", "(size(0, 1) + 1)"]
    assert len(integers.formulas.conditions) == 2


def test_the_path_pins_what_it_is_given_and_does_not_follow():
    def host(x, n):
        return hosts.functools.reduce(lambda a, b: a * b, x.shape), sorted([n])

    _, integers, refused = through_path(host, torch.empty(6, 40), 4)
    assert refused == [] and integers.lost == ""
    assert len(integers.formulas.conditions) == 3


def test_a_path_without_integers_is_as_before():
    world = World(lambda *told: None)
    path = Path(Callee.of(hosts.unpacks, []), (), world, lambda *told: None)
    assert path.integers is None
    args = torch.empty(6, 40), torch.empty(12), 7
    with path.followed():
        assert hosts.unpacks(*args) == 247
    path.finish()
