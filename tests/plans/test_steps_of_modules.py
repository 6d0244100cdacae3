# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Steps of torch's own modules: which are replayed, and what is seen of changes between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.plans.alike import Alike, kernel
from tests.plans.tiers import verifying
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Holds(nn.Module):
    """A module, and what is done with its result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Tensor) -> Any:
        return self.inner(*given)


def rows() -> Tensor:
    return torch.randn(2, 8)


def words() -> Tensor:
    return torch.randint(0, 9, (2, 5))


def steps() -> Tensor:
    return torch.randn(2, 3, 8)


def three() -> tuple[Tensor, ...]:
    return steps(), steps(), steps()


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def images(*sizes: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, 3, *sizes)


MODULES: list[tuple[Callable[[], nn.Module], Callable[[], Any]]] = [
    (lambda: nn.Conv1d(3, 4, 3), images(9)),
    (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), images(9, 9)),
    (lambda: nn.Conv2d(3, 4, 3), images(9, 9)),
    (lambda: nn.Conv3d(3, 4, 3), images(5, 5, 5)),
    (lambda: nn.ConvTranspose1d(3, 4, 3), images(9)),
    (lambda: nn.ConvTranspose2d(3, 4, 3), images(9, 9)),
    (lambda: nn.BatchNorm1d(3), images(9)),
    (lambda: nn.BatchNorm2d(3), images(9, 9)),
    (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), images(9, 9)),
    (lambda: nn.GroupNorm(3, 3), images(9, 9)),
    (lambda: nn.Embedding(9, 8), words),
    (lambda: nn.EmbeddingBag(9, 8), words),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True), three),
    (layer, steps),
    (lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), steps),
    (lambda: nn.GRU(8, 8, batch_first=True), steps),
    (lambda: nn.LSTM(8, 8, num_layers=2), steps),
    (lambda: parametrizations.weight_norm(nn.Linear(8, 8)), rows),
    (lambda: parametrizations.spectral_norm(nn.Linear(8, 8)), rows),
    (lambda: parametrizations.orthogonal(nn.Linear(8, 8)), rows),
]
every = pytest.mark.parametrize("make, given", MODULES)


def weights_in_place(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.mul_(0.9)


def weights_replaced(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                module._parameters[name] = nn.Parameter(weight * 1.1, requires_grad=False)


def weights_moved(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.data = weight.data * 1.1


def buffers_replaced(model: nn.Module) -> None:
    for module in model.modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer + buffer


@every
@pytest.mark.parametrize(
    "change",
    [weights_in_place, weights_replaced, weights_moved, buffers_replaced],
    ids=lambda each: each.__name__,
)
def test_a_change_of_a_module_is_seen(
    make: Callable[[], nn.Module], given: Callable[[], Any], change: Callable[[Any], None]
) -> None:
    found = Alike(Holds(make()).eval().requires_grad_(False), given)
    found.replays()
    is_flat = isinstance(found.plain.inner, nn.RNNBase) and change is weights_replaced
    found.changed(change, replayed=not is_flat)  # the weights are flattened again, by an assignment


@every
def test_a_module_that_trains_gives_what_it_gives(
    make: Callable[[], nn.Module], given: Callable[[], Any]
) -> None:
    found = Alike(Holds(make()).eval().requires_grad_(False), given)
    found.replays()
    found.changed(nn.Module.train, replayed=False)
    found.changed(nn.Module.eval, replayed=False)


def test_statistics_of_a_batch_norm_that_trains_change_in_each_call() -> None:
    found = Alike(Holds(nn.BatchNorm2d(3)).requires_grad_(False), images(4, 4))
    found.replays()
    assert int(found.model.inner.num_batches_tracked) == 5
    found.changed(lambda model: setattr(model.inner, "momentum", 0.5))


ATTRIBUTES: list[tuple[Callable[[], nn.Module], Callable[[], Any], str, Any]] = [
    (lambda: nn.Conv2d(3, 3, 3), images(9, 9), "stride", (2, 2)),
    (lambda: nn.Conv2d(3, 3, 3), images(9, 9), "padding_mode", "reflect"),
    (lambda: nn.BatchNorm1d(3), images(9), "eps", 0.5),
    (lambda: nn.GroupNorm(3, 3), images(9), "num_groups", 1),
    (lambda: nn.Embedding(9, 8), words, "max_norm", 0.1),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True), three, "batch_first", False),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True), three, "num_heads", 4),
    (lambda: nn.LSTM(8, 8), steps, "batch_first", True),
]


@pytest.mark.parametrize("make, given, name, value", ATTRIBUTES)
def test_a_changed_attribute_of_a_module_is_seen(
    make: Callable[[], nn.Module], given: Callable[[], Any], name: str, value: Any
) -> None:
    found = Alike(Holds(make()).eval().requires_grad_(False), given)
    found.replays()
    found.changed(lambda model: setattr(model.inner, name, value), replayed=False)


def test_the_fast_path_of_attention_is_taken_and_its_switch_is_seen() -> None:
    found = Alike(Holds(layer()).eval().requires_grad_(False), steps)
    found.replays()
    (plan,) = [found.kernel.explain(steps()).plan]
    assert "_transformer_encoder_layer_fwd" in str(plan)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        found.replays()
        assert "_transformer_encoder_layer_fwd" not in str(found.kernel.explain(steps()).plan)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_method_of_a_library_class_that_is_replaced_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Alike(Holds(nn.Conv2d(3, 4, 3)).eval().requires_grad_(False), images(9, 9))
    found.replays()
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda self, x, weight, bias: x * 3)
    found.replays()


# -- modules that hold others ----------------------------------------------------------------------


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.named = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
        self.line = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.some = nn.ParameterList([torch.randn(8) for _ in range(3)])
        self.table = nn.ParameterDict({"a": torch.randn(8), "b": torch.randn(8)})


def by_items(self: Any, x: Tensor) -> Tensor:
    for name, module in self.named.items():
        x = module(x) * len(name)
    return x


def by_values(self: Any, x: Tensor) -> Tensor:
    for module in self.named.values():
        x = module(x)
    return x


def by_keys(self: Any, x: Tensor) -> Tensor:
    for name in self.named.keys():  # noqa: SIM118
        x = self.named[name](x)
    return x


def by_children(self: Any, x: Tensor) -> Tensor:
    for each in self.line.children():
        x = each(x)
    return x


def by_named_children(self: Any, x: Tensor) -> Tensor:
    for name, each in self.line.named_children():
        x = each(x) + int(name)
    return x


def by_modules(self: Any, x: Tensor) -> Tensor:
    for each in self.modules():
        if isinstance(each, nn.Linear):
            x = each(x)
    return x


def by_parameters(self: Any, x: Tensor) -> Tensor:
    return x + sum(each.sum() for each in self.parameters())


def by_slices(self: Any, x: Tensor) -> Tensor:
    return self.line[:2](x) + self.line[2:](x) + self.line[-1](x)


def by_list(self: Any, x: Tensor) -> Tensor:
    for weight in self.some:
        x = x * weight
    return x + self.some[-1] * len(self.some)


def by_enumerated(self: Any, x: Tensor) -> Tensor:
    for k, weight in enumerate(self.some):
        x = x * weight + k
    return x


def by_dict(self: Any, x: Tensor) -> Tensor:
    return x * self.table["a"] if "b" in self.table else x


def by_dict_items(self: Any, x: Tensor) -> Tensor:
    for name, weight in self.table.items():
        x = x * weight + len(name)
    return x


FORWARDS = [by_items, by_values, by_keys, by_children, by_named_children, by_modules]
FORWARDS += [by_parameters, by_slices, by_list, by_enumerated, by_dict, by_dict_items]


def module_added(model: Any) -> None:
    torch.manual_seed(3)
    model.named["c"] = nn.Linear(8, 8).requires_grad_(False)
    model.line.append(nn.Linear(8, 8).requires_grad_(False))
    model.some.append(torch.randn(8))
    model.table["c"] = torch.randn(8)


def module_replaced(model: Any) -> None:
    torch.manual_seed(3)
    model.named["a"] = nn.Linear(8, 8).requires_grad_(False)
    model.line[0] = nn.Linear(8, 8).requires_grad_(False)
    model.some[1] = nn.Parameter(torch.randn(8), requires_grad=False)
    model.table["a"] = nn.Parameter(torch.randn(8), requires_grad=False)


def module_removed(model: Any) -> None:
    del model.named["a"], model.line[0], model.table["b"]


@pytest.mark.parametrize("change", [module_added, module_replaced, module_removed])
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda each: each.__name__)
def test_a_change_of_what_a_module_holds_is_seen(forward: Any, change: Any) -> None:
    kind = type("Model", (Many,), {"forward": forward})
    found = Alike(kind().eval().requires_grad_(False), rows)
    found.replays()
    found.changed(change)


# -- weights that are computed ---------------------------------------------------------------------


class Symmetric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (x.triu() + x.triu(1).mT) * self.by


def symmetric() -> Alike:
    def made() -> Any:  # twice, as copies share a class that parametrizations change
        torch.manual_seed(0)
        inner = nn.Linear(8, 8)
        parametrize.register_parametrization(inner, "weight", Symmetric())
        return Holds(inner).eval().requires_grad_(False)

    found = Alike(made(), rows)
    found.model = made()
    found.kernel = kernel(found.model.forward)
    return found


def by_changed(model: Any) -> None:
    model.inner.parametrizations.weight[0].by = 2.0


def parametrized_again(model: Any) -> None:
    parametrize.register_parametrization(model.inner, "weight", Symmetric())


def not_parametrized(model: Any) -> None:
    parametrize.remove_parametrizations(model.inner, "weight")


def original_changed(model: Any) -> None:
    model.inner.parametrizations.weight.original.mul_(3)


@pytest.mark.parametrize(
    "change", [by_changed, parametrized_again, not_parametrized, original_changed]
)
def test_a_weight_that_is_computed_follows_what_it_is_computed_from(change: Any) -> None:
    found = symmetric()
    found.replays()
    found.changed(change)


def test_weights_that_are_computed_once_for_several_steps_are_not_replayed() -> None:
    found = symmetric()
    found.replays()
    with parametrize.cached():
        found.calls(3)
    found.calls(3)


# -- hooks -----------------------------------------------------------------------------------------


def after(module: Any, given: Any, result: Tensor) -> Tensor:
    return result * 2


def before(module: Any, given: Any) -> Any:
    return (given[0] + 1,)


def unchanged(module: Any, given: Any, result: Any) -> None:
    return None


def with_names(module: Any, given: Any, named: Any, result: Tensor) -> Tensor:
    return result + len(named)


class Scaled:
    def __init__(self) -> None:
        self.by = 2.0

    def __call__(self, module: Any, given: Any, result: Tensor) -> Tensor:
        return result * self.by

    def method(self, module: Any, given: Any, result: Tensor) -> Tensor:
        return result * self.by


def hooked() -> Alike:
    found = Alike(Holds(nn.Linear(8, 8)).requires_grad_(False), rows)
    found.replays()
    return found


def test_hooks_that_are_functions_are_replayed_and_seen() -> None:
    found = hooked()
    handles: list[Any] = []
    found.changed(lambda model: handles.append(model.inner.register_forward_hook(after)))
    found.changed(lambda model: handles.append(model.inner.register_forward_pre_hook(before)))
    found.changed(lambda model: handles.append(model.inner.register_forward_hook(unchanged)))
    named = {"with_kwargs": True}
    found.changed(lambda model: model.inner.register_forward_hook(with_names, **named))
    for handle in handles:
        handle.remove()
    found.replays()


def test_what_a_hook_reads_is_guarded() -> None:
    found = hooked()
    scaled = Scaled()
    found.changed(lambda model: model.inner.register_forward_hook(scaled.method))
    scaled.by = 3.0
    found.replays()
    found.changed(lambda model: model.inner.register_forward_hook(scaled))
    scaled.by = 4.0
    found.replays()


def test_a_hook_with_a_side_effect_is_run_in_each_call() -> None:
    found, seen = hooked(), []

    def note(module: Any, given: Any, result: Any) -> None:
        seen.append(module)

    found.changed(lambda model: model.inner.register_forward_hook(note), replayed=False)
    assert len(seen) == 6


def test_hooks_that_always_run_are_not_replayed() -> None:
    found = hooked()
    change = lambda model: model.inner.register_forward_hook(after, always_call=True)  # noqa: E731
    found.changed(change, replayed=False)
    assert "has hooks" in found.kernel.explain(rows()).refusal


def test_hooks_on_all_modules_are_seen() -> None:
    found = hooked()
    handle = nn.modules.module.register_module_forward_hook(after)
    try:
        found.calls(3)
    finally:
        handle.remove()
    found.calls(3)


def test_whether_torch_functions_are_seen_is_as_without_a_recording() -> None:
    def step(x: Tensor) -> Tensor:
        return x + 1 if torch.overrides.has_torch_function((x,)) else x + 2

    found = kernel(step)
    for _ in range(4):
        assert torch.equal(found(x := rows()), x + 2)
    assert verifying() or found.stats().native_replays


# -- generators ------------------------------------------------------------------------------------


def drawing(generator: torch.Generator) -> Any:
    def step(x: Tensor) -> Any:
        chances = (x * 2).softmax(-1)
        noise = torch.rand(2, generator=generator)
        return torch.multinomial(chances, 1, generator=generator) + 1, noise, chances.cumsum(-1)

    return step


def test_draws_from_a_generator_of_the_program_are_replayed() -> None:
    plain, own = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    step, found = drawing(plain), kernel(drawing(own))
    for k in range(8):
        x = rows()
        assert all(map(torch.equal, found(x), step(x)))
        assert torch.equal(own.get_state(), plain.get_state())
        if k == 5:
            plain.manual_seed(7), own.manual_seed(7)
    assert verifying() or found.stats().native_replays == 7


def test_another_generator_is_drawn_from_at_once() -> None:
    table = {"generator": torch.Generator().manual_seed(3)}

    def step(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=table["generator"])

    found = kernel(step)
    for k in range(8):
        if k == 4:
            table["generator"] = torch.Generator().manual_seed(5)
        state, x = table["generator"].get_state(), rows()
        wanted = step(x)
        table["generator"].set_state(state)
        assert torch.equal(found(x), wanted)
    assert verifying() or found.stats().native_replays >= 4


def test_a_generator_that_a_step_makes_or_seeds_is_not_replayed() -> None:
    outer = torch.Generator()

    def made(x: Tensor) -> Tensor:
        return x + torch.rand(8, generator=torch.Generator().manual_seed(3))

    def seeded(x: Tensor) -> Tensor:
        outer.manual_seed(3)
        return x + torch.rand(8, generator=outer)

    for step in (made, seeded):
        found = kernel(step)
        for _ in range(4):
            assert torch.equal(found(x := rows()), step(x))
        assert found.stats().native_replays == 0
