"""The passes between TTIR and C, each on its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tzero.cpu.lower import code
from tzero.cpu.lower.code import Buffer, Line, Nest, Scope, Stmt
from tzero.cpu.lower.poly import ZERO, Loop, Poly, Sym, flat, unflat
from tzero.cpu.lower.tiles import Body, Names, Range, Stored, Uniform, nest, reshaped
from tzero.cpu.ttir import Type

ROW, COL = Loop("i", 4), Loop("j", 8)
POLYS = st.recursive(
    st.one_of(
        st.integers(-20, 20).map(Poly.of),
        st.sampled_from([Poly.of(x) for x in (ROW, COL, Sym("s"))]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(-3, 3)).map(lambda p: p[0].scaled(p[1])),
    ),
    max_leaves=6,
)


def value(poly: Poly, **names: int) -> int:
    """A polynomial's value: its C text is also Python, but for the casts."""
    return int(eval(poly.text().replace("(int64_t)", "").replace("LL", ""), {}, names))


@given(POLYS, POLYS, st.integers(0, 3), st.integers(0, 7), st.integers(-9, 9))
def test_polynomials_compute(a: Poly, b: Poly, i: int, j: int, s: int) -> None:
    at = {"i": i, "j": j, "s": s}
    assert value(a + b, **at) == value(a, **at) + value(b, **at)
    assert value(a - b, **at) == value(a, **at) - value(b, **at)
    assert value(a * b, **at) == value(a, **at) * value(b, **at)


@given(POLYS, st.integers(0, 3), st.integers(0, 7), st.integers(-9, 9))
def test_the_factor_of_a_loop_is_what_a_step_adds(p: Poly, i: int, j: int, s: int) -> None:
    factor = p.factor(COL)
    if factor is not None:
        step = value(p, i=i, j=j + 1, s=s) - value(p, i=i, j=j, s=s)
        assert step == value(factor, i=i, j=j, s=s)


@given(st.permutations([2, 4, 8, 1]), st.permutations([2, 4, 8, 1]))
def test_unflat_inverts_flat(a: list[int], b: list[int]) -> None:
    loops = [Loop(f"n{k}", extent) for k, extent in enumerate(a)]
    offset = flat(tuple(a), tuple(Poly.of(x) if x.extent > 1 else ZERO for x in loops))
    index = unflat(tuple(b), offset)
    for point in range(64):
        rest, names = point, {}
        for loop in reversed(loops):
            names[loop.name] = rest % loop.extent
            rest //= loop.extent
        if index is not None:
            got = 0
            for extent, at in zip(b, index, strict=True):
                assert 0 <= value(at, **names) < extent
                got = got * extent + value(at, **names)
            assert got == point


def test_an_index_that_needs_a_remainder_is_not_guessed() -> None:
    assert unflat((8, 8), Poly.of(Loop("n", 64))) is None


def buffer(name: str, count: int = 16) -> Buffer:
    return Buffer(name, "float", 4, count)


def copy(target: Buffer, source: Buffer, offset: Poly) -> Line:
    return Line((target, "[", offset, "] = ", source, "[", offset, "];"))


def test_loops_over_contiguous_rows_are_merged() -> None:
    a, b = buffer("a", 32), buffer("b", 32)
    stmts: list[Stmt] = [code.full(ROW, [code.full(COL, [copy(a, b, flat((4, 8), index()))])])]
    code.collapse(stmts)
    (loop,) = stmts
    assert isinstance(loop, Nest) and loop.loop.extent == 32
    assert isinstance(loop.body[0], Line)


def test_loops_that_need_two_indices_are_not_merged() -> None:
    a, b = buffer("a", 32), buffer("b", 32)
    turned = flat((8, 4), (Poly.of(COL), Poly.of(ROW)))
    line = Line((a, "[", flat((4, 8), index()), "] = ", b, "[", turned, "];"))
    stmts: list[Stmt] = [code.full(ROW, [code.full(COL, [line])])]
    code.collapse(stmts)
    assert isinstance(stmts[0], Nest) and isinstance(stmts[0].body[0], Nest)


def index() -> tuple[Poly, Poly]:
    return Poly.of(ROW), Poly.of(COL)


def slots(stmts: list[Stmt], *buffers: Buffer) -> list[str]:
    names = code.place(stmts).names
    return [names[b].split(")")[1] for b in buffers]


def test_buffers_share_memory_once_the_first_is_no_longer_read() -> None:
    a, b, c = buffer("a"), buffer("b"), buffer("c")
    at = Poly.of(ROW)
    first, second, third = slots(
        [full_copy(b, a, at), full_copy(c, b, at), full_copy(b, c, at)], a, b, c
    )
    assert first == third != second


def full_copy(target: Buffer, source: Buffer, at: Poly) -> Nest:
    return code.full(ROW, [copy(target, source, at)])


def test_a_loop_that_reads_and_writes_uses_two_slots() -> None:
    a, b = buffer("a"), buffer("b")
    first, second = slots([full_copy(b, a, Poly.of(ROW))], a, b)
    assert first != second


def test_a_buffer_that_a_later_iteration_reads_is_kept_through_the_loop() -> None:
    carried, inside, other = buffer("carried"), buffer("inside"), buffer("other")
    at = Poly.of(ROW)
    turn = Scope(
        ("for (;;) ",), [full_copy(inside, carried, at), full_copy(other, inside, at)], loops=True
    )
    places = slots([full_copy(carried, buffer("x"), at), turn], carried, inside, other)
    assert places[0] not in places[1:]


def test_large_tiles_live_in_scratch_memory() -> None:
    a, b = buffer("a", 1 << 20), buffer("b", 1 << 20)
    memory = code.place([full_copy(b, a, Poly.of(ROW))])
    assert memory.scratch == 2 * (4 << 20)
    assert all("scratch" in line for line in memory.declarations)


def test_statements_move_out_of_loops_that_do_not_change_them() -> None:
    body = Body(Names())
    row = body.let("int32_t", Poly.of(ROW))
    body.do("use(", row, ", ", Poly.of(COL), ");")
    (outer,) = nest([ROW, COL], body)
    assert isinstance(outer, Nest)
    assert isinstance(outer.body[0], Line) and isinstance(outer.body[1], Nest)


def test_a_reshape_of_a_range_stays_a_polynomial() -> None:
    tile = reshaped(Type((4, 8), "i32"), Range(Type((32,), "i32"), 5))
    assert tile is not None
    linear = tile.linear(index(), Body(Names()))
    assert linear == Poly.of(ROW).scaled(8) + Poly.of(COL) + Poly.of(5)


def test_a_reshape_that_splits_an_index_needs_its_source_stored() -> None:
    rows = Range(Type((32,), "i32"), 0)
    square = reshaped(Type((4, 8), "i32"), rows)
    assert square is not None
    assert reshaped(Type((32,), "i32"), square) is None
    held = Stored(Type((4, 8), "i32"), Buffer("b", "int32_t", 4, 32))
    assert isinstance(reshaped(Type((32,), "i32"), held), Stored)


def test_literals_become_constants_of_polynomials() -> None:
    for text, wanted in (("7", 7), ("((int32_t)-7)", -7), ("((int64_t)9LL)", 9)):
        tile = Uniform(Type((), "i64"), text)
        assert tile.linear((), Body(Names())).constant() == wanted
