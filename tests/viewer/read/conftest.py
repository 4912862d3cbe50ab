"""Lets these tests import what several folders share: tests/trace_rows.py and tests/perfetto_ui.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
