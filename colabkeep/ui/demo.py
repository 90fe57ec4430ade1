"""`colabkeep demo`: the product in a minute. A training is killed twice and goes on; another is left alone; both
end with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, Any, TextIO, TypeAlias

from colabkeep.core.errors import ColabKeepError, MissingDependency, UsageError
from colabkeep.session.weights import load_weights

__all__ = [
    "Life",
    "Message",
    "Outcome",
    "Screen",
    "Step",
    "Words",
    "add_arguments",
    "consumed",
    "live",
    "main",
]

_MOVING = 0.1  # seconds between two states of the moving line
_STAYING = 10.0  # and between two of its states where lines stay (files, logs)


class Screen:
    """Calm output to one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._next = time.monotonic()
        self._shown = ""

    def live(self, text: str) -> None:
        """What is happening right now; not every call is shown."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_MOVING if self._moves else _STAYING)
        if not self._moves:
            self._write(f"  … {text}\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._clear()
        self._shown = f"  … {text}"[:width]
        self._write(self._shown)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(text + "\n")

    def table(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Rows of cells; the first column to the left, the others to the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = [
                first.ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)),
            ]
            self.line("  " + "   ".join(cells).rstrip())

    def _clear(self) -> None:
        if self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


_PROGRAM = "colabkeep.examples.digits"  # tells what it does, one JSON object per line

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a life of the training is told on its command line."""

    storage: str
    run: str
    epochs: int
    workers: int
    resume: str

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        words = {"storage": self.storage, "run-name": self.run, "epochs": self.epochs}
        words |= {"workers": self.workers, "resume": self.resume}
        return [sys.executable, "-m", _PROGRAM, *(f"--{name}={value}" for name, value in words.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step: where in the run it was, and the indices of the `samples` it was made of."""

    step: int
    epoch: int
    batch: int
    of: int
    samples: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Life:
    """What one process did until it ended, as far as it came to tell. `began`: the step it went on from."""

    words: Words
    began: int = 0
    saved: int | None = None
    steps: list[Step] = field(default_factory=list)
    accuracy: float | None = None
    killed: bool = False

    @property
    def samples(self) -> int:
        """How many samples it trained on, those of steps that were lost included."""
        return sum(len(step.samples) for step in self.steps)

    def hear(self, message: Message) -> None:
        """Take note of one message."""
        if message["what"] == "step":
            samples = tuple(message["samples"])
            self.steps.append(
                Step(**{name: message[name] for name in ("step", "epoch", "batch", "of")}, samples=samples)
            )
        elif message["what"] == "epoch":
            self.accuracy = message["accuracy"]
        elif message["what"] == "saved":
            self.saved = message["step"]
        elif message["what"] == "restored":
            self.began = self.saved = message["step"]


def live(words: Words, until: Callable[[Life], bool] | None, watch: Callable[[Life], None]) -> Life:
    """Let the training live until `until` says that it has to die now, by SIGKILL; or else to its end.

    `watch` is called with each message. Whatever is raised in between, no process is left behind.

    Raises:
        ColabKeepError: the process ended by itself before its end.
    """
    life = Life(words=words)
    with tempfile.TemporaryFile() as complaints, _process(words.command, complaints) as process:
        watch(life)
        for line in process.stdout or ():
            if not line.endswith("\n"):
                break  # death came in the middle of a word
            life.hear(json.loads(line))
            if until is not None and not life.killed and until(life):
                process.kill()
                life.killed = True
            watch(life)
        if process.wait() and not life.killed:
            raise _broken(process.returncode, complaints)
    return life


@contextmanager
def _process(command: list[str], complaints: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    # A session of its own: Ctrl-C reaches this process only, which then kills that one.
    process = subprocess.Popen(  # noqa: S603  # our own program
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,  # loader workers whose parent was killed die loudly; shown only when it matters
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _broken(status: int, complaints: IO[bytes]) -> ColabKeepError:
    complaints.seek(0)
    said = complaints.read().decode(errors="replace").strip() or "(nothing)"
    return ColabKeepError(
        problem=f"The demo's training ended by itself, with status {status}. It said:\n{said}",
        remedy="If it was killed (a negative status), memory may be short: close other programs and try again.",
    )


def consumed(lives: Iterable[Life]) -> dict[int, list[int]]:
    """Epoch → indices of the samples it was made of in the end: of a step that was lost and redone, the last counts."""
    final = {step.step: step for life in lives for step in life.steps}
    epochs: dict[int, list[int]] = {}
    for number in sorted(final):
        epochs.setdefault(final[number].epoch, []).extend(final[number].samples)
    return epochs


_KILLED, _WHOLE = "demo-killed", "demo-uninterrupted"
_WORKERS = (0, 1, 0)  # of the three lives: changed on purpose
_EPOCHS = 9
_LEARNED = 0.95  # accuracy of a training of the default length; a shorter one has to be far above chance (0.1)
_BEGUN = 0.4
_OPENING = """\
A small convolutional network learns handwritten digits, for {epochs} epochs. Twice it is
killed by SIGKILL and goes on; then the same is trained again and left alone.

                  steps   samples   workers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words of `colabkeep demo`."""
    parser.add_argument(
        "--epochs", type=int, default=_EPOCHS, help=f"how long to train (default {_EPOCHS}, 2 at least)"
    )
    parser.add_argument("--storage", metavar="DIR", help="keep both runs there (default: a folder that is removed)")
    parser.add_argument("--json", action="store_true", help="print the result for machines; progress goes to stderr")


def main(words: argparse.Namespace) -> int:
    """Run the demo; 0 if all is as promised, 1 if not, 130 if interrupted.

    Raises:
        MissingDependency: scikit-learn or torch is not installed.
        UsageError: too few epochs to be killed in.
        ColabKeepError: a training ended by itself.
    """
    _need("torch", "sklearn")
    if words.epochs < 2:
        raise UsageError(problem=f"--epochs {words.epochs} is too short to be killed twice.", remedy="Pass 2 or more.")
    screen = Screen(sys.stderr if words.json else sys.stdout)
    try:
        with _storage(words.storage) as storage:
            outcome = _outcome(storage, words.epochs, screen)
    except KeyboardInterrupt:
        kept = f"the runs are in {words.storage}" if words.storage else "nothing was kept"
        screen.line(f"\n  Interrupted; the training was stopped, {kept}.")
        return 130
    if words.json:
        sys.stdout.write(json.dumps(outcome.record()) + "\n")
    else:
        screen.table(outcome.rows())
    screen.line(f"\n  {outcome.verdict()}")
    return 0 if outcome.good else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. `digests`: SHA-256 of the final weights, of the killed run and of the other one."""

    lives: Sequence[Life]
    whole: Life
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
        return all((life.accuracy or 0) >= enough for life in (self.lives[-1], self.whole))

    @property
    def once(self) -> bool:
        """Was every epoch of the killed run made of all samples, each once?"""
        epochs = list(consumed(self.lives).values())
        every = list(range(len(consumed([self.whole])[0])))
        return len(epochs) == self.epochs and all(sorted(seen) == every for seen in epochs)

    @property
    def good(self) -> bool:
        """Is all as promised?"""
        return self.equal and self.learned and self.once

    @property
    def redone(self) -> int:
        """Steps that were trained twice, because they came after the last save before a kill."""
        return sum(
            before.steps[-1].step - after.began for before, after in zip(self.lives, self.lives[1:], strict=False)
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """The comparison, for people."""
        last, whole = self.lives[-1], self.whole
        seen = sum(life.samples for life in self.lives)
        killed, alone = (f"{digest[:8]}…{digest[-8:]}" for digest in self.digests)
        return [
            ("", "killed twice", "left alone"),
            ("optimizer steps", f"{last.steps[-1].step:,}", f"{whole.steps[-1].step:,}"),
            ("steps done again", f"{self.redone:,}", "0"),
            ("samples seen", f"{seen:,}", f"{whole.samples:,}"),
            ("each once an epoch", "yes" if self.once else "NO", "yes"),
            ("accuracy, held out", _percent(last.accuracy), _percent(whole.accuracy)),
            ("SHA-256 of weights", killed, alone),
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
        """The comparison, for machines."""
        return {
            "equal": self.equal,
            "each_sample_once_per_epoch": self.once,
            "accuracy": {"killed": self.lives[-1].accuracy, "uninterrupted": self.whole.accuracy},
            "sha256": dict(zip(("killed", "uninterrupted"), self.digests, strict=True)),
            "steps": self.whole.steps[-1].step,
            "steps_redone": self.redone,
            "lives": [_record(life) for life in self.lives],
            "uninterrupted": _record(self.whole),
            "seconds": round(self.seconds, 1),
        }


def _record(life: Life) -> dict[str, Any]:
    return {
        "killed": life.killed,
        "workers": life.words.workers,
        "from_step": life.began,
        "to_step": life.steps[-1].step,
        "samples": life.samples,
    }


def _outcome(storage: str, epochs: int, screen: Screen) -> Outcome:
    began = time.monotonic()
    screen.line(_OPENING.format(epochs=epochs))
    deaths = [_somewhere_in(epochs // 3), _somewhere_in(max(1, epochs * 2 // 3)), None]
    lives = []
    for number, (workers, death) in enumerate(zip(_WORKERS, deaths, strict=True)):
        resume = "must" if number else "never"
        words = Words(storage=storage, run=_KILLED, epochs=epochs, workers=workers, resume=resume)
        lives.append(_watched(f"life {number + 1}", words, death, screen))
    words = Words(storage=storage, run=_WHOLE, epochs=epochs, workers=0, resume="never")
    whole = _watched("left alone", words, None, screen)
    screen.live("comparing the weights")
    digests = (_digest(storage, _KILLED), _digest(storage, _WHOLE))
    screen.line("")
    seconds = time.monotonic() - began
    return Outcome(lives=lives, whole=whole, digests=digests, epochs=epochs, seconds=seconds)


def _watched(name: str, words: Words, death: Callable[[Life], bool] | None, screen: Screen) -> Life:
    life = live(words, death, lambda life: screen.live(f"{name}: {_now(life)}"))
    if death is not None and not life.killed:
        raise ColabKeepError(
            problem="The training was through before it could be killed.", remedy="Give it more to do: --epochs 30."
        )
    screen.line(f"  {name:10} {_told(life)}")
    return life


def _somewhere_in(epoch: int) -> Callable[[Life], bool]:
    """Death comes in this epoch (from 0), after a batch of its middle half that chance picks, once there was a save."""
    part = random.uniform(0.25, 0.75)  # noqa: S311  # no secret

    def until(life: Life) -> bool:
        last = life.steps[-1] if life.steps else None
        return last is not None and last.epoch == epoch and last.batch >= part * last.of and life.saved is not None

    return until


def _now(life: Life) -> str:
    if not life.steps:
        return "starting Python and torch"
    at = life.steps[-1]
    accuracy = "" if life.accuracy is None else f", accuracy {_percent(life.accuracy)}"
    saved = "" if life.saved is None else f", saved at step {life.saved}"
    return f"epoch {at.epoch + 1} of {life.words.epochs}, batch {at.batch} of {at.of}, step {at.step}{accuracy}{saved}"


def _told(life: Life) -> str:
    at = life.steps[-1]
    steps = f"{life.began + 1} to {at.step}"
    end = f"KILLED in epoch {at.epoch + 1}, batch {at.batch} of {at.of}" if life.killed else "finished"
    return f"{steps:>10}   {life.samples:>7,}   {life.words.workers:>7}   {end}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


def _digest(storage: str, run: str) -> str:
    """SHA-256 over names, shapes and bytes of the final weights, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_weights(run, storage=storage).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _storage(folder: str | None) -> Iterator[str]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="colabkeep-demo-") as temporary:
        yield temporary


def _need(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " and ".join({"sklearn": "scikit-learn"}.get(package, package) for package in missing)
        raise MissingDependency(
            problem=f"The demo trains a real network on real data, and needs {names}.",
            remedy='pip install "colabkeep[demo]"',
        )
