"""A run that several processes train together: rank 0 takes it, restores it, saves it and decides; the others get from
it what it loaded, and their random streams go into its checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from colabkeep.checkpoint.codec import decode_part, encode_parts, unpack
from colabkeep.checkpoint.restore import Loaded
from colabkeep.core.errors import ColabKeepError, UsageError
from colabkeep.core.manifest import Manifest
from colabkeep.core.state import Tree, derive
from colabkeep.frameworks.base import Framework, Ranks

_T = TypeVar("_T")


class AtATime(Protocol):
    """How many samples a process computes at a time: `now`, None for all that it has of a batch."""

    now: int | None

    def take(self, samples: int) -> None:
        """So many from here on."""
        ...


_FAILED, _EMPTY, _FULL = "failed", "empty", "full"
_PLACES = {  # where in a loop they talk, and what that says of each
    "step": "rank {} continues after step {}",
    "epoch": "rank {} has ended its epoch after step {}",
    "left": "rank {} has left its loop after step {}",
}
_ALL = 1 << 62  # samples: more than any batch has


class Decision(NamedTuple):
    """What all processes do at this boundary. `saves`: the run is saved; `signal`: the number of the signal by which
    somebody asked one of them to stop, 0 for none; `ends`: 1 where `max_time` is over, 2 where the session ends."""

    saves: bool
    signal: int
    ends: int


class NotBegun(UsageError):
    """Another process could not begin: its own error says why."""


class Group:
    """The processes of one run. All calls are made by all of them, in the same order, on the training thread."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size
        self.leads = ranks.rank == 0
        self.at_a_time: AtATime | None = None  # where it becomes less when memory runs out: all take the least then
        self.talks_at = 0  # the step at whose boundary they talk again; at the end of an epoch they do before
        self._handed = self._alike = False

    def refuse_machines(self, machine: str) -> None:
        """Refuse processes of several machines. `machine`: what tells this one from others.

        Raises:
            UsageError: in all of them.
        """
        if not self._all_told(machine.encode()):
            raise UsageError(
                problem=f"The {self.size} processes of this training are on several machines, and colabkeep keeps "
                "trainings of one machine. Nothing was touched.",
                remedy="Start all of them on one machine (torchrun --nnodes=1 …), or train without colabkeep.",
            )

    def refuse_other_models(self, parts: Mapping[str, object]) -> None:
        """Refuse processes whose models have other weights, by names, types and shapes.

        Raises:
            UsageError: in all of them.
        """
        if not self._all_told(self._ranks.shapes(parts)):
            raise UsageError(
                problem=f"The {self.size} processes of this training have different models: names, types or shapes of "
                "their weights differ. A checkpoint keeps the model of rank 0 alone, so the others would be lost. "
                "Nothing was touched.",
                remedy="Build the same model in each process. A model that is cut into pieces, one for each process "
                "(pipeline or tensor parallelism), cannot be kept.",
            )

    def refuse_other_weights(self, place: str, step: int, parts: Mapping[str, object], *, sums_gradients: bool) -> None:
        """Refuse processes whose weights have become others, behind a step, at a "step", the end of an "epoch", or when
        the loop is "left". `sums_gradients`: colabkeep does, so it was nobody's wrapper that was forgotten.

        Raises:
            UsageError: in all of them.
        """
        here = _short(self._ranks.sums(parts))
        alike = not sum(self._at(place, step, [here, -here]))
        if not alike and (self._alike or sums_gradients):
            raise UsageError(
                problem=f"The {self.size} processes of this training no longer train alike: their weights, or the "
                "settings of their optimizers, have become different. Something changed the training in one process "
                "only, and a checkpoint keeps what rank 0 has. Nothing was saved of this.",
                remedy="Functions in callbacks=[…] are called in rank 0 only, so they must not change the training "
                "(learning rate, frozen layers, weights). Leave such changes to scheduler=… or step_fn, to a loop of "
                "your own that makes them in each process, or train in one process. Then run the same cell again: it "
                "resumes from the last checkpoint.",
            )
        if not alike:
            raise UsageError(
                problem=f"The {self.size} processes of this training hold different weights, and a checkpoint keeps "
                "those of rank 0: what the others trained would be lost. This checkpoint was not written.",
                remedy="If each process should train the whole model, wrap it before you make the optimizer: "
                "model = torch.nn.parallel.DistributedDataParallel(model). A model that is cut into pieces, one for "
                "each process (pipeline or tensor parallelism), cannot be kept.",
            )
        self._alike = True

    def _all_told(self, told: bytes) -> bool:
        """Did all of them tell the same?"""
        here = _short(told)
        return not sum(self._ranks.highest([here, -here]))

    def _at(self, place: str, step: int, numbers: Sequence[int]) -> list[int]:
        """Each number as the highest of all, where all processes talk at this place of their loop, behind this step.

        Raises:
            UsageError: they do not; in all of them.
        """
        words = list(_PLACES)
        here = words.index(place)
        told = self._ranks.highest([here, -here, step, -step, *numbers])
        if told[0] + told[1] or told[2] + told[3]:
            place_of = self._ranks.highest([here if rank == self.rank else 0 for rank in range(self.size)])
            step_of = self._ranks.highest([step if rank == self.rank else 0 for rank in range(self.size)])
            raise _apart([_PLACES[words[at]].format(n, step_of[n]) for n, at in enumerate(place_of)])
        return told[4:]

    def together(self, opening: Callable[[], _T]) -> _T:
        """What `opening` gives, if it ended well in all processes.

        Raises:
            NotBegun: it failed in another one. Its own error is raised as it is.
        """
        try:
            opened = opening()
        except BaseException as error:
            self.fail(error)
            raise
        (failed,) = self._ranks.highest([0])
        if failed:
            raise NotBegun(
                problem=f"This run is trained by {self.size} processes, and rank {failed - 1} could not begin. Nothing "
                "was trained.",
                remedy="Its own error is in what it printed.",
            )
        return opened

    def fail(self, error: BaseException) -> None:
        """This process cannot begin, and the others are told, who are beginning or about to."""
        with suppress(RuntimeError):  # they are gone already
            if self.leads and not self._handed:
                self._send({"kind": _FAILED, "why": _said(error)}, ())
            self._ranks.highest([1 + self.rank])

    def hand_out(self, loaded: Loaded | None) -> None:
        """Rank 0 gives the others what it loaded."""
        self._handed = True
        if loaded is None:
            self._send({"kind": _EMPTY}, ())
            return
        parts, pieces = _packed(loaded.parts)
        manifest = {"id": loaded.manifest.id, "text": loaded.manifest.to_bytes().decode()}
        self._send({"kind": _FULL, "manifest": manifest, "parts": parts}, pieces)

    def take(self) -> Loaded | None:
        """The others get it.

        Raises:
            NotBegun: rank 0 could not begin.
        """
        data = self._ranks.from_first(None)
        size = int.from_bytes(data[:8], "little")
        head = json.loads(bytes(data[8 : 8 + size]))
        if head["kind"] == _FAILED:
            raise NotBegun(
                problem=f"Rank 0 could not begin this run: {head['why']}",
                remedy="Nothing was trained. See the whole error in what rank 0 printed.",
            )
        if head["kind"] == _EMPTY:
            return None
        manifest = Manifest.from_bytes(head["manifest"]["text"].encode(), id=head["manifest"]["id"])
        return Loaded(manifest=manifest, parts=_unpacked(head["parts"], memoryview(data)[8 + size :]))

    def decide(self, step: int, *, saves: bool, signal: int, ends: int, talks_at: int) -> Decision:
        """What all do, of what each wants; rank 0 alone wants to save, and says at which step they talk again. Where
        the samples at a time may become less, that is the next one: a run that goes on is to round as this one does.

        Raises:
            UsageError: one of them is elsewhere; in all of them.
        """
        mine = _ALL if self.at_a_time is None else self.at_a_time.now or _ALL
        later = talks_at if self.leads and self.at_a_time is None else 0
        told = self._at("step", step, [int(saves), signal, ends, -mine, later])
        if self.at_a_time is not None and -told[3] < mine:
            self.at_a_time.take(-told[3])
        self.talks_at = told[4]
        return Decision(bool(told[0]), told[1], told[2])

    def any(self, step: int, wish: bool) -> bool:
        """Does one of them wish it? Raises as `decide`."""
        return bool(self._at("step", step, [int(wish)])[0])

    def others(self, framework: Framework, parts: Mapping[str, object]) -> list[str]:
        """The names of those parts that are not in all processes as in rank 0. All get them."""
        told = {name: hashlib.sha256(to_bytes(framework, {name: part})).hexdigest() for name, part in parts.items()}
        theirs = self._ranks.to_first(json.dumps(told).encode())
        if not self.leads:
            names: list[str] = json.loads(bytes(self._ranks.from_first(None)))
            return [name for name in names if name in parts]
        found = [name for name in told if any(json.loads(each).get(name) != told[name] for each in theirs[1:])]
        self._ranks.from_first([memoryview(json.dumps(found).encode())])
        return found

    def buffers(self, parts: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
        """As `Ranks.buffers`."""
        return self._ranks.buffers(parts)

    def streams(self, framework: Framework, parts: Mapping[str, object]) -> Tree:
        """For a checkpoint: these parts of all the others, what each came to by itself. Only rank 0 gets them."""
        told = self._ranks.to_first(b"" if self.leads else to_bytes(framework, parts))
        states = [from_bytes(each) for each in told[1:]]
        return {
            "processes": self.size,
            "streams": [{name: tree["state"] for name, tree in each.items()} for each in states],
        }

    def own(self, framework: Framework, stored: Mapping[str, Tree], seed: int, step: int) -> Mapping[str, Tree]:
        """What of a checkpoint is for this process: with the random streams that it had then; where there were not as
        many processes, with new ones."""
        if self.leads or not stored:
            return stored
        ranks: Any = stored.get("ranks")
        if ranks is not None and ranks["processes"] == self.size:
            return {**stored, **ranks["streams"][self.rank - 1]}
        streams = framework.rng()
        before = streams.state_dict()
        self.begin(seed, step)
        snapshot = framework.capture({"rng": streams}).finish()
        try:
            tree = _copied(snapshot.parts)["rng"]
        finally:
            snapshot.release()
        streams.load_state_dict(before)
        return {**stored, "rng": tree["state"], "rng_at_epoch": tree["state"]}

    def begin(self, seed: int, step: int) -> None:
        """Begin the random streams of this process: those of rank 0 are the user's own."""
        if not self.leads:
            self._ranks.seed(derive(seed, "rank", self.rank, step))

    def _send(self, head: Mapping[str, Any], pieces: Sequence[memoryview]) -> None:
        self._ranks.from_first([memoryview(_head(head)), *pieces])


def _short(told: bytes) -> int:
    return int.from_bytes(hashlib.sha256(told).digest()[:7], "big")


def _apart(places: Sequence[str]) -> UsageError:
    return UsageError(
        problem=f"The {len(places)} processes of this training are no longer at the same place: {', '.join(places)}. "
        "Nothing was saved of this.",
        remedy="Each process has to take the same number of steps and epochs, and to leave a loop at the same place. "
        "If a number decides this (early stopping, a break, a batch that is skipped), make it the same in all "
        "processes: sum it with torch.distributed.all_reduce, or send the number of rank 0 with "
        "torch.distributed.broadcast. Then run this again: it resumes from the last checkpoint.",
    )


def _said(error: BaseException) -> str:
    text = error.problem if isinstance(error, ColabKeepError) else f"{type(error).__name__}: {error}"
    return text[:2000]


def _head(head: Mapping[str, Any]) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text


def _packed(parts: Mapping[str, Tree]) -> tuple[Any, list[memoryview]]:
    """Trees as JSON, and the bytes of their tensors."""
    encoded = encode_parts(parts)
    pieces = [chunk for pack in encoded.packs for chunk in pack.chunks()]
    return {"trees": encoded.parts, "packs": [pack.size for pack in encoded.packs]}, pieces


def _unpacked(nodes: Any, data: memoryview) -> dict[str, Tree]:
    packs = list(_packs(nodes["packs"], data))
    return {name: decode_part(node, packs) for name, node in nodes["trees"].items()}


def _packs(sizes: Sequence[int], data: memoryview) -> Iterator[Mapping[str, Any]]:
    at = 0
    for size in sizes:
        yield unpack(data[at : at + size])
        at += size


def to_bytes(framework: Framework, parts: Mapping[str, object]) -> bytes:
    """The state of these parts, as a checkpoint would hold it, for another process of this machine."""
    snapshot = framework.capture(parts).finish()
    try:
        nodes, pieces = _packed(snapshot.parts)
        return b"".join([_head({"parts": nodes}), *pieces])
    finally:
        snapshot.release()


def from_bytes(data: bytes) -> dict[str, Tree]:
    """The same there, in memory of its own."""
    size = int.from_bytes(data[:8], "little")
    return _unpacked(json.loads(data[8 : 8 + size])["parts"], memoryview(bytearray(data))[8 + size :])


def _copied(parts: Mapping[str, Tree]) -> dict[str, Tree]:
    """The same trees, in memory of their own."""
    nodes, pieces = _packed(parts)
    return _unpacked(nodes, memoryview(bytearray(b"".join(pieces))))
