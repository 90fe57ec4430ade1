"""What a resume brings from the storage that is far away."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, BinaryIO

from colabkeep.stores.base import BytesSource, Store
from colabkeep.stores.memory import MemoryStore
from colabkeep.stores.tiered import TieredStore

PATIENCE = 30.0  # seconds; nothing here takes so long


class Far(MemoryStore):
    """A store that counts what is read; so many blobs pass together only."""

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self._meeting = threading.Barrier(together)

    def get(self, name: str) -> BinaryIO:
        self.read[name] += 1
        if "/blobs/" in name:
            self._meeting.wait(PATIENCE)
        return super().get(name)


def moved(source: Store, target: Store, *prefixes: str) -> list[str]:
    """Copy what lies under these prefixes; the names."""
    names = [entry.name for prefix in prefixes for entry in source.list(prefix)]
    for name in names:
        with source.get(name) as reader:
            target.put(name, BytesSource(reader.read()))
    return names


def saved(kit: Any) -> MemoryStore:
    """A run with one checkpoint of two blobs: the weights that are trained, and those that are frozen."""
    store = MemoryStore()
    manifest = kit.Session(store).save(1, kit.state(1, frozen=True))
    assert len(manifest.blobs) == 2
    return store


def test_only_what_this_machine_lacks_is_fetched(kit: Any) -> None:
    """Of a checkpoint whose frozen weights are on this disk, only the others come from far away, and once."""
    run, front, far = saved(kit), MemoryStore(), Far()
    names = moved(run, far, "run")
    here, there = sorted(name for name in names if "/blobs/" in name)
    with run.get(here) as reader:
        front.put(here, BytesSource(reader.read()))
    store = TieredStore(front, far)
    loaded = kit.newest(store)[0]
    store.close()
    assert loaded is not None
    assert {name: count for name, count in far.read.items() if "/blobs/" in name} == {there: 1}


def test_nothing_is_fetched_where_all_is_here(kit: Any) -> None:
    """After a restart of the kernel the disk has everything: the storage behind is not read from at all."""
    run, front, far = saved(kit), MemoryStore(), Far()
    moved(run, far, "run")
    moved(run, front, "run")
    store = TieredStore(front, far)
    assert kit.newest(store)[0] is not None
    store.close()
    assert far.read == Counter()


def test_several_files_are_fetched_at_once(kit: Any) -> None:
    """Two files of a checkpoint come together: the far store here hands out neither before both are asked for."""
    run, far = saved(kit), Far(together=2)
    moved(run, far, "run")
    assert kit.newest(far)[0] is not None
