"""An AI Studio environment that fits into a folder. Its `work` and `external-libraries` survive a restart, its `data`
does not.

::

    with fake_aistudio(tmp_path) as studio:
        ...                                  # train into studio.environment's home
    with fake_aistudio(tmp_path) as studio:  # the next start: finds it
        ...
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from colabkeep.testing.platforms.machines import new_root, write
from colabkeep.vocabulary.environment import Environment

__all__ = ["FakeAIStudio", "Sign", "fake_aistudio"]

Sign: TypeAlias = Literal["hostname", "prefix", "variables", "webide", "folders"]
"""What users have shown of it: the host's name, conda's prefix, variables, `~/.webide`, and `work` beside `data`, which
anybody may have."""

_SHELL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f1b2c3d4e5f>"
_ALL: tuple[Sign, ...] = ("hostname", "prefix", "variables", "webide", "folders")


class FakeAIStudio:
    """One environment, from its start to its stop. Made by `fake_aistudio`.

    `root`: its disk. `environ`: its variables, which a test may change. `home`, `work`, `data` and `libraries`
    (external-libraries): the user's folders.
    """

    def __init__(self, world: Path, signs: Collection[Sign]) -> None:
        self.root = new_root(world)
        self.home = self.root / "home" / "aistudio"
        self.work = self.home / "work"
        self.data = self.home / "data"
        self.libraries = self.home / "external-libraries"
        self.environ = {"HOME": "/home/aistudio", "AISTUDIO_ACCESS_TOKEN": "0123456789abcdef"}
        if "variables" in signs:
            self.environ |= {"STUDIO_MODEL_API_URL_PREFIX": "https://aistudio.baidu.com", "WEBIDE_USERID": "1234567"}
        self._hostname = "jupyter-1234567-7654321" if "hostname" in signs else "5b0c2d"
        self._prefix = "/opt/conda/envs/python35-paddle120-env" if "prefix" in signs else "/usr"
        self.home.mkdir(parents=True)
        if "folders" in signs:
            self.work.mkdir()
            self.data.mkdir()
        if "webide" in signs:
            write(self.root, "/home/aistudio/.webide/proxy_config.json", "{}\n")
        write(self.root, "/proc/uptime", "600.00 1100.00\n")

    @property
    def environment(self) -> Environment:
        """What detection is handed."""
        return Environment(
            environ=dict(self.environ),
            root=self.root,
            folder=self.home,
            modules=frozenset({"IPython", "ipykernel"}),
            hostname=self._hostname,
            prefix=self._prefix,
            shell=_SHELL,
        )


@contextmanager
def fake_aistudio(
    folder: Path, *, signs: Collection[Sign] = _ALL, data: Mapping[str, str] | None = None
) -> Iterator[FakeAIStudio]:
    """A started environment. `folder`: the user's world, in which `work` and `external-libraries` are kept from start
    to start.

    `signs`: those of the service that it shows. `data`: name → text of the attached data sets' files, the only ones
    in its `data`, whatever lay there before.
    """
    studio = FakeAIStudio(folder, signs)
    kept = {folder / "work": studio.work, folder / "external-libraries": studio.libraries}
    for there, here in kept.items():
        if there.is_dir():
            shutil.copytree(there, here, symlinks=True, dirs_exist_ok=True)
    for name, text in (data or {}).items():
        write(studio.root, f"/home/aistudio/data/{name}", text)
    try:
        yield studio
    finally:
        for there, here in kept.items():
            if here.is_dir():
                shutil.rmtree(there, ignore_errors=True)
                shutil.copytree(here, there, symlinks=True)
