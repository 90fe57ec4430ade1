"""Notebook services that fit into a folder, and the contract that every platform keeps. Needs pytest.

Each fake is a context manager. It takes the folder that is the user's world and yields a machine with `environment`,
what detection is handed, and `root`, its disk; the next machine in the same world finds what the service keeps.
"""

from __future__ import annotations

from colabkeep.testing.platforms.colab import FakeColab, fake_colab
from colabkeep.testing.platforms.contract import PlatformContract
from colabkeep.testing.platforms.services import FakeAIStudio, FakeKaggle, fake_aistudio, fake_kaggle

__all__ = [
    "FakeAIStudio",
    "FakeColab",
    "FakeKaggle",
    "PlatformContract",
    "fake_aistudio",
    "fake_colab",
    "fake_kaggle",
]
