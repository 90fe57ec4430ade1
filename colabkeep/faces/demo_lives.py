"""Lives of the demo's training: processes that are watched, and killed at a moment that is chosen while they run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from colabkeep.vocabulary.errors import ColabKeepError

__all__ = ["Life", "Message", "Step", "Words", "consumed", "live"]

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
