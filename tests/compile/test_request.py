"""What crosses the process border stands alone, and bytes that are no artifact are told apart."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tzero.compile.request import Artifact, Malformed, Request

REQUEST = Request("cpp", "add", "void add() {}", "gcc 12", {"PATH": "/bin"})

names = st.text(st.characters(exclude_characters="/\\\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3)
)
artifacts = st.builds(
    Artifact,
    st.dictionaries(names, st.binary(max_size=50), max_size=4),
    st.dictionaries(st.text(max_size=5), values, max_size=4),
)


@pytest.mark.parametrize("field", ["backend", "name", "program", "toolchain"])
def test_each_field_that_has_a_say_changes_the_digest(field: str) -> None:
    other = dataclasses.replace(REQUEST, **{field: getattr(REQUEST, field) + "x"})
    assert other.digest != REQUEST.digest


def test_the_schema_changes_the_digest_and_the_environment_does_not() -> None:
    assert dataclasses.replace(REQUEST, schema=0).digest != REQUEST.digest
    assert dataclasses.replace(REQUEST, environment={}).digest == REQUEST.digest


def test_text_cannot_move_from_one_field_to_the_next() -> None:
    assert Request("a", "bc", "", "").digest != Request("ab", "c", "", "").digest


def test_a_request_travels() -> None:
    assert pickle.loads(pickle.dumps(REQUEST)) == REQUEST


@given(artifacts)
def test_an_artifact_survives_its_bytes(artifact: Artifact) -> None:
    assert Artifact.decode(artifact.encode()) == artifact
    assert pickle.loads(pickle.dumps(artifact)) == artifact


@given(st.binary(max_size=200))
def test_any_bytes_are_an_artifact_or_malformed(data: bytes) -> None:
    try:
        Artifact.decode(data)
    except Malformed:
        return
    # Not every artifact has one spelling (JSON may hold spaces), but what was read is whole.
    assert Artifact.decode(Artifact.decode(data).encode()) == Artifact.decode(data)


@given(artifacts, st.data())
def test_an_artifact_that_was_cut_short_is_none(artifact: Artifact, data: st.DataObject) -> None:
    whole = artifact.encode()
    with pytest.raises(Malformed):
        Artifact.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "..\\x", "a\0b", "x" * 256])
def test_a_file_stays_in_its_directory(name: str) -> None:
    with pytest.raises(Malformed, match="not a valid file name"):
        Artifact({name: b""})
    head = json.dumps({"facts": {}, "files": [[name, 0]]}).encode()
    with pytest.raises(Malformed):
        Artifact.decode(len(head).to_bytes(4, "big") + head)


def test_a_name_that_comes_twice_is_no_artifact() -> None:
    head = b'{"facts":{},"files":[["a",0],["a",0]]}'
    with pytest.raises(Malformed, match="twice"):
        Artifact.decode(len(head).to_bytes(4, "big") + head)


@pytest.mark.parametrize("file", ["[1,0]", '[["a"],0]', '["a",1e999]', '["a",0.0]', '["a",true]'])
def test_a_file_without_a_name_and_a_size_is_no_artifact(file: str) -> None:
    head = f'{{"facts":{{}},"files":[{file}]}}'.encode()
    with pytest.raises(Malformed, match="names and sizes"):
        Artifact.decode(len(head).to_bytes(4, "big") + head)
