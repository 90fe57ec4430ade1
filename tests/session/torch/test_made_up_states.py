"""A checkpoint whose digests are right and whose state makes no sense: refused in words, whatever is wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from colabkeep import ColabKeepError
from colabkeep.core.layout import seal, unseal

X, Y = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(32, 1)


class Own:
    """An object of the user's, with a mistake in it."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise TypeError("the user's own mistake")


def train(folder: Path, epochs: int, **words: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return colabkeep.resumable_fit(
        model,
        DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True),
        optimizer=torch.optim.AdamW(model.parameters()),
        loss_fn=nn.functional.mse_loss,
        max_epochs=epochs,
        run_name="r",
        storage=folder,
        progress=False,
        **words,
    )


@pytest.fixture
def tampered(tmp_path: Path) -> Callable[[tuple[Any, ...], Any], Path]:
    """A run of one epoch with another value at a place of its newest manifest, and the digest that fits."""
    train(tmp_path, 1)
    newest = max((tmp_path / "r/checkpoints").iterdir())

    def tamper(place: tuple[Any, ...], value: Any) -> Path:
        record = node = unseal(newest.read_bytes())
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = value
        newest.write_bytes(seal(record))
        return tmp_path

    return tamper


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("parts", "run", "state"), [1]),
        (("parts", "loader", "state"), "x"),
        (("parts", "data", "state"), 1.5),
        (("parts", "data", "state", "train", "samples"), {"$dict": [[0, None]]}),
        (("parts", "model", "transient"), 1.5),
        (("parts", "optimizer", "groups"), -1),
        (("parts", "history", "state"), 1e308),
        (("parts", "losses", "state", "steps"), []),
        (("parts", "losses", "state", "broken"), {}),
        (("parts", "losses", "state", "stride"), 0),
        (("parts", "fit", "state", "mean", "weights"), 7),
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_is_refused_in_words(
    tampered: Callable[[tuple[Any, ...], Any], Path], place: tuple[Any, ...], value: Any
) -> None:
    """Whoever knows the format can make any digest right: the checkpoint is named, with what to do, and nothing ends
    in a traceback of this library's own."""
    folder = tampered(place, value)
    with pytest.raises(ColabKeepError, match=r"heckpoint 000000000004-") as caught:
        train(folder, 2)
    assert "resume=" in caught.value.remedy
    assert "Nothing was" in caught.value.remedy


def test_a_mistake_of_the_user_s_own_is_not_blamed_on_the_checkpoint(tmp_path: Path) -> None:
    """What the `load_state_dict` of an object of the user's raises is raised as it is."""
    train(tmp_path, 1, state={"own": Own()})
    with pytest.raises(TypeError, match="the user's own mistake"):
        train(tmp_path, 2, state={"own": Own()})


def test_what_a_user_adds_to_an_optimizer_is_not_called_made_up(tmp_path: Path) -> None:
    """Other settings, in groups and among what is kept of a parameter, may be of any kind, and another one now."""

    def steps(count: int, tag: object, eps: float | None) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe" if eps else None)
        optimizer.param_groups[0]["tag"] = tag
        with colabkeep.Run(
            "r", model=model, optimizer=optimizer, storage=tmp_path, progress=False, on_change="apply"
        ) as run:
            for _ in run.steps(count):

                def closure() -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = model(X).square().mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)
                optimizer.state[model.weight]["mine"] = tag
                run.step()
        assert run.progress.step == count

    steps(2, "x", None)
    steps(4, 3, 1.0)
