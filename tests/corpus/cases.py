"""All cases of the corpus, by id, and which of them can be called here."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tests.corpus import (
    fla_modules,
    fla_ops,
    fla_parts,
    interfaces,
    liger_losses,
    liger_norms,
    tutorials,
    tutorials_more,
)
from tests.corpus.case import CASES, Case

__all__ = ["CASES", "PACKAGES", "missing"]

MODULES = (
    *(liger_norms, liger_losses, interfaces),
    *(fla_modules, fla_ops, fla_parts),
    *(tutorials, tutorials_more),
)

PACKAGES = {"liger": "liger_kernel", "fla": "fla", "tutorials": "triton", "helion": "helion"}
"""The package that a project's cases need."""

if find_spec("helion") is not None:
    from tests.corpus import helion_examples

    MODULES += (helion_examples,)


def missing(case: Case) -> str:
    """Why a case cannot be called here; empty if it can."""
    if torch.cuda.is_available():
        return "the projects ask torch for a GPU and find one; hide it (CUDA_VISIBLE_DEVICES=)"
    package = PACKAGES[case.project]
    if find_spec(package) is not None:
        return ""
    return f"{package} is not installed; `make .venv/.ready-dev` installs what the tests need"
