"""Calls that are not replayed, made by native code: the host function runs as written."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

import tzero
import tzero._native as native
from tzero.calls.native import NativeKernel
from tzero.launches.current_call import current
from tzero.launches.native import ParameterDescription

pytestmark = pytest.mark.skipif(
    bool(NativeKernel.unavailable), reason=f"native calls: {NativeKernel.unavailable}"
)


def made_natively(kernel: tzero.Kernel, *args: object) -> tzero.Kernel:
    """Call a kernel until native code has an entry for these arguments."""
    for _ in range(3):
        kernel(*args)
    assert kernel._count() == 1
    return kernel


def frames_of_tzero(kernel: tzero.Kernel, *args: object) -> list[str]:
    """The Python functions of tzero that run in a call."""
    seen = []

    def note(frame, event, arg):
        if event == "call" and "/tzero/" in frame.f_code.co_filename:
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        kernel(*args)
    finally:
        sys.setprofile(None)
    return seen


def test_no_python_of_tzero_runs_in_a_fallback():
    @tzero.kernel
    def total(x, bias=2.0):
        return float(x.sum()) + bias

    x = torch.ones(4)
    made_natively(total, x)
    assert frames_of_tzero(total, x) == []
    assert total(x) == 6.0 and total(x, 3.0) == 7.0 and total(bias=1.0, x=x) == 5.0
    assert "not replayed" in str(total.explain(x))


def test_calls_are_counted():
    @tzero.kernel
    def nothing(x):
        pass

    x = torch.ones(4)
    for _ in range(10):
        nothing(x)
    assert nothing.stats().calls == 10


class Thing:
    def __init__(self, by):
        self.by = by


OBJECTS = {
    "object": Thing(2.0),
    "set": {2.0},
    "object in a list": [Thing(2.0)],
    "set in a dict": {"a": {1}},
    "set in a tuple": (2, {2}),
}


@pytest.mark.parametrize("value", OBJECTS.values(), ids=OBJECTS)
def test_any_object_can_be_an_argument(value):
    seen = []

    @tzero.kernel
    def given(x, thing):
        return x, thing

    x = torch.ones(4)
    with tzero.events.observe(seen.append):
        for _ in range(3):
            assert given(x, value)[1] is value
    assert [event.kind for event in seen] == ["fallback"]
    assert "not replayed: argument 'thing' is or holds" in seen[0].reason
    assert "not replayed: argument 'thing'" in str(given.explain(x, value))
    made_natively(given, x, value)
    assert frames_of_tzero(given, x, value) == []
    other = Thing(3.0)
    assert given(x, other)[1] is other  # of another type: another entry, or the same
    assert given(x, 3.0)[1] == 3.0 and given.stats().entries == 1


def test_an_object_has_no_key_that_a_value_could_join():
    @tzero.kernel
    def given(x, thing):
        return tzero.specialize(thing.by) * float(x.sum())

    x = torch.ones(4)
    assert [given(x, Thing(by)) for by in (1.0, 2.0, 3.0, 4.0)] == [4.0, 8.0, 12.0, 16.0]
    assert given.stats().entries == 0


def test_a_constant_beside_an_object_is_unwrapped():
    @tzero.kernel
    def given(n, thing):
        return n

    for _ in range(4):
        assert given(tzero.ConstExpr(3), Thing(1)) == 3
        assert given(4, Thing(1)) == 4


def test_a_method_of_any_class_can_be_a_kernel():
    class Model:
        def __init__(self, by):
            self.by = by

        @tzero.kernel
        def scaled(self, x, *, plus=0.0):
            return x * self.by + plus

    one, two, x = Model(2.0), Model(3.0), torch.ones(4)
    for _ in range(4):
        assert one.scaled(x).tolist() == [2.0] * 4
        assert two.scaled(x, plus=1.0).tolist() == [4.0] * 4


def test_tensors_may_be_on_two_devices():
    @tzero.kernel
    def both(x, y):
        return x.device.type, y.device.type

    x, y = torch.ones(4), torch.empty(4, device="meta")
    assert [both(x, y) for _ in range(4)] == [("cpu", "meta")] * 4


def test_types_that_are_gone_are_not_mistaken_for_others():
    @tzero.kernel
    def given(thing):
        return thing.by

    for k in range(50):
        kind = type("Kind", (), {"by": k})
        assert [given(kind()) for _ in range(3)] == [k] * 3


def test_an_error_leaves_the_thread_as_it_was():
    @tzero.kernel
    def fails(x, really):
        assert current.call is not None
        if really.item():
            raise KeyError("really")

    x, no, yes = torch.ones(4), torch.zeros(1), torch.ones(1)
    made_natively(fails, x, no)
    for _ in range(3):
        with pytest.raises(KeyError, match="really"):
            fails(x, yes)
        assert current.call is None
    assert fails._count() == 1


def test_specialize_works_in_a_fallback():
    @tzero.kernel
    def sized(x, n):
        return tzero.specialize(n) + float(x.sum())

    x = torch.ones(4)
    for n in (3, 5, 3, 5, 3, 5, 3):
        assert sized(x, n) == n + 4.0
    assert len(sized.table.bound_kernels()) >= 2


def test_specialized_values_and_sizes_are_found_natively():
    @tzero.kernel(static_shapes=False)
    def sized(x, n):
        return tzero.specialize(n), tzero.specialize(x.shape[0]), float(x.sum())

    for _ in range(4):
        for n in (2, 4, 6):
            for x in (torch.ones(2), torch.ones(3)):
                assert sized(x, n) == (n, x.size(0), float(x.size(0)))
    assert len(sized.table.bound_kernels()) >= 6
    assert frames_of_tzero(sized, torch.ones(2), 2)[0] == "specialize"


def test_a_value_that_the_arguments_do_not_determine_is_still_an_error():
    state = {"value": None}

    @tzero.kernel
    def late(x):
        if state["value"] is not None:
            tzero.specialize(state["value"])
        return float(x.sum())

    x = torch.ones(4)
    made_natively(late, x)
    state["value"] = 1
    late(x)  # the value joins the key
    late(x)  # and its site is known from here on
    late(x)
    state["value"] = 2
    with pytest.raises(tzero.errors.InvalidArgument, match="specialize was given 2"):
        late(x)


def test_the_innermost_call_is_restored_around_a_nested_one():
    @tzero.kernel
    def inner(x):
        return current.call

    @tzero.kernel
    def outer(x):
        before = current.call
        within = inner(x)
        assert current.call is before
        return before, within

    x = torch.ones(4)
    for _ in range(5):
        before, within = outer(x)
        assert before[2].name.endswith("outer") and within[2].name.endswith("inner")
        assert before[3] == (x,)
    assert current.call is None


def test_another_config_is_used_at_once():
    @tzero.kernel(config=tzero.Config(BLOCK=1))
    def block(x, config):
        return config.BLOCK, float(x.sum())

    x = torch.ones(4)
    made_natively(block, x)
    assert block(x) == (1, 4.0)
    block.bind(x).set_config(tzero.Config(BLOCK=2))
    assert [block(x) for _ in range(4)] == [(2, 4.0)] * 4
    block.reset()
    assert [block(x) for _ in range(4)] == [(1, 4.0)] * 4


def test_a_config_set_during_the_call_is_used_in_the_next():
    @tzero.kernel(config=tzero.Config(BLOCK=0))
    def block(x, config):
        block.bind(x).set_config(tzero.Config(BLOCK=config.BLOCK + 1))
        return config.BLOCK, float(x.sum())

    x = torch.ones(4)
    assert [block(x)[0] for _ in range(6)] == [0, 1, 2, 3, 4, 5]


def test_observers_and_measurements_see_every_call():
    @tzero.kernel
    def nothing(x):
        pass

    x = torch.ones(4)
    made_natively(nothing, x)
    seen = []
    with tzero.events.observe(seen.append):
        nothing(x)
    assert [event.kind for event in seen] == ["hit"]
    with tzero.measure.recording() as record:
        nothing(x)
    assert "call" in str(record)


def test_deep_recursion_raises_before_the_stack_is_full():
    @tzero.kernel
    def deeper(x):
        deeper(x)
        return float(x.sum())

    def try_it():
        limit = sys.getrecursionlimit()
        x = torch.ones(4)
        for _ in range(4):
            with pytest.raises(RecursionError):
                deeper(x)
        assert sys.getrecursionlimit() == limit

    thread_stack = threading.stack_size(8 << 20)
    try:
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(thread_stack)


def test_threads_have_their_own_calls():
    @tzero.kernel
    def mine(x):
        return current.call[3][0] is x

    x = torch.ones(4)
    made_natively(mine, x)
    wrong = []

    def call():
        y = torch.ones(4)
        for _ in range(300):
            if not mine(y):
                wrong.append(y)
        if current.call is not None:
            wrong.append(current.call)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_nothing_is_kept_of_a_kernel_that_is_gone():
    def make():
        @tzero.kernel
        def nothing(x):
            return x

        x = torch.ones(4)
        made_natively(nothing, x)
        return weakref.ref(nothing), weakref.ref(x)

    gone = make()
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_calls_keep_no_references():
    @tzero.kernel
    def nothing(x, y):
        return y

    x, y = torch.ones(4), torch.ones(4)
    made_natively(nothing, x, y)
    before = sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(nothing)
    for _ in range(100):
        nothing(x, y=y)
    assert (sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(nothing)) == before


@pytest.mark.parametrize("wrong", [(), 1, SimpleNamespace(call=print, note=print, base=[])])
def test_a_description_that_makes_no_sense_is_an_error(wrong):
    class Broken(native.Dispatching):
        def __call__(self, *args):
            raise AssertionError("the call goes to _missed")

        def _missed(self, args, kwargs):
            return "missed", ("bound", None, wrong, (False,), self._generation())

    native.enable_calls(Broken)
    kernel = Broken()
    kernel._prepare((ParameterDescription("n"),), (False,), 10)
    with pytest.raises((AttributeError, TypeError)):
        kernel(3)
    assert kernel._count() == 0
