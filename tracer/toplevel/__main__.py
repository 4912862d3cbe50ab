"""``python -m kvtrace``: the same as the ``kvtrace`` command."""

from kvtrace.viewer.main import main

main()
