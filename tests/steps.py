# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Two models with the same parameters, one of which has a graph of its step, and what may change
between two steps of both; and what stands in for CUDA graphs on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tzero.plans.captures import Capturing
from tzero.plans.in_order import InOrder
from tzero.plans.plan import Part, Plan
from tzero.plans.planner import Planner

__all__ = ["CHANGES", "ON_CUDA", "Both", "Stand", "decode", "models", "stand_in"]

decode: Any = importlib.import_module("examples.decode")

DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}


class Stand:
    """Counts how often parts of plans were made."""

    count = 0


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Graphs of the CPU: the steps of a part, made with its inputs and outputs."""
    found = Stand()

    def of(self: Capturing, plan: Plan, part: Part) -> Callable[[Any], bool]:
        in_order = InOrder(plan, part, self.drifted)

        def made(tensors: tuple[Tensor, ...]) -> bool:
            found.count += 1
            in_order(tensors)
            return True

        return made

    monkeypatch.setattr(Capturing, "of", of)
    monkeypatch.setattr(Planner, "graphed_on", "cpu")
    return found


def models(device: str = "cuda", width: int = 256) -> tuple[Any, Any]:
    """A model, and one with the same parameters whose step is a graph."""
    made = (kind(2, width, 4, length=256) for kind in (decode.Model, decode.Step))
    plain, step = (each.to(device, DTYPES[device]) for each in made)
    plain.requires_grad_(False), step.requires_grad_(False)
    step.load_state_dict(plain.state_dict())
    return plain, step


class Both:
    """Steps of both models on caches of their own, which must give the same bits."""

    def __init__(self, device: str = "cuda", width: int = 256) -> None:
        self.device = device
        self.plain, self.step = models(device, width)
        self.caches = [each.caches() for each in (self.plain, self.plain, self.step, self.step)]

    def __call__(self, position: int, word: int = 3) -> Tensor:
        token = torch.full((1, 1), word, device=self.device)
        at = torch.full((1,), position, device=self.device)
        wanted = self.plain(token, at, *self.caches[:2])
        found: Tensor = self.step(token, at, *self.caches[2:])
        assert torch.equal(found, wanted), f"other logits at position {position}"
        for one, other in zip(self.caches[:2], self.caches[2:], strict=True):
            assert all(map(torch.equal, one, other)), "other caches"
        return found


# -- what changes between two steps ----------------------------------------------------------------


def weights_in_place(both: Both) -> None:
    for model in (both.plain, both.step):
        for weight in model.parameters():
            weight.mul_(0.97)


def weights_replaced(both: Both) -> None:
    for model in (both.plain, both.step):
        for layer in model.layers:
            layer.feed.down.weight = nn.Parameter(layer.feed.down.weight * 1.5, requires_grad=False)


def weights_moved(both: Both) -> None:
    for model in (both.plain, both.step):
        for weight in model.parameters():
            weight.data = weight.data * 1.25


def weights_loaded(both: Both) -> None:
    state = {k: v * 0.9 if v.is_floating_point() else v for k, v in both.plain.state_dict().items()}
    both.plain.load_state_dict(state), both.step.load_state_dict(state)


def buffer_replaced(both: Both) -> None:
    for model in (both.plain, both.step):
        model.places = model.places.clone() + 1


def buffer_in_place(both: Both) -> None:
    for model in (both.plain, both.step):
        model.places.add_(2)


def layers_swapped(both: Both) -> None:
    for model in (both.plain, both.step):
        model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


def layer_removed(both: Both) -> None:
    for model in (both.plain, both.step):
        del model.layers[1]
    both.caches = [each[:1] for each in both.caches]


def caches_swapped(both: Both) -> None:
    both.caches = [each[::-1] for each in both.caches]


def caches_moved(both: Both) -> None:
    both.caches = [[cache.clone() for cache in each] for each in both.caches]


def caches_in_place(both: Both) -> None:
    for each in both.caches:
        for cache in each:
            cache.mul_(0.5)


def caches_unaligned(both: Both) -> None:
    def shifted(cache: Tensor) -> Tensor:
        memory = torch.empty(cache.numel() + 8, dtype=cache.dtype, device=cache.device)
        return memory[8:].view_as(cache).copy_(cache)

    both.caches = [[shifted(cache) for cache in each] for each in both.caches]


def caches_shared(both: Both) -> None:
    both.caches = [[each[0]] * len(each) for each in both.caches]


def caches_one_tensor(both: Both) -> None:
    both.caches = [list(torch.stack(each).unbind()) for each in both.caches]


def forward_replaced(both: Both) -> None:
    for model in (both.plain, both.step):
        module = model.layers[0].feed
        module.forward = lambda x, module=module: module.down(F.gelu(module.gate(x)))


def hook_added(both: Both) -> None:
    for model in (both.plain, both.step):
        model.layers[1].feed.register_forward_hook(lambda module, given, out: out * 2)


def class_changed(both: Both) -> None:
    class Doubled(decode.Norm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    for model in (both.plain, both.step):
        model.norm.__class__ = Doubled


def heads_changed(both: Both) -> None:
    for model in (both.plain, both.step):
        for layer in model.layers:
            layer.attention.heads = 4


def precision_changed(both: Both) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction ^= True


def attention_chosen(both: Both) -> None:
    torch.backends.cuda.enable_cudnn_sdp(not torch.backends.cuda.cudnn_sdp_enabled())


def device_memory_reused(both: Both) -> None:
    torch.cuda.empty_cache()
    both.caches = [[cache.clone() for cache in each] for each in both.caches]


Change = Callable[[Both], None]

CHANGES: list[Change] = [
    *(weights_in_place, weights_replaced, weights_moved, weights_loaded),
    *(buffer_replaced, buffer_in_place, layers_swapped, layer_removed),
    *(caches_swapped, caches_moved, caches_in_place, caches_unaligned, caches_shared),
    *(caches_one_tensor, forward_replaced, hook_added, class_changed, heads_changed),
]
ON_CUDA: list[Change] = [precision_changed, attention_chosen, device_memory_reused]
