"""The source of aistudio_demo.ipynb: `python scripts/make_notebooks.py` makes the notebook of it, and executes it."""
# ruff: noqa: D103, E402, S603, T201

# %% [markdown]
# # PaddlePaddle training that survives the stop · 停止之后继续的飞桨训练
#
# An AI Studio environment stops an hour after you close the page, or when the compute card runs out. The
# training in it stops too. With [colabkeep](https://github.com/colabkeep/colabkeep) you run the notebook again from
# the top, and training continues in the middle of the epoch. The final weights are the same, bit for bit.
#
# AI Studio 的环境在关闭页面一小时后、或算力卡用完时会停止，其中的训练也随之中断。
# 使用 colabkeep，只需从头重新运行笔记本，训练就会从一轮的中途继续，最终得到的权重与从未中断的训练逐位相同。
#
# This notebook shows it in a minute or two, with PaddlePaddle and nothing else: no torch, no Google.
#
# 本笔记本只用飞桨 (PaddlePaddle)，一两分钟内演示全过程：不需要 torch，也不使用任何 Google 服务。
#
# *The outputs saved here come from a run without a GPU, on a stand-in for AI Studio, as in colabkeep's own tests.*
# *此处保存的输出来自在 AI Studio 模拟环境中的无 GPU 运行，与 colabkeep 自身的测试相同。*

# %% [markdown]
# ## 1. Packages that stay · 安装能保留的软件包
#
# After a restart, only the packages in `/home/aistudio/external-libraries` are left. The folder is at the end of
# `sys.path`, so the environment's own packages come first.
#
# 重启后只有安装在 `/home/aistudio/external-libraries` 中的软件包会保留。
# 该文件夹位于 `sys.path` 末尾，因此环境自带的软件包优先。

# %% tags=["packages"]
import importlib.util
import sys

LIBRARIES = "/home/aistudio/external-libraries"
if LIBRARIES not in sys.path:
    sys.path.append(LIBRARIES)
if importlib.util.find_spec("colabkeep") is None:
    # %pip install -q -t {LIBRARIES} scikit-learn "colabkeep @ git+https://github.com/colabkeep/colabkeep"
    importlib.invalidate_caches()
missing = [name for name in ("paddle", "sklearn", "colabkeep") if importlib.util.find_spec(name) is None]
print("missing · 缺少:", ", ".join(missing) or "nothing · 无")

# %% [markdown]
# ## 2. Where am I? · 当前环境
#
# The check says which GPU you got, whether it is worth starting on, where checkpoints will be saved, and whether any
# package is installed where the next start deletes it. It uses no network.
#
# 显示分配到的 GPU、是否值得开始训练、检查点保存的位置，以及是否有软件包安装在下次启动会被删除的位置。不访问网络。

# %% tags=["check"]
import colabkeep

colabkeep.check()

# %% [markdown]
# ## 3. Folders that survive a restart · 重启后仍保留的位置
#
# | folder · 文件夹 | after a restart · 重启后 |
# |---|---|
# | `/home/aistudio/work` | is kept; checkpoints go there · 保留，检查点存放于此 |
# | `/home/aistudio/external-libraries` | is kept; packages go there · 保留，软件包安装于此 |
# | `/home/aistudio/data` | is reset to the attached datasets · 重置为所挂载的数据集 |
# | everything else · 其他位置 | is deleted · 丢失 |
#
# Keep `work` small, because AI Studio copies all of it at each start. `keep_last=1, keep_best=1` keeps two checkpoints
# at most.
#
# 请让 `work` 保持较小，因为每次启动都会复制其全部内容：`keep_last=1, keep_best=1` 最多保留两个检查点。

# %% tags=["place"]
print("Checkpoints live in · 检查点位于", colabkeep.mount().url)

# %% [markdown]
# ## 4. The training · 训练
#
# A small network learns scikit-learn's handwritten digits; nothing is downloaded. Each image gets new noise each time
# the network sees it, and the network has dropout. After an ordinary restart these random numbers would be different.
# Only the last call belongs to colabkeep.
#
# 一个小型网络和 scikit-learn 自带的手写数字，无需下载数据。每张图像每次都会加入新的噪声，网络中还有 dropout：
# 普通的重启会重新抽取这些随机数。只有最后一个调用与 colabkeep 有关。

# %% tags=["parameters"]
RUN = "digits"  # the same name goes on with the same run · 同名即继续同一训练
EPOCHS = 6
KILLED_AT_STEP = 61  # an epoch has 23 steps, so this is in the middle of the third · 每轮 23 步，第三轮中途

# %%
import os
import warnings

warnings.filterwarnings("ignore", category=UserWarning, module="paddle")  # of a compiler that is not needed here

import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset
from sklearn.datasets import load_digits

if paddle.device.is_compiled_with_cuda():  # for equal bits on a GPU · 在 GPU 上逐位相同所需
    paddle.set_flags({"FLAGS_cudnn_deterministic": True})


class Digits(Dataset):
    """Pairs of an image, (1, 8, 8), and the digit that it shows. Every fifth is held out of the training."""

    def __init__(self, *, train):
        super().__init__()
        images, digits = load_digits(return_X_y=True)
        chosen = [i for i in range(len(digits)) if (i % 5 != 0) == train]
        self.images = images[chosen].astype("float32").reshape(-1, 1, 8, 8) / 16
        self.digits = digits[chosen].astype("int64")
        self.train = train

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image = self.images[index]
        return image + 0.1 * paddle.randn(image.shape).numpy() if self.train else image, self.digits[index]


def network():
    """Images, (n, 1, 8, 8), to scores, (n, 10)."""
    return nn.Sequential(
        *(nn.Conv2D(1, 32, 3, padding=1), nn.BatchNorm2D(32), nn.ReLU()),
        *(nn.Conv2D(32, 64, 3, padding=1, stride=2), nn.BatchNorm2D(64), nn.ReLU()),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
    )


def new_training():
    """Model and optimizer, as they are before the first step."""
    paddle.seed(0)
    model = network()
    return model, paddle.optimizer.Momentum(0.05, 0.9, parameters=model.parameters())


def train(run_name, **more_words):
    """The whole training, or what is left of it · 完整的训练，或尚未完成的部分"""
    model, optimizer = new_training()
    return colabkeep.resumable_fit(
        model,
        DataLoader(Digits(train=True), batch_size=64, shuffle=True),
        optimizer=optimizer,
        loss_fn=nn.functional.cross_entropy,
        val_loader=DataLoader(Digits(train=False), batch_size=512),
        metrics={"accuracy": paddle.metric.Accuracy()},
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
# The training starts in a separate process. SIGKILL kills that process in the middle of an epoch, without warning and
# without cleaning up. Only finished checkpoints are left.
#
# 训练在单独的进程中启动，并在一轮中途被强制终止 (SIGKILL)：没有通知，也没有清理，只留下已完成的检查点。

# %% tags=["disconnect"]
import signal
import subprocess

import cloudpickle

from colabkeep.core.events import StepDone


def pull_the_plug(event):
    if isinstance(event, StepDone) and event.progress.step >= KILLED_AT_STEP:
        at = event.progress
        print(f"epoch {at.epoch + 1}, batch {at.batches} of {event.epoch_batches}: KILLED", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def in_another_process(work):
    """Call `work` in a new process. Tells what it printed, and how it ended."""
    program = [sys.executable, "-W", "ignore", "-c", "import sys, cloudpickle; cloudpickle.load(sys.stdin.buffer)()"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # so that it finds external-libraries
    ended = subprocess.run(program, input=cloudpickle.dumps(work), stdout=subprocess.PIPE, check=False, env=environ)
    print(ended.stdout.decode())
    if ended.returncode == 0:
        return "The training was through already: there was nothing left to kill. Another RUN begins again."
    return f"The process is gone: {signal.Signals(-ended.returncode).name}."


in_another_process(lambda: train(RUN, callbacks=[pull_the_plug], on_bad_gpu="ignore"))

# %% [markdown]
# ## 6. Run it again: it resumes · 重新运行：继续训练
#
# **This is the cell to run again after a stop** (with all cells above it). It finds the newest good checkpoint and
# checks every byte of it. It restores the model, the optimizer, the random numbers and the position in the data, and
# continues in the middle of the epoch.
#
# **环境停止后，重新运行此单元格即可**（以及上面的所有单元格）。
# 它会找到最新的完好检查点，逐字节校验，恢复模型、优化器、随机数状态和数据位置，然后从该轮中途继续训练。

# %% tags=["training"]
result = train(RUN)
print(f"Went on from step {result.resumed_from} · 从第 {result.resumed_from} 步继续")
print(f"{result.steps} steps in {result.epochs} epochs, {result.stopped} · 共 {result.epochs} 轮 {result.steps} 步")

# %% [markdown]
# ## 7. The same training, uninterrupted · 与未中断的训练比较
#
# The cell compares the SHA-256 of the weights: their names and all their bytes.
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
# The bits are equal with the same Paddle on the same kind of machine. On another machine training continues all the
# same, and colabkeep says that it is not bit for bit. Paddle 2.6 and older cannot return the position of its CPU
# generator. With these versions the generator gets a new seed after every step, in the uninterrupted training too.
#
# 在同类机器、相同版本的飞桨上，结果逐位相同。换到其他机器时训练照样继续，并会说明不再逐位相同。
# 飞桨 2.6 及更早版本无法取回 CPU 随机数发生器的位置；此时每一步之后都会使用新的随机种子，未中断的训练也是如此。

# %% [markdown]
# ## 8. The best weights · 最佳权重
#
# Use the newest checkpoint to continue the training. Use the best one, by validation loss, to work with the model.
# colabkeep keeps both.
#
# 最新的检查点用于继续训练；按验证损失选出的最佳检查点用于推理，会另外保留。

# %% tags=["best"]
best = result.best
print(f"best · 最佳 {best.monitor}: {best.value:.4f}, epoch · 轮 {best.epoch + 1}, step · 步 {best.step}")

model = network()
model.set_state_dict(colabkeep.load_weights(RUN, which="best"))
model.eval()
held_out = Digits(train=False)
right = int((model(paddle.to_tensor(held_out.images)).argmax(1) == paddle.to_tensor(held_out.digits)).sum())
print(f"accuracy on {len(held_out)} held-out digits · 留出数据上的准确率: {right / len(held_out):.1%}")

# %% [markdown]
# ## 9. A loop of your own · 自己编写的训练循环
#
# Four lines make a loop resumable: the `with`, `run.epochs`, `run.batches` and `run.step`. If you stop this cell (■),
# colabkeep saves the last finished step before it ends. Put variables of the loop itself into `run.state`.
#
# 只需四行即可让自己的循环不怕中断：`with`、`run.epochs`、`run.batches` 和 `run.step`。
# 若停止此单元格 (■)，退出时会保存最后完成的一步。循环自身的变量请放入 `run.state`。

# %% tags=["own-loop"]
model, optimizer = new_training()
loader = DataLoader(Digits(train=True), batch_size=64, shuffle=True)
with colabkeep.Run(f"{RUN}-own-loop", model=model, optimizer=optimizer, keep_last=1) as run:
    for _ in run.epochs(2):
        for images, digits in run.batches(loader):
            loss = nn.functional.cross_entropy(model(images), digits)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            run.step(loss=loss)
print(run.durability.sentence)

# %% [markdown]
# ## 10. `paddle.Model.fit`
#
# `fit` has no argument for the first epoch; a callback adds this. The callback skips finished epochs without loading
# data, and continues the current epoch at its batch.
#
# 它本身没有起始轮次；一个回调即可补上。已完成的轮次会被跳过而不加载数据，进行中的一轮从所在批次继续。

# %% tags=["hapi"]
from colabkeep.integrations.paddle_hapi import Resumable


def fit(epochs):
    """Train by Paddle's own loop; how many steps are done then · 用飞桨自带的循环训练，返回已完成的步数"""
    network_, optimizer_ = new_training()
    high_level = paddle.Model(network_)
    high_level.prepare(optimizer_, nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    keeper = Resumable(f"{RUN}-hapi", keep_last=1, progress=False)
    high_level.fit(Digits(train=True), batch_size=64, epochs=epochs, verbose=0, callbacks=[keeper])
    return keeper.run.progress.step


print("steps after one epoch · 一轮后的步数:", fit(1))
print("the same cell, two epochs · 同一单元格, 两轮:", fit(2))

# %% [markdown]
# ## 11. The history of the run · 完整经过
#
# The report shows all sessions of the run. It reads the files beside the checkpoints, so it also works in a new kernel.
#
# 根据检查点旁保存的记录重现该训练的所有会话，无需内核中的任何状态。

# %% tags=["report"]
colabkeep.report(RUN)

# %% [markdown]
# ## 12. How safe a checkpoint is · 各级保存状态的含义
#
# "Saved" is not yet "safe". · “已保存”不等于“安全”。
#
# | level · 级别 | where the checkpoint is · 所在位置 | survives · 可经受 |
# |---|---|---|
# | captured | in the machine's memory · 机器内存 | nothing yet · 尚无 |
# | local | on the machine's disk, as `work` · 机器磁盘，如 `work` | a crash of the kernel · 内核崩溃 |
# | sent | handed to a remote storage · 已交给其他位置 | loss of the machine, once uploaded · 到达后可经受机器丢失 |
# | confirmed | the remote storage stated the right checksum · 对方已确认校验和 | loss of the machine · 机器丢失 |
#
# AI Studio says, and users report, that `work` survives a restart. No program can prove it from inside. If you want a
# second storage that confirms what it has, sign in with your access token (访问令牌) and write
# `storage=("/home/aistudio/work/colabkeep-runs", "aistudio://<your user number>/digits")`. This is a private repository
# on AI Studio's own hub, where colabkeep verifies every upload.
#
# `work` 在重启后保留，这是 AI Studio 的说明和用户的经验，无法从内部证明。若需要能够自行确认的第二个位置，
# 请用访问令牌登录，并使用上面的 `storage=`：它是 AI Studio 模型库中的私有仓库，每次上传都会核对。

# %% [markdown]
# ## 13. Before you close · 关闭之前
#
# * Stop the environment with its button (停止). If the card runs out, the environment may close in the middle of
#   copying `work`.
# * Leave the page open while it trains. The environment is reported to stop an hour after the page was closed or the
#   computer went to sleep.
# * Next time: run this notebook from the top.
#
# * 请用“停止”按钮关闭环境；若算力卡耗尽，环境可能在复制 `work` 的过程中被关闭。
# * 训练时请保持页面打开：据报告，关闭页面或电脑休眠一小时后环境会停止。
# * 下次：从头运行本笔记本即可。
#
# More · 更多: [colab_demo](colab_demo.ipynb) (the same with torch · 使用 torch 的同一演示)
