"""What it costs to keep the folder of a program that knows nothing of it. What is left in the end: `kills`."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from measuring import Figure, Setting, compiling, figure

import colabkeep
from colabkeep.core.events import Event, SaveCommitted

_PROGRAM = Path(__file__).with_name("folders_program.py")


def run(setting: Setting) -> list[Figure]:
    """The program's loss, the way to its start, the bytes that go out."""
    os.environ["XDG_CACHE_HOME"] = str(setting.folder / "cache")
    return [*_cost(setting), *_looking(setting), *_start(setting), *_sent(setting)]


def _cost(setting: Setting) -> list[Figure]:
    """An ordinary training that saves four times a minute. First its folder is kept as by default, and what that takes
    is counted; then it is kept now and again, six times as often, and the steps are compared."""
    seconds, every = (1.0, 100.0) if setting.quick else (65.0, 15.0)
    folder, times = setting.folder / "runs", setting.folder / "times"
    folder.mkdir()
    words = [sys.executable, str(_PROGRAM), "training", str(folder), str(every), str(times)]
    program = subprocess.Popen(words)
    try:
        while not list(folder.glob("checkpoint-*/trainer_state.json")):
            assert program.poll() is None, "the training ended"
            time.sleep(0.1)
        shares, versions = _shares(folder, setting.folder / "storage", 1 if setting.quick else 3, seconds)
        spans = [_pair(folder, setting.folder / "storage", turn, seconds / 5) for turn in range(setting.rounds(10))]
    finally:
        program.kill()
        program.wait()
    rows = [tuple(map(float, line.split())) for line in times.read_text().splitlines() if line.count(" ") == 2]
    slower = [[_steps(rows, on, at) / _steps(rows, off, at) for on, off in spans] for at in (1, 2)]
    shutil.rmtree(folder)
    return [
        figure("the watcher, beside a training that saves four times a minute", "% of a core", shares, goal=1),
        figure("… versions in that time", "versions", [versions]),
        figure("a step of the training, watched", "times one that is not", slower[0], goal=1.01),
        figure("… in CPU time of the training thread", "times one that is not", slower[1], goal=1.01),
    ]


def _shares(folder: Path, storage: Path, rounds: int, seconds: float) -> tuple[list[float], int]:
    """What of a core the watcher takes in each of so many times, and how many versions it makes in all."""
    shares = []
    with colabkeep.keep_folder(folder, "r", storage=storage, progress=False) as kept:
        kept.save()  # the first of a session reads all there is
        version = kept.version
        for _ in range(rounds):
            before, begin = _cpu(), time.time()
            time.sleep(seconds)
            shares.append(100 * (_cpu() - before) / (time.time() - begin))
        return shares, kept.version - version


_Span = tuple[float, float]


def _pair(folder: Path, storage: Path, turn: int, seconds: float) -> tuple[_Span, _Span]:
    """When the folder was kept, and when it was not; each comes first in every other turn."""
    bare = time.time()
    if turn % 2:
        time.sleep(seconds)
    with colabkeep.keep_folder(folder, "r", storage=storage, every="10 s", progress=False) as kept:
        kept.save()
        watched = time.time()
        time.sleep(seconds)
        end = time.time()
    if not turn % 2:
        bare = time.time()
        time.sleep(seconds)
    return (watched, end), (bare, bare + seconds)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _steps(rows: list[tuple[float, ...]], span: tuple[float, float], at: int) -> float:
    return median(row[at] for row in rows if span[0] <= row[0] <= span[1])


def _looking(setting: Setting) -> list[Figure]:
    """Nothing changes: what looking takes."""
    figures = []
    for files in (10,) if setting.quick else (100, 10_000):
        folder = setting.folder / f"still-{files}"
        for number in range(files):
            own = folder / str(number % 100)
            own.mkdir(parents=True, exist_ok=True)
            (own / f"{number}.txt").write_text(str(number))
        shares = []
        with colabkeep.keep_folder(folder, f"s{files}", storage=setting.folder / "storage", progress=False) as kept:
            kept.save()
            for _ in range(1 if setting.quick else 3):
                before, begin = _cpu(), time.time()
                time.sleep(1 if setting.quick else 60)  # a look at many files comes seldom
                shares.append(100 * (_cpu() - before) / (time.time() - begin))
        figures.append(figure(f"the watcher, {files} files of which none changes", "% of a core", shares, goal=1))
        shutil.rmtree(folder)
    return figures


def _start(setting: Setting) -> list[Figure]:
    """From the command to the first line of the program, on a machine that has nothing."""
    size, parts = (1, 1) if setting.quick else (20, 5)
    folder, storage = setting.folder / "full", setting.folder / "storage"
    folder.mkdir()
    for part in range(parts):
        (folder / f"{part}.pt").write_bytes(os.urandom(size * 10**6))
    for number in range(50):
        (folder / f"{number}.json").write_text(json.dumps(number))
    with colabkeep.keep_folder(folder, "full", storage=storage, progress=False):
        pass
    program = [sys.executable, "-c", "import time; print(time.time())"]
    found: dict[str, list[float]] = {"bare": [], "copied": [], "nothing": [], "back": []}
    for number in range(1 if setting.quick else 9):
        back, copy = setting.folder / f"back-{number}", setting.folder / f"copy-{number}"
        keep = [sys.executable, "-m", "colabkeep", "keep", str(back), "--storage", str(storage)]
        found["bare"].append(_seconds(program))
        found["copied"].append(_seconds(program, lambda copy=copy: shutil.copytree(folder, copy)))
        found["nothing"].append(_seconds([*keep, "--run", f"n{number}", "--", *program]))
        shutil.rmtree(back)
        found["back"].append(_seconds([*keep, "--run", "full", "--", *program]))
        assert (back / "0.pt").stat().st_size == size * 10**6
        shutil.rmtree(back)
        shutil.rmtree(copy)
    shutil.rmtree(folder)
    name = f"{size * parts} MB in a folder"
    return [
        figure("from the start of a bare Python to the program", "s", found["bare"]),
        figure(f"… copied first by shutil.copytree: {name}", "s", found["copied"]),
        figure("from the start of `colabkeep keep` to the program, with nothing to put back", "s", found["nothing"]),
        figure(f"… put back and checked first: {name}", "s", found["back"]),
    ]


def _seconds(words: list[str], first: Callable[[], object] = lambda: None) -> float:
    begin = time.time()
    first()
    said = subprocess.run(words, check=True, capture_output=True, text=True, env=compiling()).stdout
    return float(said.splitlines()[-1]) - begin


def _sent(setting: Setting) -> list[Figure]:
    """A log of 10 MB grows by 100 kB between two versions, beside a best.pt of 20 MB that stays as it is."""
    folder, rounds = setting.folder / "grows", setting.rounds(30)
    folder.mkdir()
    (folder / "best.pt").write_bytes(os.urandom(20 * 10**6))
    log = folder / "train.log"
    log.write_bytes(_lines(10**7))
    sent: dict[str, list[float]] = {"colabkeep": [], "rsync": [], "rclone": []}

    def tell(event: Event) -> None:
        if isinstance(event, SaveCommitted):
            sent["colabkeep"].append(event.written / 1000)

    with _kept_quickly(folder, setting.folder / "storage", tell) as kept:
        for _ in range(rounds + 1):
            with log.open("ab") as file:
                file.write(_lines(10**5))
            assert kept.save()
            _others(folder, setting.folder, sent)
    shutil.rmtree(folder)
    what = f"a log of 10 MB grew by 100 kB {rounds} times: sent each time"
    names = {
        "colabkeep": "colabkeep",
        "rsync": "rsync, to a machine with an rsync of its own",
        "rclone": "rclone sync; and rsync, to a mounted Drive",
    }
    return [figure(f"{what}: {names[name]}", "kB", values[1 : rounds + 1]) for name, values in sent.items() if values]


@contextmanager
def _kept_quickly(folder: Path, storage: Path, tell: Callable[[Event], None]) -> Iterator[colabkeep.KeptFolder]:
    with colabkeep.keep_folder(
        folder, "grows", storage=storage, every="1 s", settle="0.1 s", progress=False, callbacks=[tell]
    ) as kept:
        kept.save()
        yield kept


def _lines(size: int) -> bytes:
    return b"".join(b"loss %s\n" % os.urandom(20).hex().encode() for _ in range(size // 46))


def _others(folder: Path, home: Path, sent: dict[str, list[float]]) -> None:
    if shutil.which("rsync"):
        words = ["rsync", "-a", "--delete", "--no-whole-file", "--stats", f"{folder}/", str(home / "rsync")]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        sent["rsync"].append(int(re.findall(r"Literal data: ([\d,]+)", said)[0].replace(",", "")) / 1000)
    if shutil.which("rclone"):
        words = ["rclone", "sync", "--config=", "--use-json-log", "-v", str(folder), str(home / "rclone")]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stderr
        told = [json.loads(line).get("stats") for line in said.splitlines() if line.startswith("{")]
        sent["rclone"].append(next(one["bytes"] for one in reversed(told) if one) / 1000)
