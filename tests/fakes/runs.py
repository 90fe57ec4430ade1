"""A run with many checkpoints, made without training, and what a session asks of its store at the beginning."""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from colabkeep.checkpoint.codec import encode_parts
from colabkeep.checkpoint.compaction import Folding
from colabkeep.checkpoint.journal import Journal
from colabkeep.checkpoint.replicate import take_up
from colabkeep.checkpoint.repository import Repository, take_lease
from colabkeep.checkpoint.restore import load_newest
from colabkeep.checkpoint.retention import RetentionPolicy
from colabkeep.checkpoint.writer import Committer, Identity
from colabkeep.core.events import Event
from colabkeep.core.manifest import Manifest, Progress
from colabkeep.core.state import HostTensor
from colabkeep.core.system import SystemClock
from colabkeep.session.history import read_history
from colabkeep.stores.base import BytesSource, Store

__all__ = ["RUN", "Weights", "filled", "folding", "named", "old_sessions", "resumed", "told"]

RUN = "run"


class Weights:
    """An array to be kept."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def state_dict(self) -> dict[str, Any]:
        return {"array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.array = np.array(state["array"])


@dataclass
class Taken:
    """A capture that is complete."""

    parts: dict[str, Any]
    remark: str = ""

    def finish(self) -> Taken:
        return self

    def stored(self) -> None:
        """Nothing is let go of."""

    def release(self) -> None:
        """Nothing is held."""


def state(step: int) -> dict[str, Any]:
    """The state of a very small training."""
    return {"model": {"weight": HostTensor(dtype="F32", shape=(1,), data=memoryview(struct.pack("<f", step)))}}


def filled(store: Store, checkpoints: int) -> None:
    """So many checkpoints of one session, each with a blob and a part of the journal, as if all had been kept."""
    repository, session = Repository(store, RUN), "aaaaaaaa"
    repository.open_run(created=0.0, run_id="0" * 16)
    lease, journal = take_lease(repository, session, {}), Journal(repository, session)
    for step in range(1, checkpoints + 1):
        encoded = encode_parts(state(step))
        blobs = tuple(repository.blobs.put(pack, session, {})[0] for pack in encoded.packs)
        manifest = Manifest(
            id=f"{step:012d}-{session}",
            run=RUN,
            session=session,
            fence=lease.fence,
            progress=Progress(step=step, seconds=float(step)),
            blobs=blobs,
            parts=encoded.parts,
            framework="numpy",
            metrics={"val_loss": float(step % 7)},
        )
        journal.add({"at": float(step), "event": "StepDone", "progress": manifest.progress._asdict()})
        journal.write()
        store.put(f"{RUN}/checkpoints/{manifest.id}.json", BytesSource(manifest.to_bytes()))


def resumed(store: Store, retention: RetentionPolicy) -> Callable[[int], Manifest]:
    """What a session does at its beginning; the answer saves a state at a step, and tidies up."""
    repository, session = Repository(store, RUN), secrets.token_hex(4)
    take_up(repository)
    repository.open_run(created=0.0, run_id="1" * 16)
    loaded = load_newest(repository, lambda *_: None)
    assert loaded is not None
    lease = take_lease(repository, session, {})
    newest = loaded.manifest
    identity = Identity(framework="numpy", fingerprint={}, began=newest)
    events: deque[Event] = deque()
    committer = Committer(lease, Journal(repository, session), retention, SystemClock(), identity, events.append)
    committer.ledger.add(newest, {})

    def save(step: int) -> Manifest:
        return committer.commit(Taken(state(step)), Progress(step=step), "steps", {})

    return save


def named(number: int) -> str:
    """The session of that number."""
    return f"{number:08x}"


def old_sessions(store: Store, count: int, *, lines: int = 2, first: int = 1) -> Repository:
    """So many sessions that left a lease and `lines` parts of the journal each, and no checkpoint."""
    repository = Repository(store, RUN)
    repository.open_run(created=0.0, run_id="0" * 16)
    for number in range(first, first + count):
        take_lease(repository, named(number), {"host": f"host {number}", "pid": number, "started": 1000.0 * number})
        journal = Journal(repository, named(number))
        for line in range(lines):
            at = 1000.0 * number + line
            journal.add({"event": "Noted", "at": at, "text": f"{number}.{line}"})
            journal.add({"event": "StepDone", "at": at, "progress": {"step": number, "seconds": float(number)}})
            journal.write()
    return repository


def folding(store: Store, session: str | None = None) -> Folding:
    """What a new session folds with; time stands still."""
    lease = take_lease(Repository(store, RUN), session or secrets.token_hex(4), {"host": "now"})
    return Folding(lease)


def told(store: Store) -> dict[str, list[str]]:
    """Session → what it noted, as the report of the run tells."""
    run_history = read_history(store, RUN, most=10**6)
    assert run_history.troubles == ()
    return {
        session_history.session: [told.text for told in session_history.told]
        for session_history in run_history.sessions
        if session_history.told
    }
