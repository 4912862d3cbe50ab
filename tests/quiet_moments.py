"""For tests that compare durations: other work on the machine comes and goes, a wrong or slow hook stays."""

import functools
from collections.abc import Callable
from typing import ParamSpec

__all__ = ["when_quiet"]

P = ParamSpec("P")
_MOMENTS = 3


def when_quiet(test: Callable[P, None]) -> Callable[P, None]:
    """The test, which fails only if it does in each of a few moments."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(_MOMENTS - 1):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                continue
        return test(*args, **kwargs)

    return run
