"""Random host functions over sizes, for the search in `test_integers_search`.

A program is text. Its variables are integers, lists, tuples and dicts that come from the sizes of
two tensors and a number. It returns all of them. `library` and `Held` are code that is not
followed, `HELPERS` is followed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

__all__ = ["HELPERS", "Program", "arguments", "compiled", "neighbour"]


# -- what programs call ----------------------------------------------------------------------------


class Held:
    """An object whose methods are not followed."""

    def __init__(self) -> None:
        self.kept: Any = []
        self.count = 0
        self.value: Any = 0

    def keep(self, value: Any) -> None:
        self.kept = value

    def total(self) -> int:
        return _total(self.kept) + _total(self.value)


def _total(value: Any) -> int:
    if isinstance(value, dict):
        return _total(list(value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_total, value))
    return value if isinstance(value, int) else 0


def library(value: Any) -> int:
    """Code that is not followed."""
    return _total(value) + 1


def clipped(a: int) -> int:
    return a if -(1 << 66) < a < 1 << 66 else a % 1009


def plus(a: int, b: int = 3) -> int:
    return a + b


def packed(*args: int, **named: int) -> int:
    if "p" not in named:
        return len(args) + sum(args)
    return len(args) + sum(args) + named["p"]


def tail(first: int, *rest: int) -> tuple[int, ...]:
    return rest


def named(**given: int) -> dict[str, int]:
    return given


def passed(*args: int, **given: int) -> int:
    return packed(*args, 1, **given)


def positional(a: int, /, b: int, *, c: int = 2) -> int:
    return a * 100 + b * 10 + c


def halves(a: int) -> int:
    return 0 if a <= 1 or a > 1000 else 1 + halves(a // 2)


def each(values: Any) -> Iterator[int]:
    for value in values:
        yield value + 1


def adder(by: int) -> Callable[[int], int]:
    def add(a: int) -> int:
        nonlocal by
        by += 1
        return a + by

    return add


def early(values: Any) -> int:
    for value in values:
        if value > 3:
            return value
    else:
        return -1


def guarded(a: int, b: int) -> int:
    try:
        return a // b
    except ZeroDivisionError:
        return b + 7
    finally:
        a = 0


def changed(values: list[int], a: int) -> list[int]:
    values.append(a)
    return values


HELPERS = (
    *(
        clipped,
        plus,
        packed,
        tail,
        named,
        passed,
        positional,
        halves,
        each,
        adder,
        early,
        guarded,
        changed,
    ),
)
NAMES = {
    **{function.__name__: function for function in HELPERS},
    "math": math,
    "torch": torch,
    "library": library,
    "Held": Held,
    "cdiv": triton.cdiv,
    "npo2": triton.next_power_of_2,
}


# -- programs --------------------------------------------------------------------------------------


class Program:
    """Writes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.escapes = (0.0, 0.2, 1.0)[seed % 3]  # how often integers go where nothing follows
        self.integers = ["n"]
        self.lists: list[str] = []
        self.dicts: list[str] = []
        self.lines: list[str] = []
        self.count = 0
        self.indent = 1
        for _ in range(self.random.choice([2, 3, 4, 6, 8, 11])):
            self.statement()

    @property
    def text(self) -> str:
        kept = [*self.integers, *self.lists, *self.dicts]
        body = "\n".join(self.lines)
        return f"def host(x, y, n):\n    held = Held()\n{body}\n    return ({', '.join(kept)},)\n"

    def one_of(self, *words: Any) -> Any:
        return self.random.choice(words)

    def write(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # -- expressions ---------------------------------------------------------------------------

    def constant(self) -> str:
        return str(self.one_of(0, 1, 2, 3, 4, 5, 7, 8, 16, 64, -1, -3))

    def simple(self) -> str:
        return self.one_of(
            *("x.shape[0]", "x.shape[-1]", "x.size(0)", "x.size(-1)", "y.size(0)", "x.numel()"),
            *("len(x)", "x.stride(0)", "x.stride()[1]", "y.numel()", "x.size(dim=1)", "x.dim()"),
            *("x.shape.numel()", "n", "n"),
            *[self.random.choice(self.integers) for _ in range(8)],
        )

    def integer(self, depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.3:
            return self.constant() if self.random.random() < 0.3 else self.simple()
        a, b = (lambda: self.integer(depth - 1)), (lambda: self.integer(depth - 1))
        made = self.random.choice(
            [
                lambda: f"({a()} {self.one_of('+', '-', '*', '&', '|', '^')} {b()})",
                lambda: (
                    f"({a()} {self.one_of('//', '%')} {self.one_of(2, 3, 4, 16, -3, 'n', b())})"
                ),
                lambda: f"({a()} {self.one_of('<<', '>>', '**')} ({b()} % 4))",
                lambda: f"({self.one_of('-', '~', '+')}{a()})",
                lambda: f"abs({a()})",
                lambda: f"{self.one_of('min', 'max')}({a()}, {b()})",
                lambda: f"cdiv({a()}, {self.one_of(2, 16, 3)})",
                lambda: f"npo2({a()})",
                lambda: f"({a()}).bit_length()",
                lambda: (
                    f"{self.one_of('math.ceil', 'math.floor', 'int', 'math.trunc')}({a()} / {b()})"
                ),
                lambda: f"divmod({a()}, {self.one_of(3, 4, 'n')})[{self.one_of(0, 1)}]",
                lambda: f"{self.one_of('sum', 'math.prod')}({self.sequence(depth - 1)})",
                lambda: f"max({self.sequence(depth - 1)}, default=0)",
                lambda: f"len({self.sequence(depth - 1)})",
                lambda: f"({a()} if {self.condition(depth - 1)} else {b()})",
                lambda: f"int({a()})",
                lambda: self.call(depth - 1),
                lambda: self.escape(depth - 1),
                lambda: self.taken(depth - 1),
            ]
        )
        return str(made())

    def taken(self, depth: int) -> str:
        if self.lists and self.random.random() < 0.5:
            return f"({self.random.choice(self.lists)} or [0])[{self.one_of(0, -1)}]"
        if self.dicts:
            name = self.random.choice(self.dicts)
            return self.one_of(f'{name}["k"]', f'{name}.get("k", 3)', f'{name}.get("j", 3)')
        return self.integer(depth)

    def call(self, depth: int) -> str:
        a, b = self.integer(depth), self.integer(depth)
        sequence = self.sequence(depth)
        return str(
            self.one_of(
                *(f"plus({a})", f"plus({a}, b={b})", f"plus(b={b}, a={a})", f"packed({a}, {b})"),
                *(f"packed({a}, p={b})", f"packed(*{sequence})", f"passed({a}, p={b})"),
                *(f"tail({a}, {b})[0]", f"named(q={a}, r={b})['q']", f"positional({a}, {b})"),
                *(f"positional({a}, b={b}, c={a})", f"halves({a})", f"adder({a})({b})"),
                *(f"early({sequence})", f"guarded({a}, {b})", f"sum(each({sequence}))"),
                *(f"(lambda q: q + {b})({a})", f"(lambda *q: q[0])({a}, {b})"),
                *(
                    f"plus(**dict([('a', {a}), ('b', {b})]))",
                    f"plus(**{{**named(a={a}), **named(b={b})}})",
                    f"(lambda q={a}: q + 1)()",
                ),
                f"(lambda: {a})()",
            )
        )

    def escape(self, depth: int) -> str:
        if self.random.random() >= self.escapes:
            return self.integer(depth)
        a, sequence = self.integer(depth), self.sequence(depth)
        return str(
            self.one_of(
                *(f"library({a})", f"library({sequence})", f"int(str({a}))", f"int(float({a}))"),
                *(
                    f"int(f'{{{self.random.choice(self.integers)}}}')",
                    f"{{{a}: 1}}.get({a}, 0)",
                    f"len(range(min({a}, 9)))",
                ),
                *(f"sum(map(lambda s: s * 2, {sequence}))", f"sum(sorted({sequence}))"),
                *(f"sum(q for q in {sequence})", f"next(iter([*{sequence}, 1]))", f"hash({a})"),
                *(f"round({a} * 0.5)", f"int({a} / 2 + 0.25)", f"sum(list(reversed({sequence})))"),
                *(f"library(({a}, [{a}]))", f"('%d' % {a}).count('1')", f"pow({a}, 2)"),
                *(f"sum(i * s for i, s in enumerate({sequence}))", f"len(set({sequence}))"),
                *(f"getattr(x, 'shape')[0] + {a}", f"x[0:1].size(-1) + {a}", f"int({a} > 2) + 0"),
                *(f"({a} or 5)", f"({a} and 6)", f"len('ab' * min({a}, 5))", f"(True + {a})"),
                *(f"min(True, {a})", f"list(zip({sequence}, [1]))[:1] and 1", f"({a}).__index__()"),
            )
        )

    def sequence(self, depth: int) -> str:
        a = self.integer(max(depth - 1, 0))
        plain = [
            *("x.shape", "x.stride()", "list(x.shape)", "x.shape[:-1]", "x.size()", "x.shape[1:]"),
            *(f"[{a}, 2]", f"({a}, n)", *self.lists, *self.lists),
        ]
        if depth <= 0:
            return str(self.one_of(*plain))
        inner = self.sequence(depth - 1)
        if self.random.random() >= self.escapes:
            return str(self.one_of(*plain, f"[*{inner}, {a}]", f"[q + {a} for q in {inner}]"))
        return str(
            self.one_of(
                *plain,
                *(f"[*{inner}, {a}]", f"(*{inner}, {a})", f"[q + {a} for q in {inner}]"),
                *(f"tuple({inner})", f"list({inner})", f"[q for q in {inner} if q > 1]"),
                *(f"({inner} * 2)", f"list({inner}) + [{a}]", f"list({inner})[::-1]"),
                *(f"[*map(plus, {inner})]", f"[*each({inner})]", f"list({inner})[:{a}]"),
                *(f"[q for p in [{inner}, [{a}]] for q in p]", f"torch.Size([abs({a})])"),
                f"list({{str(q): q + 1 for q in {inner}}}.values())",
            )
        )

    def condition(self, depth: int) -> str:
        a, b = self.integer(max(depth, 0)), self.integer(max(depth, 0))
        sequence, other = self.sequence(0), self.sequence(0)
        return str(
            self.one_of(
                *(f"{a} {op} {b}" for op in ("<", "<=", ">", ">=", "==", "!=")),
                *(f"{a} % {self.one_of(2, 3, 8)} == 0", f"{a}", f"not {a}", f"1 < {a} < {b}"),
                *(f"{a} in (1, 2, n)", f"{a} not in {{1, 2, 8}}", f"{a} in {sequence}"),
                *(f"{a} > 1 and {b} > 2", f"{a} < 1 or {b} > 2", f"({a}) is None", f"bool({a})"),
                *(f"{sequence} == {other}", f"{sequence} != x.shape", f"list({sequence}) < [3]"),
                *(f"isinstance({a}, int)", f"all(q > 0 for q in {sequence})", f"{sequence}"),
                *(f"type({a}) is int", f"{a} == 2.0", f"{a} / 2 > 1", f"x.shape == (2, {a})"),
            )
        )

    # -- statements ----------------------------------------------------------------------------

    def statement(self) -> None:
        self.random.choice(
            [
                *[self.assign] * 5,
                *(self.change, self.unpack, self.branch, self.loop, self.each_of, self.counted),
                *(self.attempt, self.list_, self.list_, self.change_list, self.change_list),
                *(self.dict_, self.change_dict, self.object_, self.inner, self.alias),
            ]
        )()

    def block(self) -> None:
        """Some statements that define no variable."""
        self.indent += 1
        before = (list(self.integers), list(self.lists), list(self.dicts))
        for _ in range(self.random.randint(1, 2)):
            self.statement()
        self.write("pass")
        self.integers, self.lists, self.dicts = before
        self.indent -= 1

    def assign(self) -> None:
        value, name = self.integer(), self.new("v")
        self.write(f"{name} = clipped({value})")
        self.integers.append(name)

    def change(self) -> None:
        name = self.random.choice(self.integers)
        operation = self.one_of("+=", "-=", "*=", "//=", "%=", "|=")
        right = "3" if operation in ("//=", "%=") else self.integer()
        self.write(f"{name} {operation} {right}")
        self.write(f"{name} = clipped({name})")

    def unpack(self) -> None:
        a, b, rest = self.new("v"), self.new("v"), self.new("l")
        if self.random.random() < 0.5:
            self.write(f"{a}, {b} = x.shape")
            self.integers += [a, b]
        else:
            pattern = self.one_of(f"{a}, *{rest}", f"*{rest}, {a}", f"{a}, *{rest}, {b}")
            self.write(f"{pattern} = [*{self.sequence(1)}, 5, {self.integer()}]")
            self.integers += [a, b] if b in pattern else [a]
            self.lists.append(rest)

    def branch(self) -> None:
        if self.escapes == 0 and self.random.random() < 0.6:
            return self.assign()
        self.write(f"if {self.condition(1)}:")
        self.block()
        if self.random.random() < 0.5:
            self.write("else:")
            self.block()
        return None

    def loop(self) -> None:
        name = self.new("v")
        self.write(f"{name} = {self.integer()}")
        self.integers.append(name)
        self.write(f"while 1 < {name} < 5000:")
        self.write(f"    {name} = {name} {self.one_of('// 2', '// 3', '- 1 >> 1')}")
        if self.random.random() < 0.3:
            self.write(f"    if {name} == {self.one_of(2, 5)}: break")

    def each_of(self) -> None:
        item = self.new("v")
        self.write(f"{item} = 0")
        self.integers.append(item)
        self.write(f"for {item} in {self.sequence(1)}:")
        self.write("    held.count += 1")  # a list may grow while it is iterated over
        self.write("    if held.count > 40: break")
        self.block()

    def counted(self) -> None:
        self.write(f"for i in range({self.one_of(2, f'min({self.integer(1)}, 3)')}):")
        self.block()

    def attempt(self) -> None:
        name = self.new("v")
        a, b = self.integer(), self.integer(1)
        self.write("try:")
        self.write(
            f"    {name} = {a} {self.one_of('//', '%', '<< -1 +', '/ 1 //', '<<')} min({b}, 70)"
        )
        if self.random.random() < 0.4:
            self.write(f"    if {name} > 3: raise KeyError({self.one_of(name, '1')})")
        self.write("except (ZeroDivisionError, ValueError, OverflowError, MemoryError):")
        self.write(f"    {name} = {self.integer(1)}")
        self.write(f"except KeyError as error:\n{'    ' * self.indent}    {name} = len(error.args)")
        self.write(f"{name} = int({name})")
        self.integers.append(name)

    def list_(self) -> None:
        value, name = self.sequence(2), self.new("l")
        self.write(f"{name} = list({value})" if self.random.random() < 0.7 else f"{name} = {value}")
        self.lists.append(name)

    def change_list(self) -> None:
        if not self.lists:
            return self.list_()
        name, a = self.random.choice(self.lists), self.integer()
        self.write(f"if type({name}) is list:")
        self.write(
            "    "
            + self.one_of(
                *(f"{name}.append({a})", f"{name}.extend([{a}, 1])", f"{name}.insert(0, {a})"),
                *(f"{name} and {name}.pop()", f"{name}.sort()", f"{name} += [{a}]"),
                *(f"{name}[:1] = [{a}]", f"{name}.reverse()", f"changed({name}, {a})"),
                *(f"{name}[len({name}) - 1:] = ({a},)", f"{name} and {name}.__setitem__(0, {a})"),
                *(
                    f"f = {name}.append; f({a})",
                    f"del {name}[:1]",
                    f"list(map({name}.append, [1]))",
                ),
                f"{name}[0:0] = [{a}]; {name}[0] = {self.integer(1)}; {name}[-1] = {a}",
            )
        )
        return None

    def dict_(self) -> None:
        name, a, b = self.new("d"), self.integer(), self.integer(1)
        self.write(
            self.one_of(
                f'{name} = {{"k": {a}, "j": {b}}}',
                f"{name} = dict(k={a}, j={b})",
                f'{name} = {{"k": {a}}}; {name}["j"] = {b}',
                f'{name} = {{**{{"k": 1, "j": {b}}}, "k": {a}}}',
                f'{name} = {{q: {a} for q in "kj"}}',
                f"{name} = named(k={a}, j={b})",
            )
        )
        self.dicts.append(name)

    def change_dict(self) -> None:
        if not self.dicts:
            return self.dict_()
        name, a = self.random.choice(self.dicts), self.integer()
        self.write(
            self.one_of(
                f'{name}["k"] = {a}',
                f"{name}[{self.integer(1)}] = {a}",
                f"{name}.update(k={a})",
                f'{name} |= {{"k": {a}}}',
                f'{name}.setdefault("z", {a})',
                f'{name}[("t", {a})] = 1',
            )
        )
        return None

    def object_(self) -> None:
        if self.random.random() >= self.escapes:
            return self.list_()
        value = self.one_of(self.integer(), *self.lists, *self.dicts)
        self.write(
            self.one_of(
                *(f"held.keep({value})", f"held.value = {value}", f"held.kept = [{value}]"),
                *(f"held.kept = ({value}, [{value}])", f"held.kept = {{'a': {value}}}"),
            )
        )
        name = self.new("v")
        if self.random.random() < 0.6:
            self.change_list()
        self.write(f"{name} = held.total()")
        self.integers.append(name)
        return None

    def inner(self) -> None:
        name, function = self.new("v"), self.new("f")
        variable = self.random.choice(self.integers)
        used = self.random.choice(self.integers)
        self.write(f"def {function}(a, b={self.integer(1)}):")
        if variable != "n" and self.random.random() < 0.5:
            self.write(f"    nonlocal {variable}")
            self.write(f"    {variable} = a + {used if used != variable else 1}")
        self.write(f"    return a * 2 + b + {used}")
        self.write(f"{name} = {function}({self.integer()})")
        self.integers.append(name)

    def alias(self) -> None:
        if self.lists:
            name = self.new("l")
            self.write(f"{name} = {self.random.choice(self.lists)}")
            self.lists.append(name)


def compiled(program: Program) -> Any:
    """The function of a program."""
    made: dict[str, Any] = dict(NAMES, __name__="program")
    exec(compile(program.text, "<program>", "exec"), made)
    return made["host"]


# -- arguments -------------------------------------------------------------------------------------

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)


def arguments(chance: random.Random) -> tuple[Any, ...]:
    """Two tensors and a number."""
    m, n, k = (chance.choice(SIZES) for _ in range(3))
    x = torch.empty(n, m).t() if chance.random() < 0.3 else torch.empty(m, n)
    return x, torch.empty(k), chance.choice(SIZES)


def neighbour(chance: random.Random, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that differ in some sizes."""
    x, y, n = args
    sizes = [x.size(0), x.size(1), y.size(0), n]
    for k in chance.sample(range(4), chance.choice([1, 1, 2, 4])):
        sizes[k] = chance.choice([*SIZES, sizes[k] + 1, abs(sizes[k] - 1), 100])
    is_transposed = x.stride(0) < x.stride(1)
    made = torch.empty(sizes[1], sizes[0]).t() if is_transposed else torch.empty(*sizes[:2])
    return made, torch.empty(sizes[2]), sizes[3]
