"""Every file of a run read and compared with what was written, one finding each. Changes nothing.

Small files carry their own digest, blobs have it in their name. What is gone is known from the others: manifests name
blobs, checkpoints name their session, the journal says what was committed and what was about to be pruned.
A training may go on meanwhile: what it prunes is not found missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from colabkeep.checkpoint.codec import UnknownKind, decode_part, read_layout, read_up_to, sha256_of_stream
from colabkeep.checkpoint.compaction import check_old, unpack
from colabkeep.checkpoint.durability import Commits
from colabkeep.checkpoint.journal import LOOKS, folded_since, read_segment
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported, ObjectNotFound, StoreError
from colabkeep.core.layout import BLOB_FILE, CHECKPOINT_ID, HISTORY_FILE, LEASE_FILE, NOTE, SEGMENT_FILE, SMALL, unseal
from colabkeep.core.manifest import FORMAT, Manifest
from colabkeep.core.state import HostTensor
from colabkeep.stores.base import run_of, sides

State: TypeAlias = Literal["ok", "damaged", "missing", "unreadable", "newer", "orphan", "foreign", "unsent"]
"""ok: as it was written. damaged: not so. missing: other files say that it was there. unreadable: the store failed to
read it. newer: a newer colabkeep wrote it so that this one cannot read it. orphan: a whole blob that no manifest
names, left by a save that was killed or failed. foreign: nothing that colabkeep writes; nothing reads it. unsent: a
checkpoint that is on this machine only, and not in the place that lasts."""

_NOTHING = memoryview(b"")
_ID_FILE = re.compile(rf"({CHECKPOINT_ID.pattern})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found about one file. `file` is its name inside the run, `size` in bytes as the store lists it, `text` a
    sentence for people, empty when all is well. `place`: which side of a store with two it is about, its URL."""

    file: str
    state: State
    size: int = 0
    text: str = ""
    place: str = ""


def audit(repository: Repository) -> Iterator[Finding]:
    """Read the whole run, one small file or one chunk of a large one at a time.

    There is one finding for each file that is there, as soon as it was read, then one for each that should be. Of a
    store with two sides the lasting one is read, too, and what is in front only is told: a run that reads well on the
    machine that trained it may be damaged everywhere else.
    """
    yield from _audit(repository)
    lasting = sides(repository.store)[-1]
    if lasting is not repository.store:
        yield from _audit_behind(repository, Repository(lasting, repository.run))


def _audit_behind(both: Repository, behind: Repository) -> Iterator[Finding]:
    here, there = both.ids(), behind.ids()
    for finding in _audit(behind):
        # What else seems to be missing there may be on its way.
        if finding.state in ("ok", "damaged", "unreadable") or (
            finding.state == "missing" and finding.file.startswith("blobs/")
        ):
            yield replace(finding, place=behind.store.url)
    for id in sorted(here - there):
        text = f"Checkpoint {id} is on this machine only: train the run again here, and it is sent."
        yield Finding(file=f"checkpoints/{id}.json", state="unsent", text=text, place=behind.store.url)


def _audit(repository: Repository) -> Iterator[Finding]:
    work = _Audit(repository)
    folder = repository.folder
    entries = list(repository.store.list(folder))
    # A run may have others below it, as exp has exp/lr1: those are audited by their own names.
    others = {run_of(entry.name) for entry in entries if entry.name.endswith("/run.json")} - {folder}
    own = (entry for entry in entries if not any(entry.name.startswith(f"{other}/") for other in others))
    listed = {entry.name[len(folder) + 1 :]: entry.size for entry in own}
    # Blobs come after the manifests that name them. The journal is listed when all else is read: by then it tells of
    # everything that vanished meanwhile.
    names = sorted(name for name in listed if not name.startswith("journal/"))
    for name in sorted(names, key=lambda name: name.startswith("blobs/")):
        yield from work.look(name, listed[name])
    yield from work.journal()
    yield from work.missing(listed)


class _Audit:
    """One audit: it remembers what the files say of each other."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._needs: dict[str, dict[str, int]] = {}  # checkpoint → its blobs with their sizes
        self._unread = 0  # manifests that cannot be read, so that it is not known which blobs they name
        self._fences: dict[str, str] = {}  # session → its number, as text
        self._segments: dict[str, dict[int, int]] = {}  # session → number of a segment → of the first in it
        self._parts: dict[str, State | None] = {}  # file of the journal → what it is; None: it vanished
        self._commits = Commits()
        self._folded: set[str] = set()  # leases in histories, by their names

    def look(self, name: str, size: int) -> Iterator[Finding]:
        """Read one file; nothing is said of one that vanished since it was listed."""
        try:
            state, text = self._check(name)
        except ObjectNotFound:
            return
        except StoreError as error:
            state, text = "unreadable", error.problem
        except CheckpointUnsupported as error:
            state, text = "newer", error.problem
        except CheckpointDamaged as error:
            state, text = "damaged", error.problem
        except UnknownKind as error:
            state, text = "newer", f"It is of a newer colabkeep: {error}."
        except (ValueError, RecursionError) as error:
            state, text = "damaged", f"It cannot be used: {error}."
        if name.startswith("checkpoints/") and state not in ("ok", "foreign"):
            self._unread += 1
        yield Finding(file=name, state=state, size=size, text=text)

    def journal(self) -> Iterator[Finding]:
        """Read the parts of the journal that were not read yet. A session that goes on folds them meanwhile: where one
        has vanished, they are listed again, for another has its lines now."""
        for _ in range(LOOKS):
            folded = False
            for name, size in sorted(self._repository.files("journal").items()):
                if name not in self._parts:
                    self._parts[name] = None
                    for finding in self.look(f"journal/{name}", size):
                        self._parts[name] = finding.state
                        yield finding
                    folded |= self._parts[name] is None and HISTORY_FILE.fullmatch(name) is not None
            if not folded and not self._vanished():
                return

    def _vanished(self) -> bool:
        """Is a part gone that no other one covers?"""
        gone = (SEGMENT_FILE.fullmatch(name) for name, state in self._parts.items() if state is None)
        return any(
            not any(first <= int(match[2]) < n for n, first in self._segments[match[1]].items())
            for match in gone
            if match is not None
        )

    def missing(self, listed: Mapping[str, int]) -> Iterator[Finding]:
        """What the files say should be there and is not."""
        blobs, ids = self._repository.blobs.present(), self._repository.ids()
        if "run.json" not in listed:
            yield _lost("run.json", "It says since when the run exists; the checkpoints can be used without it.")
        leases = [*_below("lease", listed), *self._folded]
        leased = {match[2] for match in map(LEASE_FILE.fullmatch, leases) if match is not None}
        for session in sorted({id.split("-")[1] for id in ids} | set(self._segments)):
            if session not in leased:
                fence = self._fences.get(session, "?")
                yield _lost(f"lease/{fence}-{session}.json", f"It says where session {session} was trained.")
        for file in sorted({file for id in ids for file in self._needs.get(id, ()) if file not in blobs}):
            yield _lost(f"blobs/{file}", f"It is needed by {self._needing(file)}, which cannot be used.")
        present = ids | {match[1] for match in map(_ID_FILE.fullmatch, _below("checkpoints", listed)) if match}
        suspects = set(self._commits.missing(present))
        if suspects:
            yield from self.journal()  # by now it tells of those that were pruned since it was read
        gaps = list(self._gaps())
        # What the journal does not tell may have been pruned.
        if not gaps and not self._vanished() and {*self._parts.values()} <= {"ok", "foreign", None}:
            for id in sorted(suspects & set(self._commits.missing(present))):
                yield _lost(f"checkpoints/{id}.json", f"Checkpoint {id} was committed and never pruned, and is gone.")
        yield from gaps

    def _gaps(self) -> Iterator[Finding]:
        for session, firsts in sorted(self._segments.items()):
            expected = 0
            for first, n in sorted((first, n) for n, first in firsts.items()):
                if first > expected:
                    text = f"{first - expected} part(s) of the journal are missing; no checkpoint needs them."
                    yield _lost(f"journal/{session}-{expected:05d}.jsonl", text)
                expected = max(expected, n + 1)

    def _check(self, name: str) -> tuple[State, str]:
        folder, _, rest = name.partition("/")
        if name == "run.json":
            return self._run_json()
        if name == NOTE:
            unseal(self._text(name))
            return "ok", ""
        for place, pattern, check in _PLACES:
            match = pattern.fullmatch(rest) if folder == place else None
            if match is not None:
                return check(self, name, match)
        return "foreign", "It is not one of colabkeep's files; nothing reads it."

    def _run_json(self) -> tuple[State, str]:
        record = unseal(self._text("run.json"))
        if type(record.get("format")) is int and record["format"] > FORMAT:
            return "newer", f"The run is in format {record['format']}; this colabkeep knows {FORMAT}."
        if record.get("run") != self._repository.run:
            raise ValueError(f"it belongs to the run {record.get('run')!r:.200}")
        return "ok", ""

    def _lease(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        check_old(name, self._text(name))
        return "ok", ""

    def _manifest(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        manifest = Manifest.from_bytes(self._text(name), id=match[1])
        if manifest.run != self._repository.run:
            raise ValueError(f"it belongs to the run {manifest.run!r:.200}")
        self._needs[manifest.id] = {blob.file: blob.size for blob in manifest.blobs}
        self._fences[manifest.session] = f"{manifest.fence:06d}"
        self._rehearse(manifest)
        return "ok", ""

    def _rehearse(self, manifest: Manifest) -> None:
        """Decode the state without the bytes of its tensors: what a digest vouches for may still be made up."""
        try:
            layouts = [self._repository.blobs.layout(blob, manifest.id) for blob in manifest.blobs]
        except (CheckpointDamaged, CheckpointUnsupported, StoreError):
            return  # found where the blob is looked at
        bare = [
            {key: HostTensor(dtype=extent.dtype, shape=extent.shape, data=_NOTHING) for key, extent in layout.items()}
            for layout in layouts
        ]
        for node in manifest.parts.values():
            decode_part(node, bare)

    def _mark(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        if unseal(self._text(name)).get("id") != match[1]:
            raise ValueError("it is of another checkpoint than its name says")
        return "ok", ""

    def _segment(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        # As long as it is not read, nobody knows which others it covers.
        self._segments.setdefault(match[1], {})[int(match[2])] = 0
        self._read_segment(match, self._text(name))
        return "ok", ""

    def _read_segment(self, match: re.Match[str], text: bytes) -> None:
        records, number = read_segment(text), int(match[2])
        self._segments.setdefault(match[1], {})[number] = folded_since(records, number)
        self._commits.read(records)

    def _history(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        for file, text in unpack(match[0], self._text(name)).items():
            segment = SEGMENT_FILE.fullmatch(file.removeprefix("journal/"))
            if segment is None:
                check_old(file, text)
                self._folded.add(file.removeprefix("lease/"))
            else:
                self._read_segment(segment, text)
        return "ok", ""

    def _blob(self, name: str, match: re.Match[str]) -> tuple[State, str]:
        file = match[0]
        needing = self._needing(file)
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            size, digest = sha256_of_stream(reader)
        if digest != match[1]:
            use = f"{needing} cannot be used" if needing else "no checkpoint that can be read needs it"
            return "damaged", f"Its {size} bytes are not those that were written; {use}."
        for id, files in self._needs.items():
            if files.get(file, size) != size:
                return "damaged", f"It has {size} bytes, and checkpoint {id} says {files[file]}; it cannot be used."
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            read_layout(reader, size)
        if needing:
            return "ok", ""
        reason = "but a manifest cannot be read" if self._unread else "and the next training session removes it"
        return "orphan", f"No checkpoint that can be read needs it, {reason}."

    def _needing(self, file: str) -> str:
        return ", ".join(sorted(id for id, files in self._needs.items() if file in files))

    def _text(self, name: str) -> bytes:
        with self._repository.store.get(f"{self._repository.folder}/{name}") as reader:
            return read_up_to(reader, SMALL + 1)


_PLACES: tuple[tuple[str, re.Pattern[str], Callable[[_Audit, str, re.Match[str]], tuple[State, str]]], ...] = (
    ("aside", _ID_FILE, _Audit._mark),
    ("blobs", BLOB_FILE, _Audit._blob),
    ("checkpoints", _ID_FILE, _Audit._manifest),
    ("journal", HISTORY_FILE, _Audit._history),
    ("journal", SEGMENT_FILE, _Audit._segment),
    ("lease", LEASE_FILE, _Audit._lease),
)


def _below(folder: str, listed: Mapping[str, int]) -> list[str]:
    return [name.removeprefix(f"{folder}/") for name in listed if name.startswith(f"{folder}/")]


def _lost(file: str, text: str) -> Finding:
    return Finding(file=file, state="missing", text=text)
