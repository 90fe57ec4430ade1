"""What a real run tells its panel, beside steps and saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import StoreUnavailable
from colabkeep.core.events import (
    DurabilityTold,
    Event,
    LengthTold,
    MachineChecked,
    RunStarted,
    RunStopped,
    StoreDegraded,
)
from colabkeep.session.machine import Deadline
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.stores.local import DirectoryStore
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.panel.state import PanelState

from .test_displays import Number, train


def told(kind: type, events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        ({"max_epochs": 2}, [(2, None)]),
        ({"max_steps": 3}, [(None, 3), (None, None)]),
        ({"max_epochs": 2, "max_steps": 3}, [(None, 3), (2, None)]),
    ],
)
def test_a_run_tells_how_long_it_is_to_be(
    tmp_path: Path, words: dict[str, int], lengths: list[tuple[int | None, int | None]]
) -> None:
    """So that a display can say how far it is: epochs, steps, or both."""
    events: list[Event] = []
    model = torch.nn.Linear(2, 2)
    colabkeep.resumable_fit(
        model,
        [(torch.ones(1, 2), torch.ones(1, 2))] * 2,
        run_name="r",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=torch.nn.functional.mse_loss,
        storage=tmp_path,
        callbacks=[events.append],
        progress=False,
        **words,  # type: ignore[arg-type]
    )
    assert [(event.max_epochs, event.max_steps) for event in told(LengthTold, events)] == lengths


def test_a_run_tells_where_its_files_lie_on_this_machine(tmp_path: Path) -> None:
    """The folder itself, or the one in front; none where they are not on its disk."""
    front, memory = DirectoryStore(tmp_path / "front"), MemoryStore()
    stores = [front, TieredStore(front, DirectoryStore(tmp_path / "behind")), TieredStore(memory, front), memory]
    folders = []
    for store in stores:
        events: list[Event] = []
        train(store, progress=False, callbacks=[events.append])  # type: ignore[arg-type]
        folders += [event.folder for event in told(RunStarted, events)]
        store.close()
    assert folders == [str(tmp_path / "front")] * 2 + [None, None]


def test_a_run_tells_when_its_machine_goes(tmp_path: Path) -> None:
    """As a date, which a page can show that is read later, with where the figure is from."""
    events: list[Event] = []
    clock = FakeClock(monotonic=50.0)
    words: dict[str, Any] = {"storage": tmp_path, "save_every": None, "observers": (events.append,)}
    spec = wire_run(RunArguments(run_name="r", objects={"model": Number()}, **words))
    deadline = Deadline(at=650.0, reserve=1.0, ends=False, text="It ends.", source="Limit: yours.")
    with Run(replace(spec, clock=clock, deadline=deadline)):
        pass
    (started,) = told(RunStarted, events)
    assert (started.ends_at, started.ends_source) == (clock.time() + 600.0, "Limit: yours.")


def test_a_run_that_failed_tells_of_what(tmp_path: Path) -> None:
    """The kind of the error and its first line; an interrupt is no error."""
    events: list[Event] = []
    for error in (ValueError("bad batch\nand more"), KeyError(), KeyboardInterrupt()):
        with (
            pytest.raises(type(error)),
            colabkeep.Run("r", model=Number(), storage=tmp_path, progress=False, callbacks=[events.append]),
        ):
            raise error
    assert [event.error for event in told(RunStopped, events)] == ["ValueError: bad batch", "KeyError", ""]


def test_a_run_that_goes_on_tells_at_once_what_is_safe(tmp_path: Path) -> None:
    """Not only after its first save of this session."""
    train(tmp_path, progress=False)
    events: list[Event] = []
    with colabkeep.Run("r", model=Number(), storage=tmp_path, progress=False, callbacks=[events.append]):
        (figure,) = [event.durability for event in told(DurabilityTold, events)]
    assert (figure.step, figure.lost_seconds) == (12, 0.0)


class Moody(MemoryStore):
    """A drive that is away at first."""

    away = True

    def put(self, name: str, source: Any) -> Any:
        if self.away:
            raise StoreUnavailable(problem="The drive is away.", remedy="Wait.")
        return super().put(name, source)


def test_a_storage_that_works_again_is_told_as_healed(tmp_path: Path) -> None:
    """A display ends its alarm by the event, not by the words in it."""
    events: list[Event] = []
    drive = Moody()
    store = TieredStore(DirectoryStore(tmp_path), drive, pauses=(0.001, 0.002))
    with colabkeep.Run(
        "r", model=Number(), storage=store, save_every=None, progress=False, callbacks=[events.append]
    ) as run:
        for _ in run.epochs(1):
            for _batch in run.batches([0] * 3):
                run.step()
                run.save(wait=True)
                store.flush(0.2 if drive.away else 20.0)
                drive.away = run.progress.step < 2
    store.close()
    assert [event.healed for event in told(StoreDegraded, events)] == [False, True]


def test_the_check_is_told_to_displays_and_not_to_the_users_functions(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They hear of the run; the check is before it."""
    events: list[Event] = []
    model = torch.nn.Linear(2, 2)
    colabkeep.resumable_fit(
        model,
        [(torch.ones(1, 2), torch.ones(1, 2))],
        run_name="r",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=torch.nn.functional.mse_loss,
        storage=tmp_path,
        max_epochs=1,
        callbacks=[events.append],
    )
    assert told(MachineChecked, events) == []
    assert told(RunStarted, events)
    assert capfd.readouterr().out.startswith("[colabkeep] ")


def test_a_run_that_is_complete_says_so_before_all_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the first line, with the way to train on; not that it goes on. The panel says it too."""
    for _ in range(2):
        capsys.readouterr()
        model = torch.nn.Linear(2, 2)
        colabkeep.resumable_fit(
            model,
            [(torch.ones(1, 2), torch.ones(1, 2))] * 2,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=torch.nn.functional.mse_loss,
            max_epochs=1,
            storage=tmp_path,
            run_name="r",
            on_bad_gpu="ignore",
        )
    out = capsys.readouterr().out
    assert out.startswith("[colabkeep] complete since ")
    assert "nothing is trained. To train longer, raise max_epochs" in out.splitlines()[0]
    assert "resumed from" not in out
    assert (tmp_path / "r.status.html").read_text().count("nothing was trained") == 1


def test_what_a_display_knows_of_the_training_is_what_the_training_has(tmp_path: Path) -> None:
    """Over two sessions: the metrics of each epoch, the learning rate, the loss, the samples; none is guessed."""
    panels, results = [PanelState(), PanelState()], []
    for panel, epochs in zip(panels, (2, 4), strict=True):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [(torch.full((3, 2), float(n)), torch.ones(3, 2)) for n in range(4)]
        results.append(
            colabkeep.resumable_fit(
                model,
                data,
                run_name="r",
                optimizer=optimizer,
                scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
                loss_fn=torch.nn.functional.mse_loss,
                val_loader=data[:2],
                storage=tmp_path,
                callbacks=[lambda event, panel=panel: panel.take(event, 0.0)],
                progress=False,
                max_epochs=epochs,
                monitor="val_loss",
            )
        )
    for panel, result in zip(panels, results, strict=True):
        known = [{"epoch": row.epoch, "step": row.step, **row.metrics} for row in panel.epochs]
        assert known == list(result.history)
        assert panel.loss == result.losses[-1][1]
        assert panel.points == tuple(result.losses)
        assert result.best is not None
        assert panel.best_epoch is not None
        assert (panel.best_epoch.epoch + 1, panel.judged_by) == (result.best.epoch, ("val_loss", "min"))
    assert [row.epoch for row in panels[1].epochs] == [0, 1, 2, 3]
    assert panels[0].learning_rate == pytest.approx(0.05)
    assert panels[1].progress.samples == 48
