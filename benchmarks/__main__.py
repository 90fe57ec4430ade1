"""`python benchmarks [NAME …]`: measure, print, and keep the results beside this file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from measuring import Setting, facts, kept
from table import fill, lines

HERE = Path(__file__).parent
sys.path.append(str(HERE.resolve().parent))  # where `tests` is; last: what is installed comes first
NAMES = (
    "imports",
    "detection",
    "accelerators",
    "doctor",
    "loop",
    "ranks",
    "saving",
    "memory",
    "background",
    "durable",
    "frozen",
    "resume",
    "seeding",
    "stores",
    "panel",
    "folders",
    "kills",
    "peers",
    "trainers",
    "gpu",
    "paddles",
)


def main() -> None:
    """Measure what was asked for, all but `peers` and `kills` by default."""
    parser = argparse.ArgumentParser(prog="python benchmarks", description=__doc__)
    known = f"of {', '.join(NAMES)}; all but peers and kills by default"
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: see that it works, measure nothing")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where to keep the results")
    parser.add_argument("--folder", type=Path, help="on the disk to write to (default: the temporary folder)")
    parser.add_argument(
        "--megabytes", type=int, action="append", default=[], help="peers, resume: this size (repeatable)"
    )
    parser.add_argument("--rounds", type=int, help="peers, resume, kills: so many rounds")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or _possible(arguments.quick):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            setting = Setting(
                quick=arguments.quick,
                folder=Path(folder),
                megabytes=tuple(arguments.megabytes),
                repeat=arguments.rounds,
                results=arguments.results,
            )
            about = facts(setting.folder)
            figures = kept(import_module(name).run(setting))
        result = {"name": name, "quick": arguments.quick, "about": about, "figures": figures}
        (arguments.results / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print(f"{name} (load {about['load']})", *lines(result), sep="\n", flush=True)
    if arguments.results == HERE / "results":
        fill(HERE / "README.md", HERE / "results", NAMES)
    sys.stdout.flush()
    os._exit(0)  # a process group of a peer's would wait for nobody


def _possible(quick: bool) -> list[str]:
    """All that run here. What is measured is not `peers`, `kills`, which take hours, nor `gpu` where there is none."""
    names = [name for name in NAMES if name != "paddles" or find_spec("paddle") is not None]
    if quick:
        return names
    names.remove("peers")
    names.remove("kills")
    gpu = import_module("gpu")
    if not gpu.torch.cuda.is_available():
        print(gpu.NO_GPU, flush=True)
        names.remove("gpu")
    return names


if __name__ == "__main__":
    main()
