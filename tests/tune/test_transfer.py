"""Tensors, functions and kernels are the same after packing and opening; what cannot be sent is
rejected with the reason."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.utils.dlpack import from_dlpack

import tzero
from tzero import Config, settings
from tzero.arguments.host import read_host
from tzero.errors import InvalidArgument
from tzero.launches.python import PythonJit
from tzero.tune.transfer import opened, packed


def sent(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    parcel = packed(read_host(function, None), args)
    try:
        host, made, *_ = opened(parcel)
    finally:
        os.close(parcel.descriptor)
    return host.function, made


def rejected(function: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        sent(function, *args)
    begin = f"{read_host(function, None).name}: it cannot be timed in a process of its own: "
    assert str(caught.value).startswith(begin)
    return caught.value.problem


def nothing(*, config: Config = Config()) -> None: ...  # noqa: B008


# -- tensors --------------------------------------------------------------------------------------


def test_tensors_keep_contents_strides_offsets_and_alignment() -> None:
    base = torch.arange(100.0)
    for x in (base[3:], base[:90].view(9, 10).t(), base[::7], base.to(torch.bfloat16)[1:5]):
        _, [y] = sent(nothing, x)
        assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()
        assert (x.dtype, x.stride(), x.storage_offset()) == (
            y.dtype,
            y.stride(),
            y.storage_offset(),
        )
        assert x.data_ptr() % 512 == y.data_ptr() % 512


def test_tensors_share_memory_where_they_did() -> None:
    base = torch.zeros(16)
    apart = from_dlpack(base[4:8])  # a storage of its own, in the same memory
    _, (a, [b], c, d) = sent(nothing, base, [base], apart, torch.zeros(16))
    assert a is b
    a[5] = 7
    assert c.tolist() == [0, 7, 0, 0] and d.sum() == 0


def test_a_tensor_that_the_function_closes_over_is_the_one_among_its_arguments() -> None:
    weight = torch.ones(3)

    def total(x: torch.Tensor) -> float:
        return float((x * weight).sum())

    made, (x, inside) = sent(total, torch.ones(3), weight)
    inside.fill_(5)
    assert made(x) == 15 and total(x) == 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(0, 3),
        torch.ones(2, device="meta"),
        torch.ones(()),
        torch.tensor([True, False]),
    ],
    ids=str,
)
def test_tensors_of_every_kind_are_rebuilt(tensor: torch.Tensor) -> None:
    _, [made] = sent(nothing, tensor)
    assert type(made) is type(tensor) and made.requires_grad == tensor.requires_grad
    assert (made.device, made.shape, made.is_conj()) == (
        tensor.device,
        tensor.shape,
        tensor.is_conj(),
    )
    assert tensor.is_meta or torch.equal(made, tensor)


def test_other_arguments_are_equal_after_sending() -> None:
    args = (1, 2.5, "a", None, [1, (2,)], {"k": torch.float16}, Config(BLOCK=64))
    assert sent(nothing, *args)[1] == args


def test_contents_are_those_at_packing() -> None:
    x = torch.ones(3)
    parcel = packed(read_host(nothing, None), (x,))
    x.fill_(2)
    for _ in range(2):  # it can be opened again
        assert opened(parcel)[1][0].tolist() == [1.0] * 3
    os.close(parcel.descriptor)


def test_a_tensor_that_cannot_be_copied_is_rejected() -> None:
    assert "torch.sparse_coo" in rejected(nothing, torch.ones(2).to_sparse())


# -- functions and kernels ------------------------------------------------------------------------


@tzero.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


@triton.jit
def filled(x_ptr, value, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), value)


def test_a_function_of_a_module_is_sent_by_name_even_if_decorated() -> None:
    assert sent(nothing)[0] is nothing
    assert sent(doubled.function)[0] is doubled.function


def test_kernels_of_a_module_are_sent_by_name() -> None:
    def host(x: torch.Tensor) -> Any:
        return doubled, filled

    made, _ = sent(host, torch.ones(2))
    assert made is not host
    assert made(None) == (doubled, filled)


def test_the_position_of_the_config_parameter_is_kept() -> None:
    host = read_host(lambda x, config, y: (x, config, y), Config(A=1))
    parcel = packed(host, (1, 2))
    made, args, *_ = opened(parcel)
    os.close(parcel.descriptor)
    assert made.configured(made.function, Config(A=2))(*args) == (1, Config(A=2), 2)


@pytest.mark.parametrize("tier", [1, 2])
@pytest.mark.parametrize("decorate", [triton.jit, tzero.jit], ids=["triton", "tzero"])
def test_kernels_of_a_closure_are_rebuilt_and_run(decorate: Any, tier: int) -> None:
    with settings.override(tier=tier):
        step = tl.constexpr(3)

        @triton.jit
        def stepped(value):
            return value + step

        @decorate
        def local(x_ptr, value, BLOCK: tl.constexpr):
            tl.store(x_ptr + tl.arange(0, BLOCK), stepped(value))

        def host(x: torch.Tensor) -> None:
            local[(1,)](x, 4, BLOCK=8)

        made, [x] = sent(host, torch.zeros(8))
        assert made.__closure__[0].cell_contents is not local
        assert isinstance(made.__closure__[0].cell_contents, PythonJit) == (decorate is tzero.jit)
        made(x)
    assert x.tolist() == [7.0] * 8


def test_a_partial_and_a_method_can_be_sent() -> None:
    def scaled(by: int, x: torch.Tensor) -> torch.Tensor:
        return x * by

    class Model:
        by = 4

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    for function in (functools.partial(scaled, 4), Model().forward):
        made, [x] = sent(function, torch.ones(2))
        assert made(x).tolist() == [4.0, 4.0]


def test_a_kernel_that_cannot_be_serialized_is_rejected_with_the_reason() -> None:
    @triton.jit
    def chatty(x_ptr):
        tl.static_print("compiling")

    assert "of the kernel 'chatty', it prints while it compiles" in rejected(
        lambda x: chatty[(1,)](x), 1
    )


def test_a_kernel_with_hooks_is_rejected() -> None:
    @triton.jit
    def hooked(x_ptr):
        tl.store(x_ptr, 1)

    hooked.add_pre_run_hook(lambda *args, **kwargs: None)
    assert "'hooked' has hooks" in rejected(lambda x: hooked[(1,)](x), 1)


def test_a_kernel_of_tzero_that_cannot_be_imported_is_rejected() -> None:
    @tzero.kernel
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert "it uses the kernel 'inner', which is in no module" in rejected(lambda x: inner(x), 1)


class Client:
    def __init__(self) -> None:
        self.host = "elsewhere"


def test_an_object_with_a_host_of_another_kind_is_no_kernel_and_is_sent() -> None:
    _, [made] = sent(nothing, Client())
    assert made.host == "elsewhere"


def test_objects_that_cannot_be_pickled_are_rejected() -> None:
    lock = threading.Lock()
    assert "lock" in rejected(lambda x: lock.acquire(), 1)
    assert "lock" in rejected(nothing, lock)


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_rebuilt() -> None:
    x = torch.arange(100.0, device="cuda")[3:]
    _, (y, z) = sent(nothing, x, x[1:])
    assert torch.equal(x, y) and y.device == x.device and x.data_ptr() != y.data_ptr()
    assert x.data_ptr() % 512 == y.data_ptr() % 512 and z.data_ptr() == y.data_ptr() + 4
