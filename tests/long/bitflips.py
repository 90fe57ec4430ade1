"""Random bit flips over all files of a real run: each is noticed, and nothing is ever loaded that was not saved.

    python -m tests.long.bitflips --flips 1000

trains a run of several sessions (NumPy), then flips one random bit of one random file at a time. The audit has to name
that file. A resume, and the loading of each single checkpoint, has to give a state that was saved, equal in all bits,
or to raise; no file may be deleted or changed. The bit is flipped back, and what the resume wrote (a mark) is
removed, before the next one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import colabkeep
from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.restore import load_id, load_newest
from colabkeep.checkpoint.verify import audit
from colabkeep.core.errors import ColabKeepError
from colabkeep.core.layout import dumps
from colabkeep.core.state import Tree
from colabkeep.stores.local import DirectoryStore

RUN = "run"


class Model:
    """Weights that each step changes, a frozen table that none does, and plain values of all sorts."""

    def __init__(self) -> None:
        self.weight = np.zeros((8, 8), np.float32)
        self.table = np.arange(32)
        self.notes: dict[Any, Any] = {"steps": [], 1: (2.5, None), "odd": float("nan")}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "table": self.table, "notes": self.notes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight[:] = state["weight"]
        self.notes = state["notes"]


@dataclass
class Outcome:
    """What came of the flips: how often which file was hit, and what a resume did then; `wrong` should be empty."""

    seed: int
    flips: int = 0
    files: Counter[str] = field(default_factory=Counter)
    resumes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def counted(what: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(what.items()))

        verdict = f"{len(self.wrong)} WRONG" if self.wrong else "all noticed, nothing loaded that was not saved"
        return f"{self.flips} flips (seed {self.seed}): {verdict}; in {counted(self.files)}; {counted(self.resumes)}"


def train(storage: Path) -> None:
    """Three sessions, several checkpoints, one of them quarantined."""
    for session, epochs in enumerate((2, 3, 5)):
        model = Model()
        options = {"save_every": None, "keep_last": 4, "monitor": "loss", "progress": False}
        with colabkeep.Run(RUN, model=model, storage=storage, **options) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches([1.0, 2.0, 3.0]):
                    model.weight += np.float32(batch * np.random.random())
                    model.notes["steps"].append(run.progress.step)
                    run.step()
                run.log(loss=1 / (epoch + session + 1))
                run.save(wait=True)
    repository = Repository(DirectoryStore(storage), RUN)
    repository.quarantine(min(repository.ids()), "so that there is a mark as well")


def flip_bits(storage: Path, flips: int, seed: int) -> Outcome:
    """Train into the empty folder `storage`, then flip that many bits, one after the other."""
    train(storage)
    chance, outcome = random.Random(seed), Outcome(seed=seed)
    saved = _saved(storage)
    files = _files(storage)
    for _ in range(flips):
        path = chance.choice(sorted(files))
        data = bytearray(files[path])
        bit = chance.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        outcome.flips += 1
        name = str(path.relative_to(storage / RUN))
        outcome.files[name.partition("/")[0]] += 1
        for fault in _faults(storage, name, saved, outcome):
            outcome.wrong.append(f"bit {bit} of {name}: {fault}")
        _put_back(storage, files, {**files, path: bytes(data)}, outcome)
    return outcome


def _faults(storage: Path, name: str, saved: dict[str, bytes], outcome: Outcome) -> list[str]:
    faults = []
    found = {finding.file: finding.state for finding in audit(Repository(DirectoryStore(storage), RUN))}
    if found.get(name) != "damaged":
        faults.append(f"the audit says {found.get(name)}")
    for id, state in saved.items():
        try:
            same = _bits(load_id(Repository(DirectoryStore(storage), RUN), id).parts) == state
        except ColabKeepError:
            continue
        if not same:
            faults.append(f"{id} was loaded as something that it never was")
    passed: list[str] = []
    try:
        loaded = load_newest(Repository(DirectoryStore(storage), RUN), lambda id, why: passed.append(id))
    except ColabKeepError as error:
        outcome.resumes[f"raised {type(error).__name__}"] += 1
        return faults
    outcome.resumes["skipped" if passed else "loaded the newest"] += 1
    if loaded is None:
        faults.append("the resume would begin anew")
    elif _bits(loaded.parts) != saved[loaded.manifest.id]:
        faults.append(f"the resume loaded something that {loaded.manifest.id} never was")
    return faults


def _put_back(storage: Path, files: dict[Path, bytes], flipped: dict[Path, bytes], outcome: Outcome) -> None:
    after = _files(storage)
    changed = [path for path, data in flipped.items() if after.get(path) != data]
    outcome.wrong += [f"{path} was changed or deleted" for path in changed]
    for path in after.keys() - flipped.keys():
        path.unlink()
    for path, data in files.items():
        if after.get(path) != data:
            path.write_bytes(data)


def _saved(storage: Path) -> dict[str, bytes]:
    repository = Repository(DirectoryStore(storage), RUN)
    return {manifest.id: _bits(repository.load(manifest)) for manifest in repository.manifests(repository.ids())}


def _bits(parts: dict[str, Tree]) -> bytes:
    """The state as one text of bytes: equal only if every type, value and bit is."""
    encoded = encode_parts(parts)
    return dumps(encoded.parts) + b"".join(chunk for pack in encoded.packs for chunk in pack.chunks())


def _files(storage: Path) -> dict[Path, bytes]:
    """All files of the run but the lock's, which nothing depends on."""
    return {path: path.read_bytes() for path in (storage / RUN).rglob("[!.]*") if path.is_file()}


def main() -> int:
    """Print the summary; 1 if anything was not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="for the same flips again (default: at random)")
    words = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if words.seed is None else words.seed
    with tempfile.TemporaryDirectory(prefix="colabkeep-bitflips-") as folder:
        outcome = flip_bits(Path(folder), words.flips, seed)
    for line in outcome.wrong:
        print(line)
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
