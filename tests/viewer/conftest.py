"""Fixtures of the viewer's tests; also what makes ``synthetic`` importable from the folders below."""

import pytest
from synthetic import METADATA, MemorySource, generation


@pytest.fixture
def source() -> MemorySource:
    """Two layers, ten prompt tokens, three generated."""
    return MemorySource(generation(), METADATA)
