"""The obligations of `colabkeep.hardware.base`, one test each, for any way of finding accelerators.

Subclass it in a test file, and every obligation is checked on your finder::

    class TestMyFinder(FinderContract):
        def make_finder(self):
            return MyFinder()

        def make_machine(self, root, patch):
            (root / "dev").mkdir()
            (root / "dev" / "mine0").touch()
            return machine(root)
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import get_args

import pytest

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Accelerator, Answer, Finder, Hidden, Kind, Trouble

__all__ = ["FinderContract", "machine"]

_PATIENCE = 30.0  # seconds; a bound for a finder that hangs, never waited for by one that works
_FRAMEWORKS = ("torch", "paddle", "jax", "tensorflow", "torch_xla", "torch_npu")


def machine(root: Path, **environ: str) -> Environment:
    """An environment whose root folder is `root` and whose variables are `environ`, PATH being /usr/bin by default."""
    return Environment(environ={"PATH": "/usr/bin", **environ}, root=root, folder=root, modules=frozenset(sys.modules))


class _Watch(MetaPathFinder):
    """Notes what is looked for because it is not imported yet, and finds none of it."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        self.wanted.add(fullname.partition(".")[0])


class FinderContract:
    """One test per obligation. See the top of this page for how to use it."""

    def make_finder(self) -> Finder:
        raise NotImplementedError("return the finder")

    def make_machine(self, root: Path, patch: pytest.MonkeyPatch) -> Environment:
        """Make a machine below `root`, an empty folder, on which the finder finds something."""
        raise NotImplementedError("return the environment of the machine")

    def make_stuck(self, root: Path, patch: pytest.MonkeyPatch) -> Environment | None:
        """A machine on which what the finder asks never answers; None if it only looks at files."""
        return None

    def make_nonsense(self, root: Path, patch: pytest.MonkeyPatch) -> Mapping[str, Environment]:
        """Machines, by a word for each, on which what the finder asks or reads makes no sense."""
        return {}

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """An empty folder, to be the root of a machine."""
        root = tmp_path / "root"
        root.mkdir()
        return root

    def test_what_is_there_is_found_and_described(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each device has a kind, a name and the finder's name; figures are in bytes and make sense."""
        finder = self.make_finder()
        found = finder.find(self.make_machine(root, monkeypatch), timeout=_PATIENCE)
        assert finder.name
        assert isinstance(found, Sequence)
        assert found
        for accelerator in found:
            assert isinstance(accelerator, Accelerator)
            assert (accelerator.kind in get_args(Kind), accelerator.found_by) == (True, finder.name)
            assert accelerator.name == accelerator.name.strip() != ""
            assert accelerator.memory_bytes is None or accelerator.memory_bytes > 1 << 30, "bytes, not MiB"
            assert 0 <= (accelerator.used_bytes or 0) <= (accelerator.memory_bytes or 0)
            assert accelerator.capability is None or accelerator.capability >= (1, 0)

    def test_the_same_question_gets_the_same_answer(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Asking changes nothing, so asking again, with the same finder or a new one, tells the same."""
        environment = self.make_machine(root, monkeypatch)
        finder = self.make_finder()
        first = finder.find(environment, timeout=_PATIENCE)
        assert first == finder.find(environment, timeout=_PATIENCE)
        assert first == self.make_finder().find(environment, timeout=_PATIENCE)

    def test_a_machine_without_anything_has_nothing(self, root: Path) -> None:
        """No folder, no variable, not even a root: nothing is found, and nothing raised."""
        for environment in (
            Environment(environ={}, root=root, folder=root),
            Environment(environ={}, root=root / "missing", folder=root / "missing"),
        ):
            assert not self.make_finder().find(environment, timeout=_PATIENCE)

    @pytest.mark.parametrize("place", ["dev", "sys", "sys/bus/pci/devices", "usr", "usr/bin/nvidia-smi", "proc"])
    @pytest.mark.parametrize("strange", ["a file", "a folder", "a loop", "a closed folder"])
    def test_strange_files_are_no_device(self, root: Path, place: str, strange: str) -> None:
        """A file where a folder belongs, a folder where a program does, a loop of links, no permission."""
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if strange == "a file":
            path.write_bytes(b"\xff\x00\n")
        elif strange == "a loop":
            path.symlink_to(path)
        else:
            path.mkdir(mode=0o755 if strange == "a folder" else 0)
        try:
            assert not self.make_finder().find(machine(root), timeout=_PATIENCE)
        finally:
            if not path.is_symlink():
                path.chmod(0o755)

    def test_nonsense_is_not_believed(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the tool says that it should not, no device is made of it, and nothing is raised."""
        for word, environment in self.make_nonsense(root, monkeypatch).items():
            found = self.make_finder().find(environment, timeout=_PATIENCE)
            assert isinstance(found, Trouble) or found == [], word

    def test_a_tool_that_never_answers_is_given_up(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time limit holds, and the answer is that it could not be told, which is not the same as nothing."""
        environment = self.make_stuck(root, monkeypatch)
        if environment is None:
            pytest.skip("this finder only looks at files")
        finder, answers = self.make_finder(), list[Answer]()
        asking = threading.Thread(target=lambda: answers.append(finder.find(environment, timeout=0.5)), daemon=True)
        asking.start()
        asking.join(_PATIENCE)
        assert [type(answer) for answer in answers] == [Trouble]

    def test_no_time_left_is_no_error(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a time limit of zero the finder answers what it can tell at once."""
        found = self.make_finder().find(self.make_machine(root, monkeypatch), timeout=0.0)
        assert isinstance(found, Hidden | Trouble) or all(isinstance(one, Accelerator) for one in found)

    def test_no_framework_is_imported(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Finding cards must not cost the seconds that importing a framework takes: not even a try is made."""
        environment = self.make_machine(root, monkeypatch)
        looking = _Watch()
        monkeypatch.setattr(sys, "meta_path", [looking, *sys.meta_path])
        assert isinstance(self.make_finder().find(environment, timeout=_PATIENCE), Sequence)
        assert looking.wanted.isdisjoint(_FRAMEWORKS)

    def test_no_network_is_touched(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No socket is opened."""
        opened: list[object] = []
        environment = self.make_machine(root, monkeypatch)
        monkeypatch.setattr(socket.socket, "__init__", lambda *arguments, **_: opened.append(arguments))
        assert isinstance(self.make_finder().find(environment, timeout=_PATIENCE), Sequence)
        assert opened == []
