"""kaggle_demo: versions of one notebook, each of which goes on from the output of the one before."""

from __future__ import annotations

import shutil

import pytest

from tests.fakes.platforms import fake_kaggle

pytestmark = pytest.mark.torch  # the notebook trains with it


@pytest.mark.parametrize(
    ("devices", "steps"),
    [('"auto"', 110), *(pytest.param(*each, marks=pytest.mark.long) for each in (('"auto"', 55), ("2", 110)))],
)
def test_a_chain_of_versions_ends_like_one_long_training(maker, shown, tmp_path, devices, steps):
    """Tried in the editor, then batch runs, given only the output of the one before: no step is done twice, and the
    weights are those of the unbroken training. In two processes, as on two cards, it is the same."""
    output, began = None, []
    places = list(range(0, 138, steps))
    for run_type in ("Interactive", "Batch", "Batch")[: len(places)]:
        notebook = maker.source("kaggle_demo")
        assert sum(cell.source.count('devices="auto"') for cell in notebook.cells) == 3
        for cell in notebook.cells:
            cell.source = cell.source.replace('devices="auto"', f"devices={devices}")
            cell.source = cell.source.replace("STEPS_PER_VERSION = 55", f"STEPS_PER_VERSION = {steps}")
        inputs = {} if output is None else {"notebooks/you/kaggle-demo": output}
        with fake_kaggle(tmp_path, run_type=run_type, inputs=inputs) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
            if output is not None:
                shutil.rmtree(output)
            output = machine.save_version()
        told = shown(notebook)
        began.append(told.went_on_from("chain"))
        assert f"Kaggle ({run_type.lower()})" in told.everywhere()
        assert ("FINISHED" in told.by("chain")) is (began == places)
    assert began == places
    assert told.is_equal()
