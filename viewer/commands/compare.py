"""``kvtrace compare``: what a cache saves for one workload, or how two caches differ."""

import json
from pathlib import Path
from typing import Any

import click

from kvtrace.viewer.commands.numbers import FiniteRange
from kvtrace.viewer.commands.options import RunOptions, comparison_options
from kvtrace.viewer.commands.schema_option import schema_option
from kvtrace.viewer.output_file import check_output
from kvtrace.viewer.say import say
from kvtrace.viewer.signals import ending_in_order
from kvtrace.viewer.stdout import stdout_kept_clean

__all__ = ["command"]

_EPILOG = """\b
Examples:
  kvtrace compare --prompt-tokens 32 --max-tokens 32
  kvtrace compare --model ./my-model --prompt-tokens 64 -m 16 --method rotating --set max_size=512 --predict
  kvtrace compare --prompt-tokens 32 -m 32 --against quantized --kv-bits 4
  kvtrace compare --prompt-tokens 8 -m 8 --json | jq .counted

\b
Exit status:
  3 when the paths choose other tokens, when logits differ by more than the tolerance, or when a count is not the
  predicted one: no speed is printed then. With --against, differences of tokens and logits are the result.
"""

_NOT_EQUIVALENT = 3


@click.command(epilog=_EPILOG, short_help="Say what a cache saves: equal tokens, then work, time, memory.")
@comparison_options
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Sequences.")
@click.option(
    "--repeat", type=click.IntRange(min=1), default=15, show_default=True, metavar="N", help="Timed runs of each path."
)
@click.option(
    "--against",
    metavar="METHOD",
    help="Compare two caches: the model's own or that of --method, and this one (--kv-bits sets its bits).",
)
@click.option(
    "--against-set", "against_settings", multiple=True, metavar="FIELD=VALUE", help="Set an option of --against."
)
@click.option(
    "--tolerance",
    type=FiniteRange(min=0),
    help="Largest difference of logits allowed, as a share of the step's largest logit. [default: 0.001 for float32, "
    "0.01 for float16, 0.05 for bfloat16; at least 16 / 2^bits, and at most 0.5, for a quantized cache]",
)
@click.option("--predict", "is_predicted", is_flag=True, help="Print the predicted work before anything runs.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Record both paths side by side.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON document.")
@schema_option("compare")
def command(
    options: RunOptions,
    batch_size: int,
    repeat: int,
    against: str | None,
    against_settings: tuple[str, ...],
    tolerance: float | None,
    is_predicted: bool,
    output: Path | None,
    force: bool,
    is_json: bool,
) -> None:
    """Generate the same tokens without a cache, the growing prefix anew for each, and with one; say what it saves.

    Equivalence comes first: logits and tokens of every step. Then counted work, each count held against a formula; then
    time, of interleaved runs; then memory. The prompt is made up, of --prompt-tokens, 8 unless given; tokens are the
    likeliest ones, whatever --temp says, and exactly --max-tokens.
    """
    if output is not None:
        check_output(output, may_replace=force)
    from kvtrace.viewer.compare.choosing import choose_pair
    from kvtrace.viewer.progress import RunProgress

    with stdout_kept_clean():
        methods = choose_pair(options, against, against_settings)
    with RunProgress(is_shown=True) as progress, ending_in_order():
        progress.show(f"Loading {options.model or 'the model'}")
        with stdout_kept_clean():
            from kvtrace.viewer.compare.asked import Asked, load_for

            asked = Asked.on(load_for(options, methods), options, batch_size, methods, tolerance)
        progress.clear()
        if is_predicted:
            say(*asked.prediction(), "", err=is_json)
        with stdout_kept_clean():
            comparison = asked.compare(repeat, output, progress.show)
    document = {**asked.document(comparison), "repetitions": repeat, "trace": None if output is None else str(output)}
    _print(document, is_json)
    holds = not comparison.mismatches if asked.is_against else comparison.holds
    click.get_current_context().exit(0 if holds else _NOT_EQUIVALENT)


def _print(document: dict[str, Any], is_json: bool) -> None:
    from kvtrace.viewer.render.compare import lines_of_comparison, lines_of_trouble

    if is_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        say(*lines_of_comparison(document))
    if document["trace"] is not None:
        say("", f"Wrote {document['trace']}.", err=is_json)
    say(*lines_of_trouble(document), err=True)
