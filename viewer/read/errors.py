"""What goes wrong when a trace is opened."""

__all__ = ["TraceError"]


class TraceError(ValueError):
    """A file that can't be read as a kvtrace session. ``message`` says what it is, ``hint`` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
