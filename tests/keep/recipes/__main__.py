"""Every program whose package is installed here, killed and brought back; what came out, as a table.

python -m tests.keep.recipes            # or names: python -m tests.keep.recipes keras lightning
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.keep.recipes.cases import CASES, try_case


def main() -> int:
    """Try them; 1 if one of them behaves otherwise than its page says."""
    parser = argparse.ArgumentParser(prog="python -m tests.keep.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; all by default")
    words = parser.parse_args()
    if unknown := set(words.names) - CASES.keys():
        parser.error(f"no such recipe: {', '.join(sorted(unknown))}")
    wrong = 0
    print("| recipe | killed | went on with | the same bits |\n|---|---|---|---|")
    for name in words.names or CASES:
        case = CASES[name]
        if find_spec(case.needs) is None:
            print(f"| {name} | | {case.needs} is not installed | |", flush=True)
            continue
        with tempfile.TemporaryDirectory() as home:
            found = try_case(case, Path(home))
        right = found.after == case.back and found.exact == case.exact
        wrong += not right
        told = f"{'yes' if found.exact else 'no'}{'' if right else ' (not as its page says)'}"
        print(f"| {name} | at {found.before}, {case.told} | {found.after} | {told} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
