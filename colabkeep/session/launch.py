"""One training in several processes of this machine, begun from a notebook cell or a script: a process for each device,
and what they say, show, return and raise comes out in the cell.

The processes are new interpreters: nothing is forked, so CUDA may have been used before, and a script needs no
``if __name__ == "__main__"``. What they are to do goes to them through a pipe; what comes back comes through another.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from colabkeep.core.errors import ColabKeepError, ProcessFailed, UsageError, of_library
from colabkeep.core.events import Event, StepDone
from colabkeep.core.language import said
from colabkeep.core.system import variables_here
from colabkeep.frameworks.shared.workers import from_process, to_process

_GO = b"+"  # to a process that waits: all have met
# `python -c` looks into the working directory first. Where the notebook does so, that is in what it hands on.
_CHILD = "import sys; sys.path[:] = filter(None, sys.path); from colabkeep.session.launch import child; child()"
_MUCH = 256 << 20  # bytes of a GPU that this process holds, and says so
_GRACE = 30.0  # seconds that the other processes have to end by themselves, when one has ended with an error
_SOON = 3.0  # seconds in which the one whose error came first is found: the others lose their connection to it
_TRIAL = 60.0  # seconds in which the processes have to have met, from the first one that is there
_BEGINNING = 0.5  # seconds after which the beginning of a line is shown
_STEPS = 0.25  # seconds between two steps that are shown
_PULSE = 2.0  # seconds between two words of a process about where it is
_SILENT = 30.0  # seconds without such a word, while others wait, after which all are ended
_LONGEST = 600.0  # seconds after which they wait no more, as NCCL's own; but for what rank 0 loads at the start
_OFTEN = 3  # times that all tell of a long wait: where the machine stood still, the next time is another one
_LONG = 60.0  # seconds that the others wait for a process before that is told; then twice as long, and so on


class Forward:
    """The display of rank 0: hands what is to be shown to the process that shows it."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send = send
        self.steps_from = 0.0

    def __call__(self, event: Event) -> None:
        """Hand an event on; a loss on its way is read first, four times a second at most."""
        if isinstance(event, StepDone):
            self.steps_from = time.monotonic() + _STEPS
            event = replace(
                event, loss=_number(event.loss), grad_norm=_number(event.grad_norm), tokens=_number(event.tokens)
            )
        self._send(("event", event))

    def recall(self, run: str, run_id: str, history: Sequence[Mapping[str, Any]]) -> None:
        """What the run has logged so far."""
        self._send(("recall", run, run_id, list(history)))

    def leave(self, value: Any) -> None:
        """What the process that began this one is to have, though an error is raised here."""
        self._send(("left", value))


FORWARD: ContextVar[Forward | None] = ContextVar("colabkeep_forward", default=None)
"""In a process that was begun here: where its displays are."""


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@dataclass(slots=True)
class _Process:
    """One that was begun, and what was heard of it."""

    rank: int
    popen: subprocess.Popen[bytes]
    answers: IO[bytes]
    heard: bytearray = field(default_factory=bytearray)
    said: bytearray = field(default_factory=bytearray)  # of a line that is not ended
    said_at: float = 0.0  # when that began
    there_at: float | None = None  # since when it is ready to meet the others
    met: bool = False  # and they could sum over all of them
    result: tuple[Any, ...] | None = None
    left: list[Any] = field(default_factory=list)
    waited: float | None = None  # seconds that it has waited for the others
    waits_long: int = 0  # as often as it has told so, one time after the other
    opens: bool = False  # for what rank 0 loads
    where: str = ""
    talked: int = 0  # times that it has talked with the others
    still_since: float | None = None  # when it was first seen at that line, since it talked with them last
    heard_at: float | None = None  # when it last told that
    failed_at: float | None = None
    silent: bool = False  # it has closed the pipe: nothing more will be heard of it
    asked: bool = False  # to stop: it saves and ends, and that may take its time


class NotTogether(ProcessFailed):
    """The processes could not sum over all of them, and none has begun to train. `why`: a clause, without a point."""

    def __init__(self, *, problem: str, remedy: str, why: str) -> None:
        super().__init__(problem=problem, remedy=remedy)
        self.why = why

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "why": self.why}


def begin_processes(
    train: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    devices: int,
    say: Callable[..., object],
    observers: Sequence[Callable[[Event], object]] = (),
    summed: int = 0,
    left: Callable[[Any], object] = lambda _: None,
) -> Any:
    """What `train(*args)` returns in rank 0, of `devices` processes that each call it. Several are tried first: none
    begins before all of them have met. `say`: prints a line, as `print` does. `summed`: bytes that they will sum in a
    step, 0 where that is not known; what it takes is measured. `left`: is given what rank 0 leaves, when all have
    ended.

    Raises:
        UsageError: it, or what goes with it, cannot be sent to another process.
        NotTogether: the processes could not meet; `train` was called in none of them.
        ProcessFailed: a process ended without a word.
        Exception: as any of them raised it.
    """
    from colabkeep.frameworks.torch.ranks import held

    payload = _payload(train, args)
    for number, size in enumerate(held()):
        if size >= _MUCH:
            say(
                said(
                    f"This notebook itself holds {size / 2**20:.0f} MiB of GPU {number}, which the process that trains "
                    "on it cannot use. Where memory is short, delete what is not needed, or restart the kernel, before."
                )
            )
    stops = _Stops()

    def tell(line: str, end: str = "\n") -> None:
        try:
            say(line, end=end)
        except OSError:
            if not stops.number:
                raise  # else the terminal may be closed: nobody reads it, and the processes are still saving

    with stops, tempfile.TemporaryDirectory(prefix="colabkeep-") as folder:
        processes = [_begin(rank, devices, folder, payload, summed) for rank in range(devices)]
        stops.processes = processes
        try:
            together = devices == 1 or _try_out(processes, tell)
            if together:
                _lead(processes, observers, tell, stops)
        finally:
            for each in processes:
                if each.silent:  # it is ending by itself, and how is to be told
                    with suppress(subprocess.TimeoutExpired):
                        each.popen.wait(_SOON)
                each.popen.kill()
                each.popen.wait()
                for pipe in (each.popen.stdout, each.popen.stdin, each.answers):
                    if pipe is not None:
                        pipe.close()
            for value in processes[0].left:
                left(value)
    if stops.number:
        raise _stopped(processes, stops.number)
    error = _first_error(processes)
    if not together:
        why = f"they did not meet within {_TRIAL:.0f} s" if error is None else _in_a_line(error)
        raise NotTogether(
            problem=f"{devices} processes, one for each device, were tried together before the training, and that "
            f"failed: {why}. Nothing was trained.",
            remedy='Write devices=1, to train on one. devices="auto" does that by itself where several cannot work '
            "together.",
            why=why,
        ) from error
    if error is not None:
        raise error
    return (processes[0].result or ("result", None))[1]


def _payload(train: Callable[..., Any], args: Sequence[Any]) -> bytes:
    from colabkeep.frameworks.torch.carried import carried
    from colabkeep.frameworks.torch.ranks import modes, streams

    try:
        return to_process((train, tuple(args), streams(), modes()), carried)
    except Exception as error:
        paths = [
            *_cannot_travel("the function", train, 0),
            *(path for number, each in enumerate(args) for path in _cannot_travel(f"args[{number}]", each, 0)),
        ]
        where = paths[0].removeprefix("args[0].") if paths else "something in it"
        raise UsageError(
            problem=f"{where} cannot be sent to another process: {type(error).__name__}: {str(error)[:200]}. Nothing "
            "was begun.",
            remedy="Make it inside of what the processes run: open files, locks and connections in the data set's "
            "__getitem__ or in the training function, not before.",
        ) from error


def _cannot_travel(path: str, value: Any, depth: int) -> Iterator[str]:
    """The innermost members that cannot be sent, by the way to them."""
    from colabkeep.frameworks.torch.carried import carried

    try:
        to_process(value, carried)
    except Exception:  # noqa: BLE001  # of any kind: pickling calls code of whoever wrote the class
        members = vars(value) if hasattr(value, "__dict__") else value if isinstance(value, Mapping) else {}
        found = False
        if depth < 6:
            for name, member in members.items():
                for inner in _cannot_travel(f"{path}.{name}", member, depth + 1):
                    found = True
                    yield inner
        if not found:
            yield f"{path} ({type(value).__name__})"


def _in_a_line(error: BaseException) -> str:
    if isinstance(error, ColabKeepError):
        return error.problem.rstrip(".")
    line = next(iter(str(error).splitlines()), "")[:300]
    return f"{type(error).__name__}: {line.rstrip('.')}"


def _begin(rank: int, devices: int, folder: str, payload: bytes, summed: int) -> _Process:
    reader, writer = os.pipe()
    here = variables_here()
    visible = [each.strip() for each in here.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    environ = {
        **here,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(devices),
        # Each sees its own card alone, as "cuda".
        "CUDA_VISIBLE_DEVICES": visible[rank] if rank < len(visible) else str(rank),
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform == "linux":  # they talk on this machine alone
        environ = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **environ}
    popen = subprocess.Popen(  # noqa: S603  # this interpreter
        [sys.executable, "-c", _CHILD, str(writer), folder, str(summed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        pass_fds=[writer],
        start_new_session=True,  # Ctrl-C comes to this process, which passes it on once
    )
    os.close(writer)
    process = _Process(rank, popen, os.fdopen(reader, "rb", buffering=0))
    threading.Thread(target=_give, args=(popen, payload), name="colabkeep-launch", daemon=True).start()
    return process


def _give(popen: subprocess.Popen[bytes], payload: bytes) -> None:
    """The pipe stays open: its end tells the process that this one is gone."""
    if popen.stdin is not None:
        try:
            _put(popen.stdin, payload)
            popen.stdin.flush()
        except OSError:  # it has ended already, which is told by its status
            return


def _put(pipe: IO[bytes], data: bytes) -> None:
    """The whole message: one call writes what it can, and never more than 2 GiB."""
    for piece in (len(data).to_bytes(8, "little"), data):
        left = memoryview(piece)
        while left:
            left = left[pipe.write(left) :]


def _try_out(processes: Sequence[_Process], say: Callable[..., object]) -> bool:
    """Have all of them summed over all? Then they begin. None has called what it is to call before that. The time in
    which they have to meet is watched over here: a process that meets nobody may hear nothing any more."""

    def over() -> bool:
        now = time.monotonic()
        if all(each.met for each in processes):
            return True
        failed = [each.failed_at for each in processes if each.failed_at is not None]
        if failed:
            return len(failed) == len(processes) or now > min(failed) + _SOON
        there = [each.there_at for each in processes if each.there_at is not None]
        return bool(there) and now > min(there) + _TRIAL

    _attend(processes, (), say, over)
    if not all(each.met for each in processes):
        return False
    for each in processes:
        each.heard_at = time.monotonic()
        if each.popen.stdin is not None:
            with suppress(OSError):  # it has ended already, which is told by its status
                each.popen.stdin.write(_GO)
                each.popen.stdin.flush()
    return True


class _Stops:
    """SIGTERM and SIGHUP go on to the processes, which save and end. `number`: the last one that came, 0 for none."""

    def __init__(self) -> None:
        self.number = 0
        self.processes: Sequence[_Process] = ()
        self._before = dict[signal.Signals, Any]()

    def __enter__(self) -> None:
        """Elsewhere than on the main thread Python allows no handlers: they end this process, and those with it."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                before = signal.getsignal(number)
                # Ignored signals (nohup) stay ignored; handlers that are not Python's cannot be restored.
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self.pass_on)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def pass_on(self, number: int, _: object = None) -> None:
        """To all that have not ended."""
        self.number = number
        for each in self.processes:
            each.asked = True
            if each.popen.poll() is None:
                each.popen.send_signal(number)


def _stopped(processes: Sequence[_Process], number: int) -> BaseException:
    """What a stop by this signal raises, as in one process: rank 0 tells what is saved."""
    kind = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    told = processes[0].result
    if told is not None and told[0] == "error" and isinstance(told[1], kind):
        return told[1]
    stop = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    stop.__cause__ = _first_error(processes)
    return stop


def _lead(
    processes: Sequence[_Process],
    observers: Sequence[Callable[[Event], object]],
    say: Callable[..., object],
    stops: _Stops,
) -> None:
    """Until all have ended. Ctrl-C goes on to them."""
    try:
        _attend(processes, observers, say)
    except KeyboardInterrupt:
        stops.pass_on(signal.SIGINT)
        _attend(processes, observers, say)  # another Ctrl-C does not wait


def _attend(
    processes: Sequence[_Process],
    observers: Sequence[Callable[[Event], object]],
    say: Callable[..., object],
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Pass on what they say and show, until all have ended, or it is `over`; the others end soon after the first that
    failed.

    Raises:
        ProcessFailed: one of them hangs.
    """
    heard = list(observers)
    with selectors.DefaultSelector() as selector:
        for each in processes:
            for pipe, receive in ((each.popen.stdout, _say), (each.answers, _receive)):
                if pipe is not None and not pipe.closed:
                    selector.register(pipe, selectors.EVENT_READ, (each, receive))
        told, looked = 0.0, time.monotonic()
        while selector.get_map() and not over():
            for key, _ in selector.select(0.5):
                process, receive = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    process.silent = process.silent or key.fileobj is process.answers
                receive(process, data, heard, say)
            for each in processes:
                _say_beginning(each, say)
            _end_with_the_first(processes)
            told = _tell_who_is_waited_for(processes, told, say)
            now = time.monotonic()
            if now - looked > _PULSE:  # nobody listened meanwhile: the machine stood still, or a display was waited for
                for each in processes:
                    each.heard_at = None if each.heard_at is None else now
            looked = now
            if (hangs := _who_hangs(processes)) is not None:
                raise hangs


def _end_with_the_first(processes: Sequence[_Process]) -> None:
    now = time.monotonic()
    for each in processes:
        failed = each.silent if each.result is None else each.result[0] == "error"
        if each.failed_at is None and failed:
            each.failed_at = now
    first = min((each.failed_at for each in processes if each.failed_at is not None), default=None)
    if first is not None and now > first + _GRACE and not any(each.asked for each in processes):
        for each in processes:
            each.popen.kill()


def _tell_who_is_waited_for(processes: Sequence[_Process], told: float, say: Callable[..., object]) -> float:
    """Nobody can tell a process that hangs from one that loads for long; where it is says more. `told`: after how many
    seconds of waiting it was said last; returned is the same."""
    waits = max((each.waited or 0.0 for each in processes), default=0.0)
    late = [each for each in processes if each.waited is None and each.where and each.result is None]
    if waits and late:
        text = (
            f"The other processes have waited {waits:.0f} s for rank {late[0].rank}, which is at {late[0].where}. If "
            "nothing takes that long there, stop this cell and run it again: the training resumes from its last "
            "checkpoint."
        )
    elif len(late) == len(processes):  # they wait elsewhere, if they do, as in DistributedDataParallel
        now = time.monotonic()
        waits = min(0.0 if each.still_since is None else now - each.still_since for each in late)
        places = "; ".join(f"rank {each.rank} is at {each.where}" for each in late)
        text = (
            f"For {waits:.0f} s no process was seen to make progress, looked at every {_PULSE:.0f} s: {places}. If "
            "nothing takes that long there, stop this cell and run it again: the training resumes from its last "
            "checkpoint."
        )
    if waits < _LONG or not late:
        return 0.0
    if waits < 2 * told:
        return told
    say(said(text))
    return waits


def _who_hangs(processes: Sequence[_Process]) -> ProcessFailed | None:
    """Does one of them let the others wait for ever, as far as that can be told?"""
    now, size = time.monotonic(), len(processes)
    waiting = [each for each in processes if each.waited is not None]
    for each in processes:
        silence = 0.0 if each.heard_at is None or each.result or each.silent else now - each.heard_at
        if silence < _SILENT:
            continue
        others = [other for other in processes if other is not each]
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - silence))
        where = f" It was last at {each.where}." if each.where else ""
        if _is_stopped(each) and any(now - (other.heard_at or 0.0) < _SILENT for other in others):
            problem = (
                f"Nothing was heard of rank {each.rank} of {size} since {since}, for {silence:.0f} s: its process is "
                f"stopped (SIGSTOP), and the others cannot continue without it.{where} All processes were ended."
            )
        elif any(other.waited is not None for other in others):
            problem = (
                f"Nothing was heard of rank {each.rank} of {size} since {since}, for {silence:.0f} s, and the others "
                "wait for it: its process is stopped, or a call in it holds the interpreter and does not return."
                f"{where} All processes were ended."
            )
        else:
            continue
        return ProcessFailed(problem=problem, remedy=_AGAIN)
    left = [each for each in processes if each.result is None]
    if left and all(each.waits_long >= _OFTEN and not each.opens for each in left):
        places = "; ".join(f"rank {each.rank} is at {each.where}" for each in left)
        return ProcessFailed(
            problem=f"The {size} processes have waited for each other for more than {_LONG:.0f} s, and none of them "
            f"was training: {places}. All were ended.",
            remedy="Each process has to take the same number of batches, steps and epochs. Look at what is not the "
            f"same in all: the length of a data set, a break, a condition on the rank. {_AGAIN}",
        )
    waits = max((each.waited or 0.0 for each in waiting if not each.opens), default=0.0)
    late = [each for each in processes if each.waited is None and each.where and each.result is None]
    if waits < _LONGEST or not late:
        return None
    return ProcessFailed(
        problem=f"The other processes have waited {waits:.0f} s for rank {late[0].rank} of {size}, which is at "
        f"{late[0].where}. They do not wait longer than {_LONGEST:.0f} s, and all processes were ended.",
        remedy=f"{_AGAIN} If one process has work that takes longer, do this work in all of them, or before the "
        "training.",
    )


def _is_stopped(process: _Process) -> bool:
    """As proc(5) tells it; elsewhere than on Linux nothing does."""
    try:
        told = Path(f"/proc/{process.popen.pid}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] == "T"


_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # nothing that is tried at each letter of a long line


def _say(process: _Process, data: bytes, _: list[Any], say: Callable[..., object]) -> None:
    """Whole lines, and bars of progress, which go back to the line's beginning; those of the others are marked."""
    if not process.said:
        process.said_at = time.monotonic()
    process.said += data
    told = 0
    for end in _END.finditer(process.said):
        _print(process, process.said[told : end.start()], "\r" if end[0] == b"\r" else "\n", say)
        told = end.end()
    del process.said[:told]
    if not data and process.said:
        _print(process, process.said, "\n", say)
        process.said.clear()


def _say_beginning(process: _Process, say: Callable[..., object]) -> None:
    """Of a line of rank 0 that is not ended yet: dots, or a bar. The others' wait, to be marked as a whole."""
    if process.rank == 0 and process.said and time.monotonic() > process.said_at + _BEGINNING:
        _print(process, process.said, "", say)
        process.said.clear()


def _print(process: _Process, line: bytes | bytearray, end: str, say: Callable[..., object]) -> None:
    text = line.decode(errors="replace")
    if process.rank == 0:
        say(text, end=end)
    elif text or end == "\n":
        say(f"[rank {process.rank}] {text}", end=end)


def _receive(
    process: _Process, data: bytes, observers: list[Callable[[Event], object]], say: Callable[..., object]
) -> None:
    process.heard += data
    while len(process.heard) >= 8:
        size = int.from_bytes(process.heard[:8], "little")
        if len(process.heard) < 8 + size:
            return
        message, process.heard = bytes(process.heard[8 : 8 + size]), process.heard[8 + size :]
        kind, *rest = from_process(message)
        if kind == "event":
            _show(observers, say, rest)
        elif kind == "recall":
            _show(observers, say, rest, "recall")
        elif kind == "pulse":
            process.waited, process.opens, *place = rest
            process.heard_at = time.monotonic()
            if place != [process.where, process.talked]:
                process.where, process.talked = place
                process.still_since = process.heard_at
            process.waits_long = process.waits_long + 1 if (process.waited or 0.0) >= _LONG else 0
        elif kind == "there":
            process.there_at = time.monotonic()
        elif kind == "met":
            process.met = True
        elif kind == "left":
            process.left += rest
        else:
            process.result = (kind, *rest)


def _show(
    observers: list[Callable[[Event], object]],
    say: Callable[..., object],
    told: Sequence[Any],
    method: str = "__call__",
) -> None:
    for observer in tuple(observers):
        try:
            if hasattr(observer, method):
                getattr(observer, method)(*told)
        except Exception as error:  # noqa: BLE001  # a display that fails ends no training
            observers.remove(observer)
            say(said(f"A display failed and is not called any more ({type(error).__name__}: {error})."))


def _first_error(processes: Sequence[_Process]) -> BaseException | None:
    """That of the process which failed first; the others fail because it is gone."""
    failed = sorted((each for each in processes if each.failed_at is not None), key=lambda each: each.failed_at or 0.0)
    if not failed:
        return None
    soon = [each for each in failed if (each.failed_at or 0.0) <= (failed[0].failed_at or 0.0) + _SOON]
    silent = [each for each in soon if each.result is None]
    if silent:  # the first of them: where one is gone, NCCL ends the others, too
        return _ended_silently(silent[0], len(processes))
    told = [(each.rank, *each.result[1:]) for each in soon if each.result is not None]
    rank, error, text, _ = min(told, key=lambda each: bool(each[3]))  # one that does not follow from another's
    led = processes[0].result
    if led is not None and led[0] == "error" and type(led[1]) is type(error) and not led[3]:
        rank, error, text = 0, *led[1:3]  # of all that stopped for the same, it knows what is saved
    if isinstance(error, BaseException):
        error.__cause__ = _Remote(f"rank {rank} of {len(processes)}:\n{text}")
        return error
    return ProcessFailed(problem=f"Rank {rank} of {len(processes)} ended with an error:\n{text}", remedy=_AGAIN)


class _Remote(Exception):
    """The traceback of another process."""


_AGAIN = "Run this cell again: the training resumes from its last checkpoint, if one was saved."


def _ended_silently(process: _Process, size: int) -> ProcessFailed:
    status = process.popen.returncode
    how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    memory = " Linux does that when the memory of the machine runs out." if status == -signal.SIGKILL else ""
    return ProcessFailed(
        problem=f"Rank {process.rank} of {size} was ended {how} and could not say why.{memory} The other processes "
        "were ended, too.",
        remedy=_AGAIN,
    )


def child() -> None:
    """What such a process does."""
    from colabkeep.frameworks.torch.carried import carried
    from colabkeep.frameworks.torch.ranks import (
        SUMMING,
        WAITING,
        Waiting,
        join,
        lost,
        put_modes,
        put_streams,
        try_out,
    )
    from colabkeep.session.ranks import NotBegun

    answers, folder, summed = os.fdopen(int(sys.argv[1]), "wb", buffering=0), sys.argv[2], int(sys.argv[3])
    orders = _orders()
    payload = _read(orders, int.from_bytes(_read(orders, 8), "little"))
    begins = threading.Event()
    threading.Thread(target=_follow_parent, args=(orders, begins), name="colabkeep-parent", daemon=True).start()
    sys.argv[:] = [""]
    writing = threading.Lock()

    def send(message: tuple[Any, ...]) -> None:
        data = to_process(message, carried)
        with writing:
            _put(answers, data)

    waiting = Waiting()

    def pulse() -> None:
        while True:
            time.sleep(_PULSE)
            with suppress(OSError):  # it is ending
                send(("pulse", waiting.seconds(), waiting.opens, _place(), waiting.times))

    here = variables_here()
    rank, ranks = int(here["RANK"]), int(here["WORLD_SIZE"])
    try:
        send(("there",))
        with join(rank, ranks, folder):
            if ranks > 1:
                SUMMING.set(try_out(rank, ranks, summed))
                send(("met",))
                begins.wait()
            threading.Thread(target=pulse, name="colabkeep-pulse", daemon=True).start()
            train, args, theirs, chosen = from_process(payload)
            put_streams(theirs)
            put_modes(chosen)
            FORWARD.set(Forward(send))
            WAITING.set(waiting)
            result = train(*args)
        _give_back(send, result if rank == 0 else None)
    except BaseException as error:  # noqa: BLE001  # it is raised in the process that began this one
        text = "".join(traceback.format_exception(error))
        follows = lost(error) or isinstance(error, NotBegun)
        try:
            from_process(to_process(error))
            send(("error", error, text, follows))
        except Exception:  # noqa: BLE001  # one that cannot be sent is told by its text
            send(("error", None, text, follows))
        os._exit(1)


def _give_back(send: Callable[[tuple[Any, ...]], None], result: Any) -> None:
    try:
        send(("result", result))
    except Exception as error:
        paths = [*_cannot_travel("result", result, 0)]
        where = paths[0] if paths else "result"
        raise UsageError(
            problem="The training is over, and what its function returned cannot be sent back to the notebook: "
            f"{where}: {type(error).__name__}: {str(error)[:200]}. What was saved is there.",
            remedy="Return numbers, texts, tensors or a state_dict(), and no open files, locks or connections.",
        ) from error


def _orders() -> int:
    """The pipe of the process that began this one, which is no standard input any more: who asks the user something
    would wait for ever, and is told that there is none."""
    orders = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders


def _read(orders: int, size: int) -> bytes:
    """From the pipe of the process that began this one."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(orders, min(size - len(data), 1 << 20))
        if not piece:
            _die()
        data += piece
    return bytes(data)


def _place() -> str:
    """Where the main thread is: the innermost line, and the innermost one of the user's beside it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = [line for line in reversed(traceback.extract_stack(frame)) if line.filename != "<string>"]
    own = [line for line in lines if not of_library(line.filename)]
    chosen = [*lines[:1], *(line for line in own[:1] if line != lines[0])]
    return ", called from ".join(f"{Path(line.filename).name}, line {line.lineno}, in {line.name}" for line in chosen)


def _follow_parent(orders: int, begins: threading.Event) -> None:
    if os.read(orders, len(_GO)):
        begins.set()
        os.read(orders, 1)  # nothing more comes but its end
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
