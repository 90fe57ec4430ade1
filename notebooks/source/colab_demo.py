"""The source of colab_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, S603, T201

# %% [markdown]
# # Training that survives the disconnect
#
# Free notebook services take their machines away without warning, and the training on the machine is lost. With
# [colabkeep](https://github.com/colabkeep/colabkeep) you run the notebook again from the top, on whatever machine and
# GPU you get. Training then continues as if nothing had happened: the final weights are the same, bit for bit.
#
# This notebook shows it in a minute or two. A small network learns to read handwritten digits. Its process is killed in
# the middle of an epoch. The training resumes, and the notebook compares the weights with those of an uninterrupted
# training. It runs unchanged on **Colab**, on **Kaggle** and on **your own machine**, with or without a GPU. You need
# not edit anything: *Runtime → Run all*.
#
# *The outputs saved here come from a run without a GPU, on a stand-in for Colab, as in colabkeep's own tests. Yours
# will show your machine and other times.*

# %% [markdown]
# ## 1. Install
#
# This replaces nothing that Colab or Kaggle have installed. It adds torch and scikit-learn if they are missing.

# %% tags=["install"]
# %pip install -q "colabkeep[demo] @ git+https://github.com/colabkeep/colabkeep"

# %% [markdown]
# ## 2. Where am I?
#
# The check says which service this is, which GPU you got and whether it is worth starting on, where checkpoints will
# be saved, and what to click next. It takes a few seconds and uses no network.

# %%
import colabkeep

colabkeep.check()

# %% [markdown]
# ## 3. Storage that outlives the machine
#
# On Colab this is your Google Drive, and the cell asks for your permission, once for each machine. On Kaggle and on
# your own machine you need not mount anything; the cell only shows where checkpoints will be saved.

# %%
print("Checkpoints live in", colabkeep.mount().url)

# %% [markdown]
# ## 4. The training
#
# Only the last call belongs to colabkeep. The data set comes with scikit-learn, so nothing is
# downloaded. Each image gets new noise each time the network sees it, and the network has dropout. After an ordinary
# restart these random numbers would be different.

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
# The training starts in a separate process. SIGKILL kills that process in the middle of an epoch, without warning and
# without cleaning up, just as when the service takes the machine away. Only the checkpoints that were finished by
# then are left.

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
# ## 6. Run it again: it resumes
#
# **This is the cell to run again after a disconnect** (with all cells above it, if the machine was lost: *Run all*).
# It finds the newest good checkpoint and checks every byte of it. It restores the model, the optimizer, the random
# numbers and the position in the data, and continues in the middle of the epoch.
#
# You can also try it yourself: stop this cell (■), restart the kernel, or delete the runtime while it trains. Then *Run
# all*.

# %% tags=["training"]
result = train(RUN)
print(f"Went on from step {result.resumed_from}.")
print(f"{result.steps} steps in {result.epochs} epochs are done: {result.stopped}.")

# %% [markdown]
# ## 7. The same training, uninterrupted
#
# This cell runs the same training under another name, from beginning to end. Then it compares the weights of both:
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
# The bits are equal on a machine with the same torch, number of threads and instruction set; on a GPU, with
# deterministic kernels, as here. The first lines of a run say what holds on yours. If your next machine is different,
# training continues all the same, and colabkeep says that it is not bit for bit. `colabkeep.verify_resume(...)` tests
# your own code.

# %% [markdown]
# ## 8. The best weights
#
# Use the newest checkpoint to continue the training. Use the best one, by validation loss, to work with the model.
# colabkeep keeps both.

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
# `load_weights` works on any machine: name the folder with `storage=`. In a terminal, `colabkeep export digits
# weights.safetensors` writes one plain file for any other tool.

# %% [markdown]
# ## 9. A loop of your own
#
# `resumable_fit` is a loop that you could write yourself with `colabkeep.Run`. Four lines make your own loop resumable:
# the `with`, `run.epochs`, `run.batches` and `run.step`. If you stop this cell (■), colabkeep saves the last finished
# step before it ends. Put variables of the loop itself, such as the best accuracy so far, into `run.state`.

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
# ## 10. The history of the run
#
# Did you open the notebook again, and the kernel is gone? The report works without it, because it reads the files
# beside the checkpoints. For each session it shows the machine, how the session ended, and which steps were repeated.
# `colabkeep.browse()` lists all runs and checkpoints. There you can view, verify or delete them.

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# ## 11. How safe a checkpoint is
#
# "Saved" is not yet "safe". A checkpoint reaches up to four levels. When colabkeep says what you would lose, it counts
# only on checkpoints that would be left if this machine vanished now:
#
# | level | where the checkpoint is | survives |
# |---|---|---|
# | captured | copied to the machine's memory | nothing yet |
# | local | on the machine's own disk | a crash or restart of the kernel |
# | sent | handed to the remote storage (Drive uploads it in its own time) | loss of the machine, once it is uploaded |
# | confirmed | the remote storage itself has stated the right checksum | loss of the machine |
#
# Some storages cannot say what they have stored. colabkeep then says so, and does not claim that a checkpoint is safe.

# %% [markdown]
# ## 12. Is this card worth starting on?
#
# Until 2022 Colab assigned cards by chance: a K80 today, a T4 tomorrow. Free Colab gives you a T4 now, and you should
# not get a K80 any more. The check says in one of five words whether your card is good, and what to click next:
#
# * **keep** it;
# * **reconnect**, if you got a poor card all the same: *Runtime → Disconnect and delete runtime*, then connect
#   again. Your training is in Drive and resumes from there. With `colabkeep.check(previous=["Tesla K80"])` you tell the
#   check which card you got before, and it says when to stop trying;
# * **switch** to another accelerator in the menu, if you have a TPU, or a P100: the torch of 2026 has no
#   kernels for a P100;
# * **enable** a GPU, if the service offers one and none is on: the commonest mistake of all;
# * **unusable**: the installed torch cannot compute on this card, or the driver does not work. The check names the
#   build of torch that would work, or what to click.
#
# `resumable_fit(..., on_bad_gpu="stop")` does not start on a bad card. The next cell compares the cards, by the speed
# of a CNN relative to a T4:

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
# Batch runs on Kaggle that continue from their own earlier output: [kaggle_demo](kaggle_demo.ipynb). On Baidu AI
# Studio: [aistudio_demo](aistudio_demo.ipynb). More about everything: [the README](../README.md).
