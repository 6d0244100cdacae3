"""`_native.pyi` and the extension have the same names, members and signatures."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import tzero

native = pytest.importorskip("tzero._native", reason="the native extension is not built")

STUB = Path(tzero.__file__).with_name("_native.pyi")
TREE = ast.parse(STUB.read_text())

# What CPython adds to every class, or needs to make one.
MACHINERY = {"__doc__", "__module__", "__new__", "__vectorcalloffset__", "__weaklistoffset__"}

KINDS = inspect._ParameterKind
Shape = list[tuple[str, Any, bool]]  # name, kind, whether it has a default


def named(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The definitions and annotated names of a module or a class."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            assert isinstance(node.target, ast.Name)
            found[node.target.id] = node
    return found


NAMES = named(TREE.body)
CLASSES = {name: node for name, node in NAMES.items() if isinstance(node, ast.ClassDef)}
FUNCTIONS = [
    (name, node, None) for name, node in NAMES.items() if isinstance(node, ast.FunctionDef)
] + [
    (name, node, owner)
    for owner, each in CLASSES.items()
    for name, node in named(each.body).items()
    if isinstance(node, ast.FunctionDef)
]
CONSTANTS = [name for name, node in NAMES.items() if isinstance(node, ast.AnnAssign)]


def shape_in_stub(node: ast.FunctionDef) -> Shape:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    without = len(positional) - len(args.defaults)
    shape: Shape = [
        (
            arg.arg,
            KINDS.POSITIONAL_ONLY if k < len(args.posonlyargs) else KINDS.POSITIONAL_OR_KEYWORD,
            k >= without,
        )
        for k, arg in enumerate(positional)
    ]
    if args.vararg is not None:
        shape.append((args.vararg.arg, KINDS.VAR_POSITIONAL, False))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        shape.append((arg.arg, KINDS.KEYWORD_ONLY, default is not None))
    if args.kwarg is not None:
        shape.append((args.kwarg.arg, KINDS.VAR_KEYWORD, False))
    return shape


def shape_of(function: Any) -> Shape:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default is not inspect.Parameter.empty) for p in parameters]


def test_the_stub_has_the_names_of_the_extension() -> None:
    names = {name for name in vars(native) if not (name[:2] == name[-2:] == "__")}
    assert set(NAMES) == names


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_members_of_the_stub(name: str) -> None:
    members = set(vars(getattr(native, name))) - MACHINERY
    assert set(named(CLASSES[name].body)) - MACHINERY == members


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_has_no_subclasses_is_final(name: str) -> None:
    is_final = "final" in map(ast.unparse, CLASSES[name].decorator_list)
    if is_final:
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Made", (getattr(native, name),), {})
    else:
        type("Made", (getattr(native, name),), {})


@pytest.mark.parametrize(
    ("name", "node", "owner"), FUNCTIONS, ids=[f"{o}.{n}" if o else n for n, _, o in FUNCTIONS]
)
def test_a_function_has_the_signature_of_the_stub(
    name: str, node: ast.FunctionDef, owner: str | None
) -> None:
    stub = shape_in_stub(node)
    if owner is None:
        assert shape_of(getattr(native, name)) == stub
    elif name == "__new__":
        assert shape_of(getattr(native, owner)) == stub[1:]
    elif name.startswith("__"):  # a slot, for which CPython chooses the names
        found = shape_of(getattr(getattr(native, owner), name))[1:]
        assert [kind for _, kind, _ in found] == [kind for _, kind, _ in stub[1:]]
    else:
        assert shape_of(getattr(getattr(native, owner), name))[1:] == stub[1:]


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_a_number_or_a_read_only_enum(name: str) -> None:
    node, found = NAMES[name], getattr(native, name)
    assert isinstance(node, ast.AnnAssign)
    if ast.unparse(node.annotation) == "Final[int]":
        assert type(found) is int and found > 0
    else:
        assert ast.unparse(node.annotation) == "Final[MappingProxyType[str, int]]"
        assert type(found) is MappingProxyType
        assert list(found.values()) == list(range(len(found)))
