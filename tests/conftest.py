"""What every test may use, and what none may leave behind."""

from collections.abc import Iterator

import pytest
from perfetto_ui import perfetto_ui

__all__ = ["perfetto_ui"]


@pytest.fixture(autouse=True)
def _hooks_are_gone() -> Iterator[None]:
    """Fail a test that leaves mlx-lm instrumented."""
    yield
    import sys

    if "kvtrace.tracer.instrument" in sys.modules:
        from mlx_lm.models import base, cache

        from kvtrace.tracer.instrument import recorder
        from kvtrace.tracer.instrument.patches import is_hook

        assert recorder.emit is None
        assert not is_hook(base.scaled_dot_product_attention)
        assert not any(is_hook(method) for method in vars(cache.KVCache).values())
