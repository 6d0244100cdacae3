"""Host functions that are not replayed: side effects, hidden state, unsupported arguments."""

from __future__ import annotations

import dataclasses
import datetime as dates
import itertools
import math
import random
import sys
import time
from random import random as one_of_many
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.plans.hosts import added, increased, scaled
from tests.plans.kernels import scale
from tests.plans.refusing import table

ROWS = table()
refused = ROWS.add


# -- side effects and hidden state -----------------------------------------------------------------

COUNT, LIST, TABLE, FORMAT = 0, [], {}, "{}"


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


COUNTER, NUMBERS, ARRAY = Counter(), itertools.count(), np.ones(3, np.float32)
NEXT = itertools.count().__next__


@refused("assigns the global 'COUNT'")
def a_global_is_assigned(x):
    global COUNT
    COUNT += 1  # here
    return scaled(x, float(COUNT > 0))


@refused("changes while it runs")
def a_global_list_grows(x):
    LIST.append(1)
    return scaled(x, 2.0)


@refused("changes while it runs")
def a_global_table_grows(x):
    TABLE[len(TABLE)] = 1
    return scaled(x, 2.0)


@refused("calls print")
def printing(x):
    print(end="")  # here
    return scaled(x, 2.0)


@refused("time.time")
def a_clock(x):
    return scaled(x, 2.0 if time.time() > 0 else 3.0)  # here


@refused("time.perf_counter")
def a_clock_by_name(x):
    return scaled(x, 2.0 if perf_counter() > 0 else 3.0)  # here


@refused("time.monotonic")
def a_clock_that_it_imports(x):
    import time as clock

    return scaled(x, 2.0 if clock.monotonic() > 0 else 3.0)  # here


@refused("datetime.datetime")
def a_date(x):
    return scaled(x, 2.0 if dates.datetime.now() else 3.0)  # here


@refused("random.random")
def chance(x):
    return scaled(x, 2.0 if random.random() < 2 else 3.0)  # here


@refused("random")
def chance_by_name(x):
    return scaled(x, 2.0 if one_of_many() < 2 else 3.0)  # here


@refused("numpy.random.rand")
def chance_of_numpy(x):
    return scaled(x, 2.0 if np.random.rand() < 2 else 3.0)  # here


@refused("sys.stdout")
def writing(x):
    sys.stdout.write("")  # here
    return scaled(x, 2.0)


@refused("manual_seed")
def seeding(x):
    torch.manual_seed(3)  # here
    return scaled(x, 2.0) + torch.rand(5)


@refused("torch.set_default_dtype")
def another_default(x):
    torch.set_default_dtype(torch.float32)  # here
    return scaled(x, 2.0)


@refused("it assigns the attribute")
def a_method_of_a_global_object(x):
    return scaled(x, float(COUNTER.next() > 0))


@refused("to next, whose reads tzero does not see")
def an_iterator(x):
    return scaled(x, float(next(NUMBERS) >= 0))  # here


@refused("which may change it")
def an_iterator_behind_a_method(x):
    return scaled(x, float(NEXT() >= 0))  # here


@refused("tzero cannot see changes of a ndarray")
def an_array_in_a_global(x):
    return scaled(x, float(ARRAY[0]))  # here


@refused("outside of any torch function")
def a_tensor_from_numpy(x):
    return added(x, torch.from_numpy(np.ones(5, np.float32)))


@torch.compile(backend="eager")
def compiled(x):
    return x * 2


@refused("compiled by torch.compile")
def a_compiled_helper(x):
    return scaled(compiled(x), 2.0)  # here


@refused("torch.compile")
def compiling(x):
    return scaled(torch.compile(math.sin, backend="eager") and x, 2.0)  # here


# -- arguments -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    by: float


def plus(x: Any) -> Any:
    return increased(x, 1.0)


@refused("argument 'f' is a function", lambda: (torch.randn(5), plus))
def a_function_as_argument(x, f):
    return f(x)


@refused("argument 'options' is an Options", lambda: (torch.randn(5), Options(2.0)))
def a_dataclass_as_argument(x, options):
    return scaled(x, options.by)


class Point(NamedTuple):
    x: Any


@refused("argument 'point' is a Point", lambda: (Point(torch.ones(3)),))
def a_named_tuple_as_argument(point):
    return scaled(point.x, 2.0)


@refused("argument 'table' is a dict", lambda: ({1: torch.ones(3)},))
def a_dict_by_numbers_as_argument(table):
    return scaled(table[1], 2.0)


def several() -> tuple[Any, ...]:
    return ([torch.randn(3), torch.randn(3)],)


@refused("changes the items or the geometry", several)
def a_list_that_grows(xs):
    xs.append(scaled(xs[0], 2.0))


@refused("changes the items or the geometry", several)
def a_list_with_another_tensor_in_it(xs):
    xs[0] = scaled(xs[0], 2.0)


@refused("changes the items or the geometry", several)
def a_list_in_another_order(xs):
    increased(xs[0], 1.0)
    xs.reverse()


@refused("changes the items or the geometry", lambda: ({"a": torch.randn(3)},))
def a_dict_with_another_name(xs):
    xs["b"] = scaled(xs.pop("a"), 2.0)


# -- launches and modes ----------------------------------------------------------------------------


@refused("it catches an exception of")
def an_operator_that_raises(x):
    try:
        x.view(2, 2)  # here
    except RuntimeError:
        return scaled(x, 2.0)


@refused("it catches an exception of")
def a_launch_that_raises(x):
    try:
        scale[(1,)](x, x, 2.0)  # here
    except TypeError:
        return scaled(x, 2.0)


@refused("whose origin tzero did not see", lambda: (torch.randn(3), torch.randn(3)))
def a_parameter_of_its_own(x, y):
    weight = torch.nn.Parameter(torch.ones(3))
    return added(x, weight)


@refused("launches no kernel")
def nothing_is_launched(x):
    return x + 1
