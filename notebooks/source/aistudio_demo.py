"""The source of aistudio_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, S603, T201

# %% [markdown]
# # Training that survives the stop · 停止之后训练继续
#
# An AI Studio environment stops when the page is closed for an hour or the compute card runs out, and the training in
# it stops, too. With [colabkeep](https://github.com/colabkeep/colabkeep) you run the notebook again from the top, and
# training goes on in the middle of the epoch, with the same weights at the end, bit for bit.
#
# AI Studio 的环境在关闭页面一小时后、或算力卡用完时会停止，其中的训练也随之中断。
# 使用 colabkeep，只需从头重新运行笔记本，训练就会从中断的那一步继续，最终得到的权重与从未中断的训练逐位相同。
#
# **PaddlePaddle:** colabkeep has no adapter for it yet, so this notebook trains with torch, on the CPU if need be.
# Whether torch may be installed in your environment is for AI Studio to say: its GPU images are made for Paddle.
#
# **关于飞桨 (PaddlePaddle)：** colabkeep 目前还没有飞桨适配器，因此本笔记本使用 torch 训练（没有 GPU 时用 CPU）。
# 您的环境能否安装 torch 由 AI Studio 决定：其 GPU 镜像是为飞桨准备的。
#
# *The outputs kept here are of an execution without a GPU on a stand-in of AI Studio, as in colabkeep's own tests.*
# *此处保存的输出来自在 AI Studio 模拟环境中的无 GPU 运行，与 colabkeep 自身的测试相同。*

# %% [markdown]
# ## 1. Packages that stay · 安装能保留的软件包
#
# Of what is installed, only `/home/aistudio/external-libraries` survives a restart. No Google service is used anywhere
# here.
#
# 重启后只有安装在 `/home/aistudio/external-libraries` 中的软件包会保留。本笔记本不使用任何 Google 服务。

# %% tags=["packages"]
import importlib.util
import sys

LIBRARIES = "/home/aistudio/external-libraries"
if LIBRARIES not in sys.path:
    sys.path.append(LIBRARIES)  # at the end: what the environment has comes first
if importlib.util.find_spec("colabkeep") is None:
    # %pip install -q -t {LIBRARIES} colabkeep scikit-learn
    importlib.invalidate_caches()
missing = [name for name in ("torch", "sklearn", "colabkeep") if importlib.util.find_spec(name) is None]
print("missing · 缺少:", ", ".join(missing) or "nothing · 无")

# %% [markdown]
# ## 2. Where am I? · 当前环境
#
# Which GPU came, whether it is worth starting on, and where checkpoints will live. No network is used.
#
# 显示分配到的 GPU、是否值得开始训练，以及检查点保存的位置。不访问网络。

# %%
import colabkeep

colabkeep.check()

# %% [markdown]
# ## 3. The place that survives · 重启后仍保留的位置
#
# | folder · 文件夹 | after a restart · 重启后 |
# |---|---|
# | `/home/aistudio/work` | stays; checkpoints go there · 保留，检查点存放于此 |
# | `/home/aistudio/data` | is reset to the attached data sets · 重置为所挂载的数据集 |
# | everything else · 其他位置 | is gone · 丢失 |
#
# Keep `work` small, since all of it is copied at each start: `keep_last=1, keep_best=1` keeps two checkpoints at most.
#
# 请让 `work` 保持较小，因为每次启动都会复制其全部内容：`keep_last=1, keep_best=1` 最多保留两个检查点。

# %%
print("Checkpoints live in · 检查点位于", colabkeep.mount().url)

# %% [markdown]
# ## 4. The training · 训练
#
# A small network and scikit-learn's handwritten digits; nothing is downloaded. Only the last call is special to
# colabkeep.
#
# 一个小型网络和 scikit-learn 自带的手写数字，无需下载数据。只有最后一个调用与 colabkeep 有关。

# %% tags=["parameters"]
RUN = "digits"  # the same name goes on with the same run · 同名即继续同一训练
EPOCHS = 6
KILLED_AT_STEP = 61  # an epoch has 23 steps, so this is in the middle of the third · 每轮 23 步，第三轮中途

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
    """The whole training, or what is left of it · 完整的训练，或尚未完成的部分"""
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
        save_every="10 steps",
        keep_last=1,
        keep_best=1,
        **more_words,
    )


# %% [markdown]
# ## 5. A stop to watch · 观察一次中断
#
# The training starts in a process of its own, which is killed in the middle of an epoch (SIGKILL). Only finished
# checkpoints are left of it.
#
# 训练在单独的进程中启动，并在一轮中途被强制终止 (SIGKILL)，只留下已完成的检查点。

# %% tags=["disconnect"]
import signal
import subprocess
import sys

import cloudpickle

from colabkeep.vocabulary.events import StepDone


def pull_the_plug(event):
    if isinstance(event, StepDone) and event.progress.step >= KILLED_AT_STEP:
        at = event.progress
        print(f"epoch {at.epoch + 1}, batch {at.batches} of {event.epoch_batches}: KILLED", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def in_another_process(work):
    """Call `work` in a new process. Tells what it printed, and how it ended."""
    program = [sys.executable, "-c", "import sys, cloudpickle; cloudpickle.load(sys.stdin.buffer)()"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # so that it finds external-libraries
    ended = subprocess.run(program, input=cloudpickle.dumps(work), stdout=subprocess.PIPE, check=False, env=environ)
    print(ended.stdout.decode())
    if ended.returncode == 0:
        return "The training was through already: there was nothing left to kill. Another RUN begins again."
    return f"The process is gone: {signal.Signals(-ended.returncode).name}."


in_another_process(lambda: train(RUN, callbacks=[pull_the_plug], on_bad_gpu="ignore"))

# %% [markdown]
# ## 6. Run it again: it goes on · 重新运行：继续训练
#
# **This is the cell to run again after a stop** (with all cells above it). It finds the newest good checkpoint, checks
# every byte of it, and trains on in the middle of the epoch.
#
# **环境停止后，重新运行此单元格即可**（以及上面的所有单元格）。
# 它会找到最新的完好检查点，逐字节校验，然后从该轮中途继续训练。

# %% tags=["training"]
result = train(RUN)
print(f"Went on from step {result.resumed_from} · 从第 {result.resumed_from} 步继续")
print(f"{result.steps} steps in {result.epochs} epochs, {result.stopped} · 共 {result.epochs} 轮 {result.steps} 步")

# %% [markdown]
# ## 7. The same, undisturbed · 与未中断的训练比较
#
# SHA-256 of the names and all bytes of the weights.
#
# 对权重的名称和全部字节计算 SHA-256。

# %% tags=["comparison"]
import hashlib


def fingerprint(run_name):
    """SHA-256 of the final weights of a run · 最终权重的 SHA-256"""
    digest = hashlib.sha256()
    for name, tensor in sorted(colabkeep.load_weights(run_name).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


train(f"{RUN}-undisturbed", resume="never", progress=False)
killed, undisturbed = fingerprint(RUN), fingerprint(f"{RUN}-undisturbed")
print("killed · 被终止:     ", killed)
print("undisturbed · 未中断:", undisturbed)
print("EQUAL, bit for bit · 逐位相同" if killed == undisturbed else "NOT EQUAL · 不相同: please report this")

# %% [markdown]
# ## 8. The whole story · 完整经过
#
# All sessions of the run, drawn from what lies beside the checkpoints; it needs no kernel that remembers anything.
#
# 根据检查点旁保存的记录重现该训练的所有会话，无需内核中的任何状态。

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# ## 9. Before you close · 关闭之前
#
# * Stop the environment by its button; a card that runs out closes it in the middle of copying `work`.
# * Leave the page open while it trains: it is reported to stop an hour after the page was closed or the computer fell
#   asleep.
# * Next time: run this notebook from the top.
#
# * 请用“停止”按钮关闭环境；若算力卡耗尽，环境可能在复制 `work` 的过程中被关闭。
# * 训练时请保持页面打开：据报告，关闭页面或电脑休眠一小时后环境会停止。
# * 下次：从头运行本笔记本即可。
#
# More · 更多: [colab_demo](colab_demo.ipynb) (own loop, best weights, GPUs · 自定义循环、最佳权重、GPU)
