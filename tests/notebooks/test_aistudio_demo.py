"""aistudio_demo: the story with Paddle, where `work` is what survives, in two languages, without torch or Google."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.fakes.platforms import fake_aistudio

STEPS = 23  # of an epoch
LOADED = nbformat.v4.new_code_cell("print('torch' in sys.modules, colabkeep.__file__)", metadata={"tags": ["loaded"]})


@pytest.mark.paddle
def test_on_aistudio_the_killed_training_ends_like_the_other_one_and_the_next_start_goes_on(maker, shown, tmp_path):
    """Killed in the middle of an epoch, equal in the end; after a restart more epochs go on from there, and the package
    is still where the first cell would have installed it. torch is not touched."""
    for epochs, before in ((3, 1), (5, 3 * STEPS)):
        notebook = maker.source("aistudio_demo")
        maker.set_parameters(notebook, EPOCHS=epochs)
        notebook.cells.append(LOADED.copy())
        with fake_aistudio(tmp_path) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
        told = shown(notebook)
        assert re.search(r"batch \d+ of 23: KILLED", told.by("disconnect"))
        assert before <= told.went_on_from("training") < epochs * STEPS
        assert told.is_equal()
        assert "/home/aistudio/work/colabkeep-runs" in told.by("place")
        assert "missing · 缺少: nothing" in told.by("packages")
        assert "external-libraries/colabkeep/__init__.py" in told.by("loaded")
        assert told.by("loaded").startswith("False")
        assert "installed in" not in told.by("check"), "what is in external-libraries stays"
        accuracy = re.search(r"准确率: ([\d.]+)%", told.by("best"))
        assert accuracy is not None
        assert float(accuracy[1]) > 80
        assert "unsaved" in told.by("own-loop")


@pytest.mark.paddle
def test_paddle_s_own_loop_goes_on_where_it_was(maker, shown, tmp_path):
    """`Model.fit` called for one epoch, then for two: one more is trained; and on the next start none."""
    for _ in range(2):
        notebook = maker.source("aistudio_demo")
        maker.set_parameters(notebook, EPOCHS=3)
        with fake_aistudio(tmp_path) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
    told = shown(notebook).by("hapi")
    assert re.findall(r": (\d+)$", told, re.MULTILINE) == [str(2 * STEPS), str(2 * STEPS)]


def test_each_text_is_in_both_languages(maker):
    """Whoever reads one of them only misses nothing that the other one is told."""
    texts = [cell.source for cell in maker.source("aistudio_demo").cells if cell.cell_type == "markdown"]
    assert all(re.search("[一-鿿]", text) and re.search("[a-z]{4}", text) for text in texts)
    assert len(texts) > 10


def test_no_code_of_it_asks_for_google_or_torch(maker):
    """The one cannot be reached from there, the other may be refused."""
    code = [cell.source for cell in maker.source("aistudio_demo").cells if cell.cell_type == "code"]
    assert "google" not in "\n".join(code).lower()
    assert "torch" not in "\n".join(code)
