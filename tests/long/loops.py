"""Loops of public training scripts, ported, killed over and over: each must end with the bits of an undisturbed one.

    python -m tests.long.loops --kills 10 [--only dcgan nanogpt] [--seed 1] [--jobs 2] [--json]

Run it from the repository (some minutes on two cores). The ports are in `tests/loops/ports`; `tests/loops/harness.py`
says what a port is and what is compared. Each is run whole, beside its original without colabkeep where the two can
have the same numbers; then it is killed so many times, at steps, in the middle of saves, behind commits, at the ends of
epochs and at random moments, interrupted sometimes, and at last let alone to its end. The exit status is 1 if anything
differs, was not told, or did not resume where it should.

The processes are forked from this one, which has imported the framework and computes with one thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.loops.harness import NEVER, Door, Port, examine, names
from tests.processes import Life, Say

PATIENCE = 3600.0  # seconds; for all ports of one process


def share(wanted: list[str], words: argparse.Namespace, folder: Path, say: Say) -> None:
    """Examine some of the ports, one after the other."""
    for name in wanted:
        home = folder / name
        home.mkdir()
        record = examine(name, words.kills, random.Random(f"{words.seed} {name}"), home, timed=words.kills > 2)
        (folder / f"{name}.json").write_text(json.dumps(asdict(record)))
        say("done", name)


def campaign(words: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The records of all ports that are asked for, in the order in which they were done."""
    torch.set_num_threads(1)  # see the top of `colabkeep.testing.faults`
    ports = list(map(Port, words.only or names()))  # what they import is there for all that are forked from here on
    for port in ports:
        if port.missing:
            print(f"left out: {port.name}, for {port.needs} is not installed", file=sys.stderr)
        elif port.needs:
            importlib.import_module(port.needs)
    wanted = [port.name for port in ports if not port.missing]
    Port("classification").train(Door(folder / "warm-up", lambda *_: None, NEVER))
    records = []
    with ExitStack() as stack:
        lives = [
            stack.enter_context(Life(lambda say, part=wanted[i :: words.jobs]: share(part, words, folder, say)))
            for i in range(min(words.jobs, len(wanted)))
        ]
        end = time.monotonic() + PATIENCE
        while len(records) < len(wanted) and time.monotonic() < end:
            told = [message for life in lives for message in life.messages(within=0.1)]
            for _, name in told:
                records.append(json.loads((folder / f"{name}.json").read_text()))
                _say_progress(records[-1], len(records), len(wanted))
            if not told and all(life.status is not None for life in lives):
                raise SystemExit("the suite itself failed: see above")
    return records


def _say_progress(record: dict[str, Any], done: int, of: int) -> None:
    state = "FAILS" if record["faults"] else "good"
    kills, original = record["kills"], record["original"]
    beside = original if original in ("equal", "other numbers") else "not compared"
    line = f"{done}/{of} {record['name']}: {state}; {kills} kills, original {beside}, {record['seconds']} s"
    print(line, file=sys.stderr, flush=True)
    for fault in record["faults"]:
        print(f"    {fault}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each port")
    parser.add_argument("--only", nargs="+", metavar="PORT", choices=names(), help="these ports")
    parser.add_argument("--seed", type=int, default=1, help="of the points; where time chooses them it is chance")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        records = campaign(words, Path(folder))
    if words.json:
        print(json.dumps(records))
    bad = [record["name"] for record in records if record["faults"]]
    equal = sum(record["original"] == "equal" for record in records)
    print(
        f"{len(records)} ports, {sum(record['kills'] for record in records)} kills, "
        f"{sum(len(record['resumed']) for record in records)} resumes in {time.monotonic() - began:.0f} s; "
        f"{equal} equal to their originals; "
        f"{', '.join(bad) or 'none'} failed",
        file=sys.stderr,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
