"""The notebooks in the repository: made of their sources, executed, and fit to be shown anywhere."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

_PLACES = re.compile(r"/tmp\b|/var/folders|/root\b|/Users/|/home/(?!aistudi[o…])|machine-\d|notebook-|site-packages")
_INLINE = re.compile(r"data:image/[a-z+]+;base64,([A-Za-z0-9+/=]+)")


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def notebook(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code(notebook):
    """The cells that were executed."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if "install" not in cell.metadata.get("tags", ())]


def shown_files(notebook):
    """All that its outputs consist of, pictures decoded."""
    for cell in code(notebook):
        for output in cell.outputs:
            text = nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])]))
            yield text
            yield from (base64.b64decode(picture).decode("utf-8", "replace") for picture in _INLINE.findall(text))


def test_there_is_one_for_each_source(maker):
    """And no other."""
    assert maker.names() == NAMES == ["aistudio_demo", "colab_demo", "kaggle_demo", "keep_demo"]
    assert sorted(maker.MAKERS) == NAMES


def test_it_is_made_of_its_source(maker, name):
    """Cell for cell, so that nobody edits the one and forgets the other: run scripts/make_notebooks.py."""
    assert maker.is_made_of_its_source(name)


def test_it_was_executed_in_order_and_nothing_failed(notebook):
    """Each cell once, from the top; no error, and nothing on stderr."""
    executed = [cell.execution_count for cell in code(notebook)]
    assert executed == sorted(executed)
    assert len(set(executed)) == len(executed) > 5
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert all(output.name == "stdout" for output in outputs if output.output_type == "stream")


def test_it_shows_what_it_promises(maker, shown, name, notebook):
    """The training was broken off, went on after its beginning, and ended with the weights of the other one."""
    told = shown(notebook)
    assert told.went_on_from("chain" if name == "kaggle_demo" else "training") > 0
    assert told.is_equal()
    assert told.by("report") != ""
    if name != "kaggle_demo":
        assert "SIGKILL" in told.by("disconnect")


def test_it_renders_where_it_is_opened(name, notebook):
    """On GitHub and in any Jupyter: valid, small, for an ordinary kernel, and without what viewers strip or refuse."""
    nbformat.validate(notebook)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 150_000
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    html = "".join(output.data.get("text/html", "") for output in outputs if "data" in output)
    assert "<table" in html
    assert re.search(r"<(svg|style|script|iframe)|https?://(?!drive\.google\.com)", html) is None
    assert "application/vnd.jupyter.widget-view+json" not in nbformat.writes(notebook)


def test_it_tells_nothing_of_the_machine_that_made_it(notebook):
    """No home, no temporary folder, no installation; also not inside its pictures."""
    assert [_PLACES.findall(text) for text in shown_files(notebook) if _PLACES.search(text)] == []


def test_its_links_lead_somewhere(notebook):
    """To files of this repository, beside it."""
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", texts) if not link.startswith("https://")]
    assert [link for link in links if not (FOLDER / link).is_file()] == []


def test_the_readme_leads_to_each(name):
    """The notebook is found by whoever reads the first page."""
    assert f"notebooks/{name}.ipynb" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")


def test_a_changed_source_is_noticed(maker, monkeypatch, tmp_path):
    """One word of one cell; and the command line says which notebook, with status 1."""
    shutil.copytree(FOLDER, tmp_path / "notebooks")
    monkeypatch.setattr(maker, "FOLDER", tmp_path / "notebooks")
    assert maker.is_made_of_its_source("colab_demo")
    source = tmp_path / "notebooks" / "source" / "colab_demo.py"
    source.write_text(source.read_text(encoding="utf-8").replace("EPOCHS = 8", "EPOCHS = 9"), encoding="utf-8")
    assert not maker.is_made_of_its_source("colab_demo")
    monkeypatch.setattr("sys.argv", ["make_notebooks.py", "--check"])
    assert maker.main() == 1


def test_a_source_becomes_cells(maker, monkeypatch, tmp_path):
    """Texts lose their marks, magics are magics again, also indented ones, and tags are kept."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "n.py").write_text(
        '"""For linters."""\n\n# %% [markdown]\n# # Title\n#\n# Text.\n\n# %% tags=["parameters"]\n'
        "A = 1  # %d\n\n# %%\nif A:\n    # %pip install x\n    # a comment\n# !ls\n"
    )
    monkeypatch.setattr(maker, "FOLDER", tmp_path)
    text, parameters, last = maker.source("n").cells
    assert (text.cell_type, text.source) == ("markdown", "# Title\n\nText.")
    assert (parameters.cell_type, parameters.source) == ("code", "A = 1  # %d")
    assert maker.tagged(maker.source("n"), "parameters") == parameters
    assert last.source == "if A:\n    %pip install x\n    # a comment\n!ls"


def test_the_stand_in_s_place_is_taken_out_of_what_was_shown(maker, tmp_path):
    """Paths read as they do on the service; and a stream that came in pieces is one."""

    class Machine:
        root = tmp_path

    outputs = [nbformat.v4.new_output("stream", text=text) for text in (f"in {tmp_path}/content/a\n", "b\n")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=outputs)], metadata={"widgets": {}})
    maker.clean(notebook, Machine())
    assert [output.text for output in notebook.cells[0].outputs] == ["in /content/a\nb\n"]
    assert "widgets" not in notebook.metadata


def test_a_place_that_was_cut_off_within_the_stand_in_is_told_as_the_service_would(maker):
    """The panel cuts long places: with its folder taken out, one that fits is whole, and a longer one is cut where the
    panel would have cut it. What was cut before the folder began, or is none of the stand-in's, stays."""

    class Machine:
        root = Path("/tmp/notebook-world-ab12cd34/machine-1")

    whole, long = "mounted:///content/drive/MyDrive/colabkeep", "/kaggle/working/" + "x" * 60
    texts = [
        f"checkpoints in mounted://{Machine.root}/content/drive/MyDrive/colabkeep, and {Machine.root}{long}.",
        f"| mounted:///tmp/notebook-world-ab12cd34/machin… | {Machine.root}/kaggle/w… | mou… | /opt/y… |",
    ]
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", {"text/html": t}) for t in texts])
    maker.clean(nbformat.v4.new_notebook(cells=[cell]), Machine())
    assert [output.data["text/html"] for output in cell.outputs] == [
        f"checkpoints in {whole}, and {long}.",
        f"| {whole} | {long[:47]}… | mou… | /opt/y… |",
    ]
