"""Host functions that are not replayed: they read or change what plans cannot know of tensors."""

from __future__ import annotations

from typing import Any

import torch

from tests.plans.hosts import added, scaled
from tests.plans.kernels import BLOCK, scale
from tests.plans.refusing import table

ROWS = table()
refused = ROWS.add


def whole() -> tuple[Any, ...]:
    return (torch.randn(5), torch.tensor(2))


# -- values, after a launch ------------------------------------------------------------------------


@refused("Tensor.item")
def item(x):
    y = scaled(x, 2.0)
    return scaled(y, x[0].item())  # here


@refused("Tensor.__bool__")
def truth(x):
    y = scaled(x, 2.0)
    if x[0] > 0:  # here
        return scaled(y, 2.0)
    return scaled(y, 3.0)


@refused("Tensor.__int__", whole)
def an_int(x, n):
    y = scaled(x, 2.0)
    return scaled(y, int(n))  # here


@refused("Tensor.__float__", whole)
def a_float(x, n):
    y = scaled(x, 2.0)
    return scaled(y, float(n))  # here


@refused("Tensor.__index__", whole)
def an_index(x, n):
    y = scaled(x, 2.0)
    return [scaled(y, float(k)) for k in range(n)]  # here


@refused("Tensor.tolist")
def a_list(x):
    return scaled(x, x.tolist()[0])  # here


@refused("Tensor.numpy")
def an_array(x):
    return scaled(x, float(x.numpy()[0]))  # here


@refused("Tensor.__repr__")
def text(x):
    return scaled(x, float(len(f"{x!r}")))  # here


@refused("(equal)")
def equality(x):
    y = scaled(x, 2.0)
    return scaled(y, 2.0 if torch.equal(x, x) else 3.0)  # here


@refused("depends on values")
def nonzero(x):
    return scaled(x, 2.0), torch.nonzero(x)  # here


@refused("depends on values")
def masked_select(x):
    return scaled(torch.masked_select(x, x > 2), 2.0)  # here


@refused("depends on values")
def a_mask(x):
    return scaled(x[x > 2], 2.0)  # here


@refused("depends on values")
def unique(x):
    return scaled(torch.unique(x), 2.0)  # here


@refused("reads the value of a tensor", whole)
def an_index_that_is_a_tensor(x, n):
    return scaled(x, 2.0), x[n].clone()  # here


@refused("reads the value of a tensor", whole)
def a_slice_up_to_a_tensor(x, n):
    return scaled(x[:n], 2.0)  # here


@refused("reads the value of a tensor", whole)
def a_size_that_is_a_tensor(x, n):
    return scaled(torch.ones(n), 2.0)  # here


@refused("reads the value of a tensor", whole)
def a_filling_that_is_a_tensor(x, n):
    return scaled(torch.full((3,), n), 2)  # here


@refused("reads the value of a tensor", whole)
def a_factor_that_is_a_tensor(x, n):
    return scaled(torch.add(x, x, alpha=n), 2.0)  # here


# -- facts of a tensor that are not in the key -----------------------------------------------------


@refused("Tensor.data_ptr")
def an_address(x):
    return scaled(x, 2.0 if x.data_ptr() else 3.0)  # here


@refused("Tensor.storage_offset")
def an_offset(x):
    return scaled(x, 2.0 if x.storage_offset() else 3.0)  # here


@refused("Tensor.untyped_storage")
def a_storage(x):
    return scaled(x, float(x.untyped_storage().nbytes()))  # here


@refused("Tensor._version")
def a_version(x):
    return scaled(x, float(x._version))  # here


@refused("Tensor._base")
def a_base(x):
    return scaled(x, 2.0 if x._base is None else 3.0)  # here


@refused("Tensor.grad")
def a_gradient(x):
    return scaled(x, 2.0 if x.grad is None else 3.0)  # here


@refused("Tensor.grad_fn")
def a_node(x):
    return scaled(x, 2.0 if x.grad_fn is None else 3.0)  # here


@refused("Tensor.is_leaf")
def a_leaf(x):
    return scaled(x, 2.0 if x.is_leaf else 3.0)  # here


@refused("hash")
def a_hash(x):
    return scaled(x, 2.0 + 0 * hash(x))  # here


# -- changes of a tensor ---------------------------------------------------------------------------


@refused("changes the geometry of a tensor in place")
def resize_(x):
    scaled(x, 2.0)
    x.resize_(2)  # here


@refused("changes the geometry of a tensor in place", lambda: (torch.ones(2, 3),))
def t_(x):
    return scaled(x.t_(), 2.0)  # here


@refused("changes the geometry of a tensor in place")
def unsqueeze_(x):
    out = torch.empty_like(x).unsqueeze_(0)  # here
    scale[(1,)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    return out


@refused("requires_grad_")
def requires_grad_(x):
    return scaled(x, 2.0), x.requires_grad_()  # here


@refused("requires_grad_")
def requires_grad_of_its_own(x):
    weight = torch.ones(5).requires_grad_()  # here
    return added(x, weight), weight * 2


@refused("share_memory_")
def share_memory_(x):
    return scaled(x.share_memory_(), 2.0)  # here


@refused("sparse")
def sparse(x):
    return scaled(x, 2.0), x.to_sparse().to_dense()  # here


@refused("returns a quantized tensor")
def quantized(x):
    few = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)  # here
    return scaled(few.dequantize(), 2.0)


@refused("returns a zero tensor")
def zeros_that_are_known(x):
    zeros = torch._efficientzerotensor(5)  # here
    return scaled(zeros + x, 2.0)


@refused("backward", lambda: (torch.ones(3, requires_grad=True),))
def backward(x):
    (x * 2).sum().backward()  # here
    return scaled(x, 2.0)


@refused("attribute 'grad'")
def a_gradient_is_set(x):
    x.grad = scaled(x, 2.0)  # here


@refused("attribute 'requires_grad'")
def an_attribute_is_set(x):
    out = scaled(x, 2.0)
    out.requires_grad = True  # here
    return out


@refused("calls setattr")
def an_attribute_is_set_by_name(x):
    setattr(x, "mine", 3)  # here # noqa: B010
    return scaled(x, 2.0)
