"""Other data than that of the run is refused before anything is trained on it, with its likely cause; what a loop
changes on purpose is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

import colabkeep
from colabkeep.core.errors import Incompatible
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.session import data_fingerprint
from colabkeep.session.open import RunArguments, wire_run
from colabkeep.session.run import Run
from colabkeep.session.state import LoopState
from tests.trainings import final_state

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Make = Callable[[], Any]


class Pictures(Dataset):
    """Files in a folder, by name: a picture made of the number in the name, and its class; augmented at random."""

    def __init__(self, names: list[str] | None = None, *, scale: float = 1.0, side: int = 4, shift: int = 0) -> None:
        self.names = [f"{number}.png" for number in range(60)] if names is None else names
        self.scale, self.side, self.shift = scale, side, shift

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = int(self.names[index].partition(".")[0])
        picture = torch.full((2, self.side, self.side), number / 60) * self.scale
        return picture + 0.01 * torch.rand(()) + 0.01 * random.random(), (number + self.shift) % 7


def files(count: int = 60, seed: int | None = None) -> list[str]:
    names = [f"{number}.png" for number in range(count)]
    if seed is not None:
        random.Random(seed).shuffle(names)
    return names


def parts(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 7))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def fit(folder: Path, train: Any, val: Any = None, *, workers: int = 0, **words: Any) -> Any:
    model, optimizer = parts()
    return colabkeep.resumable_fit(
        model,
        loader(train, workers=workers),
        optimizer=optimizer,
        loss_fn=nn.functional.cross_entropy,
        val_loader=None if val is None else loader(val, workers=workers, shuffle=False),
        run_name="r",
        storage=folder,
        progress=False,
        **{"max_epochs": 3, **words},
    )


def loader(data: Any, *, workers: int = 0, shuffle: bool = True) -> Any:
    known = isinstance(data, (list, DataLoader))
    return data if known else DataLoader(data, 8, shuffle=shuffle, num_workers=workers)


def rows(seed: int) -> Any:
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(torch.linspace(0, 1, 120).reshape(60, 2, 1, 1)[order], torch.arange(60)[order] % 7)


def batches(count: int) -> list[Any]:
    return [(torch.zeros(3, 2, 4, 4), torch.zeros(3).long())] * count


class Loop:
    """A user's own loop over data that it may make anew for each epoch; what it was told."""

    def __init__(self, folder: Path, *, on_change: str = "error", resume: str = "auto") -> None:
        self.model, self.optimizer = parts()
        self.told: list[Event] = []
        self.seen: list[Any] = []
        objects = {"model": self.model, "optimizer": self.optimizer}
        arguments = RunArguments(
            run_name="r", objects=objects, storage=folder, save_every="1 epochs", keep_last=None, resume=resume,
            on_change=on_change, observers=(self.told.append,),
        )  # fmt: skip
        self.run = Run(wire_run(arguments))

    def train(self, data: Callable[[int], Any], *, epochs: int = 3, steps: int | None = None, workers: int = 0) -> Loop:
        """`data` gives that of an epoch. Stops after so many steps, if it is told to."""
        with self.run as run:
            for epoch in run.epochs(epochs):
                for pictures, labels in run.batches(loader(data(epoch), workers=workers)):
                    self.seen.append((epoch, pictures, labels))
                    nn.functional.cross_entropy(self.model(pictures), labels).backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    run.step()
                    if run.progress.step == steps:
                        run.stop()
        return self

    @property
    def inexact(self) -> list[str]:
        return [event.reason for event in self.told if isinstance(event, RestoredInexactly)]

    @property
    def noted(self) -> list[str]:
        return [event.text for event in self.told if isinstance(event, Noted)]


def split(seed: int) -> tuple[Any, Any]:
    """What random_split without a generator gives in a kernel with this seed."""
    torch.manual_seed(seed)
    train, val = random_split(Pictures(), [40, 20])
    return train, val


CHANGES: dict[str, tuple[Make, Make, list[str]]] = {
    "a split without a seed": (
        lambda: split(1)[0],
        lambda: split(2)[0],
        ["other indices in a Subset of 40", "generator=torch.Generator().manual_seed(0)"],
    ),
    "files in another order": (
        lambda: Pictures(files(seed=1)),
        lambda: Pictures(files(seed=2)),
        ["other contents of the same shape", "sorted(os.listdir(folder))"],
    ),
    "few files in another order": (
        lambda: Pictures(files(5)),
        lambda: Pictures(files(5)[::-1]),
        ["the same samples in another order", "sorted(os.listdir(folder))"],
    ),
    "more files": (Pictures, lambda: Pictures(files(66)), ["60 → 66 samples", "added or lost"]),
    "fewer files": (Pictures, lambda: Pictures(files(50)), ["60 → 50 samples", "added or lost"]),
    "another size": (
        Pictures,
        lambda: Pictures(side=6),
        ["was (float32[2, 4, 4], int) and is (float32[2, 6, 6], int)", "transform"],
    ),
    "another normalisation": (
        Pictures,
        lambda: Pictures(scale=0.5),
        ["other contents of the same shape", "labels have not changed: a transform"],
    ),
    "other labels": (Pictures, lambda: Pictures(shift=1), ["Labels or other numbers have changed"]),
    "rows of a table in another order": (
        lambda: rows(1),
        lambda: rows(2),
        ["other contents of the same shape", "rows were shuffled or drawn without a seed"],
    ),
    "another fold": (
        lambda: ConcatDataset([Subset(Pictures(), range(20)), Subset(Pictures(), range(20, 40))]),
        lambda: ConcatDataset([Subset(Pictures(), range(20)), Subset(Pictures(), range(40, 60))]),
        ["other indices in a Subset of 20"],
    ),
    "another batch in a list": (
        lambda: [(torch.zeros(3, 2, 4, 4), torch.zeros(3).long())] * 12,
        lambda: (
            [(torch.zeros(3, 2, 4, 4), torch.zeros(3).long())] * 11 + [(torch.ones(3, 2, 4, 4), torch.ones(3).long())]
        ),
        ["1 of 8 samples", "at 11"],
    ),
    "a list that was a data set": (
        Pictures,
        lambda: batches(20),
        ["a data set of samples → a sequence of batches"],
    ),
}

# Cut off after three steps of an epoch; one of each kind (indices, contents, batches) also at its end.
CUT = [
    *((change, 3) for change in CHANGES),
    ("a split without a seed", None),
    ("another normalisation", None),
    ("another batch in a list", None),
]


@pytest.mark.parametrize(("change", "steps"), CUT)
def test_other_data_is_refused_before_anything_is_touched(tmp_path: Path, change: str, steps: int | None) -> None:
    """In resumable_fit: the line names the cause and what mends it; objects and files are as they were."""
    before, after, said = CHANGES[change]
    fit(tmp_path, before(), **({"max_steps": steps} if steps else {"max_epochs": 1}))
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    model, optimizer = parts(seed=9)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Incompatible) as caught:
        colabkeep.resumable_fit(
            model, loader(after()), optimizer=optimizer, loss_fn=nn.functional.cross_entropy, max_epochs=3,
            run_name="r", storage=tmp_path, progress=False,
        )  # fmt: skip
    listed = "\n".join(caught.value.differences)
    assert all(text in listed for text in said), listed
    others = ("training data", "kind", "batch_size: ")  # a list has none
    assert all(any(word in line for word in others) for line in caught.value.differences), listed
    assert all(way in caught.value.remedy for way in ("Nothing was touched", "run_name", 'on_change="apply"'))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == contents
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "steps", "workers"),
    [*((*one, 0) for one in CUT), ("a split without a seed", 3, 2), ("other labels", None, 2)],
)
def test_an_own_loop_gets_no_batch_of_other_data(tmp_path: Path, change: str, steps: int | None, workers: int) -> None:
    """In Run, which sees its loader where the loop asks for batches: none is handed out."""
    before, after, said = CHANGES[change]
    Loop(tmp_path).train(lambda _: before(), epochs=1, steps=steps, workers=workers)
    again = Loop(tmp_path)
    with pytest.raises(Incompatible) as caught:
        again.train(lambda _: after(), workers=workers)
    assert again.seen == []
    listed = "\n".join(caught.value.differences)
    assert all(text in listed for text in said), listed
    assert all(way in caught.value.remedy for way in ("run_name", 'on_change="apply"'))
    assert Loop(tmp_path).train(lambda _: before(), workers=workers).run.progress.epoch == 3


@pytest.mark.parametrize("changed", [{"batch_size": 4}, {"batch_size": 8, "drop_last": True}], ids=["size", "last"])
def test_an_own_loop_gets_no_batches_of_another_size_in_the_middle_of_an_epoch(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """It is a setting like others; between two epochs it is the loop's own affair, which may let its batches grow."""
    data, other = Pictures(), DataLoader(Pictures(), shuffle=True, **changed)
    Loop(tmp_path).train(lambda _: data, steps=3)
    refused = Loop(tmp_path)
    with pytest.raises(Incompatible, match="other batches than when the run was cut off") as caught:
        refused.train(lambda _: other)
    assert refused.seen == []
    assert ("drop_last False → True" if len(changed) == 2 else "batch size 8 → 4") in str(caught.value)
    applied = Loop(tmp_path, on_change="apply").train(lambda _: other, epochs=1)
    assert any("in the middle of an epoch" in text for text in applied.inexact)
    assert Loop(tmp_path).train(lambda _: data, epochs=3).run.finished


def test_batches_of_another_size_between_two_epochs_are_told_unless_the_loop_is_known_to_change_them(
    tmp_path: Path,
) -> None:
    """Once, and from then on they are the run's. A loop whose batches grew in a session may let them grow."""

    def sized(*sizes: int) -> Callable[[int], Any]:
        return lambda epoch: DataLoader(Pictures(), shuffle=True, batch_size=sizes[epoch])

    Loop(tmp_path / "once").train(sized(8), epochs=1)
    (told,) = Loop(tmp_path / "once").train(sized(8, 12), epochs=2).inexact
    assert told.startswith("training data: batches of 8 samples → 12. If your loop does not change them")
    assert Loop(tmp_path / "once").train(sized(8, 12, 12), epochs=3).inexact == []
    grown = Loop(tmp_path / "grows").train(sized(4, 6), epochs=2)
    assert (grown.inexact, grown.noted) == ([], [])
    assert Loop(tmp_path / "grows").train(sized(4, 6, 10), epochs=3).inexact == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_leaking_split_is_named_for_both_of_its_halves(tmp_path: Path, workers: int) -> None:
    """An unseeded random_split trained on what it validates with: 0.475 became 0.838. Both lines say so."""
    fit(tmp_path, *split(1), max_steps=3, workers=workers)
    with pytest.raises(Incompatible) as caught:
        fit(tmp_path, *split(2), workers=workers)
    lines = list(caught.value.differences)
    assert [line.partition(":")[0] for line in lines] == ["training data", "validation data"]
    assert all("you may now validate on samples that you trained on" in line for line in lines)


def test_another_validation_set_is_refused(tmp_path: Path) -> None:
    """Its contents, too: a metric over other samples is no metric of this run."""
    fit(tmp_path, Pictures(), Pictures(files(20)), max_epochs=1)
    with pytest.raises(Incompatible, match="validation data: 7 of 8 samples") as caught:
        fit(tmp_path, Pictures(), Pictures(files(20), scale=2.0))
    assert len(caught.value.differences) == 1
    with pytest.raises(Incompatible, match="validation data: 20 → 21 samples"):
        fit(tmp_path, Pictures(), Pictures(files(21)))
    assert fit(tmp_path, Pictures(), Pictures(files(20))).epochs == 3


SAME: dict[str, Make] = {"built anew": Pictures, "a seeded split": lambda: split(4)[0]}


@pytest.mark.parametrize("steps", [3, None], ids=["in an epoch", "at its end"])
@pytest.mark.parametrize("name", SAME)
def test_the_same_data_goes_on_with_the_same_bits(tmp_path: Path, name: str, steps: int | None) -> None:
    """With random augmentation, built anew in each session."""
    fit(tmp_path / "parts", SAME[name](), **({"max_steps": steps} if steps else {"max_epochs": 1}))
    fit(tmp_path / "parts", SAME[name]())
    fit(tmp_path / "whole", SAME[name]())
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")


def test_looking_costs_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a run are those of one whose data nobody looked at."""
    fit(tmp_path / "looked", Pictures(), Pictures(files(9)))
    monkeypatch.setattr("colabkeep.session.data_fingerprint.SameData._probe", lambda *_: None)
    fit(tmp_path / "blind", Pictures(), Pictures(files(9)))
    found = [final_state(tmp_path / name, "r") for name in ("looked", "blind")]
    bits = [{path: value for path, value in state.items() if not path.startswith("data")} for state in found]
    assert bits[0] == bits[1]
    assert found[0] != found[1]


@pytest.mark.parametrize(("change", "steps"), CUT)
def test_applied_the_run_goes_on_with_the_new_data_and_says_so(tmp_path: Path, change: str, steps: int | None) -> None:
    """on_change="apply": trained to the end with what there is now, told once as not exact, and from then on known."""
    before, after, _ = CHANGES[change]
    Loop(tmp_path).train(lambda _: before(), epochs=1, steps=steps)
    again = Loop(tmp_path, on_change="apply").train(lambda _: after(), epochs=2)
    assert again.run.progress.epoch == 2
    assert any("training data" in text and 'on_change="apply"' in text for text in again.inexact), again.inexact
    assert len(again.inexact) == len(set(again.inexact))
    once_more = Loop(tmp_path).train(lambda _: after(), epochs=3)
    assert (once_more.run.progress.epoch, once_more.inexact) == (3, [])
    with pytest.raises(Incompatible):
        Loop(tmp_path).train(lambda _: before(), epochs=4)


def test_applied_data_that_is_over_already_is_refused(tmp_path: Path) -> None:
    """An epoch of five batches, stopped after four, cannot go on with data of three."""
    Loop(tmp_path).train(lambda _: Pictures(files(40)), epochs=1, steps=4)
    with pytest.raises(Incompatible, match="4 batches of this epoch are trained"):
        Loop(tmp_path, on_change="apply").train(lambda _: Pictures(files(24)), epochs=2)


class Anew(Pictures):
    """Makes new samples for each epoch in place, as negative sampling does."""

    def sample(self, epoch: int) -> None:
        self.shift = int(torch.randint(100, ())) + epoch


class TestMeant:
    """A loop may change its data between epochs: that is told once, and is no other data after a disconnect."""

    CHANGES: ClassVar[dict[str, Callable[[int], Any]]] = {
        "more samples": lambda epoch: Pictures(files(40 + 8 * epoch)),
        "larger pictures": lambda epoch: Pictures(side=4 + 2 * epoch),
        "another fold": lambda epoch: Subset(Pictures(), range(5 * epoch, 5 * epoch + 45)),
        "other contents": lambda epoch: Pictures(scale=1.0 + epoch),
        "one step": lambda epoch: Pictures(scale=1.0 + (epoch >= 2)),
    }

    @pytest.fixture(autouse=True)
    def _each_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """These epochs take milliseconds; real ones are all looked at."""
        monkeypatch.setattr(data_fingerprint, "_APART", 0.0)

    @pytest.mark.parametrize(("change", "workers"), [*((one, 0) for one in CHANGES), ("other contents", 1)])
    def test_it_is_told_once(self, tmp_path: Path, change: str, workers: int) -> None:
        """Within one session any change is taken as meant, and the data of the last epoch is what counts later."""
        loop = Loop(tmp_path).train(self.CHANGES[change], epochs=4, workers=workers)
        told = [text for text in loop.noted if "between two epochs" in text]
        assert len(told) == 1
        assert "training data" in told[0]
        assert loop.inexact == []

    @pytest.mark.parametrize(("change", "steps"), [*((one, 20) for one in CHANGES), ("more samples", 13)])
    def test_the_epoch_that_was_cut_off_is_the_one_that_is_compared(
        self, tmp_path: Path, change: str, steps: int
    ) -> None:
        """Resumed inside an epoch whose data differs from that of the first: no false alarm, and the same bits."""
        Loop(tmp_path / "parts").train(self.CHANGES[change], epochs=4, steps=steps)
        again = Loop(tmp_path / "parts").train(self.CHANGES[change], epochs=4)
        assert again.run.resumed_from is not None
        assert again.run.resumed_from.progress.batches > 0
        assert again.inexact == []
        whole = Loop(tmp_path / "whole").train(self.CHANGES[change], epochs=4)
        assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))

    def test_resumed_between_epochs_it_is_known_to_change(self, tmp_path: Path) -> None:
        """Once the data of a run was seen to change, the next epoch's may differ, whoever starts it."""
        Loop(tmp_path).train(self.CHANGES["more samples"], epochs=2)
        again = Loop(tmp_path).train(self.CHANGES["more samples"], epochs=4)
        assert (again.run.progress.epoch, again.inexact) == (4, [])

    def test_data_made_anew_that_cannot_be_made_again_is_told(self, tmp_path: Path) -> None:
        """A loop known to make its samples itself, and in a resumed epoch makes others: that costs the exactness, and
        no error keeps it from going on."""

        def session(seed: int, **words: Any) -> Loop:
            data, random_numbers = Anew(), np.random.default_rng(seed)

            def made(epoch: int) -> Anew:
                data.shift = int(random_numbers.integers(100))
                return data

            return Loop(tmp_path).train(made, epochs=4, **words)

        session(1, steps=20)
        again = session(2)
        assert again.run.progress.epoch == 4
        assert any("The loop changes its data between epochs" in text for text in again.inexact)

    def test_data_made_anew_with_the_loops_random_numbers_is_the_same(self, tmp_path: Path) -> None:
        """Negative samples drawn when an epoch begins are drawn again in a resumed one: exact, and nothing is told."""

        def session(folder: Path, **words: Any) -> Loop:
            data = Anew()

            def made(epoch: int) -> Anew:
                data.sample(epoch)
                return data

            return Loop(folder).train(made, epochs=4, **words)

        session(tmp_path / "parts", steps=20)
        again, whole = session(tmp_path / "parts"), session(tmp_path / "whole")
        assert again.inexact == []
        assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))


class Odd(Pictures):
    """Counts its calls, and shows it."""

    calls = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.calls += 1
        picture, label = super().__getitem__(index)
        return picture + self.calls, label


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_is_another_each_time_raises_no_false_alarm(tmp_path: Path, workers: int) -> None:
    """What does not repeat is not compared; lengths and indices still are."""
    Loop(tmp_path).train(lambda _: Odd(), epochs=1, steps=3, workers=workers)
    Loop(tmp_path).train(lambda _: Odd(), epochs=2, workers=workers)
    fresh = Loop(tmp_path).train(lambda _: Odd(), epochs=3, workers=workers)
    assert fresh.inexact == []
    with pytest.raises(Incompatible, match="60 → 50 samples"):
        Loop(tmp_path).train(lambda _: Odd(files(50)), epochs=4, workers=workers)


def test_counters_of_a_data_set_that_is_kept_are_not_moved(tmp_path: Path) -> None:
    """A data set handed in as state, whose samples depend on how many it gave: exact, though samples are looked at."""

    class Kept(Odd):
        def state_dict(self) -> dict[str, int]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    def session(folder: Path, **words: Any) -> None:
        data = Kept()
        fit(folder, data, state={"data": data}, **words)

    for steps in (3, 8, 11, 99):
        session(tmp_path / "parts", max_steps=steps)
    session(tmp_path / "whole", max_steps=99)
    assert final_state(tmp_path / "parts", "r") == final_state(tmp_path / "whole", "r")


class Decoded(Pictures):
    """What a library makes of files, in a version: pictures differ in the last digits."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, label = super().__getitem__(index)
        return picture + (1e-3 if PIL.__version__ == "1.0" else 0.0), label


@pytest.mark.parametrize("own", [False, True], ids=["resumable_fit", "Run"])
def test_another_version_of_a_decoder_is_told_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Only pictures differ, and Pillow is another: the platform changed it, and no user can put it back."""
    events: list[Event] = []

    def session(data: Any, **words: Any) -> list[str]:
        events.clear()
        if own:
            return Loop(tmp_path).train(lambda _: data, **words).inexact
        fit(tmp_path, data, max_epochs=words["epochs"], max_steps=words.get("steps"), callbacks=[events.append])
        return [event.reason for event in events if isinstance(event, RestoredInexactly)]

    session(Decoded(), epochs=1, steps=3)
    monkeypatch.setattr(PIL, "__version__", "1.0")
    told = session(Decoded(), epochs=2)
    assert len(told) == 1
    assert "PIL was" in told[0]
    assert "is 1.0" in told[0]
    assert session(Decoded(), epochs=3) == []
    monkeypatch.setattr(PIL, "__version__", "2.0")
    with pytest.raises(Incompatible, match="other contents"):
        session(Pictures(shift=1), epochs=4)  # labels, too


class Stream(IterableDataset):
    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return (Pictures()[index] for index in range(self.count))

    def __len__(self) -> int:
        return self.count


def test_of_a_stream_the_length_is_compared(tmp_path: Path) -> None:
    """It can only be read from its beginning, so nothing of it is looked at before."""
    Loop(tmp_path).train(lambda _: DataLoader(Stream(), 8), epochs=1)
    with pytest.raises(Incompatible, match="40 → 48 samples"):
        Loop(tmp_path).train(lambda _: DataLoader(Stream(48), 8))
    assert Loop(tmp_path).train(lambda _: DataLoader(Stream(), 8)).inexact == []


def test_each_endless_stream_is_known_by_itself(tmp_path: Path) -> None:
    """Two loaders of run.next: which one has other data is said, before it gives a batch."""

    def session(labelled: Any, unlabelled: Any, steps: int) -> None:
        model, optimizer = parts()
        run = colabkeep.Run("r", model=model, optimizer=optimizer, storage=tmp_path, progress=False)
        loaders = [DataLoader(data, 8, shuffle=True) for data in (labelled, unlabelled)]
        with run:
            for _ in run.steps(steps):
                (x, y), (u, _) = run.next(loaders[0]), run.next(loaders[1], name="unlabelled")
                (nn.functional.cross_entropy(model(x), y) + model(u).square().mean()).backward()
                optimizer.step()
                run.step()

    session(Pictures(), Pictures(files(50)), 10)
    with pytest.raises(Incompatible, match=r'data of run.next, "unlabelled": 7 of 8 samples'):
        session(Pictures(), Pictures(files(50), scale=2.0), 20)
    with pytest.raises(Incompatible, match=r'data of run.next, "loader 0": 60 → 61'):
        session(Pictures(files(61)), Pictures(files(50)), 20)
    session(Pictures(), Pictures(files(50)), 20)


def test_a_checkpoint_that_knows_nothing_of_its_data_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier version: nothing is compared, and from now on it is known."""
    parts_of = LoopState.parts

    def without(self: LoopState, *about: Any) -> dict[str, object]:  # as it was written then
        return {name: part for name, part in parts_of(self, *about).items() if name != "data"}

    with monkeypatch.context() as earlier:
        earlier.setattr(LoopState, "parts", without)
        fit(tmp_path, Pictures(), Pictures(files(9)), max_steps=3)
    assert not any(path.startswith("data") for path in final_state(tmp_path, "r"))
    fit(tmp_path, Pictures(scale=2.0), Pictures(files(9)), max_epochs=1)
    assert any(path.startswith("data") for path in final_state(tmp_path, "r"))
    with pytest.raises(Incompatible, match="training data"):
        fit(tmp_path, Pictures(), Pictures(files(9)))


class Looked(TensorDataset):
    """Counts all calls, those that a look makes too."""

    calls: ClassVar[list[int]] = [0]

    def __getitem__(self, index: int) -> Any:
        self.calls[0] += 1
        return super().__getitem__(index)


def test_short_epochs_are_not_all_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice at first, each sample drawn twice the first time; then not before time has passed. A loop whose data
    changes meanwhile is not accused of anything: nobody knows what it had in the epoch that was cut off."""
    monkeypatch.setattr(data_fingerprint, "_APART", 3600.0)

    def made(epoch: int) -> Looked:
        return Looked(torch.full((16, 2, 4, 4), float(epoch)), torch.zeros(16).long())

    Looked.calls[0] = 0
    Loop(tmp_path).train(made, epochs=9, steps=11)
    assert Looked.calls[0] == 11 * 8 + 16 + 16
    again = Loop(tmp_path).train(made, epochs=9)
    assert again.run.resumed_from is not None
    assert again.run.resumed_from.progress.batches == 1
    assert again.inexact == []
