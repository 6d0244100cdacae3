"""`tzero.install`: objects that are neither tensors nor plain numbers, but that Triton takes for
such, are launched natively, and read as Triton reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton

import tzero
from tests.api.test_install_kinds import counted
from tests.launches import kernels
from tests.tiers import can_launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Buffer:
    """What libraries pass for a tensor: a place in another one, as another dtype."""

    def __init__(self, tensor: Any, dtype: Any = None) -> None:
        self.tensor, self.dtype, self.device = tensor, dtype or tensor.dtype, tensor.device
        self.asked = 0

    def data_ptr(self) -> int:
        self.asked += 1
        return int(self.tensor.data_ptr())


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


class Late(Buffer):
    """One whose attributes are found in another way."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Measured(float):
    """A float to Triton, unless an object of it has a pointer."""


@pytest.fixture
def installed() -> Iterator[None]:
    can_launch(2)
    tzero.install()
    yield
    tzero.uninstall()


def natively(kernel: Any, call: Callable[[], Any]) -> bool:
    """Make a call three times; whether the last one was native."""
    call(), call()
    before = counted(kernel)
    call()
    after = counted(kernel)
    return bool(after.native > before.native)


def doubled(kernel: Any, given: Any, x: Any) -> list[float]:
    x.fill_(3.0)
    kernel[(1,)](given, 8)
    return list(x.tolist())


@pytest.mark.parametrize("make", [Buffer, lambda x: x.as_subclass(Marked)], ids=["object", "class"])
def test_what_has_a_pointer_is_launched_natively(make: Any, installed: None) -> None:
    kernel, x = triton.jit(kernels.double), torch.ones(9, device=DEVICE)
    for given, expected in ((make(x), [6.0] * 8 + [3.0]), (make(x[1:]), [3.0] + [6.0] * 8)):
        for _ in range(3):
            assert doubled(kernel, given, x) == expected
        assert natively(kernel, lambda given=given: kernel[(1,)](given, 8))


def test_the_dtype_that_an_object_says_counts(installed: None) -> None:
    kernel, x = triton.jit(kernels.double), torch.ones(8, device=DEVICE)
    buffer = Buffer(x)
    for dtype in (torch.float32, torch.int32, torch.float32, torch.int32):
        buffer.dtype = dtype
        for _ in range(3):
            found = doubled(kernel, buffer, x)
            assert (found == [6.0] * 8) == (dtype is torch.float32)


def test_an_object_is_asked_as_often_as_by_triton() -> None:
    can_launch(2)
    kernel, buffer = triton.jit(kernels.double), Buffer(torch.ones(8, device=DEVICE))
    compiled = kernel[(1,)](buffer, 8)

    def asked(call: Callable[[], Any]) -> int:
        buffer.asked = 0
        call()
        return buffer.asked

    calls: list[Callable[[], Any]] = [
        lambda: kernel[(1,)](buffer, 8),
        lambda: kernel[lambda meta: (1,)](buffer, 8),
        lambda: compiled[(1, 1, 1)](buffer, 8, 8),
    ]
    expected = [asked(call) for call in calls]
    tzero.install()
    try:
        for call in calls:
            assert natively(kernel, call)
        assert [asked(call) for call in calls] == expected
    finally:
        tzero.uninstall()


def test_a_pointer_that_moves_while_the_grid_is_asked_is_read_again(installed: None) -> None:
    kernel = triton.jit(kernels.double)
    x, y = torch.ones(8, device=DEVICE), torch.ones(8, device=DEVICE)
    buffer = Buffer(x)

    def grid(meta: Any) -> tuple[int]:
        buffer.tensor = y
        return (1,)

    for launched in range(1, 5):
        buffer.tensor = x
        kernel[grid](buffer, 8)
        assert x.tolist() == [1.0] * 8
        assert y.tolist() == [2.0**launched] * 8


def test_a_compiled_kernel_takes_them_natively(installed: None) -> None:
    kernel, x = triton.jit(kernels.double), torch.ones(9, device=DEVICE)
    unaligned = Buffer(x[1:])
    compiled = kernel[(1,)](unaligned, 8)
    x.fill_(1.0)
    assert natively(kernel, lambda: compiled[(1, 1, 1)](unaligned, 8, 8))
    assert x.tolist() == [1.0] + [8.0] * 8


@pytest.mark.parametrize("value", [np.float64(2.5), np.float64("inf")])
def test_floats_of_numpy_are_native(value: Any, installed: None) -> None:
    kernel, out = triton.jit(kernels.put), torch.zeros(4, device=DEVICE)
    first = kernel[(1,)](out, float(value))
    assert natively(kernel, lambda: kernel[(1,)](out, value))
    assert out[0].item() == float(value)
    assert kernel[(1,)](out, value) is first


def test_what_may_be_something_else_is_left_to_triton(installed: None) -> None:
    kernel, x = triton.jit(kernels.double), torch.ones(8, device=DEVICE)
    late = Late(x)
    assert not natively(kernel, lambda: kernel[(1,)](late, 8))
    assert x.tolist() == [8.0] * 8
    put, out = triton.jit(kernels.put), torch.zeros(4, device=DEVICE)
    assert not natively(put, lambda: put[(1,)](out, Measured(2.5)))
    assert out[0].item() == 2.5


def test_a_class_that_is_changed_is_asked_anew(installed: None) -> None:
    kernel, x = triton.jit(kernels.double), torch.ones(8, device=DEVICE)

    class Changing(Buffer):
        pass

    given = Changing(x)
    assert natively(kernel, lambda: kernel[(1,)](given, 8))
    Changing.__getattr__ = Late.__getattr__  # type: ignore[attr-defined]
    assert not natively(kernel, lambda: kernel[(1,)](given, 8))
    del Changing.__getattr__  # type: ignore[attr-defined]
    y = torch.ones(8, device=DEVICE)
    Changing.data_ptr = lambda self: y.data_ptr()  # type: ignore[method-assign]
    assert natively(kernel, lambda: kernel[(1,)](given, 8))
    assert x.tolist() == [64.0] * 8 and y.tolist() == [8.0] * 8


class Wrong(Buffer):
    """Answers that Triton refuses, or takes in its own way."""

    def __init__(self, tensor: Any, answer: Callable[[Any], Any]) -> None:
        super().__init__(tensor)
        self.answer = answer

    def data_ptr(self) -> int:
        return self.answer(self)  # type: ignore[no-any-return]


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "raises": lambda self: 1 // 0,
    "a text": lambda self: "0",
    "negative": lambda self: -16,
    "too large": lambda self: 2**64,
    "no dtype": lambda self: delattr(self, "dtype") or self.tensor.data_ptr(),
    "nothing": lambda self: None,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_triton_refuses_is_refused_in_its_words(answer: Callable[[Any], Any]) -> None:
    can_launch(2)
    kernel, x = triton.jit(kernels.double), torch.ones(8, device=DEVICE)
    kernel[(1,)](Buffer(x), 8)

    def said() -> str:
        try:
            kernel[(1,)](Wrong(x, answer), 8)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    expected = [said(), said()]
    tzero.install()
    try:
        kernel[(1,)](Buffer(x), 8), kernel[(1,)](Buffer(x), 8)
        assert [said(), said()] == expected
    finally:
        tzero.uninstall()
