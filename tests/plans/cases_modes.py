"""Host functions that depend on settings and modes of torch, and a change of each."""

from __future__ import annotations

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.plans.case import cases
from tests.plans.hosts import gathered, scaled

CASES = cases()
case = CASES.add


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def doubled(patch):
    return default_dtype(torch.float64)


def leaf():
    return (torch.randn(5, dtype=torch.float32, requires_grad=True),)


def integers():
    return (torch.randint(-9, 9, (5,)),)


@case(doubled)
def new_memory_of_the_default_dtype(x):
    out = torch.zeros(5)
    return scaled(out, 2.0)


@case(doubled)
def a_range_of_the_default_dtype(x):
    return scaled(torch.arange(0.0, 3.0), 2.0)


@case(doubled)
def a_tensor_of_the_default_dtype(x):
    return scaled(torch.tensor([1.0, 2.0]), 2.0)


@case(doubled, build=integers)
def what_division_makes_of_integers(x):
    return scaled(x / 2, 2.0)


@case(doubled, build=integers)
def what_a_fraction_makes_of_integers(x):
    half = x * 0.5
    return half, torch.empty_like(half).zero_(), gathered(half)


@case(doubled)
def the_default_dtype_itself(x):
    out = torch.zeros(3, dtype=torch.get_default_dtype())
    return scaled(out, 2.0)


@case(lambda patch: torch.no_grad(), "none", build=leaf)
def without_gradients(x):
    return x * 2, scaled(x, 2.0)


@case(lambda patch: torch.inference_mode(), "none")
def in_inference_mode(x):
    return scaled(x, 2.0), x + 1


@case(lambda patch: torch.no_grad(), "modes", build=leaf)
def whether_gradients_are_recorded(x):
    return scaled(x, 2.0 if torch.is_grad_enabled() else 3.0)


@case(lambda patch: torch.autocast("cpu", torch.bfloat16), "modes")
def under_autocast(x):
    square = x.unsqueeze(0) @ x.unsqueeze(1)
    return gathered(square.float()), square.dtype


class Sevens(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out.fill_(7) if func is torch.mul or func is torch.Tensor.mul else out


class Eights(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return torch.full_like(out, 8) if func is torch.ops.aten.add.Tensor else out


@case(lambda patch: Sevens(), "none")
def under_a_function_mode(x):
    return scaled(x * 2, 2.0)


@case(lambda patch: Eights(), "none")
def under_a_dispatch_mode(x):
    return scaled(x + 2, 2.0)


class Elsewhere(TorchFunctionMode):
    """Puts new tensors on another device, as `torch.device` does; `meta`, which is always there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.zeros:
            return torch.zeros(*args, device="meta", **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@case(lambda patch: Elsewhere(), "obstacle")
def under_another_default_device(x):
    return str(torch.zeros(3).device), scaled(x, 2.0)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@case(lambda patch: deterministic())
def whether_algorithms_are_deterministic(x):
    return scaled(x, 2.0 if torch.are_deterministic_algorithms_enabled() else 3.0)


@contextlib.contextmanager
def precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@case(lambda patch: precision())
def how_precise_products_are(x):
    return scaled(x, 2.0 if torch.get_float32_matmul_precision() == "highest" else 3.0)
