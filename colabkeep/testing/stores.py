"""The obligations of `colabkeep.stores.base`, one test each, for any store.

Subclass it in a test file, and every obligation is checked on your store::

    class TestMyStore(StoreContract):
        def make_store(self, folder):
            return MyStore(folder)

`make_store` gets an empty folder to itself and returns a new, empty store. Where two stores made with the same
folder are the same place, set `same_folder_same_place = True`, and more is checked. pytest is imported here and
nowhere else in colabkeep.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from colabkeep.core.errors import ColabKeepError, NameTaken, ObjectNotFound, StoreBusy, StoreError, UsageError
from colabkeep.stores.base import BytesSource, Entry, Receipt, Store

__all__ = ["ILLEGAL_NAMES", "ChunkedSource", "StoreContract"]

ILLEGAL_NAMES = (
    "",
    "/",
    "/etc/passwd",
    "a/",
    "a//b",
    "..",
    "a/../b",
    "./a",
    ".hidden",
    "a/.hidden",
    "a b",
    "a\n",
    "a\x00b",
    "é",
    "a\\b",
    "x" * 513,
)
"""Names that no store takes."""

_LEVELS = ("local", "sent", "confirmed", "unknown")
_PATIENCE = 30.0  # seconds; a bound for a store that hangs, never waited for by one that works


class ChunkedSource:
    """A source of the given chunks, handed out in one buffer that is filled again for each.

    `announced` is the size it claims, by default the true one. `before` is called before each chunk with its number,
    and before the end; what it raises comes out of `chunks`. `reads` counts how often `chunks` was called.
    """

    def __init__(
        self, *chunks: bytes, announced: int | None = None, before: Callable[[int], None] = lambda _: None
    ) -> None:
        self._chunks = chunks
        self._before = before
        self.size = sum(map(len, chunks)) if announced is None else announced
        self.sha256 = hashlib.sha256(b"".join(chunks)).hexdigest()
        self.reads = 0

    def chunks(self) -> Iterator[memoryview]:
        self.reads += 1
        buffer = bytearray(max(map(len, self._chunks), default=0))
        for number, chunk in enumerate(self._chunks):
            self._before(number)
            buffer[: len(chunk)] = chunk
            yield memoryview(buffer)[: len(chunk)]
        self._before(len(self._chunks))


class StoreContract:
    """One test per obligation. See the top of this page for how to use it."""

    same_folder_same_place: ClassVar[bool] = False

    def make_store(self, folder: Path) -> Store:
        raise NotImplementedError("return a new, empty store that has `folder` to itself")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """An empty folder."""
        folder = tmp_path / "store"
        folder.mkdir()
        return folder

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        """A new, empty store."""
        store = self.make_store(folder)
        yield store
        store.close()

    def test_a_lock_has_one_holder(self, store: Store) -> None:
        """The second one in the same process is refused too, and told who holds it; another name is free."""
        if not store.properties.locks:
            pytest.skip("this store cannot lock")
        with store.lock("run/lock", "the first"):
            with pytest.raises(StoreBusy) as caught:
                store.lock("run/lock", "the second")
            assert caught.value.holder == "the first"
            assert isinstance(caught.value, BlockingIOError)
            _has_remedy(caught.value)
            store.lock("other/lock", "the second").release()

    def test_a_released_lock_is_free(self, store: Store) -> None:
        """After a release, or the end of a `with`, also by an exception, the next one gets it."""
        with pytest.raises(ZeroDivisionError), store.lock("run/lock", "the first"):
            raise ZeroDivisionError
        store.lock("run/lock", "the second").release()
        store.lock("run/lock", "the third").release()

    def test_releasing_twice_lets_go_once(self, store: Store) -> None:
        """A second release does not let go of the next one's lock."""
        if not store.properties.locks:
            pytest.skip("this store cannot lock")
        first = store.lock("run/lock", "the first")
        first.release()
        with store.lock("run/lock", "the second"):
            first.release()
            with pytest.raises(StoreBusy):
                store.lock("run/lock", "the third")

    def test_a_lock_is_no_object(self, store: Store) -> None:
        """Locks are not listed, so nobody takes one for data."""
        with store.lock("run/lock", "me"):
            assert _names(store, "") == []
        assert _names(store, "") == []

    def test_two_openings_of_a_place_share_its_locks(self, folder: Path) -> None:
        """Two store objects of one place, in one process, refuse each other's locks."""
        first, second = self.make_store(folder), self.make_store(folder)
        if not (self.same_folder_same_place and first.properties.locks):
            pytest.skip("two stores made with one folder are two places, or cannot lock")
        with first.lock("run/lock", "the first"):
            with pytest.raises(StoreBusy) as caught:
                second.lock("run/lock", "the second")
            assert caught.value.holder == "the first"
        second.lock("run/lock", "the second").release()
        first.close()
        second.close()

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000], ids=["empty", "one byte", "a megabyte"])
    def test_what_was_put_is_read_back(self, store: Store, data: bytes) -> None:
        """Any number of bytes comes back as it was, under its name."""
        store.put("run/blobs/a.bin", BytesSource(data))
        assert _read(store, "run/blobs/a.bin") == data

    def test_many_chunks_become_one_object(self, store: Store) -> None:
        """A source is read once and in order, and its chunks are not kept: the next one uses their memory."""
        source = ChunkedSource(b"abc", b"", b"defgh", b"i")
        store.put("run/a", source)
        assert (_read(store, "run/a"), source.reads) == (b"abcdefghi", 1)

    def test_the_receipt_tells_what_was_stored(self, store: Store) -> None:
        """Name, size and digest are in the receipt, and a level that the store does not overstate."""
        receipt = store.put("run/a", BytesSource(b"abc"))
        assert (receipt.name, receipt.size, receipt.sha256) == ("run/a", 3, hashlib.sha256(b"abc").hexdigest())
        assert receipt.level in _LEVELS

    def test_flush_brings_everything_to_the_top_level(self, store: Store) -> None:
        """After a flush that says so, each object is as durable as this store can make it."""
        receipts = [store.put(f"run/{number}", BytesSource(b"abc")) for number in range(3)]
        assert store.flush(_PATIENCE)
        assert {store.confirm(receipt).level for receipt in receipts} == {store.properties.top_level}

    def test_a_name_is_written_once(self, store: Store) -> None:
        """A second put under the same name is refused, and the first one's bytes stay."""
        store.put("run/a", BytesSource(b"first"))
        with pytest.raises(NameTaken) as caught:
            store.put("run/a", BytesSource(b"second"))
        _has_remedy(caught.value)
        assert _read(store, "run/a") == b"first"

    def test_a_name_taken_in_the_meantime_is_not_overwritten(self, store: Store) -> None:
        """A put that finds its name free when it starts, and taken when it ends, is refused."""

        def overtake(number: int) -> None:
            if number == 1:
                store.put("run/a", BytesSource(b"faster"))

        with pytest.raises(NameTaken):
            store.put("run/a", ChunkedSource(b"slow", b"er", before=overtake))
        assert _read(store, "run/a") == b"faster"
        assert store.sweep("") == 0, "a temporary file was left behind"

    def test_what_is_being_written_is_not_seen(self, store: Store) -> None:
        """A reader in the middle of a put finds no object, not a part of one."""
        seen: list[object] = []

        def look(_: int) -> None:
            seen.append(_names(store, ""))
            with pytest.raises(ObjectNotFound):
                _read(store, "run/a")

        store.put("run/a", ChunkedSource(b"x" * 70_000, b"y", before=look))
        assert seen == [[], [], []]

    @pytest.mark.parametrize("announced", [0, 2, 4], ids=["none", "fewer", "more"])
    def test_a_source_of_another_size_is_not_kept(self, store: Store, announced: int) -> None:
        """When bytes do not add up to what was announced, the put fails and the name stays free."""
        with pytest.raises(StoreError) as caught:
            store.put("run/a", ChunkedSource(b"ab", b"c", announced=announced))
        _has_remedy(caught.value)
        _is_untouched(store, "run/a")

    @pytest.mark.parametrize("error", [RuntimeError("a"), OSError(5, "b"), KeyboardInterrupt(), SystemExit()], ids=repr)
    def test_a_source_that_fails_leaves_nothing(self, store: Store, error: BaseException) -> None:
        """Whatever is raised in the middle, an interrupt too, comes out as it is, and the name stays free."""

        def fail(number: int) -> None:
            if number == 1:
                raise error

        with pytest.raises(type(error)) as caught:
            store.put("run/a", ChunkedSource(b"ab", b"cd", before=fail))
        assert caught.value is error
        _is_untouched(store, "run/a")

    def test_an_object_that_is_not_there_is_not_found(self, store: Store) -> None:
        """Reading a missing object is a `FileNotFoundError` with a remedy."""
        with pytest.raises(ObjectNotFound) as caught:
            _read(store, "run/a")
        assert isinstance(caught.value, FileNotFoundError)
        _has_remedy(caught.value)

    def test_an_object_can_be_read_twice_at_the_same_time(self, store: Store) -> None:
        """Two readers of one object do not disturb each other."""
        store.put("run/a", BytesSource(b"abcdef"))
        with store.get("run/a") as one, store.get("run/a") as other:
            assert (one.read(3), other.read(), one.read()) == (b"abc", b"abcdef", b"def")

    def test_a_listing_has_what_is_below_the_prefix(self, store: Store) -> None:
        """A prefix is a folder: `run` has `run/a`, and neither `run` itself nor `running/a`."""
        for name, data in {"run/a": b"1", "run/b/c": b"22", "running/a": b"333", "top": b"4444"}.items():
            store.put(name, BytesSource(data))
        assert sorted(store.list("run"), key=_by_name) == [Entry(name="run/a", size=1), Entry(name="run/b/c", size=2)]
        assert _names(store, "run/b") == ["run/b/c"]
        assert _names(store, "") == ["run/a", "run/b/c", "running/a", "top"]
        assert _names(store, "run/a") == _names(store, "ru") == _names(store, "other/run") == []

    def test_a_deleted_object_is_gone(self, store: Store) -> None:
        """After a delete it is neither read nor listed; the others stay; and its name is free again."""
        store.put("run/a", BytesSource(b"1"))
        store.put("run/b", BytesSource(b"2"))
        store.delete("run/a")
        _is_untouched(store, "run/a", others=["run/b"])
        assert store.flush(_PATIENCE)
        assert _read(store, "run/a") == b"whole"

    def test_deleting_what_is_not_there_is_no_error(self, store: Store) -> None:
        """Deleting twice, or what never was, is harmless."""
        store.delete("run/a")
        store.put("run/a", BytesSource(b"1"))
        store.delete("run/a")
        store.delete("run/a")
        assert _names(store, "") == []

    @pytest.mark.parametrize("name", ILLEGAL_NAMES, ids=ascii)
    def test_a_foreign_name_is_refused_everywhere(self, store: Store, name: str) -> None:
        """No method takes a name that could lead out of the store or look like a temporary file."""
        calls: list[Callable[[], object]] = [
            lambda: store.put(name, BytesSource(b"x")),
            lambda: store.get(name),
            lambda: store.delete(name),
            lambda: store.lock(name, "me"),
        ]
        if name:  # the empty prefix is everything
            calls += [lambda: list(store.list(name)), lambda: store.sweep(name)]
        for call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            _has_remedy(caught.value)

    def test_reading_goes_on_while_another_thread_writes(self, store: Store) -> None:
        """Other threads read and list while one writes, and every object they see is whole."""
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                for entry in store.list("run"):
                    assert len(_read(store, entry.name)) == entry.size == 50_000

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read), pool.submit(read)]
            try:
                for number in range(30):
                    store.put(f"run/{number}", ChunkedSource(b"x" * 25_000, b"y" * 25_000))
            finally:
                done.set()
            for reader in readers:
                reader.result()
        assert len(_names(store, "run")) == 30

    def test_sweeping_removes_no_object(self, store: Store) -> None:
        """Where no writer was killed there is nothing to sweep, and objects stay."""
        store.put("run/a", BytesSource(b"1"))
        assert (store.sweep("run"), store.sweep(""), store.sweep("other")) == (0, 0, 0)
        assert _names(store, "") == ["run/a"]

    @pytest.mark.parametrize("name", ["exp/lr1/blobs/a", "exp/lr1/run.json"])
    def test_sweeping_a_run_spares_one_below_it(self, folder: Path, name: str) -> None:
        """`exp/lr1` is written by another process when `exp` is swept: what is half written there stays, and is whole
        in the end."""
        if not self.same_folder_same_place:
            pytest.skip("two stores made with one folder are two places")
        store, other = self.make_store(folder), self.make_store(folder)
        swept: list[int] = []

        def sweep(_: int) -> None:
            swept.append(other.sweep("exp"))

        store.put(name, ChunkedSource(b"x" * 70_000, b"y", before=sweep))
        assert not any(swept)
        assert len(_read(store, name)) == 70_001
        store.close()
        other.close()

    def test_closing_twice_is_harmless(self, store: Store) -> None:
        """`close` may be called again, by a `with` and by hand."""
        store.put("run/a", BytesSource(b"1"))
        store.close()
        store.close()

    def test_opening_the_place_again_finds_the_objects(self, folder: Path) -> None:
        """What one store object put, the next one of the same place has; its url is the same too."""
        if not self.same_folder_same_place:
            pytest.skip("two stores made with one folder are two places")
        first = self.make_store(folder)
        first.put("run/a", BytesSource(b"1"))
        first.close()
        second = self.make_store(folder)
        assert (_read(second, "run/a"), _names(second, ""), second.url) == (b"1", ["run/a"], first.url)
        with pytest.raises(NameTaken):
            second.put("run/a", BytesSource(b"2"))
        second.close()


def _read(store: Store, name: str) -> bytes:
    with store.get(name) as reader:
        return reader.read()


def _names(store: Store, prefix: str) -> list[str]:
    return sorted(entry.name for entry in store.list(prefix))


def _by_name(entry: Entry) -> str:
    return entry.name


def _is_untouched(store: Store, name: str, others: list[str] | None = None) -> None:
    """The name is free, nothing was left behind, and the next put succeeds."""
    with pytest.raises(ObjectNotFound):
        _read(store, name)
    assert _names(store, "") == (others or [])
    assert store.sweep("") == 0, "a temporary file was left behind"
    receipt: Receipt = store.put(name, BytesSource(b"whole"))
    assert (receipt.size, _read(store, name)) == (5, b"whole")


def _has_remedy(error: BaseException) -> None:
    assert isinstance(error, ColabKeepError)
    assert error.problem.strip()
    assert error.remedy.strip()
