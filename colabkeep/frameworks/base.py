"""What a framework adapter must do. A new framework is one file (or folder), one line in
`colabkeep.frameworks`, and one subclass of `colabkeep.testing.frameworks.FrameworkContract`.

One adapter instance serves one run. It is the only code that knows the framework's types; the
engine sees trees of plain values and `HostTensor`s. Everything is called on the training thread
unless said otherwise. An adapter derives from `Framework`, which answers for one of one process that has
neither devices, models nor optimizers.

**Parts.** A run's state is a mapping of part name to live object: "model", "optimizer", "scheduler",
"scaler", "ema", and one per entry of the user's `state={...}`. A part is a module, an optimizer or
any object with `state_dict` and `load_state_dict`; the adapter finds out which. Names inside a
part are the user's own: wrappers that only wrap (compiled, data-parallel) leave no trace in them,
and optimizer state is kept by *parameter name*, never by index.

The tree of a model has its parameters and persistent buffers under "weights", by name; that of an object
with a state_dict has what it told under "state". A `HostTensor` or `Tagged` in it is passed on as it is.

**Exactness.** capture → restore into fresh, equally built objects MUST give every tensor the same
dtype, shape and bits, every plain value the same type and value, ties where there were ties, and no
random number may be drawn on the way. Restored tensors live in memory that the framework itself
allocated (never in the checkpoint's buffer: unaligned memory changes bits in some kernels).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from colabkeep.core.settings import Change, Item, Settings
from colabkeep.core.state import Capture, Stateful, Tree

__all__ = [
    "Batch",
    "Boundary",
    "Counts",
    "Data",
    "DataFacts",
    "Exactness",
    "Framework",
    "Inexact",
    "Inspector",
    "LoaderState",
    "Losses",
    "PartsSettings",
    "Pieces",
    "Probe",
    "Probed",
    "Ranks",
    "Remembered",
    "Resized",
    "Sample",
    "Training",
    "TrainingOptions",
    "Unseen",
]


class Framework(Protocol):
    """One deep-learning framework. The obligations are on top of this page."""

    name: str
    """The registry's name: "torch", "numpy", …"""

    def owns(self, obj: object) -> bool:
        """Is `obj` (a model, optimizer, tensor) of this framework? Imports nothing."""
        ...

    def capture(self, parts: Mapping[str, object]) -> Capture:
        """Copy the state of all parts out of training's way, into host memory kept and reused by
        this adapter (one set: the engine never captures while a snapshot is unreleased).

        This is the only pause of training: from the second capture of the same structure on it
        MUST cost little more than the memory copy. Objects that cannot be stored raise here or in
        `Capture.finish`. All is of one moment: what training may change is copied when this returns, or its copy
        comes first wherever it is changed (on a device, in stream order).

        An adapter that knows which tensors were not changed shows each by the very `HostTensor` of the capture before,
        marked as `lasting`; that spares hashing and writing it. Such an object MUST never be shown with other bytes.
        One without that mark may be shown with any. What is not copied for that reason MUST be proven to have the same
        bytes before `finish` returns, over all of them; where it has others, `finish` raises `Stale`, and the next
        capture MUST copy it. So it MUST where `HostTensor.let_go` called for bytes.

        Raises:
            NotStorable: with the path of the leaf and what to do.
            MemoryFull: there is no room for the copy now. The next capture tries again.
        """
        ...

    def rehearse(self, parts: Mapping[str, object]) -> Capture:
        """What `capture` would give, but for the bytes of tensors, which may be anything: names, shapes and plain
        values are the real ones. For finding out at the start what cannot be stored, at the price of a look.

        Raises:
            NotStorable, MemoryFull: as `capture`.
        """
        ...

    def check(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> Sequence[str]:
        """Compare what was stored with the live objects: names, shapes, dtypes, ties, optimizer
        class, parameter groups. Touches nothing. One sentence per difference; empty when
        `restore` will fit."""
        ...

    def checksums(self, parts: Mapping[str, object], named: Mapping[str, Container[str]]) -> dict[str, dict[str, str]]:
        """Part → name → BLAKE2b-256 in hex of those tensors of its modules that are named, and of what belongs to them
        where they are quantised. What has no bytes of its own is left out. Touches nothing."""
        return {part: {} for part in named}

    def tensors(self, module: object, names: Container[str]) -> dict[str, Any]:
        """Name → tensor of a module, as it is and where it is, of those that are named."""
        return {}

    def refer(self, parts: Mapping[str, object], part: str, checksums: Mapping[str, str], base: str) -> int:
        """From now on, captures show these tensors of a part by their checksums (`HostTensor.referred`), without bytes,
        as long as they are frozen and have the very bytes. `base`: where those come from, kept as "base" in the
        tree. Called before the first capture. Small ones, and what cannot be proven here, are stored all the same.
        Returns the bytes that are not."""
        return 0

    def untrained(self, parts: Mapping[str, object]) -> str:
        """What the optimizers of the run leave out of its model, a sentence; empty where they hold all of it, or the
        run has no model or no optimizer.

        Raises:
            UsageError: they hold parameters that no model has instead: a layer was replaced after they were built.
        """
        return ""

    def is_on_cpu(self, parts: Mapping[str, object]) -> bool:
        """Is the run's model in host memory as a whole, though its user could have put it on a GPU?"""
        return False

    def restore(self, parts: Mapping[str, object], trees: Mapping[str, Tree]) -> None:
        """Load the trees into the live objects, in the mapping's order. Called after `check`
        found nothing. In place where the framework has places (parameters, buffers). `trees` may hold some of the
        parts only: the others are loaded by other calls. Tensors that are `fresh` may be kept in the memory that
        they have: each is restored once."""
        ...

    def native(self, tree: Tree) -> Any:
        """The tree with each `HostTensor` and `Tagged` turned into the framework's own objects, in
        fresh memory on the CPU. For loading weights elsewhere and for `rng().load_state_dict`."""
        ...

    def rng(self) -> Stateful:
        """All global random streams that training may draw from: Python's, NumPy's (if imported)
        and the framework's on every device. `load_state_dict` takes what `native` gives back."""
        ...

    def settings(self, parts: Mapping[str, object]) -> PartsSettings:
        """How the parts are set up: what was written for them, beside their tensors. Called before anything is
        touched."""
        ...

    def described(self, value: object) -> Mapping[str, Item]:
        """A function or module that no part of the run is, such as a loss: "" is itself, others what it holds."""
        ...

    def remember(self, parts: Mapping[str, object]) -> Remembered:
        """Take the small state of the parts: options of optimizers, the state of schedulers and other objects, plain
        attributes, modes, what is trained, and buffers of modules.

        For code that ran before the checkpoint and is run again: that above the loop of a run, and that at the top of
        an epoch when the run goes on in its middle. Until it is put back or released, a parameter group whose
        parameters are all there is not added to an optimizer again.
        """
        ...

    def boundary(self, parts: Mapping[str, object]) -> Boundary:
        """The means to go back to the last step boundary after an exception inside a step. From here on, until it
        is closed, the parts' optimizers are watched."""
        ...

    def data(self) -> Data:
        """How this framework's data loaders are ordered, seeded and resumed."""
        ...

    def training(self, options: TrainingOptions) -> Training:
        """The arithmetic of a training loop, for `resumable_fit`.

        Raises:
            UsageError: this framework has no loop of ours, or an option does not fit it.
        """
        ...

    def mean(self, value: object) -> MeanLike:
        """A new running mean, where numbers like `value` are: a tensor's device, or the host. Its `state_dict` has
        such a number as "sum"."""
        ...

    def fingerprint(self, parts: Mapping[str, object]) -> Mapping[str, str]:
        """What bits depend on, name → value: versions, device, threads, instruction set, flags. Each is read by
        itself, and none raises: one that cannot be read is "unreadable: …", one that this version lacks is left out."""
        ...

    def exactness(self, parts: Mapping[str, object]) -> Exactness:
        """Does this machine compute the same bits again from the same state? As `fingerprint`, never raises."""
        ...

    def losses(self) -> Losses:
        """A new reader of losses."""
        ...

    def learning_rate(self, parts: Mapping[str, object]) -> float | None:
        """That of the first optimizer's first group of parameters, now; None where there is none, or where reading it
        would wait for a device."""
        return None

    def unseen(self, parts: Mapping[str, object]) -> Unseen:
        """Begin to look for what moves the parts and was not handed in."""
        return Unseen()

    def place(self) -> tuple[int, int]:
        """The rank of this process, and how many there are, by the framework's own means; (0, 1) for a training by
        itself."""
        return 0, 1

    def ranks(self) -> Ranks | None:
        """The processes that train together; all of them ask for this at the same time. None where this framework's
        trainings are kept in one process only, or this is one."""
        return None

    def sharded(self, parts: Mapping[str, object]) -> str | None:
        """By what a part was cut into pieces, of which this process holds its own; with the name of the part, as
        "model by fully_shard". None where all are whole."""
        return None


class Ranks(Protocol):
    """The processes that train one model together, of which this is the one of `rank`, of `size`. Each of these calls
    is made by all of them, in the same order, on the training thread; each waits for the slowest.

    Raises (each): RuntimeError: one of them has ended, or was not heard of for as long as the framework waits.
    """

    rank: int
    size: int

    def highest(self, numbers: Sequence[int]) -> list[int]:
        """Each number as the highest that any process gave."""
        ...

    def from_first(self, pieces: Iterable[memoryview] | None) -> bytearray:
        """What rank 0 gives, in the others; the others give None, and rank 0 gets nothing back."""
        ...

    def to_first(self, data: bytes) -> list[bytes]:
        """What all gave, by rank, in rank 0; nothing in the others."""
        ...

    def seed(self, seed: int) -> None:
        """Begin the global random streams of this process anew."""
        ...

    def shapes(self, parts: Mapping[str, object]) -> bytes:
        """Names, types and shapes of the weights that this process trains. Each process makes it for itself."""
        ...

    def sums(self, parts: Mapping[str, object]) -> bytes:
        """What this process trains, in short: sums of bits, and the numbers that optimizers are set to. That two have
        the same proves nothing; that they differ does. Waits for the device; each process makes it for itself."""
        ...

    def buffers(self, parts: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
        """The buffers of each module that nobody makes the same in all processes, by part and name; under `METRICS`
        what its metrics have counted, as the tree of the module has it."""
        ...


METRICS = "metrics()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """What decides whether the steps after a restore give the same bits.

    `same`: what has to be the same on a later machine, as words after "the same" ("torch 2.13.0, 2 threads, AVX512").
    `unseen`: what else of a loop of the user's own no checkpoint holds with this framework, a clause; "" for nothing.
    `obstacles`: what prevents the same bits on this very machine; `exceptions`: operations that do, which many programs
    do not use; `notes`: what else is to be known. Each is a sentence or two, with the line that mends it.
    """

    same: str
    unseen: str = ""
    obstacles: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Losses(Protocol):
    """Losses on their way to the host, one for each step. Nothing here waits for a device, but `settle`.

    What has not arrived is part of the state: `state_dict` has it where it is, so that a capture takes it along. A
    framework whose numbers are all at hand has `take` alone to say.
    """

    def take(self, step: int, loss: Any) -> float | None:
        """The loss of a step, if that is one number and it is at hand: a plain number, or one in host memory. Else
        None: one on a device is copied there, at once (a captured graph writes the next one over it) and without its
        graph, to be told by `arrived`; what is not one number is left out. Called after every step, so it MUST cost
        less than a microsecond for a number at hand."""
        ...

    def arrived(self) -> Sequence[tuple[int, float]]:
        """The losses, by step, that have reached the host since the last call."""
        return ()

    def settle(self) -> Sequence[tuple[int, float]]:
        """All that have not been told. Waits for the device."""
        return ()

    def state_dict(self) -> Mapping[str, Any]:
        """What has not arrived; empty where all has. Storable, by `Framework.capture`."""
        return {}

    def read(self, tree: Tree) -> Sequence[tuple[int, float]]:
        """The losses in what `state_dict` returned, as it was stored."""
        return ()


class PartsSettings(Protocol):
    """The settings of a run's parts in one session. A part is compared as far as the adapter knows its class."""

    replaced: frozenset[str]
    """Parts that `plan` gives a state of their own: they are neither checked nor restored."""

    def written(self) -> Settings:
        """As the user wrote them. What a run has moved since, in objects that it trained and left in this process, is
        told as it was written."""
        ...

    def reached(self, trees: Mapping[str, Tree], moved: Mapping[str, Tree]) -> Settings:
        """The options that training moves, as the checkpoint has them. `moved`: what `moved` told then."""
        ...

    def keepable(self, change: Change) -> bool:
        """Can the stored value be put back? Code and classes cannot."""
        ...

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> Sequence[str]:
        """Find out what the changed settings mean for what is stored: a schedule keeps its count. Everything is as it
        was afterwards. Sentences where it cannot be done."""
        ...

    def settle(
        self, written: Settings, moved: Mapping[str, Tree], *, new: Sequence[Change], kept: Sequence[Change]
    ) -> None:
        """After `restore`: put back what training had moved, keep `kept`, apply what was planned, and leave what is
        `new` as it is. `written`, `moved`: those of the checkpoint."""
        ...

    def begin(self, written: Settings) -> None:
        """From here on `moved` tells what differs from these."""
        ...

    def moved(self) -> Mapping[str, Tree]:
        """What training has moved, by part: called at each save, so it MUST cost less than a millisecond for hundreds
        of modules."""
        ...

    def mark(self) -> None:
        """The training is between two steps. Called after every one, so it MUST cost less than a microsecond where
        nothing but tensors moves."""
        ...

    def rewind(self) -> str | None:
        """Put what training moves beside tensors back to the last mark; or say in a clause why that cannot be."""
        ...

    def trained(self) -> Sequence[str]:
        """Facts that show that the objects were trained before, a clause each."""
        ...

    def leave(self, run: str, step: int, *, failed: bool) -> None:
        """The session ends: leave a mark on the objects, plain data by which the next one in this process knows what
        was written and what training moved. `failed`: by an error, which may be one of the device: nothing is asked
        of it."""
        ...


class Boundary(Protocol):
    """What a forward pass changes: random streams and mutable buffers; and gradients that stand between two steps.

    `mark` is called after every optimizer step, so it MUST cost a few microseconds when nothing was
    drawn (plus the copy of the buffers). Parameters and optimizer state are not copied: they
    change in the optimizer's step only, which `torn` watches.
    """

    def mark(self) -> None:
        """A step boundary is here: remember the streams and buffers."""
        ...

    @property
    def gradients(self) -> Stateful | None:
        """Gradients that the next update is made of, beside those that it will compute: an accumulation that an epoch
        broke off. Its state is empty where there are none. None: this framework's are not kept."""
        ...

    @property
    def opaque(self) -> Sequence[str]:
        """The names of parts that a loop may change at any moment, and `rewind` cannot put back: objects with a state
        of their own that are not the framework's. One whose class has a `between_steps` is none of them while that is
        True."""
        ...

    @property
    def updates(self) -> int:
        """How many steps an optimizer took at most, since the boundary was made; 0 where nobody hears of them."""
        ...

    @property
    def torn(self) -> bool:
        """Did an optimizer begin a step, or a scheduler move on, since the last mark? Then there is no way back."""
        ...

    def rewind(self) -> None:
        """Put streams, buffers, modes and the options of optimizers back as they were at the last mark."""
        ...

    def close(self) -> None:
        """Remove hooks from the user's objects. Calling twice is harmless."""
        ...


@dataclass(frozen=True, slots=True)
class Remembered:
    """What `Framework.remember` took. Either it is called, which puts it back, or `release` is, which leaves everything
    as it is; once. Weights were not copied: `put_back` returns a sentence that names those that changed meanwhile."""

    put_back: Callable[[], str | None]
    release: Callable[[], object] = lambda: None

    def __call__(self) -> str | None:
        self.release()
        return self.put_back()


class Unseen:
    """Looks for what moves a run's parts and was not handed in, such as a schedule: no checkpoint knows of it. This one
    sees nothing; others derive from it."""

    def __call__(self) -> Sequence[str]:
        """The first step of a session is done: a sentence for each, with what to write. Called once."""
        return ()

    def close(self) -> None:
        """Look no more. Calling twice is harmless."""


class Batch(NamedTuple):
    """What the loop gets: the user's own `value`, and how many `samples` the batch has (None: unknown).

    `own`: how many of them `value` holds, where several processes share a batch; 0 where there were too few for all:
    then it holds one that another process counts. None: all.
    """

    value: Any
    samples: int | None
    own: int | None = None


Sample: TypeAlias = "tuple[str, str, str]"
"""(form, labels, arrays) of a sample. The form is readable, "(float32[3, 32, 32], int)"; the others are digests: of
numbers, strings and arrays of a few elements, and of larger arrays and pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Samples of a data set to look at, at most for so many `seconds` (and one sample). `known`: what they were."""

    positions: Sequence[int]
    known: Mapping[int, Sample]
    seed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was found: position → sample, None where it cannot be drawn or is another each time it is. Positions that
    there was no time for are not in it. `libraries`: name → version of those that decode files, where it was drawn."""

    samples: Mapping[int, Sample | None]
    libraries: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What is known of data without loading any. `kind`: "samples" (of a map-style data set), "batches" (of a
    sequence), or "stream", which can only be read from its beginning. `length`: how many of these, None if unknown.
    `name`: the class of the data set. `subsets`: for each `Subset` in it, how many indices it has and a digest of
    them. `batch`: samples in each batch but the last, of all processes together; None if unknown."""

    kind: str
    length: int | None
    name: str
    subsets: tuple[tuple[int, str], ...] = ()
    batch: int | None = None


class Inspector(Protocol):
    """Wants to see a few samples before an epoch of a loader gives its first batch."""

    probe: Probe

    def found(self, probed: Probed) -> None:
        """Judge them.

        Raises:
            Incompatible: this is not the data of the run.
        """
        ...


class Inexact(str):
    """A sentence that says why the continuation is not bit for bit that of an uninterrupted run."""

    __slots__ = ()


class Resized(Inexact):
    """One about a loader that makes other batches of the same data than in the session before."""

    __slots__ = ()


class LoaderState(Protocol):
    """One epoch of one loader, positioned. Iterating gives batches from the position on.

    It never draws from the global random streams: what the loader, its sampler, its data set and
    its collate function draw is a function of (seed, epoch, batch position), or is kept apart.
    """

    length: int | None
    """Batches in the whole epoch, None when unknown."""

    positional: bool
    """Is `state` that of the newest batch only (a loader with a state of its own)? Else it is that of any it is asked
    for."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user, more of them as they come up: a replay and its expected time, or, as `Inexact`, what
        costs the exactness (a changed batch size)."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left. Called once."""
        ...

    def state(self, batches: int | None = None) -> Tree:
        """What is needed beside (epoch, batches, epoch_samples) to position a new one: a hash of the
        order, the length of the data set, the loader's own state. Storable; called at each save. `batches`: those
        of the epoch that count as read, where the loop has read on since; all by default."""
        ...

    def close(self) -> None:
        """Stop workers that are not the user's. Calling twice is harmless."""
        ...


class Counts(Protocol):
    """What a loader counts by itself in one epoch: how often it was read, where it stopped."""

    def go_on(self, before: Mapping[str, Any], *, resumed: bool) -> list[str]:
        """Count on from what `tree` returned, of this epoch or the one before it. `resumed`: in an earlier session.
        Returns the names of what goes on though it was not seen yet that it should."""
        ...

    def begin(self) -> None:
        """It is read from now on."""
        ...

    def end(self) -> None:
        """It was read, or left."""
        ...

    def tree(self) -> dict[str, Any]:
        """What changed since the epoch began; empty if nothing ever did. Storable."""
        ...


class Data(Protocol):
    """Opens loaders in a known order at a known position."""

    def open(
        self,
        loader: object,
        *,
        seed: int,
        epoch: int,
        batches: int,
        samples: int,
        state: Tree | None,
        inspector: Inspector | None = None,
    ) -> LoaderState:
        """One epoch of `loader`. `batches` and `samples` of it are consumed already; `state` is what
        `LoaderState.state` returned at that position (None at the start of an epoch). `inspector` is shown samples when
        the epoch is iterated, drawn where the loader loads: in a worker, if it has any.

        May keep adapted copies between epochs (so that persistent workers persist), never
        changes the user's loader.

        Raises:
            Incompatible: the data set or its order is not the one that was stored.
            UsageError: the loader cannot be resumed at all (a bare iterator), with the remedy.
        """
        ...

    def as_loader(self, data: object, batch_size: int | None) -> object:
        """What `open` takes: `data` itself if it gives batches; a data set becomes a loader of shuffled batches
        of `batch_size` samples (32 by default).

        Raises:
            UsageError: a `batch_size` for something that is batched already.
        """
        ...

    def check(self, loader: object, *, seed: int, state: Tree) -> Sequence[str]:
        """Differences between the loader and a stored state that make a resume wrong, found without
        loading data or drawing random numbers; empty when it fits."""
        ...

    def facts(self, loader: object) -> DataFacts:
        """What a data set is, as far as it can be told without loading anything."""
        ...

    def counts(self, loader: object, epoch: int) -> Counts | None:
        """What the loader counts by itself in this epoch; None if it is positioned by an order that others keep."""
        ...

    def look(self, loader: object, probe: Probe) -> Probed:
        """Look at samples now, drawn where the loader loads: in a worker, which is ended, if it has any. Random
        streams and the data set's objects are left as they were."""
        ...

    def close(self) -> None:
        """Let go of adapted copies and their workers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What `resumable_fit` was asked for, as far as the arithmetic goes.

    Exactly one of `loss_fn(output, target)` and `step_fn(model, batch) -> loss` is set. `metrics` are
    functions `(output, target) -> number`, by name, or metric objects of the framework. `scheduler` is stepped by
    the loop, not by the arithmetic, which only looks whether it is the optimizer's. `precision`: "32-true", "16-mixed",
    "bf16-mixed" or "auto". `gradient_clip_val`: largest gradient norm, None for no clipping. `micro_batch`: how many
    samples of a batch are computed at a time, or "auto"; None for all. `sync_batchnorm`: BatchNorm takes its statistics
    over all processes.
    """

    model: Any
    optimizer: Any
    loss_fn: Callable[[Any, Any], Any] | None = None
    step_fn: Callable[[Any, Any], Any] | None = None
    metrics: Mapping[str, Any] | None = None
    scheduler: Any = None
    precision: str = "auto"
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None
    micro_batch: int | Literal["auto"] | None = None
    sync_batchnorm: bool = False


class Training(Protocol):
    """The arithmetic of a training loop. Nothing here waits for the device, except a mean's value and
    `evaluate`'s result. One derives from this, which answers for a training in one process."""

    precision: str
    """What is computed in: "32-true", "16-mixed" or "bf16-mixed"."""

    measures: Sequence[str]
    """What `evaluate` gives of any batch: "loss", and the names of the metrics."""

    scaler: object | None
    """The gradient scaler in use, a part of the run's state; None when the precision needs none."""

    summing: float | None
    """Seconds of a step that several processes spend on what they tell each other, measured before; None where that
    is not known, or there is one."""

    @property
    def loss_differs(self) -> str:
        """A clause where several processes train together, and the loss of a batch is not the mean of those of its
        samples, as the first `backward` behind `align` saw. Empty where it is, or where that is not known."""
        return ""

    grad_norm: Any
    """The norm of the last step's gradients before they were clipped, still on the device; None where none are."""

    def train(self) -> None:
        """Put the model into training mode and clear gradients."""
        ...

    def backward(self, batch: Any, *, share: float) -> Any:
        """Forward and backward of one micro-batch, its loss scaled by `share` of the accumulation window. Returns the
        unscaled loss, detached: still on its device, or a number of a CPU.

        Raises:
            UsageError: the batch or the loss is not of the form that training needs.
        """
        ...

    def synchronised(self) -> AbstractContextManager[object]:
        """While the run is open: the model as it is trained. Behind it the model has its own layers again."""
        return nullcontext()

    def align(self) -> None:
        """Where several processes train together: a run begins with the weights of rank 0 in all of them."""
        return

    def reduce(self, losses: Sequence[Any]) -> Sequence[Any]:
        """Before `step`, where several processes train together: gradients and losses become the sums over all. What
        a process has is its part of the whole by then: `share` of `backward`, and the losses that it gives here, have
        that as a factor."""
        return losses

    def step(self) -> None:
        """Unscale, clip, one optimizer update (float16: none if a gradient is not finite), clear gradients."""
        ...

    def pieces(self) -> Pieces:
        """How batches are computed in pieces.

        Raises:
            UsageError: this framework cannot.
        """
        ...

    def mean(self) -> MeanLike:
        """A new running mean of losses, on the device."""
        ...

    def learning_rate(self) -> float:
        """That of the first parameter group, now."""
        ...

    def evaluate(self, batches: Iterator[Batch]) -> Mapping[str, float]:
        """Mean loss ("loss") and metrics over the batches, weighted by samples (a batch of unknown size counts as one),
        in evaluation mode, without gradients, in the precision of training. Afterwards every module has the mode it
        had: one that the user keeps in evaluation mode stays there. Empty when there are no batches.

        Raises:
            UsageError: a loss or a metric is not one number.
        """
        ...


class Pieces(Protocol):
    """Batches of one training computed in pieces, of which memory has to hold one at a time: micro-batches."""

    card: str
    """The kind of device, with its memory ("Tesla T4, 15 GB"), where it says that its memory does not suffice and can
    be asked for less; else empty, as on the CPU."""

    def backward(self, batch: Any, samples: int | None, micro: int | None, share: float) -> Any:
        """As `Training.backward`, of `micro` samples at a time (None: all at once). Gradients and loss are those of the
        whole batch up to rounding, as far as the loss is a mean over samples (`check`) and the model looks at each
        sample by itself (`across`).

        Raises:
            UsageError: the batch cannot be cut.
        """
        ...

    def check(self, batch: Any, samples: int) -> str:
        """Try by a few samples, in evaluation mode and without gradients, whether the loss is a mean over samples.
        Modes and random streams are left changed. Returns why that could not be tried, a clause; empty if it is one.

        Raises:
            UsageError: it is not one, or the batch cannot be cut.
        """
        ...

    def across(self) -> Sequence[str]:
        """The names of layers that compute with all samples of a batch together, as BatchNorm does in training."""
        ...

    def streams(self) -> object:
        """The state of the random streams that a model draws from, for a comparison."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Did the device have too little memory?"""
        ...

    def release(self) -> None:
        """Give what a failed pass left (gradients, graphs, memory that is cached) back to the device."""
        ...


class MeanLike(Stateful, Protocol):
    """A running mean that adds on the device and waits only when read."""

    def add(self, value: Any, weight: float) -> None:
        """Count `value` with `weight`."""
        ...

    def value(self) -> float | None:
        """The mean so far, None of nothing. Waits for the device."""
        ...

    def reset(self) -> None:
        """Begin anew, with nothing."""
        ...
