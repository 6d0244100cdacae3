"""The classification of torch's functions and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tzero.plans import torch_ops
from tzero.plans.torch_ops import NOTHING, Picked, Ran


class Listening(TorchDispatchMode):
    """Collects the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Ran] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran.append(Ran(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def only(call: Callable[[], Any]) -> Ran:
    with Listening() as listening:
        call()
    (ran,) = listening.ran
    return ran


x = torch.ones(2, 3)

ALLOCATIONS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: torch.empty(3), NOTHING),
    (lambda: torch.empty_like(x), NOTHING),
    (lambda: torch.empty_strided((2,), (1,)), NOTHING),
    (lambda: x.new_empty(3), NOTHING),
    (lambda: torch.zeros(3), 0),
    (lambda: torch.ones_like(x), 1),
    (lambda: torch.full((3,), 2.5), 2.5),
    (lambda: torch.full_like(x, True), True),
    (lambda: x.new_full((2,), fill_value=7), 7),
    (lambda: torch.full((3,), 1j), None),
    (lambda: x.clone(), None),
    (lambda: torch.rand(3), None),
    (lambda: x.view(-1), None),
    (lambda: torch.arange(3), None),
]


@pytest.mark.parametrize("k", range(len(ALLOCATIONS)))
def test_an_allocation_says_what_it_is_filled_with(k: int) -> None:
    call, filling = ALLOCATIONS[k]
    found = torch_ops.allocates(only(call))
    assert (
        found is filling
        if filling is NOTHING
        else (type(found), found)
        == (
            type(filling),
            filling,
        )
    )


FILLS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: x.clone().zero_(), 0),
    (lambda: torch.empty(3).zero_(), 0),
    (lambda: torch.empty(3).fill_(-0.0), -0.0),
    (lambda: torch.empty(3).fill_(True), True),
]


@pytest.mark.parametrize("k", range(len(FILLS)))
def test_a_fill_gives_its_number(k: int) -> None:
    call, number = FILLS[k]
    with Listening() as listening:
        call()
    found = torch_ops.fills(listening.ran[-1])
    assert repr(found) == repr(number)


@pytest.mark.parametrize("call", [lambda: x.add(1), lambda: x.view(-1), lambda: torch.zeros(2)])
def test_no_other_operator_fills(call: Any) -> None:
    assert torch_ops.fills(only(call)) is NOTHING


def test_filling_with_a_tensor_is_no_filling_with_a_number() -> None:
    with Listening() as listening:
        torch.empty(3).fill_(torch.ones(()))
    assert torch_ops.fills(listening.ran[-1]) is NOTHING


VIEWS = [
    *(lambda: x.view(-1), lambda: x.t(), lambda: x[0], lambda: x[:, 1:], lambda: x.unbind(0)),
    *(lambda: x.split(1), lambda: x.expand(4, 2, 3), lambda: x.detach(), lambda: x.diagonal()),
    *(lambda: x.as_strided((2,), (1,)), lambda: x.unsqueeze(0)),
]
COPIES = [
    *(lambda: x.clone(), lambda: x + 1, lambda: x.clone().t_(), lambda: x.sum()),
    *(lambda: torch.empty(3), lambda: x.clone().add_(1)),
]


@pytest.mark.parametrize("call", VIEWS)
def test_views_are_recognized(call: Any) -> None:
    with Listening() as listening:
        call()
    assert listening.ran
    assert all(map(torch_ops.is_geometry, listening.ran))


@pytest.mark.parametrize("call", COPIES)
def test_what_makes_or_changes_memory_is_no_view(call: Any) -> None:
    with Listening() as listening:
        call()
    assert not torch_ops.is_geometry(listening.ran[-1])


def test_only_a_view_that_says_where_it_begins_is_absolute() -> None:
    assert torch_ops.is_absolute(only(lambda: x.as_strided((2,), (1,), 1)))
    assert torch_ops.is_absolute(only(lambda: x.as_strided((2,), (1,), 0)))
    assert not torch_ops.is_absolute(only(lambda: x.as_strided((2,), (1,))))
    assert not torch_ops.is_absolute(only(lambda: x.view(-1)))


PLAIN = [torch.empty(3), torch.empty(0), torch.empty(()), torch.empty(2, 3).t()]
NOT_PLAIN = [
    *(torch.empty(4)[1:], torch.empty(3, requires_grad=True), torch.empty(3, device="meta")),
    *(torch.empty(3, dtype=torch.complex64), torch.empty_strided((2,), (2,))),
    *(torch.nn.Parameter(torch.empty(3)), torch.eye(3).to_sparse(), torch.empty(4)[:3]),
]


def test_plain_memory_is_dense_whole_and_nothing_special() -> None:
    assert all(map(torch_ops.is_plain, PLAIN))
    assert not any(map(torch_ops.is_plain, NOT_PLAIN))


def test_views_share_memory_with_their_base_and_nothing_else_does() -> None:
    assert torch_ops.shares_memory(x[1:], x)
    assert not torch_ops.shares_memory(x.clone(), x)
    assert not torch_ops.shares_memory(x.view(torch.int32), x)
    needing = torch.ones(3, requires_grad=True)
    assert not torch_ops.shares_memory(needing.view(-1), needing)
    assert torch_ops.shares_memory(needing.detach(), needing)
    wave = torch.ones(3, dtype=torch.complex64)
    assert not torch_ops.shares_memory(wave.conj(), wave)


@pytest.mark.parametrize("name", ["Tensor.size", "Tensor.shape.__get__", "numel"])
def test_functions_that_the_key_determines_are_reads(name: str) -> None:
    assert torch_ops.is_read(name)


@pytest.mark.parametrize(
    "name", ["Tensor.item", "Tensor.data_ptr", "Tensor.is_inference", "Tensor.grad.__get__", "add"]
)
def test_other_functions_are_not_reads(name: str) -> None:
    assert not torch_ops.is_read(name)


def test_one_of_several_results_equals_the_same_one() -> None:
    assert Picked(torch.unbind, 1) == Picked(torch.unbind, 1)
    assert hash(Picked(torch.unbind, 1)) == hash(Picked(torch.unbind, 1))
    assert Picked(torch.unbind, 1) != Picked(torch.unbind, 0)
    assert Picked(torch.unbind, 1) != Picked(torch.split, 1)
    assert Picked(torch.split, 1)(torch.arange(4), 2).tolist() == [2, 3]
