"""A run is called as its user calls it, in any script; and after its notebook or program where nobody says."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import colabkeep
from colabkeep.core.errors import CheckpointNotFound, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.core.system import Environment
from colabkeep.stores.memory import MemoryStore
from colabkeep.ui import cli

NAMES = ["训练一", "résumé v2", "exp/lr=0.1, bs=32", "наша модель"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_any_name_resumes_and_is_shown_as_written(
    tmp_path: Path, kit: SimpleNamespace, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It goes on under its name, however an accent was typed, and every command takes and says that name."""
    kit.fit(tmp_path, run_name=name, max_steps=7)
    result = kit.fit(tmp_path, run_name=unicodedata.normalize("NFD", name), max_epochs=1)
    assert (result.resumed_from, result.run_name) == (7, name)
    assert all(file.relative_to(tmp_path).as_posix().isascii() for file in tmp_path.rglob("*"))
    where = ["--storage", str(tmp_path)]
    (folder,) = {file.relative_to(tmp_path).parents[-2] for file in tmp_path.rglob("run.json")}
    for words in (["list"], ["show", name], ["report", name], ["verify", name], ["prune", name, "--keep-last", "1"]):
        assert cli.main([*words, *where]) == 0
        assert name in capsys.readouterr().out, words
        assert cli.main([*words, *where, "--json"]) == 0
        assert name in str(json.loads(capsys.readouterr().out)), words
    assert cli.main(["show", name, *where]) == 0
    assert f"folder {folder}" in capsys.readouterr().out
    assert colabkeep.load_weights(name, storage=tmp_path)
    assert cli.main(["export", name, str(tmp_path / "w.safetensors"), *where]) == 0


def test_status_files_lie_beside_the_folder_of_the_run(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Their names are the folder's, and inside stands the name as it was written."""
    kit.fit(tmp_path, run_name="训练一", max_steps=3, progress="text")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert json.loads((tmp_path / f"{folder.name}.status.json").read_text())["run"] == "训练一"
    assert (tmp_path / f"{folder.name}.status.html").exists()


def test_deleting_takes_all_of_a_run_and_nothing_of_another(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Of two runs whose names differ in one character, only the one that was named goes."""
    for name in ("训练一", "训练二"):
        kit.fit(tmp_path, run_name=name, max_steps=3, progress="text")
    browser = colabkeep.browse(tmp_path)
    browser.delete("训练一").go("训练一")
    assert cli.main(["show", "训练二", "--storage", str(tmp_path)]) == 0
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and "4e00" in str(path.relative_to(tmp_path))]
    assert [name for name in left if not name.startswith(".")] == []


def test_a_run_is_found_by_what_its_folder_is_called(tmp_path: Path, kit: SimpleNamespace) -> None:
    """Who copies the folder's name from Drive's page finds the run; a training under it would be another: refused."""
    kit.fit(tmp_path, run_name="my run", max_steps=3)
    assert colabkeep.load_weights("u8--my_run", storage=tmp_path)
    with pytest.raises(UsageError, match="'my run'"):
        kit.fit(tmp_path, run_name="u8--my_run")


def test_a_name_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, kit: SimpleNamespace) -> None:
    """As they are written, not as their folders are called."""
    kit.fit(tmp_path, run_name="训练一", max_steps=3)
    with pytest.raises(CheckpointNotFound) as caught:
        colabkeep.load_weights("训练", storage=tmp_path)
    assert "训练一" in caught.value.remedy


@pytest.mark.parametrize("name", ["blobs", "exp/checkpoints", "exp.status.html", "run.json"])
def test_a_new_run_is_not_called_like_our_own_files(tmp_path: Path, kit: SimpleNamespace, name: str) -> None:
    """With a name that would do; nothing is written."""
    with pytest.raises(UsageError, match="own files") as caught:
        kit.fit(tmp_path, run_name=name)
    assert "my-" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_called_so_before_goes_on(
    tmp_path: Path, kit: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version let a run be called "lease": it is read, and trained on."""
    with monkeypatch.context() as earlier:
        earlier.setattr("colabkeep.session.open.refuse_reserved", lambda store, name: None)
        kit.fit(tmp_path, run_name="lease", max_steps=7)
    assert colabkeep.load_weights("lease", storage=tmp_path)
    assert kit.fit(tmp_path, run_name="lease", max_epochs=1).resumed_from == 7


def unnamed(kit: SimpleNamespace, storage: Any, **words: Any) -> tuple[Any, list[str]]:
    """A cell without a run_name: its result, and what was said."""
    told: list[Event] = []
    cell = kit.cell(storage, callbacks=[told.append], **words)
    del cell["run_name"]
    result = colabkeep.resumable_fit(**cell)
    return result, [event.text for event in told if isinstance(event, Noted)]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Be in a program or notebook of that file."""
    here = Environment.here

    def be(file: str) -> None:
        changed = {name: getattr(here(), name) for name in Environment.__dataclass_fields__} | {"program": file}
        monkeypatch.setattr(Environment, "here", classmethod(lambda _: Environment(**changed)))

    return be


def test_two_notebooks_without_a_name_have_two_runs(tmp_path: Path, kit: SimpleNamespace, program: Any) -> None:
    """Each is called after its file, says so, and goes on where it was."""
    program("/drive/first.ipynb")
    assert unnamed(kit, tmp_path, max_steps=3)[0].run_name == "first"
    program("/drive/训练.ipynb")
    result, told = unnamed(kit, tmp_path, max_steps=3)
    assert (result.run_name, result.resumed_from) == ("训练", None)
    assert any("训练.ipynb" in text and 'run_name="训练"' in text for text in told)
    program("/elsewhere/first.ipynb")
    assert unnamed(kit, tmp_path, max_steps=4)[0].resumed_from == 3


@pytest.mark.parametrize("file", ["/drive/second.ipynb", ""])
def test_a_run_that_was_called_default_goes_on(tmp_path: Path, kit: SimpleNamespace, program: Any, file: str) -> None:
    """Who relied on the old default finds the run where it was, and hears whose it might be."""
    kit.fit(tmp_path, run_name="default", max_steps=3)
    program(file)
    result, told = unnamed(kit, tmp_path, max_steps=4)
    assert (result.run_name, result.resumed_from) == ("default", 3)
    assert any('run_name="default"' in text for text in told)


@pytest.mark.parametrize("file", ["", "Untitled3.ipynb", "/a/checkpoints.py"])
def test_nobody_shares_a_run_without_knowing(tmp_path: Path, kit: SimpleNamespace, program: Any, file: str) -> None:
    """Where nothing says what this notebook is called, the line to write is said, and nothing is written."""
    program(file)
    with pytest.raises(UsageError, match="run_name is not given") as caught:
        unnamed(kit, tmp_path)
    assert 'run_name="my-run"' in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_what_ends_with_the_process_needs_no_name(kit: SimpleNamespace, program: Any) -> None:
    """Nobody else can ever come to a store in memory."""
    program("")
    assert unnamed(kit, MemoryStore(), max_steps=2)[0].run_name == "default"


SCRIPT = """
import sys
from colabkeep.core.system import Environment
print(Environment.here().program)
"""


def test_a_program_is_known_by_its_file(tmp_path: Path) -> None:
    """A script and a package that is run; a program on the command line has none."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(SCRIPT)
    package = str(Path(colabkeep.__file__).parents[1])

    def said(*words: str) -> str:
        environ = {"PYTHONPATH": package, "JPY_SESSION_NAME": "/of/a/kernel.ipynb"}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert said("train.py").endswith("train.py")
    assert said("-m", "pack").endswith("pack/__main__.py")
    assert said("-c", SCRIPT) == ""


def test_a_package_that_is_run_names_the_run(tmp_path: Path, kit: SimpleNamespace, program: Any) -> None:
    """`python -m pack` is "pack", and not "__main__"."""
    program("/somewhere/pack/__main__.py")
    assert unnamed(kit, tmp_path, max_steps=2)[0].run_name == "pack"
