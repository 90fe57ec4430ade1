"""The right adapter is found, and nothing is imported to find it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from colabkeep.core.errors import MissingDependency, UsageError
from colabkeep.frameworks import FRAMEWORKS, Entry, find_framework, open_framework
from colabkeep.frameworks.base import TrainingOptions
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.testing.frameworks import Keeper

INSTALLED = [entry.name for entry in FRAMEWORKS if find_spec(entry.module) is not None]
OTHERS = [entry for entry in FRAMEWORKS if entry.name != "numpy"]


@pytest.mark.parametrize("things", [[], [Keeper()], [np.ones(1)], [3, None]])
def test_plain_objects_are_handled_by_the_reference(things: list[object]) -> None:
    """What no framework owns is arrays and plain values, whatever else is imported here."""
    assert isinstance(find_framework(things), NumpyFramework)


def test_no_framework_is_imported_to_recognise_one() -> None:
    """An object cannot come from a package that nobody imported; a bare machine can use the reference."""
    code = (
        "import sys\n"
        "from colabkeep.frameworks import find_framework\n"
        "class Part:\n"
        "    def state_dict(self): return {'a': 1}\n"
        "    def load_state_dict(self, state): pass\n"
        "framework = find_framework([Part()])\n"
        "assert framework.capture({'p': Part(), 'rng': framework.rng()}).finish().parts['p']['state'] == {'a': 1}\n"
        "framework.fingerprint({})\n"
        "assert not {'torch', 'paddle', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", INSTALLED)
def test_each_framework_opens_by_its_name(name: str) -> None:
    """Two openings are two adapters: runs do not share memory."""
    one, other = open_framework(name), open_framework(name)
    assert one.name == name
    assert one is not other


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """A typo gets the list."""
    with pytest.raises(UsageError, match="torch, paddle, numpy"):
        open_framework("tensorflow")


@pytest.mark.parametrize("entry", OTHERS, ids=lambda entry: entry.name)
def test_a_framework_that_is_not_installed_says_how_to_get_it(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of torch on a machine without torch."""
    for name in [name for name in sys.modules if name.startswith(f"colabkeep.frameworks.{entry.name}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, entry.module, None)
    with pytest.raises(MissingDependency) as caught:
        open_framework(entry.name)
    assert "pip install" in caught.value.remedy


def test_the_reference_has_no_training_loop() -> None:
    """It says what to use instead."""
    with pytest.raises(UsageError, match="Run"):
        NumpyFramework().training(TrainingOptions(model=None, optimizer=None))
