"""Fixtures of the viewer's tests; also what makes ``synthetic`` importable from the folders below."""

import pytest
from synthetic import METADATA, MemorySource, generation


@pytest.fixture(autouse=True)
def _characters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the language of whoever runs the tests: in C, output is ASCII."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture
def source() -> MemorySource:
    """Two layers, ten prompt tokens, three generated."""
    return MemorySource(generation(), METADATA)
