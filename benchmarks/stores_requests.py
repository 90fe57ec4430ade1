"""What is asked of Drive, and what is sent there: after a cut, by a save of what it has, and for a run of many
checkpoints. Counts, which are the same on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from batches import Batches
from measuring import Figure, Setting, figure
from stores_service import Look, Source, address, opened, service

import colabkeep
from colabkeep.checkpoint.repository import Repository
from colabkeep.checkpoint.retention import KeepLast
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.records import list_record, show_record
from tests.fakes.drive import Drive, reset_request
from tests.fakes.runs import RUN, filled, resumed

CHUNK = 2**20  # bytes; small, so that there are many
SIZE = 10 * CHUNK + 12_345
NAME = f"{RUN}/blobs/cut"
LAYERS, FROZEN = 8, 6
PATIENCE = 60.0  # seconds


def run(setting: Setting) -> list[Figure]:
    """Each on a Drive that is empty."""
    found = []
    for number, measure in enumerate((_cut_here, _cut_and_killed, _frozen, _many)):
        with service(setting.folder / f"requests-{number}") as drive:
            found += measure(drive, setting)
    return found


def _cut_here(drive: Drive, _: Setting) -> list[Figure]:
    drive.faults(reset_request(CHUNK // 2).on("PUT", "/upload/", content_range=r"bytes \d", skip=4))
    store, look = opened(address(drive), clock=FakeClock(), chunk_bytes=CHUNK), Look(drive)
    store.put(NAME, Source(SIZE))
    store.close()
    return [_sent_again("a connection cut within an upload: sent again by the same process", look)]


def _cut_and_killed(drive: Drive, setting: Setting) -> list[Figure]:
    """The process loses its connection within a chunk and is killed before it can do anything about that."""
    where, journal = address(drive), setting.folder / "journal"
    drive.faults(reset_request(CHUNK // 2).on("PUT", "/upload/", content_range=r"bytes \d", skip=4, count=None))
    look = Look(drive)
    with subprocess.Popen([sys.executable, __file__, *where, str(journal)]) as child:
        end = time.monotonic() + PATIENCE
        while not any(seen.fault for seen in look.all):
            if child.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the upload was not cut")
            time.sleep(0.005)
        child.kill()
    drive.faults()
    _child(*where, str(journal))
    return [_sent_again("the same, and the process killed: sent again by the next one", look)]


def _sent_again(what: str, look: Look) -> Figure:
    return figure(what, "chunks", [(look.offered - SIZE) / CHUNK], goal=1.0)


def _frozen(drive: Drive, setting: Setting) -> list[Figure]:
    """A model of equal layers of which most are frozen; then a save of what Drive has already."""
    width = 64 if setting.quick else 512
    layers = [torch.nn.Linear(width, width) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    for layer in layers[:FROZEN]:
        layer.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    store, sent, objects = opened(address(drive)), [], []
    words = {"model": model, "optimizer": optimizer, "storage": store, "save_every": None, "progress": False}
    with colabkeep.Run(RUN, **words) as kept:  # type: ignore[arg-type]
        batches = Batches(kept)
        for number in range(3):
            if number < 2:
                _stir(layers[FROZEN:])
            kept.step()
            look = Look(drive)
            batches.save(wait=True)
            sent.append(look.offered)
            objects.append(look.objects)
            batches.committed()
    store.close()
    label = f"{FROZEN} of {LAYERS} layers frozen, SGD"
    return [
        figure(f"{label}: the second save", "of the first one's bytes", [sent[1] / sent[0]], goal=0.3),
        figure("nothing has changed since the last save: sent by the next one", "objects", [objects[2]], goal=2),
        figure("… which are its manifest and its part of the journal", "bytes", [sent[2]]),
    ]


def _stir(layers: list[torch.nn.Linear]) -> None:
    with torch.no_grad():
        for layer in layers:
            layer.weight.add_(1)


def _many(drive: Drive, setting: Setting) -> list[Figure]:
    """A run that kept all its checkpoints."""
    many, found = 20 if setting.quick else 1000, []
    store = opened(address(drive), clock=FakeClock())
    filled(store, many)
    store.close()

    def measured(what: str, call: Callable[[Any], Any]) -> Look:
        store, look = opened(address(drive), clock=FakeClock()), Look(drive)
        call(store)
        store.close()
        found.append(figure(f"{many} checkpoints: {what}", "listings", [look.listings], goal=3))
        found.append(figure("… in so many pages, of a thousand files each", "requests", [look.pages]))
        return look

    measured("opened by a session that goes on from the newest", lambda store: resumed(store, KeepLast(None)))
    measured("`colabkeep list`", list_record)
    measured("`colabkeep show`", lambda store: show_record(Repository(store, RUN), None))
    for what, retention in (("all are kept", KeepLast(None)), ("two are kept", KeepLast(2))):
        store = opened(address(drive), clock=FakeClock())
        save = resumed(store, retention)
        look, start = Look(drive), time.perf_counter()
        save(2 * many)
        seconds = time.perf_counter() - start
        store.close()
        title = f"{many} checkpoints, {what}: a session's first save"
        found += [
            figure(title, "manifests read", [look.reads]),
            figure("… and in all", "requests", [len(look.all)]),
            figure("… which took, on this machine", "s", [seconds]),
        ]
    return found


def _child(url: str, secret: str, journal: str) -> None:
    store = opened((url, secret), journal=DirectoryStore(Path(journal)), chunk_bytes=CHUNK)
    store.put(NAME, Source(SIZE))
    store.close()


if __name__ == "__main__":
    _child(*sys.argv[1:])
    os._exit(0)
