"""`colabkeep keep … -- program`: a program in a process of its own, in a folder that is kept meanwhile."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from colabkeep.core.arguments import duration_text
from colabkeep.core.errors import UsageError
from colabkeep.keep.session import STOP_PATIENCE, KeptFolder, was_cut_off

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_ASKED = (signal.SIGINT, signal.SIGTERM)
_JSON = re.compile(r"""\{\s*["'}]""")
_WHY = {128 + signal.SIGINT: "interrupt", 128 + signal.SIGTERM: "sigterm", 128 + signal.SIGHUP: "sighup"}


def program_words(words: Sequence[str], *, restored: bool) -> list[str]:
    """The program's command line: what stands in braces is there only where files were restored, and without them.

    A shell cuts at blanks between braces too. Doubled braces are for a notebook's `!` lines, which put the value of a
    variable in the place of {its name}. JSON is passed on as it is.

    >>> program_words(["python", "train.py", "{--resume", "last}"], restored=True)
    ['python', 'train.py', '--resume', 'last']

    Raises:
        UsageError: a brace, or a quote between braces, is not closed.
    """
    found, group = list[str](), list[str]()
    for word in words:
        if not group and (not word.startswith("{") or _JSON.match(word)):
            found.append(word)
            continue
        group.append(word)
        if word.endswith("}"):
            inner, group = _without_braces(group), []
            found += inner if restored else []
    if group:
        raise UsageError(
            problem=f"The brace before {group[0].lstrip('{')} is not closed.",
            remedy="What is to be added only where files were restored stands between braces: {--resume last}",
        )
    return found


def _without_braces(group: Sequence[str]) -> list[str]:
    """The words of a group; where it was quoted, and so is one word, it is cut as a shell does.

    Raises:
        UsageError: a quote is not closed.
    """
    braces = len(group[0]) - len(group[0].lstrip("{"))
    if len(group) == 1:
        try:
            return shlex.split(group[0][braces:-braces])
        except ValueError as error:
            raise UsageError(
                problem=f"What stands between braces cannot be read: {group[0]} ({error}).",
                remedy="Write it as for a shell, each quote closed: '{--resume \"my runs/last.pt\"}'",
            ) from error
    return [word for word in (group[0][braces:], *group[1:-1], group[-1][:-braces]) if word]


def check_program(words: Sequence[str]) -> None:
    """See that there is a program to run, before anything is taken or put back for it.

    Raises:
        UsageError: there is none, or not on this machine; or what stands in braces cannot be read.
    """
    given = program_words(words, restored=False)
    if not given:
        raise UsageError(
            problem="There is no program to run.",
            remedy="Write it after two dashes: colabkeep keep runs/train --run my-run -- python train.py {--resume}",
        )
    if shutil.which(given[0]) is None:
        raise UsageError(
            problem=f"There is no program {given[0]!r} here, or it may not be executed. Nothing was changed.",
            remedy="Check its name and path; a Python script is started so: -- python train.py",
        )


def run_program(kept: KeptFolder, words: Sequence[str]) -> int:
    """Run the program while the folder is kept, and wait for its end. Returns its exit status as a shell tells it:
    128 + the signal's number, if that ended it.

    Ctrl-C reaches the program by itself, being in the same group of processes; it may save and end, and the last
    version comes after that. SIGTERM and SIGHUP are passed on. When its time is over it is interrupted, and after
    `STOP_PATIENCE` terminated.

    Raises:
        UsageError: it cannot be started.
    """
    given = program_words(words, restored=kept.restored is not None)
    if given != list(words):
        kept.say(f"The program is started: {shlex.join(given)}")
    with _passed_on() as begin:
        program = begin(given)
        kept.at_end(lambda: threading.Thread(target=_end, args=(kept, program), daemon=True).start())
        status = program.wait()
    kept.cut_off = was_cut_off(status)
    status = 128 - status if status < 0 else status
    if status:
        kept.ended(_WHY.get(status, "error"), _told(status))
    return status


def _told(status: int) -> str:
    """An exit status in words."""
    with suppress(ValueError):
        name = signal.Signals(status - 128).name
        often = ": often the memory was full" if name == "SIGKILL" else ""
        return f"its exit status is {status}, as after {name}{often}"
    return f"its exit status is {status}"


def _end(kept: KeptFolder, program: subprocess.Popen[bytes]) -> None:
    """Ask the program to end; first as Ctrl-C does, for which many save."""
    for number in _ASKED:
        program.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            program.wait(STOP_PATIENCE)
            return
    kept.say(
        f"The program has not ended {duration_text(len(_ASKED) * STOP_PATIENCE)} after it was asked to. Its files are "
        "kept for as long as it goes on."
    )


@contextmanager
def _passed_on() -> Iterator[Callable[[Sequence[str]], subprocess.Popen[bytes]]]:
    """Starts a program, and until this ends signals are for that; on another thread than the main one, Python allows no
    handlers. They are there before the program is, which may be asked to end in its first moment."""
    started, early = list[subprocess.Popen[bytes]](), list[int]()

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT:  # the terminal sends that to both
            started[0].send_signal(number) if started else early.append(number)

    def begin(words: Sequence[str]) -> subprocess.Popen[bytes]:
        try:
            started.append(subprocess.Popen(words))  # noqa: S603  # the user's own words
        except OSError as error:
            raise UsageError(
                problem=f"The program {words[0]!r} cannot be started: {error.strerror}.",
                remedy="Check its name and path.",
            ) from error
        for number in early:
            started[0].send_signal(number)
        return started[0]

    if threading.current_thread() is not threading.main_thread():
        yield begin
        return
    before = {number: signal.signal(number, pass_on) for number in (*_FORWARDED, signal.SIGINT)}
    try:
        yield begin
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
