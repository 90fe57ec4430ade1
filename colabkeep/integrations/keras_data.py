"""Where the batches of a Keras `fit` come from: data that can be asked for any of its batches, and the rest.

This module carries the user's own data: the engine looks in it for generators that the data draws from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from colabkeep.core.state import derive
from colabkeep.integrations.keras_insides import inside


class Source:
    """Data that nobody can go to a place in: an epoch of it begins again."""

    placed = False
    dataset: object | None = None
    loader: Any = None

    def __init__(self, promise: str) -> None:
        self.promise = promise

    def length(self, epoch: int) -> int | None:
        """Batches of this epoch, where they are fewer than the loader has."""
        return None

    def begin(self, epoch: int, *, resumed: bool) -> None:
        """An epoch begins, or goes on."""

    def end(self, epoch: int) -> None:
        """All its batches were trained."""


class Loaded(Source):
    """A DataLoader of torch, which the run itself knows how to place."""

    placed = True

    def __init__(self, loader: Any) -> None:
        super().__init__("a resumed epoch goes on at the batch that was saved.")
        self.loader = loader


class Drawn(Source):
    """Batches that can be asked for by number, in the run's own order."""

    placed = True

    def __init__(self, batches: Batches, promise: str = "") -> None:
        super().__init__(f"a resumed epoch goes on at the batch that was saved.{promise}{batches.short()}")
        self.loader = batches

    def length(self, epoch: int) -> int | None:
        return int(self.loader.place(epoch)[2])

    def begin(self, epoch: int, *, resumed: bool) -> None:
        self.loader.begin(epoch)
        if self.dataset is not None and not resumed:
            self.dataset.on_epoch_begin()  # type: ignore[attr-defined]

    def end(self, epoch: int) -> None:
        if self.dataset is not None:
            self.dataset.on_epoch_end()  # type: ignore[attr-defined]


class Batches(Sequence[Any]):
    """One epoch's batches, by number. `many`: how many the source has before it begins anew, None for no end; `asked`:
    `steps_per_epoch`. An epoch goes on in the source where the one before ended, if it was told to be shorter."""

    def __init__(self, seed: int, many: int | None, asked: int | None) -> None:
        self.epoch = self._told = 0
        self.varies = False  # are the batches of each epoch other ones?
        self._seed, self._many, self._asked = seed, many, asked
        self._order: tuple[int, Any] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Which epoch is it?"""
        self.epoch = epoch
        self._told += 1

    def begin(self, epoch: int) -> None:
        """This epoch is opened next; when it is told of again, somebody looks whether the data is what it was."""
        self.epoch, self._told = epoch, 0

    def place(self, epoch: int) -> tuple[int, int, int]:
        """(pass over the source, its first batch in it, its number of batches)."""
        many, asked = self._many, self._asked
        if many is None:
            return 0, epoch * len(self), len(self)
        if asked is None:
            return epoch, 0, many
        epochs = -(-many // asked)  # of one pass
        first = epoch % epochs * asked
        return epoch // epochs, first, min(asked, many - first)

    def short(self) -> str:
        """A sentence where not all epochs are as long as they were asked for."""
        many, asked = self._many, self._asked
        if many is None or asked is None or many % asked == 0:
            return ""
        last = f"the last epoch of each pass has {many % asked}" if asked < many else "an epoch has no more"
        return f" There are {many} batches, and steps_per_epoch={asked} asks for others: {last}."

    def __len__(self) -> int:
        return self._asked or self._many or 0

    def __getitem__(self, number: Any) -> Any:
        turn, first, length = self.place(self.epoch)
        if not 0 <= number < length:
            raise IndexError(number)
        if self.varies and self._told > 1:
            raise LookupError("the same batch is another one in each epoch")
        if self._order is None or self._order[0] != turn:
            self._order = turn, self.shuffled(np.random.default_rng(derive(self._seed, "order", turn)))
        return self.draw(self._order[1], first + number)

    def shuffled(self, generator: np.random.Generator) -> Any:
        """The order of one pass, as `draw` wants it."""
        raise NotImplementedError

    def draw(self, order: Any, number: int) -> Any:
        """The batch of this number."""
        raise NotImplementedError


class ArrayBatches(Batches):
    """Pieces of arrays."""

    def __init__(self, seed: int, adapter: Any, asked: int | None) -> None:
        super().__init__(seed, adapter.num_batches, asked)
        backend = keras.backend.backend()
        self._sliceable = inside("convert_to_sliceable")(adapter._inputs, target_backend=backend)
        self._convert = f"convert_to_{backend}_compatible"
        self._samples, self._size, self._shuffle = adapter._num_samples, adapter._batch_size, adapter._shuffle

    def shuffled(self, generator: np.random.Generator) -> Any:
        if self._shuffle == "batch":
            pieces = [
                generator.permutation(stop - start) + start
                for start, stop in map(self._piece, range(-(-self._samples // self._size)))
            ]
            return np.concatenate(pieces)
        return generator.permutation(self._samples) if self._shuffle else None

    def draw(self, order: Any, number: int) -> Any:
        start, stop = self._piece(number)
        indices = slice(start, stop) if order is None else order[start:stop]

        def piece(sliceable: Any) -> Any:
            return None if sliceable is None else _tensor(getattr(sliceable, self._convert)(sliceable[indices]))

        return keras.tree.map_structure(piece, self._sliceable)

    def _piece(self, number: int) -> tuple[int, int]:
        return number * self._size, min((number + 1) * self._size, self._samples)


class DatasetBatches(Batches):
    """Those of a PyDataset."""

    def __init__(self, seed: int, adapter: Any, asked: int | None) -> None:
        super().__init__(seed, adapter.num_batches, asked)
        self._adapter = adapter

    def shuffled(self, generator: np.random.Generator) -> Any:
        return generator.permutation(self._many) if self._adapter.shuffle and self._many else None

    def draw(self, order: Any, number: int) -> Any:
        batch = self._adapter.py_dataset[number if order is None else int(order[number])]
        return keras.tree.map_structure(_tensor, self._adapter._standardize_batch(batch))


def _tensor(value: Any) -> Any:
    """What the backend's own iterators make of a piece of a batch."""
    if value is None:
        return None
    if keras.backend.backend() == "torch":
        return keras.ops.convert_to_tensor(value)
    return value if hasattr(value, "shape") else np.asarray(value)


_AGAIN = (
    "an epoch that was cut off begins again at its first batch, for nobody can go to a place in {what}. It may give "
    "other batches then, so the weights may differ from those without the disconnect. Arrays and "
    "keras.utils.PyDataset go on at the batch."
)


def changes(dataset: object) -> bool:
    """Does a PyDataset do something between epochs?"""
    kind: Any = type(dataset)
    bare: Any = keras.utils.PyDataset
    return kind.on_epoch_end is not bare.on_epoch_end or kind.on_epoch_begin is not bare.on_epoch_begin


def find_source(iterator: Any, seed: int) -> Source:
    """Where the epochs of this iterator of Keras come from."""
    adapter, asked = iterator.data_adapter, iterator.steps_per_epoch
    if isinstance(adapter, inside("ArrayDataAdapter")):
        return Drawn(ArrayBatches(seed, adapter, asked))
    if isinstance(adapter, inside("PyDatasetAdapter")) and (asked or adapter.num_batches):
        dataset = adapter.py_dataset
        alone = (
            ""
            if dataset.workers <= 1
            else f" Its batches are made in this process, without the {dataset.workers} workers."
        )
        drawn = Drawn(DatasetBatches(seed, adapter, asked), alone)
        drawn.dataset, drawn.loader.varies = dataset, changes(dataset)
        return drawn
    torch = keras.backend.backend() == "torch"
    if torch and not asked and isinstance(adapter, inside("TorchDataLoaderAdapter")):
        return Loaded(adapter._dataloader)
    return Source(_AGAIN.format(what=f"this data ({type(adapter).__name__.removesuffix('Adapter')})"))
