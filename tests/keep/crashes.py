"""A program that writes a folder, and the one who keeps it, killed at any moment, together or one of them; machines
that are gone. What comes back is a state that existed whole, and never older than what was said to be safe.

    python -m tests.keep.crashes --kills 300

A checkpoint of the program is several files that belong together (one is replaced, one is written in place, in pieces),
a `best` that changes seldom, a log that grows, and a rotation of old files. All follow from a number, so that what
comes back can be judged without the program. No format tells whether a file of it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SIZE = 1_500_000  # bytes of a checkpoint's file


def content(name: str, number: int, size: int = SIZE) -> bytes:
    """What the file `name` of checkpoint `number` holds: the number, and bytes that follow from it."""
    seed = hashlib.sha256(f"{name}{number}".encode()).digest()
    return number.to_bytes(8, "big") + (seed * (size // 32 + 1))[: size - 8]


def program(folder: Path, pause: float) -> None:
    """Goes on after the newest whole checkpoint that is there, for ever."""
    sys.stdout.write(json.dumps({"program": os.getpid()}) + "\n")
    sys.stdout.flush()
    last = folder / "last.bin"
    number = max((int(step.name[5:]) for step in folder.glob("step-*")), default=0)  # what comes last of a checkpoint
    while True:
        number += 1
        data = content("last", number)
        (folder / "last.tmp").write_bytes(data)
        (folder / "last.tmp").rename(last)
        data = content("optimizer", number)
        with (folder / "optimizer.bin").open("wb") as file:  # in place, in pieces
            for start in range(0, SIZE, SIZE // 10):
                file.write(data[start : start + SIZE // 10])
                file.flush()
                time.sleep(pause / 30)
        if number % 5 == 1:
            (folder / "best.bin").write_bytes(content("best", number))
        with (folder / "train.log").open("a") as log:
            log.write(f"{number}\n")
        (folder / f"step-{number}").write_bytes(content("step", number, 1000))
        for old in folder.glob("step-*"):
            if int(old.name[5:]) <= number - 3:
                old.unlink()
        time.sleep(pause)


def session(folder: Path, storage: Path, pause: float) -> int:
    """One session in this process: the folder is kept, and the program runs in another one."""
    from colabkeep.api import keep_folder
    from colabkeep.core.events import SaveCommitted
    from colabkeep.keep.command import run_program

    def tell(event: object) -> None:
        if isinstance(event, SaveCommitted):
            safe = kept.durability.step
            sys.stdout.write(json.dumps({"committed": event.progress.step, "safe": safe}) + "\n")
            sys.stdout.flush()

    words: dict[str, Any] = {"every": pause, "settle": pause / 2, "callbacks": [tell], "progress": False}
    kept = keep_folder(folder, "r", storage=str(storage), keep_last=3, **words)
    with kept:
        command = [sys.executable, "-m", "tests.keep.crashes", "--program", str(folder), "--pause", str(pause)]
        return run_program(kept, command)


def judge(folder: Path) -> tuple[int, list[str]]:
    """The number of the checkpoint in a folder that was put back, and what is wrong with it."""
    number = int.from_bytes((folder / "last.bin").read_bytes()[:8], "big")
    numbers = {"last.bin": number, "optimizer.bin": number, "best.bin": (number - 1) // 5 * 5 + 1}
    steps = {f"step-{n}": n for n in range(max(1, number - 2), number + 1)}
    names = {path.name for path in folder.iterdir()}
    wrong = [
        f"{name} is not that of {n}"
        for name, n in (numbers | steps).items()
        if name in names
        and (folder / name).read_bytes() != content(name.partition(".")[0].partition("-")[0], n, *_size(name))
    ]
    if names != {*numbers, *steps, "train.log"}:
        wrong.append(f"the files are not those of {number}: {sorted(names)}")
    lines = (folder / "train.log").read_text().split()
    if lines[-1:] != [str(number)]:
        wrong.append(f"the log ends with {lines[-2:]} at {number}")
    return number, wrong


def _size(name: str) -> tuple[int, ...]:
    return (1000,) if name.startswith("step") else ()


def main() -> int:
    """Kill sessions, take their machines away, and judge what comes back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two checkpoints of the program")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--session", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.program:
        program(Path(words.program), words.pause)
    if words.session:
        return session(Path(words.session[0]), Path(words.session[1]), words.pause)
    told = run(words.kills, words.seed, words.pause)
    sys.stdout.write(json.dumps(told) + "\n" if words.json else f"{told}\n")
    return 1 if told["wrong"] else 0


VICTIMS = ("both", "watcher", "program")


class Session:
    """A session in processes of its own, and what it has said."""

    def __init__(self, folder: Path, storage: Path, pause: float) -> None:
        command = [sys.executable, "-m", "tests.keep.crashes", "--session", str(folder), str(storage)]
        self.process = subprocess.Popen(
            [*command, "--pause", str(pause)], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.program: int | None = None
        self.committed = self.safe = 0
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("}\n"):  # else it was cut
                word = json.loads(line)
                self.program = word.get("program", self.program)
                self.committed = max(self.committed, word.get("committed", 0))
                self.safe = max(self.safe, word.get("safe") or 0)

    def wait(self, until: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not getattr(self, until) and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def kill(self, victim: str, after: float) -> int:
        """Kill it, or a part of it; the other part then goes on for a while. Returns the status of the session."""
        if victim == "program" and self.program is not None:
            os.kill(self.program, signal.SIGKILL)
            status = self.process.wait(60)  # it ends in order, with what is whole
        else:
            if victim == "watcher":
                self.process.kill()
                time.sleep(after)
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        self._thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def run(kills: int, seed: int, pause: float, *, in_turn: bool = False) -> dict[str, Any]:
    """All sessions; what was found. `judged`: by whom was killed, after how many kills was there something to judge.
    `in_turn`: each kind of kill in turn, after a version is there, on a machine that goes."""
    from colabkeep.api import keep_folder

    chance, wrong, newest, safe = random.Random(seed), list[str](), 0, 0
    killed, judged, nothing = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory() as home:
        storage, folder = Path(home) / "storage", Path(home) / "machine" / "runs"
        os.environ["XDG_CACHE_HOME"] = f"{home}/machine/cache"
        for kill in range(kills):
            victim = VICTIMS[kill % len(VICTIMS)] if in_turn else chance.choice(VICTIMS)
            session = Session(folder, storage, pause)
            if in_turn or chance.random() < 0.85:  # else at any moment of its beginning
                session.wait("program", 60)
                session.wait("committed", 60 if in_turn else chance.choice((0.0, 10 * pause, 10 * pause)))
            time.sleep(chance.expovariate(1 / pause))
            victim = "both" if session.program is None else victim
            status = session.kill(victim, chance.random() * pause)
            if status != (128 + signal.SIGKILL if victim == "program" else -signal.SIGKILL):
                wrong.append(f"kill {kill} ({victim}): the session ended with {status}")
            safe = max(safe, session.safe, session.committed)
            killed[victim] += 1
            if chance.random() < 0.15 and not in_turn:  # the machine is there still, and the next session goes on there
                continue
            shutil.rmtree(folder.parent)
            folder.parent.mkdir()
            with keep_folder(folder, "r", storage=str(storage), progress=False) as kept:
                if kept.restored is None:
                    nothing += 1
                    if safe:
                        wrong.append(f"kill {kill} ({victim}): nothing came back")
                    continue
                number, found = judge(folder)
                wrong += [f"kill {kill} ({victim}): {each}" for each in found]
                judged[victim] += 1
                if kept.restored.version < safe:
                    wrong.append(f"kill {kill} ({victim}): version {kept.restored.version} came back, {safe} was safe")
                if number < newest:
                    wrong.append(f"kill {kill} ({victim}): checkpoint {number} after {newest}")
                newest = max(number, newest)
    told = {"kills": kills, "killed": dict(killed), "judged": dict(judged), "nothing": nothing}
    return {**told, "versions": safe, "checkpoint": newest, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
