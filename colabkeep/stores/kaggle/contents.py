"""The objects on their way: gathered on this machine's disk, seen together with what the dataset holds, and packed."""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from colabkeep.core.errors import CheckpointDamaged, NameTaken, ObjectNotFound, StoreBusy, StoreUnavailable
from colabkeep.stores.base import BytesSource, Entry, Lock, Receipt, Source, check_name, check_prefix, is_below, taken
from colabkeep.stores.kaggle.dataset import Dataset, Package
from colabkeep.stores.kaggle.index import (
    INDEX,
    PACK_HEADER,
    Content,
    Held,
    Index,
    Part,
    Row,
    arrange,
    content_of,
    damaged,
)
from colabkeep.stores.local import DirectoryStore, open_private


class Contents:
    """What the next version will hold. `folder` is this store's own, on a disk of this machine.

    Every object of the dataset ends up in the folder too, as soon as it is read or a version is made, because a
    version is sent whole.
    """

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        self.staged = open_private(folder / "objects")
        self._outbox = open_private(folder / "outbox")
        self._dataset = dataset
        self._guard = threading.Lock()  # of the three below
        self._known: dict[str, Content] = {}  # what staged objects contain, where that was computed already
        self._gone: dict[str, int] = {}  # name → number of its deletion, which the dataset has not seen
        self._deletions = itertools.count(1)
        self._bringing = threading.Lock()

    def put(self, name: str, source: Source) -> Receipt:
        """Keep an object on this disk.

        Raises:
            NameTaken, StoreFull, StoreError: as a store's `put`.
        """
        if name in self._published():
            raise taken(name, f"kaggle://{self._dataset.handle}")
        return self.staged.put(name, source)

    def get(self, name: str) -> BinaryIO:
        """Open an object, which is brought to this disk first if it is in the dataset only.

        Raises:
            ObjectNotFound: there is none of that name.
            CheckpointDamaged: what the dataset has is not what was put.
        """
        try:
            return self.staged.get(name)
        except ObjectNotFound:
            held = self._published().get(check_name(name))
            if held is None:
                raise
            self._bring(held.file)
            return self.staged.get(name)

    def list(self, prefix: str) -> Sequence[Entry]:
        check_prefix(prefix)
        found = {
            name: Entry(name=name, size=held.size) for name, held in self._published().items() if is_below(name, prefix)
        }
        return list((found | {entry.name: entry for entry in self.staged.list(prefix)}).values())

    def delete(self, name: str) -> None:
        """Leave it out of the next version; from here it is gone at once."""
        self.staged.delete(name)
        with self._guard:
            self._known.pop(name, None)
            self._gone[name] = next(self._deletions)

    def alone(self) -> Lock:
        """Held while a version is made.

        Raises:
            StoreUnavailable: another process of this machine, with the same folder, is making one.
        """
        try:
            return self._outbox.lock("publishing", "a session that publishes")
        except StoreBusy as error:
            raise StoreUnavailable(
                problem=f"Another process on this machine is publishing to {self._dataset.handle}.",
                remedy="Nothing needs to be done: it is tried again.",
            ) from error

    def is_gone(self, name: str) -> bool:
        return name in self._gone

    def unpublished(self) -> bool:
        published = self._published()
        return any(entry.name not in published for entry in self.staged.list(""))

    def same_as_published(self) -> bool:
        index = self._dataset.index
        if index is None or self._gone.keys() & index.objects.keys():
            return False
        entries = {entry.name for entry in self.list("")}
        if entries != index.objects.keys():
            return False
        staged = {entry.name for entry in self.staged.list("")}
        return all(self._content(name).sha256 == index.objects[name].sha256 for name in staged)

    def package(self) -> tuple[Package, int]:
        """The next version, as files on this disk; and the number of the last deletion that it knows of."""
        deletions = next(self._deletions)
        for file in {held.file for held in self._published().values()}:
            with suppress(CheckpointDamaged):  # it cannot be sent on; whoever reads it is told
                self._bring(file)
        objects: dict[str, Content] = {}
        for entry in self.staged.list(""):
            with suppress(ObjectNotFound):  # deleted since it was listed
                objects[entry.name] = self._content(entry.name)
        for entry in self._outbox.list(""):
            self._outbox.delete(entry.name)
        singles, packed = arrange(objects)
        files = {file: objects[name] for name, file in singles.items()}
        paths = {file: self._path(self.staged, name) for name, file in singles.items()}
        held = {
            name: Held(file=file, offset=0, size=objects[name].size, sha256=objects[name].sha256)
            for name, file in singles.items()
        }
        if packed:
            pack, content = self._pack(packed, objects)
            files[pack], paths[pack] = content, self._path(self._outbox, "pack")
            held |= _places(pack, packed, objects)
        index = Index(dataset=self._dataset.handle, base=self._dataset.version, files=dict(files), objects=held)
        text = index.to_bytes()
        self._outbox.put("index", BytesSource(text))
        files[INDEX] = content_of(io.BytesIO(text))
        paths[INDEX] = self._path(self._outbox, "index")
        return Package(index=index, files=files, paths=paths), deletions

    def published(self, deletions: int) -> None:
        """A version that knew of the deletions up to this number is in the dataset."""
        with self._guard:
            self._gone = {name: number for name, number in self._gone.items() if number > deletions}
        for entry in self._outbox.list(""):
            self._outbox.delete(entry.name)

    def _published(self) -> dict[str, Held]:
        gone = self._gone
        return {name: held for name, held in self._dataset.objects.items() if name not in gone}

    def _path(self, store: DirectoryStore, name: str) -> str:
        return str(Path(store.url) / name)

    def _content(self, name: str) -> Content:
        known = self._known.get(name)
        if known is None:
            with self.staged.get(name) as reader:
                known = content_of(reader)
            with self._guard:
                self._known[name] = known
        return known

    def _pack(self, names: Sequence[str], objects: Mapping[str, Content]) -> tuple[str, Content]:
        size = len(PACK_HEADER) + sum(objects[name].size for name in names)
        self._outbox.put("pack", Row(self.staged, names, size))
        with self._outbox.get("pack") as reader:
            content = content_of(reader)
        return f"pack-{content.sha256}.bin", content

    def _bring(self, file: str) -> None:
        """Have the objects that lie in a file of the dataset on this disk."""
        with self._bringing:
            staged = {entry.name for entry in self.staged.list("")}
            published = self._published()
            wanted = {name: held for name, held in published.items() if held.file == file and name not in staged}
            if wanted:
                with self._dataset.downloaded_file(file) as reader:
                    wrong = self._taken(reader, wanted)
                for name, held in wrong.items():
                    raise damaged(name, held)

    def _taken(self, reader: BinaryIO, wanted: Mapping[str, Held]) -> dict[str, Held]:
        """Take objects out of a file; returns those that are not what was put."""
        wrong: dict[str, Held] = {}
        for name, held in wanted.items():
            try:
                with suppress(NameTaken):  # put anew in this very moment
                    self.staged.put(name, Part(reader, name, held))
            except CheckpointDamaged:
                wrong[name] = held
        return wrong


def _places(pack: str, names: Sequence[str], objects: Mapping[str, Content]) -> dict[str, Held]:
    """Where the objects lie in their pack."""
    places, offset = {}, len(PACK_HEADER)
    for name in names:
        content = objects[name]
        places[name] = Held(file=pack, offset=offset, size=content.size, sha256=content.sha256)
        offset += content.size
    return places
