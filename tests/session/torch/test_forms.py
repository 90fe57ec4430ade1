"""The forms that people give their loops: each is resumed where it was, and none trains a step twice."""

from __future__ import annotations

import gc
import os
import random
import signal
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import colabkeep
from colabkeep.core.errors import NotStorable, UsageError
from colabkeep.core.events import AlreadyComplete, Event, Noted, RestoredInexactly, SaveCommitted, StepDone
from tests.processes import Life
from tests.trainings import final_state

EPOCHS, BATCHES = 3, 7


class Training:
    """What one session of a loop is made of: everything built anew, from one seed."""

    def __init__(self, folder: Path, *, die_at: int = -1, **words: Any) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        self.events: list[Event] = []
        self.die_at = die_at
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        data = TensorDataset(torch.randn(BATCHES * 4 - 1, 4), torch.randint(0, 2, (BATCHES * 4 - 1,)))
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.other = DataLoader(TensorDataset(torch.randn(10, 4)), batch_size=2, shuffle=True)
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        options = {"storage": str(folder), "save_every": "2 steps", "keep_last": None, "progress": False, **words}
        self.run = colabkeep.Run("r", **parts, **options, callbacks=[self._heard])

    def _heard(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepDone):
            self.run._saver.wait()  # each save is done before the next is due
            if event.progress.step == self.die_at:
                raise Killed  # no Exception: it is not taken for a display that fails

    def learn(self, batch: Any) -> torch.Tensor:
        """Forward, backward, update."""
        features, target = batch
        loss = nn.functional.cross_entropy(self.model(features), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def told(self) -> str:
        """What the user was told besides the usual."""
        return " ".join(
            [*(each.text for each in self.of(Noted)), *(each.reason for each in self.of(RestoredInexactly))]
        )


class Killed(BaseException):
    """Stands for a kill: nothing may be saved after it."""


Form = Callable[[Training], None]


def session(form: Form, folder: Path, *, die_at: int = -1, **words: Any) -> Training:
    """One session. `die_at`: in this step, in a process of its own."""
    if die_at < 0:
        training = Training(folder, **words)
        form(training)
        return training

    def work(say: Any) -> None:
        training = Training(folder, die_at=die_at, **words)
        try:
            form(training)
        except Killed:
            os.kill(os.getpid(), signal.SIGKILL)

    with Life(work) as life:
        for _ in life.messages(within=60):
            pass
        assert life.status == -9
    return Training(folder)


def compared(form: Form, tmp_path: Path, **words: Any) -> Training:
    """Killed in several steps, one after the other, it ends with the bits of one that was left alone."""
    whole = session(form, tmp_path / "whole", **words)
    steps = whole.run.progress.step
    for step in (5, BATCHES, BATCHES + 1, steps - 1):
        session(form, tmp_path / "parts", die_at=step, **words)
    last = session(form, tmp_path / "parts", **words)
    assert last.run.progress._replace(seconds=0.0) == whole.run.progress._replace(seconds=0.0)
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    return whole


def state(folder: Path) -> dict[str, str]:
    return final_state(str(folder), "r")


def plain(training: Training) -> None:
    with training.run as run:
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(training.loader):
                run.step(loss=training.learn(batch))
            training.scheduler.step()


def behind_the_step(training: Training) -> None:
    """The body goes on behind `run.step()`: it draws numbers, moves the schedule, changes variables."""
    with training.run as run:
        run.state.noise = 0.0
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(training.loader):
                run.step(loss=training.learn(batch))
                run.state.noise += float(torch.rand(()))
                if run.progress.step % 3 == 0:
                    training.scheduler.step()
            run.log(noise=run.state.noise)


def without_batches(training: Training) -> None:
    """The loader is read past colabkeep."""
    with training.run as run:
        for _ in run.epochs(EPOCHS):
            for batch in training.loader:
                run.step(loss=training.learn(batch))
            training.scheduler.step()


def full_batch(training: Training) -> None:
    batch = training.loader.dataset.tensors
    with training.run as run:
        for _ in run.epochs(21):
            run.step(loss=training.learn(batch))


def around_the_batches(training: Training) -> None:
    """A step before the loop over batches, and one behind it."""
    batch = training.loader.dataset.tensors
    with training.run as run:
        for _ in run.epochs(EPOCHS):
            run.step(loss=training.learn(batch))
            for some in run.batches(training.loader):
                run.step(loss=training.learn(some))
            run.step(loss=training.learn(batch))


def by_steps(training: Training) -> None:
    with training.run as run:
        for _ in run.steps(21):
            run.step(loss=training.learn(run.next(training.loader)))


def two_streams(training: Training) -> None:
    """A second loader beside the epochs, one drawn now and then, and numbers drawn as the epoch begins."""
    with training.run as run:
        run.state.seen = []
        for _ in run.epochs(EPOCHS):
            run.state.strength = float(torch.rand(()))
            (first,) = run.next(training.other)
            for batch in run.batches(training.loader):
                (more,) = run.next(training.other)
                run.state.seen = [*run.state.seen, run.state.strength, float(first[0, 0]), float(more[0, 0])]
                run.step(loss=training.learn(batch))


def counted(training: Training) -> None:
    """A learning rate by the number of the batch, and a mean over the epoch."""
    with training.run as run:
        for epoch in run.epochs(EPOCHS):
            for i, batch in run.enumerate(training.loader):
                for group in training.optimizer.param_groups:
                    group["lr"] = 0.1 / (1 + epoch + i / BATCHES)
                loss = training.learn(batch)
                run.average(loss=loss)
                run.step(loss=loss)
            run.log(train_loss=run.average.loss)


def accumulated(training: Training) -> None:
    """Two batches to a step, by the number of the batch."""
    with training.run as run:
        for _ in run.epochs(EPOCHS):
            for i, (features, target) in run.enumerate(training.loader):
                nn.functional.cross_entropy(training.model(features), target).backward()
                if (i + 1) % 2 == 0 or i + 1 == BATCHES:
                    training.optimizer.step()
                    training.optimizer.zero_grad()
                    run.step()


def of_unknown_length(training: Training) -> None:
    class Endless:
        def __iter__(self) -> Iterator[Any]:
            yield from training.loader

    with training.run as run:
        for _ in run.epochs(EPOCHS):
            last = None
            for batch in run.batches(Endless()):
                last = training.learn(batch)
                run.step(loss=last)
            assert last is not None, "the loop was resumed with no batch left"
            training.scheduler.step()


FORMS = [
    plain, behind_the_step, without_batches, full_batch, around_the_batches, by_steps, two_streams, counted,
    accumulated, of_unknown_length,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_loop_that_is_killed_again_and_again_ends_with_the_same_bits(form: Form, tmp_path: Path) -> None:
    """Weights, optimizer, schedule, history, variables, loss curve and random streams, all of it."""
    compared(form, tmp_path)


class Fault(Exception):
    """An error in the user's code."""


def with_faults(training: Training, at: int) -> None:
    """Places all over a loop, of which the one of this number fails."""
    passed = 0

    def place() -> None:
        nonlocal passed
        passed += 1
        torch.rand(())  # what fails has drawn a number first
        if passed == at:
            raise Fault

    with training.run as run:
        run.state.best, run.state.hidden = 0.0, torch.zeros(3)
        for _ in run.epochs(2):
            place()
            for _i, batch in run.enumerate(training.loader):
                place()
                run.state.hidden = run.state.hidden + torch.rand(3)
                run.average(hidden=run.state.hidden.sum())
                place()
                loss = training.learn(batch)
                place()
                run.step(loss=loss)
                place()
                run.state.best = max(run.state.best, float(loss))
            place()
            training.scheduler.step()
            place()
            run.log(best=run.state.best, hidden=run.average.hidden)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the loop ends with where nothing fails."""
    folder = tmp_path_factory.mktemp("faultless")
    with_faults(Training(folder), -1)
    return state(folder)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 12, 13, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 50, 62])
def test_an_error_anywhere_in_an_own_loop_costs_no_bit(at: int, faultless: dict[str, str], tmp_path: Path) -> None:
    """It comes out as it is; the loop, mended and run again, ends as if there had been none."""
    with pytest.raises(Fault):
        with_faults(Training(tmp_path / "parts"), at)
    with_faults(Training(tmp_path / "parts"), -1)
    assert state(tmp_path / "parts") == faultless


def test_an_error_before_the_update_loses_no_step(tmp_path: Path) -> None:
    """The last finished step is saved on the way out, with the variables and means that it had."""
    broken = Training(tmp_path, save_every=None)
    with pytest.raises(Fault):
        with_faults(broken, 2 + 4 * 3)  # after the variables of the fourth step were changed
    assert broken.run.checkpoint is not None
    assert broken.run.checkpoint.startswith("000000000003-")


def test_saves_inside_an_epoch_that_reads_elsewhere_come_at_its_end(tmp_path: Path) -> None:
    """None of them holds a step that would be trained again; it is said once, with the line to write."""
    training = session(without_batches, tmp_path)
    assert [event.progress.step for event in training.of(SaveCommitted)] == [7, 14, 21]
    assert training.told.count("can be saved at its end only") == 1
    assert "for batch in run.batches(loader)" in training.told


def test_a_batch_loop_of_which_all_is_seen_is_told_nothing(tmp_path: Path) -> None:
    """No note, in whatever good form; so the notes above mean something."""
    for number, form in enumerate((plain, behind_the_step, by_steps, two_streams, counted, accumulated)):
        assert session(form, tmp_path / str(number)).told == ""


def test_a_checkpoint_at_the_last_batch_belongs_to_the_end_of_the_epoch(tmp_path: Path) -> None:
    """Validation and schedule included: nobody resumes with no batch left."""
    training = session(plain, tmp_path, save_every="7 steps")
    saved = [
        (event.progress.step, event.progress.epoch, event.progress.batches) for event in training.of(SaveCommitted)
    ]
    assert saved == [(7, 1, 0), (14, 2, 0), (21, 3, 0)]


@pytest.mark.parametrize(
    ("counted", "said", "write"),
    [
        (lambda run, loader: enumerate(run.batches(loader)), "counts from 0", "run.enumerate(loader)"),
        (
            lambda run, loader: zip(range(7), run.batches(loader), strict=True),
            "restarts its other iterator",
            "run.next(",
        ),
        (
            lambda run, loader: zip(range(7), run.enumerate(loader), strict=True),
            "restarts its other iterator",
            "run.next(",
        ),
        (lambda run, loader: enumerate(islice(run.batches(loader), 7)), "too many batches", "leave the loop"),
        (lambda run, loader: islice(run.enumerate(loader), 7), "too many batches", "leave the loop"),
    ],
    ids=["enumerate", "zip", "zip of numbers", "islice", "islice of numbers"],
)
def test_what_counts_anew_is_noticed_before_the_disconnect_and_told_after_it(
    counted: Any, said: str, write: str, tmp_path: Path
) -> None:
    """In the first session a note with the line to write; in an epoch that is resumed, "exact" is taken back."""

    def form(training: Training, end: int) -> None:
        with training.run as run:
            for _ in run.epochs(1):
                try:
                    for item in counted(run, training.loader):
                        batch = item[1][1] if isinstance(item[1][0], int) else item[1]
                        run.step(loss=training.learn(batch))
                        if run.progress.step == end:
                            run.stop()
                except ValueError:  # of zip: the other side is longer now
                    assert end == 21

    first, second = Training(tmp_path), Training(tmp_path)
    form(first, 3)
    assert [event.text for event in first.of(Noted) if said in event.text and write in event.text]
    assert not first.of(RestoredInexactly)
    form(second, 21)
    (inexact,) = second.of(RestoredInexactly)
    assert said in inexact.reason
    assert write in inexact.reason


def test_a_loop_that_is_left_is_closed_at_once(tmp_path: Path) -> None:
    """Not by the garbage collector, which runs on any thread: one of a loader cannot end itself."""
    training = Training(tmp_path)
    gc.disable()
    try:
        with training.run as run:
            for form in [run.batches, run.enumerate]:
                for _ in run.epochs(1):
                    batches = form(training.loader)
                    next(batches)
                    run.step(loss=training.learn(next(iter(training.loader))))
                    left = weakref.ref(batches)
                    del batches
                    assert left() is None
                    break
    finally:
        gc.enable()


def test_a_finished_run_called_again_says_so_and_leaves_the_random_streams_as_they_were(tmp_path: Path) -> None:
    """The cells below see the same numbers as behind the training itself."""
    for number, form in enumerate((plain, by_steps)):
        folder = tmp_path / str(number)
        session(form, folder)
        drawn = torch.rand(3), np.random.rand(), random.random()
        again = session(form, folder)
        assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == (drawn[0].tolist(), *drawn[1:])
        (told,) = again.of(AlreadyComplete)
        assert told.step == 21
        assert not again.of(StepDone)
        assert again.run.finished


class TestVariables:
    """`run.state`: what the loop itself keeps from step to step."""

    def test_they_are_there_for_the_code_before_the_loop_and_back_behind_it(self, tmp_path: Path) -> None:
        """A first value that is given each time does not replace what was saved; one that is new in the code stays."""
        with Training(tmp_path).run as run:
            run.state.best = 0.0
            for _ in run.steps(3):
                run.state.best += 1.0
                run.state["losses"] = [
                    *run.state.get("losses", ()),
                    (run.progress.step, np.float32(0.5), torch.ones(2)),
                ]
        with Training(tmp_path).run as run:
            assert (run.state.best, len(run.state.losses)) == (3.0, 3)
            run.state.best = 0.0
            run.state.fresh = "new"
            for _ in run.steps(4):
                assert (run.state.best, run.state.fresh) == (3.0, "new")
                step, half, ones = run.state.losses[-1]
                assert (step, half, type(half), ones.tolist()) == (2, 0.5, np.float32, [1.0, 1.0])

    def test_what_cannot_be_saved_is_refused_where_it_is_written(self, tmp_path: Path) -> None:
        """Not when the first checkpoint is made."""
        with Training(tmp_path).run as run:
            with pytest.raises(NotStorable, match=r"state\.f"):
                run.state.f = lambda: 0
            with pytest.raises(UsageError, match="_hidden"):
                run.state._hidden = 1
            with pytest.raises(AttributeError, match="Give it its first value before the loop"):
                _ = run.state.best

    def test_a_variable_with_a_graph_is_refused(self, tmp_path: Path) -> None:
        """A hidden state that is not detached would come back without what it was computed from."""
        training = Training(tmp_path)
        with training.run as run, pytest.raises(UsageError, match="detach"):
            run.state.hidden = training.model(torch.ones(1, 4))

    def test_a_list_that_an_error_may_have_changed_is_not_saved_as_if_it_had_not(self, tmp_path: Path) -> None:
        """The checkpoint before it counts, and the user hears why."""
        training = Training(tmp_path)

        def form() -> None:
            with training.run as run:
                run.state.losses = []
                for _ in run.epochs(1):
                    for batch in run.batches(training.loader):
                        run.state.losses.append(run.progress.step)
                        if run.progress.step == 5:
                            raise Fault
                        run.step(loss=training.learn(batch))

        with pytest.raises(Fault):
            form()
        assert "run.state.losses is a list, which may have been changed" in training.told
        assert training.run.checkpoint.startswith("000000000004-")


class TestStreams:
    """`run.next`."""

    def test_each_pass_has_an_order_of_its_own_and_every_sample_once(self, tmp_path: Path) -> None:
        """Pass after pass, also where a session ends in the middle of one."""
        seen: list[float] = []
        for end in (3, 4, 5, 8, 15):
            training = Training(tmp_path)
            with training.run as run:
                for _ in run.steps(end):
                    (batch,) = run.next(training.other)
                    seen += batch[:, 0].tolist()
        passes = [seen[at : at + 10] for at in (0, 10, 20)]
        assert len({tuple(each) for each in passes}) == 3
        assert len({tuple(sorted(each)) for each in passes}) == 1

    def test_loaders_that_are_made_anew_at_each_step_are_refused(self, tmp_path: Path) -> None:
        """Each would begin at its first batch, silently."""
        with Training(tmp_path).run as run, pytest.raises(UsageError, match="more than 32 loaders"):
            [run.next(DataLoader(TensorDataset(torch.ones(2, 2)))) for _ in run.steps(100)]

    def test_an_empty_loader_is_refused(self, tmp_path: Path) -> None:
        """It has no next batch, however often it is begun."""
        with Training(tmp_path).run as run, pytest.raises(UsageError, match="no batches"):
            run.next([])

    def test_a_batch_that_is_drawn_for_the_next_step_is_told(self, tmp_path: Path) -> None:
        """No checkpoint holds it: it is in a variable of the loop."""
        training = Training(tmp_path)
        with training.run as run:
            batch = run.next(training.loader)
            for _ in run.steps(2):
                run.step(loss=training.learn(batch))
                batch = run.next(training.loader)
        assert "belongs to the next step" in training.told


def test_the_mean_of_an_epoch_is_that_of_one_piece(tmp_path: Path) -> None:
    """A running mean by hand would be that of the batches after the resume."""
    whole = session(counted, tmp_path / "whole").run.history
    for step in (3, 10, 18):
        session(counted, tmp_path / "parts", die_at=step)
    assert session(counted, tmp_path / "parts").run.history == whole
    assert len({record["train_loss"] for record in whole}) == EPOCHS


def test_steps_inside_of_epochs_and_epochs_alone_to_save_by_are_refused(tmp_path: Path) -> None:
    """Before a step is done, with the line to write."""
    with Training(tmp_path).run as run:
        for _ in run.epochs(1):
            with pytest.raises(UsageError, match="cannot stand inside"):
                next(iter(run.steps(3)))
    with Training(tmp_path, save_every=1).run as run, pytest.raises(UsageError, match="nothing would be saved"):
        next(iter(run.steps(3)))


def test_a_loop_of_the_users_own_count_is_told_what_is_not_saved(tmp_path: Path) -> None:
    """How far it is, colabkeep does not know."""
    training = Training(tmp_path)
    with training.run as run:
        for _ in range(3):
            run.step()
    assert "for step in run.steps(n)" in training.told


def test_one_step_for_many_updates_is_told(tmp_path: Path) -> None:
    """The optimizer knows better; a loop of one update in each epoch is told nothing."""
    training = Training(tmp_path / "a")
    with training.run as run:
        for _ in run.epochs(2):
            for batch in run.batches(training.loader):
                loss = training.learn(batch)
            run.step(loss=loss)
    assert "the optimizer took 7 steps, and run.step() was called once" in training.told
    assert "optimizer took" not in session(full_batch, tmp_path / "b").told


def test_a_run_inside_of_somebody_elses_error_handling_ends_as_itself(tmp_path: Path) -> None:
    """`except …: with Run(…)` is a fall-back, and no training that failed."""
    training = Training(tmp_path)
    try:
        raise ValueError("of the user's own")
    except ValueError:
        plain(training)
    assert training.run.stopped == "finished"
