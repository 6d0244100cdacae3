"""Changes that once went unnoticed: an object was taken as known by its identity or its fields,
while the host function read something else of it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
import triton
import triton.language as tl

from tests.hostile.row import added, attribute, done, grown, item, rows
from tests.plans.hosts import scaled
from tests.plans.kernels import BLOCK

ROWS = rows()
row = ROWS.add


def set_global(name: str, value: Any) -> Any:
    """A change: another value for a global of this module."""
    return lambda patch: patch.setitem(globals(), name, value)


# -- what a cached function returned ---------------------------------------------------------------

SETTING = [2.0]


@functools.lru_cache
def table():
    return {"by": SETTING[0]}


@functools.lru_cache
def changed():
    return {"by": SETTING[0]}


@functools.lru_cache(maxsize=1)
def kept(key):
    return SETTING[0] * key


@functools.cache
def listed():
    return [SETTING[0]]


def set_and(do):
    def change():
        SETTING[0] = 5.0
        do()

    def undo():
        SETTING[0] = 2.0
        do()

    return done(change, undo)


@row(item(changed(), "by", 5.0))
def what_a_cache_returned_is_changed(x):
    return scaled(x, changed()["by"])


@row(set_and(table.cache_clear))
def a_cache_is_cleared(x):
    return scaled(x, table()["by"])


@row(set_and(lambda: kept(9)))
def what_is_cached_is_evicted(x):
    return scaled(x, kept(1))


@row(item(listed(), 0, 5.0))
def a_list_that_a_cache_returned(x):
    (by,) = listed()
    return scaled(x, by)


# -- attributes of objects -------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    by: float = 2.0
    constant: ClassVar[float] = 2.0

    def __post_init__(self):
        self.scale = 2.0

    @functools.cached_property
    def computed(self):
        return SETTING[0]


SPACE = SimpleNamespace(options=Options(), items=[2.0])
OPTIONS = Options()
assert (OPTIONS.computed, SPACE.options.computed) == (2.0, 2.0)


@row(attribute(SPACE.options, "scale", 5.0))
def what_post_init_sets(x):
    return scaled(x, SPACE.options.scale)


@row(attribute(OPTIONS, "scale", 5.0))
def what_post_init_sets_under_another_name(x):
    options = OPTIONS
    return scaled(x, options.scale)


@row(attribute(SPACE.options, "constant", 5.0))
def a_class_constant_shadowed_on_the_instance(x):
    return scaled(x, SPACE.options.constant)


@row(attribute(OPTIONS, "constant", 5.0))
def a_class_constant_shadowed_under_another_name(x):
    options = OPTIONS
    return scaled(x, options.constant)


@row(item(vars(SPACE.options), "computed", 5.0))
def a_cached_property_of_an_attribute(x):
    return scaled(x, SPACE.options.computed)


def gained(x):
    return scaled(x, gained.gain)


gained.gain = 2.0


@row(attribute(gained, "gain", 5.0))
def an_attribute_of_a_function(x):
    return gained(x)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


Kind.ONE.weight = 2.0
MEMBER = Kind.ONE


@row(attribute(Kind.ONE, "weight", 5.0))
def an_attribute_of_an_enum_member(x):
    return scaled(x, Kind.ONE.weight)


@row(attribute(Kind.ONE, "weight", 5.0))
def an_attribute_of_a_member_by_its_value(x):
    return scaled(x, Kind(1).weight)


@row(attribute(Kind.ONE, "weight", 5.0))
def an_attribute_of_a_member_by_its_name(x):
    return scaled(x, Kind["ONE"].weight)


@row(attribute(Kind.ONE, "weight", 5.0))
def an_attribute_of_the_first_member(x):
    for member in Kind:
        return scaled(x, member.weight)


class Slotted:
    __slots__ = ("by",)


SLOTTED = Slotted()
SLOTTED.by = 2.0


@row(attribute(SLOTTED, "by", 5.0))
def a_slot(x):
    return scaled(x, SLOTTED.by)


class Twice:
    def factor(self):
        return 2.0


class Thrice:
    def factor(self):
        return 3.0


FACTOR = Twice()


@row(attribute(FACTOR, "__class__", Thrice))
def the_class_of_an_object(x):
    return scaled(x, FACTOR.factor())


@dataclasses.dataclass
class WithSlot:
    __slots__ = ("by", "more")
    by: float


WITH_SLOT = WithSlot(2.0)
WITH_SLOT.more = 2.0


@row(attribute(WITH_SLOT, "more", 5.0))
def a_slot_that_is_no_field(x):
    slot = WITH_SLOT
    return scaled(x, slot.more)


@dataclasses.dataclass
class Table(dict):
    by: float = 2.0


@dataclasses.dataclass
class Fault(Exception):
    by: float = 2.0


TABLE, FAULT = Table(), Fault()
TABLE["by"] = 2.0
FAULT.args = (2.0,)


@row(item(TABLE, "by", 5.0), refused="cannot see changes of a Table")
def a_dataclass_that_is_a_dict(x):
    return scaled(x, TABLE["by"])


@row(attribute(FAULT, "args", (5.0,)))
def a_dataclass_that_is_an_exception(x):
    fault = FAULT
    return scaled(x, fault.args[0])


# -- code without a file, kernels ------------------------------------------------------------------

NAMELESS: dict[str, Any] = {}
exec("FACTOR = 2.0\ndef by(x): return FACTOR\n", NAMELESS)
by_exec = NAMELESS["by"]


@row(item(NAMELESS, "FACTOR", 5.0))
def a_helper_without_a_file(x):
    return scaled(x, by_exec(x))


@triton.heuristics({"BLOCK": lambda args: BLOCK})
@triton.jit(do_not_specialize=["n"])
def by_heuristics(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + BLOCK, mask=at < n)


@row(attribute(by_heuristics, "values", {"BLOCK": lambda args: 32}))
def the_values_of_heuristics(x):
    out = torch.empty_like(x)
    by_heuristics[(1,)](x, out, x.numel())
    return out


@row(item(by_heuristics.values, "BLOCK", lambda args: 32))
def one_of_the_values_of_heuristics(x):
    out = torch.empty_like(x)
    by_heuristics[(1,)](x, out, x.numel())
    return out


by_heuristics.gain = 2.0


@row(attribute(by_heuristics, "gain", 5.0))
def an_attribute_of_a_kernel(x):
    return scaled(x, by_heuristics.gain)


# -- identities ------------------------------------------------------------------------------------

ONE, OTHER = [1.0], [1.0]
TEXT, SAME_TEXT = "".join(["te", "xt"]), "".join(["t", "ext"])
NUMBER, SAME_NUMBER = int("1000"), int("1000")
NESTED = [ONE]


@row(set_global("NUMBER", 5))
def a_global_number(x):
    return scaled(x, float(NUMBER))


@row(set_global("OTHER", ONE))
def two_globals_become_one_object(x):
    return scaled(x, 2.0 if ONE is OTHER else 3.0)


@row(set_global("SAME_TEXT", TEXT), refused="by `is`")
def two_texts_become_one_object(x):
    return scaled(x, 2.0 if TEXT is SAME_TEXT else 3.0)


@row(set_global("SAME_NUMBER", NUMBER), refused="by `is`")
def two_numbers_become_one_object(x):
    return scaled(x, 2.0 if NUMBER is SAME_NUMBER else 3.0)


@row(item(NESTED, 0, [1.0]))
def a_list_in_a_list_is_replaced_by_an_equal_one(x):
    return scaled(x, 2.0 if NESTED[0] is ONE else 3.0)


@row(item(ONE, 0, 5.0))
def a_list_reached_by_two_names(x):
    return scaled(x, NESTED[0][0])


FROZEN = frozenset([8, 0])  # both have the same place in a table of eight
SAME_FROZEN = frozenset([0, 8])
assert list(FROZEN) != list(SAME_FROZEN)


@row(set_global("FROZEN", SAME_FROZEN))
def the_order_of_a_frozenset(x):
    first, *_ = FROZEN
    return scaled(x, float(first + 2))


SLICE = slice([2.0], None)


@row(item(SLICE.start, 0, 5.0))
def an_item_of_a_slice(x):
    return scaled(x, SLICE.start[0])


# -- methods that appear ---------------------------------------------------------------------------


class Sequence:
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, k):
        return self.items[k]


SEQUENCE = Sequence(2.0, 3.0)


def last(*numbers):
    return numbers[-1]


@row(added(Sequence, "__iter__", lambda self: iter((1.0, 5.0))))
def a_class_that_gets_iter_used_by_a_star(x):
    return scaled(x, last(*SEQUENCE))


@row(added(Sequence, "__iter__", lambda self: iter((1.0, 5.0))))
def a_class_that_gets_iter_used_by_a_loop(x):
    total = 0.0
    for each in SEQUENCE:
        total += each
    return scaled(x, total)


@row(added(Sequence, "__iter__", lambda self: iter((1.0, 5.0))))
def a_class_that_gets_iter_used_by_in(x):
    return scaled(x, 2.0 if 3.0 in SEQUENCE else 3.0)


@row(added(Sequence, "__bool__", lambda self: False))
def a_class_that_gets_a_truth(x):
    return scaled(x, 2.0 if SEQUENCE else 3.0)


PARAMETER = torch.nn.Parameter(torch.ones(4), requires_grad=False)


@row(added(torch.nn.Parameter, "relu", lambda self: self.data + 5.0))
def a_method_put_on_parameters(x):
    return scaled(x, 2.0) + PARAMETER.relu()


@row(added(torch.nn.Parameter, "gain", 5.0))
def an_attribute_put_on_parameters(x):
    return scaled(x, getattr(PARAMETER, "gain", 2.0))


# -- operators -------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("tzero_hostile", "DEF")
LIBRARY.define("filled(Tensor x) -> Tensor")
LIBRARY.define("cut(Tensor x) -> Tensor")
LIBRARY.define("same(Tensor x) -> Tensor")


def _filled(x):
    return torch.full((4,), SETTING[0])


def _cut(x):
    return x[int(SETTING[0]) - 2 :]


def _same(x):
    return x if SETTING[0] == 2.0 else x + 1


for _name, _function in (("filled", _filled), ("cut", _cut), ("same", _same)):
    LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")


@row(item(SETTING, 0, 5.0), refused="ran in the middle of it")
def a_composite_operator_that_allocates(x):
    return scaled(x, 2.0), torch.ops.tzero_hostile.filled(x)


@row(item(SETTING, 0, 3.0), refused="ran in the middle of it")
def a_composite_operator_that_makes_a_view(x):
    return scaled(x, 2.0), torch.ops.tzero_hostile.cut(x).sum()


@row(item(SETTING, 0, 5.0), refused="ran in the middle of it")
def a_composite_operator_that_returns_its_argument(x):
    return scaled(torch.ops.tzero_hostile.same(x), 2.0)


WEIGHT = torch.ones(4)


@row(done(lambda: WEIGHT.fill_(5.0), lambda: WEIGHT.fill_(1.0)), guarded=False)
def a_global_tensor_that_it_changes_in_place(x):
    WEIGHT.mul_(1.0).add_(x).sub_(x)
    return scaled(x, 2.0) + WEIGHT


def default(dtype):
    return lambda: torch.set_default_dtype(dtype)


@row(done(default(torch.float64), default(torch.float32)))
def a_range_of_the_default_dtype(x):
    return scaled(x, 2.0), torch.linspace(0, 1, 3, dtype=None)


# -- containers ------------------------------------------------------------------------------------


class Pair(NamedTuple):
    items: Any
    by: float = 2.0


PAIR = Pair([2.0])


@row(item(PAIR.items, 0, 5.0))
def a_list_in_a_named_tuple_that_is_unpacked(x):
    items, _ = PAIR
    return scaled(x, items[0])


@row(item(PAIR.items, 0, 5.0))
def a_list_in_a_named_tuple_by_name(x):
    return scaled(x, PAIR.items[0])


@row(item(PAIR.items, 0, 5.0))
def a_list_in_a_named_tuple_by_place(x):
    return scaled(x, PAIR[0][0])


@row(item(PAIR.items, 0, 5.0))
def a_named_tuple_that_is_given_to_a_function_in_c(x):
    return scaled(x, float(str(PAIR)[12]))


ORDERED = collections.OrderedDict(a=2.0, b=3.0)
DEFAULTS = collections.defaultdict(float, a=2.0)
QUEUE = collections.deque([2.0, 3.0])
CHAIN = collections.ChainMap({}, {"a": 2.0})


@row(item(ORDERED, "a", 5.0))
def an_item_of_an_ordered_dict(x):
    return scaled(x, ORDERED["a"])


@row(done(lambda: ORDERED.move_to_end("a"), lambda: ORDERED.move_to_end("b")))
def the_order_of_an_ordered_dict(x):
    return scaled(x, next(iter(ORDERED.values())))


@row(item(DEFAULTS, "a", 5.0))
def an_item_of_a_default_dict(x):
    return scaled(x, DEFAULTS["a"])


@row(done(lambda: QUEUE.rotate(1), lambda: QUEUE.rotate(-1)))
def an_item_of_a_queue(x):
    return scaled(x, QUEUE[0])


@row(item(CHAIN.maps[1], "a", 5.0), refused="CHAIN")
def an_item_of_a_chain_of_dicts(x):
    return scaled(x, CHAIN["a"])


@row(grown(SPACE.items, 3.0))
def the_length_of_a_list_of_an_object(x):
    return scaled(x, float(len(SPACE.items)))


VIEW = types.MappingProxyType(SPACE.__dict__)


@row(attribute(SPACE, "options", Options(by=5.0)))
def a_view_of_a_dict(x):
    return scaled(x, VIEW["options"].by)
