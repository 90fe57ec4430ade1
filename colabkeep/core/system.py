"""The process and its machine: the environment, the clock, and threads that give way to training. The one reader of
environment variables and of the time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What detection may look at. Tests hand in their own.

    `environ`: the environment variables. `root`: the root folder, "/" on the real machine; every absolute path
    of a platform is looked up below it (`path`). `folder`: the current folder. `modules`: the names of the
    loaded modules. `hostname`, and `prefix` of the Python installation. `shell`: the text form of the IPython shell
    this code runs in, whose module path tells the front end; "" in a plain process. `program`: the file of the notebook
    or program that runs; "" where nobody says. `vscode`: this is a notebook that VS Code shows, by what it writes into
    the notebook's own namespace; also where the kernel runs elsewhere.
    """

    environ: Mapping[str, str]
    root: Path
    folder: Path
    modules: frozenset[str] = frozenset()
    hostname: str = ""
    prefix: str = ""
    shell: str = ""
    program: str = ""
    vscode: bool = False

    @classmethod
    def here(cls) -> Environment:
        """The real one, as it is now. The only place that reads the process's environment variables."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
        return cls(
            environ=dict(os.environ),
            root=Path("/"),
            folder=_folder(),
            modules=frozenset(sys.modules),
            hostname=socket.gethostname(),
            prefix=sys.prefix,
            shell="" if shell is None else str(shell),
            program=_program("" if shell is None else os.environ.get("JPY_SESSION_NAME", "")),
            vscode="__vsc_ipynb_file__" in vars(sys.modules.get("__main__", sys)),
        )

    def path(self, absolute: str) -> Path:
        """Where the absolute path `absolute` of this machine lies."""
        return self.root / absolute.lstrip("/")

    def is_dir(self, absolute: str) -> bool:
        """Is there such a folder? False where it cannot be looked at (a dead mount, no permission)."""
        try:
            return self.path(absolute).is_dir()
        except OSError:
            return False

    def is_file(self, absolute: str) -> bool:
        """Is there such a file? False where it cannot be looked at."""
        try:
            return self.path(absolute).is_file()
        except OSError:
            return False

    def text(self, absolute: str, limit: int = 1 << 20) -> str:
        """The first `limit` characters of a file; "" if it is not there or cannot be read."""
        try:
            with self.path(absolute).open(encoding="utf-8", errors="replace") as file:
                return file.read(limit)
        except OSError:
            return ""


def variables_here() -> Mapping[str, str]:
    """The process's environment variables themselves, for what asks often and cannot wait for `Environment.here`."""
    return os.environ


def is_dir_here(absolute: str) -> bool:
    """Is there such a folder on the real machine? As `Environment.is_dir`."""
    return os.path.isdir(absolute)  # noqa: PTH112  # asked for each text that is shown


def _program(session: str) -> str:
    """A program's own file; a notebook's from VS Code, which writes it into its namespace, or from Jupyter's server,
    which calls the `session` of a kernel so (jupyter_server, pull request 1100). Colab and Kaggle tell nobody."""
    told = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    for file in (told.get("__vsc_ipynb_file__"), told.get("__file__"), session if session.endswith(".ipynb") else ""):
        if isinstance(file, str) and file:
            return file
    return ""


def _folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # deleted under this process, as by `rm -rf` of a clone: its old name, then
        return Path(os.environ.get("PWD", "/"))


class Clock(Protocol):
    """The only source of time."""

    def time(self) -> float:
        """Wall-clock time, in seconds since 1970 (UTC). May jump; used for dates only."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring. Zero is arbitrary."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        ...


class SystemClock:
    """The machine's time."""

    monotonic = staticmethod(time.monotonic)
    """Seconds that never run backwards."""

    def time(self) -> float:
        """Seconds since 1970 (UTC)."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        time.sleep(seconds)


_NICE = 5  # steps of lower priority: training goes first where cores are few

_LOWEST = 19  # setpriority(2)

FAR = 10
"""Steps of lower priority of a thread that hardly needs the interpreter, as one that hashes. Not of others: where cores
are few, one that has it may not get a core for a while, and training waits for it. Beside steps that keep two cores
busy, a save of 500 MB took 1.4 s with all threads at 5, and made steps 1.31 times as long, the longest by 5 ms; with
the one that hashes at 10 it took 3.1 s, 1.07 times and 0.4 ms; with all at 10 3.2 s, 1.13 times and 10 ms (medians of
10)."""


def give_way(steps: int = _NICE) -> None:
    """Lower the priority of the calling thread to `steps` below that of the program's main thread, for good. Where
    there are none per thread, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has them
        ours = os.getpriority(os.PRIO_PROCESS, os.getpid())  # whoever began with `nice` has less than others already
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(ours + steps, _LOWEST))


class Breather:
    """Short rests in work that needs the interpreter, for training to have it.

    Torch lets go of the interpreter in every operation, and a thread that computes in Python then keeps it for 5 ms
    (`sys.getswitchinterval`): a step of many small operations would wait for the whole of the work. Behind a save of
    640 tensors the longest of a training's tiny steps took 4.8 ms more, and 2.0 with these rests; of 4,000 tensors, 25
    and 10 (medians of 40).
    """

    _WORK = 0.2e-3  # seconds
    _REST = 0.05e-3  # seconds: what the system makes of it is about twice that, and enough for the other to wake up

    def __init__(self) -> None:
        self._rested = time.perf_counter()

    def breathe(self) -> None:
        """To be called every few microseconds of such work. Mostly nothing happens."""
        if time.perf_counter() - self._rested > self._WORK:
            time.sleep(self._REST)
            self._rested = time.perf_counter()
