"""The kit for platforms sees what it is there to see, so that a contract that holds means something."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from colabkeep.platforms.local import ScriptPlatform
from colabkeep.testing.platforms import PlatformContract, laptop, watched
from tests.fakes.platforms import fake_kaggle


@pytest.mark.parametrize("name", ["read_text", "exists", "is_dir", "is_file", "stat", "is_symlink"])
def test_a_look_at_a_path_is_seen(tmp_path, name):
    """Whether a file is read, or only asked for its facts."""
    file = tmp_path / "file"
    file.touch()
    with watched() as deeds:
        getattr(file, name)()
    assert str(file) in deeds.looked
    assert deeds.changed == []


@pytest.mark.parametrize(("module", "name"), [(os, "stat"), (os, "lstat"), (os, "listdir"), (os.path, "isdir")])
def test_a_look_by_name_is_seen(tmp_path, module, name):
    """The functions of `os` and `os.path`, with a text."""
    with watched() as deeds:
        getattr(module, name)(str(tmp_path))
    assert str(tmp_path) in deeds.looked


def test_changes_imports_and_starts_are_seen(tmp_path, monkeypatch):
    """Files written or made, modules imported, processes and connections begun; and nothing after the block."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_service.py").touch()
    with watched() as deeds:
        (tmp_path / "new").write_text("x")
        (tmp_path / "folder").mkdir()
        import some_service  # noqa: F401

        subprocess.run([sys.executable, "-c", ""], check=True)
        socket.socket().close()
    assert str(tmp_path / "new") in deeds.changed
    assert str(tmp_path / "folder") in deeds.changed
    assert "some_service" in deeds.imported
    assert any("Popen" in what for what in deeds.started)
    assert any("socket" in what for what in deeds.started)
    before = len(deeds.changed)
    (tmp_path / "newer").write_text("x")
    assert len(deeds.changed) == before


class Spoilt(ScriptPlatform):
    """A platform that breaks one promise."""

    def __init__(self, breach):
        self.breach = breach

    def home(self, environment):
        self.breach(environment)
        return super().home(environment)


def touches(environment):
    (environment.folder / "probe").touch()


def looks_at_the_real_machine(environment):
    Path("/proc/uptime").exists()


def starts_a_process(environment):
    subprocess.run([sys.executable, "-c", ""], check=True)


def trusts_a_file(environment):
    environment.path("/etc/service").read_text()


@pytest.mark.parametrize(
    ("breach", "test"),
    [
        (touches, "test_telling_changes_and_starts_nothing"),
        (starts_a_process, "test_telling_changes_and_starts_nothing"),
        (looks_at_the_real_machine, "test_it_looks_only_below_the_root"),
    ],
)
def test_a_platform_that_breaks_a_promise_fails_its_contract(tmp_path, breach, test):
    """Each of these tests has something to catch."""
    contract, here = PlatformContract(), laptop(tmp_path)
    arguments = (Spoilt(breach), here, tmp_path)[: 3 if "changes" in test else 2]
    getattr(contract, test)(ScriptPlatform(), *arguments[1:])
    with pytest.raises(AssertionError):
        getattr(contract, test)(*arguments)


def test_a_platform_that_trusts_a_file_fails_its_contract(tmp_path):
    """A folder in the place of a file that it reads breaks it, and that is found."""

    class Contract(PlatformContract):
        @contextmanager
        def machine(self, folder):
            here = laptop(folder)
            here.path("/etc").mkdir(exist_ok=True)
            here.path("/etc/service").touch()
            yield here

    with pytest.raises(OSError, match="service"):
        Contract().test_a_hostile_machine_breaks_nothing(Spoilt(trusts_a_file), Path.mkdir, tmp_path)


def test_a_fake_kaggle_leaves_no_module_behind(tmp_path):
    """After the block `kaggle_secrets` is what it was: absent."""
    with fake_kaggle(tmp_path):
        assert "kaggle_secrets" in sys.modules
    assert "kaggle_secrets" not in sys.modules


def test_a_saved_version_keeps_what_the_service_keeps(tmp_path):
    """Files, with their folders; neither links nor empty folders."""
    with fake_kaggle(tmp_path) as kaggle:
        working = kaggle.environment.folder
        (working / "a" / "b").mkdir(parents=True)
        (working / "a" / "b" / "file").write_text("x")
        (working / "empty").mkdir()
        (working / "link").symlink_to("a/b/file")
        output = kaggle.save_version()
    assert {str(path.relative_to(output)) for path in output.rglob("*")} == {"a", "a/b", "a/b/file"}
