"""Zero-code attachment to mlx-lm: hooks on its cache classes, attention, models and generators.

``instrument()`` sets the hooks and ``uninstrument()`` takes every one of them away again; both count, so that sessions
and a user's own calls do not undo each other. Hooks do nothing while no session records.
"""

import os
import threading

from kvtrace.tracer.instrument.hooks import Hooks
from kvtrace.tracer.recorder import Recorder

__all__ = ["hooks", "instrument", "recorder", "uninstrument"]

recorder = Recorder()
"""The one recorder of this process."""

hooks = Hooks(recorder)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=recorder.silence)

_lock = threading.Lock()
_users = 0


def instrument() -> None:
    """Hook mlx-lm, as it is loaded now and as more of it gets loaded. Each call wants its own ``uninstrument()``."""
    global _users
    with _lock:
        if _users == 0:
            try:
                hooks.attach()
            except BaseException:  # an mlx-lm of another make
                hooks.detach()
                raise
        _users += 1


def uninstrument() -> None:
    """Take the hooks away when the last user does; without ``instrument()`` before, nothing happens."""
    global _users
    with _lock:
        if _users == 0:
            return
        _users -= 1
        if _users == 0:
            hooks.detach()
