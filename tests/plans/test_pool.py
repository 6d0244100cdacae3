"""Output pools: an output is reused only if nothing at all refers to it.

Every test also demands that dropped outputs are reused; without rings all would pass otherwise.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.plans.pooled import KEPT, SIZE, Pooled, assert_as_new, bytes_at
from tests.plans.tiers import available

pytestmark = pytest.mark.usefixtures("replaying")

WEIGHT = torch.ones(SIZE, requires_grad=True)


class InThread:
    """Another thread that holds an object in a local variable."""

    def __init__(self, thing: Any) -> None:
        self._end = threading.Event()
        box = [thing]
        self._thread = threading.Thread(target=self._run, args=(box,))
        self._thread.start()
        while box:  # only the thread refers to it then
            pass

    def _run(self, box: list[Any]) -> None:
        mine = box.pop()
        self._end.wait(30)
        del mine

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, out: Any) -> Any:
        ctx.save_for_backward(out)
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.saved_tensors[0], None


def in_a_closure(out: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: out


def in_a_generator(out: torch.Tensor) -> Iterator[Any]:
    def values() -> Iterator[Any]:
        part = out[2:]
        yield 0
        yield part

    started = values()
    next(started)
    return started


def as_a_default(out: torch.Tensor) -> Callable[..., torch.Tensor]:
    def function(x: torch.Tensor = out) -> torch.Tensor:
        return x

    return function


def as_a_gradient(out: torch.Tensor) -> torch.Tensor:
    other = torch.zeros(SIZE)
    other.grad = out
    return other


def by_hooks_of_saved_tensors(out: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: [x], lambda x: x[0]):
        return WEIGHT * out


def in_a_module(out: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer("out", out)
    return module


def in_a_cycle(out: torch.Tensor) -> list[Any]:
    cycle: list[Any] = [out]
    cycle.append(cycle)
    return cycle


def in_an_exception(out: torch.Tensor) -> BaseException:
    def fail(local: torch.Tensor) -> None:
        raise ValueError

    try:
        fail(out)
    except ValueError as error:
        return error
    raise AssertionError


def in_a_future(out: torch.Tensor) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(out)
    return future


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda out: out,
    "a view": lambda out: out[1:],
    "a view of a view": lambda out: out.view(2, 4)[1][:2],
    "a slice in a dict": lambda out: {"a": {"b": out[:3]}},
    "a slice in a list": lambda out: [[out[3:]]],
    "a closure": in_a_closure,
    "a generator": in_a_generator,
    "its rows": lambda out: iter(out.view(2, 4)),
    "a bound method": lambda out: out.add,
    "an argument's default": as_a_default,
    "a reference cycle": in_a_cycle,
    "an exception's frames": in_an_exception,
    "another thread": InThread,
    "detach": lambda out: out.detach(),
    "data": lambda out: out.data,
    "another dtype": lambda out: out.view(torch.int32),
    "no elements": lambda out: out[:0],
    "a parameter of its memory": lambda out: torch.nn.Parameter(out),
    "numpy": lambda out: out.numpy(),
    "a slice of numpy": lambda out: out.numpy()[::2],
    "a tensor from numpy": lambda out: torch.from_numpy(out.numpy()),
    "a memoryview": lambda out: memoryview(out.numpy()),
    "a memoryview of bytes": lambda out: memoryview(out.numpy()).cast("B")[4:],
    "a tensor from a buffer": lambda out: torch.frombuffer(out.numpy(), dtype=torch.int32),
    "a DLPack capsule": lambda out: torch.utils.dlpack.to_dlpack(out),
    "a tensor from DLPack": lambda out: torch.from_dlpack(out),
    "an array from DLPack": lambda out: np.from_dlpack(out),
    "its storage": lambda out: out.untyped_storage(),
    "its typed storage": lambda out: out.storage(),
    "a tensor of its storage": lambda out: torch.empty(0).set_(out.untyped_storage()),
    "a shallow copy": lambda out: copy.copy(out),
    "a weak reference": weakref.ref,
    "a weak dict": lambda out: weakref.WeakValueDictionary({0: out}),
    "a graph of gradients": lambda out: WEIGHT * out,
    "a graph, by a view": lambda out: WEIGHT[2:] * out[2:],
    "a graph, by a function": lambda out: Saving.apply(WEIGHT, out),
    "hooks of saved tensors": by_hooks_of_saved_tensors,
    "the gradient of another": as_a_gradient,
    "a list of TorchScript's": lambda out: torch.jit.script([out]),
    "a dict of TorchScript's": lambda out: torch.jit.script({"a": out[1:]}),
    "a future": in_a_future,
    "a module": in_a_module,
    "an optimizer": lambda out: torch.optim.SGD([out], lr=0.1),
    "a sparse tensor's values": lambda out: torch.sparse_coo_tensor(torch.arange(8)[None], out),
}

KEEPS_AN_OBJECT = {
    *("its storage", "its typed storage", "a tensor of its storage", "a shallow copy"),
}
"""After these torch keeps a Python object for the storage, which native code counts as a use."""


def hold(pooled: Pooled, how: Callable[[torch.Tensor], Any]) -> tuple[int, Any]:
    """Hold the output of a call only by `how`; returns its address and the holder."""
    out = pooled(5.0)
    return out.data_ptr(), how(out)


def let_go(holder: Any) -> None:
    """Close a holder that does not end by itself."""
    if isinstance(holder, InThread):
        holder.close()


@pytest.mark.filterwarnings("ignore:TypedStorage", "ignore:.*torch.jit", "ignore:Sparse")
@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_not_handed_out(name: str, tier: int) -> None:
    pooled = Pooled(tier)
    address, holder = hold(pooled, HOLDERS[name])
    before = bytes_at(address)
    # Each is dropped at once, so one is always free, and the held one is checked too.
    for k in range(2 * KEPT):
        assert pooled(float(k)).data_ptr() != address
    assert pooled.reused >= 2 * KEPT - 1
    others = [pooled(float(k)) for k in range(KEPT - 1)]
    assert address not in [out.data_ptr() for out in others]
    assert bytes_at(address) == before
    # Dropped, it is reused: all other tensors of the ring are in use.
    reused = pooled.reused
    let_go(holder)
    del holder
    if name in ("a reference cycle", "an exception's frames", "an optimizer"):
        gc.collect()
    back = pooled(7.0)
    if name not in KEEPS_AN_OBJECT or tier == 1:
        assert (back.data_ptr(), pooled.reused) == (address, reused + 1)
    assert_as_new(back, 7.0)


@pytest.mark.parametrize("name", ["itself", "a view", "numpy", "a graph of gradients"])
def test_more_may_be_held_than_a_ring_keeps(name: str, tier: int) -> None:
    pooled = Pooled(tier)
    held = [hold(pooled, HOLDERS[name]) for _ in range(3 * KEPT)]
    addresses = [address for address, _ in held]
    assert len(set(addresses)) == 3 * KEPT
    for k in range(3 * KEPT):
        assert pooled(float(k)).data_ptr() not in addresses
    assert {bytes_at(address) for address in addresses} == {bytes_at(addresses[0])}
    held.clear()
    reused = pooled.reused
    for k in range(KEPT):
        assert_as_new(pooled(float(k)), float(k))
    assert pooled.reused > reused
    assert pooled.tensors() <= KEPT


def test_an_output_with_a_weak_reference_of_torchs_is_not_reused() -> None:
    """Python cannot see these references, so its rings ignore them."""
    pooled = Pooled(available(2))
    address, weak = hold(pooled, torch._C._WeakTensorRef)
    for k in range(2 * KEPT):
        assert pooled(float(k)).data_ptr() != address
    assert not weak.expired()
    del weak
    assert address in [out.data_ptr() for out in [pooled(1.0) for _ in range(KEPT)]]
