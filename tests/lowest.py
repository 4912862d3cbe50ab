"""Prints, one a line, the lowest version of each runtime dependency that pyproject.toml allows: constraints for pip."""

import re
import sys
from pathlib import Path

__all__ = ["lowest_pins"]


def lowest_pins(pyproject: str) -> list[str]:
    """``name==version`` for each entry of ``[project] dependencies``. Raises ValueError for one without a bound."""
    # Python 3.10 has no tomllib, and this runs before anything is installed.
    section = re.search(r"^dependencies = \[\n(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)
    if section is None:
        raise ValueError("no dependencies in pyproject.toml")
    pins = []
    for requirement in re.findall(r'"([^"]+)"', section[1]):
        name, bound, version = requirement.partition(">=")
        if not bound:
            raise ValueError(f"{requirement} has no lower bound")
        pins.append(f"{name}=={version}")
    return pins


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_pins(Path("pyproject.toml").read_text(encoding="utf-8"))) + "\n")
