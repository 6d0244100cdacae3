"""Follows one call instruction by instruction, and guards what it reads on its way.

    host function ── each instruction, before it runs ──► its operands ──► World: a guard
                  └─ each frame that it enters ── of the program: followed too
                                               └─ of a library: `called` has judged the call

Enters: a running call, by a trace function. Leaves: guards for everything that was read on the path
taken, or the first reason why the call cannot be replayed. It must not know torch's functions or
launches, which the recorder sees.

Why guards on the path are enough: a call is determined by its arguments, by what it reads besides
them, and by the code that runs. If each read on the path would give the same again, the next call
takes the same path, so what lies beside the path does not matter. It rests on three things: that
every instruction that can read something has a handler in `steps`; that library functions which
`called` lets pass depend on nothing but their arguments; and that code which runs without being
called (finalizers, signal handlers) is recognized.
"""

from __future__ import annotations

import dis
import inspect
import sys
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Protocol

from tzero.adapters.python_frames import (
    Codes,
    Instruction,
    Seen,
    answers,
    follower,
    function_of,
    seen_by_follower,
    traced,
)
from tzero.reading.attributes import is_generated
from tzero.reading.called import Judge
from tzero.reading.dependencies import code_guard
from tzero.reading.findings import Unreplayable
from tzero.reading.instructions import passed_over
from tzero.reading.integers import Integers
from tzero.reading.integers_steps import Moves, moves
from tzero.reading.known import is_program_class
from tzero.reading.purity import LIBRARIES, is_library
from tzero.reading.special import Callee
from tzero.reading.steps import Ready, Steps, ready
from tzero.reading.world import World

__all__ = ["BUSY", "Path"]

BUSY = "another thread's call is being followed"
"""Why a call cannot be followed now."""


class Refuse(Protocol):
    """Takes the reason why a call cannot be replayed, its file and line, whether that lasts, and
    whether it comes from outside of the host function."""

    def __call__(
        self, reason: str, file: str, line: int, lasting: bool = True, outside: bool = False
    ) -> None:
        """Take it."""


class Path:
    """Follows the calls that one thread makes while it is entered. `callee` is the function that is
    called first. `refuse` gets the reason why the call cannot be replayed. `integers` follows the
    call's integers along, if it is given."""

    def __init__(
        self,
        callee: Callee,
        args: Sequence[Any],
        world: World,
        refuse: Refuse,
        integers: Integers | None = None,
    ) -> None:
        function: FunctionType = callee.function
        self.integers = integers
        self.world = world
        self._refuse = refuse
        self._judge = Judge(world)
        self._judge.give(args)
        self._cells: set[int] = set()  # cells of functions that were there before the call
        self._unfinished: dict[FrameType, None] = {}  # generators that have more to do
        self._steps = Steps(world, self._judge, self._cells)
        self._is_over = self._is_paused = False
        self._outside: CodeType | None = None  # the code around the call
        self._answers = answers()
        self._prefixed: dict[int, int] = {}  # by frame: where EXTENDED_ARG was before it
        self.codes = Codes()
        """The code that was followed, and the code nested in it."""
        self._inner = self._judge.made
        self._tables: dict[int, Any] = {}  # what is seen of frames, by the id of their code
        self._seen: set[Any] = set()  # functions that were followed
        self._helpers: dict[FunctionType, None] = {}
        self._host = function
        self._is_host_of_library = is_library(function)
        world.enter(function, function.__qualname__)
        self._follows_host = True
        try:
            self._follows_host = self._judge.host(callee)
        except Unreplayable as error:
            code = function.__code__
            self._is_over = True
            refuse(error.reason, code.co_filename, code.co_firstlineno)

    def followed(self) -> AbstractContextManager[bool]:
        """The block in which the caller makes the call. It is entered with False if the call cannot
        be followed now; tell `miss` then."""
        self._outside = sys._getframe(1).f_code
        among = self.codes, self._judge.followed
        return traced(follower(self._entered, self._step, self._left, _modules, among))

    def hiding(self, hide: Callable[[], None], show: Callable[[], None]) -> None:
        """Say how the recorder's mode of torch functions is taken off, for a call that looks at
        modes, and put on again."""
        self._judge.hide, self._judge.show = hide, show

    def miss(self) -> None:
        """Refuse a call that another thread prevents from being followed."""
        self._is_over = True
        self._refuse(BUSY, "", 0, lasting=False, outside=True)

    def finish(self) -> None:
        """Guard the code of the helpers that ran, once the call is over."""
        self.world.finish()
        try:
            self.world.outlives()
            self._judge.contexts.finish()
            for frame in self._unfinished:
                name = frame.f_code.co_qualname
                raise Unreplayable(
                    f"it leaves {name} unfinished, whose cleanup no replay runs", "", 0
                )
        except Unreplayable as error:
            self._refuse(error.reason, "", 0)
        if self.integers is not None:
            self.integers.finish()
        for function in self._helpers:
            self.world.add(code_guard(function))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Follow no frames until the block ends: the code that runs in it will run in each replay
        too, or its result is constant."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    # -- frames --------------------------------------------------------------------------------

    def _entered(self, frame: FrameType) -> Any:
        """A frame begins; what to see of it, None if it is not followed."""
        try:
            return self._begun(frame)
        except Exception as error:
            self._fail(error, frame)
            return None

    def _begun(self, frame: FrameType) -> Any:
        if self._is_over or self._is_paused or self._steps.fills_cache:
            return None
        code = frame.f_code
        if code is self._host.__code__ and not self._seen and function_of(frame) is self._host:
            if not self._follows_host:
                return None
            self._known(self._host)
            return self._follow(frame)
        if self._is_plainly_of_library(frame, code):
            return None
        if code is self._host.__code__ and not self._follows_host:
            return None
        function = function_of(frame)
        if self._steps.cached is not None and function is self._steps.cached:
            self._steps.fills_cache = True
            return None
        if code in self._inner and not self.world.has(function):  # made in this call
            return self._follow(frame)
        if function in self._seen:
            return self._follow(frame)
        if code not in self._judge.followed and self._is_of_library(function, frame):
            return None
        if _is_importing(frame, self.codes, self._outside) or _serves_tzero(frame):
            return None
        try:
            if not isinstance(function, FunctionType):
                raise Unreplayable("it defines a class, or runs a module", "", 0)
            if function is not self._host and not self._is_called(function, code):
                words = interrupted_by(code.co_name)
                self._stop(Unreplayable(words, "", 0, lasts=False), frame)
                return None
            self._known(function)
        except Unreplayable as error:
            self._stop(error, frame)
            return None
        return self._follow(frame)

    def _is_plainly_of_library(self, frame: FrameType, code: CodeType) -> bool:
        """Whether a frame is not followed because of its module alone, as most are."""
        name = frame.f_globals.get("__name__") or ""
        is_known = _modules.get(name)
        if is_known is None:
            is_known = _modules[name] = name.partition(".")[0] in LIBRARIES
        return (
            is_known
            and self._steps.cached is None
            and code is not self._host.__code__
            and code not in self.codes
            and code not in self._judge.followed
        )

    def _is_of_library(self, function: Any, frame: FrameType) -> bool:
        """Whether a frame is not followed: `called` has judged the call of a library that led here.
        Code without a module is its caller's, unless the program has it."""
        if function is self._host:
            return False
        name = frame.f_globals.get("__name__") or ""
        if name and not name.startswith("namedtuple_"):
            return name.partition(".")[0] in LIBRARIES
        caller = frame.f_back
        of_caller = caller is not None and _module(caller) in LIBRARIES
        return of_caller and not self.world.has(function)

    def _is_called(self, function: FunctionType, code: CodeType) -> bool:
        """Whether the instruction that is about to run may call a function: it was read before, or
        belongs to the class of an operand."""
        if self.world.has(function) or is_generated(function) or code in self._judge.codes:
            return True
        if code.co_name == "__del__":
            return False
        for value in self._steps.operands:
            for kind in {type(value), *((value,) if isinstance(value, type) else ())}:
                if is_program_class(kind):
                    self.world.of_classes(kind, code.co_name)
        return self.world.has(function)

    def _known(self, function: FunctionType) -> None:
        """A function that was there before the call."""
        self._seen.add(function)
        every = _code_in(function.__code__)
        self.codes.update(every)
        self._inner.update(every[1:])
        self._cells.update(id(cell) for cell in function.__closure__ or ())
        if function is self._host:
            return
        self._helpers[function] = None
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.world.enter(default, f"a default of {function.__qualname__}")

    def _follow(self, frame: FrameType) -> Any:
        self._steps.frames += 1
        if self.integers is not None:
            self.integers.enter(frame, frame.f_code is self._host.__code__)
        code = frame.f_code
        found = self._tables.get(id(code))
        if found is None:
            found = self._tables[id(code)] = _seen(code, self.integers is not None)
        return found

    def _stop(self, why: Unreplayable, frame: FrameType, line: int = 0) -> None:
        self._is_over = True
        place = frame.f_code.co_filename, line or frame.f_lineno or 0
        self._refuse(why.reason, *place, why.lasts, outside=not (why.lasts or why.passes))

    # -- instructions --------------------------------------------------------------------------

    def _step(self, frame: FrameType, entry: Entry | None, values: tuple[Any, ...]) -> int:
        """An instruction is about to run; how to go on."""
        if self._is_over:
            return 0
        if entry is None:
            self._stop(Unreplayable("its bytecode is not understood", "", 0), frame)
            return 0
        place, at, ready, moved = entry
        steps, answers = self._steps, self._answers
        if self._prefixed and self._prefixed.pop(id(frame), None) == place:
            return sum(answers)  # it was taken with its EXTENDED_ARG
        if at.place != place:
            self._prefixed[id(frame)] = at.place
        try:
            is_awaited = steps.take(frame, ready, values)
            if self.integers is not None:
                is_awaited |= self.integers.before(frame, at, moved, values)
        except Unreplayable as error:
            self._stop(error, frame, at.line)
            return 0
        except Exception as error:
            self._fail(error, frame)
            return 0
        answer = answers.goes_on | answers.awaits if is_awaited else answers.goes_on
        if steps.cached is not None or self._is_host_of_library:
            answer |= answers.sees_libraries
        return answer

    def _left(self, frame: FrameType) -> None:
        """A followed frame is left, or a generator yields. If nobody resumes it, the end of its
        ``try`` or ``with`` runs unseen."""
        self._judge.show()
        code = frame.f_code
        if code.co_flags & inspect.CO_GENERATOR and _cleans_up(code):
            last = dis.opname[code.co_code[frame.f_lasti]]
            if last == "YIELD_VALUE":
                self._unfinished[frame] = None
            elif last in ("RETURN_VALUE", "RETURN_CONST"):
                self._unfinished.pop(frame, None)
        if self.integers is not None and not self._is_over:
            self.integers.leave(frame)

    def _fail(self, error: Exception, frame: FrameType) -> None:
        """An error of the follower itself must not reach the program."""
        words = f"it cannot be followed: {type(error).__name__}: {error}"
        self._stop(Unreplayable(words, "", 0), frame)


class Entry(NamedTuple):
    """An instruction, the offset at which it is shown, and what handles it."""

    place: int
    at: Instruction
    ready: Ready
    moved: Moves


def _cleans_up(code: CodeType) -> bool:
    """Whether code has a ``try`` or ``with``."""
    return dis.opmap["PUSH_EXC_INFO"] in code.co_code[::2]


_modules: dict[str, bool] = {}  # by name: whether it is a library's

_all_seen: weakref.WeakKeyDictionary[CodeType, dict[bool, Any]] = weakref.WeakKeyDictionary()


def _seen(code: CodeType, with_integers: bool) -> Any:
    """What is seen of the frames that run a code object."""
    found = _all_seen.setdefault(code, {})
    if with_integers not in found:
        found[with_integers] = seen_by_follower(code, _looks(code, with_integers))
    return found[with_integers]


def _looks(code: CodeType, with_integers: bool) -> dict[int, Seen]:
    """Which instructions are looked at. Without integers that are followed, those that neither read
    nor change anything may be passed over."""
    passed, all_moves = passed_over(code), moves(code)
    found = {}
    for place, each in ready(code).items():
        if each is None:
            found[place] = Seen("never", 0, 0, None)
            continue
        moved = all_moves[place]
        is_passed = place in passed if with_integers else each.handle is None
        count = max(each.takes, moved.takes if with_integers else 0)
        entry = Entry(place, each.at, each, moved)
        found[place] = Seen("if_awaited" if is_passed else "always", each.at.depth, count, entry)
    return found


def _module(frame: FrameType) -> str:
    """The top-level package of a frame; for code that was generated, its caller's."""
    name = frame.f_globals.get("__name__")
    caller = frame.f_back
    if (name is None or name.startswith("namedtuple_")) and caller is not None:
        name = caller.f_globals.get("__name__")
    return (name or "").partition(".")[0]


def _is_importing(frame: FrameType, codes: Container[CodeType], outside: CodeType | None) -> bool:
    """Whether a frame belongs to an import: of a module that cannot be found, which `imports` has
    judged, or of one that a library loads when it is first used. Not to one that makes the call:
    `outside` is the code around it."""
    caller = frame.f_back
    while caller is not None and caller.f_code is not outside and caller.f_code not in codes:
        if caller.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        caller = caller.f_back
    return False


_TOOLS = frozenset({"cloudpickle", "loky"})
"""Packages of others with which tzero compiles."""


def _serves_tzero(frame: FrameType) -> bool:
    """Whether a frame belongs to a tool that tzero's own code has called, such as to start a
    process that compiles. That happens in a first call, and is no part of it."""
    if _package(frame) not in _TOOLS:
        return False
    caller = frame.f_back
    while caller is not None and _package(caller) in _TOOLS | sys.stdlib_module_names:
        caller = caller.f_back
    return caller is not None and _package(caller) == "tzero"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]


def interrupted_by(name: str) -> str:
    """Why a call is not recorded in whose middle other code ran.

    >>> interrupted_by("on_exit")
    'on_exit ran in the middle of it, and its code does not call that'
    """
    return f"{name} ran in the middle of it, and its code does not call that"


def _code_in(code: CodeType) -> list[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [code, *(each for one in inner for each in _code_in(one))]
