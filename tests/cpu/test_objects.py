"""Objects are reused only for the same C text, options and compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cpu.objects import reused
from tzero import settings
from tzero.cpu import compiler, toolchain

TEXT = "int answer(void) { return 42; }\n"


def test_an_object_is_reused_only_for_the_same_text_options_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = compiler._so

    def counted(source: str, metadata: dict[str, Any], options: compiler.CPUOptions) -> bytes:
        built.append(source)
        return build(source, metadata, options)

    def builds(source: str = TEXT, **options: Any) -> int:
        before = len(built)
        binary = compiler._so(source, {"name": "answer"}, compiler.CPUOptions(**options))
        assert binary.startswith(b"\x7fELF")
        return len(built) - before

    monkeypatch.setattr(compiler, "_so", counted)
    with reused(tmp_path):
        assert builds() == 1
        assert builds() == 0
        assert builds(TEXT + "\n") == 1
        assert builds(enable_fp_fusion=False) == 1
        with settings.override(cc=(*toolchain.find().command, "-DOTHER")):
            assert builds() == 1
            assert builds() == 1
    with reused(tmp_path):  # as in a later run
        assert builds() == 0
    assert compiler._so is counted
    assert builds() == 1
