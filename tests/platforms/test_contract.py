"""Every platform, and every row of the table, keeps every promise of a platform."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest

from colabkeep.platforms.aistudio import AIStudioPlatform
from colabkeep.platforms.kaggle import KagglePlatform
from colabkeep.platforms.local import JupyterPlatform, ScriptPlatform
from colabkeep.platforms.services import ROWS, TablePlatform
from colabkeep.testing.platforms import PlatformContract, laptop
from tests.fakes.platforms import fake_aistudio, fake_kaggle

SHELL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f1b2c3d4e5f>"


class TestKaggle(PlatformContract):
    """The editor."""

    run_type = "Interactive"

    def make_platform(self):
        return KagglePlatform()

    @contextmanager
    def machine(self, folder):
        data = folder / "data"
        (data / "images" / "cats").mkdir(parents=True)
        (data / "images" / "cats" / "1.png").touch()
        with fake_kaggle(folder / "kaggle", run_type=self.run_type, inputs={"data": data}) as kaggle:
            yield kaggle.environment


class TestKaggleBatch(TestKaggle):
    """Save Version."""

    run_type = "Batch"


class TestAIStudio(PlatformContract):
    """With all its signs."""

    def make_platform(self):
        return AIStudioPlatform()

    @contextmanager
    def machine(self, folder):
        with fake_aistudio(folder) as studio:
            yield studio.environment


class TestJupyter(PlatformContract):
    """A notebook on a laptop."""

    def make_platform(self):
        return JupyterPlatform()

    @contextmanager
    def machine(self, folder):
        yield replace(laptop(folder), shell=SHELL)


class TestScript(PlatformContract):
    """Python on a laptop."""

    matches_everything = True

    def make_platform(self):
        return ScriptPlatform()

    @contextmanager
    def machine(self, folder):
        yield laptop(folder)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name, scope="class")
class TestRow(PlatformContract):
    """Each row of the table, with the signs of its first marker and its folders."""

    @pytest.fixture(autouse=True)
    def _row(self, row):
        self.row = row

    def make_platform(self):
        return TablePlatform(self.row)

    @contextmanager
    def machine(self, folder):
        here = laptop(folder)
        environ = dict(here.environ)
        for sign in self.row.markers[0]:
            name, _, value = sign.partition("=")
            if sign.startswith("/"):
                here.path(sign).mkdir(parents=True, exist_ok=True)
            else:
                environ[name] = value or "1"
        for kept in self.row.folders:
            here.path(kept.replace("~", "/home/student")).mkdir(parents=True, exist_ok=True)
        yield replace(here, environ=environ, shell=SHELL)
