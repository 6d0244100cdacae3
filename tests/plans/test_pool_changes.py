"""Output pools: a changed output is not reused.

Every test also demands that other outputs are reused; without rings all would pass otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.plans.pooled import KEPT, SIZE, Pooled, assert_as_new

pytestmark = pytest.mark.usefixtures("replaying")

WEIGHT = torch.ones(SIZE, requires_grad=True)


class Sub(torch.Tensor):
    pass


def swapped(out: torch.Tensor) -> None:
    torch.utils.swap_tensors(out, torch.zeros(SIZE))


def with_a_gradient(out: torch.Tensor) -> None:
    out.requires_grad_()
    (out * 2).sum().backward()
    out.requires_grad_(False)


def with_a_hook(out: torch.Tensor) -> None:
    out.requires_grad_().register_hook(lambda gradient: None)
    out.requires_grad_(False)


def with_a_hook_after_accumulation(out: torch.Tensor) -> None:
    out.requires_grad_().register_post_accumulate_grad_hook(lambda x: None)
    out.requires_grad_(False)


def with_a_cycle(out: torch.Tensor) -> None:
    out.itself = out  # type: ignore[attr-defined]


def part_of_a_graph(out: torch.Tensor) -> None:
    out.mul_(WEIGHT)


def stored_in_no_memory(out: torch.Tensor) -> None:
    out.untyped_storage().resize_(0)


def stored_in_more(out: torch.Tensor) -> None:
    out.untyped_storage().resize_(4096)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda out: out.add_(1),
    "add_ to a view": lambda out: out[1:].add_(1),
    "add_ to what is detached": lambda out: out.detach().add_(1),
    "zero_": lambda out: out.zero_(),
    "copy_": lambda out: out.copy_(torch.ones(SIZE)),
    "setting an element": lambda out: out.__setitem__(0, 9.0),
    "out=": lambda out: torch.neg(torch.ones(SIZE), out=out),
    "resize_ to less": lambda out: out.resize_(4),
    "resize_ to more": lambda out: out.resize_(100),
    "resize_ to another shape": lambda out: out.resize_(2, 4),
    "t_": lambda out: out.unsqueeze_(0).t_(),
    "unsqueeze_": lambda out: out.unsqueeze_(0),
    "as_strided_": lambda out: out.as_strided_((4,), (2,), 1),
    "set_ to another": lambda out: out.set_(torch.zeros(SIZE)),
    "set_ to nothing": lambda out: out.set_(),
    "set_ to a part of itself": lambda out: out.set_(out.untyped_storage(), 1, (4,), (1,)),
    "data of another": lambda out: setattr(out, "data", torch.zeros(SIZE)),
    "data of a part": lambda out: setattr(out, "data", out.data[1:]),
    "data of its beginning": lambda out: setattr(out, "data", out.data[:4]),
    "data in other steps": lambda out: setattr(out, "data", out.data.as_strided((SIZE,), (0,))),
    "data of its own as integers": lambda out: setattr(out, "data", out.data.view(torch.int32)),
    "data of another dtype": lambda out: setattr(out, "data", torch.zeros(SIZE).double()),
    "swapped": swapped,
    "a storage of nothing": stored_in_no_memory,
    "a storage of more": stored_in_more,
    "shared": lambda out: out.share_memory_(),
    "requires_grad_": lambda out: out.requires_grad_(True),
    "part of a graph": part_of_a_graph,
    "a gradient left": with_a_gradient,
    "a gradient given": lambda out: setattr(out, "grad", torch.ones(SIZE)),
    "a hook": with_a_hook,
    "a hook after accumulation": with_a_hook_after_accumulation,
    "negated": lambda out: torch._C._set_neg(out, True),
    "an attribute": lambda out: setattr(out, "mark", 1),
    "itself as an attribute": with_a_cycle,
    "another class": lambda out: setattr(out, "__class__", Sub),
    "made a parameter": lambda out: setattr(out, "__class__", torch.nn.Parameter),
}

HARMLESS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing": lambda out: None,
    "looked at": lambda out: (out + 1, out.sum().item(), str(out), out.tolist(), len(out)),
    "viewed": lambda out: (out[1:], out.view(2, 4).t(), list(out.unbind())),
    "detached": lambda out: out.detach(),
    "as an array": lambda out: out.numpy()[1:],
    "through DLPack": lambda out: torch.from_dlpack(out),
    "in a graph": lambda out: (WEIGHT * out).sum().backward(),
    "an attribute that is gone": lambda out: (setattr(out, "mark", 1), delattr(out, "mark")),
    "a weak reference that is gone": lambda out: weakref.ref(out),
    "written as an array": lambda out: out.numpy().fill(3.0),
}

UNDONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "requires_grad_ and back": lambda out: out.requires_grad_().requires_grad_(False),
    "resize_ and back": lambda out: out.resize_(4).resize_(SIZE),
    "unsqueeze_ and back": lambda out: out.unsqueeze_(0).squeeze_(0),
    "negated and back": lambda out: [torch._C._set_neg(out, flag) for flag in (True, False)],
    "class and back": lambda out: [setattr(out, "__class__", of) for of in (Sub, torch.Tensor)],
    "retain_grad and back": lambda out: [
        out.requires_grad_().retain_grad(),
        out.requires_grad_(False),
    ],
    "data of itself": lambda out: setattr(out, "data", out.data),
    "a storage of nothing and back": lambda out: [
        out.untyped_storage().resize_(size) for size in (0, 4 * SIZE)
    ],
    "a storage that is too short": lambda out: [
        out.untyped_storage().resize_(size) for size in (0, 4)
    ],
}


def change(pooled: Pooled, how: Callable[[torch.Tensor], Any]) -> int:
    """Change the output of a call and drop it; returns its address."""
    out = pooled(5.0)
    how(out)
    return id(out)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_output_is_not_reused(name: str, tier: int) -> None:
    pooled = Pooled(tier)
    change(pooled, CHANGES[name])
    reused = pooled.reused
    out = pooled(6.0)
    assert_as_new(out, 6.0)
    assert pooled.reused == reused, "it was handed out"
    del out
    # Another one takes its place, and is reused.
    for k in range(2 * KEPT):
        change(pooled, CHANGES[name])
        assert_as_new(pooled(float(k)), float(k))
    pooled.clear()
    reused = pooled.reused
    for _ in range(2):
        pooled(1.0)
    assert pooled.reused == reused + 1


@pytest.mark.parametrize("name", HARMLESS)
def test_an_unchanged_output_is_reused(name: str, tier: int) -> None:
    pooled = Pooled(tier)
    for k in range(3):
        changed, reused = change(pooled, HARMLESS[name]), pooled.reused
        out = pooled(float(k))
        assert (id(out), pooled.reused) == (changed, reused + 1)
        assert torch.equal(out, torch.full((SIZE,), 2.0 * k)) and vars(out) == {}
        assert out.grad is None and not out.requires_grad and out._version == 0
        del out


@pytest.mark.parametrize("name", UNDONE)
def test_an_output_that_was_changed_back_is_as_new_if_it_is_reused(name: str, tier: int) -> None:
    pooled = Pooled(tier)
    for k in range(3):
        change(pooled, UNDONE[name])
        assert_as_new(pooled(float(k)), float(k))
