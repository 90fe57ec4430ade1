"""Every obligation of a platform, for Colab in each of its kinds and with Drive in each of its states."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

from colabkeep.platforms.colab.platform import ColabPlatform
from colabkeep.testing.platforms import PlatformContract
from tests.fakes.platforms import fake_colab


class _Colab(PlatformContract):
    words: ClassVar[dict[str, str]]

    def make_platform(self):
        return ColabPlatform()

    @contextmanager
    def machine(self, folder):
        with fake_colab(folder, **self.words) as colab:
            colab.pace = 0.001
            yield colab.environment


class TestHosted(_Colab):
    """The notebook's kernel, Drive not mounted yet."""

    words: ClassVar = {}


class TestHostedWithDrive(_Colab):
    """After `mount`."""

    words: ClassVar = {"drive": "mounted"}


class TestHostedWithADeadDrive(_Colab):
    """After nine hours."""

    words: ClassVar = {"drive": "dead"}


class TestHostedWithoutAnswers(_Colab):
    """A front end that keeps silent."""

    words: ClassVar = {"front_end": "absent"}


class TestProcess(_Colab):
    """`!python train.py`."""

    words: ClassVar = {"kind": "process"}


class TestEnterprise(_Colab):
    """Colab Enterprise."""

    words: ClassVar = {"kind": "enterprise"}


class TestLocal(_Colab):
    """The docker runtime."""

    words: ClassVar = {"kind": "local"}
