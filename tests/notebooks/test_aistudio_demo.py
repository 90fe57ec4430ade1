"""aistudio_demo: the same story where `work` is what survives, in two languages and without Google."""

from __future__ import annotations

import re

from colabkeep.testing.platforms import fake_aistudio


def test_on_aistudio_the_killed_training_ends_like_the_other_one_and_the_next_start_goes_on(maker, shown, tmp_path):
    """Killed in the middle of an epoch, equal in the end; and after a restart more epochs go on from there."""
    for epochs, before in ((3, 1), (5, 3 * 23)):
        notebook = maker.source("aistudio_demo")
        maker.set_parameters(notebook, EPOCHS=epochs)
        with fake_aistudio(tmp_path) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
        told = shown(notebook)
        assert re.search(r"batch \d+ of 23: KILLED", told.by("disconnect"))
        assert before <= told.went_on_from("training") < epochs * 23
        assert told.is_equal()
        assert "/home/aistudio/work/colabkeep-runs" in told.everywhere()
        assert "missing · 缺少: nothing" in told.by("packages")


def test_each_text_is_in_both_languages(maker):
    """Whoever reads one of them only misses nothing that the other one is told."""
    texts = [cell.source for cell in maker.source("aistudio_demo").cells if cell.cell_type == "markdown"]
    assert all(re.search("[一-鿿]", text) and re.search("[a-z]{4}", text) for text in texts)
    assert len(texts) > 5


def test_no_code_of_it_asks_for_google(maker):
    """It cannot be reached from there."""
    code = [cell.source for cell in maker.source("aistudio_demo").cells if cell.cell_type == "code"]
    assert "google" not in "\n".join(code).lower()
