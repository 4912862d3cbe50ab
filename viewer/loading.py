"""Loading what a command runs: progress while it lasts, then what a user should know before reading what comes."""

from typing import TYPE_CHECKING

from kvtrace.viewer.commands.options import RunOptions
from kvtrace.viewer.say import say

if TYPE_CHECKING:
    from kvtrace.viewer.generation import Job
    from kvtrace.viewer.progress import RunProgress

__all__ = ["load_job"]


def load_job(options: RunOptions, text: str | None, progress: "RunProgress", *, is_quiet: bool) -> "Job":
    """The job of some options; notes go to stderr. Imports mlx only now. Raises what ``prepare`` does."""
    progress.show(f"Loading {options.model or 'the model'}")
    from kvtrace.viewer.generation import prepare

    job = prepare(options, text)
    progress.clear()
    if not is_quiet:
        say(*job.notes, err=True)
    return job
