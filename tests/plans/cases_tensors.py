"""Host functions that read tensors in globals, closures and objects, and changes of those."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.plans.case import cases
from tests.plans.hosts import added, scaled

CASES = cases()
case = CASES.add

WEIGHT, SPACE, TENSORS = torch.arange(5.0), SimpleNamespace(weight=torch.ones(5)), [torch.ones(5)]


def weight(value):
    """A change: the global holds another tensor."""
    return lambda patch: patch.setitem(globals(), "WEIGHT", value)


@case(weight(torch.ones(5)))
def a_global_tensor(x):
    return added(x, WEIGHT)


@case(weight(torch.arange(1, 6)))
def a_global_tensor_of_another_dtype(x):
    return added(x, WEIGHT)


@case(lambda patch: patch.setattr(SPACE, "weight", torch.zeros(5)))
def a_tensor_that_an_object_holds(x):
    return added(x, SPACE.weight)


@case(lambda patch: Resized(WEIGHT, 3))
def a_global_tensor_that_is_resized(x):
    return scaled(x, float(WEIGHT.size(0))), added(WEIGHT, WEIGHT)


@case(lambda patch: Resized(SPACE.weight, 3))
def a_tensor_of_an_object_that_is_resized(x):
    return scaled(x, float(SPACE.weight.size(0)))


@case(lambda patch: Resized(TENSORS[0], 3))
def a_tensor_in_a_list_that_is_resized(x):
    return scaled(x, float(TENSORS[0].size(0)))


class Resized:
    """A tensor that has other sizes meanwhile."""

    def __init__(self, tensor, size):
        self.tensor, self.size, self.before = tensor, size, tensor.size()

    def __enter__(self):
        self.tensor.resize_(self.size)

    def __exit__(self, *error):
        self.tensor.resize_(self.before)


@case(lambda patch: patch.setattr(WEIGHT, "data", torch.ones(5, dtype=torch.float64)))
def a_global_tensor_whose_data_is_another_tensors(x):
    return torch.zeros_like(WEIGHT), added(WEIGHT, WEIGHT)


@case(lambda patch: patch.setattr(WEIGHT, "data", torch.ones(5, 2)[:, 0]))
def a_global_tensor_whose_strides_change(x):
    return scaled(x, float(WEIGHT.stride(0)))


@case(lambda patch: patch.setattr(WEIGHT, "requires_grad", True))
def a_global_tensor_that_comes_to_require_gradients(x):
    return added(x, WEIGHT), (x + WEIGHT), scaled(x, 2.0 if WEIGHT.requires_grad else 3.0)


@case(lambda patch: patch.setattr(WEIGHT, "requires_grad", True), "none")
def a_view_of_a_global_tensor_that_comes_to_require_gradients(x):
    return scaled(x, 2.0), WEIGHT[1:]


WEIGHT.by = 2.0


@case(lambda patch: patch.setattr(WEIGHT, "by", 3.0))
def an_attribute_that_someone_put_on_a_global_tensor(x):
    return scaled(x, WEIGHT.by)


def closing():
    weight = torch.ones(5)

    def a_tensor_that_a_closure_holds(x):
        return added(x, weight)

    return a_tensor_that_a_closure_holds


_closed = closing()
case(lambda patch: patch.setattr(_closed.__closure__[0], "cell_contents", torch.zeros(5)))(_closed)
