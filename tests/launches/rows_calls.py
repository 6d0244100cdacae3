"""Rows about how a call is written: constants, options, defaults, keywords, tuples."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.launches import kernels
from tests.launches.looking import VERSION, assumes_16, kind_of, warm
from tests.launches.row import table
from tests.launches.rows_arguments import GRID, floats, integers

ROWS = table()
row = ROWS.add


# -- constants -----------------------------------------------------------------------------------


@row("constants")
def each_constant_has_a_binary_of_its_own(make, device):
    give, out = make(kernels.give), floats(device)
    seven = warm(give, lambda: give[GRID](out, 7))
    for value in (8, -7, 2.5, 2**40, 0, 7.5):
        give[GRID](out, value)
        assert out[0].item() == value
    assert give[GRID](out, VALUE=7) is seven
    assert out[0].item() == 7.0


@row("constants")
def texts_none_and_flags_are_constants(make, device):
    choose, out = make(kernels.choose), integers(device)
    warm(choose, lambda: choose[GRID](out, "left"))
    for _ in range(2):
        for value, stored in ((None, 1), ("right", 3), (False, 4), ("left", 2), (2.5, 4)):
            choose[GRID](out, value)
            assert out[0].item() == stored


@row("constants")
def dtypes_are_constants(make, device):
    cast, out = make(kernels.cast), floats(device)
    warm(cast, lambda: cast[GRID](out, tl.float32))
    assert out[0].item() == 2.75
    for kind, stored in ((tl.int32, 2.0), (tl.constexpr(tl.float32), 2.75), (tl.int32, 2.0)):
        cast[GRID](out, kind)
        assert out[0].item() == stored
    with pytest.raises(triton.CompilationError, match="no attribute 'scalar'"):
        cast[GRID](out, torch.float32)


@row("constants")
def tuples_are_constants(make, device):
    pair, out = make(kernels.pair), floats(device)
    warm(pair, lambda: pair[GRID](out, (1, 2)))
    for value in ((3, 4), (1, 2.5), (-1, 1), (1, 2)):
        pair[GRID](out, value)
        assert out.tolist()[:2] == list(value)


@row("constants")
def other_kernels_are_constants(make, device):
    call, out = make(kernels.call), floats(device)
    out.fill_(1.0)
    warm(call, lambda: call[GRID](out, kernels.plus_one))
    for function, stored in (
        (kernels.times_five, 10.0),
        (kernels.plus_one, 3.0),
        (make(kernels.times_five.fn), 10.0),
        (make(kernels.plus_one.fn), 3.0),
    ):
        out.fill_(2.0)
        call[GRID](out, function)
        assert out[0].item() == stored


@row("constants")
def a_constant_kernel_whose_source_changes_is_compiled_anew(make, device):
    call, out = make(kernels.call), floats(device)
    function = make(kernels.plus_one.fn)
    out.fill_(1.0)
    warm(call, lambda: call[GRID](out, function))
    function._unsafe_update_src(function.src.replace("x + 1", "x + 100"))
    out.fill_(1.0)
    call[GRID](out, function)
    assert out[0].item() == 101.0


@row()
def true_one_and_one_point_zero_are_confused_as_triton_confuses_them(make, device):
    give, out = make(kernels.give), floats(device)
    one = warm(give, lambda: give[GRID](out, 1))
    for value in (True, 1.0):
        for _ in range(3):
            assert give[GRID](out, value) is one
    other = make(kernels.give)
    flag = warm(other, lambda: other[GRID](out, True))
    assert flag.src.constants == {(1,): True} and flag.src.constants[(1,)] is True
    assert other[GRID](out, 1) is flag


@row()
def zeros_of_either_sign_are_confused_as_triton_confuses_them(make, device):
    give, out = make(kernels.give), floats(device)
    zero = warm(give, lambda: give[GRID](out, 0.0))
    assert give[GRID](out, -0.0) is zero


@row()
def a_constant_that_is_not_a_number_is_itself(make, device):
    give, out = make(kernels.give), floats(device)
    nan = float("nan")
    warm(give, lambda: give[GRID](out, nan))
    assert out[0].isnan().item()
    give[GRID](out, float("nan"))
    assert out[0].isnan().item()
    give[GRID](out, 2.0)
    assert out[0].item() == 2.0


@row()
def a_constant_that_cannot_be_hashed_is_refused_as_by_triton(make, device):
    give, out = make(kernels.give), floats(device)
    warm(give, lambda: give[GRID](out, 7))
    for value in ([1, 2], {}, {1}, ([1],)):
        with pytest.raises(TypeError, match="unhashable type"):
            give[GRID](out, value)
    give[GRID](out, 7)
    assert out[0].item() == 7.0


@row("constants")
def a_wrapped_constant_is_one_too(make, device):
    give, out = make(kernels.give), floats(device)
    warm(give, lambda: give[GRID](out, tl.constexpr(7)))
    for value in (8, 7, 8):
        give[GRID](out, tl.constexpr(value))
        assert out[0].item() == value
        give[GRID](out, value)
        assert out[0].item() == value


@row()
def a_wrapped_constant_is_compiled_in_where_a_number_goes(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, tl.constexpr(7)))
    for value in (8, 7, 16):
        assert kind_of(put[GRID](out, tl.constexpr(value)), "value") == "constexpr"
        assert out[0].item() == value
        assert kind_of(put[GRID](out, value), "value") == "i32"
        assert out[0].item() == value


# -- options -------------------------------------------------------------------------------------


@row("options")
def each_set_of_options_has_a_binary_of_its_own(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    two = warm(double, lambda: double[GRID](x, 8, num_warps=2))
    assert two.metadata.num_warps == 2
    for options in (
        {"num_warps": 4},
        {"num_warps": 4, "num_stages": 2},
        {"num_stages": 2, "num_warps": 4},
        {"num_stages": 3},
        {"num_warps": 2, "enable_fp_fusion": False},
        {"num_warps": 2},
    ):
        x.fill_(3.0)
        binary = double[GRID](x, 8, **options)
        assert x.tolist() == [6.0] * 8
        assert {name: getattr(binary.metadata, name) for name in options} == options
    assert double[GRID](x, 8, num_warps=2) is two


@row("options")
def options_may_come_and_go(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    plain = warm(double, lambda: double[GRID](x, 8))
    warps = plain.metadata.num_warps * 2
    assert double[GRID](x, 8, num_warps=warps).metadata.num_warps == warps
    assert double[GRID](x, 8) is plain


@row()
def options_that_are_tuples_are_taken_with_and_without_items(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    empty = warm(double, lambda: double[GRID](x, 8, extern_libs=()))
    for options in ({"extern_libs": ()}, {}, {"extern_libs": (), "num_warps": 2}):
        for _ in range(2):
            x.fill_(3.0)
            binary = double[GRID](x, 8, **options)
            assert x.tolist() == [6.0] * 8
            assert (binary is empty) == (options == {"extern_libs": ()})


@row()
def true_is_not_the_option_one(make, device):
    double = make(kernels.double)
    x = torch.ones(8, device=device)
    flag = warm(double, lambda: double[GRID](x, 8, enable_fp_fusion=True))
    number = double[GRID](x, 8, enable_fp_fusion=1)
    assert number is not flag and number.metadata.enable_fp_fusion == 1
    assert double[GRID](x, 8, enable_fp_fusion=True) is flag


@row()
def an_unknown_keyword_is_refused_by_name(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for _ in range(2):
        with pytest.raises(KeyError, match="Keyword argument foo was specified but unrecognised"):
            put[GRID](out, 7, foo=3)
    for name in ("device", "stream", "device_type"):
        with pytest.raises(AssertionError, match=f"{name} option is deprecated"):
            put[GRID](out, 7, **{name: 0})
    put[GRID](out, 9)
    assert out[0].item() == 9


@row()
def missing_doubled_and_surplus_arguments_are_refused_in_tritons_words(make, device):
    put, out = make(kernels.put), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for args, kwargs, words in (
        ((out,), {}, r"dynamic_func\(\) missing 1 required positional argument: 'value'"),
        ((out, 7), {"value": 7}, r"dynamic_func\(\) got multiple values for argument 'value'"),
        ((out, 7, 9), {}, r"dynamic_func\(\) takes 2 positional arguments but 3 were given"),
        ((out, 7), {"grid": (1,)}, "multiple values for keyword argument 'grid'"),
        ((out, 7), {"warmup": False}, "multiple values for keyword argument 'warmup'"),
    ):
        for _ in range(2):
            with pytest.raises(TypeError, match=words):
                put[GRID](*args, **kwargs)
    put[GRID](out, 9)
    assert out[0].item() == 9


@row()
def parameters_may_have_odd_names(make, device):
    kernel, out = make(kernels.odd_names), integers(device)
    for _ in range(4):
        kernel[GRID](out, 7, 2, 5)
        assert out[0].item() == 17
    kernel[GRID](out, 7, 2, k=9, v=16, num_warps=2)
    assert out[0].item() == 34


@row()
def a_parameter_called_grid_is_refused_by_keyword_as_by_triton(make, device):
    put, out = make(kernels.named_grid), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    assert out[0].item() == 7
    with pytest.raises(TypeError, match="multiple values for keyword argument 'grid'"):
        put[GRID](out, grid=9)


# -- defaults and keywords -----------------------------------------------------------------------


@row("defaults")
def defaults_may_be_given_and_left_out(make, device):
    kernel, out = make(kernels.positional_defaults), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out))
    assert out[0].item() == 230
    for _ in range(2):
        for given, stored in (
            ({"A": 4}, 430),
            ({"b": 1}, 210),
            ({"b": 16, "A": 7}, 860),
            ({"b": 2**40}, 200 + 10 * 2**40),
            ({}, 230),
        ):
            kernel[GRID](out, **given)
            assert out[0].item() == stored
    assert kernel[GRID](out, 2, 3) is plain
    assert kernel[GRID](out, b=3) is plain
    assert kernel[GRID](out, A=2) is plain


@row("defaults")
def given_first_and_left_out_later(make, device):
    kernel, out = make(kernels.positional_defaults), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 9, b=16))
    assert out[0].item() == 1060
    kernel[GRID](out)
    assert out[0].item() == 230
    kernel[GRID](out, 9)
    assert out[0].item() == 930


@row()
def keywords_come_in_any_order(make, device):
    copy = make(kernels.copy)
    x = torch.arange(8.0, device=device)
    y = floats(device)
    binary = warm(copy, lambda: copy[GRID](x, y, 8, BLOCK=8))
    for call in (
        lambda: copy[GRID](BLOCK=8, n=8, y=y, x=x),
        lambda: copy[GRID](x, BLOCK=8, y=y, n=8),
        lambda: copy[GRID](x, y, BLOCK=8, n=8),
        lambda: copy[GRID](x, y, 8, 8),
    ):
        y.zero_()
        assert call() is binary
        assert y.tolist() == x.tolist()
    copy[GRID](y=x, x=y, n=4, BLOCK=8)  # the other way round, by name
    assert x.tolist() == [*range(8)]


@row()
def keyword_only_parameters_are_what_triton_makes_of_them(make, device):
    kernel, out = make(kernels.defaults), integers(device)
    if VERSION < (3, 9):
        with pytest.raises(triton.CompilationError, match="C is not defined"):
            kernel[GRID](out)
        return
    warm(kernel, lambda: kernel[GRID](out))
    assert out[0].item() == 235
    kernel[GRID](out, C=1, b=2, A=4)
    assert out[0].item() == 421
    with pytest.raises(TypeError, match="takes from 1 to 3 positional arguments but 4 were given"):
        kernel[GRID](out, 1, 1, 1)


@row()
def a_parameter_that_collects_arguments_is_what_triton_makes_of_it(make, device):
    kernel, out = make(kernels.collecting), integers(device)
    for value in (3, 4, 5):
        if VERSION < (3, 9):
            with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
                kernel[GRID](out, value, 7)
        else:
            kernel[GRID](out, value, 7)
            assert out[0].item() == value


# -- tuples and descriptors ----------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


@row()
def the_items_of_a_tuple_are_arguments(make, device):
    kernel, out = make(kernels.numbers), floats(device)
    warm(kernel, lambda: kernel[GRID](out, (7, 8)))
    sizes = torch.ones(2, 3).shape
    for value in ((3, 4), (1, 16), (2.5, True), Pair(5, 6), (2**31, 1), sizes, (7, 8)):
        kernel[GRID](out, value)
        assert out.tolist()[:2] == [float(each) for each in value]
    for value in ((tl.constexpr(5), 6), (tl.constexpr(9), 6)):
        kernel[GRID](out, value)
        assert out.tolist()[:2] == [value[0].value, 6.0]
    with pytest.raises(TypeError, match="failed to specialize argument of type: list"):
        kernel[GRID](out, [7, 8])


@row()
def tensors_in_nested_tuples_have_dtype_and_alignment(make, device):
    kernel, out = make(kernels.nested), floats(device)
    source = torch.arange(9.0, device=device)
    aligned = warm(kernel, lambda: kernel[GRID](out, (source, (3, 4))))
    assert out.tolist()[:3] == [0.0, 3.0, 4.0]
    assert aligned.src.attrs[(1, 0)] == [["tt.divisibility", 16]]
    other = kernel[GRID](out, (source[5:], (5, 16)))
    assert out.tolist()[:3] == [5.0, 5.0, 16.0]
    assert other.src.attrs[(1, 0)] == []
    kernel[GRID](out, (source.to(torch.int32) + 3, (1, 2)))
    assert out.tolist()[:3] == [3.0, 1.0, 2.0]
    assert kernel[GRID](out, (source, (3, 4))) is aligned


@row("tuple_shape")
def where_a_tuple_ends_is_seen(make, device):
    kernel, out = make(kernels.count_first), integers(device)
    warm(kernel, lambda: kernel[GRID](out, ((7, 8), (9,))))
    assert out[0].item() == 2
    for items, count in (
        (((7,), (8, 9)), 1),
        (((7, 8, 9), ()), 3),
        (((), (7, 8, 9)), 0),
        (((7, 8), (9,)), 2),
        (((7, 8), 9), 2),
    ):
        kernel[GRID](out, items)
        assert out[0].item() == count


class Swapped(NamedTuple):
    """The fields of `Pair`, in another order."""

    second: int
    first: int


@row()
def named_tuples_are_what_triton_takes_them_for(make, device):
    kernel, out = make(kernels.named_items), floats(device)
    pair = warm(kernel, lambda: kernel[GRID](out, Pair(7, 8)))
    assert out.tolist()[:2] == [7.0, 8.0]
    for first, second in ((3, 4), (1, 2.5), (2**40, 16), (7, 8)):
        kernel[GRID](out, Pair(first, second))
        assert out.tolist()[:2] == [first, second]
    # Triton compares classes with equal items as equal, so that the first one compiled serves both.
    assert kernel[GRID](out, Swapped(second=5, first=6)) is pair
    assert out.tolist()[:2] == [5.0, 6.0]


class Computed(tuple):
    """A tuple that says itself what its items are."""

    def __getitem__(self, index):
        return super().__getitem__(index) + 1


@row()
def a_tuple_that_computes_its_items_is_asked(make, device):
    kernel, out = make(kernels.numbers), floats(device)
    warm(kernel, lambda: kernel[GRID](out, (7, 8)))
    for _ in range(2):
        kernel[GRID](out, Computed((3, 5)))
        assert out.tolist()[:2] == [4.0, 6.0]


@row()
def items_that_do_not_fit_are_refused_in_tritons_words(make, device):
    kernel, out = make(kernels.numbers), floats(device)
    warm(kernel, lambda: kernel[GRID](out, (7, 8)))
    for items in (("text", 1), ([1], 2), (object(), 3)):
        for _ in range(2):
            with pytest.raises(TypeError, match="failed to specialize argument of type: tuple"):
                kernel[GRID](out, items)
    deep = 1
    for _ in range(20):  # with more than 30, Triton 3.6 ends the process on CUDA
        deep = (deep,)
    kernel[GRID](out, (7, 8, deep))  # nobody reads it
    kernel[GRID](out, (9, 8))
    assert out.tolist()[:2] == [9.0, 8.0]


@row()
def a_grid_function_sees_tuples_and_may_change_memory(make, device):
    kernel, out = make(kernels.nested), floats(device)
    source = torch.arange(9.0, device=device)
    seen = []

    def grid(meta):
        seen.append(meta["items"][1])
        if len(seen) > 3:
            source.set_(torch.full((9,), 4.0, device=device))
        return GRID

    warm(kernel, lambda: kernel[grid](out, (source, (3, 4))))
    kernel[grid](out, (source, (3, 5)))
    assert out.tolist()[:3] == [4.0, 3.0, 5.0]
    assert seen == [(3, 4)] * 3 + [(3, 5)]


@row()
def kernels_are_compiled_in_where_a_number_goes(make, device):
    kernel, out = make(kernels.call_item), floats(device)
    out.fill_(1.0)
    warm(kernel, lambda: kernel[GRID](out, (kernels.plus_one, 3)))
    for function, stored in ((kernels.times_five, 13.0), (kernels.plus_one, 6.0)):
        out.fill_(2.0)
        kernel[GRID](out, (function, 3))
        assert out[0].item() == stored


@row()
def a_descriptor_is_read_anew_each_time(make, device):
    kernel = make(kernels.descriptor)
    source = torch.arange(64.0, device=device).reshape(8, 8)
    out = torch.zeros(4, 8, device=device)
    given = TensorDescriptor.from_tensor(source, [4, 8])
    warm(kernel, lambda: kernel[GRID](given, out, ROWS=4, COLUMNS=8))
    given.base = source + 100
    kernel[GRID](given, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out, source[:4] + 100)
    given.shape = [2, 8]
    kernel[GRID](given, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out[:2], source[:2] + 100) and not out[2:].any()
    given.padding = "nan"
    kernel[GRID](given, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out[:2], source[:2] + 100) and out[2:].isnan().all()
    given.shape, given.strides = (8, 8), (16, 1)
    given.base = torch.arange(128.0, device=device).reshape(8, 16)
    kernel[GRID](given, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out, given.base[:4, :8])
    given.block_shape[0] = 2
    kernel[GRID](given, out, ROWS=2, COLUMNS=8)
    assert torch.equal(out[:2], given.base[:2, :8])


@row()
def descriptors_in_tuples_are_descriptors(make, device):
    if device.type == "cuda":
        return  # Triton's launcher for CUDA asserts that there are none
    kernel = make(kernels.described_item)
    source = torch.arange(64.0, device=device).reshape(8, 8)
    out = torch.zeros(4, 8, device=device)
    for offset in (0, 1, 1, 3, 3):
        given = TensorDescriptor.from_tensor(source + offset, [4, 8])
        kernel[GRID]((offset, (given, 2.5)), out, ROWS=4, COLUMNS=8)
        assert torch.equal(out, source[:4] + 2 * offset + 2.5)


@row("descriptor_block")
def the_block_of_a_descriptor_is_seen(make, device):
    kernel, out = make(kernels.sum_of_block), floats(device)
    source = torch.ones(8, 8, device=device)
    tall = TensorDescriptor.from_tensor(source, [4, 8])
    warm(kernel, lambda: kernel[GRID](tall, out))
    for block in ([2, 8], [8, 8], [4, 4], [4, 8]):
        kernel[GRID](TensorDescriptor.from_tensor(source, block), out)
        assert out[0].item() == block[0] * block[1]


@row()
def the_block_and_dtype_of_a_descriptor_choose_the_binary(make, device):
    kernel = make(kernels.descriptor)
    source = torch.arange(64.0, device=device).reshape(8, 8)
    out = torch.zeros(4, 8, device=device)
    tall = TensorDescriptor.from_tensor(source, [4, 8])
    warm(kernel, lambda: kernel[GRID](tall, out, ROWS=4, COLUMNS=8))
    assert torch.equal(out, source[:4])
    other = TensorDescriptor.from_tensor(source + 1, [4, 8])  # the same block, other memory
    kernel[GRID](other, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out, source[:4] + 1)
    flat = TensorDescriptor.from_tensor(source, [2, 8])
    kernel[GRID](flat, out, ROWS=2, COLUMNS=8)
    assert torch.equal(out[:2], source[:2]) and torch.equal(out[2:], source[2:4] + 1)
    halves = TensorDescriptor.from_tensor(source.to(torch.float16), [4, 8])
    kernel[GRID](halves, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out, source[:4])
    shifted = TensorDescriptor(source[1:], [2, 8], [8, 1], [4, 8])  # fewer rows than the block
    kernel[GRID](shifted, out, ROWS=4, COLUMNS=8)
    assert torch.equal(out[:2], source[1:3]) and not out[2:].any()


@row("alignment", "constants")
def facts_that_change_together_are_all_seen(make, device):
    copy = make(kernels.copy)
    x = torch.arange(17.0, device=device)
    y = floats(device, 17)
    warm(copy, lambda: copy[(2,)](x, y, 16, BLOCK=8))
    for offset in (0, 1, 4):
        for block in (4, 8, 16):
            for count in (1, 5, 12):
                y.zero_()
                grid = (-(-count // block),)
                binary = copy[grid](x[offset:], y, count, BLOCK=block)
                assert y[:count].tolist() == list(range(offset, offset + count))
                assert not y[count:].any()
                assert assumes_16(binary, 0) is (offset % 4 == 0)
                assert binary.src.constants[(3,)] == block
