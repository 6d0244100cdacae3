"""Which instructions a follower shows: as its Python twin, and none that may be passed over."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from tests.reading import size_hosts as hosts
from tests.reading.test_integers import CASES, IDS
from tzero.adapters import python_frames
from tzero.adapters.python_frames import Seen, answers, operands
from tzero.reading import instructions, path
from tzero.reading.instructions import DROPPED, moved_before, passed_over

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)

GO, WAIT, LIBRARIES = answers()


class Twin:
    """What `_native.Follower` does, in Python."""

    def __init__(self, begin: Any, step: Any, leave: Any, modules: dict[str, bool]) -> None:
        self.begin, self.step, self.leave, self.modules = begin, step, leave, modules
        self.awaits = self.sees_libraries = True

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_globals.get("__name__")
        if event != "call" or (not self.sees_libraries and self.modules.get(name, False)):
            return None
        looks = self.begin(frame)
        if looks is None:
            return None

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self.awaits = True
                self.leave(frame)
            elif event == "opcode":
                seen = looks.get(frame.f_lasti, Seen("unknown", 0, 0, None))
                if seen.look == "never" or (seen.look == "if_awaited" and not self.awaits):
                    return local
                instruction = seen.entry.at._replace(depth=seen.depth) if seen.entry else None
                values = operands(frame, instruction, seen.takes) if instruction else ()
                flags = self.step(frame, seen.entry, values)
                self.awaits, self.sees_libraries = bool(flags & WAIT), bool(flags & LIBRARIES)
                return local if flags & GO else None
            return local

        return python_frames.trace_instructions(frame, local)


def shown(make: Callable[..., Any], host: Any, as_rows: bool) -> list[Any]:
    """What a follower shows of a call. After calls, and every few steps, `step` awaits; it stops in
    the code of a comprehension."""
    found: list[Any] = []
    followed = {each.__code__ for each in (host, *hosts.HELPERS)}

    def begin(frame: FrameType) -> Any:
        found.append(("begin", frame.f_code.co_name))
        if frame.f_code not in followed and "comp>" not in frame.f_code.co_name:
            return None
        looks = path._looks(frame.f_code, True)
        return looks if as_rows else python_frames.seen_by_follower(frame.f_code, looks)

    def step(frame: FrameType, entry: Any, values: tuple[Any, ...]) -> int:
        found.append((entry.place, entry.at.name, [type(value) for value in values]))
        awaits = "CALL" in entry.at.name or len(found) % 5 == 0
        if "comp>" in frame.f_code.co_name and len(found) % 7 == 0:
            return 0
        return GO | (WAIT if awaits else 0) | (LIBRARIES if len(found) % 11 == 0 else 0)

    def leave(frame: FrameType) -> None:
        found.append(("leave", frame.f_code.co_name))

    modules = {"torch": True, "torch._tensor": True, hosts.__name__: False}
    args = torch.empty(6, 40), torch.empty(12), 7
    with python_frames.traced(make(begin, step, leave, modules)):
        try:
            host(*args)
        except ArithmeticError:
            found.append("raised")
    return found


@pytest.mark.parametrize("host", [host for host, _, _ in CASES], ids=IDS)
def test_a_follower_shows_what_its_twin_shows(host: Any):
    shown(Twin, host, as_rows=True)  # a first call may import a module
    natively = shown(python_frames.follower, host, as_rows=False)
    assert len(natively) > 4
    assert natively == shown(Twin, host, as_rows=True)


def code_of(text: str) -> CodeType:
    world: dict[str, Any] = {}
    exec(text, world)
    code: CodeType = world["f"].__code__
    return code


def names(code: CodeType) -> list[str]:
    every = python_frames.decoded(code)
    return [f"{every[place].name} {what}" for place, what in passed_over(code).items()]


def test_moves_are_passed_over_unless_a_jump_or_an_exception_leads_there():
    assert names(code_of("def f(a, b): return a.b(b, 3)")).count("LOAD_FAST b") == 1
    code = code_of("def f(a, b):\n while a:\n  b\n try:\n  a()\n except KeyError:\n  b\n return b")
    every, passed = python_frames.decoded(code), passed_over(code)
    jumps = [at for at in every.values() if python_frames.is_jump(at)]
    assert jumps and not {at.after for at in jumps} & passed.keys()
    assert not {at.value for at in jumps if "JUMP" in at.name} & passed.keys()
    assert not python_frames.handlers(code).keys() & passed.keys()
    moves = {"LOAD_FAST", "LOAD_CONST", "POP_TOP", "PUSH_NULL"}
    assert {every[place].name for place in passed} <= moves


@pytest.mark.parametrize("between", [(), ("POP_TOP",)])  # CPython 3.12; CPython 3.13
def test_what_comes_after_a_loop_is_looked_at(between: tuple[str, ...], monkeypatch: Any):
    names = ["RESUME", "FOR_ITER", "POP_TOP", "JUMP_BACKWARD", "END_FOR", *between]
    names += ["LOAD_FAST", "LOAD_FAST", "RETURN_VALUE"]
    every = {
        2 * k: python_frames.Instruction(name, 0, None, "", 0, 1, 2 * k, 2 * k + 2)
        for k, name in enumerate(names)
    }
    every[2] = every[2]._replace(value=8)  # END_FOR
    every[6] = every[6]._replace(value=2)
    for at in (every[2 * len(names) - 6], every[2 * len(names) - 4]):
        every[at.place] = at._replace(value="a")
    monkeypatch.setattr(instructions, "decoded", lambda code: every)
    assert list(instructions._find(code_of("def f(a): return a"))) == [2 * len(names) - 4]


def test_packed_arguments_are_looked_at_and_cells_have_no_mark():
    code = code_of("def f(a, *b, c, **d):\n g = lambda: a\n return (c, int, b, int, d, g)")
    moved = [what for what in passed_over(code).values() if what not in (None, DROPPED)]
    assert "c" in moved and not {"a", "b", "d"} & set(moved)
    assert passed_over(code_of("def f(a):\n yield a\n return a")) == {}


def test_stores_are_always_looked_at():
    code = code_of("def f(a):\n b = a\n return b")
    stored = [p for p, at in python_frames.decoded(code).items() if at.name == "STORE_FAST"]
    assert stored and not set(stored) & passed_over(code).keys()
    (before,) = (moved_before(code)[place] for place in stored)
    assert [each.what for each in before[1]] == ["a"]


def test_a_follower_refuses_what_it_does_not_understand():
    native: Any = pytest.importorskip("tzero._native")
    with pytest.raises(ValueError, match="differ in length"):
        native.Instructions((1,), (), (0,), (None,))
    with pytest.raises(ValueError, match="no such look"):
        native.Instructions((9,), (0,), (0,), (None,))
    with pytest.raises(ValueError, match="out of range"):
        native.Instructions((1,), (-1,), (0,), (None,))
    seen: list[Any] = []
    deep = native.Instructions(*((each,) * 99 for each in (3, 1000, 1000, "an entry")))
    whole = native.Follower(
        lambda frame: deep if frame.f_code is code_of.__code__ else None,
        lambda frame, entry, values: seen.append((entry, values)) or GO,
        lambda frame: None,
        {},
        (),
        None,
    )
    with python_frames.traced(whole):
        code_of("def f(): pass")
    assert seen and set(seen) == {(None, ())}  # there are not so many values on its stack
    with pytest.raises(TypeError, match="are no dicts"):
        native.Follower(lambda frame: None, None, None, {}, (1,), None)
