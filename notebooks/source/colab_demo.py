"""The source of colab_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, S603, T201

# %% [markdown]
# # Training that survives the disconnect
#
# Free notebook machines are taken away without warning, and with them the training that ran on them. With
# [colabkeep](https://github.com/colabkeep/colabkeep) you run the notebook again from the top, on whatever machine and
# GPU you are given, and training goes on as if nothing had happened: with the same weights at the end, bit for bit.
#
# This notebook shows it in a minute or two. A small network learns to read handwritten digits; in the middle of an
# epoch its process is killed; it goes on; and the weights are compared with those of a training that nobody disturbed.
# It runs unchanged on **Colab**, on **Kaggle** and on **your own machine**, with or without a GPU. Nothing has to be
# edited: *Runtime → Run all*.
#
# *The outputs kept here are of an execution without a GPU on a stand-in of Colab, as in colabkeep's own tests. Yours
# will show your machine, and other times.*

# %% [markdown]
# ## 1. Install
#
# Nothing that Colab or Kaggle have installed is replaced; where torch or scikit-learn are missing, they come along.

# %% tags=["install"]
# %pip install -q "colabkeep[demo]"

# %% [markdown]
# ## 2. Where am I?
#
# The check says which service this is, which GPU came and whether it is worth starting on, where checkpoints will
# live, and what to click next. It takes a few seconds and contacts nobody.

# %%
import colabkeep

colabkeep.check()

# %% [markdown]
# ## 3. A place that outlives the machine
#
# On Colab that is your Google Drive: this asks for your permission, once for each machine. On Kaggle and on your own
# machine nothing needs to be mounted, and the cell only tells the place.

# %%
print("Checkpoints live in", colabkeep.mount().url)

# %% [markdown]
# ## 4. The training
#
# Nothing here is special to colabkeep but the last call. The data set comes with scikit-learn, so nothing is
# downloaded. Each image gets new noise each time it is seen, and the network has dropout: randomness that an ordinary
# restart would draw anew.

# %% tags=["parameters"]
RUN = "digits"  # the same name goes on with the same run; another name begins another one
EPOCHS = 8
KILLED_AT_STEP = 84  # an epoch has 23 steps, so this is in the middle of the fourth

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


def train(run_name, **more_words):
    """The whole training, or what is left of it."""
    model, optimizer = new_training()
    return colabkeep.resumable_fit(
        model,
        DataLoader(Digits(train=True), batch_size=64, shuffle=True),
        optimizer=optimizer,
        loss_fn=nn.functional.cross_entropy,
        val_loader=DataLoader(Digits(train=False), batch_size=512),
        metrics={"accuracy": accuracy},
        max_epochs=EPOCHS,
        run_name=run_name,
        save_every="10 steps",  # so that there is something to see; by default, as often as loses the least
        **more_words,
    )


# %% [markdown]
# ## 5. A disconnect to watch
#
# The training starts in a process of its own, and that is killed in the middle of an epoch, by SIGKILL: nothing is
# told, nothing is cleaned up, exactly as when the service takes the machine away. Checkpoints that were finished by
# then are all that is left of it.

# %% tags=["disconnect"]
import signal
import subprocess
import sys

import cloudpickle

from colabkeep.core.events import StepDone


def pull_the_plug(event):
    if isinstance(event, StepDone) and event.progress.step >= KILLED_AT_STEP:
        at = event.progress
        print(f"epoch {at.epoch + 1}, batch {at.batches} of {event.epoch_batches}: KILLED", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def in_another_process(work):
    """Call `work` in a new process. Tells what it printed, and how it ended."""
    program = [sys.executable, "-c", "import sys, cloudpickle; cloudpickle.load(sys.stdin.buffer)()"]
    ended = subprocess.run(program, input=cloudpickle.dumps(work), stdout=subprocess.PIPE, check=False)
    print(ended.stdout.decode())
    if ended.returncode == 0:
        return "The training was through already: there was nothing left to kill. Another RUN begins again."
    return f"The process is gone: {signal.Signals(-ended.returncode).name}."


in_another_process(lambda: train(RUN, callbacks=[pull_the_plug], on_bad_gpu="ignore"))

# %% [markdown]
# ## 6. Run it again: it goes on
#
# **This is the cell to run again after a disconnect** (with all cells above it, if the machine was lost: *Run all*).
# It finds the newest good checkpoint, checks every byte of it, puts back the model, the optimizer, the random numbers
# and the position in the data, and trains on in the middle of the epoch.
#
# You may try it by hand, too: stop this cell (■), restart the kernel, or delete the runtime while it trains; then *Run
# all*.

# %% tags=["training"]
result = train(RUN)
print(f"Went on from step {result.resumed_from}.")
print(f"{result.steps} steps in {result.epochs} epochs are done: {result.stopped}.")

# %% [markdown]
# ## 7. The same, undisturbed
#
# Now the same training again under another name, from the beginning to the end, and a comparison of the weights: of
# their names and all their bytes.

# %% tags=["comparison"]
import hashlib


def fingerprint(run_name):
    """SHA-256 of the final weights of a run."""
    digest = hashlib.sha256()
    for name, tensor in sorted(colabkeep.load_weights(run_name).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


train(f"{RUN}-undisturbed", resume="never", progress=False)
killed, undisturbed = fingerprint(RUN), fingerprint(f"{RUN}-undisturbed")
print("killed:     ", killed)
print("undisturbed:", undisturbed)
print("EQUAL, bit for bit" if killed == undisturbed else "NOT EQUAL: please report this")

# %% [markdown]
# Equal bits hold on a machine with the same torch, number of threads and instruction set; on a GPU, with deterministic
# kernels, as here. The first lines of a run say what holds on yours. If your next machine is another one, training
# goes on all the same, and says that it does not go on bit for bit. `colabkeep.verify_resume(...)` tries your own code.

# %% [markdown]
# ## 8. The best weights
#
# The newest checkpoint is for going on; the best one, by validation loss, is for using. It is kept besides.

# %% tags=["best"]
best = result.best
print(f"best {best.monitor}: {best.value:.4f}, after epoch {best.epoch + 1}, at step {best.step}")

model = network()
model.load_state_dict(colabkeep.load_weights(RUN, which="best"))
model.eval()
held_out = Digits(train=False)
with torch.no_grad():
    scores = model(held_out.images)
print(f"accuracy on {len(held_out)} held-out digits: {accuracy(scores, held_out.digits):.1%}")

# %% [markdown]
# `load_weights` works anywhere: name the folder with `storage=`. `colabkeep export digits weights.safetensors` in a
# terminal writes one plain file for any other tool.

# %% [markdown]
# ## 9. A loop of your own
#
# `resumable_fit` is a loop that you could write yourself on `colabkeep.Run`. Four lines make yours survive, too: the
# `with`, `run.epochs`, `run.batches` and `run.step`. If this cell is stopped (■), the last finished step is saved on
# the way out. Variables of the loop itself, such as the best accuracy so far, go into `run.state`.

# %% tags=["own-loop"]
model, optimizer = new_training()
loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)
with colabkeep.Run(f"{RUN}-own-loop", model=model, optimizer=optimizer) as run:
    for _ in run.epochs(2):
        for images, digits in run.batches(loader):
            loss = nn.functional.cross_entropy(model(images.to(DEVICE)), digits.to(DEVICE))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
print(run.durability.sentence)

# %% [markdown]
# ## 10. The whole story
#
# Reopened the notebook, and the kernel is gone? The report needs none: it is drawn from what lies beside the
# checkpoints, and tells of each session what machine it had, how it ended, and what had to be trained again.
# `colabkeep.browse()` lists all runs and checkpoints, to be looked at, verified, exported or deleted.

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# ## 11. What the rungs mean
#
# "Saved" is not yet "safe". Each checkpoint climbs up to four rungs, and what colabkeep says that you would lose
# counts only what would be left if this machine vanished now:
#
# | rung | where it is | survives |
# |---|---|---|
# | captured | copied to the machine's memory | nothing yet |
# | local | on the machine's own disk | a crash or restart of the kernel |
# | sent | handed to the lasting place (a Drive that uploads in its own time) | the machine, once it has arrived |
# | confirmed | the place itself has stated the right checksum | the machine |
#
# Some places cannot say what they hold; then that is said, and nothing is claimed.

# %% [markdown]
# ## 12. Is this card worth starting on?
#
# Until 2022 Colab drew a card by lot: a K80 today, a T4 tomorrow. Free Colab gives a T4 now, and a K80 should not come
# any more. The check judges what did come, in one of five words and with the next click:
#
# * **keep** it;
# * **reconnect**, where a poor card was drawn all the same: *Runtime → Disconnect and delete runtime*, then connect
#   again. What was trained is in Drive, and goes on there. `colabkeep.check(previous=["Tesla K80"])` knows what came
#   before, and says when to stop trying;
# * **switch** to another one in the menu, from a TPU, or from a P100 where one still comes: the torch of 2026 has no
#   kernels for it;
# * **enable** one, where a GPU is offered and none is on: the commonest mistake of all;
# * **unusable**: the torch that is installed cannot compute on this card, or the driver is down. The build that would
#   work is named, or the click.
#
# `resumable_fit(..., on_bad_gpu="stop")` does not begin on a bad one. What cards are worth, by a CNN's speed
# against that on a T4:

# %%
cards = {card["name"]: card for card in colabkeep.compare_gpus().rows}
for name in ("Tesla K80 (per die)", "Tesla P100-PCIE-16GB", "Tesla T4", "L4", "A100-40GB"):
    card = cards[name]
    print(f"{name:22} {card['memory_gib']:3.0f} GiB, {card['speed']['cnn']:.1f} times as fast: tier {card['tier']}")

# %% [markdown]
# ## 13. Your turn
#
# 1. Put your model, your data and your optimizer into `train`, and choose a `run_name`.
# 2. *Run all.* Disconnected? *Run all.*
#
# Batch runs on Kaggle that go on from their own earlier output: [kaggle_demo](kaggle_demo.ipynb). On Baidu AI Studio:
# [aistudio_demo](aistudio_demo.ipynb). Questions and answers: [the README](../README.md).
