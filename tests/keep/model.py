"""Any program, whatever it does to its files and when: what comes back is its folder as it was at rest, and the last
version is never missing once it rests.

    python -m tests.keep.model --examples 5000

Real files and a real store; the time is a clock's that is set.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.manifest import FOLDER, Manifest, Progress
from colabkeep.keep import content as content_module
from colabkeep.keep.content import Content, FileChanged
from colabkeep.keep.tree import Patterns, Scan, scan
from colabkeep.keep.version import PART, FolderCapture, encode_folder, put_back, stored_packs, table_of
from colabkeep.keep.watch import SETTLE, Watch
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.clock import FakeClock

NAMES = ("last.bin", "best.bin", "d/x.bin", "d/y.bin", "d/e/z.bin", "d", "n")
LOG = "train.log"
SIZES = (0, 1, 199, 200, 999, 1001, 3500)  # around those at which blobs are cut and gathered, as set below


class Program:
    """Does things to files; those that cannot be done are not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    def data(self, size: int) -> bytes:
        self.number += 1
        return (b"%d." % self.number * (size + 1))[:size]

    def do(self, what: str, one: str, other: str, size: int) -> None:
        path, second = self.folder / one, self.folder / other
        with suppress(OSError):
            getattr(self, what)(path, second, size)
        tick(self.folder.parent)

    def write(self, path: Path, _: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data(size))

    def replace(self, path: Path, _: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".tmp")
        new.write_bytes(self.data(size))
        new.replace(path)

    def append(self, path: Path, _: Path, size: int) -> None:
        with path.open("ab") as file:
            file.write(self.data(size))

    def overwrite(self, path: Path, _: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.write(self.data(min(size, path.stat().st_size)))

    def truncate(self, path: Path, _: Path, size: int) -> None:
        os.truncate(path, size)  # longer than it was, too: then with a hole

    def rename(self, path: Path, second: Path, _: int) -> None:
        path.rename(second)

    def link(self, path: Path, second: Path, _: int) -> None:
        os.link(path, second)

    def symlink(self, path: Path, second: Path, _: int) -> None:
        second.symlink_to(os.path.relpath(path, second.parent))

    def remove(self, path: Path, _: Path, __: int) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def folder_in_place(self, path: Path, second: Path, size: int) -> None:
        if path.exists() or path.is_symlink():
            self.remove(path, second, size)
        path.mkdir()

    def chmod(self, path: Path, _: Path, size: int) -> None:
        if path.is_file() and not path.is_symlink():  # a folder's permissions are kept with the next change in it
            path.chmod(0o700 if size % 2 else 0o600)

    def rotate(self, path: Path, second: Path, size: int) -> None:
        path.replace(second)
        self.write(path, second, size)

    def log(self, _: Path, __: Path, size: int) -> None:
        self.append(self.folder / LOG, self.folder, size)


def tick(folder: Path) -> None:
    """Until the system's clock of files goes on: in reality seconds are between a look and a change that counts."""
    probe = folder / "clock"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()


def state(folder: Path) -> dict[str, Any]:
    """Everything in the folder, by path, but for the log; hard links know their first name."""
    found: dict[str, Any] = {}
    first: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        name, facts = str(path.relative_to(folder)), path.lstat()
        if name == LOG:
            continue
        if stat.S_ISLNK(facts.st_mode):
            found[name] = ("link", str(path.readlink()))
        elif stat.S_ISDIR(facts.st_mode):
            found[name] = ("folder", stat.S_IMODE(facts.st_mode))
        else:
            same = first.setdefault(facts.st_ino, name)
            found[name] = ("file", stat.S_IMODE(facts.st_mode), facts.st_mtime_ns, path.read_bytes(), same)
    return found


class World:
    """Machines, of which there is one at a time, a storage, and what is known to have existed at rest."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.clock = FakeClock()
        self.repository = Repository(DirectoryStore(home / "store"), "r")
        self.versions: list[tuple[Manifest, dict[str, Any], bytes]] = []
        self.machines = self.void = 0
        self.meddling: list[Any] = []
        self.folder = home / "machine0"
        self.folder.mkdir()
        self.program = Program(self.folder)
        self.begin()

    def begin(self) -> None:
        self.content = Content(str(self.folder))
        self.watch = Watch(str(self.folder), Patterns(), self.clock.monotonic)
        self.looks: list[tuple[float, dict[str, Any]]] = []

    def do(self, *op: Any) -> None:
        """The program does this, and half a second passes."""
        self.program.do(*op)
        self.clock.advance(0.5)

    def look(self) -> bool:
        """A look, and a version if there is one to make; the program continues meanwhile. Is the folder kept?"""
        there, log = state(self.folder), self.log()
        self.looks.append((self.clock.monotonic(), there))
        look = self.watch.look()
        if look.version is None:
            return not look.changed
        assert self.rested() or look.only_logs
        if self._save(look.version, there, log):
            self.watch.kept(look.version)
            return True
        return False

    def rested(self) -> bool:
        """Was the folder the same at all looks of the last three seconds? What came and went does not count."""
        now, there = self.looks[-1]
        names = {**there, **(self.versions[-1][1] if self.versions else {})}
        since = now
        for at, then in reversed(self.looks):
            if any(then.get(name) != there.get(name) for name in names):
                break
            since = at
        return now - since >= SETTLE

    def log(self) -> bytes:
        path = self.folder / LOG
        return path.read_bytes() if path.exists() else b""

    def _save(self, version: Scan, there: dict[str, Any], log: bytes) -> bool:
        try:
            self.meddle()
            capture = FolderCapture(str(self.folder), self.content, {PART: version})
        except FileChanged as error:
            self.void += 1
            self.watch.missed(error.path, error.why)
            return False
        number = len(self.versions) + 1
        try:
            encoded = encode_folder(capture.parts)
            self.meddle()
            blobs, _ = self.repository.blobs.put_all(encoded.packs, "0" * 8, self.meddle)
            manifest = Manifest(
                id=f"{number:012}-{'0' * 8}",
                run="r",
                session="0" * 8,
                fence=1,
                progress=Progress(step=number),
                blobs=blobs,
                parts=encoded.parts,
                framework=FOLDER,
            )
            self.repository.commit(manifest)
            capture.stored()
        except FileChanged as error:
            self.void += 1
            self.watch.missed(error.path, error.why)
            return False
        finally:
            capture.release()
        self.versions.append((manifest, there, log))
        return True

    def meddle(self) -> None:
        """What the program does while a version is read."""
        if self.meddling:
            self.do(*self.meddling.pop(0))

    def pause(self) -> None:
        """The program pauses for long, and may go on in the moment in which a version is made."""
        self.look()
        self.clock.advance(SETTLE + 1)
        self.look()

    def rest(self) -> None:
        """The program pauses for so long that what it has by then is kept."""
        self.meddling.clear()
        self.look()
        self.pause()
        assert not self.watch.look().changed
        if self.versions:
            assert self.versions[-1][1] == state(self.folder)

    def restored(self, number: int, folder: Path) -> Manifest:
        """Put a version back, which is what was there when it was seen."""
        manifest, there, log = self.versions[number]
        folder.mkdir()
        put_back(self.repository, manifest, str(folder))
        assert state(folder) == there
        path = folder / LOG
        assert (path.read_bytes() if path.exists() else b"") == log
        return manifest

    def new_machine(self) -> None:
        """The old one is gone, with what was not kept."""
        if not self.versions:
            return
        shutil.rmtree(self.folder)
        self.machines += 1
        self.folder = self.home / f"machine{self.machines}"
        manifest = self.restored(-1, self.folder)
        self.program.folder = self.folder
        self.begin()
        found, table = scan(str(self.folder)), table_of(self.repository, manifest)
        self.content.adopt(table, stored_packs(manifest), {path: e.stamp for path, e in found.entries.items()})
        self.watch.kept(found)

    def new_session(self) -> None:
        """On the same machine, with the files as they are."""
        if not self.versions:
            return
        self.begin()
        manifest = self.versions[-1][0]
        table = table_of(self.repository, manifest)
        self.content.adopt(table, stored_packs(manifest), {})
        self.watch.kept(Scan(entries=table.entries, left_out={}))


ops = st.tuples(
    st.sampled_from([name for name in vars(Program) if not name.startswith("_") and name not in ("data", "do")]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(SIZES),
)
steps = st.one_of(
    st.tuples(st.just("do"), ops),
    st.tuples(st.just("meddling"), ops),
    st.tuples(st.sampled_from(["look", "pause", "pause", "rest", "new_machine", "new_session"]), st.none()),
)
programs = st.lists(steps, min_size=5, max_size=40)


@contextmanager
def small_blobs() -> Iterator[None]:
    """So that every rule about them is met."""
    with (
        mock.patch.object(content_module, "SMALL", 200),
        mock.patch.object(content_module, "PIECE", 1000),
        mock.patch.object(content_module, "BUNDLE", 600),
    ):
        yield


def play(program: list[tuple[str, Any]]) -> World:
    """Let it happen, then rest, and put every version back."""
    with tempfile.TemporaryDirectory() as home, small_blobs():
        world = World(Path(home))
        for name in ("last.bin", "best.bin", "d/x.bin"):
            world.do("write", name, name, 199)
        world.do("write", "n", "n", 3500)
        for what, op in program:
            if what == "meddling":
                world.meddling.append(op)
            elif what == "do":
                world.do(*op)
            else:
                getattr(world, what)()
        world.rest()
        for number in range(len(world.versions)):
            world.restored(number, Path(home) / f"back{number}")
    return world


def main() -> int:
    """Play so many programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5000)
    words = parser.parse_args()
    told = {"programs": 0, "versions": 0, "attempts that a change made void": 0}

    @settings(max_examples=words.examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(programs)
    def any_program(program: list[tuple[str, Any]]) -> None:
        world = play(program)
        told["programs"] += 1
        told["versions"] += len(world.versions)
        told["attempts that a change made void"] += world.void

    any_program()
    sys.stdout.write(f"{told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
