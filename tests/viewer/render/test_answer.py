"""Rows of an answer fitted to a terminal, and kept from doing anything to it."""

import json

import pytest

from kvtrace.viewer.errors import CommandError
from kvtrace.viewer.render.answer import answer_csv, answer_json, answer_table

COLUMNS = ("name", "count", "what it is")
ROWS = [("update_and_fetch", 12_345_678, "writes and hands out"), ("attend", 7, None)]


def test_long_texts_are_cut_short_the_widest_first() -> None:
    assert answer_table(COLUMNS, ROWS, 30).splitlines() == [
        "name           count  what it…",
        "──────────  ────────  ────────",
        "update_an…  12345678  writes …",
        "attend             7  NULL",
    ]


def test_then_the_last_columns_are_left_out_and_that_is_said() -> None:
    assert answer_table(COLUMNS, ROWS, 24).splitlines() == [
        "name         count",
        "────────  ────────",
        "update_…  12345678",
        "attend           7",
        "No room on a terminal 24 wide: what it is; --format csv has all.",
    ]


def test_a_wide_terminal_shows_all() -> None:
    assert answer_table(COLUMNS, ROWS, 48) == answer_table(COLUMNS, ROWS)
    assert max(map(len, answer_table(COLUMNS, ROWS).splitlines())) == 48


def test_wide_and_combining_characters_take_the_room_that_they_take() -> None:
    rows = [("模型文字模型文字", "x"), ("ab", None)]
    assert answer_table(("模型", "e\u0301"), rows, 14).splitlines() == [
        "模型      e\u0301",
        "────────  ────",
        "模型文…   x",
        "ab        NULL",
    ]


def test_an_answer_may_have_no_rows() -> None:
    assert answer_table(COLUMNS, []).splitlines()[0] == "name  count  what it is"
    assert (answer_json(COLUMNS, []), answer_csv(COLUMNS, [])) == ("[]", "name,count,what it is")


def test_columns_of_one_name_need_others_for_json_alone() -> None:
    assert answer_table(("n", "n"), [(1, 2)]).splitlines()[-1] == "1  2"
    assert answer_csv(("n", "n"), [(1, 2)]) == "n,n\n1,2"
    with pytest.raises(CommandError, match="two columns have the name 'n'"):
        answer_json(("n", "n"), [(1, 2)])


def test_json_has_no_number_that_is_none() -> None:
    assert json.loads(answer_json(("a", "b"), [(float("inf"), float("nan"))])) == [{"a": None, "b": None}]


def test_csv_keeps_every_character() -> None:
    rows = [("\x1b[2J\x9b", 'two\r\nlines "\u202e"')]
    assert answer_csv(("a", "b"), rows) == 'a,b\n\x1b[2J\x9b,"two\r\nlines ""\u202e"""'
