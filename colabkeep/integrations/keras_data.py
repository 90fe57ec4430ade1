"""Where the batches of a Keras `fit` come from: data that can be asked for any of its batches, and the rest.

This module carries the user's own data: the engine looks in it for generators that the data draws from.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import keras
import numpy as np

from colabkeep.core.errors import NotStorable
from colabkeep.core.state import derive
from colabkeep.integrations.keras_insides import inside


class Source:
    """Data that nobody can go to a place in: an epoch of it begins again."""

    placed = False
    dataset: object | None = None
    doubt: str | None = "An epoch that is cut off begins again at its first batch, so the weights may be other ones."
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
    doubt = None

    def __init__(self, loader: Any) -> None:
        super().__init__("a resumed epoch continues at the batch that was saved.")
        self.loader = loader


class Drawn(Source):
    """Batches that can be asked for by number, in the run's own order."""

    placed = True
    doubt = None

    def __init__(self, batches: Batches, promise: str = "") -> None:
        super().__init__(f"a resumed epoch continues at the batch that was saved.{promise}{batches.short()}")
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


class Piped(Source):
    """A `tf.data` pipeline, whose iterators tell and take where they are."""

    placed = True
    doubt = None

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(
            "a resumed epoch continues at the batch that was saved, with what the pipeline had shuffled. Where "
            "shuffle() has no seed, later epochs have another order than without the disconnect."
        )
        self.loader = pipeline

    def length(self, epoch: int) -> int | None:
        asked: int | None = self.loader.asked
        return asked

    def begin(self, epoch: int, *, resumed: bool) -> None:
        self.loader.begin(resumed=resumed)

    def end(self, epoch: int) -> None:
        self.loader.end()


class Pipeline:
    """The epochs of a `tf.data` data set. `asked`: `steps_per_epoch`. An epoch goes on where the one before ended, if
    it was told to be shorter.

    In the middle of an epoch the engine stores and brings back where it is (`state_dict`), as for every loader. Between
    epochs it knows no loader: `told` is a part of the run then.
    """

    def __init__(self, dataset: Any, iterator: Any, asked: int | None) -> None:
        self.asked = asked
        self._dataset, self._iterator = dataset, iterator
        self._made = 1  # iterators, which a shuffle counts
        self._given = 0  # batches of this iterator before this epoch
        self._taken = 0  # batches of the epoch
        self._over = False  # has the iterator given all?
        self._between = True  # two epochs?
        self._behind = 0  # batches to be read again before the first
        self._print = print_of(dataset)

    def begin(self, *, resumed: bool) -> None:
        """An epoch begins, or goes on."""
        self._between = False
        if self._over:
            self._iterator, self._over = iter(self._dataset), False
            self._made, self._given = self._made + 1, 0
        if not resumed:
            self._taken = 0

    def end(self) -> None:
        """All its batches were trained."""
        self._between = True
        self._given += self._taken

    def __iter__(self) -> Iterator[Any]:
        while self._behind:
            self._behind -= 1
            next(self._iterator, None)
        while self.asked is None or self._taken < self.asked:
            batch = next(self._iterator, _NO_MORE)
            if batch is _NO_MORE:
                self._over = True
                return
            self._taken += 1
            yield batch

    def told(self) -> dict[str, Any]:
        """Which iterator of how many it is at; between epochs also where that is, if its buffers are small."""
        state = place_of(self._iterator) if self._between and not self._over else None
        small = state is not None and state.nbytes <= LARGE
        place = state if small else None
        return {"made": self._made, "given": self._given, "over": self._over, "iterator": place, "print": self._print}

    def take(self, told: Mapping[str, Any]) -> bool:
        """Go to the beginning of that epoch. A shuffle draws the order of an epoch when its iterator is made. Returned
        is whether the pipeline is the one that was stored, as far as TensorFlow's fingerprint tells."""
        for _ in range(told["made"] - self._made):
            self._iterator = iter(self._dataset)
        self._made, self._given, self._over = told["made"], told["given"], told["over"]
        if told["iterator"] is not None:
            go_to(self._iterator, told["iterator"])
        elif not self._over:
            self._behind = self._given
        return bool(told["print"] == self._print)

    def state_dict(self) -> dict[str, Any]:
        """Where it is in the middle of an epoch, with what is in its buffers.

        Raises:
            NotStorable: those are large. An epoch is read again then.
        """
        state = place_of(self._iterator)
        if state is None or state.nbytes > LARGE:
            size = "" if state is None else f" ({state.nbytes >> 20} MiB)"
            raise NotStorable(
                problem=f"The buffers of this tf.data pipeline{size} are too large to store with every checkpoint.",
                remedy="Give shuffle() a smaller buffer, or shuffle the names of files before they are read.",
            )
        return {"iterator": state, "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""
        self._taken, self._behind = state["taken"], 0
        go_to(self._iterator, state["iterator"])


_NO_MORE = object()
LARGE = 64 << 20  # bytes of a pipeline's buffers that are stored with each checkpoint at most


def place_of(iterator: Any) -> np.ndarray[Any, Any] | None:
    """Where an iterator of TensorFlow is, as bytes; None if something in its pipeline does not tell (a function of
    Python, numbers drawn by `tf.random`)."""
    import tensorflow as tf

    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None:
        return None
    try:
        # 2: an error where there is state that would be left out
        state = tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=2)
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
        return None
    return np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)


def print_of(dataset: Any) -> str:
    """TensorFlow's fingerprint of a pipeline: its steps and the arrays or names of files that it begins with, in their
    order. Seeds are not in it. "" where this TensorFlow has none."""
    import tensorflow as tf

    take = getattr(tf.raw_ops, "DatasetFingerprint", None)
    return "" if take is None else str(int(take(input_dataset=dataset._variant_tensor)))


def go_to(iterator: Any, place: np.ndarray[Any, Any]) -> None:
    """Put an iterator of TensorFlow where another one of the same pipeline was."""
    import tensorflow as tf

    tf.raw_ops.DeserializeIterator(
        resource_handle=iterator._iterator_resource, serialized=tf.io.parse_tensor(place.tobytes(), tf.variant)
    )


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
        # TensorFlow's own way makes a whole data set of them; slices are asked for as for NumPy.
        sliced = "numpy" if backend == "tensorflow" else backend
        self._sliceable = inside("convert_to_sliceable")(adapter._inputs, target_backend=sliced)
        self._convert = "convert_to_tf_dataset_compatible" if sliced == "numpy" else f"convert_to_{backend}_compatible"
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
    if keras.backend.backend() in ("torch", "tensorflow") and not _composite(value):
        return keras.ops.convert_to_tensor(value)
    return value if hasattr(value, "shape") else np.asarray(value)


def _composite(value: Any) -> bool:
    """Is it a tensor of several parts (ragged, sparse)?"""
    return hasattr(value, "with_row_splits_dtype") or hasattr(value, "dense_shape")


def build_model(model: Any, iterator: Any) -> None:
    """With TensorFlow, Keras builds a model, its metrics and its optimizer while it traces the first step, and a
    checkpoint is loaded before that: so do it now, from the shapes of the batches, as Keras does with torch and JAX."""
    dataset = getattr(iterator, "_distributed_dataset", None)
    if dataset is not None:
        # A model that is trained by its own train_step need not be one that can be called. Where its weights are
        # there, at most its metrics come later, which `Fitting` tells.
        try:
            model._symbolic_build(data_batch=dataset.element_spec)
        except Exception:
            if not model.variables:  # Keras's own words say what to do
                raise


class Traced:
    """`train_function` of TensorFlow for batches that are handed to it. Keras would trace it for the shape of the first
    one, which differs in a session that begins with an epoch's shorter last batch, and would round differently there.
    So it is traced for the shapes that Keras's own data sets tell, and at once: what Keras makes while it traces a step
    (optimizers, metrics) is there before a checkpoint is loaded.

    `draws`: does a step draw from `tf.random`? `variables`: those of TensorFlow that a step uses, in its
    order.
    """

    def __init__(self, train: Callable[[Any], Any], iterator: Any) -> None:
        import tensorflow as tf

        self._flatten, self._pack = tf.nest.flatten, tf.nest.pack_sequence_as
        self._spec = iterator._distributed_dataset.element_spec
        step = tf.function(lambda data: train([data]), input_signature=[self._spec], autograph=False)
        self._step: Any = step
        graph = step.get_concrete_function().graph
        handles = {id(each.handle): each for each in graph.variables}  # they are in a set, in no order
        self.variables = [handles[id(given)] for given, _ in graph.captures if id(given) in handles]
        written = graph.as_graph_def()
        nodes = [*written.node, *(node for each in written.library.function for node in each.node_def)]
        # Where it has a seed for an attribute, its state is its own; what Keras draws with takes it as an input.
        self.draws = any("seed" in node.attr for node in nodes)

    def __call__(self, batches: Any) -> Any:
        logs = None
        for batch in batches:
            logs = self._step(self._pack(self._spec, self._flatten(batch)))
        return logs


class Validations:
    """What `fit` validates on, as far as one validation depends on those before: a `tf.data` pipeline counts its
    iterators, and shuffles otherwise in each.

    `doubt`: why a resumed training may validate on other batches; None if it does not.
    """

    def __init__(self, data: Any) -> None:
        self.done = 0
        self.behind = 0  # of them, those of earlier sessions that the pipeline does not know of
        self.doubt: str | None = None
        tensorflow: Any = sys.modules.get("tensorflow")
        self._data = data if tensorflow is not None and isinstance(data, tensorflow.data.Dataset) else None
        if self._data is not None and place_of(iter(data)) is None:
            self.doubt = _VALIDATED.format(why="its tf.data pipeline draws from tf.random or calls functions of Python")
        elif isinstance(data, Iterator):
            self.doubt = _VALIDATED.format(why="a generator begins anew")

    def counts(self, data: Any) -> bool:
        """Does the order depend on those before when this data is validated on?"""
        return self._data is not None and data is self._data

    def catch_up(self, iterator: Any) -> None:
        """Let the pipeline count as many iterators as in the validations that are done; nothing is read."""
        behind, self.behind = self.behind, 0
        for _ in range(behind):
            if keras.backend.backend() == "tensorflow":
                steps = getattr(iterator, "_enumerate_iterator", None) or iterator.enumerate_epoch
                deque(islice(steps(), None if iterator.num_batches else 1), maxlen=0)
                iterator.reset()
            else:
                iter(iterator.data_adapter.get_tf_dataset())


_VALIDATED = (
    "A resumed training may validate on other batches, for {why}: then val_… and what depends on it differ. To have "
    "the same, validate on arrays, a keras.utils.PyDataset, or a tf.data pipeline without tf.random and functions of "
    "Python."
)
EAGER = (
    "With run_eagerly=True colabkeep cannot see whether a step draws from tf.random or uses a tf.Variable of its own. "
    "If it does, a resumed training has other weights. Without run_eagerly colabkeep looks at the step."
)
DRAWN = (
    "This model's step draws from tf.random, and TensorFlow tells nobody where that is: a resumed training draws other "
    "numbers, so its weights are other ones. keras.random and Keras's layers draw from seeds that are kept: "
    "keras.random.normal(shape, seed=self.seed_generator), with a keras.random.SeedGenerator in the layer."
)


_AGAIN = (
    "an epoch that was cut off begins again at its first batch, because colabkeep cannot resume in the middle of "
    "{what}. It may then give other batches, so the weights may differ from those without the disconnect. Arrays, "
    "keras.utils.PyDataset and, with TensorFlow, tf.data pipelines without tf.random and functions of Python continue "
    "at the batch."
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
    backend = keras.backend.backend()
    if backend == "tensorflow" and isinstance(adapter, inside("TFDatasetAdapter")):
        dataset = iterator._distributed_dataset
        first = iter(dataset)
        if place_of(first) is not None:
            return Piped(Pipeline(dataset, first, asked))
    if backend == "torch" and not asked and isinstance(adapter, inside("TorchDataLoaderAdapter")):
        return Loaded(adapter._dataloader)
    return Source(_AGAIN.format(what=f"this data ({type(adapter).__name__.removesuffix('Adapter')})"))
