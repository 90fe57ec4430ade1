"""Imports only go down: the storeys of the house, checked by a machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import colabkeep
from colabkeep import frameworks, platforms, stores

# No tool sees an import by name. So the graph is read from the source here, where each text counts that could name a
# module; and `lint-imports` gets a copy in which such imports are statements.


class Imports(NamedTuple):
    """What a module imports by statements, and what else by name; of the package only."""

    stated: frozenset[str]
    named: frozenset[str]


@cache
def imports_of(module: str, text: str, modules: frozenset[str]) -> Imports:
    nodes = list(ast.walk(ast.parse(text)))  # whatever stands in a function, or for a type checker only
    stated = {name for node in nodes for name in stated_by(node, modules)}
    called = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes if isinstance(node, ast.Call)}
    by_name = called & {"import_module", "__import__"}
    named = {name for node in nodes if by_name for name in named_by(node, module, modules)}
    return Imports(modules & stated - {module}, modules & named - stated - {module, "colabkeep"})


def stated_by(node: ast.AST, modules: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None, "colabkeep has no relative imports"
        full = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in modules else node.module for name in full)


def named_by(node: ast.AST, module: str, modules: frozenset[str]) -> Iterator[str]:
    """A text may be handed to `import_module`, or be a row of a table with "module:function", or be put together."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.partition(":")[0]
    elif isinstance(node, ast.JoinedStr):
        pattern = "".join(pattern_of(part, module) for part in node.values)
        yield from (name for name in modules if pattern.startswith("colabkeep") and re.fullmatch(pattern, name))


def pattern_of(part: ast.expr, module: str) -> str:
    if isinstance(part, ast.Constant):
        return re.escape(part.value)
    own = isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id == "__name__"
    return re.escape(module) if own else ".+"


def read_package(root: Path) -> dict[str, str]:
    """Module → its text."""
    files = {path: path.relative_to(root).with_suffix("").parts for path in (root / "colabkeep").rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path.read_text() for path, parts in files.items()}


def with_planted(texts: Mapping[str, str], module: str, line: str) -> dict[str, str]:
    return {**texts, module: f"{texts[module]}\n{line}\n"}


def find_circle(texts: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle, by whatever way, the first one again at the end; [] without any."""
    modules = frozenset(texts)
    graph = {module: frozenset().union(*imports_of(module, text, modules)) for module, text in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def write_out(root: Path, texts: Mapping[str, str], folder: Path) -> Path:
    """A copy of the package with these texts, each import by name a statement; returns the folder."""
    shutil.copy(root / "pyproject.toml", folder)
    shutil.copytree(root / "colabkeep", folder / "colabkeep", ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in texts.items():
        place = folder.joinpath(*module.split("."))
        lines = [f"import {name}" for name in sorted(imports_of(module, text, frozenset(texts)).named)]
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        file.write_text("\n".join([text, *lines, ""]))
    return folder


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # The folder's own source is what is looked at, also where the package is installed.
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--config", "pyproject.toml", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contracts_are_kept(root: Path, tmp_path: Path) -> None:
    """Layers, strangers and heavy packages: every contract of pyproject.toml, by whatever way something is imported."""
    for folder in (root, write_out(root, read_package(root), tmp_path)):
        done = lint_imports(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout)


PLANTED = [  # contract, module, what is imported, how
    ("Five storeys", "core.manifest", "stores.base", "import colabkeep.stores.base"),
    ("Five storeys", "stores.memory", "frameworks.base", "import colabkeep.frameworks.base"),
    ("Five storeys", "session.run", "ui.report", 'import_module("colabkeep.ui.report")'),
    ("The engine", "checkpoint.codec", "stores.local", "import colabkeep.stores.local"),
    ("The engine", "checkpoint.writer", "stores.drive.store", "def f():\n    from colabkeep.stores.drive import store"),
    ("The engine", "checkpoint.inspect", "stores", "from colabkeep.stores import open_store"),
    ("The engine", "checkpoint.journal", "stores.hub.store", 'import_module("colabkeep.stores.hub.store")'),
    ("The engine", "checkpoint.restore", "frameworks", "from colabkeep.frameworks import find_framework"),
    ("The engine", "checkpoint.verify", "platforms.base", "import colabkeep.platforms.base"),
    ("The engine", "checkpoint.repository", "hardware.nvidia", "import colabkeep.hardware.nvidia"),
    ("No store knows", "stores.hub.store", "stores.memory", "from colabkeep.stores.memory import MemoryStore"),
    ("No store knows", "stores.drive.tree", "stores.local", "def f():\n    import colabkeep.stores.local"),
    ("No store knows", "stores.tiered", "stores.kaggle.index", 'import_module("colabkeep.stores.kaggle.index")'),
    ("No store knows", "stores.shared.retry", "stores.overlay", "import colabkeep.stores.overlay"),
    ("A store keeps", "stores.drive.files", "core.manifest", "from colabkeep.core.manifest import Manifest"),
    ("No platform knows", "platforms.aistudio", "platforms.local", "import colabkeep.platforms.local"),
    ("No framework knows", "frameworks.numpy", "frameworks.torch.rng", "import colabkeep.frameworks.torch.rng"),
    ("The product does not", "stores.local", "testing", "import colabkeep.testing"),
]
STRANGERS = [
    ("The vocabulary is", "core.state", "numpy", "import numpy"),
    ("Heavy packages", "session.run", "torch", "import torch"),
    ("On Paddle's way", "frameworks.paddle.facts", "torch", "import torch"),
    ("On torch's way", "frameworks.torch.facts", "paddle", "import paddle"),
]


@pytest.fixture(scope="module")
def complaints(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of the package with all of them planted."""
    texts = read_package(root)
    for _, module, _, line in (*PLANTED, *STRANGERS):
        texts = with_planted(texts, f"colabkeep.{module}", line)
    done = lint_imports(write_out(root, texts, tmp_path_factory.mktemp("planted")))
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("contract", "module", "imported"),
    [
        *((contract, module, f"colabkeep.{imported}") for contract, module, imported, _ in PLANTED),
        *((contract, module, imported) for contract, module, imported, _ in STRANGERS),
    ],
)
def test_a_forbidden_import_is_seen(contract: str, module: str, imported: str, complaints: str) -> None:
    """Each contract stops the imports that it is there for, so none of them has gone blind."""
    (section,) = re.findall(rf"^{contract}[^\n]*\n-+\n(.*?)(?=^[^\n]+\n---|\Z)", complaints, re.MULTILINE | re.DOTALL)
    assert f"colabkeep.{module} -> {imported} (" in section


def test_no_modules_import_each_other_in_a_circle(root: Path) -> None:
    """Whoever reads a module has then read all that it needs; no import has to wait until a function is called."""
    assert " → ".join(find_circle(read_package(root))) == ""


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("stores.base", "import colabkeep.stores.local"),
        ("core.layout", "def later():\n    from colabkeep.core import manifest"),
        ("ui.drawing", "if TYPE_CHECKING:\n    from colabkeep.ui.report import RunReport"),
        ("ui.report", 'def show(self):\n    import_module("colabkeep.ui.browse").show(self)'),
        ("stores.local", "def back():\n    from colabkeep.stores import open_store"),  # whose table names this one
        ("hardware.base", 'FINDER = "colabkeep.hardware.nvidia:find_nvidia"\nimport_module(FINDER.split(":")[0])'),
        ("platforms.base", 'import_module(f"colabkeep.platforms.{name}")'),
    ],
)
def test_a_circle_is_seen(module: str, line: str, root: Path) -> None:
    """Also one that is closed inside a function, for a type checker only, by name, or by a row of a table."""
    assert f"colabkeep.{module}" in find_circle(with_planted(read_package(root), f"colabkeep.{module}", line))


PARTS = [
    *(("PlatformContract", place) for place in platforms._PLATFORMS),
    *(("StoreContract", part.opener) for part in stores._PARTS),
    *(("FrameworkContract", entry.adapter) for entry in frameworks.FRAMEWORKS),
]


@pytest.mark.parametrize(("contract", "place"), PARTS, ids=[place for _, place in PARTS])
def test_each_part_is_held_to_its_contract(contract: str, place: str, root: Path) -> None:
    """A line in a table is a promise: some test hands that very part, imported there or in `conftest`, to the suite."""
    modules, module = frozenset(read_package(root)), place.partition(":")[0]
    suites = {path for path in (root / "tests").rglob("test_*.py") if f"({contract})" in path.read_text()}
    files = suites | {conftest for suite in suites if (conftest := suite.with_name("conftest.py")).exists()}
    parts = {name for file in files for name in imports_of("", file.read_text(), modules).stated}
    assert [name for name in parts if f"{name}.".startswith(f"{module}.")], f"no test hands {module} to {contract}"


@pytest.mark.parametrize("name", [name for name in colabkeep.__all__ if not name.startswith("__")])
def test_every_public_name_says_what_it_is(name: str) -> None:
    """`help(colabkeep.…)` has something to show for each name, beginning with a sentence of its own."""
    public = getattr(colabkeep, name)
    text = vars(public).get("__doc__") if isinstance(public, type) else public.__doc__  # not an inherited one
    assert text
    assert text.strip().split("\n\n")[0].rstrip().endswith(".")
