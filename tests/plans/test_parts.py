# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call"
"""Plans in parts: which steps become graphs, and what goes into and out of them. Graphs are stood
in for by the steps themselves, which get the same inputs and outputs."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

import tzero
from tests.steps import CHANGES, Both, Change, Stand, decode, stand_in
from tzero.launches.tiers import tier

pytestmark = [
    pytest.mark.skipif(tier() < 2, reason="parts are made by native code"),
    pytest.mark.usefixtures("replaying"),
]


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = stand_in(monkeypatch)
    torch.manual_seed(0)
    with torch.no_grad():
        yield found


@triton.jit
def twice_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def twice(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    twice_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.stride() == other.stride()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compared(function: Callable[..., Any], *shape: int, count: int = 4) -> Any:
    """Calls of a function and of its parts give the same, also in what they change."""
    kernel: Any = tzero.kernel(graph=True)(function)
    for _ in range(count):
        given = torch.randn(*shape or (4, 8))
        mine = given.clone()
        assert same(kernel(mine), function(given))
        assert same(mine, given)
    return kernel


def test_a_setting_by_which_torch_chooses_kernels_needs_another_recording() -> None:
    kernel = compared(lambda x: F.silu(x) * 2)
    before = kernel.stats().recordings
    matmul = torch.backends.cuda.matmul
    reduced = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = not reduced
    try:
        for _ in range(2):
            kernel(torch.randn(4, 8))
    finally:
        matmul.allow_bf16_reduced_precision_reduction = reduced
    assert kernel.stats().recordings == before + 1


# -- whole modules ---------------------------------------------------------------------------------


def test_the_steps_of_a_model_are_the_same_bit_for_bit(stand: Stand) -> None:
    both = Both("cpu", 64)
    for k in range(20):
        both(7 * k % 256, word=k)
    assert stand.count >= 18


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_change_between_two_steps_is_seen(change: Change, stand: Stand) -> None:
    both = Both("cpu", 64)
    for k in range(3):
        both(k)
    assert stand.count
    change(both)
    for k in range(3, 7):
        both(k)


def test_a_copy_of_a_model_has_steps_of_its_own() -> None:
    both = Both("cpu", 64)
    for k in range(3):
        both(k)
    other = copy.deepcopy(both.step)
    assert other.forward is not both.step.forward
    assert other.forward is other.forward
    for weight in other.parameters():
        weight.zero_()
    for k in range(3, 6):
        both(k)
    token, at = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    for _ in range(3):
        assert not other(token, at, other.caches(), other.caches()).any()


def test_a_model_with_steps_can_be_pickled() -> None:
    both = Both("cpu", 64)
    for k in range(3):
        both(k)
    loaded = pickle.loads(pickle.dumps(both.step))
    assert set(loaded.state_dict()) == set(both.step.state_dict())
    token, at = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    given = (token, at, loaded.caches(), loaded.caches())
    assert torch.equal(loaded(*given), both.step(*copy.deepcopy(given)))


def test_a_step_reads_numbers_by_value(stand: Stand) -> None:
    kernel: Any = tzero.kernel(graph=True)(lambda x, n: twice(x * n) + n)
    x = torch.randn(8)
    for n in (1, 1, 2, 2, 3, 3.0, 2, 1):
        assert torch.equal(kernel(x, n), (x * n) * 2 + n)
    assert stand.count


# -- outputs ---------------------------------------------------------------------------------------


def outputs_of_torch(x: Tensor) -> Tensor:
    return F.layer_norm(twice(x), (8,)) + 1


def outputs_of_launches(x: Tensor) -> tuple[Tensor, Tensor]:
    return twice(x), twice(x + 1)


def views_of_outputs(x: Tensor) -> tuple[Tensor, ...]:
    y = twice(x) + 1
    return y.t(), y[1:], y[1:].view(-1), twice(x).t()[2]


def views_of_inputs(x: Tensor) -> tuple[Tensor, ...]:
    return x[1:], twice(x + 1), x.t(), x


def changed_in_place(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    x[0] = x[1]
    return twice(x)


def changed_through_a_view(x: Tensor) -> Tensor:
    x[1:].add_(1)
    y = twice(x)
    y[0].zero_()
    return y


def lists_of_several(x: Tensor) -> dict[str, Any]:
    values, places = twice(x).topk(3)
    return {"values": values, "rest": [places, (x + 1).unbind()]}


def in_other_strides(x: Tensor) -> Tensor:
    return torch.empty_like(twice(x).t() + 1).copy_(x.t() * 2)


def expanded(x: Tensor) -> Tensor:
    return (twice(x).sum(0, keepdim=True) + 1).expand(4, 8)


def filled(x: Tensor) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros_like(x)
    return zeros + twice(x), torch.full((3,), 2.0)


FUNCTIONS = [
    *(outputs_of_torch, outputs_of_launches, views_of_outputs, views_of_inputs, changed_in_place),
    *(changed_through_a_view, lists_of_several, in_other_strides, expanded, filled),
]


def listed(value: Any) -> Any:
    return list(value.values()) if isinstance(value, dict) else value


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_outputs_are_those_of_the_function(function: Callable[..., Any], stand: Stand) -> None:
    compared(lambda x: listed(function(x)))
    assert stand.count >= 2


def test_outputs_keep_what_they_are_views_of() -> None:
    kernel: Any = tzero.kernel(graph=True)(views_of_inputs)
    for _ in range(3):
        x = torch.randn(4, 8)
        rows, _, turned, whole = kernel(x)
        rows.zero_()
        assert not x[1:].any() and not turned[:, 1:].any() and whole is x


def test_an_output_that_is_held_is_never_written_again() -> None:
    kernel: Any = tzero.kernel(graph=True)(outputs_of_torch)
    given = [torch.randn(4, 8) for _ in range(10)]
    held = [kernel(each) for each in given]
    assert len({each.data_ptr() for each in held}) == 10
    assert all(map(torch.equal, held, map(outputs_of_torch, given)))


@pytest.mark.parametrize("training", [True, False])
def test_statistics_that_a_batch_norm_changes_are_not_only_read(training: bool) -> None:
    """Its schema does not say so, and torch does not count it."""

    def normed(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        for _ in range(4):  # so often read that an input is copied into a graph's memory
            x = F.batch_norm(x, mean, variance, training=training) + 1
        return x

    kernel: Any = tzero.kernel(graph=True)(normed)
    given = torch.randn(4, 8), torch.zeros(8), torch.ones(8)
    mine = copy.deepcopy(given)
    for _ in range(3):
        assert same(kernel(*mine), normed(*given))
        assert same(mine, given)
    plan = kernel.explain(*mine).plan
    read = {plan.slots[slot].name for slot, _ in plan.parts[0].read}
    assert read == ({"x"} if training else {"x", "mean", "variance"})
    assert plan.parts[0].writes == ()


# -- cuts ------------------------------------------------------------------------------------------


def cuts_of(kernel: Any, *shape: int) -> list[str]:
    plan = kernel.explain(torch.randn(*shape or (4, 8))).plan
    return [cut.reason for cut in plan.cuts]


def test_random_numbers_are_drawn_between_parts(stand: Stand) -> None:
    def sampled(x: Tensor) -> Tensor:
        chances = twice(x).softmax(-1)
        return twice(torch.multinomial(chances, 1).float() + 1) * 2

    kernel: Any = tzero.kernel(graph=True)(sampled)
    x = torch.randn(4, 8)
    for seed in range(4):
        torch.manual_seed(seed)
        wanted = [sampled(x) for _ in range(3)]
        torch.manual_seed(seed)
        assert same([kernel(x) for _ in range(3)], wanted)
    assert cuts_of(kernel) == ["aten::multinomial draws random numbers"]
    assert len(kernel.explain(x).plan.parts) == 2
    assert "# line" in str(kernel.explain(x).plan)
    assert "not in a graph: aten::multinomial" in str(kernel.explain(x))


def test_attention_without_dropout_is_no_cut(stand: Stand) -> None:
    kernel = compared(lambda x: F.scaled_dot_product_attention(twice(x), x, x), 1, 2, 4, 8)
    assert not cuts_of(kernel, 1, 2, 4, 8)
    assert stand.count


def test_a_custom_operator_is_a_cut(stand: Stand) -> None:
    calls = []

    @torch.library.custom_op("tests_parts::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x * 2

    counted.register_fake(lambda x: torch.empty_like(x))
    kernel = compared(lambda x: counted(twice(x) + 1) + twice(x), count=3)
    assert len(calls) == 6
    assert cuts_of(kernel) == [
        "tests_parts::counted is a custom operator, whose code runs on each call"
    ]


def test_what_shares_memory_with_another_tensor_is_not_copied(stand: Stand) -> None:
    def shared(x: Tensor) -> Any:
        y = twice(x) * 2
        return [y, *torch.broadcast_tensors(y, x + 1)]

    kernel: Any = tzero.kernel(graph=True)(shared)
    for _ in range(3):
        found = kernel(torch.randn(4, 8))
        found[1].zero_()
        assert not found[0].any()


def test_gradients_are_recorded_by_torch_as_ever() -> None:
    layer = nn.Linear(8, 8)
    kernel: Any = tzero.kernel(graph=True)(lambda x: twice(x.detach()).sum() + layer(x).sum())
    with torch.enable_grad():
        for _ in range(3):
            x = torch.randn(4, 8)
            kernel(x).backward()
            assert layer.weight.grad is not None
            assert torch.allclose(layer.weight.grad, x.sum(0).expand(8, 8), atol=1e-5)
            layer.weight.grad = None


def test_without_graph_no_plan_has_parts(stand: Stand) -> None:
    kernel: Any = tzero.kernel(outputs_of_torch)
    for _ in range(3):
        kernel(x := torch.randn(4, 8))
    assert not kernel.explain(x).plan.parts and not stand.count


def test_a_function_that_launches_nothing_can_be_a_graph(stand: Stand) -> None:
    compared(lambda x: F.layer_norm(x, (8,)).relu() + 1)
    assert stand.count


# -- settings of torch -----------------------------------------------------------------------------


@pytest.fixture
def precisions() -> Iterator[None]:
    """Restores how torch computes with 32 bits: the old settings and, over them, the new ones."""
    backends: Any = torch.backends
    places = [backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    if not hasattr(backends, "fp32_precision"):
        pytest.skip("this torch has one way of setting precisions")
    before = [each.fp32_precision for each in places]
    convolutions, products = backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    yield
    backends.cudnn.allow_tf32 = convolutions
    torch.set_float32_matmul_precision(products)
    for place, value in zip(places, before, strict=True):
        place.fp32_precision = value


PRECISIONS: list[Callable[[Any], None]] = [
    lambda backends: setattr(backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda backends: setattr(backends.cudnn.conv, "fp32_precision", "ieee"),
    lambda backends: setattr(backends.cudnn.rnn, "fp32_precision", "ieee"),
    lambda backends: setattr(backends.cuda.matmul, "allow_tf32", True),
    lambda backends: setattr(backends.cudnn, "allow_tf32", False),
    lambda _: torch.set_float32_matmul_precision("high"),
]


@pytest.mark.usefixtures("precisions")
@pytest.mark.parametrize("change", PRECISIONS)
def test_a_precision_that_is_set_is_seen(change: Callable[[Any], None], stand: Stand) -> None:
    """In the new way and in the old one, of which torch raises if a program mixes them."""
    kernel = compared(outputs_of_torch)
    assert not kernel.explain(x := torch.randn(4, 8)).refusal
    change(torch.backends)
    assert kernel.explain(x).refusal
    made = stand.count
    for _ in range(3):
        assert same(kernel(x), outputs_of_torch(x))
    assert stand.count > made


# -- modules ---------------------------------------------------------------------------------------


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return twice(x) + 1


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubling(), Doubling()])

    @tzero.kernel(graph=True)
    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) + number
        return x


def stacked(model: Stack, x: Tensor) -> Tensor:
    for number, layer in enumerate(model.layers):
        x = layer(x) + number
    return x


def layer_added(model: Stack) -> None:
    model.layers.append(Doubling())


def hooked(model: Stack) -> None:
    model.layers[1].register_forward_hook(lambda module, given, out: out + 5)


def hooked_before(model: Stack) -> None:
    model.layers[1].register_forward_pre_hook(lambda module, given: (given[0] + 5,))


def layer_changed(model: Stack) -> None:
    model.layers[0] = nn.Sequential(Doubling(), Doubling())


MODULE_CHANGES = [layer_added, hooked, hooked_before, layer_changed]


@pytest.mark.parametrize("change", MODULE_CHANGES, ids=lambda each: each.__name__)
def test_a_module_that_changes_is_seen(change: Callable[[Stack], None], stand: Stand) -> None:
    model = Stack()
    x = torch.randn(4, 8)
    for _ in range(3):
        assert torch.equal(model(x), stacked(model, x))
    assert stand.count
    change(model)
    for _ in range(3):
        assert torch.equal(model(x), stacked(model, x))


def test_a_hook_on_all_modules_is_seen(stand: Stand) -> None:
    model, x = Stack(), torch.randn(4, 8)
    for _ in range(3):
        model(x)
    assert stand.count
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: out + 1)
    try:
        assert torch.equal(model(x), stacked(model, x) + 1)
    finally:
        handle.remove()
    assert torch.equal(model(x), stacked(model, x))


def test_two_models_of_a_class_have_steps_of_their_own() -> None:
    one, other, x = Stack(), Stack(), torch.randn(4, 8)
    layer_added(other)
    for _ in range(3):
        assert torch.equal(one(x), stacked(one, x))
        assert torch.equal(other(x), stacked(other, x))
    assert one.forward is one.forward and one.forward is not other.forward


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph": 1.5}, "graph= is 1.5"),
        ({"graph": True, "pool": True}, "graph=True beside"),
        ({"graph": True, "static_shapes": False}, "graph=True beside"),
        ({"graph": True, "configs": [tzero.Config(BLOCK=4)]}, "graph=True beside"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        tzero.kernel(**options)(twice)


def test_the_example_says_that_the_logits_are_the_same(
    capsys: pytest.CaptureFixture[str], stand: Stand
) -> None:
    with warnings.catch_warnings():
        model, step = decode.Model().requires_grad_(False), decode.Step().requires_grad_(False)
        step.load_state_dict(model.state_dict())
        wanted, _ = decode.decode(model, 6)
        found, _ = decode.decode(step, 6)
    assert torch.equal(found, wanted) and stand.count >= 4
