"""Uses an installed tzero: ``python -I wheel_smoke.py extension``; ``kernel``, where torch is too.

Leaves: one line that ends with ``works``, or an exception. It must run where there is nothing but
the wheel and what it requires.
"""

import importlib.metadata
import os
import sys


def check(truth: object, what: str) -> None:
    """As `assert`, also under ``python -O``."""
    if not truth:
        raise SystemExit(f"{what} is not so")


def extension() -> None:
    import tzero
    from tzero import _native
    from tzero.adapters import python_frames

    check("torch" not in sys.modules, "that importing tzero leaves torch alone")
    check(_native.version() == tzero.__version__, "that the extension is of this tzero")
    check(
        importlib.metadata.version("tzero-runtime") == tzero.__version__,
        "the version that pip knows",
    )
    check(python_frames.is_supported(), "that frames of this Python can be read")
    points = importlib.metadata.entry_points(group="triton.backends")
    check([each.name for each in points if each.value == "tzero.cpu"] == ["cpu"], "the entry point")
    check(os.path.exists(os.path.join(os.path.dirname(sys.executable), "tzero")), "the command")


def kernel() -> None:
    import torch
    import triton
    import triton.language as tl

    import tzero

    @triton.jit
    def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
        tl.store(out + at, total, mask=at < n)

    @tzero.kernel
    def add(x, y):
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out

    for size in (1000, 1000, 1000, 2048, 3000, 2048):
        x, y = torch.randn(size), torch.randn(size)
        check(torch.equal(add(x, y), x + y), "a sum")
    check(
        "replayed natively (tier 2)" in str(add.explain(x, y)), "that calls are replayed natively"
    )


def main(stage: str) -> None:
    extension()
    if stage == "kernel":
        kernel()
    print(f"Python {sys.version.split()[0]}: {stage} works")


if __name__ == "__main__":
    main(*sys.argv[1:])
