"""What is told of several processes: by a clock that tests set, and in a real training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from colabkeep.core.events import Noted
from colabkeep.session.fit import Worth
from colabkeep.testing.clock import FakeClock


def told(steps: Sequence[float], summing: float, size: int = 2, epoch: int = 1000) -> list[str]:
    """Of a training whose steps take so many seconds, with a validation of a minute after so many steps."""
    clock, notes = FakeClock(), list[Noted]()
    worth = Worth(size, summing, clock, notes.append)
    for number, seconds in enumerate(steps):
        if number % epoch == 0:
            clock.advance(60.0)
            worth.pause()
        clock.advance(seconds)
        worth(0.5)
    return [note.text for note in notes]


def test_several_that_do_not_pay_are_told_once_with_what_was_measured() -> None:
    """Half of a step of two, and two thirds of one of three, is where one alone is as fast."""
    assert told([0.004] * 200, 0.003) == [
        "2 devices are no faster than one for this model: a step takes about 4 ms, of which the sums over all of "
        "them take about 3 ms. With devices=1 a step would take about 2 ms at most."
    ]
    assert told([0.004] * 200, 0.0019) == []
    assert told([0.3] * 200, 0.19, size=3) == []
    (text,) = told([0.3] * 200, 0.21, size=3)
    assert "3 devices are no faster than one" in text
    assert "about 270 ms at most" in text


def test_sums_that_took_longer_in_the_trial_than_a_step_are_told_as_that() -> None:
    """What one device would take is not known then."""
    (text,) = told([0.004] * 200, 0.005)
    assert text.endswith(
        "the sums over all of them took as long in the trial before the training. devices=1 needs no sums."
    )


@pytest.mark.parametrize("epoch", [9, 23])
def test_the_first_steps_validation_and_a_save_are_no_steps(epoch: int) -> None:
    """Kernels are chosen in the first ones; a minute between epochs is no step, and one that waits is not the rule."""
    steps = [5.0] * 19 + [0.004] * 200
    steps[40] = 9.0
    assert "a step takes about 4 ms" in told(steps, 0.003, epoch=epoch)[0]


def test_of_a_short_session_nothing_is_told() -> None:
    """Nor of epochs in which there are not enough steps beside each other."""
    assert told([0.004] * 59, 0.003) == []
    assert told([0.004] * 600, 0.003, epoch=5) == []


@pytest.mark.torch
@pytest.mark.long
def test_a_real_training_of_two_processes_tells_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A model whose gradients are many bytes and little work."""
    import torch

    import colabkeep

    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(520, 2), torch.ones(520, 1))

    def train(summing: float) -> list[str]:
        from colabkeep.frameworks.torch.ranks import SUMMING

        notes = list[str]()
        SUMMING.set(summing)
        colabkeep.resumable_fit(
            model,
            torch.utils.data.DataLoader(data, batch_size=4),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            loss_fn=torch.nn.functional.mse_loss,
            max_steps=70,
            run_name=f"r{summing}",
            storage=tmp_path,
            on_bad_gpu="ignore",
            progress=False,
            callbacks=[lambda event: notes.append(event.text) if isinstance(event, Noted) else None],
        )
        return [note for note in notes if "are no faster than one" in note]

    told, quiet = colabkeep.launch(lambda: (train(100.0), train(0.0)), devices=2)
    assert len(told) == 1
    assert quiet == []
