"""What displays say of each event, and of each line of a journal, as a sentence. `said` puts it into the reader's
language where it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from colabkeep.checkpoint.journal import Line
from colabkeep.core.arguments import duration_text
from colabkeep.core.events import DurabilityTold, Event, StoreDegraded, journal_line
from colabkeep.core.language import said
from colabkeep.session.state import as_number
from colabkeep.ui.text import local_time, size_text

REASONS = {
    "interrupt": "you interrupted it",
    "sigterm": "the service ended the process",
    "sighup": "the terminal was closed",
    "max_time": "its time limit was reached",
    "session_end": "the session was about to end",
    "left": "the loop was left early",
}
"""Why a session ended, by the word that `RunStopped` has; "error" and "finished" have sentences of their own."""


def sentence(event: Event, *, folder: bool = False) -> str | None:
    """What an event says to people, on one line or more; None for one that says nothing by itself. `folder`: the run is
    another program's folder, with versions in place of checkpoints."""
    if isinstance(event, DurabilityTold):
        return event.durability.sentence
    record = journal_line(event, 0.0) if type(event).__name__ in _SENTENCES else None
    text = None if record is None else message_of(Line(record), folder=folder)
    if isinstance(event, StoreDegraded) and event.durability is not None:
        return f"{text}\n{event.durability.sentence}"
    return text


def clause_as_sentence(clause: str) -> str:
    """With a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:]}{'' if clause.endswith('.') else '.'}"


def message_of(line: Line, *, folder: bool = False) -> str | None:
    """What a line of the journal says to people, as the event did; a question mark is what it does not have."""
    tell = (_OF_FOLDERS if folder else _SENTENCES).get(line.event) or _SENTENCES.get(line.event)
    return None if tell is None else tell(line)


def _started(line: Line) -> str:
    return _with_promise(line, f"run {line.text('run')!r}, checkpoints in {line.text('storage')}")


def _started_keeping(line: Line) -> str:
    keeps, run, storage = (line.text(name) for name in ("keeps", "run", "storage"))
    return _with_promise(line, f"the folder {keeps} is kept as {run!r} in {storage}")


def _with_promise(line: Line, where: str) -> str:
    reasons = (f"- {reason}" for reason in line.names("reasons"))
    return "\n".join(filter(None, (where, line.text("promise"), *reasons, line.text("unseen"), line.text("precision"))))


def _not_finite(line: Line) -> str:
    word, step = "NaN" if line.text("value") == "nan" else said("infinite"), line.count("step")
    back = way_back(line.text("checkpoint"))
    return f"THE LOSS IS {word} since step {step}. Unless it recovers, all further training is wasted.\n{back}"


def way_back(checkpoint: str | None, *, ended: bool = False) -> str:
    """What to do where the loss is not finite. `checkpoint`: the newest one from before."""
    if not checkpoint:
        return "There is no checkpoint from before that step."
    if ended:
        return f'To go back, run the cell with resume="{checkpoint}", the newest checkpoint from before. It is kept.'
    return (
        f'To go back, stop training and run the cell with resume="{checkpoint}", the newest checkpoint from before. It '
        "is kept."
    )


def _restored(line: Line) -> str:
    at = Line(_mapping(line, "progress"))
    epoch, step = at.count("epoch") or 0, at.count("step")
    # A loop over steps counts no epochs.
    place = f"epoch {epoch + 1}, step {step}" if epoch or at.count("batches") else f"step {step}"
    return f"resumed from {place}, saved {_duration(line, 'age')} ago: at most that much training is repeated"


def _put_back(line: Line) -> str:
    version = Line(_mapping(line, "progress")).count("step")
    return f"version {version} was restored. It was made {_duration(line, 'age')} ago"


def _complete(line: Line) -> str:
    since = local_time(line.number("since"), "%Y-%m-%d %H:%M")
    return (
        f"complete since {since}, at step {line.count('step')}: nothing is trained. To train longer, raise "
        f"{line.text('length')}. For a new training, choose another run_name"
    )


def _epoch_done(line: Line) -> str:
    metrics = _mapping(line, "metrics")
    shown = "".join(f", {name} {v if isinstance(v, str) else f'{as_number(v):.4g}'}" for name, v in metrics.items())
    return said(f"epoch {(line.count('epoch') or 0) + 1} done, step {_step(line)}") + shown


def _failing(line: Line) -> str:
    error, seconds = line.text("error") or "?", _duration(line, "retry_in")
    return f"NOT SAVED at step {_step(line)}: {error}\nTraining continues; the next attempt is in {seconds}."


def _failing_version(line: Line) -> str:
    error, seconds = line.text("error") or "?", _duration(line, "retry_in")
    return f"NO VERSION could be made: {error}\nThe program continues; the next attempt is in {seconds}."


def _postponed(line: Line) -> str:
    return (
        f"the save due at step {_step(line)} is postponed: the previous one is still being written. Saves come faster "
        "than the storage can take them, so some are left out (said once)"
    )


def _deadline(line: Line) -> str:
    return _ending(
        line,
        "training stops here, so that nothing is lost. Run the notebook again to continue.",
        f"it is saved now{_takes(line)}, and continues for as long as the machine lives",
    )


def _deadline_of_folder(line: Line) -> str:
    return _ending(
        line,
        "the program is interrupted now, so that its last version is whole. Run the same again to resume.",
        f"a version is made now if the files are at rest{_takes(line)}, and the program continues for as long as the "
        "machine lives",
    )


def _ending(line: Line, ends: str, goes_on: str) -> str:
    then = ends if line.record.get("ends") is True else goes_on
    return f"this session ends in at most {_duration(line, 'seconds')}: {then}"


def _takes(line: Line) -> str:
    return f" (safe in about {_duration(line, 'takes')})" if (line.number("takes") or 0.0) >= 1.0 else ""


def _catching_up(line: Line) -> str:
    waiting, speed = line.count("waiting_bytes"), line.number("bytes_per_second")
    left = "" if waiting is None else f", {size_text(waiting)} left"
    if waiting and speed:
        left = f", {size_text(waiting)} left at {size_text(round(speed))} a second"
    url, seconds = line.text("url"), _duration(line, "left")
    return f"waiting for the upload to {url}{left}, for at most {seconds} more (flush_timeout=…)"


def _space(line: Line) -> str:
    free, url, size = _room(line)
    then = _then(line, f"only {line.count('keeps')} checkpoint(s) are kept from now on. Make room there to keep more")
    return f"{free} are free in {url}, and a save takes {size}: {then}"


def _space_for_versions(line: Line) -> str:
    free, url, size = _room(line)
    then = _then(line, f"only {line.count('keeps')} version(s) are kept from now on. Make room there to keep more")
    return f"{free} are free in {url}, and a version takes up to {size}: {then}"


def _room(line: Line) -> tuple[str, str, str]:
    return size_text(line.count("free_bytes")), line.text("url") or "?", size_text(line.count("save_bytes"))


def _then(line: Line, fewer: str) -> str:
    full = line.number("full_at")
    if line.count("keeps") is not None:
        return fewer
    if full is None:
        return "the next one may not fit. Make room there, or keep fewer (keep_last=…)"
    hour, after, day = local_time(full, "%H:00"), local_time(full + 3600, "%H:00"), local_time(full, "%Y-%m-%d")
    return (
        f"it will be FULL between {hour} and {after} on {day} at this run's pace. Make room there, or keep fewer "
        "(keep_last=…)"
    )


def _stopped(line: Line) -> str:
    reason, since = line.text("reason"), line.count("not_finite_since")
    where = f"step {_step(line)}; newest checkpoint: {line.text('checkpoint') or said('none')}"
    if reason not in ("finished", "max_steps"):
        return f"stopped ({reason}) at {where}. Run the same cell again to continue."
    if since is None:
        return f"finished at {where}"
    return f"ended at {where}. The loss has not been a finite number since step {since}, so these weights are useless."


def _stopped_keeping(line: Line) -> str:
    where = "There is no version." if line.text("checkpoint") is None else f"Newest version: {_step(line)}."
    if line.text("reason") in ("finished", "max_steps"):
        return f"the program has ended. {where}"
    reason, error = line.text("reason") or "?", line.text("error")
    why = said("the program failed" if reason == "error" else REASONS.get(reason, reason))
    why = f"{why} ({said(error)})" if error else why
    return f"stopped: {why}. {where} Run the same again to resume."


def _step(line: Line) -> str:
    return "?" if line.place is None else str(line.place[0])


def _mapping(line: Line, name: str) -> Mapping[str, Any]:
    value = line.record.get(name)
    return value if isinstance(value, dict) else {}


def _duration(line: Line, name: str) -> str:
    return duration_text(line.number(name) or 0.0)


_SENTENCES: Mapping[str, Callable[[Line], str]] = {
    "AlreadyComplete": _complete,
    "CadenceChosen": lambda line: line.text("text") or "?",
    "CatchingUp": _catching_up,
    "CheckpointSetAside": lambda line: (
        f"skipped checkpoint {line.text('checkpoint') or '?'}: {line.text('reason') or '?'}"
    ),
    "DeadlineNear": _deadline,
    "EpochDone": _epoch_done,
    "LossNotFinite": _not_finite,
    "LossRecovered": lambda line: f"the loss is a finite number again since step {line.count('step')}",
    "MachineChecked": lambda line: "\n".join(line.names("lines")),
    "Noted": lambda line: line.text("text") or "?",
    "Restored": _restored,
    "RestoredInexactly": lambda line: f"not bit for bit: {line.text('reason') or '?'}",
    "RunStarted": _started,
    "RunStopped": _stopped,
    "SaveFailing": _failing,
    "SaveSkipped": _postponed,
    "SpaceShort": _space,
    "StoreDegraded": lambda line: f"{line.text('url') or '?'}: {said(line.text('detail') or '?')}",
}
"""By the name of the event in the journal."""

_OF_FOLDERS: Mapping[str, Callable[[Line], str]] = {
    "DeadlineNear": _deadline_of_folder,
    "Restored": _put_back,
    "RunStarted": _started_keeping,
    "RunStopped": _stopped_keeping,
    "SaveFailing": _failing_version,
    "SaveSkipped": lambda line: f"version {_step(line)} is postponed: the one before is still being written",
    "SpaceShort": _space_for_versions,
}
"""The same of another program's folder, where that is another sentence."""
