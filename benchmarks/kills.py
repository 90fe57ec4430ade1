"""The program and its machine die at a random moment. What do rsync in a loop, rclone in a loop and colabkeep have?

Two pairs, each with the same program, the same kill: rsync and colabkeep into a plain folder; rclone and colabkeep into
the tests' Drive, which lies on this machine and is as fast as this. All look as often.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from folders_program import judge
from measuring import Figure, Setting, figure
from stores_service import address

from tests.fakes.drive import Drive, Settings, running_drive
from tests.fakes.proxy import certificates, connect_proxy

EVERY = 2.0  # seconds between two checkpoints, and between two looks of each contestant
SETTLE = 0.4  # of colabkeep; that it is as short against EVERY as the defaults of both are
ALIVE = (5.0, 9.0)  # seconds after the first checkpoint, when the machine dies; all have had time to begin


def run(setting: Setting) -> list[Figure]:
    """So many kills of each pair."""
    kills = setting.repeat or (1 if setting.quick else 100)
    chance, alive = random.Random(0), (1.0, 1.0) if setting.quick else ALIVE
    pairs = {"a folder": Folders(setting.folder / "folders")} if shutil.which("rsync") else {}
    pairs |= {"Drive": Drives(setting.folder / "drive")} if shutil.which("rclone") else {}
    found: dict[str, list[tuple[dict, float | None]]] = {}
    writing: list[float] = []
    for kill in range(kills):
        for where, pair in pairs.items():
            died, times = _one_kill(setting.folder / "machine", pair, f"trial-{kill}", chance.uniform(*alive))
            writing.append(sum(end - begin for _, begin, end in times) / (died - times[0][1]))
            for name, folder in pair.bring_back(f"trial-{kill}", setting.folder / "back"):
                told = judge(folder)
                made = {number: end for number, _, end in times}
                age = died - made[told["last"]] if told["whole"] and told["last"] in made else None
                found.setdefault(f"{name} to {where}", []).append((told, age))
            shutil.rmtree(setting.folder / "back")
            shutil.rmtree(setting.folder / "machine")
    figures = [figure("the program writes, of its time", "%", [100 * share for share in writing])]
    for name, told in found.items():
        figures += _figures(name, told, kills)
    return figures


def _figures(name: str, told: Sequence[tuple[dict, float | None]], kills: int) -> list[Figure]:
    whole = sum(one["whole"] for one, _ in told)
    last = sum(one["last"] is not None for one, _ in told)
    newest = sum(one["newest"] is not None for one, _ in told)
    nothing = sum(one["last"] is None and one["newest"] is None for one, _ in told)
    ages = [age for _, age in told if age is not None]
    of = f"of {kills} kills"
    ours = name.startswith("colabkeep")
    return [
        figure(f"{name}: nothing whole came back", of, [kills - whole], goal=0 if ours else None),
        figure("… neither last.pt nor a checkpoint-N could be used", of, [nothing]),
        figure("… last.pt was missing or torn", of, [kills - last]),
        figure("… checkpoint-N was missing, incomplete or torn", of, [kills - newest]),
        *([figure("… how old what came back whole was", "s", ages)] if ages else []),
        *([figure("… the oldest of it", "s", [max(ages)])] if ages else []),
    ]


def _one_kill(machine: Path, pair: Folders | Drives, trial: str, alive: float) -> tuple[float, list]:
    """A machine's life. Returns when it died, and the checkpoints that the program had written: number, begin, end."""
    folder, times = machine / "runs", machine / "times"
    folder.mkdir(parents=True)
    program = [sys.executable, str(Path(__file__).with_name("folders_program.py")), "checkpoints", str(folder)]
    children = pair.start(machine, folder, [*program, str(EVERY), str(times)], trial)
    try:
        wait_for(times)
        time.sleep(alive)
        assert all(child.poll() is None for child in children), "a contestant ended before the machine"
    finally:
        died = time.time()
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
        for child in children:
            child.wait()
    lines = [line.split() for line in times.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return died, [(int(number), float(begin), float(end)) for number, begin, end in lines]


def wait_for(path: Path) -> None:
    """Until it is there and not empty."""
    end = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.05)


class Folders:
    """Into a plain folder on the same disk."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def start(self, machine: Path, folder: Path, program: list[str], trial: str) -> list[subprocess.Popen[bytes]]:
        copy = self._home / "rsync" / trial
        copy.mkdir(parents=True)
        loop = f'while :; do rsync -a --delete "{folder}/" "{copy}/"; sleep {EVERY}; done'
        return [kept(machine, folder, program, str(self._home / "colabkeep" / trial), {}), started(["sh", "-c", loop])]

    def bring_back(self, trial: str, back: Path) -> Iterator[tuple[str, Path]]:
        yield "rsync", self._home / "rsync" / trial
        put_back(str(self._home / "colabkeep" / trial), back, {})
        yield "colabkeep", back
        shutil.rmtree(self._home)


class Drives:
    """Into the tests' Drive: one for each, new for each kill, rclone's reached as Google's own is."""

    def __init__(self, home: Path) -> None:
        self._home, self._open = home, ExitStack()

    def start(self, machine: Path, folder: Path, program: list[str], trial: str) -> list[subprocess.Popen[bytes]]:
        own, theirs = self._home / "colabkeep", self._home / "rclone"
        own.mkdir(parents=True)
        theirs.mkdir()
        free = Settings(quota_bytes=None)
        service = self._open.enter_context(running_drive(own, quota_bytes=None, settings=free))
        self._url, secret = address(service)
        self._environ = {"COLABKEEP_DRIVE": secret}
        tls = certificates(theirs).server
        service = self._open.enter_context(running_drive(theirs, quota_bytes=None, tls=tls, settings=free))
        self._rclone = rclone(service, theirs, self._open.enter_context(connect_proxy(service.port)).url)
        loop = f'while :; do {" ".join(self._rclone)} sync "{folder}" fake:runs; sleep {EVERY}; done'
        return [kept(machine, folder, program, self._url, self._environ), started(["sh", "-c", loop])]

    def bring_back(self, trial: str, back: Path) -> Iterator[tuple[str, Path]]:
        back.mkdir()
        made = subprocess.run([*self._rclone, "copy", "fake:runs", str(back)], capture_output=True, check=False)
        assert made.returncode in (0, 3), made.stderr.decode()  # 3: nothing has come there yet
        yield "rclone", back
        shutil.rmtree(back)
        put_back(self._url, back, self._environ)
        yield "colabkeep", back
        self._open.close()
        shutil.rmtree(self._home)


def rclone(service: Drive, home: Path, proxy: str) -> list[str]:
    """rclone with one remote "fake:", with the settings it comes with."""
    user = service.authorized_user(scopes=("drive",))
    token = {"access_token": "old", "token_type": "Bearer", "expiry": "2020-01-01T00:00:00Z"}
    token["refresh_token"] = user["refresh_token"]
    said = {"type": "drive", "scope": "drive", "token": json.dumps(token)}
    said |= {name: user[name] for name in ("client_id", "client_secret")}
    config = home / "rclone.conf"
    config.write_text("[fake]\n" + "".join(f"{name} = {value}\n" for name, value in said.items()))
    words = ["env", f"HTTPS_PROXY={proxy}", f"HOME={home}", "rclone", f"--config={config}"]
    return [*words, f"--ca-cert={home / 'authority.pem'}"]


def kept(machine: Path, folder: Path, program: list[str], storage: str, environ: dict[str, str]) -> subprocess.Popen:
    """The program, under `colabkeep keep`."""
    words = [sys.executable, "-m", "colabkeep", "keep", str(folder), "--run", "r", "--storage", storage]
    words += ["--every", f"{EVERY} s", "--settle", f"{SETTLE} s", "--", *program]
    return started(words, {"XDG_CACHE_HOME": str(machine / "cache"), **environ})


def started(words: list[str], environ: dict[str, str] | None = None) -> subprocess.Popen:
    """A process in a group of its own, which is killed with all that it started."""
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        words, start_new_session=True, env={**os.environ, **(environ or {})}, stdout=silent, stderr=silent
    )


def put_back(storage: str, back: Path, environ: dict[str, str]) -> None:
    """What a fresh machine gets."""
    words = [sys.executable, "-m", "colabkeep", "keep", str(back), "--run", "r", "--storage", storage, "--", "true"]
    cache = {"XDG_CACHE_HOME": str(back.with_name("cache-of-back"))}
    made = subprocess.run(words, env={**os.environ, **cache, **environ}, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    shutil.rmtree(back.with_name("cache-of-back"), ignore_errors=True)
