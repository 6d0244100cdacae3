"""Host functions that read other modules, kernels and settings of libraries, and a change of each.

The change is in `elsewhere`, in this module or in a library; a patch undoes it.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl

from tests.plans import elsewhere
from tests.plans.case import cases
from tests.plans.elsewhere import factor
from tests.plans.hosts import scaled
from tests.plans.kernels import BLOCK, give, scale, shift

CASES = cases()
case = CASES.add


def set_global(name, value):
    """A change: another value for a global of this module."""
    return lambda patch: patch.setitem(globals(), name, value)


def set_elsewhere(name, value):
    """A change: another value for a global of the other module."""
    return lambda patch: patch.setattr(elsewhere, name, value)


# -- modules ---------------------------------------------------------------------------------------


@case(set_elsewhere("NUMBER", 5.0))
def an_attribute_of_a_module(x):
    return scaled(x, elsewhere.NUMBER)


@case(set_elsewhere("NUMBER", 5.0))
def a_global_of_another_module(x):
    return scaled(x, elsewhere.factor())


@case(set_elsewhere("NUMBER", 5.0))
def a_global_of_what_was_imported(x):
    return scaled(x, factor())


@case(set_elsewhere("factor", lambda: 5.0))
def a_function_of_a_module(x):
    return scaled(x, elsewhere.factor())


@case(lambda patch: patch.setattr(elsewhere.Setting, "by", 5.0))
def an_attribute_of_a_class_of_a_module(x):
    return scaled(x, elsewhere.Setting.by)


@case(set_elsewhere("NUMBER", 5.0))
def a_name_imported_while_it_runs(x):
    from tests.plans.elsewhere import NUMBER

    return scaled(x, NUMBER)


@case(set_elsewhere("NUMBER", 5.0))
def a_module_imported_while_it_runs(x):
    import tests.plans.elsewhere as there

    return scaled(x, there.NUMBER)


@case(set_elsewhere("NUMBER", 5.0))
def a_name_imported_from_beside_it(x):
    from .elsewhere import NUMBER

    return scaled(x, NUMBER)


@case(set_elsewhere("NUMBER", 5.0))
def a_module_under_another_name(x):
    there = elsewhere
    return scaled(x, there.NUMBER)


@case(set_elsewhere("NUMBER", 5.0))
def an_attribute_by_getattr(x):
    return scaled(x, getattr(elsewhere, "NUMBER"))  # noqa: B009


@case(lambda patch: patch.setattr(torch, "empty_like", lambda x: torch.zeros(x.shape[0] * 2)))
def a_function_of_torchs(x):
    out = torch.empty_like(x)
    scale[(1,)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    return out[: x.numel()], out.shape


@case(set_global("max", min))
def a_builtin_that_a_global_hides(x):
    return scaled(x, float(max(2, 3)))


# -- kernels ---------------------------------------------------------------------------------------


@case(set_global("scale", shift))
def a_kernel(x):
    out = torch.empty_like(x)
    scale[(1,)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    return out


GIVEN = 3


@case(set_global("GIVEN", 4))
def a_global_given_as_a_constant(x):
    give[(1,)](x, VALUE=GIVEN)
    return x


DIVISOR = 2


@triton.heuristics({"BLOCK": lambda args: BLOCK * (2 if args["n"] % DIVISOR else 1)})
@triton.jit(do_not_specialize=["n"])
def by_heuristics(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by + BLOCK, mask=at < n)


@case(set_global("DIVISOR", 1))
def a_global_of_a_heuristic(x):
    out = torch.empty_like(x)
    by_heuristics[(1,)](x, out, 2.0, x.numel())
    return out


SHIFT = 1.0


def before(given):
    given["out"].fill_(SHIFT)


@triton.autotune([triton.Config({"BLOCK": 64}, pre_hook=before)], key=[])
@triton.jit(do_not_specialize=["n"])
def autotuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(out + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@case(set_global("SHIFT", 4.0))
def a_global_of_a_hook_of_an_autotuner(x):
    out = torch.empty_like(x)
    autotuned[(1,)](x, out, x.numel())
    return out


# -- settings of the standard library and torch ----------------------------------------------------


@contextlib.contextmanager
def tf32():
    flags = torch.backends.cuda.matmul
    before, flags.allow_tf32 = flags.allow_tf32, True
    try:
        yield
    finally:
        flags.allow_tf32 = before


@case(lambda patch: tf32())
def a_flag_of_a_backend(x):
    return scaled(x, 2.0 if torch.backends.cuda.matmul.allow_tf32 else 3.0)


@case(lambda patch: patch.setattr(torch.backends.cudnn, "enabled", False))
def a_flag_of_a_module_with_properties(x):
    return scaled(x, 2.0 if torch.backends.cudnn.enabled else 3.0)


@case(lambda patch: patch.setattr(triton.knobs.runtime, "debug", True))
def a_knob_of_tritons(x):
    return scaled(x, 2.0 if triton.knobs.runtime.debug else 3.0)
