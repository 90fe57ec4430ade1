"""The source of keep_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: E402, PTH100, PTH103, PTH118, PTH123, S603, T201

# %% [markdown]
# # Somebody else's program, and the disconnect
#
# Most people do not train with a loop of their own. They run a program: the `train.py` of a paper, `yolo train`, a LoRA
# trainer. It writes its checkpoints into a folder, and the folder vanishes with the machine.
# [colabkeep](https://github.com/colabkeep/colabkeep) keeps that folder: whole, verified versions of it while the
# program works, and the newest one put back on the next machine. The program is not changed, and need not know.
#
# This notebook shows it in about a minute: a script is started and killed, brought back on a "fresh machine", and its
# result is compared with that of a training that nobody disturbed. It runs unchanged on **Colab**, on **Kaggle** and on
# **your own machine**, with or without a GPU: *Runtime → Run all*.
#
# *The outputs saved here come from a run without a GPU, on a stand-in for Colab, as in colabkeep's own tests. Yours
# will show your machine and other times.*

# %% [markdown]
# ## 1. Install

# %% tags=["install"]
# %pip install -q "colabkeep[demo] @ git+https://github.com/colabkeep/colabkeep"

# %% [markdown]
# ## 2. Storage that outlives the machine
#
# On Colab this is your Google Drive, and the cell asks for your permission, once for each machine. Elsewhere the cell
# only shows where versions will be kept.

# %%
import colabkeep

print("Versions live in", colabkeep.mount().url)

# %% tags=["parameters"]
RUN = "digits-script"  # the same name goes on with the same run; another name begins another one
EPOCHS = 12

# %% [markdown]
# ## 3. A program that knows nothing of colabkeep
#
# It does what such programs do: it writes `last.pt` after each epoch, `best.pt` when the loss is better than ever, and
# a line into `log.csv`. With `--resume` it goes on from `last.pt`.

# %% tags=["script"]
# %%writefile train.py
import argparse
import os
import time

import torch
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--pause", type=float, default=1.0, help="seconds, as if an epoch took longer")
parser.add_argument("--resume", action="store_true")
words = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
images, digits = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16
network = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.25), torch.nn.Linear(128, 10)
)
optimizer = torch.optim.Adam(network.parameters())
last = os.path.join(words.out, "last.pt")
begin, step, best = 0, 0, float("inf")
if words.resume:
    stored = torch.load(last)
    network.load_state_dict(stored["network"])
    optimizer.load_state_dict(stored["optimizer"])
    torch.set_rng_state(stored["random"])
    begin, step, best = stored["epochs"], stored["step"], stored["best"]
    print(f"went on from step {step}", flush=True)
for epoch in range(begin, words.epochs):
    time.sleep(words.pause)
    for batch in torch.randperm(len(images)).split(64):
        loss = torch.nn.functional.cross_entropy(network(images[batch]), digits[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    better, best = loss.item() < best, min(best, loss.item())
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    torch.save({**state, "epochs": epoch + 1, "step": step, "best": best}, last)
    if better:
        torch.save(network.state_dict(), os.path.join(words.out, "best.pt"))
    with open(os.path.join(words.out, "log.csv"), "a") as log:
        log.write(f"{epoch},{loss.item()}\n")
    print(f"epoch {epoch + 1} of {words.epochs}: loss {loss.item():.3f}", flush=True)

# %% [markdown]
# ## 4. Started, and killed
#
# On a command line, `colabkeep keep FOLDER --run NAME -- program` stands before the program. `{--resume}` in braces is
# handed on only if files were put back. As soon as a version is safe, SIGKILL ends the program and colabkeep, without
# warning and without cleaning up, as when a service takes the machine away.
#
# By default versions begin a minute apart. Here it is a second, so that there is something to see.

# %% tags=["disconnect"]
import os
import signal
import subprocess
import sys

MACHINES = os.path.abspath(f"{RUN}-machines")  # a folder for each, with all that would be on its disk


def command(machine, *program):
    """Start `colabkeep keep` on a machine of this name."""
    folder = os.path.join(MACHINES, machine)
    keep = [sys.executable, "-m", "colabkeep", "keep", os.path.join(folder, "out"), "--run", RUN]
    return subprocess.Popen(
        [*keep, "--every", "1 s", "--settle", "0.3 s", "--", *program],
        env={**os.environ, "XDG_CACHE_HOME": os.path.join(folder, "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


out = os.path.join(MACHINES, "first", "out")
process = command("first", sys.executable, "train.py", "--out", out, "--epochs", str(EPOCHS), "{--resume}")
for line in process.stdout:
    print(line, end="")
    if "would come back" in line:  # a version is where it outlives the machine
        os.killpg(process.pid, signal.SIGKILL)
print(f"The program is gone: {signal.Signals(-process.wait()).name}.")

# %% [markdown]
# ## 5. Brought back on a fresh machine
#
# Nothing of the first machine is used here: another folder, and nothing of colabkeep's on the disk. **In a notebook you
# write `with colabkeep.keep_folder(...)` around the call**, and see this panel. This is the cell to run again after a
# disconnect.

# %% tags=["training"]
os.environ["XDG_CACHE_HOME"] = os.path.join(MACHINES, "next", "cache")
with colabkeep.keep_folder(os.path.join(MACHINES, "next", "out"), RUN, every="1 s", settle="0.3 s") as kept:
    program = [sys.executable, "train.py", "--out", kept.folder, "--epochs", str(EPOCHS)]
    if kept.restored is not None:
        program.append("--resume")
    process = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
print(process.stdout)
if kept.restored is not None:
    print(f"Put back: version {kept.restored.version}, {kept.restored.files} files, {kept.restored.bytes} bytes.")
print(kept.durability.sentence)

# %% [markdown]
# ## 6. The same program, undisturbed
#
# The weights in its `last.pt` are compared with those of the program that was killed: their names and all their bytes.
# They are equal because this script stores all that it needs: the random numbers too. Of a program that does not,
# colabkeep brings back the files, byte for byte, and the rest is up to the program.

# %% tags=["comparison"]
import hashlib

import torch


def fingerprint(folder):
    """SHA-256 of the weights in a folder's last.pt."""
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(os.path.join(folder, "last.pt"))["network"].items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


undisturbed = os.path.join(MACHINES, "undisturbed")
os.makedirs(undisturbed, exist_ok=True)
program = [sys.executable, "train.py", "--out", undisturbed, "--epochs", str(EPOCHS), "--pause", "0"]
subprocess.run(program, stdout=subprocess.PIPE, check=True)
killed, whole = fingerprint(kept.folder), fingerprint(undisturbed)
print("killed:     ", killed)
print("undisturbed:", whole)
print("EQUAL, bit for bit" if killed == whole else "NOT EQUAL: please report this")

# %% [markdown]
# ## 7. What was kept
#
# The report reads what lies in the storage, so it works when the kernel is gone. The first session was cut off; the
# table says what could be lost with it.

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# On a command line, `colabkeep show` lists the files of a version, and `colabkeep export` writes them into an
# empty folder, on any machine.

# %% tags=["export"]
exported = os.path.join(MACHINES, f"exported-{kept.version}")
print(
    subprocess.run(
        [sys.executable, "-m", "colabkeep", "export", RUN, exported], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
)

# %% [markdown]
# ## 8. Your program
#
# 1. Which folder does it write? Write `keep_folder` around its call, or `colabkeep keep` before it.
# 2. How is it told to go on? Put that into braces, or go by `kept.restored`.
# 3. *Run all.* Disconnected? *Run all.*
#
# What is kept, when, and what known programs restore themselves: [docs/keep.md](../docs/keep.md). A training with a
# loop of your own goes on within an epoch, bit for bit: [colab_demo](colab_demo.ipynb).
