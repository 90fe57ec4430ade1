"""Hashing the next pack while the one before is being written: each keeps another core busy, or none but the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from colabkeep._engine.packs import Pack
from colabkeep.vocabulary.priority import FAR, give_way

__all__ = ["hashing_ahead"]


@contextmanager
def hashing_ahead(packs: Sequence[Pack]) -> Iterator[Sequence[Pack]]:
    """The same packs in the order in which to write them, those after the first being hashed meanwhile.

    A name is a digest, so nothing can be written before it is hashed: the smallest comes first. Whoever asks for a
    digest that is not being computed yet computes it; so nothing is lost where no thread is to be had.
    """
    order = sorted(packs, key=lambda pack: (not pack.hashed, pack.size))
    unknown = [pack for pack in order if not pack.hashed][1:]
    over = threading.Event()
    thread = threading.Thread(target=_hash, args=(unknown, over), name="colabkeep-hasher", daemon=True)
    started = False
    if unknown:
        with suppress(RuntimeError):  # no more threads, or the interpreter is about to end
            thread.start()
            started = True
    try:
        yield order
    finally:
        over.set()
        if started:
            thread.join()  # it reads memory that is reused after this


def _hash(packs: Sequence[Pack], over: threading.Event) -> None:
    give_way(FAR)
    for pack in packs:
        if over.is_set():
            return
        _ = pack.sha256  # the pack keeps it
