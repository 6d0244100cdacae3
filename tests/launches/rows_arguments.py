"""Rows about numbers and tensors: what Triton reads off them, and so what chooses the binary."""

from __future__ import annotations

import functools
import warnings

import numpy
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.launches import kernels
from tests.launches.looking import assumes_16, kind_of, warm
from tests.launches.row import table
from tzero.adapters.triton_entries import plain

ROWS = table()
row = ROWS.add

GRID = (1,)


def integers(device, size=8):
    return torch.zeros(size, dtype=torch.int64, device=device)


def floats(device, size=8):
    return torch.zeros(size, device=device)


# -- alignment -----------------------------------------------------------------------------------


@row("alignment")
def an_unaligned_tensor_never_reaches_an_aligned_binary_and_is_written_in_place(make, device):
    copy = make(kernels.copy)
    x = torch.arange(33.0, device=device)
    y = floats(device, 33)
    aligned = warm(copy, lambda: copy[(2,)](x, y, 33, BLOCK=32))
    assert assumes_16(aligned, 0) and assumes_16(aligned, 1)
    for _ in range(2):  # and back again
        y.zero_()
        binary = copy[(2,)](x[1:], y[1:], 32, BLOCK=32)
        assert y.tolist() == [0.0, *range(1, 33)]
        assert not assumes_16(binary, 0) and not assumes_16(binary, 1)
        y.zero_()
        mixed = copy[(2,)](x, y[1:], 32, BLOCK=32)
        assert y.tolist() == [0.0, *range(32)]
        assert assumes_16(mixed, 0) and not assumes_16(mixed, 1)
        y.zero_()
        assert copy[(2,)](x, y, 33, BLOCK=32) is aligned
        assert y.tolist() == list(range(33))


@row("alignment")
def alignment_is_of_16_bytes_and_not_of_elements(make, device):
    copy = make(kernels.copy)
    x = torch.arange(16, dtype=torch.int32, device=device)
    y = torch.zeros(16, dtype=torch.int32, device=device)
    warm(copy, lambda: copy[GRID](x, y, 8, BLOCK=8))
    for offset, expected in ((4, True), (2, False), (8, True), (3, False)):
        binary = copy[GRID](x[offset:], y, 8, BLOCK=8)
        assert y.tolist()[:8] == list(range(offset, offset + 8))
        assert assumes_16(binary, 0) is expected


@row("alignment")
def a_tensor_whose_storage_is_replaced_is_read_anew(make, device):
    double = make(kernels.double)
    x = torch.ones(9, device=device)
    warm(double, lambda: double[GRID](x, 8))
    storage = torch.full((9,), 5.0, device=device)
    x.set_(storage[1:])
    binary = double[GRID](x, 8)
    assert storage.tolist() == [5.0] + [10.0] * 8
    assert not assumes_16(binary, 0)
    x.set_(torch.ones(1, device=device))
    x.resize_(4096).fill_(3.0)
    double[GRID](x, 8)
    assert x.tolist()[:9] == [6.0] * 8 + [3.0]


@row()
def alignment_is_nothing_to_a_parameter_that_is_not_specialized_on_it(make, device):
    for which in ([0], ["x"]):
        double = make(kernels.double, do_not_specialize_on_alignment=which)
        x = torch.ones(9, device=device)
        binary = warm(double, lambda double=double, x=x: double[GRID](x, 8))
        assert not assumes_16(binary, 0)
        assert double[GRID](x[1:], 8) is binary
        assert x.tolist() == [8.0] + [16.0] * 7 + [2.0]


# -- integers ------------------------------------------------------------------------------------


@row("integer_one")
def a_binary_made_for_one_takes_no_other_integer(make, device):
    put, out = make(kernels.put), integers(device)
    one = warm(put, lambda: put[GRID](out, 1))
    assert kind_of(one, "value") == "constexpr"
    assert kind_of(put[GRID](out, 7), "value") == "i32"
    assert out[0].item() == 7
    assert put[GRID](out, 1) is one
    assert out[0].item() == 1


@row("integer_one")
def one_is_compiled_in_after_other_integers(make, device):
    put, out = make(kernels.put), integers(device)
    other = warm(put, lambda: put[GRID](out, 7))
    assert kind_of(put[GRID](out, 1), "value") == "constexpr"
    assert out[0].item() == 1
    assert put[GRID](out, 9) is other and out[0].item() == 9


@row("integer_16")
def integers_that_16_divides_have_a_binary_of_their_own(make, device):
    put, out = make(kernels.put), integers(device)
    divisible = warm(put, lambda: put[GRID](out, 32))
    assert assumes_16(divisible, 1)
    for value, expected in ((17, False), (0, True), (-16, True), (-17, False), (48, True)):
        binary = put[GRID](out, value)
        assert out[0].item() == value
        assert assumes_16(binary, 1) is expected


@row("integer_width")
def integers_beyond_32_bits_and_beyond_63_have_binaries_of_their_own(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for value, kind in (
        (2**31 - 1, "i32"),
        (2**31 + 1, "i64"),
        (-(2**31) + 1, "i32"),
        (-(2**31) - 1, "i64"),
        (2**63 - 1, "i64"),
        (2**63 + 1, "u64"),
        (-(2**63) + 1, "i64"),
        (2**64 - 1, "u64"),
        (-7, "i32"),
    ):
        binary = put[GRID](out, value)
        assert kind_of(binary, "value") == kind, value
        assert out[0].item() % 2**64 == value % 2**64


@row("integer_width")
def multiples_of_16_cross_widths_too(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 16))
    for value, kind in ((2**31, "i64"), (-(2**31), "i32"), (2**63, "u64"), (-(2**63), "i64")):
        assert kind_of(put[GRID](out, value), "value") == kind
        assert out[0].item() % 2**64 == value % 2**64


@row()
def an_integer_that_fits_no_type_is_refused_in_tritons_words(make, device):
    put, out = make(kernels.put), integers(device)
    for near, beyond in ((2**64 - 1, 2**64 + 1), (-(2**63) + 1, -(2**63) - 1), (2**63, 2**64)):
        warm(put, lambda near=near: put[GRID](out, near))
        with pytest.raises(OverflowError, match="too large to represent"):
            put[GRID](out, beyond)
        put[GRID](out, near)
        assert out[0].item() % 2**64 == near % 2**64


@row("integer_width")
def integers_that_are_not_specialized_still_have_widths(make, device):
    for which in ([1], ["value"]):
        put, out = make(kernels.put, do_not_specialize=which), integers(device)
        seven = warm(put, lambda put=put, out=out: put[GRID](out, 7))
        for value in (1, 16, -16, 2**31 - 1):
            assert put[GRID](out, value) is seven
            assert out[0].item() == value
        assert kind_of(put[GRID](out, 2**31), "value") == "i64"
        assert out[0].item() == 2**31


@row()
def integers_that_are_not_specialized_on_alignment_are_still_compiled_in_if_one(make, device):
    put = make(kernels.put, do_not_specialize_on_alignment=["value"])
    out = integers(device)
    seven = warm(put, lambda: put[GRID](out, 7))
    assert put[GRID](out, 16) is seven and out[0].item() == 16
    assert kind_of(put[GRID](out, 1), "value") == "constexpr"
    assert out[0].item() == 1


@row()
def an_annotated_integer_has_its_own_width(make, device):
    put, out = make(kernels.put_wide), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for value in (1, 2**40, 16, -5):
        assert kind_of(put[GRID](out, value), "value") == "i64"
        assert out[0].item() == value
    with pytest.raises(TypeError):
        put[GRID](out, 2.5)


@row("dtype")
def another_dtype_reaches_another_binary(make, device):
    double = make(kernels.double)
    # 64 bytes at least: without the guard, eight numbers of any other width stay inside.
    x = torch.ones(64, device=device)
    warm(double, lambda: double[GRID](x, 8))
    for dtype in (torch.float16, torch.int64, torch.int8, torch.bfloat16, torch.float64):
        y = torch.full((64,), 3, dtype=dtype, device=device)
        double[GRID](y, 8)
        assert y.tolist() == [6] * 8 + [3] * 56
    x.fill_(4.0)
    double[GRID](x, 8)
    assert x.tolist() == [8.0] * 8 + [4.0] * 56


@row("argument_type")
def one_parameter_takes_float_int_bool_and_none(make, device):
    put, out = make(kernels.put_if_any), floats(device)
    warm(put, lambda: put[GRID](out, 2.5))
    for _ in range(2):
        for value, kind, stored in (
            (None, "constexpr", -1.0),
            (2.5, "fp32", 2.5),
            (True, "u1", 1.0),
            (7, "i32", 7.0),
            (False, "u1", 0.0),
            (1, "constexpr", 1.0),
            (-0.5, "fp32", -0.5),
        ):
            binary = put[GRID](out, value)
            assert kind_of(binary, "value") == kind
            assert out[0].item() == stored


@row("argument_type")
def true_is_not_one(make, device):
    put, out = make(kernels.put), floats(device)
    warm(put, lambda: put[GRID](out, 1))
    assert kind_of(put[GRID](out, True), "value") == "u1"
    assert out[0].item() == 1.0


@row("argument_type")
def a_tensor_where_a_number_was_is_a_pointer(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 2.5))
    assert kind_of(put[GRID](out, out), "value") == "*i64"
    assert out[0].item() == out.data_ptr()


# -- what Triton does not take -------------------------------------------------------------------


@row()
def what_triton_cannot_describe_is_refused_in_its_words(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for value in ("text", numpy.int32(5), numpy.float32(2.5), [1], {}, object()):
        with pytest.raises(TypeError, match="failed to specialize argument of type"):
            put[GRID](out, value)
        assert put[GRID](out, 7) is not None


# -- kinds of tensors ----------------------------------------------------------------------------


class Mine(torch.Tensor):
    """A subclass that changes nothing."""


class Pointer:
    """No tensor, but what Triton takes for one."""

    def __init__(self, tensor, dtype=None):
        self.tensor, self.device = tensor, tensor.device
        self.dtype = dtype or tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()


@row()
def parameters_subclasses_and_views_are_written_in_place(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    binary = warm(double, lambda: double[GRID](x, 8))
    for wrap in (
        torch.nn.Parameter,
        lambda t: t.as_subclass(Mine),
        lambda t: t.detach().requires_grad_(),
        lambda t: t.view(2, 4),
        lambda t: t[None].expand(3, 8),
    ):
        x.fill_(3.0)
        assert double[GRID](wrap(x), 8) is binary
        assert x.tolist() == [6.0] * 8


@row()
def a_subclass_is_launched_again_and_again(make, device):
    put = make(kernels.put)
    many, one = integers(device), integers(device, 1)
    for tensor in (many, one):  # of one element: Python may take it for a number
        mine = tensor.as_subclass(Mine)
        for value in (7, 9, 11):
            put[GRID](mine, value)
            assert tensor[0].item() == value


class Elsewhere(torch.Tensor):
    """A subclass that says itself where its memory is."""

    def data_ptr(self):
        return self.memory.data_ptr()


@row("tensor_type")
def a_subclass_is_asked_where_its_memory_is(make, device):
    double = make(kernels.double)
    x, y = torch.ones(8, device=device), torch.full((9,), 5.0, device=device)
    other = torch.ones(8, device=device).as_subclass(Elsewhere)
    other.memory = y[1:]
    warm(double, lambda: double[GRID](x, 8))
    assert not assumes_16(double[GRID](other, 8), 0)
    assert y.tolist() == [5.0] + [10.0] * 8
    assert x.tolist() == [8.0] * 8


@row("alignment")
def parameters_have_alignment(make, device):
    double = make(kernels.double)
    x = torch.ones(9, device=device)
    whole, rest = torch.nn.Parameter(x), torch.nn.Parameter(x[1:])
    assert assumes_16(warm(double, lambda: double[GRID](whole, 8)), 0)
    x.fill_(3.0)
    assert not assumes_16(double[GRID](rest, 8), 0)
    assert x.tolist() == [3.0] + [6.0] * 8


@row()
def an_object_with_a_pointer_and_a_dtype_is_a_tensor_to_triton(make, device):
    double = make(kernels.double)
    x = torch.ones(9, device=device)
    pointer = Pointer(x)
    whole = warm(double, lambda: double[GRID](pointer, 8))
    x.fill_(3.0)
    assert assumes_16(whole, 0)
    assert not assumes_16(double[GRID](Pointer(x[1:]), 8), 0)
    assert x.tolist() == [3.0] + [6.0] * 8
    bits = x.view(torch.int32)
    bits.fill_(3 << 23)  # twice the float is another number than twice the integer
    double[GRID](Pointer(x, torch.int32), 8)
    assert bits.tolist() == [6 << 23] * 8 + [3 << 23]


@row()
def an_object_may_change_what_it_points_at(make, device):
    double = make(kernels.double)
    x, y = torch.ones(8, device=device), torch.ones(9, device=device)
    pointer = Pointer(x)
    warm(double, lambda: double[GRID](pointer, 8))
    pointer.tensor = y[1:]
    assert not assumes_16(double[GRID](pointer, 8), 0)
    assert y.tolist() == [1.0] + [2.0] * 8


@row()
def an_address_is_taken_where_a_pointer_is_announced(make, device):
    put, out = make(kernels.put_at), integers(device, 9)
    warm(put, lambda: put[GRID](out.data_ptr(), 7))
    assert out[0].item() == 7
    put[GRID](out[1:].data_ptr(), 9)
    put[GRID](out[2:], 11)
    assert out.tolist()[:3] == [7, 9, 11]


@row()
def an_address_without_an_announcement_is_an_integer(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    with pytest.raises(triton.CompilationError, match="Unsupported ptr type"):
        put[GRID](out.data_ptr(), 7)


@row()
def a_reinterpreted_tensor_has_the_new_dtype(make, device):
    put, out = make(kernels.put), floats(device)
    warm(put, lambda: put[GRID](out, 7))
    other = triton.reinterpret(out, tl.int32)
    for _ in range(3):
        out.zero_()
        assert kind_of(put[GRID](other, 7), "out") == "*i32"
        assert out.view(torch.int32)[0].item() == 7
    put[GRID](triton.reinterpret(other, torch.float32), 7)
    assert out[0].item() == 7.0


@row()
def empty_tensors_are_aligned(make, device):
    copy = make(kernels.copy)
    x, y = floats(device), floats(device)
    binary = warm(copy, lambda: copy[GRID](x, y, 0, BLOCK=8))
    empty = torch.empty(0, device=device)
    assert copy[GRID](empty, empty, 0, BLOCK=8) is binary
    assert y.tolist() == [0.0] * 8


@row()
def a_fake_tensor_goes_where_triton_lets_it(make, device):
    put, out = make(kernels.put), floats(device)
    warm(put, lambda: put[(0,)](out, 7))
    with FakeTensorMode():
        fake = torch.empty(8)
    # Triton launches it, with a warning of torch's and an address of 0: no program may run.
    with warnings.catch_warnings(action="ignore"):
        assert put[(0,)](fake, 7).name == "put"


@row()
def a_batched_tensor_of_vmap_is_refused_as_by_triton(make, device):
    put, out = make(kernels.put), floats(device)
    warm(put, lambda: put[GRID](out, 7))

    def launch(x):
        put[GRID](x, 3)
        return x

    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        torch.vmap(launch)(torch.zeros(3, 4, device=device))
    put[GRID](out, 9)
    assert out[0].item() == 9.0


def of_each_layout(device):
    """Tensors that torch has in other ways than as a part of a memory, by name; and views that it
    computes when they are read."""
    some = torch.arange(1.0, 65.0)
    made = {
        "sparse": some.to_sparse(),
        "csr": some.view(8, 8).to_sparse_csr(),
        "bsr": some.view(8, 8).to_sparse_bsr((2, 2)),
        "nested": torch.nested.nested_tensor([some, some]),
        "quantized": torch.quantize_per_tensor(some, 1.0, 0, torch.qint8),
        "negative": torch._neg_view(some),
        "conjugate": some.to(torch.complex64).conj(),
        "expanded": torch.ones(1).expand(64),
    }
    if torch.device(device).type == "cpu":
        made["mkldnn"] = some.to_mkldnn()
    else:
        made = {name: each.to(device) for name, each in made.items() if name != "quantized"}
    made["zero"] = torch._efficientzerotensor(64, device=device)
    made["freed"] = torch.ones(64, device=device)
    made["freed"].untyped_storage().resize_(0)
    return made


@row()
def a_tensor_of_any_layout_is_taken_or_refused_as_by_triton(make, device):
    with warnings.catch_warnings(action="ignore"):  # most of these are prototypes
        tensors = of_each_layout(device)
    put, out = make(kernels.put), floats(device)
    run = functools.partial(plain["run"], triton.jit(kernels.put), grid=(0,), warmup=False)
    warm(put, lambda: put[(0,)](out, 7))
    for name, tensor in tensors.items():
        said = []
        for launch in (run, put[(0,)], put[(0,)]):
            try:
                launch(tensor, 7)  # no program runs: some have an address of 0
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
            else:
                said.append("launched")
        assert said == said[:1] * 3, name


@row()
def the_tensors_of_transforms_are_refused_as_by_triton(make, device):
    put, out = make(kernels.put), floats(device)
    warm(put, lambda: put[(0,)](out, 7))

    def launch(x):
        put[(0,)](x, 3)
        return x.sum()

    x = torch.zeros(4, device=device)
    for transform in (torch.func.grad, torch.func.vmap, torch.func.functionalize):
        try:
            transform(launch)(x)
        except RuntimeError as error:
            assert "data pointer" in str(error)
        else:
            assert transform is torch.func.functionalize


@row()
def autograd_and_inference_modes_change_nothing(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    binary = warm(double, lambda: double[GRID](x, 8))
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        x.fill_(3.0)
        with mode():
            assert double[GRID](x, 8) is binary
            fresh = torch.ones(8, device=device)
            assert double[GRID](fresh, 8) is binary
        assert x.tolist() == [6.0] * 8 and fresh.tolist() == [2.0] * 8
