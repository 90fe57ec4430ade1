"""The record whose presence makes a checkpoint exist: a sealed JSON text (see `layout`); how far the run had come,
and what its losses prove of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, NamedTuple

from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported
from colabkeep.core.layout import BLOB_FILE, CHECKPOINT_ID, SMALL, id_parts, is_amount, seal, unseal


class Progress(NamedTuple):
    """A position between two optimizer steps, counted over the whole run.

    `epoch` is the epoch under way, from 0; at the end of epoch *e* it is *e + 1* with
    `batches == 0`. `step` counts optimizer updates, `batches` and `epoch_samples` what the training
    loop has consumed of this epoch (loader workers run ahead; what they prefetched is not
    counted), `samples` what it consumed in all, `seconds` the training time of all sessions.
    """

    epoch: int = 0
    step: int = 0
    batches: int = 0
    epoch_samples: int = 0
    samples: int = 0
    seconds: float = 0.0


# What a format promises: each is read for ever, by its own reader. A field may join a format at any time, if it has a
# default: who does not know it keeps it as it is, and a checkpoint that was written without it has the default. What an
# older version must not read as if nothing had changed is a new format, which it calls newer than itself, never
# damaged.


FORMAT = 1
"""The format this version writes, and the newest it reads."""


FOLDER = "folder"
"""What a version of another program's folder names as its framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """One pack of tensors: digest and size of its bytes, and its file name in `blobs/`.

    The name is the digest; a copy written because the first one was found damaged carries the
    session's id behind it.
    """

    sha256: str
    size: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A committed checkpoint.

    `fence` and `session` say which life of the machine wrote it; checkpoints are ordered by
    (fence, session, step, ordinal): of two sessions that took one number in the same moment, the lease of the one whose
    name sorts last holds. `parts` maps each part of the state to its typed tree, in which a tensor is
    a blob's number in `blobs` and a key in it. `metrics` were measured at this very step. `reason` is
    why it was saved, `fingerprint` what later bits depend on, `settings` what the session was told that they do not
    depend on; `parent` the checkpoint before it in its line, `lineage` the earlier sessions of that line, each with the
    step at which the next one took over; `created` in seconds since 1970 (UTC). `unknown`: fields of a newer version,
    by name, those of `progress` under that name and those of each of the `blobs` in a list; written again as they are.
    `origin`: size and digest of the file it was read from, which need not be those of `to_bytes` where another version
    wrote it.
    """

    id: str
    run: str
    session: str
    fence: int
    progress: Progress
    blobs: tuple[BlobRef, ...]
    parts: Mapping[str, Any]
    framework: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    parent: str | None = None
    lineage: tuple[tuple[str, int], ...] = ()
    version: str = ""
    format: int = FORMAT
    unknown: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[int, str] | None = field(default=None, compare=False, repr=False)

    @property
    def total_bytes(self) -> int:
        """Size of all its blobs, in bytes."""
        return sum(blob.size for blob in self.blobs)

    @property
    def order(self) -> tuple[int, str, int, int]:
        """Sorts manifests from the oldest to the newest: a later session always follows an earlier one."""
        return self.fence, self.session, self.progress.step, id_parts(self.id)[2]

    def needs(self, folder: str) -> dict[str, tuple[int, str]]:
        """The blobs without which it is worth nothing, where the run lies in `folder`: object → size and SHA-256."""
        return {f"{folder}/blobs/{blob.file}": (blob.size, blob.sha256) for blob in self.blobs}

    def to_bytes(self) -> bytes:
        """The text of the file, with its digest."""
        unknown = dict(self.unknown)
        beside = unknown.pop("blobs", [{}] * len(self.blobs))
        record: dict[str, Any] = {name: getattr(self, name) for name in _KNOWN}
        record["progress"] = {**self.progress._asdict(), **unknown.pop("progress", {})}
        record["blobs"] = [{**asdict(blob), **more} for blob, more in zip(self.blobs, beside, strict=True)]
        record["metrics"] = {name: _number_out(value) for name, value in self.metrics.items()}
        return seal({**record, **unknown})

    def continues(self, other: Manifest) -> bool:
        """Does `other` lie on the line of sessions that led to this checkpoint?"""
        return self.came_by(other.session, other.progress.step)

    def came_by(self, session: str, step: int) -> bool:
        """Does a checkpoint of that session at that step lie there?"""
        return session == self.session or step <= dict(self.lineage).get(session, -1)

    @staticmethod
    def from_bytes(data: bytes, *, id: str, whole: bool = True) -> Manifest:
        """Read a manifest that may be damaged or hostile; `id` is what its file name says. Not `whole`: without what
        names its tensors, with few containers at a time, for who only sees that it can be read: thousands of them would
        bring the garbage collector's great round nearer, which stops training.

        Raises:
            CheckpointDamaged: not the text that was written, or not a manifest.
            CheckpointUnsupported: a newer format.
        """
        if len(data) > SMALL:
            raise _damaged(id, "it is too large to be one")
        try:
            record = unseal(data, None if whole else _without_tensors)
        except ValueError as error:
            raise _damaged(id, str(error)) from error
        if _is_count(record.get("format")) and record["format"] > FORMAT:
            raise CheckpointUnsupported(
                problem=f"Checkpoint {id} has format {record['format']}; this colabkeep reads up to {FORMAT}.",
                remedy="Update colabkeep (pip install -U colabkeep) and run again. Nothing was changed.",
            )
        try:
            return replace(_READERS[record["format"]](record, id), origin=(len(data), sha256(data).hexdigest()))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _damaged(id, f"a field is missing or has a wrong type ({error})") from error


_KNOWN = tuple(f.name for f in fields(Manifest) if f.name not in ("unknown", "origin"))
_POSITION = ("epoch", "step", "batches", "epoch_samples", "samples", "seconds")  # what format 1 always had


def _read_first(record: dict[str, Any], id: str) -> Manifest:
    """Format 1."""
    if record["id"] != id or not CHECKPOINT_ID.fullmatch(id):
        raise ValueError("it is of another checkpoint than its name says")
    known = {name: record[name] for name in _KNOWN if name in record}
    for name, fits in _FITS.items():
        if name in known and not fits(known[name]):
            raise TypeError(name)
    unknown = _beyond(record, _KNOWN)
    known["progress"], more = _progress(record["progress"])
    if more:
        unknown["progress"] = more
    if not id.startswith(f"{known['progress'].step:012d}-{record['session']}"):
        raise ValueError("step and session are not those of its name")
    known["blobs"] = tuple(map(_blob, record["blobs"]))
    beside = [_beyond(entry, _BLOB) for entry in record["blobs"]]
    if any(beside):
        unknown["blobs"] = beside
    known["lineage"] = tuple(_ancestor(*entry) for entry in known.get("lineage", ()))
    known["metrics"] = {name: _number_in(value) for name, value in known.get("metrics", {}).items()}
    return Manifest(**known, unknown=unknown)


_READERS: Mapping[int, Callable[[dict[str, Any], str], Manifest]] = {1: _read_first}
"""By format; none is ever taken out. It raises LookupError, TypeError or ValueError for what is no such manifest."""


def _beyond(entry: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in known}


def _without_tensors(node: dict[str, Any]) -> Any:
    match node:
        case {"$tensor": [int(), str()]} if len(node) == 1:
            return None
    return node


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_count(value: object) -> bool:
    return type(value) is int and is_amount(value)


def _is_texts(value: object) -> bool:
    return type(value) is dict and all(map(_is_text, value.values()))


# What is not looked at more closely below: whoever reads a manifest may rely on its types.
_FITS: Mapping[str, Callable[[object], bool]] = {
    "run": _is_text,
    "session": _is_text,
    "fence": _is_count,
    "blobs": lambda value: type(value) is list,
    "parts": lambda value: type(value) is dict,
    "framework": _is_text,
    "metrics": lambda value: type(value) is dict,
    "reason": _is_text,
    "fingerprint": _is_texts,
    "settings": _is_texts,
    "created": is_amount,
    "parent": lambda value: value is None or _is_text(value),
    "lineage": lambda value: type(value) is list,
    "version": _is_text,
    "format": lambda value: type(value) is int and 1 <= value <= FORMAT,
}


def _progress(entry: dict[str, Any]) -> tuple[Progress, dict[str, Any]]:
    """The position, and what this version does not know of it."""
    if not set(_POSITION) <= set(entry):
        raise ValueError("progress")
    names = Progress._fields
    known = {name: entry[name] for name in names if name in entry}
    for name, value in known.items():
        if not (is_amount if name == "seconds" else _is_count)(value):
            raise TypeError(f"progress.{name}")
    return Progress(**known), _beyond(entry, names)


def _ancestor(session: object, step: object) -> tuple[str, int]:
    if not (isinstance(session, str) and isinstance(step, int) and _is_count(step)):
        raise TypeError("lineage")
    return session, step


_BLOB = tuple(f.name for f in fields(BlobRef))


def _blob(entry: dict[str, Any]) -> BlobRef:
    blob = BlobRef(**{name: entry[name] for name in _BLOB if name in entry})
    found = BLOB_FILE.fullmatch(blob.file)
    if found is None or found[1] != blob.sha256:
        raise ValueError(f"blob name {blob.file[:80]!r}")
    if not _is_count(blob.size):
        raise ValueError("blob size")
    return blob


def _damaged(id: str, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        problem=f"The manifest of checkpoint {id} is damaged: {why}.",
        remedy="An older checkpoint is used. Nothing was deleted; `colabkeep verify` shows the whole run.",
    )


def _number_out(value: float) -> float | str:
    # JSON has no NaN or infinity.
    return value if value - value == 0 else repr(float(value))


def _number_in(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    raise TypeError(f"metric {value!r}")


@dataclass(slots=True)
class Proof:
    """How far losses are known to be finite numbers. The training thread writes it, the writer's thread reads it.

    The loss of a step is computed from the weights after the step before. So a checkpoint is proven good once the loss
    of a later step is a finite number: weights that are not finite do not become so again.

    `finite`: the last step whose loss is known to be finite, None before there is any. `broken`: the first step after
    that whose loss is not, None while there is none; `value`: what it was, "nan", "inf" or "-inf". `named`: the
    checkpoint that the user was told to go back to, which is kept though a newer one may turn out good.
    """

    finite: int | None = None
    broken: int | None = None
    value: str = ""
    named: str = field(default="", compare=False)

    def newest_good(self, line: Sequence[Manifest]) -> Manifest | None:
        """The newest of these checkpoints, oldest first, that is proven good; None where none is."""
        finite = self.finite
        if finite is None:
            return None
        return next((manifest for manifest in reversed(line) if manifest.progress.step < finite), None)


def stored_proof(manifest: Manifest) -> Proof | None:
    """What was proven when a checkpoint was made, as far as its manifest tells without its tensors. None where it does
    not: it is older than this record, or its last losses had not arrived yet."""
    part = manifest.parts.get("losses")
    state = part.get("state") if isinstance(part, dict) else None
    if not isinstance(state, dict) or "finite" not in state or state.get("waiting"):
        return None
    finite, broken = (value if type(value) is int else None for value in (state["finite"], state.get("broken")))
    return Proof(finite=finite, broken=broken, value=str(state.get("value", "")))
