"""What is installed is what is meant to be: tested as a user gets it."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import colabkeep


@pytest.fixture(scope="module")
def installed() -> Distribution:
    """colabkeep as it was installed. In a working copy that is not, these tests say so; in CI that is a failure."""
    try:
        return distribution("colabkeep")
    except PackageNotFoundError:
        if os.environ.get("CI"):
            raise
        pytest.skip("colabkeep is not installed here, so its metadata cannot be looked at (pip install .)")


def requirements(of: Distribution) -> list[Requirement]:
    return [Requirement(line) for line in of.requires or ()]


def test_the_tests_run_against_the_installed_package(installed: Distribution, package: Path) -> None:
    """Not against the source folder, which may hold files that a wheel forgets."""
    home = Path(str(installed.locate_file("colabkeep"))).resolve()
    assert package == home, "another colabkeep comes first on sys.path: run `pytest`, not `python -m pytest`"
    if os.environ.get("CI"):
        assert home.parent == Path(sysconfig.get_path("purelib")).resolve(), "it is installed as a copy, not by a link"


def test_the_version_is_said_once(installed: Distribution, root: Path) -> None:
    """Metadata and package agree, and the changelog has a place for it."""
    assert installed.version == colabkeep.__version__
    changelog = (root / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{colabkeep.__version__}]" in changelog


def test_installing_changes_nothing_that_a_notebook_has(installed: Distribution) -> None:
    """Only floors: an upper bound or a pin would make pip replace what Colab and Kaggle came with."""
    operators = {spec.operator for requirement in requirements(installed) for spec in requirement.specifier}
    assert operators <= {">="}


def test_no_framework_is_pulled_in_unasked(installed: Distribution) -> None:
    """Frameworks are extras: on a Paddle notebook nobody downloads torch."""
    core = {canonicalize_name(r.name) for r in requirements(installed) if r.marker is None}
    assert "safetensors" in core
    assert core.isdisjoint({"torch", "numpy", "paddlepaddle", "lightning", "transformers", "scikit-learn"})
    assert {"torch", "demo", "test"} <= set(installed.metadata.get_all("Provides-Extra") or ())


def test_the_licence_comes_with_it(installed: Distribution, root: Path) -> None:
    """The Apache licence is named in the metadata, and its text is in the wheel."""
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    (licence,) = (file for file in installed.files or () if file.name == "LICENSE")
    assert licence.read_text() == (root / "LICENSE").read_text()


def test_types_are_shipped_and_tests_are_not(installed: Distribution) -> None:
    """`py.typed` is there for type checkers; nothing but the package, its command and its metadata is installed."""
    files = {file.as_posix() for file in installed.files or ()}
    assert "colabkeep/py.typed" in files
    tops = {file.split("/")[0] for file in files if not file.startswith("..")}
    assert {top for top in tops if not top.endswith((".dist-info", "__pycache__"))} == {"colabkeep"}


def test_the_command_is_installed_and_answers(installed: Distribution) -> None:
    """`colabkeep --help` works from any folder and names its words."""
    (command,) = installed.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("colabkeep", "colabkeep.ui.cli:main")
    program = Path(sysconfig.get_path("scripts")) / "colabkeep"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("demo", "list", "show", "verify", "export"):
        assert re.search(rf"\b{word}\b", done.stdout)


def test_the_readme_starts_anybody_with_two_lines(root: Path) -> None:
    """One block of two lines: the first shows the product, the second passes the tests."""
    readme = (root / "README.md").read_text()
    (section,) = re.findall(r"^## Quick start\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^```[a-z]*\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert section.count("```") == 2
    first, second = block.splitlines()
    assert re.fullmatch(r'pip install -c constraints\.txt "\.\[demo\]" && colabkeep demo', first)
    assert re.fullmatch(r'pip install -c constraints\.txt "\.\[test\]" && pytest', second)


def pinned(root: Path) -> list[Requirement]:
    lines = (root / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_constraints_hold_one_exact_version_of_everything(root: Path) -> None:
    """Each pin is exact, and on every Python there is one pin of each package."""
    pins = pinned(root)
    assert all([spec.operator for spec in pin.specifier] == ["=="] for pin in pins)
    assert {"torch": "==2.13.0", "paddlepaddle": "==3.3.1"}.items() <= {
        pin.name: str(pin.specifier) for pin in pins
    }.items()
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        valid = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": python})]
        assert len(valid) == len({canonicalize_name(name) for name in valid})


def test_everything_that_the_tests_install_is_pinned(installed: Distribution, root: Path) -> None:
    """No package comes in by the back door: whatever `.[test]` needs, directly or not, has its pin."""
    pins = {canonicalize_name(pin.name) for pin in pinned(root)}
    todo, seen = [("colabkeep", "test")], set()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in requirements(distribution(name)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                for wanted in requirement.extras or {""}:
                    todo.append((canonicalize_name(requirement.name), wanted))
    needed = {name for name, _ in seen} - {"colabkeep"}
    # The CUDA libraries are pinned by torch's own metadata.
    assert {name for name in needed - pins if not name.startswith(("nvidia-", "cuda-"))} == set()
    assert {"torch", "pytest", "safetensors", "pydrive2"} <= needed


def test_every_python_from_3_10_on_may_install_it(installed: Distribution) -> None:
    """pip refuses older ones with a sentence, and no newer one."""
    assert installed.metadata["Requires-Python"] == ">=3.10"
