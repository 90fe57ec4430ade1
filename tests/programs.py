"""Programs that train, without the seconds that each would need to import torch.

::

    done = run(CODE, folder, 3)              # as subprocess.run([sys.executable, "-c", CODE, str(folder), "3"], …)
    with Program(CODE, folder) as program:   # as subprocess.Popen
        program.stdout.readline()
        program.send_signal(signal.SIGTERM)
    Forked([sys.executable, "-c", CODE], env={}) # as subprocess.Popen with pipes: what `colabkeep.launch` begins

One process has imported torch and waits. Each program is a fork of it that leaves this file and runs the code as its
`__main__`: from there on it is an interpreter as any other, with one thread, default signal handlers, and the end that
Python gives a program: threads are waited for, `atexit` is called, an error is printed, and the status is Python's own.
What a program imports, and how the interpreter begins, is not to be tested with it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import IO, Any

__all__ = ["Forked", "Program", "next_program", "run", "run_module"]

_ROOT = Path(__file__).parents[1]
_LONGEST = 1 << 17  # bytes of a request
_FILES = 8  # that come with one, at most
_HIGH = 100  # numbers of files that no request asks for
_START = "import sys; from tests.programs import next_program; exec(next_program(int(sys.argv[1])))"


class Program:
    """A program with these arguments, in the current folder; its `stdout` and `stderr` can be read. It is gone at the
    end of the `with`. `strict`: as with `python -W error`."""

    def __init__(
        self, code: str, *arguments: object, strict: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        self.stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it is closed at the end of the `with`
        out, theirs = os.pipe()
        self.stdout: IO[str] = os.fdopen(out)
        self.returncode: int | None = None
        files = {1: theirs, 2: self.stderr.fileno()}
        self._status = _ask_for(code, arguments, files, os.environ if environ is None else environ, strict=strict)
        os.close(theirs)
        self.pid = int(self._status.readline())

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, and nobody has asked yet
                os.kill(self.pid, number)

    def wait(self, timeout: float = 250.0) -> int:
        """Its exit status, negative for a signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"program {self.pid}", timeout)
            self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, timeout: float = 250.0) -> tuple[str, str]:
        """What is left to read of what it says, and its errors, when it has ended."""
        end, pieces = time.monotonic() + timeout, []
        while select.select([self.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = self.stdout.readline()
            if not piece:
                break
            pieces.append(piece)
        self.wait(max(0.0, end - time.monotonic()))
        self.stderr.seek(0)
        return "".join(pieces), self.stderr.read()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()
        for file in (self.stdout, self.stderr, self._status):
            file.close()


def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The program, when it has ended by itself."""
    with Program(code, *arguments, **options) as program:
        out, errors = program.communicate()
        return subprocess.CompletedProcess([code, *arguments], program.wait(), out, errors)


class Forked:
    """What `subprocess.Popen([sys.executable, "-c", code, …], stdin=PIPE, stdout=PIPE, stderr=STDOUT, …)` is to who
    begins it, in a session of its own. Its environment has PYTHONPATH and PYTHONUNBUFFERED."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), **_: object
    ) -> None:
        assert list(command[:2]) == [sys.executable, "-c"]
        (there, in_), (out, said) = os.pipe(), os.pipe()
        self.args = command
        self.stdin, self.stdout = os.fdopen(in_, "wb"), os.fdopen(out, "rb")
        self.returncode: int | None = None
        files = {0: there, 1: said, 2: said, **{number: number for number in pass_fds}}
        self._status = _ask_for(command[2], command[3:], files, env, alone=True)
        os.close(there)
        os.close(said)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """Its exit status, where it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To a process that has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> None:
        """Until it has ended."""
        self.stdin.close()
        self.stdout.read()
        self.stdout.close()
        self.wait()


def _ask_for(
    code: str,
    arguments: Sequence[object],
    files: Mapping[int, int],
    environ: Mapping[str, str],
    *,
    strict: bool = False,
    alone: bool = False,
) -> IO[str]:
    """A fork that has these open files under these numbers. What is returned tells its pid, then its exit status.
    `alone`: in a session of its own, with the paths of its environment, and what it prints comes at once."""
    status, told = os.pipe()
    request = {
        "code": code,
        "argv": ["-c", *map(str, arguments)],
        "cwd": str(Path.cwd()),
        "environ": dict(environ),
        "strict": strict,
        "alone": alone,
        "files": list(files),
    }
    socket.send_fds(_forking(), [json.dumps(request).encode()], [*files.values(), told])
    os.close(told)
    return os.fdopen(status)


def run_module(name: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `python -m name …`, when it has ended by itself."""
    return run(f"import runpy; runpy.run_module({name!r}, run_name='__main__')", *arguments, **options)


@cache
def _forking() -> socket.socket:
    """The way to the process that forks. It ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(filter(None, [*sys.path, str(_ROOT)]))
    environ = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}  # NumPy would begin threads
    command = [sys.executable, "-c", _START, str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, env=environ)
    there.close()

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def next_program(number: int) -> CodeType:
    """Forks for each request that comes by the socket of that number. Returns in a fork only, with its code."""
    _import()
    way = socket.socket(fileno=number)
    waiting: set[int] = set()
    while True:
        request, files, _, _ = socket.recv_fds(way, _LONGEST, _FILES)
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG if request else 0)[0]}
        if not request:
            os._exit(0)
        if (pid := os.fork()) == 0:
            way.close()
            return _begin(json.loads(request), files[:-1], files[-1])
        waiting.add(pid)
        for file in files:
            os.close(file)


def _import() -> None:
    """What a training imports, and what torch imports when the first optimizer is made."""
    import torch

    import tests.trainings.torch  # noqa: F401

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    gc.collect()
    gc.freeze()
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "a process with threads cannot be forked"


def _begin(request: Mapping[str, Any], files: Sequence[int], told: int) -> CodeType:
    """Forks once more: the one waits for the end of the other, which returns."""
    pid = os.fork()
    if pid:
        os.write(told, f"{pid}\n".encode())
        for number in files:
            os.close(number)
        _, status = os.waitpid(pid, 0)
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    away = [fcntl.fcntl(number, fcntl.F_DUPFD, _HIGH) for number in files]  # none lies where another one belongs
    for number in (*files, told):
        os.close(number)
    for number, wanted in zip(away, request["files"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = request["argv"]
    if request["strict"]:
        warnings.simplefilter("error")
    if request["alone"]:
        os.setsid()
        sys.path[:] = ["", *os.environ["PYTHONPATH"].split(os.pathsep)]
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)  # type: ignore[type-var]
    return compile(request["code"], "<string>", "exec")
