"""`@tzero.kernel`: calls find their bound kernel, and only their own."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import warnings
from typing import Any, NamedTuple

import pytest
import torch

import tzero
from tzero import Config, ConstExpr, InvalidArgument, events, settings
from tzero.errors import NotInKernel, UnsupportedType


def weighted(x: Any, y: Any = 2, z: Any = "mean") -> tuple[Any, Any, Any]:
    return x, y, z


def with_config(x: torch.Tensor, config: Config) -> tuple[torch.Tensor, Config]:
    return x, config


X = torch.arange(6.0).reshape(2, 3)


# -- arguments ------------------------------------------------------------------------------------


def test_ways_to_write_one_call_reach_one_bound_kernel() -> None:
    kernel = tzero.kernel(weighted)
    for args, kwargs in (
        ((X,), {}),
        ((X, 2), {}),
        ((X, 2, "mean"), {}),
        ((), {"x": X}),
        ((X,), {"z": "mean"}),
        ((X,), {"z": "mean", "y": 2}),
    ):
        assert kernel(*args, **kwargs) == (X, 2, "mean")
    assert kernel.stats()[:4] == (6, 1, 1, 0)
    assert kernel.stats().hits == 5


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "'x'"),
        ((1, 2, 3, 4), {}, "too many"),
        ((1,), {"w": 1}, "'w'"),
        ((1,), {"x": 1}, "'x'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match="weighted") as raised:
        tzero.kernel(weighted)(*args, **kwargs)
    assert words in str(raised.value) and "It takes x, y, z." in str(raised.value)


@pytest.mark.parametrize("value", [{1, 2}, object(), [object()], {"a": {1}}])
def test_an_argument_of_another_type_has_no_key_and_the_next_call_works(value: Any) -> None:
    kernel = tzero.kernel(weighted)
    with pytest.raises(InvalidArgument, match="weighted: argument 'y' is or holds a") as raised:
        kernel.bind(X, value)
    assert kernel(X, value) == (X, value, "mean")
    assert isinstance(raised.value.__cause__, UnsupportedType)
    assert kernel(X) == (X, 2, "mean")
    assert kernel.stats().entries == 1


def test_tensors_on_two_devices_have_no_key() -> None:
    def pair(x: Any, y: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="argument 'y' is a meta tensor"):
        tzero.kernel(pair).bind(X, [X, X.to("meta")])


# -- configuration --------------------------------------------------------------------------------


def test_a_host_function_gets_its_config_by_name() -> None:
    config = Config(BLOCK=64)
    kernel = tzero.kernel(config=config)(with_config)
    assert kernel(X) == (X, config)
    assert kernel.bind(X).config == config
    kernel.bind(X).set_config(Config(BLOCK=128))
    assert kernel(X)[1] == Config(BLOCK=128)
    assert kernel(X.half())[1] == config


def test_config_is_not_an_argument() -> None:
    with pytest.raises(InvalidArgument, match="'config'"):
        tzero.kernel(config=Config())(with_config)(X, config=Config())


def test_a_config_whose_results_are_others_than_the_first_ones_is_not_chosen() -> None:
    kernel = tzero.kernel(configs=[Config(a=2), Config(a=1), Config(a=2)])(with_config)
    assert kernel.configs == (Config(a=2), Config(a=1))
    assert kernel(X)[1] == Config(a=2)


# -- keys -----------------------------------------------------------------------------------------


def test_constants_by_annotation_and_by_wrapper_count_in_full() -> None:
    def tiled(x: Any, block: ConstExpr, n: Any) -> tuple[Any, Any]:  # type: ignore[type-arg]
        return block, n

    kernel = tzero.kernel(tiled)
    assert kernel(X, 64, 1) == (64, 1) and kernel(X, 64, 2) == (64, 2)
    assert kernel.stats().misses == 1
    assert kernel(X, 128, 1) == (128, 1) and kernel(X, True, 1) == (True, 1)
    assert kernel(X, 1, 1) == (1, 1)
    assert kernel.stats().misses == 4
    assert kernel(X, 64, ConstExpr(1)) == (64, 1) and kernel(X, 64, ConstExpr(2)) == (64, 2)
    assert kernel.stats().misses == 6


def test_the_key_function_runs_once_a_call_and_counts() -> None:
    asked: list[Any] = []

    def even(x: Any, y: Any, z: Any) -> bool:
        asked.append(y)
        return bool(y % 2 == 0)

    kernel = tzero.kernel(key=even)(weighted)
    for y in (1, 2, 3, 4):
        kernel(X, y)
    assert asked == [1, 2, 3, 4]
    assert kernel.stats().misses == 2


def test_a_key_that_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="key= function returned a set"):
        tzero.kernel(key=lambda x, y, z: {1})(weighted)(X)


def test_dynamic_shapes_share_and_static_ones_do_not() -> None:
    for static, misses in ((True, 3), (False, 2)):
        kernel = tzero.kernel(static_shapes=static)(weighted)
        for size in (2, 3, 1):
            kernel(torch.zeros(size))
        assert kernel.stats().misses == misses


# -- specialize -----------------------------------------------------------------------------------


def test_a_specialized_argument_joins_the_key() -> None:
    seen: list[int] = []

    def scaled(x: Any, n: Any, m: Any) -> Any:
        seen.append(tzero.specialize(n))
        return n, m

    kernel = tzero.kernel(scaled)
    for n, m in ((1, 1), (1, 2), (2, 3), (1, 4), (2, 5)):
        assert kernel(X, n, m) == (n, m)
    assert kernel.stats()[:3] == (5, 3, 2)  # misses: one before n joined the key, one for each n
    assert kernel.bind(X, 1, 9) is not kernel.bind(X, 2, 9)


def test_a_specialized_size_joins_the_key_of_dynamic_shapes() -> None:
    def rows(x: Any) -> int:
        return tzero.specialize(x.size(0))  # type: ignore[no-any-return]

    kernel = tzero.kernel(static_shapes=False)(rows)
    for sizes in ((4, 8), (4, 9), (5, 8), (4, 7)):
        assert kernel(torch.zeros(sizes)) == sizes[0]
    assert kernel.stats()[:3] == (4, 3, 2)


def test_what_is_computed_counts_with_everything_it_may_come_from() -> None:
    def halved(x: Any, n: Any) -> int:
        half = n // 2
        return tzero.specialize(half)

    kernel = tzero.kernel(halved)
    assert [kernel(X, n) for n in (4, 6, 4, 6)] == [2, 3, 2, 3]
    assert kernel.stats()[:3] == (4, 3, 2)


def test_what_a_tensor_is_besides_its_key_counts_where_it_is_computed_with() -> None:
    @tzero.kernel
    def aligned(x: torch.Tensor) -> int:
        return tzero.specialize(x.data_ptr() % 16)

    x = torch.zeros(64)
    offsets = (0, 4, 1, 2, 0)
    assert [aligned(x[k : k + 8]) for k in offsets] == [x[k:].data_ptr() % 16 for k in offsets]
    assert aligned.stats().entries == 4

    @tzero.kernel
    def trained(x: torch.Tensor) -> bool:
        return tzero.specialize(not x.requires_grad)

    assert trained(x) and not trained(x.clone().requires_grad_()) and trained(x)
    assert trained.stats().entries == 2


def test_sizes_of_what_is_no_tensor_count_too() -> None:
    class Shaped(NamedTuple):
        shape: tuple[int, ...]

    @tzero.kernel
    def first(p: Shaped) -> int:
        return tzero.specialize(p.shape[0])

    assert [first(Shaped((n, 1))) for n in (2, 3, 2, 3)] == [2, 3, 2, 3]
    assert first.stats().entries == 2


def test_an_argument_that_is_assigned_is_not_taken_for_itself() -> None:
    def shifted(x: Any, n: Any, m: Any) -> int:
        n = m
        return tzero.specialize(n)  # type: ignore[no-any-return]

    kernel = tzero.kernel(shifted)
    assert [kernel(X, 1, m) for m in (1, 2, 1, 2)] == [1, 2, 1, 2]
    assert kernel.stats()[:3] == (4, 3, 2)


def test_a_late_discovery_tells_calls_apart_from_then_on() -> None:
    def late(x: Any, n: Any, flag: Any) -> int:
        return tzero.specialize(n) if flag else -1

    kernel = tzero.kernel(late)
    kernel(X, 1, False)
    kernel(X, 2, False)
    assert kernel.stats().misses == 1
    kernel(X, 3, True)
    assert kernel.stats()[:3] == (3, 1, 0)  # bound kernels without n were dropped
    kernel(X, 3, False)
    kernel(X, 4, False)
    kernel(X, 3, True)
    assert kernel.stats()[:3] == (6, 3, 2)


def test_specialize_outside_a_kernel_says_so() -> None:
    with pytest.raises(NotInKernel):
        tzero.specialize(1)


def test_specialize_refuses_tensors() -> None:
    with pytest.raises(InvalidArgument, match=r"<lambda>: specialize was given a tensor at .*py:"):
        tzero.kernel(lambda x: tzero.specialize(x))(X)


# -- counts ---------------------------------------------------------------------------------------


def test_hits_are_of_calls_and_misses_also_of_bind() -> None:
    kernel = tzero.kernel(weighted)
    for n in range(5):
        kernel.bind(torch.zeros(n))
    assert kernel.stats() == (0, 5, 5, 0, 5, 0, 0, 0, 0, 0) and kernel.stats().hits == 0
    for n in range(6):
        kernel(torch.zeros(n))
        kernel.bind(torch.zeros(n))
    assert kernel.stats() == (6, 6, 6, 0, 5, 0, 0, 6, 0, 0) and kernel.stats().hits == 5


def test_a_value_that_cannot_be_shown_is_bound_at_once() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return self is other

    kernel = tzero.kernel(weighted)
    value = ConstExpr(Silent())
    for _ in range(2):
        kernel(X, ConstExpr(1))
        kernel(X, value)
    assert kernel.stats()[:3] == (4, 2, 2)


# -- copies ---------------------------------------------------------------------------------------


@tzero.kernel
def at_the_top(x: Any) -> Any:
    return x


def test_a_kernel_is_copied_and_pickled_as_functions_are() -> None:
    assert copy.copy(at_the_top) is copy.deepcopy([at_the_top])[0] is at_the_top
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(at_the_top, protocol)) is at_the_top
    bound = at_the_top.bind(X)
    assert copy.copy(bound) is copy.deepcopy(bound) is bound
    module = torch.nn.Module()
    module.kernel = at_the_top
    assert copy.deepcopy(module).kernel is at_the_top


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tzero.kernel(weighted), "weighted: it cannot be pickled.*weighted is not this"),
        (lambda: tzero.kernel(lambda x: x), "<lambda>: it cannot be pickled"),
        (lambda: tzero.kernel(functools.partial(weighted, 1)), "weighted: it cannot be pickled"),
        (lambda: at_the_top.bind(X), "at_the_top: a bound kernel cannot be pickled"),
    ],
    ids=["another name", "lambda", "partial", "bound"],
)
def test_what_cannot_be_pickled_says_so(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pickle.dumps(make())


# -- the table ------------------------------------------------------------------------------------


def test_reset_forgets() -> None:
    kernel = tzero.kernel(weighted)
    first = kernel.bind(X)
    kernel.reset()
    assert kernel.bind(X) is not first
    assert kernel.stats().entries == 1


def test_the_least_recently_used_goes_and_the_warning_names_what_changes() -> None:
    kernel = tzero.kernel(weighted)
    tensors = [torch.zeros(n) for n in range(4)]
    with settings.override(max_specializations=3):
        for tensor in (*tensors[:3], tensors[0]):
            kernel(tensor)
        with pytest.warns(UserWarning, match="weighted has more than 3.*'x' keeps changing"):
            kernel(tensors[3])
        assert kernel.stats()[:4] == (5, 4, 3, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kernel(tensors[0])  # recently used, so still there
            assert kernel.stats().misses == 4
            kernel(tensors[1])  # the oldest, gone; no second warning
            assert kernel.stats().misses == 5


def test_the_bound_holds_where_only_a_specialized_value_changes() -> None:
    def scaled(x: Any, n: Any) -> int:
        return tzero.specialize(n)  # type: ignore[no-any-return]

    kernel = tzero.kernel(scaled)
    with settings.override(max_specializations=1):
        kernel(X, 1)
        kernel(X, 2)
        with pytest.warns(UserWarning, match="scaled has more than 1.*specialize"):
            assert kernel(X, 3) == 3
    assert kernel.stats().entries == 1


def test_explain_names_the_first_difference() -> None:
    kernel = tzero.kernel(weighted)
    assert not kernel.explain(X).hit
    kernel(X)
    assert kernel.explain(X).hit
    missed = kernel.explain(X.half())
    assert not missed.hit
    assert missed.difference == "argument 'x' has dtype torch.float16, not torch.float32"
    assert "weighted: miss" in str(missed)


def test_misses_and_hits_are_events_with_reasons() -> None:
    kernel = tzero.kernel(weighted)
    seen: list[events.Event] = []
    with events.observe(seen.append):
        kernel(X)
        kernel(X)
        kernel(X.half())
    assert [event.kind for event in seen] == ["miss", "fallback", "hit", "miss"]
    assert seen[1].reason == "not replayed: it launches no kernel"
    assert "dtype" in seen[3].reason


def test_bound_kernels_have_functions_of_their_own() -> None:
    kernel = tzero.kernel(weighted)
    one, two = kernel.bind(X), kernel.bind(X.half())
    assert one.function is not two.function and one.function is not weighted
    assert "def weighted" in one.to_code() and "Key(" in one.to_code()


def test_a_host_function_that_raises_leaves_the_kernel_usable() -> None:
    def fails(x: Any, fail: Any) -> Any:
        if fail:
            raise ValueError("no")
        return x

    kernel = tzero.kernel(fails)
    with pytest.raises(ValueError, match="no"):
        kernel(X, True)
    assert kernel(X, False) is X


def test_threads_bind_reset_and_specialize_at_once() -> None:
    def both(x: Any, n: Any) -> tuple[Any, int]:
        return x.dtype, tzero.specialize(n)

    kernel = tzero.kernel(both)
    wrong: list[Any] = []
    dtypes = [torch.float32, torch.float16, torch.int8]

    def call(seed: int) -> None:
        for k in range(seed, seed + 1000):
            dtype, n = dtypes[k % 3], k % 5
            if k % 97 == 0:
                kernel.reset()
            got = kernel(torch.zeros(2, dtype=dtype), n)
            bound = kernel.bind(torch.zeros(2, dtype=dtype), n)
            if got != (dtype, n) or bound.key[0][0] is not dtype:  # type: ignore[index]
                wrong.append((got, dtype, n, bound))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_torch_compile_traces_the_host_function() -> None:
    traced: list[str] = []

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * 2

    def backend(graph: Any, inputs: Any) -> Any:
        traced.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    kernel = tzero.kernel(add)
    compiled = torch.compile(lambda x: kernel(x, x) + 1, backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), X * 3 + 1)
    assert any("mul" in target for target in traced)
    assert kernel.stats().calls == 0
