"""The long proof for Lightning: stopped at every batch, and killed by SIGKILL five times, each kind of training ends
with the bits of one left alone.

    python -m tests.integrations.lightning_long [--kind PART-OF-A-NAME] [--kills 5] [--batches 33]

Run it in an environment with the release that is to be tried; LIGHTNING_OF_TESTS=pytorch_lightning chooses the package.
"""

from __future__ import annotations

import argparse
import logging
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tests.integrations.test_lightning import KINDS, Breakage, Breaking, Killed, same, train

KILLED: dict[str, dict[str, Any]] = {
    "workers, accumulation": {"workers": 2},
    "workers, bf16": {"workers": 2, "precision": "bf16-mixed", "val_check_interval": 4},
}


def at_every_batch(kind: str, batches: int) -> int:
    """How many sessions were resumed in the middle of an epoch, each the second one of a run."""
    whole = train(Path(tempfile.mkdtemp()), **KINDS[kind])
    inside = 0
    for batch in range(2, batches + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                train(Path(folder), Breaking(batch, 1), **KINDS[kind])
            except Breakage:
                kept = train(Path(folder), **KINDS[kind])
                assert same(kept, whole), batch
                inside += bool(kept["resumed_at"])
    return inside


def killed(kind: str, kills: int) -> int:
    """How many sessions died by SIGKILL before one came to the end."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole", **KILLED[kind])
        places, died = random.Random(0), 0
        for batch in sorted(places.sample(range(4, 33), kills)):
            program = [sys.executable, "-m", __spec__.name, "--die", str(batch), "--kind", kind, "--folder", folder]
            died += subprocess.run(program, check=False, timeout=300).returncode < 0
        assert same(train(Path(folder), **KILLED[kind]), whole)
    return died


def main() -> None:
    """See above."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--batches", type=int, default=33)
    parser.add_argument("--die", type=int)
    parser.add_argument("--folder", type=Path)
    words = parser.parse_args()
    if words.die is not None:
        train(words.folder, Killed(words.die), **KILLED[words.kind])
        return
    for kind in (each for each in KINDS if words.kind in each):
        print(f"{kind}: the same bits, resumed inside an epoch {at_every_batch(kind, words.batches)} times", flush=True)
    for kind in (each for each in KILLED if words.kind in each):
        print(f"{kind}: the same bits after {killed(kind, words.kills)} SIGKILLs", flush=True)


if __name__ == "__main__":
    main()
