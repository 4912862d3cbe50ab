"""``kvtrace sweep`` without its command line: workloads one after the other, of which those that are done are kept.

Importing this imports no mlx.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.tracer.methods.registry import ChosenMethod
from kvtrace.viewer.compare.grid import Point
from kvtrace.viewer.progress import RunProgress
from kvtrace.viewer.render.sweep import lines_of_grid
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order, exit_status
from kvtrace.viewer.stdout import stdout_kept_clean

__all__ = ["Swept", "collect_rows", "draw", "sweep_grid"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Swept:
    """The document of the rows that are done; what ended it early is the status to exit with, or an error to raise."""

    document: dict[str, Any]
    status: int
    error: Exception | None


def sweep_grid(
    points: Sequence[Point],
    methods: Mapping[str, ChosenMethod | None],
    tolerance: float | None,
    repetitions: int,
    *,
    is_table: bool,
) -> Swept:
    """Load the model, print the grid, sweep it. Without a table to come, the grid goes to stderr.

    Raises ModelError or MethodError.
    """
    options = points[0].options
    with RunProgress(is_shown=True) as progress:
        progress.show(f"Loading {options.model or 'the model'}")
        with stdout_kept_clean():
            from kvtrace.viewer.compare.asked import load_for
            from kvtrace.viewer.compare.sweep import Sweep

            sweep = Sweep(load_for(options, methods.values()), points, methods, tolerance, repetitions)
        progress.clear()
        say(*lines_of_grid([point.to_dict() for point in points], repetitions), "", err=not is_table)
        with stdout_kept_clean():
            rows, status, error = collect_rows(
                sweep.rows(), lambda done: progress.show("Sweeping", done, len(points), "workloads")
            )
    return Swept(sweep.document(rows), status, error)


def collect_rows(rows: Iterator[Row], on_row: Callable[[int], None]) -> tuple[list[Row], int, Exception | None]:
    """Take rows until there are no more, or it is told to end, or one fails; ``on_row(done)`` follows."""
    done: list[Row] = []
    on_row(0)
    with ending_in_order():
        try:
            for row in rows:
                done.append(row)
                on_row(len(done))
        except (KeyboardInterrupt, SystemExit) as told:
            return done, exit_status(told), None
        except Exception as error:  # of whoever made the caches; what is done took long
            return done, 0, error
    return done, 0, None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw the rows that hold, if any. Raises CommandError."""
    if not any(row["holds"] for row in document["rows"]):
        say(f"No picture: no workload holds, so {path} was not written.", err=True)
        return
    from kvtrace.viewer.render.picture import draw_sweep, save_picture

    save_picture(draw_sweep(document), path)
    say(f"Wrote {path}.", err=True)
