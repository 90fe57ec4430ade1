"""With Paddle: other data than that of the run is refused before anything is trained on it, with its likely cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.io import DataLoader, Dataset, random_split

import colabkeep
from colabkeep.core.errors import Incompatible
from colabkeep.core.events import Event, RestoredInexactly
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from tests.trainings import final_state

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Pictures(Dataset):
    """A picture made of the number in a file's name, and its class; augmented at random."""

    def __init__(self, names: list[str] | None = None, *, scale: float = 1.0, side: int = 4) -> None:
        self.names = [f"{number}.png" for number in range(60)] if names is None else names
        self.scale, self.side = scale, side

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        number = int(self.names[index].partition(".")[0])
        picture = np.full((2, self.side, self.side), number / 60 * self.scale + 0.01 * np.random.random())
        return picture.astype("float32"), np.array([number % 7])


def files(count: int = 60, seed: int | None = None) -> list[str]:
    names = [f"{number}.png" for number in range(count)]
    if seed is not None:
        random.Random(seed).shuffle(names)
    return names


def split(seed: int) -> tuple[Any, Any]:
    """What random_split gives in a kernel with this seed."""
    paddle.seed(seed)
    train, val = random_split(Pictures(), [40, 20])
    return train, val


def parts() -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    paddle.seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(2, 7))
    return model, paddle.optimizer.AdamW(1e-2, parameters=model.parameters())


def fit(folder: Path, train: Any, val: Any = None, *, workers: int = 0, **words: Any) -> Any:
    model, optimizer = parts()
    return colabkeep.resumable_fit(
        model,
        DataLoader(train, batch_size=8, shuffle=True, num_workers=workers),
        optimizer=optimizer,
        loss_fn=nn.functional.cross_entropy,
        val_loader=None if val is None else DataLoader(val, batch_size=8, num_workers=workers),
        run_name="r",
        storage=folder,
        progress=False,
        **{"max_epochs": 2, **words},
    )


def loop(
    folder: Path, data: Any, *, epochs: int = 2, steps: int | None = None, workers: int = 0, on_change: str = "error"
) -> tuple[int, list[str]]:
    """A user's own loop; how many batches it got, and what it was told not to be exact."""
    model, optimizer = parts()
    told: list[Event] = []
    words = RunArguments(
        run_name="r", objects={"model": model, "optimizer": optimizer}, storage=folder, save_every="1 epochs",
        on_change=on_change, observers=(told.append,),
    )  # fmt: skip
    count = 0
    with Run(wire_run(words)) as run:
        for _ in run.epochs(epochs):
            for pictures, labels in run.batches(DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)):
                count += 1
                nn.functional.cross_entropy(model(pictures), labels).backward()
                optimizer.step()
                optimizer.clear_grad()
                run.step()
                if run.progress.step == steps:
                    run.stop()
    return count, [event.reason for event in told if isinstance(event, RestoredInexactly)]


Make = Callable[[], Any]
CHANGES: dict[str, tuple[Make, Make, list[str]]] = {
    "a split without a seed": (
        lambda: split(1)[0],
        lambda: split(2)[0],
        ["other indices in a Subset of 40", "paddle.seed(0) right before paddle.io.random_split"],
    ),
    "files in another order": (
        lambda: Pictures(files(seed=1)),
        lambda: Pictures(files(seed=2)),
        ["other contents of the same shape", "sorted(os.listdir(folder))"],
    ),
    "more files": (Pictures, lambda: Pictures(files(66)), ["60 → 66 samples", "added or lost"]),
    "another size": (
        Pictures,
        lambda: Pictures(side=6),
        ["(float32[2, 4, 4], int64[1])", "(float32[2, 6, 6], int64[1])"],
    ),
    "another normalisation": (Pictures, lambda: Pictures(scale=0.5), ["a transform was changed"]),
}


@pytest.mark.parametrize("steps", [3, None], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_data_is_refused_before_anything_is_touched(tmp_path: Path, change: str, steps: int | None) -> None:
    """In resumable_fit, with the cause and what mends it; with the data as it was the run goes on."""
    before, after, said = CHANGES[change]
    fit(tmp_path, before(), **({"max_steps": steps} if steps else {"max_epochs": 1}))
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    with pytest.raises(Incompatible) as caught:
        fit(tmp_path, after())
    listed = "\n".join(caught.value.differences)
    assert all(text in listed for text in said), listed
    assert "Nothing was touched" in caught.value.remedy
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == contents
    assert fit(tmp_path, before()).epochs == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [3, None], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_own_loop_gets_no_batch_of_other_data(tmp_path: Path, change: str, steps: int | None, workers: int) -> None:
    """In Run: none is handed out, unless the new data is applied, which is told."""
    before, after, said = CHANGES[change]
    loop(tmp_path, before(), epochs=1, steps=steps, workers=workers)
    with pytest.raises(Incompatible) as caught:
        loop(tmp_path, after(), workers=workers)
    listed = "\n".join(caught.value.differences)
    assert all(text in listed for text in said), listed
    count, told = loop(tmp_path, after(), workers=workers, on_change="apply")
    assert count > 0
    assert any("training data" in text and 'on_change="apply"' in text for text in told)
    assert loop(tmp_path, after(), epochs=3)[1] == []


def test_a_leaking_split_is_named_for_both_of_its_halves(tmp_path: Path) -> None:
    """What was trained on may be validated with."""
    fit(tmp_path, *split(1), max_steps=3)
    with pytest.raises(Incompatible) as caught:
        fit(tmp_path, *split(2))
    assert [line.partition(":")[0] for line in caught.value.differences] == ["training data", "validation data"]


@pytest.mark.parametrize("workers", [0, 1])
def test_another_validation_set_is_refused(tmp_path: Path, workers: int) -> None:
    """Its contents, too."""
    fit(tmp_path, Pictures(), Pictures(files(20)), max_epochs=1, workers=workers)
    with pytest.raises(Incompatible, match="validation data: 7 of 8 samples"):
        fit(tmp_path, Pictures(), Pictures(files(20), scale=2.0), workers=workers)
    assert fit(tmp_path, Pictures(), Pictures(files(20)), workers=workers).epochs == 2


def test_the_same_data_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Augmented at random, with and without workers."""
    for steps, workers in ((3, 0), (9, 2), (99, 0)):
        fit(tmp_path / "parts", Pictures(), Pictures(files(9)), max_steps=steps, workers=workers)
    fit(tmp_path / "whole", Pictures(), Pictures(files(9)), max_steps=99)
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")
