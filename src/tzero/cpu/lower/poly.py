"""Integer polynomials over loop indices and run-time scalars.

Addresses, buffer offsets and mask bounds are kept in this form, so that the C compiler sees
`base[uniform + i]` instead of wrapping 32-bit arithmetic, which it cannot vectorise. Like Triton's
own vectoriser, this assumes that index arithmetic on tiles does not overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The index of a loop over `range(extent)`; `ordered` if iterations depend on earlier ones."""

    name: str
    extent: int
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Sym:
    """A C variable of integer type, and the loops in which its value changes."""

    name: str
    deps: frozenset[Loop] = frozenset()


Atom = Loop | Sym
Monomial = tuple[Atom, ...]


def _key(atom: Atom) -> str:
    return atom.name


@dataclass(frozen=True, slots=True)
class Poly:
    """A sum of products of atoms with integer factors; hashable, compared by value."""

    terms: frozenset[tuple[Monomial, int]]

    @staticmethod
    def of(value: int | Atom) -> Poly:
        """The polynomial of a constant or of one atom."""
        if isinstance(value, int):
            return Poly(frozenset({((), value)} if value else ()))
        return Poly(frozenset({((value,), 1)}))

    @staticmethod
    def _from(sums: Mapping[Monomial, int]) -> Poly:
        return Poly(frozenset((m, c) for m, c in sums.items() if c))

    def __add__(self, other: Poly) -> Poly:
        sums = dict(self.terms)
        for monomial, factor in other.terms:
            sums[monomial] = sums.get(monomial, 0) + factor
        return Poly._from(sums)

    def __sub__(self, other: Poly) -> Poly:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Poly:
        """This times an integer."""
        return Poly(frozenset((m, c * factor) for m, c in self.terms)) if factor else ZERO

    def __mul__(self, other: Poly) -> Poly:
        sums: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = tuple(sorted(left + right, key=_key))
                sums[monomial] = sums.get(monomial, 0) + a * b
        return Poly._from(sums)

    def atoms(self) -> Iterator[Atom]:
        """Every atom, with repetitions."""
        for monomial, _ in self.terms:
            yield from monomial

    def deps(self) -> frozenset[Loop]:
        """The loops this depends on, directly or through symbols."""
        found: set[Loop] = set()
        for atom in self.atoms():
            found |= {atom} if isinstance(atom, Loop) else atom.deps
        return frozenset(found)

    def constant(self) -> int | None:
        """The value, or None if this is not a constant."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            ((monomial, factor),) = self.terms
            if not monomial:
                return factor
        return None

    def factor(self, loop: Loop, through: bool = True) -> Poly | None:
        """The factor of `loop`; None if the polynomial is not linear in it.

        With `through`, a symbol that changes inside the loop makes it nonlinear; without, only
        the loop index itself counts.
        """
        sums: dict[Monomial, int] = {}
        for monomial, factor in self.terms:
            hidden = through and any(isinstance(a, Sym) and loop in a.deps for a in monomial)
            if hidden or monomial.count(loop) > 1:
                return None
            if loop in monomial:
                rest = tuple(a for a in monomial if a is not loop)
                sums[rest] = sums.get(rest, 0) + factor
        return Poly._from(sums)

    def substitute(self, changes: Mapping[Loop, Poly]) -> Poly:
        """This with loops replaced."""
        if not any(atom in changes for atom in self.atoms() if isinstance(atom, Loop)):
            return self
        total = ZERO
        for monomial, factor in self.terms:
            product = Poly.of(factor)
            for atom in monomial:
                by = changes.get(atom) if isinstance(atom, Loop) else None
                product = product * (by if by is not None else Poly.of(atom))
            total = total + product
        return total

    def divided(self, by: int) -> tuple[Poly, Poly] | None:
        """Quotient and remainder by a positive constant; None if loop ranges do not prove them."""
        quotient: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        high = 0
        for monomial, factor in self.terms:
            if factor % by == 0:
                quotient[monomial] = factor // by
                continue
            if factor < 0 or len(monomial) > 1 or any(isinstance(a, Sym) for a in monomial):
                return None
            whole = factor // by if not monomial else 0
            if whole:
                quotient[monomial] = whole
                factor -= whole * by
            rest[monomial] = factor
            high += factor * (monomial[0].extent - 1 if monomial else 1)  # type: ignore[union-attr]
        if high >= by:
            return None
        return Poly._from(quotient), Poly._from(rest)

    def text(self) -> str:
        """A C expression of type int64_t."""
        parts = []
        for monomial, factor in sorted(self.terms, key=lambda t: [a.name for a in t[0]]):
            names = [f"(int64_t){a.name}" if isinstance(a, Sym) else a.name for a in monomial]
            if factor != 1 or not names:
                names.append(f"{factor}" if -(1 << 31) < factor < (1 << 31) else f"{factor}LL")
            parts.append("*".join(names))
        return " + ".join(parts) or "0"


ZERO = Poly(frozenset())
ONE = Poly.of(1)


def flat(shape: tuple[int, ...], index: tuple[Poly, ...]) -> Poly:
    """Row-major offset of an index."""
    total = ZERO
    for extent, at in zip(shape, index, strict=True):
        total = total.scaled(extent) + at
    return total


def unflat(shape: tuple[int, ...], offset: Poly) -> tuple[Poly, ...] | None:
    """The index with this row-major offset; None if it cannot be proven."""
    index: list[Poly] = []
    stride = 1
    for extent in shape:
        stride *= extent
    for extent in shape:
        stride //= extent
        split = offset.divided(stride)
        if split is None:
            return None
        index.append(split[0])
        offset = split[1]
    return tuple(index)
