"""Every test has an environment of CI that runs it, and no environment passes for another one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environments import FRAMEWORKS, TESTS, chosen, installed, marked, needs


@dataclass(frozen=True)
class Suite:
    """One call of pytest in `.ci/run`: the frameworks there, the folders, and those that a test must need to be run."""

    frameworks: frozenset[str]
    folders: tuple[Path, ...]
    only: frozenset[str]

    def runs(self, file: Path, wanted: frozenset[str]) -> bool:
        """Does it run a test of that file which needs these frameworks?"""
        here = any(file.is_relative_to(folder) for folder in self.folders)
        return here and self.only <= wanted <= self.frameworks


def suites(root: Path) -> list[Suite]:
    """Those of `.ci/run`."""
    text = (root / ".ci/run").read_text().replace("\\\n", " ")
    found = []
    for frameworks, rest in re.findall(r"--frameworks=([\w,]+)\"?(.*)$", text, re.MULTILINE):
        words = shlex.split(rest.replace('"${quick_start[1]}"', ""))
        folders = tuple(path for word in words if word.startswith("tests") for path in root.glob(word)) or (
            root / "tests",
        )
        marks = words[words.index("-m") + 1].split() if "-m" in words else []
        only = frozenset(name for name in FRAMEWORKS if name in marks)
        found.append(Suite(frozenset(frameworks.split(",")), folders, only))
    return found


def homeless(root: Path, file: Path) -> list[frozenset[str]]:
    """The needs of tests in a file that no suite meets."""
    wanted = {needs(file), *(needs(file) | {name} for name in marked(file))}
    return [one for one in wanted if not any(suite.runs(file, one) for suite in suites(root))]


def test_ci_has_a_suite_for_each_environment(root: Path) -> None:
    """torch alone, Paddle alone, and both."""
    assert [sorted(suite.frameworks) for suite in suites(root)] == [["torch"], ["paddle"], ["paddle", "torch"]]


def test_every_test_is_run_by_ci(root: Path) -> None:
    """A new file with tests belongs to an environment by what it needs, or this says that it does not."""
    files = sorted(TESTS.rglob("test_*.py"))
    assert len(files) > 200
    assert {str(file.relative_to(root)): bad for file in files if (bad := homeless(root, file))} == {}


def test_what_needs_a_cuda_device_is_run_by_ci_on_a_simulated_one(root: Path) -> None:
    """`python -m tests.simcuda` finds these files by their mark."""
    text = (root / ".ci/run").read_text()
    assert re.search(r"^simulated\(\) {\n(    .*\n)*    python -m tests\.simcuda --few\n}", text, re.MULTILINE)
    assert {"begin simulated", "end simulated"} <= set(text.splitlines())


@pytest.mark.parametrize(
    ("place", "wanted", "found"),
    [
        ("session/paddle/test_x.py", "paddle", True),
        ("core/paddle/test_x.py", "paddle", False),  # the suite with Paddle does not look there
        ("core/test_x.py", "torch", True),
        ("core/test_x.py", "", True),
        ("session/together/test_x.py", "torch paddle", True),
        ("session/test_x.py", "jax", False),
    ],
)
def test_a_test_that_no_environment_runs_is_noticed(root: Path, place: str, wanted: str, found: bool) -> None:
    """The rule above is not blind."""
    assert any(suite.runs(TESTS / place, frozenset(wanted.split())) for suite in suites(root)) is found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import torch\n", {"torch"}),
        ("from paddle import nn\n", {"paddle"}),
        ("import safetensors.paddle\n", {"paddle"}),
        ("from tests.trainings.torch import Noisy\n", {"torch"}),
        ("import torch\nimport paddle\n", {"torch", "paddle"}),
        ("import os\nx = lazily('torch')\npytestmark = [\n    pytest.mark.torch,\n]\n", {"torch"}),
        ("pytestmark = pytest.mark.ui\n@pytest.mark.torch\ndef test_one():\n    pass\n", set()),
        ("import torchvision_like\ndef f():\n    import torch\n", set()),
    ],
)
def test_what_a_file_needs_is_read_from_imports_and_first_mark(text: str, wanted: set[str], tmp_path: Path) -> None:
    """Nobody keeps a list of files that could be forgotten."""
    file = tmp_path / "test_x.py"
    file.write_text(text)
    assert needs(file) == wanted


def test_a_folder_says_what_its_files_need() -> None:
    """Folders carry the framework's name; "together" means both."""
    assert needs(TESTS / "anything/paddle/test_x.py") == {"paddle"}
    assert needs(TESTS / "anything/together/test_x.py") == set(FRAMEWORKS)


def test_an_environment_that_is_another_one_is_refused() -> None:
    """A suite that claims to run without torch does not run where torch is."""
    other = "paddle" if installed() == {"torch"} else "torch"
    if installed() == {other}:
        other = "torch,paddle"
    with pytest.raises(ValueError, match=re.escape(f"--frameworks={other}, but installed are")):
        chosen(other)


@pytest.mark.parametrize(("words", "status"), [([], 0), (["--no-skips"], 1)])
def test_a_skipped_test_fails_the_suite_that_allows_none(words: list[str], status: int, tmp_path: Path) -> None:
    """Where everything must be tested, "skipped" is a failure."""
    (tmp_path / "test_x.py").write_text("import pytest\ndef test_x():\n    pytest.skip('not here')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", tmp_path, "-q", *words, tmp_path]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
