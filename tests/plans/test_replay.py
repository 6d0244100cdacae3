"""What host functions may do and still be replayed: allocations, views, results.

Every operation is compared with tier 0 on tensors of random geometry, and must be replayed.
"""

from __future__ import annotations

import math
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tzero
from tests.plans.hosts import gathered, increased, scaled, stamped
from tests.plans.tiers import Pair

CHECKS = settings(
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def tensor(size: tuple[int, ...], order: tuple[int, ...], step: int, dtype: torch.dtype) -> Any:
    """A random tensor with permuted dimensions and gaps in its memory."""
    whole = torch.randint(-50, 50, [*(size[k] for k in order), step]).to(dtype)
    return whole.permute(*(order.index(k) for k in range(len(size))), len(size))[..., -1]


@st.composite
def geometries(draw: st.DrawFn, least: int = 1, most: int = 3) -> tuple[Any, ...]:
    size = tuple(draw(st.lists(st.integers(1, 4), min_size=least, max_size=most)))
    order = tuple(draw(st.permutations(range(len(size)))))
    dtype = draw(st.sampled_from([torch.float32, torch.int32]))
    return size, order, draw(st.integers(1, 2)), dtype


# -- allocations -----------------------------------------------------------------------------------

ALLOCATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    "empty of numbers": lambda x: torch.empty(3, x.size(0), dtype=x.dtype),
    "empty_like": lambda x: torch.empty_like(x),
    "empty_like, contiguous": lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    "empty_like, of a dtype": lambda x: torch.empty_like(x, dtype=torch.float64),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2), dtype=x.dtype),
    "empty_strided, with gaps": lambda x: torch.empty_strided((2, 3), (9, 2), dtype=x.dtype),
    "new_empty": lambda x: x.new_empty(4, 2),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 2), (1, 2)),
    "empty of the default dtype": lambda x: torch.empty(5),
    "empty, transposed": lambda x: torch.empty(2, 3, dtype=x.dtype).t(),
    "no elements": lambda x: torch.empty(0, 3, dtype=x.dtype),
    "no dimensions": lambda x: torch.empty((), dtype=x.dtype),
}

FILLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": lambda x: torch.zeros(x.shape, dtype=x.dtype),
    "ones": lambda x: torch.ones(3, 2, dtype=x.dtype),
    "full": lambda x: torch.full((4,), 7, dtype=x.dtype),
    "full of a fraction": lambda x: torch.full((4,), -2.5, dtype=x.dtype),
    "full of minus zero": lambda x: torch.full((4,), -0.0, dtype=torch.float32),
    "full of nan": lambda x: torch.full((2,), math.nan, dtype=torch.float32),
    "full of infinity": lambda x: torch.full((2,), -math.inf, dtype=torch.float32),
    "full of an int, of no dtype": lambda x: torch.full((3,), 2),
    "full of a bool, of a dtype": lambda x: torch.full((3,), True, dtype=x.dtype),
    "zeros_like": lambda x: torch.zeros_like(x),
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.float64),
    "full_like": lambda x: torch.full_like(x, 3),
    "new_zeros": lambda x: x.new_zeros(2, 2),
    "new_ones": lambda x: x.new_ones((3,)),
    "new_full": lambda x: x.new_full((2,), 9),
    "zero_": lambda x: torch.empty_like(x).zero_(),
    "fill_": lambda x: torch.empty_like(x).fill_(4),
    "fill_ of a view": lambda x: torch.zeros(4, dtype=x.dtype).fill_(1).view(2, 2).fill_(5),
    "setting a part": lambda x: _set(torch.ones(4, dtype=x.dtype)),
    "eye": lambda x: torch.eye(3, dtype=x.dtype),
    "arange": lambda x: torch.arange(4, dtype=x.dtype),
    "tensor": lambda x: torch.tensor([1.0, 2.5]),
    "linspace": lambda x: torch.linspace(0, 1, 5),
}


def _set(x: torch.Tensor) -> torch.Tensor:
    x[1:] = 3
    x[0] = 2
    return x


def allocating(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def host(x):
        return stamped(op(x)), gathered(x)

    return host


def filling(op: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def host(x):
        out = op(x)
        return out, gathered(out)

    return host


@pytest.mark.parametrize("name", ALLOCATIONS)
@CHECKS
@given(geometry=geometries())
def test_new_memory_is_new_in_each_call(name: str, pair: Any, geometry: Any) -> None:
    pair(allocating(ALLOCATIONS[name])).replays(lambda: (tensor(*geometry),))


@pytest.mark.parametrize("name", FILLED)
@CHECKS
@given(geometry=geometries())
def test_filled_memory_is_filled_in_each_call(name: str, pair: Any, geometry: Any) -> None:
    pair(filling(FILLED[name])).replays(lambda: (tensor(*geometry),))


# -- views -----------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(*reversed(range(x.dim()))),
    "torch.permute": lambda x: torch.permute(x, (*range(1, x.dim()), 0)),
    "movedim": lambda x: torch.movedim(x, 0, -1),
    "swapaxes": lambda x: x.swapaxes(0, -1),
    "slice": lambda x: x[1:],
    "slice from behind": lambda x: x[-1:],
    "slice with a step": lambda x: x[::2],
    "slice of the last": lambda x: x[..., :1],
    "None": lambda x: x[None],
    "index": lambda x: x[-1],
    "index of all": lambda x: x[(0,) * x.dim()],
    "select": lambda x: x.select(-1, 0),
    "narrow": lambda x: x.narrow(0, x.size(0) - 1, 1),
    "expand": lambda x: x[:1].expand(3, *x.shape[1:]),
    "expand_as": lambda x: x[:1].expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, *x.shape)),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:1])[1],
    "squeeze": lambda x: x.unsqueeze(0).squeeze(),
    "squeeze of one": lambda x: x.unsqueeze(0).squeeze(0),
    "unflatten": lambda x: x.unflatten(0, (1, -1)),
    "flatten": lambda x: x.flatten(),
    "view": lambda x: x.contiguous().view(-1),
    "view_as": lambda x: x.contiguous().view_as(x),
    "view as another dtype": lambda x: x.new_ones(4).view(torch.int16).view(x.dtype),
    "reshape": lambda x: x.reshape(-1),
    "reshape to itself": lambda x: x.reshape(x.shape),
    "ravel": lambda x: torch.ravel(x),
    "as_strided": lambda x: x.as_strided((1, 1), (1, 1)),
    "as_strided from a place": lambda x: x.as_strided((1,), (1,), 0),
    "as_strided of new memory": lambda x: x.new_ones(6).as_strided((2, 2), (1, 3), 1),
    "as_strided of a part": lambda x: x.new_ones(6)[2:].as_strided((2,), (1,), 1),
    "diagonal": lambda x: x.unsqueeze(0).diagonal(0, 0, 1),
    "unfold": lambda x: x.unfold(0, 1, 1),
    "unbind": lambda x: x.unbind(0)[-1],
    "split": lambda x: x.split(1)[-1],
    "split of sizes": lambda x: torch.split(x, [x.size(0) - 1, 1])[1],
    "chunk": lambda x: x.chunk(2)[0],
    "tensor_split": lambda x: x.tensor_split(2)[0],
    "contiguous": lambda x: x.contiguous(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: torch.ops.aten.alias(x),
    "to itself": lambda x: x.to(x.dtype),
    "T": lambda x: x.flatten().unsqueeze(0).T,
    "t": lambda x: x.flatten().unsqueeze(1).t(),
    "mT": lambda x: x.unsqueeze(0).mT if x.dim() < 3 else x.mT,
    "atleast_2d": lambda x: torch.atleast_2d(x),
    "a row of it": lambda x: next(row for row in x),
    "of a view of a view": lambda x: x[1:].transpose(0, -1)[..., ::2].unsqueeze(0),
}


def viewing(op: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def host(x):
        view = op(x)
        return view, gathered(view)

    return host


def writing(op: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def host(x):
        stamped(op(x))
        return gathered(x)

    return host


@pytest.mark.parametrize("name", VIEWS)
@CHECKS
@given(geometry=geometries())
def test_a_view_is_of_the_memory_of_each_calls_own_tensor(
    name: str, pair: Any, geometry: Any
) -> None:
    pair(viewing(VIEWS[name])).replays(lambda: (tensor(*geometry),))


@pytest.mark.parametrize("name", sorted(VIEWS.keys() - {"expand", "expand_as", "unfold"}))
def test_what_is_written_through_a_view_is_in_the_tensor(name: str, pair: Any) -> None:
    pair(writing(VIEWS[name])).replays(lambda: (tensor((3, 2, 4), (1, 0, 2), 2, torch.float32),))


# -- results ---------------------------------------------------------------------------------------


class Both(NamedTuple):
    one: Any
    other: Any


Other = namedtuple("Both", ["other", "one"])
Tensor = namedtuple("Tensor", ["torch"])

RESULTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a tensor": lambda x, out: out,
    "nothing": lambda x, out: None,
    "a number": lambda x, out: 3,
    "minus zero": lambda x, out: -0.0,
    "text": lambda x, out: 'it\'s "said"\n',
    "a shape": lambda x, out: x.shape,
    "a dtype": lambda x, out: (x.dtype, x.device),
    "a slice and dots": lambda x, out: (slice(1, None), ...),
    "a complex number": lambda x, out: complex(1.0, -0.0),
    "infinities": lambda x, out: (math.inf, -math.inf, math.nan),
    "bytes and bools": lambda x, out: (b"\x00'", True, 1, 1.0, 2**70),
    "a tuple": lambda x, out: (out, 1),
    "a tuple of one": lambda x, out: (out,),
    "an empty tuple": lambda x, out: (),
    "a list": lambda x, out: [out, None],
    "an empty dict": lambda x, out: {},
    "a dict": lambda x, out: {"out": out, 3: "three", None: [out]},
    "a named tuple": lambda x, out: Both(out, x),
    "two kinds of the same name": lambda x, out: (Both(out, x), Other(1, out)),
    "a kind with the name of torch's": lambda x, out: (Tensor(out), out.unsqueeze(0)),
    "nested": lambda x, out: [({"a": (out, [x])},), Both([out], (None,))],
    "an input": lambda x, out: x,
    "an input and its view": lambda x, out: (x, x[1:], x.view(-1)),
    "the same twice": lambda x, out: (out, out, [out]),
    "views of one": lambda x, out: (out[:1], out[1:], out.view(-1), out),
    "a view alone": lambda x, out: out.view(-1)[1:],
    "the same view twice": lambda x, out: (lambda v: (v, v))(out.view(-1)),
}


def returning(op: Callable[..., Any]) -> Callable[..., Any]:
    def host(x):
        return op(x, scaled(x, 3.0))

    return host


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_made_as_the_host_function_makes_it(name: str, pair: Any) -> None:
    pair(returning(RESULTS[name])).replays(lambda: (torch.randn(3, 2),))


def the_same_list_twice(x):
    both = [scaled(x, 2.0)]
    return both, both


def test_a_list_that_is_returned_twice_is_one(pair: Any) -> None:
    found: Pair = pair(the_same_list_twice)
    for _ in range(3):
        found(torch.randn(3))


def the_list_it_was_given(xs):
    increased(xs[0], 1.0)
    return xs


def test_a_list_that_was_given_is_returned_itself(pair: Any) -> None:
    found: Pair = pair(the_list_it_was_given)
    for _ in range(3):
        found([torch.randn(3)])


def test_a_module_that_the_first_call_imports_does_not_prevent_later_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text("BY = 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    @tzero.kernel
    def host(x):
        from imported_late import BY

        return scaled(x, BY)

    x = torch.randn(8)
    for _ in range(3):
        assert torch.equal(host(x), x * 3)
    assert host.stats().recordings == 1
    sys.modules["imported_late"].BY = 5.0
    assert torch.equal(host(x), x * 5)
    monkeypatch.delitem(sys.modules, "imported_late")
