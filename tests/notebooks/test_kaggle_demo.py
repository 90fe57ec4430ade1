"""kaggle_demo: versions of one notebook, each of which goes on from the output of the one before."""

from __future__ import annotations

import re
import shutil

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.fakes.platforms import fake_kaggle

pytestmark = pytest.mark.torch  # the notebook trains with it


@pytest.mark.parametrize("devices", ['"auto"', "2"])
def test_a_chain_of_versions_ends_like_one_long_training(maker, shown, tmp_path, devices):
    """Tried in the editor, then three batch runs, given only the output of the one before: no step is done twice, and
    the weights are those of the unbroken training. In two processes, as on two cards, it is the same."""
    output, began = None, []
    for run_type in ("Interactive", "Batch", "Batch"):
        notebook = maker.source("kaggle_demo")
        assert sum(cell.source.count('devices="auto"') for cell in notebook.cells) == 3
        for cell in notebook.cells:
            cell.source = cell.source.replace('devices="auto"', f"devices={devices}")
        inputs = {} if output is None else {"notebooks/you/kaggle-demo": output}
        with fake_kaggle(tmp_path, run_type=run_type, inputs=inputs) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
            if output is not None:
                shutil.rmtree(output)
            output = machine.save_version()
        told = shown(notebook)
        began.append(told.went_on_from("chain"))
        assert f"Kaggle ({run_type.lower()})" in told.everywhere()
        assert ("FINISHED" in told.by("chain")) is (len(began) == 3)
    assert began == [0, 55, 110]
    assert told.is_equal()


TWO = """
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import colabkeep

torch.manual_seed(0)
x = torch.randn(90, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=10, shuffle=True)
result = colabkeep.resumable_fit(
    model,
    loader,
    optimizer=optimizer,
    loss_fn=nn.functional.cross_entropy,
    max_steps={steps},
    run_name="two",
    devices=2,
)
print(result)
print("went on from", result.resumed_from)
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest())
"""


def test_a_chain_of_versions_trains_in_two_processes(maker, shown, tmp_path):
    """The processes know the machine as the notebook does: what a version leaves is found by those of the next one."""
    output, said = None, []
    for world, steps in (("whole", 27), ("chain", 13), ("chain", 27)):
        notebook = new_notebook(cells=[new_code_cell(TWO.format(steps=steps))])
        (tmp_path / world).mkdir(exist_ok=True)
        inputs = {"notebooks/you/kaggle-demo": output} if steps == 27 and output is not None else {}
        with fake_kaggle(tmp_path / world, run_type="Batch", inputs=inputs) as machine:
            maker.execute(notebook, machine.environment.folder, machine)
            saved = machine.save_version()
        output = saved if world == "chain" else None
        said.append(shown(notebook).everywhere())
    ends = [re.findall(r"went on from (\w+)\s+digest (\w+)", text)[-1] for text in said]
    assert [began for began, _ in ends] == ["None", "None", "13"]
    assert ends[2][1] == ends[0][1] != ends[1][1]
