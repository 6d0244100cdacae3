# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call"
"""Decode steps of models of Hugging Face, unmodified, as kernels with `graph=True`: which are
replayed, and that each change between two steps is seen."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tzero
from tests.steps import Stand, stand_in
from tzero.launches.tiers import tier

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.skipif(tier() < 2, reason="parts are made by native code")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ONE_GRAPH: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma": {"head_dim": 8},
    "Phi3": {},
    "GPTNeoX": {},
    "Olmo2": {},
    "Granite": {},
    "SmolLM3": {},
    "Cohere": {},
    "StableLm": {},
}
"""Models whose decode step is one part, and what their configurations need besides."""

REFUSED = {
    "Mistral": ({}, "it assigns the attribute 'cumulative_length_int'"),
    "Mixtral": ({"num_local_experts": 4}, "depends on values"),
    "OPT": ({"ffn_dim": 64, "word_embed_proj_dim": 32}, "it reads the value of a tensor"),
}


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = stand_in(monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with torch.no_grad():
        yield found


def model_of(family: str, extra: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **extra)
    made = getattr(transformers, f"{family}ForCausalLM")(config)
    return made.eval().requires_grad_(False)


class Decoding:
    """Two models with the same parameters and caches of their own; `step` is that of the second,
    as a kernel."""

    def __init__(self, family: str, extra: dict[str, Any]) -> None:
        self.models = [model_of(family, extra) for _ in range(2)]
        self.start()
        self.step: Any = tzero.kernel(graph=True)(lambda token: self.logits(1, token))

    def start(self) -> None:
        """Other caches, with a prompt."""
        self.caches = [
            transformers.StaticCache(config=model.config, max_cache_len=32) for model in self.models
        ]
        for k in range(2):
            self.logits(k, torch.tensor([[1, 2, 3]]))

    def logits(self, k: int, token: Tensor) -> Tensor:
        found: Tensor = self.models[k](token, past_key_values=self.caches[k]).logits
        return found

    def decode(self, count: int = 4) -> None:
        """Steps of both, which must give the same bits, and leave the same in the caches."""
        for k in range(count):
            token = torch.tensor([[(7 * k + 5) % 64]])
            assert torch.equal(self.step(token), self.logits(0, token))
            for one, other in zip(self.caches[0].layers, self.caches[1].layers, strict=True):
                assert torch.equal(one.keys, other.keys)
                assert torch.equal(one.values, other.values)


# -- which are replayed ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ONE_GRAPH)
def test_a_decode_step_is_one_graph(family: str, stand: Stand) -> None:
    decoding = Decoding(family, ONE_GRAPH[family])
    decoding.decode(5)
    assert decoding.step.stats().recordings == 1
    assert stand.count == 4
    plan = decoding.step.explain(torch.tensor([[1]])).plan
    assert len(plan.parts) == 1, str(plan)


@pytest.mark.parametrize("family", REFUSED)
def test_a_step_that_no_graph_can_hold_runs_as_written(family: str) -> None:
    extra, reason = REFUSED[family]
    decoding = Decoding(family, extra)
    decoding.decode()
    assert reason in decoding.step.explain(torch.tensor([[1]])).refusal


# -- what changes between two steps ----------------------------------------------------------------

Change = Callable[[Any, Any, pytest.MonkeyPatch], None]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


@change
def weight_in_place(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.lm_head.weight.mul_(0.9)


@change
def weight_replaced(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = nn.Parameter(layer.weight * 2, requires_grad=False)


@change
def weight_moved(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.model.norm.weight.data = model.model.norm.weight.data * 1.5


@change
def attention_chosen(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.set_attn_implementation("eager")


@change
def attention_registered(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    registry = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    known = registry["sdpa"]

    def tripled(*args: Any, **kwargs: Any) -> Any:
        found, weights = known(*args, **kwargs)
        return found * 3, weights

    patch.setitem(registry._local_mapping, "sdpa", tripled)


@change
def attribute_map_changed(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    kind = type(model.config)
    patch.setattr(kind, "attribute_map", {**kind.attribute_map, "num_hidden_layers": "two"})
    vars(model.config)["two"] = 1


@change
def fewer_layers(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.config.num_hidden_layers = 1


@change
def hook_added(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.model.layers[1].register_forward_hook(lambda module, given, out: out * 2)


@change
def layers_swapped(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


@change
def dict_replaced(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.model.norm.__dict__ = {**vars(model.model.norm), "variance_epsilon": 0.3}


@change
def scaling_changed(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.model.layers[0].self_attn.scaling = 0.01


@change
def rotation_changed(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.5)


@change
def forward_replaced(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(F.gelu(mlp.gate_proj(x)))


@change
def cache_reset(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    cache.reset()


@change
def cache_replaced_in_part(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    cache.layers[0].keys = cache.layers[0].keys * 0.5


@change
def length_replaced(model: Any, cache: Any, patch: pytest.MonkeyPatch) -> None:
    cache.layers[0].cumulative_length = cache.layers[0].cumulative_length + 1


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_steps_is_seen(
    name: str, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding("Llama", {})
    decoding.decode()
    assert stand.count == 3
    for model, cache in zip(decoding.models, decoding.caches, strict=True):
        CHANGES[name](model, cache, monkeypatch)
    decoding.decode()


def test_other_caches_need_another_recording() -> None:
    decoding = Decoding("Llama", {})
    decoding.decode()
    decoding.start()
    decoding.decode()
    assert decoding.step.stats().recordings == 2


# -- a model whose forward is the kernel, with its cache as an argument ----------------------------


class Forward(Decoding):
    """The `forward` of the second model is a kernel, and its cache an argument."""

    kind = "StaticCache"

    def __init__(self, family: str = "Llama") -> None:
        self.models = [model_of(family, {}) for _ in range(2)]
        self.models[1].forward = tzero.kernel(graph=True)(self.models[1].forward)
        self.step: Any = self.models[1].forward
        self.start()

    def start(self) -> None:
        """Other caches, with a prompt."""
        most = {"max_cache_len": 32} if self.kind == "StaticCache" else {}
        made = getattr(transformers, self.kind)
        self.caches = [made(config=model.config, **most) for model in self.models]
        self.both(torch.tensor([[1, 2, 3]]))

    def both(self, token: Tensor, **more: Any) -> Any:
        """A call of each model, which must return the same."""
        pairs = zip(self.models, self.caches, strict=True)
        wanted, found = (model(token, past_key_values=cache, **more) for model, cache in pairs)
        assert type(found) is type(wanted)
        assert torch.equal(found[0], wanted[0])
        return found

    def decode(self, count: int = 4) -> None:
        for k in range(count):
            self.both(torch.tensor([[(7 * k + 5) % 64]]))
            for one, other in zip(self.caches[0].layers, self.caches[1].layers, strict=True):
                assert torch.equal(one.keys, other.keys)
                assert torch.equal(one.values, other.values)

    def why(self, **more: Any) -> str:
        """Why the next step is not replayed."""
        example = {"past_key_values": self.caches[1], **more}
        return str(self.step.explain(torch.tensor([[1]]), **example).refusal)


def test_a_forward_with_a_cache_as_an_argument_is_one_graph(stand: Stand) -> None:
    steps = Forward()
    steps.decode(12)
    assert steps.step.stats().recordings == 1, steps.why()
    assert stand.count == 10
    example = torch.tensor([[1]])
    plan = steps.step.explain(example, past_key_values=steps.caches[1]).plan
    assert len(plan.parts) == 1, str(plan)


def test_the_forward_of_a_class_may_be_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = transformers.LlamaForCausalLM
    steps = Forward()
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", tzero.kernel(graph=True)(plain))
    vars(steps.models[0])["forward"] = plain.__get__(steps.models[0])
    del vars(steps.models[1])["forward"]
    steps.decode(8)
    assert steps.models[1].forward.stats().native_replays == 6


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_steps_of_a_forward_is_seen(
    name: str, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Forward()
    steps.decode(5)
    assert stand.count == 3
    for model, cache in zip(steps.models, steps.caches, strict=True):
        CHANGES[name](model, cache, monkeypatch)
    steps.decode(5)


def test_the_output_has_its_class_its_items_and_the_cache(stand: Stand) -> None:
    steps = Forward()
    for k in range(5):
        found = steps.both(torch.tensor([[k]]), output_hidden_states=True)
        assert type(found).__name__ == "CausalLMOutputWithPast"
        assert list(found) == ["logits", "past_key_values", "hidden_states"]
        assert found.past_key_values is found["past_key_values"] is steps.caches[1]
        assert found.hidden_states is found["hidden_states"]
        assert len(found.hidden_states) == 3 and found.loss is None
    assert stand.count == 3


def test_each_cache_has_a_plan_that_goes_with_it(stand: Stand) -> None:
    steps = Forward()
    steps.decode(5)
    for count in (2, 3):
        gone = weakref.ref(steps.caches[1].layers[0].keys)
        steps.start()
        assert gone() is None
        steps.decode(5)
        assert steps.step.stats().recordings == count
    first, second = steps.caches, [copy.deepcopy(each) for each in steps.caches]
    for steps.caches in [first, second] * 3:
        steps.decode(3)
    assert steps.step.stats().recordings == 4


def test_a_cache_that_grows_in_each_step_runs_as_written() -> None:
    class Growing(Forward):
        kind = "DynamicCache"

    steps = Growing()
    steps.decode(6)
    assert "it assigns the attribute 'keys'" in steps.why()


@pytest.mark.parametrize("cache", ["static", None])
def test_generate_gives_the_same_words(cache: str | None) -> None:
    steps = Forward()
    for words in ([1, 2, 3], [4, 5], [1, 2, 3]):
        given = torch.tensor([words])
        options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
        wanted, found = (model.generate(given, **options) for model in steps.models)
        assert torch.equal(found, wanted)
    assert steps.step.stats().native_replays >= (20 if cache else 0)
