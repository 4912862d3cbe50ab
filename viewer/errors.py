"""Mistakes of a user, and how any of them is told: one line what is wrong, one what to do."""

from click import ClickException, UsageError

__all__ = ["CommandError", "explain", "no_cache_operations"]


class CommandError(ValueError):
    """A command that can't be carried out as asked."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def no_cache_operations(trace: str) -> CommandError:
    """What to raise for a trace that there is nothing to say of: of another program, or without a model's caches."""
    return CommandError(f"'{trace}' holds no cache operations", f"see what it holds with `kvtrace info {trace}`")


def explain(error: Exception) -> list[str] | None:
    """The lines for stderr; None for an error that is no user's mistake but ours."""
    if isinstance(error, UsageError) and error.ctx is not None:
        return _lines(_one_line(error), f"see {error.ctx.command_path} --help")
    if isinstance(error, ClickException):
        return _lines(_one_line(error), "")
    if isinstance(error, ValueError) and hasattr(error, "hint"):
        return _lines(str(getattr(error, "message", error)), str(error.hint))
    return None


def _one_line(error: ClickException) -> str:
    """Choices come as a list, a line each."""
    return " ".join(error.format_message().split())


def _lines(message: str, hint: str) -> list[str]:
    lines = [f"Error: {message.strip()}"]
    return [*lines, f"Hint: {hint}"] if hint else lines
