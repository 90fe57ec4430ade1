"""`colabkeep bench`: what saving costs here, measured without leaving anything behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import colabkeep
from colabkeep.core.arguments import read_size
from colabkeep.core.errors import CheckpointNotFound, StoreUnavailable, UsageError
from colabkeep.core.policies import SessionLifetime
from colabkeep.core.system import SystemClock
from colabkeep.session.machine import UNKNOWN
from colabkeep.session.scheduler import Sessions
from colabkeep.stores.base import BytesSource, Receipt, Source, StoreProperties
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore
from colabkeep.testing.clock import FakeClock
from colabkeep.ui import bench
from colabkeep.ui.bench import PROBE, Load, live_load, measure, probe

MB = 10**6


class Link:
    """A store behind a link of `rate` bytes per second, on a fake clock; each object takes `each` seconds besides."""

    def __init__(self, clock: FakeClock, rate: float, each: float = 0.0, *, confirms_after: float = 0.0) -> None:
        self._store, self._clock, self._rate, self._each = MemoryStore(), clock, rate, each
        self._confirms_after, self._ready = confirms_after, dict[str, float]()
        self.put_bytes = 0
        self.breaks: BaseException | None = None  # what the second put meets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def properties(self) -> StoreProperties:
        return replace(self._store.properties, top_level="confirmed", persists=True)

    def put(self, name: str, source: Source) -> Receipt:
        if self.breaks is not None and self.put_bytes:
            raise self.breaks
        self._clock.advance(self._each + source.size / self._rate)
        self._ready[name] = self._clock.monotonic() + self._confirms_after
        self.put_bytes += source.size
        return self.confirm(replace(self._store.put(name, source), level="sent"))

    def confirm(self, receipt: Receipt) -> Receipt:
        there = self._clock.monotonic() >= self._ready[receipt.name]
        return replace(receipt, level="confirmed" if there else "sent")

    def names(self) -> list[str]:
        return [entry.name for entry in self._store.list("")]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory copies and is hashed at 1 GB/s, without the seconds that it takes to measure that."""
    monkeypatch.setattr(bench, "copy_rate", lambda clock: 1000.0 * MB)
    monkeypatch.setattr(bench, "hash_rate", lambda clock: 1000.0 * MB)


BUDGET = bench._OVER_A_NETWORK


@pytest.mark.parametrize("rate", [0.2 * MB, 5 * MB, 500 * MB])
def test_the_speed_of_a_link_is_found_within_its_budget(rate: float) -> None:
    """A slow link is given less: never more than the seconds and the bytes that were agreed on; and all is deleted."""
    clock = FakeClock()
    link = Link(clock, rate, each=0.01)
    taken = probe(link, clock, BUDGET)
    assert taken.rate == pytest.approx(rate, rel=0.3)
    assert clock.monotonic() <= BUDGET.seconds
    assert taken.bytes == link.put_bytes <= sum(BUDGET.sizes)
    assert (link.names(), taken.left, taken.confirmed) == ([], (), True)


@pytest.mark.parametrize("rate", [2_000, 10_000])
def test_a_very_slow_link_is_measured_by_one_small_object(rate: float) -> None:
    """10 kB/s, as over a phone: it takes seconds, not minutes, and the forecast is right all the same."""
    clock = FakeClock()
    link = Link(clock, rate)
    taken = probe(link, clock, BUDGET)
    assert clock.monotonic() <= 35.0
    assert taken.seconds(500 * MB) == pytest.approx(500 * MB / rate, rel=0.1)
    assert link.names() == []


class Small(Link):
    """A store with little room, which is never used up."""

    @property
    def properties(self) -> StoreProperties:
        return replace(super().properties, free_bytes=2 * MB)

    def put(self, name: str, source: Source) -> Receipt:
        used = sum(entry.size for entry in self._store.list(""))
        assert used + source.size <= MB, "half of the room is left to whoever needs it"
        return super().put(name, source)


@pytest.mark.usefixtures("quick")
def test_a_place_that_is_nearly_full_is_not_filled_up() -> None:
    """It is measured with what fits, and the user reads that a save will not."""
    store = Small(FakeClock(), 50 * MB)
    load, sessions = Load(bytes=5 * MB, source="as you said"), Sessions(usual=UNKNOWN)
    found = measure(store, load, sessions, 0.01, SystemClock(), lambda _: None)
    assert "SUCH A SAVE DOES NOT FIT: only 1.9 MiB are free in " in str(found)
    assert "DOES NOT FIT" not in str(replace(found, load=replace(load, bytes=MB)))


def test_what_takes_long_to_be_confirmed_is_waited_for_and_counted() -> None:
    """A place that says two seconds later that it has an object takes two seconds for each."""
    clock = FakeClock()
    taken = probe(Link(clock, 50 * MB, confirms_after=2.0), clock, BUDGET)
    assert taken.confirmed
    assert 1.9 <= taken.each <= 2.6


def test_a_place_that_never_confirms_is_told_as_it_is() -> None:
    """After the time is up, with what was sent."""
    clock = FakeClock()
    taken = probe(Link(clock, 50 * MB, confirms_after=1e9), clock, BUDGET)
    assert not taken.confirmed
    assert clock.monotonic() <= BUDGET.seconds * 1.5


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreUnavailable(problem="Away.", remedy="Later.")])
def test_nothing_is_left_when_it_is_interrupted(error: BaseException) -> None:
    """Ctrl-C in the middle, or a storage that fails: what was put is deleted, and what stood there is untouched."""
    clock = FakeClock()
    link = Link(clock, 5 * MB)
    link._store.put("mine/weights", BytesSource(b"mine"))
    link.breaks = error
    with pytest.raises(type(error)):
        probe(link, clock, BUDGET)
    assert link.put_bytes > 0
    assert link.names() == ["mine/weights"]


class Keeping(Link):
    """A store that deletes nothing."""

    def delete(self, name: str) -> None:
        raise StoreUnavailable(problem="Not allowed.", remedy="Ask.")


@pytest.mark.usefixtures("quick")
def test_probes_that_cannot_be_deleted_are_named() -> None:
    """The user reads their names, and where they lie."""
    clock = FakeClock()
    store = Keeping(clock, 5 * MB)
    found = measure(store, Load(bytes=MB, source=""), Sessions(usual=UNKNOWN), 0.01, SystemClock(), lambda _: None)
    assert sorted(found.far.left) == sorted(store.names())
    assert all(name.startswith(PROBE) for name in found.far.left)
    assert found.far.left[0] in str(found)


@pytest.mark.usefixtures("quick")
def test_the_forecast_follows_from_the_measurements() -> None:
    """Both sides of a pair are measured: first on the disk, then across; the cadence is that of a training."""
    clock, said = FakeClock(), list[str]()
    store = TieredStore(MemoryStore(), Link(clock, 5 * MB))
    lives = [SessionLifetime(seconds=1800.0, vanished=True)] * 3
    sessions = Sessions(usual=replace(UNKNOWN, seconds=7200.0, source="users say so"), lives=lives)
    found = measure(store, Load(bytes=500 * MB, source="as you said"), sessions, 0.01, clock, said.append)
    store.close()
    assert found.stall == pytest.approx(0.5)
    assert found.written is not None
    assert found.arrived - found.written == pytest.approx(100.0, rel=0.05)
    assert found.cadence.measures.session == pytest.approx((7200 + 3 * 1800) / 4)
    assert found.cadence.seconds == pytest.approx(130.0, abs=10)
    assert found.cadence.why == "storage"
    assert found.cadence.measures.vanishes
    assert found.session_source.startswith("3 earlier session(s) of this run, and users say so")
    assert [text.split()[0] for text in said] == ["copying", "hashing", "writing", "sending"]


class Versions(Link):
    """A store in which each upload makes a version that stays."""

    @property
    def properties(self) -> StoreProperties:
        return replace(super().properties, versions=True)


@pytest.mark.usefixtures("quick")
def test_a_place_that_keeps_versions_is_not_tried() -> None:
    """A Kaggle dataset would have one more version for ever: it is said that nothing was put there."""
    clock = FakeClock()
    store = Versions(clock, 5 * MB)
    found = measure(store, Load(bytes=MB, source=""), Sessions(usual=UNKNOWN), 0.01, SystemClock(), lambda _: None)
    assert (store.put_bytes, found.far, found.untried) == (0, None, store.url)
    assert "Nothing was put into" in str(found)


@pytest.mark.usefixtures("quick")
def test_a_notebook_shows_the_same_as_a_table() -> None:
    """Each cell and each sentence, and no text of the user's is taken for markup."""
    store, load = Link(FakeClock(), 5 * MB), Load(bytes=MB, source="<b>mine</b>")
    found = measure(store, load, Sessions(usual=UNKNOWN), 0.01, SystemClock(), lambda _: None)
    assert found.far is not None
    report = replace(found, far=replace(found.far, url="<i>drive</i>"))
    page = report._repr_html_()
    assert page.count("<tr ") == 4
    assert "<b>mine" not in page
    assert "<i>drive" not in page
    shown = unescape(re.sub("<[^>]*>", "  ", page))
    parts = [part for line in report.lines() for part in re.split("  +", line.strip())]
    assert [part for part in parts if part not in shown] == []


def test_a_model_is_measured_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes with those of the optimizer, and the stop for their copy; neither is changed, nor a random stream."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    before = model.weight.detach().clone(), torch.get_rng_state()
    report = colabkeep.bench(model, optimizer, storage=tmp_path)
    assert torch.equal(before[0], model.weight)
    assert torch.equal(before[1], torch.get_rng_state())
    small = report.load.bytes
    assert 300 * 300 * 4 < small < 300 * 300 * 5
    assert report.load.grows
    assert [line.split("  ")[1] for line in str(report).splitlines()[2:5]] == ["memory copy", "SHA-256", "write"]
    assert re.search(r"A save of .* \(these very objects\) pauses training for .*\n(.*\n)?Saving every ", str(report))
    assert "The optimizer has no state yet" in str(report)
    model(torch.zeros(1, 300)).sum().backward()
    optimizer.step()
    grown = live_load({"model": model, "optimizer": optimizer}, SystemClock())
    assert grown.bytes > 2.9 * small
    assert not grown.grows
    assert list(tmp_path.iterdir()) == []
    assert "measuring: copying these objects" in capsys.readouterr().out


def test_machines_get_the_same_figures(colabkeep_cli: Any, tmp_path: Path) -> None:
    """One strict JSON object, nothing beside it, and nothing left in the storage."""
    said = colabkeep_cli("bench", "--storage", str(tmp_path), "--json", "--overhead", "0.05")
    assert (said.status, said.err) == (0, "")
    record = json.loads(said.out)
    assert record["load"]["bytes"] == 500 * MB
    assert record["cadence"]["overhead"] == 0.05
    assert min(record["copy"], record["hashing"], record["near"]["rate"]) > 0
    assert record["far"] is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--size", "much"], 2, "is not a size that a file can have"),
        (["--overhead", "3"], 2, "overhead=3.0"),
        (["--run", "nothing"], 3, "There is no run"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    colabkeep_cli: Any, tmp_path: Path, words: list[str], status: int, text: str
) -> None:
    """With the exit status of the other commands."""
    said = colabkeep_cli("bench", "--storage", str(tmp_path), *words)
    assert said.status == status
    assert text in said.err


def test_what_is_to_be_saved_is_said_once(tmp_path: Path) -> None:
    """Objects, or a run, or a size."""
    with pytest.raises(UsageError, match="said twice"):
        colabkeep.bench(object(), size="1MB", storage=tmp_path)
    with pytest.raises(CheckpointNotFound):
        colabkeep.bench(run_name="r", storage=tmp_path)


@pytest.mark.parametrize("door", [colabkeep.bench, partial(colabkeep.Run, "r")])
def test_objects_without_names_are_refused_with_how_to_name_them(tmp_path: Path, door: Callable[..., Any]) -> None:
    """`state=` of a training and of its measurement is a mapping."""
    with pytest.raises(UsageError, match="of the type int") as caught:
        door(state=5, storage=tmp_path / "new")
    assert "state={" in caught.value.remedy


def test_a_bench_of_nothing_makes_no_folder(
    colabkeep_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that no run has, in a fresh folder: it is as it was."""
    monkeypatch.chdir(tmp_path)
    assert colabkeep_cli("bench", "--run", "nothing").status == 3
    with pytest.raises(CheckpointNotFound):
        colabkeep.bench(run_name="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "size"), [("500MB", 500 * MB), ("1.5 GiB", 1610612736), ("2k", 2000), ("7", 7), (12, 12), ("3 b", 3)]
)
def test_sizes_are_read_as_people_write_them(value: Any, size: int) -> None:
    """Decimal and binary units, in any case."""
    assert read_size("size", value) == size


@pytest.mark.parametrize(
    "value", ["", "MB", "-1MB", "0", 0, -5, True, 1.5, None, "1 parsec", "0.1 B", 10**30, "10000000 TB", "9" * 400]
)
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    """The error shows what can be passed."""
    with pytest.raises(UsageError, match="size=") as caught:
        read_size("size", value)
    assert "500MB" in caught.value.remedy
