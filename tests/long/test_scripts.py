"""A small share of `python -m tests.long.scripts`, through the very same program: a script under each trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.running import told_by

pytestmark = pytest.mark.torch

LIGHTNING = """
import torch
from pytorch_lightning import LightningModule, Trainer

class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def training_step(self, batch, number):
        return torch.nn.functional.mse_loss(self.layers(batch[0])[:, 0], batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

data = torch.utils.data.TensorDataset(torch.randn(36, 4), torch.randn(36))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Regression(), loader)
"""

TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))
data = [{"input_ids": torch.randint(0, 20, (6,)), "labels": number % 2} for number in range(36)]
words = TrainingArguments("own", per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no", use_cpu=True)
Trainer(model, words, train_dataset=data).train()
"""

KERAS = """
import keras
import numpy

drawn = numpy.random.default_rng(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(drawn.random((36, 4)), drawn.random((36, 1)), batch_size=4, epochs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [pytest.param(LIGHTNING, marks=pytest.mark.long), TRANSFORMERS, pytest.param(KERAS, marks=pytest.mark.long)],
    ids=["lightning", "transformers", "keras"],
)
def test_a_script_with_the_one_line_added_is_killed_and_ends_with_the_same_bits(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands: nothing of it knows of colabkeep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    Path("train.py").write_text(script)
    told, status = told_by("scripts", "--fork", "--kills", "2", "--seed", "3", "train.py")
    assert (told["differs"], status) == ("", 0)
    assert len(told["kills"]) == 2
    assert told["steps"] == 18
