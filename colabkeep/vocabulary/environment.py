"""The facts that tell where we are."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment"]


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
