"""A version of a folder, stored in a real store and put back: the same bytes, and no more of them sent than changed."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported
from colabkeep.core.manifest import FOLDER, Manifest, Progress
from colabkeep.core.state import Stale
from colabkeep.keep import content as content_module
from colabkeep.keep.content import Content
from colabkeep.keep.tree import Scan, scan
from colabkeep.keep.version import PART, FolderCapture, encode_folder, put_back, stored_packs, table_of
from colabkeep.stores.local import DirectoryStore


class Kept:
    """A folder and its versions in a store, without any session."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "out"
        self.folder.mkdir()
        self.repository = Repository(DirectoryStore(tmp_path / "store"), "r")
        self.content = Content(str(self.folder))
        self.number = 0

    def save(self, found: Scan | None = None) -> tuple[Manifest, int]:
        """A version of what is there, or was found; and the bytes that were written for it."""
        found = scan(str(self.folder)) if found is None else found
        capture = FolderCapture(str(self.folder), self.content, {PART: found})
        try:
            encoded = encode_folder(capture.parts)
            blobs, written = self.repository.blobs.put_all(encoded.packs, "0" * 8, lambda: None)
        finally:
            capture.release()
        self.number += 1
        manifest = Manifest(
            id=f"{self.number:012}-{'0' * 8}",
            run="r",
            session="0" * 8,
            fence=1,
            progress=Progress(step=self.number),
            blobs=blobs,
            parts=encoded.parts,
            framework=FOLDER,
        )
        self.repository.commit(manifest)
        capture.stored()
        return manifest, written


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def back(kept: Kept, manifest: Manifest, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    put_back(kept.repository, manifest, str(folder))
    assert scan(str(folder)).entries == table_of(kept.repository, manifest).entries
    return files(folder)


def test_each_version_comes_back_as_it_was(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of all sizes that are replaced, appended to, cut, removed, renamed and punched; blobs are made small, so
    that every rule about them is met."""
    monkeypatch.setattr(content_module, "SMALL", 200)
    monkeypatch.setattr(content_module, "PIECE", 1000)
    monkeypatch.setattr(content_module, "BUNDLE", 600)
    chance = random.Random(5)
    versions: list[tuple[Manifest, dict[str, bytes]]] = []
    for number in range(25):
        for _ in range(chance.randrange(1, 6)):
            path = kept.folder / f"d{chance.randrange(3)}" / f"f{chance.randrange(9)}"
            path.parent.mkdir(exist_ok=True)
            match chance.randrange(5):
                case 0 | 1:
                    path.write_bytes(chance.randbytes(chance.choice((0, 1, 50, 199, 200, 999, 3000, 7000))))
                case 2:
                    with path.open("ab") as file:
                        file.write(chance.randbytes(chance.randrange(400)))
                case 3:
                    path.unlink(missing_ok=True)
                case 4 if path.exists():
                    path.rename(kept.folder / f"moved{number}")
        versions.append((kept.save()[0], files(kept.folder)))
        if number == 12:  # another session, which begins with what the last version says
            table = table_of(kept.repository, versions[-1][0])
            kept.content = Content(str(kept.folder))
            kept.content.adopt(table, stored_packs(versions[-1][0]), {})
    for number, (manifest, then) in enumerate(versions):
        assert back(kept, manifest, tmp_path / f"back{number}") == then


def test_what_did_not_change_is_not_written_again(kept: Kept) -> None:
    (kept.folder / "best.pt").write_bytes(os.urandom(3_000_000))
    (kept.folder / "last.pt").write_bytes(os.urandom(2_000_000))
    (kept.folder / "args.yaml").write_bytes(b"epochs: 3")
    assert kept.save()[1] > 5_000_000
    assert kept.save()[1] < 1000
    (kept.folder / "last.pt").write_bytes(os.urandom(2_000_000))
    assert 2_000_000 < kept.save()[1] < 2_001_000


def test_a_log_that_grows_is_not_stored_whole_each_time(kept: Kept) -> None:
    """Each byte is written a few times in all, and not once for each version."""
    written = 0
    for _ in range(64):
        with (kept.folder / "train.log").open("ab") as log:
            log.write(os.urandom(1_000_000))
        manifest, size = kept.save()
        written += size
    assert len(manifest.blobs) < 12
    assert written < 8 * 64_000_000  # whole each time it would be 32 times


def test_what_a_session_before_stored_is_found(kept: Kept) -> None:
    """Nothing but the table is written, though every file is read again."""
    for number in range(300):
        (kept.folder / f"sample{number}.png").write_bytes(os.urandom(1000))
    (kept.folder / "last.pt").write_bytes(os.urandom(3_000_000))
    manifest, _ = kept.save()
    kept.content = Content(str(kept.folder))
    kept.content.adopt(table_of(kept.repository, manifest), stored_packs(manifest), {})
    again, written = kept.save()
    assert again.blobs[1:] == manifest.blobs[1:]
    assert written < 20_000


def test_many_small_files_are_few_blobs_and_stay_few(kept: Kept) -> None:
    for number in range(2000):
        (kept.folder / f"{number}.txt").write_bytes(b"%d" % number)
    assert len(kept.save()[0].blobs) == 2
    for number in range(30):
        (kept.folder / f"{number}.txt").write_bytes(b"changed")
        assert len(kept.save()[0].blobs) <= 12


def test_a_hole_stays_a_hole(kept: Kept, tmp_path: Path) -> None:
    """Its size comes back, and neither disk nor storage is filled with zeros."""
    with (kept.folder / "sparse").open("wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
    manifest, written = kept.save()
    assert written < 2_000_000
    assert back(kept, manifest, tmp_path / "back") == files(kept.folder)
    assert (tmp_path / "back/sparse").stat().st_blocks * 512 < 2_000_000


def test_a_file_system_that_does_not_tell_of_holes_loses_nothing(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all of the file is read: what is not known to be a hole is none."""

    def lseek(*_: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    (kept.folder / "last.pt").write_bytes(os.urandom(3_000_000))
    monkeypatch.setattr(os, "lseek", lseek)
    manifest, written = kept.save()
    assert written > 3_000_000
    assert back(kept, manifest, tmp_path / "back") == files(kept.folder)


@pytest.mark.parametrize("when", ["hashed", "written"])
@pytest.mark.parametrize("how", ["overwritten", "truncated", "replaced", "deleted"])
def test_a_file_that_changes_while_it_is_read_makes_no_version(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, how: str
) -> None:
    """Neither while its digest is computed nor while it is written. One that is deleted or replaced is still there."""
    path = kept.folder / "last.pt"
    path.write_bytes(os.urandom(3_000_000))
    read, readings = os.pread, []

    def pread(descriptor: int, size: int, at: int) -> bytes:
        data = read(descriptor, size, at)
        readings.append(at)
        if len(readings) == (1 if when == "hashed" else 2):
            change(path, how)
        return data

    monkeypatch.setattr(content_module, "SLICE", 10_000_000)
    monkeypatch.setattr(os, "pread", pread)
    if how in ("deleted", "replaced"):  # the file is still open: it is stored as it was seen
        before = path.read_bytes()
        manifest, _ = kept.save()
        assert back(kept, manifest, tmp_path / "back")["last.pt"] == before
        return
    with pytest.raises(Stale):
        kept.save()
    assert kept.repository.ids() == set()


def change(path: Path, how: str) -> None:
    match how:
        case "overwritten":
            with path.open("r+b") as file:
                file.write(b"new")
        case "truncated":
            os.truncate(path, 1000)
        case "replaced":
            path.with_name("new").write_bytes(b"new")
            path.with_name("new").rename(path)
        case "deleted":
            path.unlink()


def test_a_blob_that_was_lost_is_written_again(kept: Kept) -> None:
    """It was to be referred to only; the files are read again for the next version."""
    (kept.folder / "last.pt").write_bytes(os.urandom(3_000_000))
    manifest, _ = kept.save()
    there = scan(str(kept.folder))
    kept.content = Content(str(kept.folder))
    stamps = {path: entry.stamp for path, entry in there.entries.items()}
    kept.content.adopt(table_of(kept.repository, manifest), stored_packs(manifest), stamps)
    for blob in manifest.blobs[1:]:
        kept.repository.blobs.delete(blob.file)
    with pytest.raises(Stale):
        kept.save()
    assert kept.save()[1] > 3_000_000


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_blob_is_never_put_back(kept: Kept, tmp_path: Path, damage: str) -> None:
    (kept.folder / "last.pt").write_bytes(os.urandom(3_000_000))
    manifest, _ = kept.save()
    (blob,) = (tmp_path / "store").rglob(manifest.blobs[1].file)
    blob.chmod(0o600)
    data = bytearray(blob.read_bytes())
    data[1_000_000] ^= 1
    blob.write_bytes(data[:2_000_000] if damage == "cut" else data)
    (tmp_path / "back").mkdir()
    with pytest.raises(CheckpointDamaged):
        put_back(kept.repository, manifest, str(tmp_path / "back"))


def test_a_trainings_checkpoint_is_no_version_of_a_folder(kept: Kept) -> None:
    (kept.folder / "x").write_bytes(b"x")
    manifest, _ = kept.save()
    other: Any = manifest.__class__(
        **{name: getattr(manifest, name) for name in manifest.__slots__} | {"framework": "torch"}
    )
    with pytest.raises(CheckpointUnsupported, match="run_name"):
        table_of(kept.repository, other)


@pytest.mark.parametrize("earlier", [False, True])
def test_what_is_held_is_never_gathered_again(kept: Kept, tmp_path: Path, earlier: bool) -> None:
    """Many small files, one of which is being written: it stays as the last version had it, in this session and in one
    that has not made a version yet, and the version is made."""
    for number in range(8):
        (kept.folder / f"{number}.json").write_text(f'{{"number": {number}}}')
        before, _ = kept.save()
    last = scan(str(kept.folder)).entries["3.json"]
    if earlier:
        kept.content, table = Content(str(kept.folder)), table_of(kept.repository, before)
        kept.content.adopt(table, stored_packs(before), {})
        last = table.entries["3.json"]
    (kept.folder / "3.json").write_text('{"num')
    for number in range(8, 24):
        (kept.folder / f"{number}.json").write_text(f'{{"number": {number}}}')
        found = scan(str(kept.folder))
        held = Scan(entries={**found.entries, "3.json": last}, left_out={})
        made, _ = kept.save(held)
    put = files(kept.folder) | {"3.json": b'{"number": 3}'}
    (tmp_path / "back").mkdir()
    put_back(kept.repository, made, str(tmp_path / "back"))
    assert files(tmp_path / "back") == put
