"""A generated function gives the same key as the loop, and is used only for its own types."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tzero.arguments import extract as room
from tzero.arguments.extract import ConstExpr, Extractor
from tzero.arguments.key import Options
from tzero.errors import InvalidArgument


class Marked(torch.Tensor):
    """A subclass, which is read as if its sizes were symbolic."""


@dataclasses.dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


def closing_over(value: Any) -> Any:
    return lambda: value


with FakeTensorMode() as fake_mode:
    FAKE = torch.empty(2, 3)

VALUES: dict[str, Any] = {
    "tensor": torch.zeros(2, 3),
    "strided": torch.zeros(3, 2).t(),
    "double": torch.zeros(2, 3, dtype=torch.float64),
    "scalar": torch.zeros(()),
    "parameter": torch.nn.Parameter(torch.zeros(2, 3)),
    "subclass": torch.zeros(2, 3).as_subclass(Marked),
    "fake": FAKE,
    "int": 3,
    "bool": True,
    "float": 2.5,
    "complex": 1j,
    "none": None,
    "str": "mean",
    "bytes": b"mean",
    "dtype": torch.float16,
    "layout": torch.strided,
    "device": torch.device("cpu"),
    "list": [torch.zeros(2), 1],
    "empty list": [],
    "tuple": (1, "a"),
    "dict": {"a": torch.zeros(1)},
    "dataclass": Pair(torch.zeros(2), 1),
    "function": closing_over(torch.zeros(5)),
    "constant": ConstExpr(7),
}


def extractor(count: int, **more: Any) -> Extractor:
    facts: dict[str, Any] = {
        "kernel": "k",
        "parameters": tuple("abcdefgh"[:count]),
        "constants": (False,) * count,
        "options": Options(),
        "custom": None,
    }
    return Extractor(**{**facts, **more})


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("first", VALUES)
def test_a_generated_function_gives_the_key_of_the_loop(first: str, static: bool) -> None:
    for second in VALUES:
        args = (VALUES[first], VALUES[second])
        extract = extractor(2, options=Options(static_shapes=static))
        slow = extract(args)
        assert extract.last != extract._other  # from now on a generated function is used
        fast = extract(args)
        assert fast == slow == extract.general(args), (first, second)
        assert hash(fast) == hash(slow)


def test_the_last_function_is_not_used_for_other_types() -> None:
    extract = extractor(2)
    calls = list(itertools.product(VALUES.values(), repeat=2))
    keys = [extract.general(each) for each in calls]
    for one, (two, key) in itertools.product(calls, zip(calls, keys, strict=True)):
        extract(one)
        assert extract(two) == key


def test_the_key_has_constants_and_the_custom_part() -> None:
    seen: list[tuple[Any, ...]] = []

    def custom(*args: Any) -> Any:
        seen.append(args)
        return args[1] > 2

    extract = extractor(2, constants=(False, True), custom=custom)
    args = (torch.zeros(2), ConstExpr(3))
    assert extract(args) == extract(args) == extract((torch.ones(2), 3))
    assert [each[1] for each in seen] == [3, 3, 3]
    assert extract((torch.zeros(2), 4)) != extract(args)


def test_a_constant_in_a_constant_is_that_constant() -> None:
    extract = extractor(1)
    assert extract((ConstExpr(ConstExpr(3)),)) == extract((ConstExpr(3),))


def test_a_missing_device_has_a_key() -> None:
    extract = extractor(1)
    assert extract((torch.device("xpu"),)) != extract((torch.device("cpu"),))


def test_no_arguments_have_a_key() -> None:
    extract = extractor(0)
    assert extract(()) == extract(()) == (None,)


@pytest.mark.parametrize("where", ["alone", "in a list", "in a closure"])
def test_a_meta_tensor_is_refused_also_after_a_good_call(where: str) -> None:
    wrap: Any = {"alone": lambda t: t, "in a list": lambda t: [t], "in a closure": closing_over}
    extract = extractor(2)
    good, bad = (wrap[where](torch.zeros(2, device=device)) for device in ("cpu", "meta"))
    for args, name in (((good, bad), "b"), ((bad, good), "a"), ((bad, bad), "a")):
        extract((good, good))
        extract((good, good))
        with pytest.raises(InvalidArgument, match=f"{name}.* meta tensor"):
            extract(args)


ODD = {
    "sparse_coo": torch.eye(3).to_sparse(),
    "sparse_csr": torch.eye(3).to_sparse_csr(),
    "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_without_plain_strides_is_refused_also_after_a_good_call(kind: str) -> None:
    extract = extractor(2)
    dense = torch.zeros(1, 1).expand(3, 3)  # strides of zero, like a sparse tensor's
    extract((dense, 1))
    extract((dense, 1))
    with pytest.raises(InvalidArgument, match=f"'a' is or holds a {kind} tensor"):
        extract((ODD[kind], 1))


def test_a_list_that_holds_itself_is_refused() -> None:
    extract = extractor(1)
    inner: list[Any] = []
    inner.append(inner)
    with pytest.raises(InvalidArgument, match="'a' is or holds a list"):
        extract((inner,))


def test_beyond_the_limit_of_functions_the_loop_makes_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_MOST_PATTERNS", 3)
    extract = extractor(1)
    for _ in range(2):
        for value in VALUES.values():
            assert extract((value,)) == extract.general((value,))
    assert len(extract._written) == 3


def test_threads_with_different_types_get_their_own_keys() -> None:
    extract = extractor(1)
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(value: Any) -> None:
        want = extract.general((value,))
        start.wait()
        wrong.extend(value for _ in range(3000) if extract((value,)) != want)

    values = [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), 3, "a"]
    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
