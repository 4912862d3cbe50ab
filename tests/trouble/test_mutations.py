"""Mutated files: read as far as they go or refused in a sentence, in little time and little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mutations
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, seed, settings
from mutations import mutated_files, write_sample
from reading import MOST_BYTES

from kvtrace.tracer.formats import known_suffixes
from kvtrace.viewer.main import cli

SUFFIXES = known_suffixes()
CHUNK = 3_400
TESTS = Path(__file__).parent.parent


def mutate(suffix: str, number: int, examples: int, folder: Path) -> dict[str, int]:
    program = [sys.executable, mutations.__file__, suffix, str(number), str(examples), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    result = subprocess.run(program, env=environment, check=False, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-5_000:]
    outcomes: dict[str, int] = json.loads(result.stdout)
    return outcomes


def check(outcomes: dict[str, int], examples: int) -> None:
    assert outcomes.pop("peak_bytes") < MOST_BYTES
    assert set(outcomes) <= {"read", "damaged", "refused"}
    assert sum(outcomes.values()) >= examples * 9 // 10  # hypothesis stops early where it has seen all there is
    assert min(outcomes.values()) > 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_mutated_files(suffix: str, tmp_path: Path) -> None:
    check(mutate(suffix, 0, 700, tmp_path), 700)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 11))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_hundred_thousand_mutated_files(suffix: str, number: int, tmp_path: Path) -> None:
    check(mutate(suffix, number, CHUNK, tmp_path), CHUNK)


COMMANDS = [["summary"], ["info"], ["info", "--format", "json"], ["check"], ["convert"]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_command_has_an_exit_status_and_a_sentence_for_a_mutated_file(suffix: str, tmp_path: Path) -> None:
    path, output = tmp_path / f"mutated{suffix}", tmp_path / "converted.pftrace"
    samples = [write_sample(path, kind) for kind in ("nested", "threaded", "huge integers")]
    runner = CliRunner()

    @seed(0)
    @settings(
        max_examples=150, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(mutated_files(samples, suffix))
    def run_all(data: bytes) -> None:
        path.write_bytes(data)
        for command in COMMANDS:
            target = [str(output), "--force"] if command == ["convert"] else []
            result = runner.invoke(cli, [*command, str(path), *target])
            assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
            assert result.exit_code in (0, 1, 2)
            assert result.output

    run_all()
