"""The source of kaggle_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, T201

# %% [markdown]
# # A training that is longer than a Kaggle session
#
# A session on Kaggle lasts 12 hours at most (9 with a TPU), and you get about 30 GPU hours a week. If a training
# needs more, you have to split it. With [colabkeep](https://github.com/colabkeep/colabkeep) the parts are batch
# runs of one notebook. Each run finds the output of the run before among its inputs and continues where that one
# stopped. It ends by itself in time to keep its own output. The final weights are those of one long training,
# bit for bit.
#
# This notebook is a small chain of this kind: you can watch three batch runs in a few minutes. Try it in the
# editor first, then press **Save Version**. You need not edit anything.
#
# *GPU T4 x2* are two cards, and both train: each computes its half of every batch. They are tried together before the
# training begins. If that fails, one of them trains alone, and a line says why. With one card, or none, one process
# trains. We have tried this with processes on the CPU, and never on real cards.
#
# *The outputs saved here come from the third version, which ran without a GPU on a stand-in for Kaggle, as in
# colabkeep's own tests. Yours will show your machine and other times.*

# %% [markdown]
# ## 1. Install
#
# This needs *Settings → Internet on*. It replaces nothing that Kaggle has installed.

# %% tags=["install"]
# %pip install -q "colabkeep[demo] @ git+https://github.com/colabkeep/colabkeep"

# %% [markdown]
# ## 2. Where am I, and what is kept?
#
# | session | what happens to `/kaggle/working` |
# |---|---|
# | interactive (the editor) | Kaggle deletes it at the end, unless *Persistence* keeps files; good for trying |
# | batch (*Save Version → Save & Run All*) | Kaggle keeps it as the version's output, some 20 GB of it |
#
# You can only read `/kaggle/input`. The check says which kind of session this is, how long it lasts, and whether the
# GPU is worth starting on (a TPU is not: choose *GPU T4 x2*).

# %%
import colabkeep

colabkeep.check()

# %% [markdown]
# ## 3. The training
#
# A small network and scikit-learn's handwritten digits; nothing is downloaded.

# %% tags=["parameters"]
RUN = "digits-chain"  # the same name goes on with the same run
EPOCHS = 6  # of the whole training: 138 steps
STEPS_PER_VERSION = 55  # in place of Kaggle's 12 hours, so that the chain can be watched

# %%
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # on a GPU, equal bits need this before its first use

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Digits(Dataset):
    """Pairs of an image, (1, 8, 8), and the digit that it shows. Every fifth is held out of the training."""

    def __init__(self, *, train):
        images, digits = load_digits(return_X_y=True)
        chosen = [i for i in range(len(digits)) if (i % 5 != 0) == train]
        self.images = torch.tensor(images[chosen], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.digits = torch.tensor(digits[chosen])
        self.train = train

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image = self.images[index]
        return image + 0.1 * torch.randn(image.shape) if self.train else image, self.digits[index]


def network():
    """Images, (n, 1, 8, 8), to scores, (n, 10)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
    )


def new_training():
    """Model and optimizer, as they are before the first step."""
    torch.use_deterministic_algorithms(True)  # on a GPU, for equal bits
    torch.set_num_threads(1)  # faster for a network as small as this one
    torch.manual_seed(0)
    model = network().to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def accuracy(output, digits):
    return (output.argmax(1) == digits).float().mean()


# %% [markdown]
# ## 4. Try it in the editor
#
# This cell trains one epoch, to see that the code works. If you like, stop it (■) and run it again: it resumes.

# %% tags=["interactive"]
model, optimizer = new_training()
result = colabkeep.resumable_fit(
    model,
    DataLoader(Digits(train=True), batch_size=64, shuffle=True),
    optimizer=optimizer,
    loss_fn=nn.functional.cross_entropy,
    val_loader=DataLoader(Digits(train=False), batch_size=512),
    metrics={"accuracy": accuracy},
    max_epochs=1,
    run_name="digits-try",
    devices="auto",
)
print(f"accuracy after one epoch: {result.history[-1]['val_accuracy']:.1%}")

# %% [markdown]
# ## 5. The chain
#
# **Save Version → Save & Run All** runs the whole notebook on a new machine, without you. Then:
#
# 1. Open the notebook again: *Add Input → Your Work → Notebooks*, and choose **this notebook's own output**.
# 2. *Save Version* again. The cell below finds the earlier output, wherever below `/kaggle/input` it was attached, and
#    continues from it.
# 3. Each time, replace the input by the newest output, until the cell says that the run is finished. You may also leave
#    several outputs attached: colabkeep takes the newest checkpoint of all.
#
# A real chain needs no `STEPS_PER_VERSION`, because a batch run stops cleanly before Kaggle's limit. This is true
# for `resumable_fit` and for this loop. `max_time="3 h"` stops earlier.
#
# The loop is one of your own. `colabkeep.launch` calls it in a process for each card; with two of them,
# `DistributedDataParallel` sums their gradients.


# %% tags=["chain"]
def train(run_name, steps, resume="auto"):
    """Train for so many steps at most, from where the run is. Is it finished, and at which step?"""
    model, optimizer = new_training()
    if torch.distributed.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
    loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)  # of all cards together
    with colabkeep.Run(run_name, model=model, optimizer=optimizer, resume=resume) as run:
        began = run.progress.step
        for _ in run.epochs(EPOCHS):
            for images, digits in run.batches(loader):
                loss = nn.functional.cross_entropy(model(images.to(DEVICE)), digits.to(DEVICE))
                (loss * run.batch_weight).backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=loss)
                if run.progress.step - began >= steps:
                    run.stop("end of this version")
    if run.rank == 0:
        print(f"This version went on from step {began} and did {run.progress.step - began} steps.")
    return run.finished, run.progress.step


finished, step = colabkeep.launch(train, [RUN, STEPS_PER_VERSION], devices="auto")
if finished:
    print(f"The run is FINISHED, at step {step}.")
else:
    print("Not through yet. Save Version; then Add Input → this notebook's output; then Save Version again.")

# %% [markdown]
# You can do the same from a terminal, with Kaggle's own tool. Name the notebook as its own source in
# `kernel-metadata.json`, and run `kaggle kernels push` again when the version before is complete.
#
# ```json
# {"id": "you/kaggle-demo", "kernel_sources": ["you/kaggle-demo"], "enable_gpu": true, "enable_internet": true}
# ```

# %% [markdown]
# ## 6. Nothing was lost on the way
#
# When the chain is finished, this cell runs the same training once more without interruption. Then it compares the
# weights of both: their names and all their bytes.

# %% tags=["comparison"]
import hashlib


def fingerprint(run_name):
    """SHA-256 of the final weights of a run."""
    digest = hashlib.sha256()
    for name, tensor in sorted(colabkeep.load_weights(run_name).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


if finished:
    colabkeep.launch(train, [f"{RUN}-unbroken", 10**6, "never"], devices="auto", progress=False)
    chain, unbroken = fingerprint(RUN), fingerprint(f"{RUN}-unbroken")
    print("in a chain of versions:", chain)
    print("without a break:       ", unbroken)
    print("EQUAL, bit for bit" if chain == unbroken else "NOT EQUAL: please report this")
else:
    print("The comparison comes with the last version.")

# %% [markdown]
# ## 7. The history of the chain
#
# The report shows all versions so far. It reads the files beside the checkpoints.

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# The bits are equal on the same kind of machine. If two versions run on two T4 and one on one card or on a CPU, the
# bits differ, and the run says so. [colab_demo](colab_demo.ipynb) shows when colabkeep saves, which cards are worth it,
# and how to load the best weights.
