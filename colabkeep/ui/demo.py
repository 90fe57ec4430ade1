"""`colabkeep demo`: the product in a minute. A training is killed twice and resumed; another is never interrupted; both
end with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypeAlias

from colabkeep.core.errors import ColabKeepError, MissingDependency, UsageError
from colabkeep.core.language import said
from colabkeep.session.weights import load_weights
from colabkeep.ui.terminal import MovingLine
from colabkeep.ui.text import aligned

_PROGRAM = "colabkeep.examples.digits"  # says what it does, one JSON object per line
_NEEDED = {"torch": "torch", "sklearn": "scikit-learn"}
_KILLED, _WHOLE = "demo-killed", "demo-uninterrupted"
_WORKERS = (0, 1, 0)  # of the three sessions: changed on purpose
_EPOCHS = 9
_LEARNED = 0.95  # accuracy of a training of the default length; a shorter one has to be far above chance (0.1)
_BEGUN = 0.4
_OPENING = """\
A small convolutional network learns handwritten digits, for {epochs} epochs. It is killed twice by
SIGKILL and resumed; then the same training runs again and is never interrupted.

                            steps   samples   workers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `colabkeep demo`."""
    parser.add_argument("--epochs", type=int, default=_EPOCHS, help=f"how long (default {_EPOCHS}, at least 2)")
    parser.add_argument("--storage", metavar="DIR", help="keep both runs there (default: a folder that is removed)")


def main(words: argparse.Namespace) -> int:
    """Run the demo; 0 if all is as promised, 1 if not, 130 if interrupted.

    Raises:
        MissingDependency: scikit-learn or torch is not installed.
        UsageError: too few epochs to be killed in.
        ColabKeepError: a training ended by itself.
    """
    missing = [name for package, name in _NEEDED.items() if find_spec(package) is None]
    if missing:
        raise MissingDependency(
            problem=f"The demo trains a real network on real data, and needs {' and '.join(missing)}.",
            remedy='pip install "colabkeep[demo]"',
        )
    if words.epochs < 2:
        raise UsageError(problem=f"--epochs {words.epochs} is too short to be killed twice.", remedy="Pass 2 or more.")
    screen = MovingLine(sys.stderr if words.json else sys.stdout)
    temporary = tempfile.TemporaryDirectory(prefix="colabkeep-demo-") if words.storage is None else None
    try:
        with temporary or nullcontext(words.storage) as storage:
            outcome = _outcome(storage, words.epochs, screen)
    except KeyboardInterrupt:
        kept = f"the runs are in {words.storage}" if words.storage else "nothing was kept"
        screen.line(said(f"\n  Interrupted; the training was stopped, {kept}."))
        return 130
    if words.json:
        sys.stdout.write(json.dumps(outcome.record()) + "\n")
    else:
        for line in aligned(outcome.rows(), right=(1, 2)):
            screen.line(line)
    screen.line(f"\n  {said(outcome.verdict())}")
    return 0 if outcome.good else 1


Message: TypeAlias = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Session:
    """What one process said until it ended. `steps`: where each was in the run ("step", "epoch", "batch" and "of" so
    many), and the indices of its "samples". `began`: the step it resumed from; `saved`: the last one that is saved."""

    workers: int = 0
    began: int = 0
    saved: int | None = None
    steps: list[Message] = field(default_factory=list)
    accuracy: float | None = None
    killed: bool = False

    @property
    def last(self) -> int:
        """The last step."""
        return int(self.steps[-1]["step"])

    @property
    def samples(self) -> int:
        """How many samples it trained on, those of steps that were lost included."""
        return sum(len(step["samples"]) for step in self.steps)

    def hear(self, message: Message) -> None:
        """Take note of one message."""
        match message["what"]:
            case "step":
                self.steps.append(message)
            case "epoch":
                self.accuracy = message["accuracy"]
            case "saved":
                self.saved = message["step"]
            case "restored":
                self.began = self.saved = message["step"]

    def record(self) -> dict[str, Any]:
        """For programs."""
        return {
            "killed": self.killed,
            "workers": self.workers,
            "from_step": self.began,
            "to_step": self.last,
            "samples": self.samples,
        }


def train(
    words: Mapping[str, object], watch: Callable[[Session], None], until: Callable[[Session], bool] | None = None
) -> Session:
    """Start the training with these arguments, and kill it by SIGKILL as soon as `until` says so.

    `watch` is called with each message. Whatever is raised in between, no process is left behind.

    Raises:
        ColabKeepError: the process ended by itself before its end.
    """
    session = Session(workers=int(str(words["workers"])))
    command = [sys.executable, "-m", _PROGRAM, *(f"--{name}={value}" for name, value in words.items())]
    # What loader workers whose parent was killed complain of is shown only when it matters. A session of its own:
    # Ctrl-C reaches this process only, which then kills that one.
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, **pipes, stderr=complaints, start_new_session=True) as process,  # noqa: S603  # our own
    ):
        try:
            watch(session)
            for line in process.stdout or ():
                if not line.endswith("\n"):
                    break  # it was killed in the middle of a word
                session.hear(json.loads(line))
                if until is not None and not session.killed and until(session):
                    process.kill()
                    session.killed = True
                watch(session)
            if process.wait() and not session.killed:
                complaints.seek(0)
                said = complaints.read().decode(errors="replace").strip() or "(nothing)"
                raise ColabKeepError(
                    problem=f"The demo's training ended by itself, with status {process.returncode}. It said:\n{said}",
                    remedy="If it was killed (a negative status), memory may be short: close other programs and try "
                    "again.",
                )
        finally:
            process.kill()
    return session


def consumed(sessions: Iterable[Session]) -> dict[int, list[int]]:
    """Epoch → indices of the samples it was made of in the end: of a step that was repeated, the last counts."""
    final = {step["step"]: step for session in sessions for step in session.steps}
    epochs: dict[int, list[int]] = {}
    for number in sorted(final):
        epochs.setdefault(final[number]["epoch"], []).extend(final[number]["samples"])
    return epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it: the `sessions` of the killed run, and the `whole` one of the other. `digests`: SHA-256 of the
    final weights of both."""

    sessions: Sequence[Session]
    whole: Session
    digests: tuple[str, str]
    epochs: int
    seconds: float

    @property
    def equal(self) -> bool:
        """Do both trainings end with the same bits?"""
        return self.digests[0] == self.digests[1]

    @property
    def learned(self) -> bool:
        """Is the accuracy that of a real training?"""
        enough = _LEARNED if self.epochs >= _EPOCHS else _BEGUN
        return all((session.accuracy or 0) >= enough for session in (self.sessions[-1], self.whole))

    @property
    def once(self) -> bool:
        """Was every epoch of the killed run made of all samples, each once?"""
        epochs = list(consumed(self.sessions).values())
        every = list(range(len(consumed([self.whole])[0])))
        return len(epochs) == self.epochs and all(sorted(seen) == every for seen in epochs)

    @property
    def good(self) -> bool:
        """Is all as promised?"""
        return self.equal and self.learned and self.once

    @property
    def repeated(self) -> int:
        """Steps that were repeated, because they came after the last save before a kill."""
        return sum(before.last - after.began for before, after in zip(self.sessions, self.sessions[1:], strict=False))

    def rows(self) -> list[tuple[str, str, str]]:
        """The comparison, for people."""
        last, whole = self.sessions[-1], self.whole
        killed, uninterrupted = (f"{digest[:8]}…{digest[-8:]}" for digest in self.digests)
        return [
            ("", "killed twice", "never interrupted"),
            ("optimizer steps", f"{last.last:,}", f"{whole.last:,}"),
            ("repeated steps", f"{self.repeated:,}", "0"),
            ("samples seen", f"{sum(session.samples for session in self.sessions):,}", f"{whole.samples:,}"),
            ("each once an epoch", "yes" if self.once else "NO", "yes"),
            ("accuracy, held out", _percent(last.accuracy), _percent(whole.accuracy)),
            ("SHA-256 of weights", killed, uninterrupted),
        ]

    def verdict(self) -> str:
        """The sentence at the end."""
        if self.good:
            both = f"Both sets of weights have the SHA-256\n  {self.digests[0]}"
            return f"Equal, bit for bit, after {self.seconds:.0f} seconds. {both}"
        if not self.equal:
            return "NOT EQUAL: the killed training did not end with the weights of the other one. This is a bug."
        if not self.once:
            return "NOT AS PROMISED: an epoch saw a sample twice, or not at all. This is a bug."
        return "NOT AS EXPECTED: the network did not learn the digits. Try more --epochs."

    def record(self) -> dict[str, Any]:
        """The comparison, for programs."""
        return {
            "equal": self.equal,
            "each_sample_once_per_epoch": self.once,
            "accuracy": {"killed": self.sessions[-1].accuracy, "uninterrupted": self.whole.accuracy},
            "sha256": dict(zip(("killed", "uninterrupted"), self.digests, strict=True)),
            "steps": self.whole.last,
            "steps_repeated": self.repeated,
            "sessions": [session.record() for session in self.sessions],
            "uninterrupted": self.whole.record(),
            "seconds": round(self.seconds, 1),
        }


def _outcome(storage: str, epochs: int, screen: MovingLine) -> Outcome:
    began = time.monotonic()
    screen.line(said(_OPENING.format(epochs=epochs)))
    words = {"storage": storage, "run-name": _KILLED, "epochs": epochs}
    sessions = []
    for number, workers in enumerate(_WORKERS):
        words |= {"workers": workers, "resume": "must" if number else "never"}
        epoch = (epochs // 3, max(1, epochs * 2 // 3), None)[number]
        sessions.append(_shown(f"session {number + 1}", words, epoch, screen))
    words |= {"run-name": _WHOLE, "workers": 0, "resume": "never"}
    whole = _shown("never interrupted", words, None, screen)
    digests = (_digest(storage, _KILLED), _digest(storage, _WHOLE))
    screen.line("")
    return Outcome(sessions=sessions, whole=whole, digests=digests, epochs=epochs, seconds=time.monotonic() - began)


def _shown(name: str, words: Mapping[str, object], epoch: int | None, screen: MovingLine) -> Session:
    """One session, which is killed in `epoch` (from 0): once there was a save, after a batch of the epoch's middle half
    that chance picks."""
    shown, part = time.monotonic(), random.uniform(0.25, 0.75)  # noqa: S311  # no secret

    def watch(session: Session) -> None:
        nonlocal shown
        if time.monotonic() >= shown:
            shown = time.monotonic() + (0.1 if screen.moves else 10.0)
            screen.show(f"  … {name}: {_now(session)}")

    def until(session: Session) -> bool:
        last = session.steps[-1] if session.steps and session.saved is not None else None
        return last is not None and last["epoch"] == epoch and last["batch"] >= part * last["of"]

    session = train(words, watch, until)
    if epoch is not None and not session.killed:
        raise ColabKeepError(
            problem="The training was finished before it could be killed.", remedy="Give it more to do: --epochs 30."
        )
    at = session.steps[-1]
    end = f"KILLED in epoch {at['epoch'] + 1}, batch {at['batch']} of {at['of']}" if session.killed else "finished"
    steps = f"{session.began + 1} to {session.last}"
    screen.line(f"  {name:17}  {steps:>12}   {session.samples:>7,}   {session.workers:>7}   {end}")
    return session


def _now(session: Session) -> str:
    if not session.steps:
        return "starting Python and torch"
    at = session.steps[-1]
    accuracy = "" if session.accuracy is None else f", accuracy {_percent(session.accuracy)}"
    saved = "" if session.saved is None else f", saved at step {session.saved}"
    return f"epoch {at['epoch'] + 1}, batch {at['batch']} of {at['of']}, step {at['step']}{accuracy}{saved}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


def _digest(storage: str, run: str) -> str:
    """SHA-256 over names, shapes and bytes of the final weights, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_weights(run, storage=storage).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
