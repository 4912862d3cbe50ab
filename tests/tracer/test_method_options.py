"""What the options of cache methods read from text, and what they refuse."""

from typing import Any

import pytest

from kvtrace.tracer.methods.method import MethodError, Option

SIZE = Option("size", "int", 64, choices=(32, 64))
COUNT = Option("count", "int", 4, minimum=1)
RANK = Option("rank", "int", None, is_optional=True)
SHARE = Option("share", "float", 0.5)
IS_ON = Option("is_on", "bool", False)
MODE = Option("mode", "str", "auto")
STEPS = Option("steps", "ints", (8, 4))
LEAST = Option("least", "ints", (1,), minimum=1)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (SIZE, " 32 ", 32),
        (COUNT, "1", 1),
        (RANK, "none", None),
        (RANK, "", None),
        (RANK, "7", 7),
        (SHARE, "1e-2", 0.01),
        (SHARE, "3", 3.0),
        (IS_ON, "Yes", True),
        (IS_ON, "0", False),
        (SHARE, "-.5", -0.5),
        (MODE, "none", "none"),
        (MODE, "a=b, c", "a=b, c"),
        (STEPS, "4,2, 0", (4, 2, 0)),
        (STEPS, "-1", (-1,)),
        (STEPS, "", ()),
        (LEAST, "3,1", (3, 1)),
        (LEAST, "", ()),
    ],
)
def test_options_read_what_they_take(option: Option, text: str, value: Any) -> None:
    assert option.parse(text) == value
    assert option.parse(option.show(value)) == value


@pytest.mark.parametrize(
    ("option", "text", "message", "hint"),
    [
        (SIZE, "48", "size takes one of 32, 64, not '48'", "its default is 64"),
        (COUNT, "0", "count takes a whole number from 1, not '0'", "its default is 4"),
        (COUNT, "1.5", "count takes a whole number from 1, not '1.5'", "its default is 4"),
        (RANK, "many", "rank takes a whole number, or none, not 'many'", "its default is none"),
        (SHARE, "inf", "share takes a number, not 'inf'", "its default is 0.5"),
        (SHARE, "", "share takes a number, not ''", "its default is 0.5"),
        (IS_ON, "maybe", "is_on takes true or false, not 'maybe'", "its default is false"),
        (LEAST, "2,0", "least takes whole numbers separated by commas from 1, not '2,0'", "its default is 1"),
        (STEPS, "4,,2", "steps takes whole numbers separated by commas, not '4,,2'", "its default is 8,4"),
    ],
)
def test_options_refuse_anything_else(option: Option, text: str, message: str, hint: str) -> None:
    with pytest.raises(MethodError) as caught:
        option.parse(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)
