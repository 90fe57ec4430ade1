"""The source of kaggle_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, T201

# %% [markdown]
# # A training that is longer than a Kaggle session
#
# A session on Kaggle lasts 12 hours at most (9 with a TPU), and a week has about 30 hours of GPU. A training that
# needs more has to be cut into pieces. With [colabkeep](https://github.com/colabkeep/colabkeep) the pieces are batch
# runs of one and the same notebook: each finds the output of the one before among its inputs, goes on where that
# stopped, and ends by itself in time to keep its own output. The weights at the end are those of one long training,
# bit for bit.
#
# This notebook is such a chain in small, so that you can watch three links of it in a few minutes. Try it in the
# editor first, then press **Save Version**. Nothing has to be edited.
#
# *The outputs kept here are those of the third version, executed without a GPU on a stand-in of Kaggle, as in
# colabkeep's own tests. Yours will show your machine, and other times.*

# %% [markdown]
# ## 1. Install
#
# This needs *Settings → Internet on*. Nothing that Kaggle has installed is replaced.

# %% tags=["install"]
# %pip install -q "colabkeep[demo]"

# %% [markdown]
# ## 2. Where am I, and what is kept?
#
# | session | what becomes of `/kaggle/working` |
# |---|---|
# | interactive (the editor) | gone at the end, unless *Persistence* keeps files; good for trying |
# | batch (*Save Version → Save & Run All*) | kept as the version's output, some 20 GB of it |
#
# `/kaggle/input` can only be read. The check says which kind this is, how long it lasts, and whether the GPU is worth
# starting on (a TPU is not: choose *GPU T4 x2*).

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
# One epoch, to see that the code works. Stop it (■) and run it again, if you like: it goes on.

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
)
print(f"accuracy after one epoch: {result.history[-1]['val_accuracy']:.1%}")

# %% [markdown]
# ## 5. The chain
#
# **Save Version → Save & Run All** executes the whole notebook on a new machine, with nobody present. Then:
#
# 1. Open the notebook again: *Add Input → Your Work → Notebooks*, and choose **this notebook's own output**.
# 2. *Save Version* again. The cell below finds the earlier output, wherever below `/kaggle/input` it was attached, and
#    goes on.
# 3. Replace the input by the newest output each time (or leave several attached: the newest checkpoint of all is
#    taken), until the cell says that the run is finished.
#
# A real chain needs no `STEPS_PER_VERSION`: a batch run knows Kaggle's limit and stops cleanly before it. That holds
# for `resumable_fit` as for this loop; `max_time="3 h"` stops earlier.


# %% tags=["chain"]
def train(run_name, steps, **more_words):
    """Train for so many steps at most, from where the run is."""
    model, optimizer = new_training()
    loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)
    with colabkeep.Run(run_name, model=model, optimizer=optimizer, **more_words) as run:
        began = run.progress.step
        for _ in run.epochs(EPOCHS):
            for images, digits in run.batches(loader):
                loss = nn.functional.cross_entropy(model(images.to(DEVICE)), digits.to(DEVICE))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=loss)
                if run.progress.step - began >= steps:
                    run.stop("end of this version")
    print(f"This version went on from step {began} and did {run.progress.step - began} steps.")
    return run


run = train(RUN, STEPS_PER_VERSION)
if run.finished:
    print(f"The run is FINISHED, at step {run.progress.step}.")
else:
    print("Not through yet. Save Version; then Add Input → this notebook's output; then Save Version again.")

# %% [markdown]
# The same from a terminal, with Kaggle's own tool: name the notebook as a source of itself in `kernel-metadata.json`,
# and repeat `kaggle kernels push` when the version before is complete.
#
# ```json
# {"id": "you/kaggle-demo", "kernel_sources": ["you/kaggle-demo"], "enable_gpu": true, "enable_internet": true}
# ```

# %% [markdown]
# ## 6. Nothing was lost on the way
#
# When the chain is through, the same training is done once more without a break, and the weights are compared: their
# names and all their bytes.

# %% tags=["comparison"]
import hashlib


def fingerprint(run_name):
    """SHA-256 of the final weights of a run."""
    digest = hashlib.sha256()
    for name, tensor in sorted(colabkeep.load_weights(run_name).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


if run.finished:
    train(f"{RUN}-unbroken", steps=10**6, resume="never", progress=False)
    chain, unbroken = fingerprint(RUN), fingerprint(f"{RUN}-unbroken")
    print("in a chain of versions:", chain)
    print("without a break:       ", unbroken)
    print("EQUAL, bit for bit" if chain == unbroken else "NOT EQUAL: please report this")
else:
    print("The comparison comes with the last version.")

# %% [markdown]
# ## 7. The story of the chain
#
# All versions so far, drawn from what lies beside the checkpoints.

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# Equal bits hold on the same kind of machine: two versions on a T4 and one on a CPU end with other bits, and the run
# says so. What is saved when, which cards are worth it, and loading the best weights: [colab_demo](colab_demo.ipynb).
