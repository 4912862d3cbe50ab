"""Units and decimals that fit."""

import pytest

from kvtrace.viewer.render.units import BYTE_UNITS, MICROSECOND_UNITS, choose_unit, format_bytes, format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 KB"),
        (51_200, "51.2 KB"),
        (999_999, "1,000 KB"),
        (4_194_304, "4.19 MB"),
        (2_500_000_000, "2.50 GB"),
        (7 * 10**15, "7,000 TB"),
    ],
)
def test_bytes(value: int | None, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("values", "name"), [([], "µs"), ([0], "µs"), ([3, 40, 9000], "µs"), ([999, 1000, 2], "µs"), ([5e3, 6e3], "ms")]
)
def test_durations_take_the_unit_of_a_typical_one(values: list[float], name: str) -> None:
    assert choose_unit(values, MICROSECOND_UNITS).name == name


def test_all_units_are_powers_of_ten() -> None:
    assert [unit.factor for unit in BYTE_UNITS] == [1, 1e3, 1e6, 1e9, 1e12]


def test_numbers() -> None:
    assert [format_number(12345.678, 1), format_number(None, 2), format_number(0.004, 2)] == ["12,345.7", "–", "0.00"]
