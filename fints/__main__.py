"""``python -m fints`` is the ``fints`` command."""

from __future__ import annotations

import sys

from fints.cli import main

if __name__ == "__main__":
    sys.exit(main())
