"""Notebook services that fit into a folder.

Each fake is a context manager. It takes the folder that is the user's world and yields a machine with `environment`,
what detection is handed, and `root`, its disk; the next machine in the same world finds what the service keeps.
"""

from __future__ import annotations

from tests.fakes.platforms.colab import FakeColab, fake_colab
from tests.fakes.platforms.services import FakeAIStudio, FakeKaggle, fake_aistudio, fake_kaggle

__all__ = [
    "FakeAIStudio",
    "FakeColab",
    "FakeKaggle",
    "fake_aistudio",
    "fake_colab",
    "fake_kaggle",
]
