"""What the command line says, as text or tables for people: the same records that `--json` gives to machines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any, TypeAlias

__all__ = [
    "Record",
    "aligned",
    "exported_lines",
    "html_table",
    "list_lines",
    "local_time",
    "plain",
    "pruned_lines",
    "show_lines",
    "size_text",
    "utc_time",
    "verify_lines",
]

Record: TypeAlias = Mapping[str, Any]
"""What a command found, JSON-able."""

_HEAD = ("checkpoint", "step", "epoch", "size", "saved", "state")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def list_lines(record: Record, storage: str) -> Iterator[str]:
    """The runs of a store with their checkpoints."""
    if not record["runs"]:
        yield f"There are no runs in {storage}. Is that the right place? Say another with --storage."
    for run in record["runs"]:
        yield run["name"]
        rows = [_row(checkpoint) for checkpoint in run["checkpoints"]]
        yield from aligned([_HEAD, *rows], right=(1, 2, 3)) if rows else ["  no checkpoint yet"]
        yield from _about_newer(run["checkpoints"])


def show_lines(record: Record) -> Iterator[str]:
    """One run: its sessions, its checkpoints, and one of them from inside."""
    folder = "" if record["folder"] == record["name"] else f", folder {record['folder']}"
    yield f"{record['name']}, since {local_time(record['created'])}, in {record['storage']}{folder}"
    yield from ("", "Sessions, the latest first")
    head: Sequence[str] = ("session", "number", "machine", "process", "began")
    yield from aligned([head, *map(_session, record["sessions"])], right=(1, 3))
    yield from ("", "Checkpoints, the newest first")
    rows = [(*_row(c), c["rung"] or "", plain(c["reason"]), _pairs(c["metrics"])) for c in record["checkpoints"]]
    yield from aligned([(*_HEAD, "rung", "reason", "metrics"), *rows], right=(1, 2, 3))
    if any(checkpoint["state"] == "apart" for checkpoint in record["checkpoints"]):
        yield "  apart: not on the line of the newest checkpoint. Nothing but `colabkeep prune --apart` deletes these."
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
    """What went, or would go."""
    would = "would go" if record["dry_run"] else "are deleted"
    for checkpoint in record["checkpoints"]:
        yield f"  {checkpoint['id']}  step {checkpoint['step']}"
    count, kept = len(record["checkpoints"]), len(record["kept"])
    free = f"{size_text(record['bytes'])} in {record['files']} file(s)"
    yield f"{record['name']}: {count} checkpoint(s) and {free} {would}, {kept} checkpoint(s) stay"
    if record["kept_from_before_nan"]:
        yield f"  {record['kept_from_before_nan']} stays too: the loss is NaN or infinite since, and it is from before."
    if record["missing"]:
        would = "may be among those that go" if record["dry_run"] else "may be among those that went"
        yield f"  {record['missing'][-1]} was saved, by the diary, and is not shown now: its files {would}."
    if not record["caught_up"]:
        yield "  The slower side of the storage has not done it yet; the next session, or this command, does it."


def exported_lines(record: Record) -> Iterator[str]:
    """What was written where."""
    what = f"{record['tensors']} tensors, {size_text(record['bytes'])}, checkpoint {record['checkpoint']}"
    yield f"{record['file']}: {what}, SHA-256 {record['sha256']}"


def size_text(size: int | None) -> str:
    """Bytes in the largest unit that fits: "512 B", "1.5 MiB"; "?" for None."""
    if size is None:
        return "?"
    unit, amount = 0, float(size)
    while amount >= 1023.95 and unit < len(_UNITS) - 1:  # what would be shown as 1024.0
        unit, amount = unit + 1, amount / 1024
    return f"{size} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def local_time(seconds: object) -> str:
    """Seconds since 1970 as a local date and time (ISO 8601); "?" for what is none."""
    if not isinstance(seconds, (int, float)):
        return "?"
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a year that the calendar does not have
        return "?"


def utc_time(seconds: float | None) -> str:
    """Seconds since 1970 as date and time in UTC, to the minute: it is the same wherever it is read, and whenever."""
    try:
        return "?" if seconds is None else f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # a year that the calendar does not have
        return "?"


def plain(value: object, limit: int = 500) -> str:
    """The first `limit` characters of text from a file or a machine, without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:limit])


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """The rows as lines, a column below the other; those of the numbers in `right` end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield f"  {'  '.join(cells)}".rstrip()


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as a table of a notebook; the first one is the head."""
    head, *body = rows
    lines = [_html_row("th", head), *(_html_row("td", row) for row in body)]
    return f'<table style="font-size:90%">{"".join(lines)}</table>'


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align:left">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"


def _about_newer(checkpoints: Sequence[Record]) -> Iterator[str]:
    if any(checkpoint["state"] == "newer" for checkpoint in checkpoints):
        yield "  newer: a newer colabkeep than this one wrote it. Update this one: pip install -U colabkeep"


def _row(checkpoint: Record) -> tuple[str, ...]:
    epoch = "?" if checkpoint["epoch"] is None else str(checkpoint["epoch"])
    size, saved = size_text(checkpoint["bytes"]), local_time(checkpoint["created"])
    return checkpoint["id"], str(checkpoint["step"]), epoch, size, saved, checkpoint["state"]


def _session(session: Record) -> tuple[str, ...]:
    machine, process = (plain("?" if session[name] is None else session[name]) for name in ("host", "pid"))
    return session["session"], str(session["fence"]), machine, process, local_time(session["started"])


def _inside(checkpoint: Record) -> Iterator[str]:
    origin = f"{plain(checkpoint['framework'])}, colabkeep {plain(checkpoint['version'])}"
    before = f", after {plain(checkpoint['parent'])}" if checkpoint["parent"] else ""
    yield from ("", f"Checkpoint {checkpoint['id']}, written by {origin}{before}")
    if checkpoint["problem"] is not None:
        yield f"  {plain(checkpoint['problem'])}"
    parts = [(plain(part["name"]), str(part["tensors"]), size_text(part["bytes"])) for part in checkpoint["parts"]]
    yield from aligned([("part", "tensors", "size"), *parts], right=(1, 2))
    yield from ("", "What its bits depend on")
    yield from aligned([(plain(name), plain(value)) for name, value in checkpoint["fingerprint"].items()])


def _pairs(metrics: Mapping[str, object]) -> str:
    return ", ".join(f"{plain(name)} {_number(value)}" for name, value in metrics.items())


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else plain(value)
