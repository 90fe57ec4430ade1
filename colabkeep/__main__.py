"""`python -m colabkeep`: the same as the command `colabkeep`."""

from __future__ import annotations

import sys

from colabkeep.ui.cli import main

if __name__ == "__main__":
    sys.exit(main())
