"""Two programs of others: one does little but write checkpoints, one is an ordinary training. None knows colabkeep.

    python folders_program.py checkpoints FOLDER SECONDS TIMES
    python folders_program.py training FOLDER SECONDS TIMES

A checkpoint is `last.pt`, by `torch.save` in place, now and then the same as `best.pt`, and `checkpoint-N/` of three
files, of which the two newest stay; all hold the number N and weights that follow from it, so that `judge` can say of
a folder what it is. TIMES is a file outside of it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = 2_000_000  # float32: 8 MB
ROTATE = 2


def weights(number: int, part: int) -> torch.Tensor:
    """What checkpoint `number` holds: noise, which nothing can make smaller."""
    return torch.rand(WEIGHTS, generator=torch.Generator().manual_seed(10 * number + part))


def save(folder: Path, number: int) -> None:
    """One checkpoint, as trainers write theirs: file after file, in place."""
    state = {"number": number, "weights": weights(number, 0)}
    torch.save(state, folder / "last.pt")
    if number % 3 == 1:
        torch.save(state, folder / "best.pt")
    own = folder / f"checkpoint-{number}"
    own.mkdir()
    save_file({"weights": weights(number, 1)}, own / "model.safetensors")
    torch.save({"number": number, "moments": weights(number, 2)}, own / "optimizer.pt")
    (own / "trainer_state.json").write_text(json.dumps({"global_step": number}))
    for old in numbers(folder)[:-ROTATE]:
        shutil.rmtree(folder / f"checkpoint-{old}")


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def judge(folder: Path) -> dict[str, Any]:
    """What a folder that came back is worth: `last`, the number of last.pt, or None where it does not load or holds
    what was never saved; `newest`: the same of the newest checkpoint-N; `whole`: all that is there is of one
    checkpoint."""
    last, best = _pt(folder / "last.pt", "weights", 0), _pt(folder / "best.pt", "weights", 0)
    found = numbers(folder)
    newest = found[-1] if found and all(_checkpoint(folder, number) for number in found) else None
    return {"last": last, "newest": newest, "whole": None not in (last, best, newest) and last == newest}


def _pt(path: Path, key: str, part: int) -> int | None:
    try:
        state = torch.load(path, weights_only=True)
        return state["number"] if torch.equal(state[key], weights(state["number"], part)) else None
    except Exception:  # noqa: BLE001  # not there, cut short, mixed: each is told in another way
        return None


def _checkpoint(folder: Path, number: int) -> bool:
    own = folder / f"checkpoint-{number}"
    try:
        model = torch.equal(load_file(own / "model.safetensors")["weights"], weights(number, 1))
        told = json.loads((own / "trainer_state.json").read_text())["global_step"]
    except Exception:  # noqa: BLE001  # as above
        return False
    return model and told == number == _pt(own / "optimizer.pt", "moments", 2)


def checkpoints(folder: Path, every: float, times: Path) -> None:
    """A checkpoint every so many seconds, for ever. TIMES has a line for each: number, its beginning and its end."""
    for number in range(1, 10**9):
        begin = time.time()
        save(folder, number)
        with times.open("a") as file:
            file.write(f"{number} {begin} {time.time()}\n")
        with (folder / "train.log").open("a") as log:
            log.write(f"checkpoint {number}\n")
        time.sleep(max(0.0, begin + every - time.time()))


def training(folder: Path, every: float, times: Path) -> None:
    """Steps on one thread, a line in the log for each, a checkpoint every so many seconds, until it is killed. TIMES
    has the end of each step that saved nothing, its seconds, and those of the thread's CPU."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(64, 512)
    number, saved = 0, -every
    with times.open("a", buffering=1) as file, (folder / "train.log").open("a", buffering=1) as log:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            took = time.perf_counter() - wall, time.thread_time() - cpu
            file.write(f"{time.time()} {took[0]} {took[1]}\n")
            log.write(f"loss {loss.item():.6f}\n")
            if time.monotonic() - saved >= every:
                number, saved = number + 1, time.monotonic()
                save(folder, number)


if __name__ == "__main__":
    {"checkpoints": checkpoints, "training": training}[sys.argv[1]](
        Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    )
