# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Steps around and inside blocks that change how torch computes: gradients, inference mode,
autocast."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tzero
from tests.plans.alike import Alike, kernel, same
from tests.plans.hosts import scaled
from tests.plans.tiers import counted, of_tier, verifying
from tests.steps import stand_in
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True, params=["steps", "graphs"])
def seeded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.manual_seed(0)
    if request.param == "graphs":
        stand_in(monkeypatch)


def half(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return torch.autocast("cpu", dtype, **options)


def rows() -> Tensor:
    return torch.randn(2, 8)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).softmax(-1)


def alike(forward: Callable[..., Any] = Model.forward, trains: bool = False) -> Alike:
    made = type("Model", (Model,), {"forward": forward})()
    return Alike(made.requires_grad_(trains), rows)


def weight_changed(model: Any) -> None:
    with torch.no_grad():
        model.first.weight.mul_(1.5)


def weight_replaced(model: Any) -> None:
    old = model.first.weight
    model.first.weight = nn.Parameter(old.detach() * 2, requires_grad=old.requires_grad)


# -- around a step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trains", [False, True], ids=["fixed", "trains"])
@pytest.mark.parametrize("options", [{}, {"cache_enabled": False}], ids=["kept", "not kept"])
@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])
def test_a_step_under_autocast_is_replayed(options: Any, trains: bool, gradients: bool) -> None:
    found = alike(trains=trains)
    with torch.set_grad_enabled(gradients):
        with half(**options):
            found.replays()
            found.changed(weight_changed)
        with half(**options):
            found.changed(weight_replaced)
        found.replays()


def test_autocast_to_another_dtype_needs_another_recording() -> None:
    found = alike()
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with half(dtype):
            found.replays()
    with half(enabled=False):
        found.replays()


def test_casts_that_autocast_keeps_are_those_of_plain_calls() -> None:
    found = alike(trains=True)
    with torch.no_grad():
        with half():
            found.replays()
        with half():  # plain calls keep on with the cast from before the change
            found.calls(2)
            found.changed(weight_changed)
        found.replays()


def test_what_autograd_records_under_autocast_is_as_without_a_kernel() -> None:
    found = alike(trains=True)
    with half():
        found.replays()
    for k in range(4):
        x = rows()
        for model, call in ((found.plain, found.plain.forward), (found.model, found.kernel)):
            model.zero_grad()
            with half():
                call(x).sum().add(call(x)[0, k]).backward()
        for one, other in zip(found.plain.parameters(), found.model.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


# -- inside a step ---------------------------------------------------------------------------------


def in_autocast(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.second(self.first(x))
    return y, self.first(x)


def in_autocast_by_default(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu"):
        return self.second(self.first(x)) + x


def in_autocast_without_keeping(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return self.second(self.first(x)) + x


def in_two_blocks(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            z = self.second(y.float())
        return self.first(x) + z, x @ x.T


def without_gradients(self: Any, x: Tensor) -> Any:
    with torch.no_grad():
        y = self.first(x)
        z = self.first.weight[0].view(2, 4)
    return self.second(y), y, z * 2


def with_gradients(self: Any, x: Tensor) -> Any:
    with torch.enable_grad():
        y = self.first(x)
    return self.second(y), y


def in_inference_mode(self: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        y = self.second(self.first(x)).t()
        new = torch.zeros(2)
        new.fill_(3)
    return y, x + 1, new


def out_of_inference_mode(self: Any, x: Tensor) -> Any:
    with torch.inference_mode(), torch.inference_mode(False):
        y = x.clone() * 2
    return y + 1


@torch.no_grad()
def helper(self: Any, x: Tensor) -> Tensor:
    return self.first(x)


@torch.autocast("cpu", torch.bfloat16)
def cast_helper(self: Any, x: Tensor) -> Tensor:
    return self.first(x)


def in_decorated(self: Any, x: Tensor) -> Any:
    return helper(self, x), self.second(x)


def in_decorated_by_autocast(self: Any, x: Tensor) -> Any:
    return cast_helper(self, x), self.second(x)


BLOCKS = [in_autocast, in_autocast_by_default, in_autocast_without_keeping, in_two_blocks]
BLOCKS += [without_gradients, with_gradients, in_inference_mode, out_of_inference_mode]
BLOCKS += [in_decorated, in_decorated_by_autocast]
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
MODES |= {"autocast": half, "other autocast": lambda: half(torch.float16)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: each.__name__)
def test_a_block_inside_a_step_is_replayed(block: Any, mode: str) -> None:
    found = alike(block)
    with MODES[mode]():
        found.replays()
        found.changed(weight_changed)
        if mode != "inference":
            found.changed(weight_replaced)
    assert verifying() or found.kernel.stats().recordings <= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: each.__name__)
def test_a_block_inside_a_step_with_weights_that_train_gives_the_same(
    block: Any, mode: str
) -> None:
    found = alike(block, trains=True)
    if mode == "other autocast" and block in (in_autocast, in_autocast_without_keeping):
        return  # torch takes the cast to the other dtype
    with MODES[mode]():
        found.calls(5)
        weight_changed(found.plain), weight_changed(found.model)
        found.calls(3)


def test_weights_that_require_gradients_are_cast_in_a_block_under_no_grad() -> None:
    found = alike(in_autocast, trains=True)
    with torch.no_grad():
        found.replays()
        found.changed(weight_changed)


def test_casts_of_weights_that_autograd_records_are_not_replayed() -> None:
    found = alike(in_autocast, trains=True)
    found.calls(4)
    assert "autocast keeps the cast of a weight" in found.kernel.explain(rows()).refusal


def changing(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.first(x)
        self.first.weight.mul_(2)
        return y + self.first(x)


def test_a_weight_that_changes_after_autocast_has_kept_its_cast_is_not_replayed() -> None:
    found = alike(changing, trains=True)
    with torch.no_grad():
        found.calls(4)
        assert "autocast keeps the cast of a weight" in found.kernel.explain(rows()).refusal
    fixed = alike(changing)
    with torch.no_grad():
        fixed.replays()


def test_the_default_dtype_of_a_block_is_guarded() -> None:
    found = alike(in_autocast_by_default)
    found.replays()
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        found.replays()
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    found.replays()


def test_a_block_that_was_there_before_is_guarded() -> None:
    block = half()

    def step(x: Tensor) -> Tensor:
        with block:
            return x @ x.T

    found = kernel(step)
    for _ in range(4):
        assert same(found(x := rows()), step(x))
    assert verifying() or found.stats().native_replays
    block.fast_dtype = torch.float16
    for _ in range(3):
        assert same(found(x := rows()), step(x))


def test_an_error_in_a_block_leaves_the_modes_as_they_were() -> None:
    table = torch.randn(4, 8)

    def step(words: Tensor) -> Tensor:
        with half(), torch.no_grad():
            return table[words] @ table.T

    found = kernel(step)
    for _ in range(4):
        found(torch.randint(0, 4, (3,)))
    for _ in range(2):
        with pytest.raises(IndexError):
            found(torch.tensor([1, 2, 9]))
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert same(found(w := torch.randint(0, 4, (3,))), step(w))


def test_a_mode_that_stays_is_not_replayed() -> None:
    def step(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    found = kernel(step)
    for _ in range(4):
        with torch.enable_grad():
            found(rows())
            assert not torch.is_grad_enabled()


@contextlib.contextmanager
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_older_names_of_autocast_are_guarded_too() -> None:
    def step(x: Tensor) -> Tensor:
        with torch.cpu.amp.autocast():
            return x @ x.T

    with quiet():
        found = kernel(step)
        for dtype in (torch.bfloat16, torch.float16):
            for _ in range(4):
                assert same(found(x := rows()), step(x))
            torch.set_autocast_dtype("cpu", torch.float16 if dtype is torch.bfloat16 else dtype)
        torch.set_autocast_dtype("cpu", torch.bfloat16)


# -- launches --------------------------------------------------------------------------------------


def launched_without_gradients(x: Tensor) -> Any:
    with torch.no_grad():
        twice = x * 2
    return scaled(twice, 2.0), twice


def launched_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        out = scaled(x, 2.0)
        seen = out[1:]
    return out, seen


def launched_in_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        square = torch.outer(x, x) @ torch.outer(x, x)
        return scaled(square.float(), 2.0), square


LAUNCHED = [launched_without_gradients, launched_in_inference_mode, launched_in_autocast]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("host", LAUNCHED, ids=lambda each: each.__name__)
def test_a_block_with_a_launch_is_replayed(host: Any, trains: bool, tier: int) -> None:
    if trains and host is launched_in_autocast:
        return  # autocast would keep casts of the argument
    found = of_tier(tier, host)
    for _ in range(4):
        given = torch.randn(5, requires_grad=trains)
        assert same(found(given), host(given))
    with counted(host) as runs:
        found(torch.randn(5, requires_grad=trains))
    assert verifying() or runs == [0]


# -- operators that call others --------------------------------------------------------------------

ENCODER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
RECURRENT = nn.GRU(8, 4).requires_grad_(False)
LINEAR = nn.Linear(8, 8).requires_grad_(False)

CALLING_OTHERS = {
    "an encoder": lambda x: ENCODER(x),
    "einsum": lambda x: torch.einsum("abc,cd->abd", x, LINEAR.weight),
    "a recurrent layer": lambda x: RECURRENT(LINEAR(x))[0],
    "distances": lambda x: torch.cdist(x, x),
}


@pytest.mark.parametrize("name", CALLING_OTHERS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operators_that_call_others_cast_as_without_a_kernel(name: str, mode: Any) -> None:
    host = CALLING_OTHERS[name]
    made = tzero.kernel(graph=True)(host)
    x = torch.randn(2, 40, 8)
    with mode(), half():
        expected = host(x)
        for _ in range(4):
            found = made(x)
            assert found.dtype == expected.dtype and torch.equal(found, expected)


def saves_otherwise(x: Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return (x * x).sum()


def in_a_dual_level(x: Tensor) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        made = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        return forward_ad.unpack_dual(made * 2).tangent + 0


@pytest.mark.parametrize("host", [saves_otherwise, in_a_dual_level])
def test_a_block_that_changes_how_torch_computes_is_not_left_out(host: Any) -> None:
    made = tzero.kernel(host)
    for _ in range(3):
        one, other = (torch.ones(4, requires_grad=True) for _ in range(2))
        ours, theirs = made(one), host(other)
        assert torch.equal(ours, theirs)
        if theirs.requires_grad:
            ours.backward()
            theirs.backward()
            assert torch.equal(one.grad, other.grad)
