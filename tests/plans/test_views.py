"""Views that a call returns: in replays everything about them is as in plain calls.

The outcome of a call is compared with that of the host function in full: geometry, which tensor is
the base, version counters, what a change in place does, and what autograd says of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from tests.plans.hosts import increased
from tests.plans.tiers import available, described, of_tier, outcome, verifying
from tzero.plans.describe import CallDescription, ViewDescription, describe

Host = Callable[[torch.Tensor], Any]


# -- host functions: each is given a tensor of 2 x 3 x 4 -------------------------------------------


def there_and_back(x):
    y = x.transpose(1, 2)
    increased(y, 1.0)
    return y.transpose(1, 2)


def every_link(x):
    y = x.transpose(0, 1)
    z = y[1:]
    increased(x, 1.0)
    return y, z, z.transpose(0, 2)[2:]


def of_the_same_geometry(x):
    y = x.transpose(1, 2).transpose(1, 2)
    increased(y, 1.0)
    return y, x.transpose(0, 0), x


def with_offsets(x):
    y = x[1:, :, 1:]
    increased(x, 1.0)
    return y[0, 1:], y[:, 2, 2], y[0].t()[1]


def of_an_output(x):
    out = torch.empty(24)
    increased(out.fill_(1), 1.0)
    return out.view(4, 6)[1:], out.view(2, 3, 4).permute(2, 0, 1)[3, 1], out[5:].unfold(0, 4, 3)


def of_many_kinds(x):
    increased(x, 1.0)
    return (
        *(x.unsqueeze(1), x.unsqueeze(1).squeeze(1), x[:1].squeeze(), x[:, :1].squeeze(1)),
        *(x.expand(5, *x.shape)[4], x.permute(2, 1, 0)[1:], x[0].diagonal(), x.select(1, 2)),
        *(x[..., None], x.as_strided((2, 2), (12, 1))),
    )


def by_operators_made_of_others(x):
    increased(x, 1.0)
    return (
        *(x.permute(2, 1, 0).mT, x.swapaxes(0, 2), x.movedim(0, 2), x.narrow(2, 1, 2)),
        *(x.view_as(x), x[1].T, x.flatten(1) if x.is_contiguous() else x.moveaxis(0, 1)),
    )


def empty(x):
    y = x[:, 3:]
    increased(x, 1.0)
    return y.transpose(0, 2), y[1:], x[1, 3:]


def several_at_once(x):
    y, z = x.unbind(0)
    increased(x, 1.0)
    return y.t(), z, *x.transpose(0, 2).split(2), x.chunk(2, 1)[1][0]


def detached(x):
    y = x.detach()[1:]
    increased(x, 1.0)
    return y, x[1:].detach().transpose(0, 1), x.detach()


def beside_a_call_of_torch(x):
    y = x.transpose(1, 2)
    total = torch.sin(x.detach())
    increased(x, 1.0)
    return y.transpose(0, 2), total.transpose(0, 1)[1:]


def after_reading_a_value(x):
    y = x.transpose(1, 2)
    if bool((x.detach() > 1e9).any()):
        return y
    increased(x, 1.0)
    return y[1:].transpose(0, 1)


HOSTS: list[Host] = [
    *(there_and_back, every_link, of_the_same_geometry, with_offsets, of_an_output, of_many_kinds),
    *(
        by_operators_made_of_others,
        empty,
        several_at_once,
        detached,
        beside_a_call_of_torch,
        after_reading_a_value,
    ),
]


# -- their arguments -------------------------------------------------------------------------------


def whole() -> torch.Tensor:
    return torch.arange(24.0).view(2, 3, 4).clone()


def a_view() -> torch.Tensor:
    return torch.arange(60.0).view(3, 4, 5)[1:, 1:, 1:]


def transposed() -> torch.Tensor:
    return torch.arange(24.0).view(2, 4, 3).transpose(1, 2)


def a_leaf() -> torch.Tensor:
    return whole().requires_grad_()


def a_parameter() -> torch.Tensor:
    return Parameter(whole())


def a_frozen_parameter() -> torch.Tensor:
    return Parameter(whole(), requires_grad=False)


def of_a_graph() -> torch.Tensor:
    return a_leaf() * 2


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return whole()


def dual() -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(whole(), whole())


ARGUMENTS: list[Callable[[], torch.Tensor]] = [
    *(whole, a_view, transposed, a_leaf, a_parameter, a_frozen_parameter, of_a_graph),
    *(made_in_inference_mode, dual),
]

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


# -- what is compared ------------------------------------------------------------------------------


def facts(tensors: list[torch.Tensor]) -> list[Any]:
    """Everything that a program can see of tensors, the first of which was given. To look at a view
    may raise."""
    known = [*tensors, *(tensor._base for tensor in tensors)]

    def place(tensor: torch.Tensor | None) -> int | None:
        return None if tensor is None else next(k for k, each in enumerate(known) if each is tensor)

    def look(tensor: torch.Tensor) -> list[Any]:
        return [
            *described(tensor),
            *(tensor._is_view(), place(tensor._base), place(tensor), tensor.tolist()),
            None if tensor.is_inference() else tensor._version,
            tensor.untyped_storage()._cdata == tensors[0].untyped_storage()._cdata,
            tensor.output_nr,
        ]

    looks = [outcome(lambda each=tensor: look(each)) for tensor in tensors]
    return [getattr(each, "words", each) for each in looks]


def seen(call: Host, x: torch.Tensor, mode: Callable[[], Any]) -> list[Any]:
    """What a program can see of a call and of its results: as they are, after each is changed in
    the mode of the call, and after each takes part in a computation with gradients."""
    with mode():
        result = call(x)
        tensors = [x, *(result if isinstance(result, tuple) else [result])]
        found = facts(tensors)
        for tensor in tensors[1:]:
            found.append(_words(lambda each=tensor: each.mul_(2)))
            found.append(facts(tensors))
    weight = torch.ones((), requires_grad=True)
    for tensor in tensors[1:]:
        found.append(_words(lambda each=tensor: each.mul_(weight)))
        found.append(facts(tensors))
        found.append(_words(lambda each=tensor: each.sum().backward()))
    return found


def _words(call: Callable[[], Any]) -> Any:
    found = outcome(call)
    return getattr(found, "words", None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", ARGUMENTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("host", HOSTS, ids=lambda each: each.__name__)
def test_a_returned_view_is_as_in_a_plain_call(
    host: Host, build: Callable[[], torch.Tensor], mode: str, tier: int
) -> None:
    kernel = of_tier(tier, host)
    if host is by_operators_made_of_others and mode == "inference":
        # torch does not track the base of these views while operators are observed, as in the
        # recorded call.
        if verifying():
            pytest.skip("in verify mode each call is recorded")
        seen(kernel, build(), MODES[mode])
    for _ in range(3):
        assert seen(kernel, build(), MODES[mode]) == seen(host, build(), MODES[mode])


SIZES = (4, 5, 9, 7, 16, 6)


def of_size(build: Callable[[], torch.Tensor], n: int) -> torch.Tensor:
    """An argument whose last size is another one."""
    x = build()
    wider = torch.arange(6.0 * n).view(2, 3, n).clone()
    if build is transposed:
        wider = torch.arange(6.0 * n).view(2, n, 3).transpose(1, 2)
    elif build is a_view:
        wider = torch.arange(12.0 * (n + 1)).view(3, 4, n + 1)[1:, 1:, 1:]
    with torch.inference_mode(x.is_inference()):
        made = wider.clone() if x.is_inference() else wider
    if isinstance(x, Parameter):
        return Parameter(made, x.requires_grad)
    return made.requires_grad_(x.requires_grad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "build",
    [whole, a_view, transposed, a_leaf, a_parameter, made_in_inference_mode],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("host", HOSTS, ids=lambda each: each.__name__)
def test_a_view_of_a_size_never_seen_is_as_in_a_plain_call(
    host: Host, build: Callable[[], torch.Tensor], mode: str
) -> None:
    kernel = of_tier(2, host, static_shapes=False)
    for n in SIZES:
        before = kernel.stats().recordings
        made = seen(kernel, of_size(build, n), MODES[mode])
        if mode != "inference" or kernel.stats().recordings == before:  # see the test above
            assert made == seen(host, of_size(build, n), MODES[mode])


# -- what a replay calls ---------------------------------------------------------------------------


def steps_of(host: Host, x: torch.Tensor, **options: Any) -> tuple[list[Any], int]:
    """The views and calls of torch in the native plan of a call, and how many views are made as
    tensors."""
    available(2)
    from tzero import _native as native

    kernel = of_tier(2, host, **options)
    kernel(x)
    plan = kernel.explain(x).plan
    assert (plan.sizing is not None) == bool(options), plan.unsized
    found = [each.details for each in describe(native, plan).steps]
    calls = [each.name for each in found if isinstance(each, CallDescription)]
    made = [each for each in found if isinstance(each, ViewDescription) and each.is_tensor]
    return calls, len(made)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("host", "views"),
    [(there_and_back, 1), (every_link, 3), (with_offsets, 3), (of_an_output, 3), (empty, 3)],
    ids=lambda each: getattr(each, "__name__", ""),
)
@pytest.mark.skipif(verifying(), reason="in verify mode the host function runs in every call")
def test_only_views_that_are_returned_are_made_and_torch_is_not_called(
    host: Host, views: int
) -> None:
    assert steps_of(host, whole()) == ([], views)


@pytest.mark.parametrize(
    ("host", "views"),
    # A view of a view is made of it.
    [(there_and_back, 2), (every_link, 4), (with_offsets, 6), (of_an_output, 7), (empty, 4)],
    ids=lambda each: getattr(each, "__name__", ""),
)
@pytest.mark.skipif(verifying(), reason="in verify mode the host function runs in every call")
def test_views_over_sizes_are_made_without_torch(host: Host, views: int) -> None:
    assert steps_of(host, whole(), static_shapes=False) == ([], views)


def test_a_view_beyond_the_memory_of_its_base_is_made_as_torch_makes_it(tier: int) -> None:
    """`torch.as_strided` refuses it, and `view` does not."""

    def build() -> tuple[torch.Tensor, torch.Tensor]:
        x = whole()
        x.untyped_storage().resize_(16)
        return x, torch.ones(4)

    def turned(x, y):
        increased(y, 1.0)
        return x.view(6, 4), y

    kernel = of_tier(tier, turned)
    for _ in range(3):
        mine, theirs = kernel(*build()), turned(*build())
        assert described(mine[0]) == described(theirs[0])
        assert torch.equal(mine[1], theirs[1])
