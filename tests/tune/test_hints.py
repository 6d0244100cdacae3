"""Size hints for named dimensions: each call takes the config of the hint nearest in these."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import tzero
from tests.tune.kernels import LARGE, SMALL, double, observed
from tzero import Config, ConstExpr
from tzero.errors import InvalidArgument, InvalidKernel, TuningFailed
from tzero.tune.hints import ByArgument, ByDimension, Named
from tzero.tune.records import Outcome
from tzero.tune.resize import Place
from tzero.tune.select import MOST_HINTS, Hint, Selector
from tzero.tune.trial import Trial

pytestmark = pytest.mark.usefixtures("own_memory")

H = [16, 64, 256]


def linear(x: torch.Tensor, w: torch.Tensor, config: Config) -> torch.Tensor:
    return double(x, config) @ w


def kernel(hints: Any, function: Any = linear, **options: Any) -> tzero.Kernel[Any]:
    return tzero.kernel(configs=[SMALL, LARGE], static_shapes=False, size_hints=hints, **options)(
        function
    )


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Up to 64 rows the small config is faster, then the large one. The arguments that were timed,
    as shapes and numbers."""
    timed: list[tuple[Any, ...]] = []

    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        args = trial.spare()
        timed.append(tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args))
        small = args[0].shape[0] <= 64
        seconds = 1e-5 if (config == SMALL) is small else 2e-5
        return Outcome(seconds, seconds, seconds, 10)

    monkeypatch.setattr(Trial, "outcome", outcome)
    return timed


W = torch.randn(256, 256)


def test_a_narrow_activation_gets_the_config_of_its_own_rows(by_rows: Any, tier: int) -> None:
    made, alike = kernel({"x": {0: H}}), kernel(H)
    for m in (3, 100, 200, 3, 200, 3, 200):
        x = torch.randn(m, 256)
        torch.testing.assert_close(made(x, W), 2 * x @ W)
        alike(x, W)
    x = torch.randn(3, 256)
    assert made.explain(x, W).config == SMALL
    assert "nearest: tuned for x[0]=16, the nearest of 3 tuned shapes" in str(made.explain(x, W))
    assert made.explain(torch.randn(200, 256), W).config == LARGE
    assert alike.explain(x, W).config == LARGE  # where all dimensions count, M is outvoted
    assert made.stats().entries == 1


def test_only_the_named_dimension_is_resized(by_rows: Any) -> None:
    kernel({"x": {-2: H}})(torch.randn(3, 256), W)
    assert set(by_rows) == {((m, 256), (256, 256)) for m in H}


def test_dimensions_with_the_same_list_change_together(by_rows: Any) -> None:
    def added(x: torch.Tensor, residual: torch.Tensor, m: int, config: Config) -> torch.Tensor:
        assert x.shape[0] == residual.shape[0] == m
        return double(x, config) + residual

    made = kernel({"x": {0: H}, "residual": {0: tuple(H)}, "m": H}, added)
    x = torch.randn(5, 8)
    torch.testing.assert_close(made(x, x + 1, 5), 3 * x + 1)
    assert set(by_rows) == {((m, 8), (m, 8), m) for m in H}
    words = "tuned for x[0]=16, residual[0]=16, m=16, the nearest of 3"
    assert words in str(made.explain(x, x, 5))


def test_lists_that_differ_are_combined(by_rows: Any) -> None:
    made = kernel({"x": {0: [16, 256], 1: [8, 32]}, "w": {0: [8, 32], 1: [4]}})
    made(torch.randn(5, 7), torch.randn(7, 3))
    assert set(by_rows) == {((m, k), (k, 4)) for m in (16, 256) for k in (8, 32)}
    words = "tuned for x[0]=256, x[1]=8, w[0]=8, w[1]=4, the nearest of 4"
    assert words in str(made.explain(torch.randn(200, 9), torch.randn(9, 3)))


@pytest.mark.parametrize("m", [0, 1])
def test_sizes_of_zero_and_one_are_tuned_as_they_are(by_rows: Any, m: int) -> None:
    made = kernel({"x": {0: H}})
    x = torch.randn(m, 256)
    made(x, W)
    assert set(by_rows) == {((m, 256), (256, 256))}
    assert f"tuned for x[0]={m}, the only tuned shape" in str(made.explain(x, W))


def test_an_argument_may_be_none(by_rows: Any) -> None:
    def maybe(x: torch.Tensor, bias: torch.Tensor | None, config: Config) -> torch.Tensor:
        return double(x, config) if bias is None else double(x, config) + bias

    made, x = kernel({"x": {0: H}, "bias": {0: H}}, maybe), torch.randn(3)
    assert torch.equal(made(x, None), 2 * x)
    assert torch.equal(made(x, x), 3 * x)
    assert set(by_rows) == {((m,), None) for m in H} | {((m,), (m,)) for m in H}


def test_without_any_named_argument_the_call_itself_is_tuned(by_rows: Any) -> None:
    def maybe(x: torch.Tensor, bias: torch.Tensor | None, config: Config) -> torch.Tensor:
        return double(x, config)

    made, x = kernel({"bias": {0: H}}, maybe), torch.randn(3)
    made(x, None)
    assert set(by_rows) == {((3,), None)}
    assert made.bind(x, None).choice.how == "tuned"  # type: ignore[union-attr]


# -- integers --------------------------------------------------------------------------------------


@triton.jit
def first_kernel(x, out, n, BLOCK: tl.constexpr, BY: tl.constexpr):
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * BY, mask=at < n)


def test_an_integer_that_is_only_forwarded_chooses_the_config(
    monkeypatch: pytest.MonkeyPatch, tier: int
) -> None:
    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        seconds = 1e-5 if (config.BY == 2) == (trial.spare()[1] == 16) else 2e-5
        return Outcome(seconds, seconds, seconds, 10)

    def first(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        out = torch.zeros_like(x)
        first_kernel[(1,)](x, out, n, **config)
        return out

    monkeypatch.setattr(Trial, "outcome", outcome)
    made = tzero.kernel(
        configs=[Config(BLOCK=16, BY=2), Config(BLOCK=64, BY=3)],
        static_shapes=False,
        size_hints={"n": [16, 256]},
    )(first)
    x = torch.ones(500)
    for n in (17, 18, 301, 17, 18, 301, 302, 301, 17, 18, 302, -1):  # BY tells which config ran
        assert made(x, n).sum() == max(n, 0) * (2 if n < 100 else 3), n
    assert made.explain(x, 17).config == Config(BLOCK=16, BY=2)
    assert "tuned for n=256" in str(made.explain(x, 301))


def test_a_constant_is_tuned_as_it_is(by_rows: Any) -> None:
    def cut(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    made = kernel({"n": H}, cut)
    made(torch.randn(300), ConstExpr(100))
    assert set(by_rows) == {((300,), 100)}


# -- what is remembered and shipped ----------------------------------------------------------------


def test_remembered_results_are_those_of_the_same_sizes_and_the_same_form(by_rows: Any) -> None:
    x = torch.randn(3, 256)

    def searches(hints: Any, *args: Any) -> int:
        made = kernel(hints)
        made(*args)
        return len(made.tuning.searches)

    assert searches({"x": {0: [64, 256]}}, x, W) == 2
    assert searches({"x": {0: [64, 256]}}, torch.randn(9, 256), W) == 0
    assert searches({"x": {-2: [256]}}, x, W) == 0
    assert searches({"x": {0: [64, 128]}}, x, W) == 1
    assert searches([64, 256], x, W) == 2
    assert searches({"x": {0: [256]}, "w": {1: [256]}}, x, W) == 1
    assert searches({"x": {0: [64, 256]}}, torch.randn(3, 8), W[:8]) == 2


def test_results_are_stored_under_the_hint_and_all_sizes(by_rows: Any) -> None:
    x = torch.randn(3, 256)
    named, alike = kernel({"x": {-2: [64]}}), kernel([64])
    for made in (named, alike):
        made(x, W)
    [one], [other] = named.tuning.searches, alike.tuning.searches
    assert one.endswith(" with sizes x[0]=64 of (64, 256), (256, 256)")
    assert other.endswith(" with sizes 64")


def test_shipped_configs_are_found_for_the_same_sizes(by_rows: Any, tmp_path: Path) -> None:
    x = torch.randn(3, 256)
    made = kernel({"x": {0: H}})
    made(x, W)
    shipped = tzero.ship(tmp_path / "pretuned.json", [made])
    assert {entry.shapes for entry in shipped.entries} == {((m, 256), (256, 256)) for m in H}
    by_rows.clear()
    with tzero.settings.override(cache_dir=str(tmp_path / "other")):
        tzero.pretuned(tmp_path / "pretuned.json")
        there = kernel({"x": {0: H}})
        there(torch.randn(200, 256), W)
        assert not by_rows
        assert there.explain(x, W).config == SMALL
        assert there.explain(torch.randn(200, 256), W).config == LARGE
        with tzero.settings.override(tune="none"):  # other dimensions: the nearest that was shipped
            other = kernel({"x": {0: [8, 500]}})
            other(torch.randn(3, 32), W[:32])
        assert other.explain(torch.randn(3, 32), W[:32]).config == SMALL
        assert other.explain(torch.randn(400, 32), W[:32]).config == LARGE
        assert not by_rows


def test_nearest_shipped_configs_compare_integers_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def outcome(trial: Trial, config: Config, **options: Any) -> Outcome:
        seconds = 1e-5 if (config == SMALL) == (trial.spare()[1] == 16) else 2e-5
        return Outcome(seconds, seconds, seconds, 10)

    def cut(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    monkeypatch.setattr(Trial, "outcome", outcome)
    made, x = kernel({"n": [16, 256]}, cut), torch.randn(300)
    made(x, 20)
    tzero.ship(tmp_path / "pretuned.json", [made])
    tzero.pretuned(tmp_path / "pretuned.json")
    with tzero.settings.override(tune="none"):
        other = kernel({"n": [20, 200]}, cut)
        other(x, 20)
    assert [other.explain(x, n).config for n in (10, 250)] == [SMALL, LARGE]


def test_autotune_returns_the_search_of_the_nearest_hint(by_rows: Any) -> None:
    made = kernel({"x": {0: H}})
    found = made.autotune(torch.randn(250, 256), W)
    assert found.best == LARGE
    assert made.autotune(torch.randn(3, 256), W).best == SMALL
    assert len(made.tuning.searches) == 3


def test_precompile_compiles_for_the_hints() -> None:
    def binaries(hints: Any) -> int:
        ahead = kernel(hints).precompile(tzero.Spec((3, 255)), tzero.Spec((255, 255)))
        return len({future.result().encode() for future in ahead.values()})

    # For each config: a number of elements that 16 divides, and one that it does not.
    assert (binaries({"x": {0: H}}), binaries({"x": {0: [5, 7]}})) == (4, 2)


def test_an_event_says_why_precompile_leaves_hints_out() -> None:
    def rows(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    said, watching = observed()
    with watching:
        kernel({"x": {0: H}}, rows).precompile(tzero.Spec((100, 4)), 50).wait()
    assert [each for each in said if "size_hints are not compiled for: argument 'n' is 50" in each]


def test_variants_are_chosen_by_dimension(by_rows: Any) -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return x + x

    def wide(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    made = tzero.multi_kernel([narrow, wide], static_shapes=False, size_hints={"x": {1: [8, 999]}})
    assert torch.equal(made(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert set(by_rows) == {((2, 8),), ((2, 999),)}
    assert "tuned for x[1]=999" in str(made.explain(torch.ones(2, 500)))


# -- what can go wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({}, "size_hints= is empty"),
        ({"y": {0: H}}, "names an argument 'y'. Name one of its arguments: x, w"),
        ({"config": {0: H}}, "names an argument 'config'"),
        ({3: {0: H}}, "size_hints= has the key 3"),
        ({"x": {}}, "names no dimension of 'x'"),
        ({"x": {"0": H}}, "names dimension '0' of 'x'. A dimension is an integer"),
        ({"x": {True: H}}, "names dimension True"),
        ({"x": {0: []}}, r"has \[\] for dimension 0 of x"),
        ({"x": {0: 16}}, "has 16 for dimension 0 of x"),
        ({"x": {0: [1, 16]}}, "sizes 0 and 1 are tuned by themselves"),
        ({"x": {0: [16.0]}}, r"\[16.0\] for dimension 0 of x"),
        ({"x": {0: [True]}}, r"\[True\] for dimension 0 of x"),
        ({"x": {0: [1 << 63]}}, "integers from 2 on"),
        ({"x": []}, r"has \[\] for x. Pass a list of integers from 1 on"),
        ({"x": [0]}, r"has \[0\] for x"),
        ({"x": None}, "has None for x"),
        ({"x": {0: [*range(2, 20)], 1: [*range(2, 20)][::-1]}}, "324 size_hints.*same list"),
    ],
)
def test_hints_that_cannot_be_used_are_an_error(hints: Any, words: str) -> None:
    with pytest.raises(InvalidKernel, match=words):
        kernel(hints)


def test_an_error_says_that_static_shapes_and_hints_exclude_each_other() -> None:
    with pytest.raises(InvalidKernel, match="Pass static_shapes=False beside size_hints"):
        tzero.kernel(configs=[SMALL, LARGE], size_hints={"x": {0: H}})(linear)


def test_a_parameter_that_is_a_constant_cannot_be_hinted() -> None:
    def cut(x: torch.Tensor, n: ConstExpr, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    with pytest.raises(InvalidKernel, match="names 'n', which is a ConstExpr"):
        kernel({"n": H}, cut)
    with pytest.raises(InvalidKernel, match="names an argument 'rest'"):
        kernel({"rest": H}, lambda x, *rest, config: x)


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"x": {2: H}}, "'x' has 2 dimensions.*Write a dimension from -2 to 1"),
        ({"x": {-3: H}}, r"size_hints=\{'x': \{-3: ...\}\}"),
        ({"x": {0: H, -2: [8]}}, "'x' has two lists for dimension 0"),
        ({"x": H}, r"'x' is a Tensor, not an integer.*Write size_hints=\{'x': \{0: \[...\]\}\}"),
        ({"n": {0: H}}, r"'n' is a int, not a tensor.*Write size_hints=\{'n': \[...\]\}"),
        ({"name": H}, "'name' is a str, not an integer.*Name a tensor or an integer"),
    ],
)
def test_hints_that_do_not_fit_the_arguments_are_an_error(hints: Any, words: str) -> None:
    def several(x: torch.Tensor, n: int, name: str, config: Config) -> torch.Tensor:
        return double(x, config)

    with pytest.raises(InvalidArgument, match=words):
        kernel(hints, several)(torch.ones(4, 4), 3, "sum")


def test_a_failed_hint_names_the_dimension_that_may_be_missing() -> None:
    def added(x: torch.Tensor, y: torch.Tensor, config: Config) -> torch.Tensor:
        if x.shape[0] == 256:
            raise ValueError("too large")
        return double(x, config)

    x = torch.randn(5, 8)
    note = r"y\[0\] has the size of a hinted dimension.*name it in size_hints as well"
    with pytest.warns(UserWarning, match=rf"hint x\[0\]=256 is not used: .* \({note}"):
        kernel({"x": {0: H}}, added)(x, x + 1)
    with pytest.raises(TuningFailed) as failed:
        kernel({"x": {0: [256]}}, added)(x, x + 1)
    assert "At the size hint x[0]=256, y[0] has the size" in failed.value.__notes__[0]


def test_an_event_names_a_dimension_that_may_be_missing(by_rows: Any) -> None:
    def added(x: torch.Tensor, y: torch.Tensor, config: Config) -> torch.Tensor:
        return double(x, config)

    x = torch.randn(5, 8)
    for hints, count in [({"x": {0: H}}, 1), ({"x": {0: H}, "y": {0: H}}, 0)]:
        said, watching = observed()
        with watching:
            kernel(hints, added)(x, x + 1)
        assert len([each for each in said if "y[0] has the size of a hinted" in each]) == count


def test_hints_are_not_used_where_an_integer_may_be_an_unknown_size() -> None:
    def rows(x: torch.Tensor, n: int, config: Config) -> torch.Tensor:
        return double(x[:n], config)

    made, x = kernel({"x": {0: [16, 64]}}, rows), torch.randn(100, 4)
    with pytest.warns(UserWarning, match=r"'n' is 50, .* name it: size_hints=\{'n': \[...\]\}"):
        assert torch.equal(made(x, 50), 2 * x[:50])
    named = kernel({"x": {0: [16, 64]}, "n": [16, 64]}, rows)
    said, watching = observed()
    with watching:
        assert torch.equal(named(x, 50), 2 * x[:50])
    assert not [each for each in said if "not used" in each]


# -- choosing --------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(2, 1 << 20), min_size=1, max_size=4, unique=True)


@given(lists=st.lists(SIZES, min_size=1, max_size=3), data=st.data())
def test_python_and_native_choose_the_nearest_in_each_dimension(
    lists: list[list[int]], data: st.DataObject
) -> None:
    names = ("x", "y", "n")
    named = [
        Named(n, 0 if n != "n" else None, tuple(s)) for n, s in zip(names, lists, strict=False)
    ]
    args = (torch.empty(3, 5, device="meta"), torch.empty(4, device="meta"), 6)
    sizes = ByArgument(tuple(named))._combined("f", args, names, ())
    assert len(sizes) == math.prod(len(set(each)) for each in {tuple(s) for s in lists})
    hints = [Hint(k, [tuple(new.values())]) for k, new in enumerate(sizes)]
    places = tuple(sizes[0])
    natively: Any = ByDimension(hints, places)  # type: ignore[arg-type]
    python = Selector(hints, native=False)
    for _ in range(5):
        asked = [data.draw(st.integers(0, 1 << 21)) for _ in names]
        args = (
            torch.empty(asked[0], 5, device="meta"),
            torch.empty(asked[1], device="meta"),
            asked[2],
        )
        chosen = natively(args).variant
        assert chosen == python.nearest(natively.shapes(args)).variant
        if len({tuple(s) for s in lists}) == len(lists):
            for at, place in enumerate(places):
                steps = [abs(_log2(asked[at]) - _log2(size)) for size in lists[at]]
                mine = abs(_log2(asked[at]) - _log2(sizes[chosen][place]))
                assert mine <= min(steps) + 4e-3


def _log2(size: int) -> float:
    return math.log2(size) if size else -1.0


def test_dimensions_of_one_size_do_not_choose() -> None:
    hints = ByArgument((Named("x", 0, (16, 64)), Named("n", None, (7,))))
    args = (torch.ones(3, 8), 5)
    sized = hints.each_sized("f", args, ("x", "n"))
    chosen = hints.chooser("f", [(each, SMALL) for each in sized], args, ("x", "n"), ())
    assert chosen.shapes((torch.ones(40, 8), 10**6)) == ((40,),)
    assert hints.integers(("x", "n")) == frozenset()


def test_the_number_of_hints_is_that_of_the_combinations() -> None:
    assert ByArgument((Named("x", 0, (2, 3)), Named("y", 0, (2, 3)))).count() == 2
    assert ByArgument((Named("x", 0, (2, 3)), Named("y", 0, (3, 2)))).count() == 4
    many = {"x": {0: [*range(2, 18)]}, "w": {1: [*range(3, 19)]}}
    assert kernel(many).tuning.size_hints.count() == MOST_HINTS  # type: ignore[union-attr]


def test_a_place_is_read_from_the_arguments() -> None:
    assert [Place(0, "n").size((n,)) for n in (-5, 0, 7, 1 << 70)] == [0, 0, 7, 2**63 - 1]
