"""How a benchmark shows its results: for people, or as JSON with ``--json``."""

import json
import sys
from typing import Any

__all__ = ["show"]


def show(results: Any, *lines: str) -> None:
    print(json.dumps(results) if "--json" in sys.argv else "\n".join(lines))
