"""A training in several real processes of torch.distributed (gloo; on simulated devices NCCL's place is taken by it),
as a program; and its sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from operator import sub
from pathlib import Path
from typing import Any

from tests.programs import Program

TRAINING = """
import hashlib, json, os, signal, socket, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import colabkeep

rank, size, file, folder, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
device = "cuda" if torch.cuda.is_available() else "cpu"
if words.get("elsewhere") == rank:
    socket.gethostname = lambda: "another"
if device == "cuda":
    from tests.simcuda.device import running
    simulated = running()
if size > 1 and not torch.distributed.is_initialized():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    kind = "cpu:gloo,cuda:nccl" if device == "cuda" and "shared" not in words else "gloo"
    torch.distributed.init_process_group(kind, init_method=f"file://{file}", rank=rank, world_size=size)
torch.set_default_dtype(getattr(torch, words.get("dtype", "float32")))
torch.manual_seed(rank)  # the weights of rank 0 count
seen = open(f"{folder}.seen", "a")

class Points(Dataset):
    def __init__(self, count):
        made = torch.Generator().manual_seed(1 + rank * words.get("unseeded", 0))
        self.x = torch.randn(count, 6, generator=made)
        self.y = (self.x.sum(1) > 0).long()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        noise = 0.1 * torch.randn(6) if words.get("draws") else 0.0
        return self.x[index] + noise, self.y[index], index

layers = [nn.Linear(6, 12), nn.ReLU(), *([nn.Dropout(0.2), nn.BatchNorm1d(12)] if words.get("draws") else [])]
if words.get("norm"):
    layers.append(nn.BatchNorm1d(12))
model = nn.Sequential(*layers, nn.Linear(12, 2 if words.get("stage") != rank else 3)).to(device)
if words.get("ranges"):  # taken in evaluation mode, as observers of quantisation do
    class Ranges(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("top", torch.ones(()))
        def forward(self, x):
            if not self.training:
                self.top.lerp_(x.detach().abs().max(), 0.1)
            return x / self.top
    model.insert(1, Ranges())
kept = {}
if words.get("local"):  # what a process computes of its part of a batch, in places of all kinds
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            if words["local"] == "buffer":
                self.register_buffer("scale", torch.tensor(1.0, device=device))
            else:
                self.scale = 1.0
        def forward(self, x):
            if self.training:
                self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean().item()
            return x / self.scale
    class Count:
        total = 0.0
        def state_dict(self):
            return {"total": self.total}
        def load_state_dict(self, state):
            self.total = state["total"]
    model.insert(1, Scaled())
    centre = nn.Module()
    centre.register_buffer("mean", torch.zeros(2, device=device))
    centre.register_buffer("last", torch.zeros(2, device=device), persistent=False)
    kept = {"centre": centre, "count": Count()}
if words.get("kinds"):  # of buffers
    model.register_buffer("short", torch.tensor([1, rank, 2], dtype=torch.int16))
    model.register_buffer("seen", torch.tensor([True, rank == 0]))
    model.register_buffer("shown", torch.arange(float(rank), 4.0 + rank).expand(3, 4))
    model.register_buffer("scales", torch.full((3,), 1.0 + rank).to(torch.float8_e4m3fn))
    model.register_buffer("none", torch.zeros(0))
    model.register_buffer("graph", torch.eye(4).to_sparse())
    model.register_buffer("turned", torch.full((2, 3), 1j * rank).t())
if words.get("wrong") == rank:
    model.register_buffer("more", torch.ones(3, device=device))
if words.get("fit"):
    # It has no gradient anywhere, and stays what it is.
    model.register_parameter("spare", nn.Parameter(torch.ones(3, device=device)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
points = Points(words.get("samples", 53 if words.get("draws") else 49))
loader = DataLoader(points, batch_size=8, shuffle=True)
if words.get("sampler"):
    loader = DataLoader(points, batch_size=8, sampler=torch.utils.data.DistributedSampler(points))
if words.get("kind") == "list":
    loader = list(DataLoader(points, batch_size=8))
if words.get("kind") == "stream":
    class Stream:
        def __iter__(self):
            mine = torch.utils.data.Subset(points, range(rank, len(points), size)) if words.get("split") else points
            return iter(DataLoader(mine, batch_size=8))
    loader = Stream()
if "memory" in words and device == "cpu":  # the rank whose card has room for so many samples, and from which step on
    from colabkeep.frameworks.torch import pieces
    pieces.TorchPieces.card = property(lambda self: "Small", lambda self, value: None)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
if words.get("other") == rank:
    loader = DataLoader(Points(48), batch_size=8, shuffle=True)
steps, tokens = 0, []
generators = {}
if words.get("generators"):
    import random
    import numpy
    generators = {"torch": torch.Generator().manual_seed(rank), "python": random.Random(rank)}
    generators |= {"numpy": numpy.random.default_rng(rank), "legacy": numpy.random.RandomState(rank)}

def newest():
    return max((int(path.name[:12]) for path in Path(folder, "r", "checkpoints").glob("*.json")), default=0)

before = newest()

def act():
    global steps
    steps += 1
    time.sleep(0.02)  # who kills from outside, finds it training
    if words.get("at") == [rank, steps]:
        how = words["how"]
        end = time.monotonic() + 60
        while newest() == before and time.monotonic() < end:  # a save of this session is to have arrived
            time.sleep(0.01)
        if how == "error":
            raise ValueError("on purpose")
        os.kill(os.getpid(), getattr(signal, how))

def loss_of(model, batch):
    x, y, indices = batch
    if generators:  # of as many samples as this process has
        x = x + 0.1 * torch.randn(x.shape, generator=generators["torch"]) + generators["python"].gauss(0, 0.1)
        x = x + 0.1 * generators["numpy"].standard_normal(len(x))[:, None].astype("float32")
        x = x + generators["legacy"].normal(0, 0.1)
    if model.training:
        if "memory" in words:
            small, room, begins = words["memory"]
            if rank == small and steps >= begins and device == "cuda":
                with simulated.device_memory((2 * room + 1) << 19):  # a sample takes a mebibyte
                    torch.empty(len(x) << 20, dtype=torch.uint8, device=device)
            elif rank == small and len(x) > room and steps >= begins:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory, as a small card says")
        seen.write(f"{run_step()} {indices.tolist()}\\n")
        seen.flush()
    output = model(x.to(device))
    if kept and model.training:
        centre.last.copy_(output.detach().mean(0))
        centre.mean.lerp_(centre.last, 0.1)
        kept["count"].total += output.detach().abs().mean().item()
        output = output - centre.mean - centre.last / kept["count"].total
    return nn.functional.cross_entropy(output, y.to(device))

def listen(event):
    kind = type(event).__name__
    if kind == "StepDone" and event.tokens is not None:
        tokens.append(float(event.tokens))
    if kind == "EpochDone" and words.get("changes") == "rate":
        optimizer.param_groups[0]["lr"] *= 0.1
    if kind == "EpochDone" and words.get("changes") == "weights":
        with torch.no_grad():
            model[0].weight.mul_(0.9)
    if kind == "Noted":
        print(json.dumps([kind, event.text]), flush=True)
    if kind in ("Restored", "RestoredInexactly", "RunStarted"):
        print(json.dumps([kind, getattr(event, "reason", "") or list(getattr(event, "reasons", ()))]), flush=True)

def digest():
    found = hashlib.sha256()
    for each in (*model.state_dict().values(), *(t for s in optimizer.state.values() for t in s.values())):
        if each.layout is torch.strided:
            found.update(each.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

common = {"storage": folder, "progress": False, "callbacks": [listen], "state": generators | kept}
common["save_every"] = "3 steps"
common |= words.get("more", {})
if words.get("fit"):
    class Average:  # called after each step
        def update_parameters(self, model):
            act()
        def state_dict(self):
            return {}
        def load_state_dict(self, state):
            pass
    def run_step():
        return steps
    if words.get("graph"):
        class Graphs:
            def __iter__(self):
                return iter([(torch.zeros(8, 6), torch.zeros(8), torch.zeros(2, 24))])
        loader = Graphs()
    def contrastive(output, _):
        return nn.functional.cross_entropy(output @ output.T, torch.arange(len(output)))
    def drawn(output, y):
        return nn.functional.cross_entropy(output, y, reduction="sum") * torch.rand(1)[0]
    losses = {"mean": nn.CrossEntropyLoss(), "sum": nn.CrossEntropyLoss(reduction="sum"), "drawn": drawn}
    losses["contrastive"] = contrastive
    how = {"step_fn": loss_of, "val_loader": DataLoader(Points(21), batch_size=5)}
    if "loss" in words:
        how = {"loss_fn": losses[words["loss"]]}
        pairs = lambda samples: torch.utils.data.default_collate(samples)[:2]
        loader = DataLoader(points, batch_size=8, shuffle=True, collate_fn=pairs)
    result = colabkeep.resumable_fit(
        model, loader, optimizer=optimizer, **how,
        scheduler=scheduler, scheduler_interval="step", max_epochs=3, run_name="r", ema=Average(),
        gradient_clip_val=1.0, accumulate_grad_batches=words.get("accumulate", 1), on_bad_gpu="ignore",
        count_tokens=(lambda batch: batch[0].numel()) if words.get("tokens") else None, **common
    )
    if words.get("kinds"):
        told = [model.short, model.seen, model.shown, model.scales.float(), torch.view_as_real(model.turned)]
        print(json.dumps(["Buffers", [each.tolist() for each in told]]), flush=True)
    end = {"step": result.steps, "history": result.history, "tokens": tokens}
else:
    accelerator = None
    if "accelerate" in words:
        import accelerate
        if size > 1:
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
            os.environ.update({name: str(value) for name, value in told.items()})
        split = accelerate.utils.DataLoaderConfiguration(split_batches=words["accelerate"] == "split")
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=split)
    # Else it sums the gradients of a session's first step in another order, which rounds differently from three on.
    keeps = not words.get("plain")
    wrapped = model
    if size > 1 and not words.get("apart"):
        apart = {"broadcast_buffers": False} if words.get("local") == "buffer" else {}
        apart |= {"static_graph": True} if words.get("wrapped") == "static" else {}
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=keeps, **apart)
    if accelerator is not None:
        wrapped, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    handed = {"bare": model, "inside": nn.Sequential(wrapped)}.get(words.get("wrapped"), wrapped)
    with colabkeep.Run("r", model=handed, optimizer=optimizer, scheduler=scheduler, **common) as run:
        def run_step():
            return run.progress.step
        assert (run.rank, run.ranks) == (rank, size)
        if "accumulate" in words:  # also over the end of an epoch; summed with the last of them only
            run.state.count = 0
        def step(batch):
            if "accumulate" in words:
                run.state.count += 1
                if run.state.count % words["accumulate"]:
                    with wrapped.no_sync():
                        (loss_of(wrapped, batch) * run.batch_weight).backward()
                    return
                loss = loss_of(wrapped, batch)
                (loss * run.batch_weight).backward()
                optimizer.step()
                optimizer.zero_grad()
                act()
                run.step(loss=loss)
                return
            optimizer.zero_grad()
            loss = loss_of(wrapped, batch)
            weighted = loss * run.batch_weight
            weighted.backward() if accelerator is None else accelerator.backward(weighted)
            optimizer.step()
            scheduler.step()
            act()
            run.step(loss=loss)
        if "steps" in words:
            for _ in run.steps(words["steps"]):
                step(run.next(loader))
        for epoch in run.epochs(3) if "steps" not in words else ():
            for batch in loader if words.get("beside") else run.batches(loader):
                step(batch)
    end = {"step": run.progress.step, "stopped": run.stopped}
weights = torch.cat([each.detach().flatten() for each in model.parameters()]).double().tolist()
rates = scheduler.get_last_lr()
if device == "cuda":
    print(json.dumps(["Counts", simulated.counts() if simulated else {}]))
print(json.dumps(["End", {**end, "digest": digest(), "weights": weights, "rates": rates}]), flush=True)
"""


LAUNCHING = """
import os, sys
import colabkeep

if "SIMCUDA" in os.environ:
    from colabkeep.session import launch
    launch._GRACE = float(os.environ["SIMCUDA_GRACE"])  # for whoever waits in NCCL's place, which is for ever

def train(code, arguments):
    import os, sys
    sys.argv[:] = ["-c", os.environ["RANK"], *arguments]
    exec(compile(code, "<training>", "exec"), {"__name__": "__main__"})

colabkeep.launch(train, [sys.argv[1], sys.argv[2:]], devices=int(sys.argv[2]), progress=False)
"""
SIMULATED = """
import os, sys
if len(sys.argv) > 1 and sys.argv[1].isdecimal():
    os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
from tests.simcuda.device import start_as_told
start_as_told()
"""
_MARK = "COLABKEEP_TESTS_SESSION"


class Ended:
    """What the processes of a session said, by rank."""

    def __init__(self, said: list[tuple[str, str]], status: list[int]) -> None:
        self.status = status
        self.ended = 0  # of those that had to be ended, as a launcher does
        self.errors = [errors for _, errors in said]
        self.told = [[json.loads(line) for line in out.splitlines() if line.startswith('["')] for out, _ in said]

    @property
    def end(self) -> dict[str, Any]:
        return next(value for kind, value in self.told[0] if kind == "End")

    def reasons(self) -> list[str]:
        return [value for kind, value in self.told[0] if kind == "RestoredInexactly"]

    @property
    def resumed(self) -> bool:
        return any(kind == "Restored" for kind, _ in self.told[0])


def session(
    folder: Path,
    size: int,
    meanwhile: Callable[[Sequence[Program]], object] = lambda ranks: None,
    within: float = 120.0,
    *,
    simulated: str = "",
    **words: Any,
) -> Ended:
    """One session of so many processes, until all of them have ended, or were ended by `within` seconds. `meanwhile`:
    what is done to them. `simulated`: each has a simulated device, as the variable SIMCUDA says it."""
    file = folder.with_name(f"{folder.name}.{len([*folder.parent.iterdir()])}")
    code = SIMULATED + TRAINING if simulated else TRAINING
    environ = {**os.environ, "SIMCUDA": simulated} if simulated else None
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Program(code, rank, size, file, folder, json.dumps(words), environ=environ))
            for rank in range(size)
        ]
        meanwhile(ranks)
        end, waiting = time.monotonic() + within, 0
        for each in ranks:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, end - time.monotonic()))
            waiting += each.returncode is None
            each.send_signal(signal.SIGKILL)
        ended = Ended([each.communicate() for each in ranks], [each.wait() for each in ranks])
        ended.ended = waiting
        return ended


def there_and_back(folder: Path, **words: Any) -> None:
    """In two processes, in one, and in two again, killed in each: the same steps and rates of learning, and weights up
    to the rounding of float64."""
    words |= {"fit": True, "dtype": "float64"}
    whole = session(folder / "whole", 2, **words)
    assert whole.status == [0, 0], whole.errors
    for size in (2, 1):
        assert session(folder / "run", size, **words, at=[0, 8], how="SIGKILL").status[0] == -signal.SIGKILL
    last = session(folder / "run", 2, **words)
    assert last.status == [0, 0], last.errors
    assert last.resumed
    assert "1 process(es) trained this run, and now 2" in last.reasons()[0]
    assert (last.end["step"], last.end["rates"]) == (whole.end["step"], whole.end["rates"])
    assert max(map(abs, map(sub, last.end["weights"], whole.end["weights"]))) <= 1e-10


def launched(
    folder: Path,
    size: int,
    meanwhile: Callable[[Program, Callable[[], Sequence[int]]], object] = lambda parent, children: None,
    within: float = 120.0,
    *,
    simulated: str = "",
    **words: Any,
) -> Ended:
    """The same, begun by `colabkeep.launch` in one program. `meanwhile` gets that, and what tells the processes that it
    has begun. Those that are still there `within` seconds after their parent's end are ended, and counted."""
    mark = f"{folder}.{len([*folder.parent.iterdir()])}"
    beside = folder.with_name("beside")  # what a killed parent leaves
    beside.mkdir(exist_ok=True)
    environ = {**os.environ, _MARK: mark, "TMPDIR": str(beside), "COLABKEEP_LANG": "en"}
    if simulated:
        environ |= {"SIMCUDA": simulated, "SIMCUDA_GRACE": str(within)}
    code = SIMULATED + LAUNCHING if simulated else LAUNCHING
    with Program(code, TRAINING, size, mark, folder, json.dumps(words), environ=environ) as parent:
        meanwhile(parent, lambda: [pid for pid in _marked(mark) if pid != parent.pid])
        with suppress(subprocess.TimeoutExpired):
            parent.wait(120.0)
        waiting = int(parent.returncode is None)
        parent.send_signal(signal.SIGKILL)
        said, status = parent.communicate(), parent.wait()
    end = time.monotonic() + within
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = Ended([said], [status])
    ended.ended = waiting + len(left)
    return ended


def _marked(mark: str) -> list[int]:
    """The processes of a session, by a variable that each of them got from its parent."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdecimal() and f"{_MARK}={mark}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found.append(int(each.name))
    return found


def newest_step(folder: Path) -> int:
    """Of the newest checkpoint."""
    return max(int(path.name[:12]) for path in (folder / "r" / "checkpoints").glob("*.json"))
