"""Make the notebooks of their sources, and execute them: `python scripts/make_notebooks.py [NAME …]`.

A source is a percent script, notebooks/source/NAME.py: cells begin with `# %%`, text cells with `# %% [markdown]`, and
magics are comments (`# %pip …`); what stands before the first cell is for linters. Each notebook is executed on a
stand-in of its service from `tests.fakes.platforms`, on the CPU, and kept with what it showed. Without execution:
`--check` says which notebooks no longer have the cells of their source.

Needs colabkeep with its extra [test], and for aistudio_demo [test-paddle]: they train with torch, and with Paddle.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import nbformat
from nbclient import NotebookClient

import colabkeep
from colabkeep.core.system import Environment

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `tests` is; last: what is installed comes first

from tests.fakes.platforms import fake_aistudio, fake_colab, fake_kaggle

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
MACHINE = Path(__file__).with_name("notebook_machine")

METADATA = nbformat.from_dict(
    {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
)
PATIENCE = 240  # seconds for a cell, many times what the longest takes

_CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?(?: tags=(?P<tags>\[.*\]))?$", re.MULTILINE)
_PLACE = re.compile(r"[^\s\"'<>\\,;()…]+(?![^\s\"'<>\\,;()]*…)")
_CUT = re.compile(r"([^\s\"'<>\\,;()…]+)…")
_MAGIC = re.compile(r"^( *)# (?=[%!])", re.MULTILINE)

Notebook = nbformat.NotebookNode


class Machine(Protocol):
    """A stand-in of a service's machine, as `tests.fakes.platforms` makes them."""

    root: Path

    @property
    def environment(self) -> Environment: ...


def names() -> list[str]:
    """The names of all notebooks."""
    return sorted(path.stem for path in (FOLDER / "source").glob("*.py"))


def source(name: str) -> Notebook:
    """A notebook as its source says, not executed."""
    text = (FOLDER / "source" / f"{name}.py").read_text(encoding="utf-8")
    marks = list(_CELL.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    parts = [text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]
    cells = [_cell(number, mark, part) for number, (mark, part) in enumerate(zip(marks, parts, strict=True))]
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def _cell(number: int, mark: re.Match[str], text: str) -> Notebook:
    words: dict[str, Any] = {"id": f"cell-{number:02d}"}  # of the place: a change elsewhere is no change here
    if mark["tags"]:
        words["metadata"] = {"tags": json.loads(mark["tags"])}
    text = text.strip("\n")
    if mark["markdown"]:
        return nbformat.v4.new_markdown_cell("\n".join(line[2:] for line in text.split("\n")), **words)
    return nbformat.v4.new_code_cell(_MAGIC.sub(r"\1", text), **words)


def tagged(notebook: Notebook, tag: str) -> Notebook:
    """The cell with that tag."""
    (found,) = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]
    return found


def set_parameters(notebook: Notebook, **values: object) -> None:
    """What papermill does: a cell after the one tagged `parameters` gives them other values."""
    cell = nbformat.v4.new_code_cell("\n".join(f"{name} = {value!r}" for name, value in values.items()))
    notebook.cells.insert(notebook.cells.index(tagged(notebook, "parameters")) + 1, cell)


def execute(notebook: Notebook, folder: Path, machine: Machine | None = None, **hooks: Callable[..., None]) -> None:
    """Execute a notebook in place, with the working folder `folder`, on a stand-in or as on a machine of one's own.

    The cell tagged `install` is not executed: what would be installed is what runs this. `hooks` are nbclient's.

    Raises:
        CellExecutionError: a cell failed; the text holds its source, its output and the traceback.
        DeadKernelError: the kernel died.
    """
    installs = [cell for cell in notebook.cells if "install" in cell.metadata.get("tags", ())]
    commands = [cell.source for cell in installs]
    for cell in installs:
        cell.source = ""
    client = NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        **hooks,
    )
    with tempfile.TemporaryDirectory(prefix="notebook-home-") as home:
        try:
            client.execute(env=_environ(Path(home), machine))
        finally:
            for cell, command in zip(installs, commands, strict=True):
                cell.source = command


def _environ(home: Path, machine: Machine | None) -> dict[str, str]:
    """The kernel's variables: a home of its own, this very colabkeep, and the facts of the stand-in."""
    paths = [str(_installed(machine)), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "IPYTHONDIR": str(home / "ipython"), "JUPYTER_RUNTIME_DIR": str(home / "runtime")}
    if machine is not None:
        paths = [str(MACHINE), *paths, str(ROOT)]  # the last one for `tests.fakes`
        environ["COLABKEEP_STAND_IN"] = json.dumps(_facts(machine))
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _installed(machine: Machine | None) -> Path:
    """The folder to import colabkeep from: on AI Studio the one where packages survive, as the first cell has it."""
    package = Path(colabkeep.__file__).parent
    libraries: Path | None = getattr(machine, "libraries", None)
    if libraries is None:
        return package.parent
    libraries.mkdir(exist_ok=True)
    if not (libraries / package.name).is_symlink():
        (libraries / package.name).symlink_to(package)
    return libraries


def _facts(machine: Machine) -> Mapping[str, Any]:
    here = machine.environment
    account = getattr(machine, "account", None)  # Colab's Drive
    return {
        "environ": dict(here.environ),
        "root": str(here.root),
        "modules": sorted(here.modules),
        "hostname": here.hostname,
        "prefix": here.prefix,
        "shell": here.shell,
        "account": None if account is None else str(account),
    }


def clean(notebook: Notebook, machine: Machine) -> None:
    """Take away what belongs to this execution: the stand-in's place on this disk and widgets."""
    notebook.metadata = METADATA  # without the widgets' state, and the version of this Python
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs = _joined(cell.outputs)
    away = _Away(str(machine.root), (_text(output) for cell in cells for output in cell.outputs))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    for cell in cells:
        cell.outputs = [nbformat.from_dict(json.loads(away.take(_text(output)))) for output in cell.outputs]


def _joined(outputs: list[Notebook]) -> list[Notebook]:
    """Consecutive texts of one stream as one output: how they were cut is an accident."""
    joined: list[Notebook] = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


@contextmanager
def uploading(drive: Path) -> Iterator[None]:
    """What Colab's DriveFS does besides: each file in the Drive is uploaded, and says so in its attributes
    (`colabkeep.stores.colab_drive.uploads`). Without that, a run waits for it at its end.

    A file system without such attributes leaves it at the waiting.
    """
    over = threading.Event()
    thread = threading.Thread(target=_upload, args=(drive, over), name="drivefs")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _upload(drive: Path, over: threading.Event) -> None:
    sizes: dict[Path, int] = {}
    while not over.wait(0.1):
        for file in drive.rglob("*"):
            with suppress(OSError):  # it was deleted in the meantime; or there are no attributes
                size = file.stat().st_size
                if file.is_file() and sizes.get(file) == size:  # nobody is writing it
                    os.setxattr(file, "user.drive.uncommitted", b"0")
                    os.setxattr(file, "user.drive.id", hashlib.sha256(bytes(file)).hexdigest().encode())
                sizes[file] = size


def _text(output: Notebook) -> str:
    return json.dumps(output, ensure_ascii=False)


class _Away:
    """Takes the folder `root` of a stand-in out of texts. Where a face cut a place off so early that the folder is not
    whole any more, the place is found among those that `texts` have whole: the one that they have most often."""

    def __init__(self, root: str, texts: Iterable[str]) -> None:
        self._root = root
        places = (place.rstrip(".:") for text in texts for place in _PLACE.findall(text) if root in place)
        self._places = [place for place, _ in Counter(places).most_common()]

    def take(self, text: str) -> str:
        """The text as it would read on the service."""
        return _CUT.sub(self._whole, text).replace(self._root, "")

    def _whole(self, cut: re.Match[str]) -> str:
        begin = cut[1]
        cuts = (place for place in self._places if place.startswith(begin) and place.find(self._root) + 1 < len(begin))
        whole = next(cuts, cut[0]).replace(self._root, "")
        return whole if len(whole) <= len(cut[0]) else whole[: len(begin)] + "…"


def make_colab(folder: Path) -> Notebook:
    """As a new user's first session on Colab, without a GPU."""
    with fake_colab(folder) as machine, uploading(machine.account):
        return _executed("colab_demo", machine)


def make_kaggle(folder: Path) -> Notebook:
    """As the third and last version of a batch chain: each has the output of the one before as its input."""
    inputs: dict[str, Path] = {}
    for _ in range(3):
        with fake_kaggle(folder, run_type="Batch", inputs=inputs) as machine:
            notebook = _executed("kaggle_demo", machine)
            inputs = {"notebooks/you/kaggle-demo": machine.save_version()}
    return notebook


def make_aistudio(folder: Path) -> Notebook:
    """As the first start."""
    with fake_aistudio(folder) as machine:
        return _executed("aistudio_demo", machine)


def make_keep(folder: Path) -> Notebook:
    """As a new user's first session on Colab, without a GPU."""
    with fake_colab(folder) as machine, uploading(machine.account):
        return _executed("keep_demo", machine)


def _executed(name: str, machine: Machine) -> Notebook:
    notebook = source(name)
    execute(notebook, machine.environment.folder, machine)
    clean(notebook, machine)
    return notebook


MAKERS: Mapping[str, Callable[[Path], Notebook]] = {
    "aistudio_demo": make_aistudio,
    "colab_demo": make_colab,
    "kaggle_demo": make_kaggle,
    "keep_demo": make_keep,
}


def is_made_of_its_source(name: str) -> bool:
    """Has the notebook the cells of its source?"""
    made = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    return [_identity(cell) for cell in made.cells] == [_identity(cell) for cell in source(name).cells]


def _identity(cell: Notebook) -> tuple[object, ...]:
    return cell.id, cell.cell_type, cell.source, cell.metadata.get("tags")


def main() -> int:
    """Make the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(MAKERS)} (default: all)")
    parser.add_argument("--check", action="store_true", help="make nothing; status 1 if one is not made of its source")
    words = parser.parse_args()
    chosen = words.names or names()
    if words.check:
        stale = [name for name in chosen if not is_made_of_its_source(name)]
        sys.stdout.writelines(f"{name}: not made of its source; run scripts/make_notebooks.py\n" for name in stale)
        return 1 if stale else 0
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="notebook-world-") as world:
            notebook = MAKERS[name](Path(world))
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        sys.stdout.write(f"{name}: {(FOLDER / f'{name}.ipynb').stat().st_size / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
