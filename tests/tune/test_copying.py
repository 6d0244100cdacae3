"""Copies of arguments have memory of their own, laid out as in the originals."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tzero.errors import UnsupportedType
from tzero.tune.compare import same
from tzero.tune.copying import Copies, copies

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    weight: torch.Tensor
    name: str = "w"


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    place = (tensor.stride(), tensor.storage_offset(), tensor.data_ptr() % 16)
    return (tensor.dtype, tensor.shape, *place, tensor.untyped_storage().nbytes())


def test_copies_have_equal_values_in_memory_of_their_own() -> None:
    args = ([torch.arange(4.0)], {"b": torch.ones(2)}, Pair(torch.zeros(3), 1), 5, "x", None)
    made = copies(args)
    assert same(made, args)
    made[0][0].zero_()
    made[1]["b"].zero_()
    made[2].left.fill_(1)
    assert args[0][0].tolist() == [0, 1, 2, 3]
    assert args[1]["b"].tolist() == [1, 1]
    assert args[2].left.tolist() == [0, 0, 0]


def test_types_of_collections_are_kept() -> None:
    args = [OrderedDict(a=torch.ones(1)), Pair(1, torch.ones(1)), Frozen(torch.ones(2)), (1, 2)]
    made = copies(args)
    assert [type(each) for each in made] == [OrderedDict, Pair, Frozen, tuple]
    assert made[2].weight is not args[2].weight
    assert made[3] is args[3]


def test_tensors_that_share_memory_share_it_in_the_copies() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    whole, row, turned, other = copies((x, x[1], x.t(), torch.zeros(12)))
    row.fill_(-1)
    assert whole[1].tolist() == [-1] * 4
    assert turned[0, 1] == -1
    assert other.sum() == 0
    assert x.min() == 0


def test_one_object_stays_one_object_in_the_copies() -> None:
    x, box = torch.ones(2), [torch.ones(1)]
    a, b, c, d = copies((x, x, box, box))
    assert a is b and c is d
    assert a is not x and c is not box


def test_a_list_that_contains_itself_is_copied() -> None:
    box: list[Any] = [torch.ones(1)]
    box.append(box)
    made = copies(box)
    assert made[1] is made
    assert made[0] is not box[0]


def test_memory_shared_by_dlpack_is_shared_again() -> None:
    x = torch.arange(8.0)
    y = torch.from_dlpack(x[3:6])
    a, b = copies((x, y))
    b.fill_(-1)
    assert a.tolist() == [0, 1, 2, -1, -1, -1, 6, 7]
    assert (facts(a), facts(b)) == (facts(x), facts(y))


@given(
    st.integers(0, 40),
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 7), min_size=3, max_size=3),
    st.integers(0, 9),
    st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64]),
)
def test_strides_offsets_and_alignment_are_kept(
    ahead: int, sizes: list[int], strides: list[int], offset: int, dtype: torch.dtype
) -> None:
    raw = torch.from_dlpack(torch.arange(2048).to(torch.uint8)[ahead * 8 :])
    storage = raw.untyped_storage()
    x = torch.empty(0, dtype=dtype).set_(storage, offset, sizes, strides[: len(sizes)])
    y = copies(x)
    assert facts(y) == facts(x)
    assert same(y, x)
    assert y.numel() == 0 or y.data_ptr() != x.data_ptr()


def test_an_alignment_that_no_allocator_gives_is_kept() -> None:
    base = torch.zeros(1024, dtype=torch.uint8)
    for shift in (1, 4, 8, 12, 16, 20):
        x = torch.from_dlpack(base[shift:])
        assert copies(x).data_ptr() % 512 == x.data_ptr() % 512


def test_parameters_grads_attributes_and_lazy_conjugation_are_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    leaf = torch.ones(2, requires_grad=True)
    marked = torch.ones(2, 3)
    torch._dynamo.mark_static(marked, 0)
    conj = torch.tensor([1 + 2j]).conj()
    a, b, c, d, e = copies((weight, leaf, marked, conj, conj.imag))
    assert type(a) is torch.nn.Parameter and a.requires_grad
    assert b.requires_grad and b.is_leaf
    assert c._dynamo_static_indices == marked._dynamo_static_indices
    assert d.is_conj() and d.tolist() == [1 - 2j]
    assert e.is_neg() and e.tolist() == [-2]


def test_copies_of_tensors_that_are_not_leaves_can_be_modified_in_place() -> None:
    leaf = torch.ones(3, requires_grad=True)
    plain, turned = leaf * 2, (torch.tensor([1 + 2j]).requires_grad_() * 1).conj()
    mine, other = copies((plain, turned))
    assert mine.requires_grad and not mine.is_leaf and not mine._is_view()
    assert other.requires_grad and not other.is_leaf and other.is_conj()
    mine.mul_(3)
    other.mul_(2)
    mine.sum().backward()  # no gradient flows further: its inputs were not copied
    assert (mine.tolist(), plain.tolist()) == ([6.0] * 3, [2.0] * 3)
    assert (other.tolist(), turned.tolist()) == ([2 - 4j], [1 - 2j])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        copies(leaf).mul_(3)


def test_tensors_without_memory_are_copied() -> None:
    empty, meta = torch.empty(0, 3), torch.empty(5, device="meta")
    a, b = copies((empty, meta))
    assert a is not empty and a.shape == (0, 3)
    assert b is not meta and b.device.type == "meta" and b.shape == (5,)


def test_tensors_that_cannot_be_copied_are_rejected() -> None:
    with pytest.raises(UnsupportedType, match="sparse"):
        copies([torch.ones(2).to_sparse()])


def test_restoring_after_a_resize_is_an_error() -> None:
    x = torch.ones(4)
    held = Copies([x])
    x.resize_(400)
    with pytest.raises(RuntimeError, match="size does not match"):
        held.restore()
