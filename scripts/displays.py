"""What other displays of a training show, seen by running them: `python scripts/displays.py`.

The table in docs/panel.md goes by it.
Needs what `pip install ".[test]" transformers fastprogress==1.0.3 matplotlib rich` brings. Each display gets a small
training in a kernel of its own, one with a NaN in its data, too; what is printed was found in the messages that the
kernel sent ("live"), and in the notebook that is left ("stays"). Neither needs an account.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import re
import sys
import tempfile
from typing import Any

import nbformat
from nbclient import NotebookClient

DATA = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
x = torch.randn(640, 8)
y = (x[:, 0] > 0).long()
{broken}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16)
"""
BROKEN = "x[300] = float('nan')"
CELLS = {
    "HF Trainer": """
from transformers import Trainer, TrainingArguments
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def forward(self, x, labels):
        output = self.layer(x)
        return {"loss": F.cross_entropy(output, labels), "logits": output}
data = [{"x": one, "labels": label} for one, label in zip(x, y)]
each = {"eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"}
words = TrainingArguments("out", num_train_epochs=3, per_device_train_batch_size=16, report_to=[], use_cpu=True, **each)
accuracy = lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}
Trainer(Model(), words, train_dataset=data, eval_dataset=data, compute_metrics=accuracy).train()
""",
    "fastprogress": """
import time
from fastprogress.fastprogress import master_bar, progress_bar
epochs, losses, measured = master_bar(range(3)), [], []
epochs.write(["epoch", "train_loss", "valid_loss", "accuracy", "time"], table=True)
for epoch in epochs:
    for step in progress_bar(range(40), parent=epochs):
        time.sleep(0.02)
        losses.append(F.cross_entropy(x[:2] + len(losses), y[:2]).item())
        epochs.child.comment = f"loss {losses[-1]:.4f}"
    measured.append(losses[-1])
    epochs.write([str(epoch), f"{losses[-1]:.4f}", f"{measured[-1]:.4f}", "0.9", "00:01"], table=True)
    ends = [40 * (n + 1) for n in range(len(measured))]
    epochs.update_graph([[range(len(losses)), losses], [ends, measured]])
""",
    "Lightning with rich": """
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import RichProgressBar
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def training_step(self, batch):
        loss = F.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss
    def validation_step(self, batch):
        output = self.layer(batch[0])
        self.log("val_loss", F.cross_entropy(output, batch[1]), prog_bar=True)
        self.log("val_accuracy", (output.argmax(1) == batch[1]).float().mean(), prog_bar=True)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)
quiet = {"logger": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[RichProgressBar()], **quiet).fit(Model(), loader, loader)
""",
    "Keras": """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
data = x.numpy(), y.numpy()
model.fit(*data, batch_size=16, epochs=3, validation_data=data);
""",
    "colabkeep": """
import time
import colabkeep
model = nn.Linear(8, 2)
def slow(output, target):
    time.sleep(0.02)
    return F.cross_entropy(output, target)
result = colabkeep.resumable_fit(
    model, loader, optimizer=torch.optim.Adam(model.parameters(), 1e-2), loss_fn=slow, val_loader=loader, max_epochs=3,
    metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()}, gradient_clip_val=1.0,
    run_name="r", storage="runs",
)
""",
}
FACTS = {
    "training loss": r"(?i)train(ing)?.loss|\bloss\b",
    "validation loss": r"(?i)val(id|idation)?[_ ]loss",
    "accuracy": r"(?i)accuracy",
    "learning rate": r"(?i)learning rate",
    "gradient norm": r"(?i)gradient norm",
    "steps a second": r"steps/s|it/s|ms/step",
    "samples a second": r"samples/s|samples_per_second",
    "time left": r"to go|\d\d:\d\d *(?:&lt;|<) *\d|• \d+:\d\d:\d\d|\d+s\\u001b\[0m \d+ms",
    "a picture": r"<img|image/png",
    "the best epoch": r"(?i)\bbest\b",
    "memory": r"RAM: ",
    "what is saved": r"(?i)(safe|saved) up to",
    "widgets": r"widget-view",
}


class Listening(NotebookClient):  # type: ignore[misc]  # it has no types
    """Keeps what the kernel sends to be shown."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.sent: list[str] = []

    def process_message(self, message: Any, cell: Any, index: int) -> Any:
        """See nbclient."""
        if message["msg_type"] in ("stream", "display_data", "update_display_data", "execute_result", "error"):
            self.sent.append(json.dumps(message["content"], ensure_ascii=False))
        return super().process_message(message, cell, index)


def run(cell: str, broken: str) -> tuple[str, str]:
    """What was sent, and what is left in the notebook."""
    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python"}})
    book.cells = [nbformat.v4.new_code_cell(DATA.format(broken=broken) + cell)]
    with tempfile.TemporaryDirectory() as folder:
        client = Listening(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute()
    return "\n".join(client.sent), json.dumps(book.cells[0].outputs, ensure_ascii=False)


def main() -> int:
    """Print it."""
    for name, cell in CELLS.items():
        if not all(word in name for word in sys.argv[1:]):
            continue
        live, stays = run(cell, "")
        print(f"{name}: {len(stays) / 1000:.0f} kB stay")
        for fact, pattern in FACTS.items():
            found = [word for word, text in (("live", live), ("stays", stays)) if re.search(pattern, text)]
            print(f"    {fact}: {', '.join(found) or '-'}")
        if name != "fastprogress":  # it is told numbers, and knows no training
            _, stays = run(cell, BROKEN)
            nans = dict.fromkeys(re.findall(r"[\w ]{0,12}\W{0,4}\bnan\b|[\w ]{0,12}NaN\b", stays))
            print(f"    a NaN: {[text.strip() for text in nans][:6]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
