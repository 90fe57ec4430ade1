"""`paddle.Model.fit` with one callback more: it goes on after a disconnect, and nobody can tell."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.callbacks import Callback, EarlyStopping, ReduceLROnPlateau

import colabkeep
from colabkeep.core.errors import Incompatible, RunBusy, UnknownArgument, UsageError
from colabkeep.core.events import Event, Noted
from colabkeep.integrations.paddle_hapi import Resumable
from tests.trainings import final_state
from tests.trainings.paddle import one_thread

EPOCHS = 4
BATCHES = 9  # of an epoch, the last one short
WARNINGS = (
    "error",
    "ignore:No ccache found",
    "ignore:When training, we now always track",
    "ignore:To copy construct from a tensor",  # Paddle's Model, of each batch
)
Whole = Callable[..., tuple[dict[str, str], list[Any]]]

pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")

# A cell slow enough to be met in the middle. Arguments: this folder, the storage, the number of workers.
CELL = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
sys.path.append(str(Path(sys.argv[1]).parents[1]))  # where `tests` is
from test_paddle_hapi import Callback, fit, one_thread

one_thread()

class Slow(Callback):
    def on_train_batch_end(self, step, logs=None):
        print("batch", flush=True)
        time.sleep(0.02)

fit(sys.argv[2], Slow(), workers=int(sys.argv[3]), save_every="4 steps")
assert "torch" not in sys.modules
"""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    one_thread()


class Data(paddle.io.Dataset):
    """44 samples of three classes, augmented from every source of randomness."""

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        noise = np.float32(random.gauss(0, 0.1) + np.random.normal(0, 0.1)) + 0.1 * paddle.randn([6]).numpy()
        return np.linspace(-1, 1, 6, dtype="float32") * (index % 7) + noise, np.int64(index % 3)


class Unstorable(list[Any]):
    """A list that is more than one, which no checkpoint holds."""


class Witness(Callback):
    """What a callback of the user's own hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Any, ...]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(("begin", epoch))

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.heard.append(("batch", step, logs["step"], logs["loss"][0], float(logs["acc"]), logs["batch_size"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(("end", epoch, logs["loss"][0], float(logs["acc"])))

    def on_eval_end(self, logs: Any = None) -> None:
        self.heard.append(("eval", logs["loss"][0], float(logs["acc"])))


class Breakage(Exception):
    """What goes wrong on purpose."""


class Counts(dict[str, int]):
    """A dictionary that is more than one, which no checkpoint holds: each session counts anew."""


class Breaking(Callback):
    """Fails in the n-th batch (from 1) of this session, or at the end of its n-th epoch."""

    def __init__(self, *, batch: int = 0, epoch: int = 0) -> None:
        super().__init__()
        self.left = Counts(batch=batch, epoch=epoch)

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        self._count("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count("epoch")

    def _count(self, what: str) -> None:
        self.left[what] -= 1
        if self.left[what] == 0:
            raise Breakage(what)


def make_model(rate: Any = None) -> paddle.Model:
    paddle.seed(1)
    np.random.seed(1)
    random.seed(1)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1D(16), nn.Dropout(0.2), nn.Linear(16, 3))
    model = paddle.Model(network)
    schedule = rate or paddle.optimizer.lr.CosineAnnealingDecay(0.05, EPOCHS * BATCHES)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=network.parameters())
    model.prepare(optimizer, nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    return model


def fit(folder: object, *others: Callback, rate: Any = None, workers: int = 0, **words: Any) -> Resumable:
    """The user's cell. Words of fit and of the callback may be changed."""
    ours = {"storage": folder, "save_every": "3 steps", "keep_last": None, "progress": False}
    ours = {name: words.pop(name, value) for name, value in ours.items()}
    for name in ("resume", "monitor", "mode", "max_time", "callbacks", "run_name", "on_change"):
        if name in words:
            ours[name] = words.pop(name)
    keep = Resumable(ours.pop("run_name", "m"), **ours)
    model = words.pop("model", None) or make_model(rate)
    theirs = {"batch_size": 5, "epochs": EPOCHS, "eval_freq": 2, "verbose": 0, "num_workers": workers, **words}
    model.fit(Data(), theirs.pop("eval_data", Data()), callbacks=[*others, keep], **theirs)
    return keep


def trained(folder: Path) -> dict[str, str]:
    """Everything in the newest checkpoint."""
    return final_state(folder, "m")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What an uninterrupted fit ends with, and what its callbacks heard."""
    known: dict[str, tuple[dict[str, str], list[Any]]] = {}

    def state(**words: Any) -> tuple[dict[str, str], list[Any]]:
        if repr(words) not in known:
            folder, witness = tmp_path_factory.mktemp("whole"), Witness()
            fit(folder, witness, **words)
            known[repr(words)] = trained(folder), witness.heard
        return known[repr(words)]

    return state


def interrupted(folder: Path, *others: Callback, batch: int, **words: Any) -> None:
    with pytest.raises(Breakage):
        fit(folder, *others, Breaking(batch=batch), **words)


class Stopping(Callback):
    """Ctrl-C in the n-th batch (from 1) of this session."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.left = Counts(batch=batch)

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.left["batch"] -= 1
        if self.left["batch"] == 0:
            signal.raise_signal(signal.SIGINT)


def stopped(folder: Path, *, batch: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(folder, Stopping(batch))


def differing(one: dict[str, str], other: dict[str, str], *, but: str = "Witness") -> dict[str, tuple[Any, Any]]:
    """What is not the same in two states; without what a witness noted, for there is not one in every session."""
    assert len(one) > 50
    paths = [path for path in {**one, **other} if but not in path]
    return {path: (one.get(path), other.get(path)) for path in paths if one.get(path) != other.get(path)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fit_killed_in_the_middle_of_an_epoch_ends_with_the_same_bits(
    tmp_path: Path, whole: Whole, workers: int
) -> None:
    """SIGKILL, no goodbye; the cell run again elsewhere, with another number of workers, loses nothing: weights,
    optimizer, schedule, random streams, metrics, history."""
    flags = [word for text in WARNINGS for word in ("-W", text)]
    command = [sys.executable, *flags, "-c", CELL, str(Path(__file__).parent), str(tmp_path), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout, 1):
            assert line == "batch\n"
            if count == 15:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    run = fit(tmp_path, workers=2 - workers).run
    assert run is not None
    assert run.resumed_from is not None
    assert 0 < run.resumed_from.progress.step <= 16
    assert run.stopped == "finished"
    assert differing(trained(tmp_path), whole()[0]) == {}


def test_callbacks_hear_what_they_would_have_heard_in_one_session(tmp_path: Path, whole: Whole) -> None:
    """Numbers of epochs and batches, losses, running metrics, evaluations; and what a callback noted in an earlier
    session it still knows. The epoch under way is begun once more, and what a callback notes of that is undone."""
    interrupted(tmp_path, Witness(), batch=16)
    witness = Witness()
    fit(tmp_path, witness)
    assert witness.heard == whole()[1]


def test_an_epoch_that_is_done_is_not_told_of_again(tmp_path: Path) -> None:
    """Skipped epochs load nothing, train nothing, evaluate nothing, and no callback hears of them."""

    class Forgetful(Witness):
        def __init__(self) -> None:
            super().__init__()
            self.heard = Unstorable()

    stopped(tmp_path, batch=3 * BATCHES + 4)
    witness = Forgetful()
    fit(tmp_path, witness)
    assert [entry[:2] for entry in witness.heard] == [
        ("begin", 0),  # fit tells of it before any callback can speak
        ("begin", 3),
        *(("batch", number) for number in range(4, BATCHES)),
        ("end", 3),
    ]


@pytest.mark.parametrize("words", [{"accumulate_grad_batches": 3}, {"accumulate_grad_batches": 2, "eval_freq": 1}, {}])
def test_many_sessions_have_the_bits_of_one(tmp_path: Path, whole: Whole, words: dict[str, Any]) -> None:
    """Interrupted again and again, in the middle of windows too, all in one kernel."""
    for batch in (8, 5, 13):
        interrupted(tmp_path, batch=batch, **words)
    fit(tmp_path, **words)
    assert differing(trained(tmp_path), whole(**words)[0]) == {}


@pytest.mark.parametrize("words", [{}, {"accumulate_grad_batches": 4}], ids=["each batch", "windows of four"])
def test_num_iters_counts_over_all_sessions_and_more_can_follow(
    tmp_path: Path, whole: Whole, words: dict[str, Any]
) -> None:
    """Seven batches, seven again, twenty, then all: each session ends where it should, in the middle of a window too,
    and the last one ends as if there had been no limit."""
    steps = []
    for limit in (7, 7, 20):  # the evaluation after the first epoch counts nine
        run = fit(tmp_path, num_iters=limit, **words).run
        assert run is not None
        assert run.stopped == "max_steps"
        steps.append(run.progress.step)
    assert steps == ([1, 1, 3] if words else [7, 7, 11])
    fit(tmp_path, **words)
    assert differing(trained(tmp_path), whole(**words)[0]) == {}


class TestEarlyStopping:
    """Callbacks of Paddle that steer the training remember what they have seen."""

    def stopping(self) -> list[Callback]:
        return [EarlyStopping("acc", mode="max", patience=2, baseline=1.0, verbose=0, save_best_model=False)]

    def test_patience_is_counted_over_all_sessions(self, tmp_path: Path) -> None:
        """Interrupted between two evaluations, training ends after the epoch after which it would have ended."""
        words: dict[str, Any] = {"eval_freq": 1, "epochs": 9, "rate": 0.05}
        fit(tmp_path / "whole", *self.stopping(), **words)
        interrupted(tmp_path / "parts", *self.stopping(), batch=BATCHES + 4, **words)
        run = fit(tmp_path / "parts", *self.stopping(), **words).run
        assert run is not None
        assert (run.progress.epoch, run.stopped) == (2, "finished")
        # The last save may be the one before or the one after the next epoch, which was not trained, noted its streams.
        states = trained(tmp_path / "parts"), trained(tmp_path / "whole")
        assert differing(*states, but="rng_at_epoch") == {}

    def test_a_training_ended_early_is_finished_until_more_is_asked_for(self, tmp_path: Path) -> None:
        """Run again, it trains nothing and says why, and what is drawn behind it is the same; asked for more epochs, it
        goes on."""
        words: dict[str, Any] = {"eval_freq": 1, "epochs": 9, "rate": 0.05}
        fit(tmp_path, *self.stopping(), **words)
        drawn = [np.random.rand(), paddle.rand([2]).tolist()]
        events: list[Event] = []
        witness = Witness()
        model = make_model(0.05)
        run = fit(tmp_path, *self.stopping(), witness, **words, model=model, callbacks=[events.append]).run
        assert run is not None
        assert (run.progress.step, run.stopped) == (2 * BATCHES, "finished")
        assert [np.random.rand(), paddle.rand([2]).tolist()] == drawn
        assert any("This fit trained nothing" in event.text for event in events if isinstance(event, Noted))
        assert [entry[0] for entry in witness.heard] == ["begin"]
        assert any("ask for more than 9 epochs" in event.text for event in events if isinstance(event, Noted))
        assert model.stop_training is False
        run = fit(tmp_path, **{**words, "epochs": 10}).run
        assert run is not None
        assert run.progress.epoch == 10

    def test_a_learning_rate_reduced_on_a_plateau_stays_reduced(self, tmp_path: Path) -> None:
        """Paddle's callback only writes the rate into an attribute; it is put into use, as is told, and is used again
        after a resume; the callback's patience, too."""
        events: list[Event] = []

        def session(folder: Path, **words: Any) -> Resumable:
            reducing = ReduceLROnPlateau("acc", factor=0.5, patience=2, mode="max", min_delta=2.0, verbose=0)
            return fit(folder, reducing, *words.pop("others", ()), rate=0.05, eval_freq=1, epochs=6, **words)

        model = session(tmp_path / "whole", callbacks=[events.append], model=make_model(0.05)).model
        assert model._optimizer._global_learning_rate().item() < 0.05
        assert any("puts it into use" in event.text for event in events if isinstance(event, Noted))
        for batch in (BATCHES + 6, 2 * BATCHES):
            with pytest.raises(Breakage):
                session(tmp_path / "parts", others=[Breaking(batch=batch)])
        run = session(tmp_path / "parts").run
        assert differing(trained(tmp_path / "parts"), trained(tmp_path / "whole")) == {}
        assert run is not None
        rates = [record["lr"] for record in run.history]
        assert rates[0] == 0.05
        assert rates[-1] < rates[0]


def test_a_finished_training_run_again_trains_nothing(tmp_path: Path, whole: Whole) -> None:
    """The network holds the trained weights, nothing was evaluated, and the next fit with this model does train."""
    fit(tmp_path)
    before = trained(tmp_path)
    witness, model = Witness(), make_model()
    assert fit(tmp_path, witness, model=model).run is not None
    assert [entry for entry in witness.heard if entry[0] in ("batch", "eval", "end")] == []
    assert trained(tmp_path) == before
    kept = colabkeep.load_weights("m", storage=tmp_path)
    assert {n: v.numpy().tobytes() for n, v in model.network.state_dict().items()} == {
        n: v.numpy().tobytes() for n, v in kept.items()
    }
    witness = Witness()
    model.fit(Data(), batch_size=11, epochs=2, verbose=0, callbacks=[witness])
    assert [entry[1] for entry in witness.heard if entry[0] == "end"] == [0, 1]


def test_without_evaluation_and_with_a_loader_of_ones_own(tmp_path: Path) -> None:
    """A DataLoader may be handed to fit instead of a data set, and eval_data may be left out."""

    def session(folder: Path, *others: Callback) -> None:
        loader = paddle.io.DataLoader(Data(), batch_size=7, shuffle=True, drop_last=True)
        model = make_model()
        keep = Resumable("m", storage=folder, save_every="3 steps", progress=False)
        model.fit(loader, epochs=3, verbose=0, callbacks=[*others, keep])

    session(tmp_path / "whole")
    with pytest.raises(Breakage):
        session(tmp_path / "parts", Breaking(batch=11))
    session(tmp_path / "parts")
    assert differing(trained(tmp_path / "parts"), trained(tmp_path / "whole")) == {}


def test_the_progress_bar_goes_on_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Epoch and batches are shown with their true numbers."""
    stopped(tmp_path, batch=15)
    capsys.readouterr()
    fit(tmp_path, verbose=2, log_freq=1)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("Epoch", "step"))]
    assert shown[:2] == ["Epoch 1/4", "Epoch 2/4"]  # fit prints the first one before any callback can speak
    assert [line.split(" - ")[0].strip() for line in shown[2:5]] == ["step 7/9", "step 8/9", "step 9/9"]


class Begins(Callback):
    """Counts where a batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        self.count += 1


@pytest.mark.parametrize("words", [{}, {"accumulate_grad_batches": 2}])
def test_a_callback_that_counted_half_a_step_has_not_counted_it_twice(tmp_path: Path, words: dict[str, Any]) -> None:
    """An error inside a batch: what is kept of the callbacks is of the step that is kept."""
    for batch in (5, 6):
        with pytest.raises(Breakage):
            fit(tmp_path, Begins(), Breaking(batch=batch), **words)
    counting = Begins()
    fit(tmp_path, counting, **words)
    assert counting.count == EPOCHS * BATCHES


class TestLeaving:
    """However a fit ends, the next one goes on."""

    @pytest.mark.parametrize("breaking", [{"batch": 14}, {"epoch": 1}, {"epoch": 2}])
    def test_an_exception_in_another_callback_frees_the_run(
        self, tmp_path: Path, whole: Whole, breaking: dict[str, int]
    ) -> None:
        """It reaches the user as it is, the run is free for the next fit at once, and no bit is lost."""
        with pytest.raises(Breakage):
            fit(tmp_path, Breaking(**breaking))
        fit(tmp_path)
        assert differing(trained(tmp_path), whole()[0]) == {}

    def test_the_stop_button_saves_the_last_step(self, tmp_path: Path, whole: Whole) -> None:
        """KeyboardInterrupt, and the next session goes on at the very next batch."""

        class Pressing(Callback):
            def on_train_batch_end(self, step: int, logs: Any = None) -> None:
                if self.model._optimizer._learning_rate.last_epoch == 13:
                    signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path, Pressing(), save_every=None)
        run = fit(tmp_path).run
        assert run is not None
        assert run.resumed_from is not None
        assert run.resumed_from.progress.step == 14
        assert differing(trained(tmp_path), whole()[0]) == {}

    def test_the_time_limit_ends_fit_cleanly(self, tmp_path: Path, whole: Whole) -> None:
        """fit returns, nothing is evaluated any more, and callbacks may clean up."""

        class Cleaning(Witness):
            cleaned = False

            def on_train_end(self, logs: Any = None) -> None:
                self.cleaned = True

        witness, model = Cleaning(), make_model()
        run = fit(tmp_path, witness, model=model, max_time=0.001).run
        assert run is not None
        assert (run.stopped, run.progress.step) == ("max_time", 1)
        assert [entry[0] for entry in witness.heard] == ["begin", "batch"]
        assert witness.cleaned
        assert model.stop_training is False
        fit(tmp_path)
        assert differing(trained(tmp_path), whole()[0]) == {}

    def test_a_run_that_is_trained_already_is_refused(self, tmp_path: Path) -> None:
        """A second fit of the same run, while the first is going: RunBusy, and the first goes on."""
        refused = []

        class Intruding(Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    with pytest.raises(RunBusy):
                        fit(tmp_path)
                    refused.append(epoch)

        run = fit(tmp_path, Intruding()).run
        assert refused == [1]
        assert run is not None
        assert run.stopped == "finished"


class TestTelling:
    """What cannot be exact is said."""

    def test_another_accumulation_is_an_error_or_applied(self, tmp_path: Path) -> None:
        """It is named, and what to do about it; asked for, it holds from here on."""
        events: list[Event] = []
        interrupted(tmp_path, batch=8)
        with pytest.raises(Incompatible, match="accumulate_grad_batches: 1 → 2"):
            fit(tmp_path, accumulate_grad_batches=2)
        fit(tmp_path, accumulate_grad_batches=2, on_change="apply", callbacks=[events.append])
        (told,) = [event.text for event in events if isinstance(event, Noted) and "→" in event.text]
        assert "accumulate_grad_batches: 1 → 2" in told

    def test_what_a_callback_keeps_and_cannot_be_stored_is_told_once(self, tmp_path: Path) -> None:
        """The attribute is named."""

        class Hiding(Callback):
            def on_train_batch_end(self, step: int, logs: Any = None) -> None:
                self.last = Unstorable([step])

        events: list[Event] = []
        fit(tmp_path, Hiding(), epochs=2, callbacks=[events.append])
        told = [event.text for event in events if isinstance(event, Noted) and "Hiding.last" in event.text]
        assert len(told) == 1
        assert "begins with a new one" in told[0]

    def test_a_callback_that_is_gone_is_told(self, tmp_path: Path) -> None:
        """What it knew cannot be kept, and the run says whose it was."""
        events: list[Event] = []
        interrupted(tmp_path, Witness(), batch=8)
        fit(tmp_path, callbacks=[events.append])
        assert any("Witness[0] was part of the training" in e.text for e in events if isinstance(e, Noted))

    def test_what_fit_measures_is_logged_and_the_best_is_kept(self, tmp_path: Path) -> None:
        """Losses, metrics and learning rate stand in the history of the run, over all sessions."""
        words: dict[str, Any] = {"monitor": "val_acc", "mode": "max", "save_every": 1}
        interrupted(tmp_path, batch=16, **words)
        run = fit(tmp_path, keep_last=1, **words).run
        assert run is not None
        assert [record["step"] for record in run.history] == [9, 18, 27, 36]
        assert {"train_loss", "train_acc", "lr", "val_loss", "val_acc"} <= set(run.history[0])
        assert "val_loss" not in run.history[1]
        colabkeep.load_weights("m", storage=tmp_path, which="best", monitor="val_acc", mode="max")


class TestRefusing:
    """What cannot work is refused before anything is trained."""

    def test_a_model_that_is_not_prepared(self, tmp_path: Path) -> None:
        """The remedy is the line that is missing."""
        model = paddle.Model(nn.Linear(6, 3))
        model.prepare(loss=nn.CrossEntropyLoss())
        with pytest.raises(UsageError, match="no optimizer") as caught:
            fit(tmp_path, model=model)
        assert "model.prepare(" in caught.value.remedy

    def test_a_word_that_a_run_does_not_know(self, tmp_path: Path) -> None:
        """Words of other trainers are named in ours."""
        with pytest.raises(UnknownArgument) as caught:
            make_model().fit(Data(), verbose=0, callbacks=[Resumable("m", storage=tmp_path, save_freq=3)])
        assert "save_every" in caught.value.remedy

    def test_another_network(self, tmp_path: Path) -> None:
        """A checkpoint of another network is not loaded, the model is not touched, and can be trained at once."""
        interrupted(tmp_path, batch=8)
        model = make_model()
        other = paddle.Model(nn.Linear(6, 3))
        other.prepare(
            paddle.optimizer.SGD(parameters=other.parameters()), nn.CrossEntropyLoss(), paddle.metric.Accuracy()
        )
        before = other.network.weight.numpy().tobytes()
        with pytest.raises(Incompatible):
            fit(tmp_path, model=other)
        assert other.network.weight.numpy().tobytes() == before
        fit(tmp_path, model=model)

    def test_a_model_that_works_otherwise(self, tmp_path: Path) -> None:
        """A Paddle whose Model is built in another way is told apart from ours, not trained wrongly."""

        class Future(paddle.Model):
            def _run_one_epoch(self, data_loader: Any, mode: str) -> Any:
                raise AssertionError

        model = Future(nn.Linear(6, 3))
        model.prepare(paddle.optimizer.SGD(parameters=model.parameters()), nn.CrossEntropyLoss())
        with pytest.raises(UsageError, match="in another way") as caught:
            fit(tmp_path, model=model)
        assert "resumable_fit(model.network" in caught.value.remedy
