"""What the command line says, as text or tables for people: the same records that `--json` gives to machines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias
from unicodedata import east_asian_width

from colabkeep.core.arguments import duration_text
from colabkeep.core.language import language, said
from colabkeep.core.manifest import FOLDER

Record: TypeAlias = Mapping[str, Any]
"""What a command found, JSON-able."""


class Report:
    """What people and programs are shown: printed it is `lines`, for programs `to_dict`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(said, self.lines()))

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        raise NotImplementedError

    def to_dict(self) -> Record:
        """The report for programs."""
        raise NotImplementedError

    def to_json(self) -> str:
        """`to_dict` as one line of strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)


_HEAD = ("checkpoint", "step", "epoch", "size", "saved", "state")
_FOLDER_HEAD = ("version", "number", "size", "made", "state")
_METRICS = 4  # in the line of a run
_ENDS = {"open": "still training, or ended unexpectedly", "interrupted": "stopped", "diverged": "ended with NaN"}
_FILES = 100  # of a version that are listed as text
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def list_lines(record: Record, storage: str, now: float) -> Iterator[str]:
    """The runs of a store with their checkpoints, at `now` (seconds since 1970, UTC)."""
    if not record["runs"]:
        yield f"There are no runs in {storage}. Is that the right place? Name another with --storage."
    for run in record["runs"]:
        age = "" if run["last_seen"] is None else f", {duration_text(max(0.0, now - run['last_seen']))} ago"
        measured = f": {_pairs(dict(list(run['metrics'].items())[:_METRICS]))}" if run["metrics"] else ""
        yield f"{run['name']}  {said(_ENDS.get(run['state'], run['state']))}{age}{measured}"
        head, rows, right = checkpoint_table(run["checkpoints"])
        yield from aligned([head, *rows], right=right) if rows else ["  no checkpoint yet"]
        yield from _about_newer(run["checkpoints"])


def show_lines(record: Record) -> Iterator[str]:
    """One run: its sessions, its checkpoints, and one of them from inside."""
    folder = "" if record["folder"] == record["name"] else f", folder {record['folder']}"
    yield f"{record['name']}, since {local_time(record['created'])}, in {record['storage']}{folder}"
    yield from ("", "Sessions, the latest first")
    head: Sequence[str] = ("session", "number", "machine", "process", "began")
    yield from aligned([head, *map(_session, record["sessions"])], right=(1, 3))
    found = record["checkpoints"]
    versions = of_folder(found)
    yield from ("", f"{said('Versions' if versions else 'Checkpoints')}, the newest first")
    head, rows, right = checkpoint_table(found)
    head = (*head, "durability", "reason") if versions else (*head, "durability", "reason", "metrics")
    more = (
        (said(c["level"] or ""), said(plain(c["reason"])), *(() if versions else (_pairs(c["metrics"]),)))
        for c in found
    )
    yield from aligned([head, *((*row, *rest) for row, rest in zip(rows, more, strict=True))], right=right)
    if any(checkpoint["state"] == "apart" for checkpoint in record["checkpoints"]):
        yield "  apart: not on the line of the newest checkpoint. Only `colabkeep prune --apart` deletes these."
    yield from _about_newer(record["checkpoints"])
    yield from ("", plain(record["durability"]["sentence"], limit=2000))
    if record["checkpoint"] is not None:
        yield from _inside(record["checkpoint"])


def verify_lines(record: Record) -> Iterator[str]:
    """What was found that is not as it was written, and a summary for each run."""
    for run in record["runs"]:
        for finding in run["findings"]:
            where = f" in {plain(finding['place'])}" if finding["place"] else ""
            yield f"{run['name']}/{plain(finding['file'])}{where}: {finding['state']}. {plain(finding['text'])}"
        verdict = "all as written" if run["ok"] else "NOT all as written; nothing was changed"
        yield f"{run['name']}: {run['files']} files, {size_text(run['bytes'])}, {verdict}"


def pruned_lines(record: Record) -> Iterator[str]:
    """What was deleted, or would be."""
    would = "would be deleted" if record["dry_run"] else "are deleted"
    for checkpoint in record["checkpoints"]:
        yield f"  {checkpoint['id']}  {'version' if of_folder([checkpoint]) else 'step'} {checkpoint['step']}"
    count, kept = len(record["checkpoints"]), len(record["kept"])
    free = f"{size_text(record['bytes'])} in {record['files']} file(s)"
    yield f"{record['name']}: {count} checkpoint(s) and {free} {would}, {kept} checkpoint(s) stay"
    if record["kept_from_before_nan"]:
        yield f"  {record['kept_from_before_nan']} stays too: the loss is NaN or infinite since, and it is from before."
    if record["missing"]:
        would = (
            "may be among those that would be deleted" if record["dry_run"] else "may be among those that are deleted"
        )
        yield f"  {record['missing'][-1]} was saved, as the journal says, and is not listed now: its files {would}."
    if not record["caught_up"]:
        yield "  The remote storage has not done it yet; the next session does it, or run this command again."


def copied_lines(record: Record) -> Iterator[str]:
    """For people."""
    dry = record["dry_run"]
    for run in record["runs"]:
        called = "" if run["name"] == run["new_name"] else f" as {plain(run['new_name'])}"
        count, size = len(run["checkpoints"]), f"{size_text(run['bytes'])} in {run['files']} file(s)"
        there = f"; {run['there']} file(s) are there already" if run["there"] else ""
        what = "would be copied" if dry else "copied"
        yield f"{plain(run['name'])}: {count} checkpoint(s), {size} {what} to {run['target']}{called}{there}"
        for id, why in run["left_out"].items():
            yield f"  LEFT OUT {id}: {plain(why)}"
        if run["verified"]:
            yield "  Verified: each file there has the bytes that were read here."
        elif not dry:
            yield "  NOT VERIFIED: the target has not taken all of it yet. Keep the source, and run this command again."
            yield from [f"  {plain(run['trouble'])}"] if run["trouble"] else []


def exported_lines(record: Record) -> Iterator[str]:
    """What was written where."""
    what = f"{record['tensors']} tensors, {size_text(record['bytes'])}, checkpoint {record['checkpoint']}"
    yield f"{record['file']}: {what}, SHA-256 {record['sha256']}"
    if record.get("uncompiled"):
        own = plain(record["uncompiled"], 200)
        yield (
            f"The model in the file is not compiled, because a part of compile is your own: {own}. Compile the "
            "model before you train it."
        )


def exported_folder_lines(record: Record) -> Iterator[str]:
    """What was written where, of a folder."""
    what = f"{record['files']} file(s), {size_text(record['bytes'])}, version {record['checkpoint']}"
    yield f"{record['folder']}: {what}, every byte checked"


def size_text(size: int | None) -> str:
    """Bytes in the largest unit that fits: "512 B", "1.5 MiB"; "?" for None."""
    if size is None:
        return "?"
    unit, amount = 0, float(size)
    while amount >= 1023.95 and unit < len(_UNITS) - 1:  # what would be shown as 1024.0
        unit, amount = unit + 1, amount / 1024
    return f"{size} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def local_time(seconds: object, form: str | None = None) -> str:
    """Seconds since 1970 as a local date and time, in ISO 8601 unless `form` says otherwise; "?" for what is none."""
    return _time(seconds, None, form)


def utc_time(seconds: object, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """Seconds since 1970 as date and time in UTC: it is the same wherever it is read, and whenever; "?" as above."""
    return _time(seconds, timezone.utc, form)


def _time(seconds: object, zone: timezone | None, form: str | None) -> str:
    if not isinstance(seconds, (int, float)):
        return "?"
    try:
        time = datetime.fromtimestamp(seconds, zone)
        return time.strftime(form) if form else time.astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a year that the calendar does not have
        return "?"


def plain(value: object, limit: int = 500) -> str:
    """The first `limit` characters of text from a file or a machine, without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:limit])


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """The rows as lines, a column below the other; those of the numbers in `right` end together."""
    told = language()
    # A word alone is a name, except in the head.
    shown = [
        [said(cell, told) if not number or " " in cell else cell for cell in row] for number, row in enumerate(rows)
    ]
    widths = [max(map(_columns, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        blanks = [" " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (b + c if i in right else c + b for i, (b, c) in enumerate(zip(blanks, row, strict=True)))
        yield f"  {'  '.join(cells)}".rstrip()


def _columns(text: str) -> int:
    """How wide a text is on a terminal: a Chinese character takes two columns."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)


def _about_newer(checkpoints: Sequence[Record]) -> Iterator[str]:
    if any(checkpoint["state"] == "newer" for checkpoint in checkpoints):
        yield "  newer: a newer colabkeep than this one wrote it. Update this one: pip install -U colabkeep"


def of_folder(checkpoints: Sequence[Record]) -> bool:
    """Are these versions of another program's folder?"""
    return any(checkpoint["framework"] == FOLDER for checkpoint in checkpoints)


def checkpoint_table(checkpoints: Sequence[Record]) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[int, ...]]:
    """The head and the rows of a table of checkpoints, or of versions of a folder, and which columns end together."""
    versions = of_folder(checkpoints)
    rows = []
    for each in checkpoints:
        epoch = () if versions else ("?" if each["epoch"] is None else str(each["epoch"]),)
        size, saved = size_text(each["bytes"]), local_time(each["created"])
        rows.append((each["id"], str(each["step"]), *epoch, size, saved, said(each["state"])))
    return (_FOLDER_HEAD, rows, (1, 2)) if versions else (_HEAD, rows, (1, 2, 3))


def _session(session: Record) -> tuple[str, ...]:
    machine, process = (plain("?" if session[name] is None else session[name]) for name in ("host", "pid"))
    return session["session"], str(session["fence"]), machine, process, local_time(session["started"])


def _version(checkpoint: Record) -> Iterator[str]:
    """A version of a folder: its files."""
    files = checkpoint["files"]
    before = f", after {plain(checkpoint['parent'])}" if checkpoint["parent"] else ""
    count = sum(file["kind"] == "file" for file in files)
    size = size_text(sum(file["bytes"] for file in files if not file["same_as"]))
    made = f"made by colabkeep {plain(checkpoint['version'])}{before}"
    yield from ("", f"Version {checkpoint['id']}, {made}: {count} file(s), {size}")
    rows = [(plain(_path(file)), _size(file), local_time(file["mtime"])) for file in files[:_FILES]]
    yield from aligned([("file", "size", "changed"), *rows], right=(1,))
    if len(files) > _FILES:
        yield f"  … and {len(files) - _FILES} more; --json has them all."


def _path(file: Record) -> str:
    if file["kind"] == "link":
        return f"{file['path']} → {file['target']}"
    return f"{file['path']}/" if file["kind"] == "folder" else str(file["path"])


def _size(file: Record) -> str:
    if file["same_as"]:
        return f"= {plain(file['same_as'])}"
    return size_text(file["bytes"]) if file["kind"] == "file" else ""


def _inside(checkpoint: Record) -> Iterator[str]:
    if checkpoint["files"] is not None:
        yield from _version(checkpoint)
        return
    origin = f"{plain(checkpoint['framework'])}, colabkeep {plain(checkpoint['version'])}"
    before = f", after {plain(checkpoint['parent'])}" if checkpoint["parent"] else ""
    yield from ("", f"Checkpoint {checkpoint['id']}, written by {origin}{before}")
    if checkpoint["problem"] is not None:
        yield f"  {plain(checkpoint['problem'])}"
    parts = [(plain(part["name"]), str(part["tensors"]), size_text(part["bytes"])) for part in checkpoint["parts"]]
    yield from aligned([("part", "tensors", "size"), *parts], right=(1, 2))
    yield from ("", "What exact results depend on")
    yield from aligned([(plain(name), plain(value)) for name, value in checkpoint["fingerprint"].items()])


def _pairs(metrics: Mapping[str, object]) -> str:
    return ", ".join(f"{plain(name)} {_number(value)}" for name, value in metrics.items())


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else plain(value)
