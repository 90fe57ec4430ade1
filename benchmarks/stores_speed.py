"""How fast an object goes to Drive and comes back, against a bare loop of requests that does the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import requests
from google.auth.transport.requests import Request
from measuring import Figure, Setting, figure
from stores_service import PIECE, Source, address, opened, service

from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.transfer import CHUNK_BYTES

GOAL = 1 / 0.9  # of the bare loop's time


def run(setting: Setting) -> list[Figure]:
    """At two sizes. The second asks whether anything grows faster than the size."""
    found: list[Figure] = []
    for megabytes, rounds in ((1, 2),) if setting.quick else ((100, 16), (500, 4)):
        found += _at(megabytes, rounds, setting)
    return found


def _at(megabytes: int, rounds: int, setting: Setting) -> list[Figure]:
    source = Source(megabytes * 10**6)
    up, down, bare_up, bare_down = [], [], [], []
    with service(setting.folder / f"speed-{megabytes}") as drive:
        bare, store = _Bare(drive), opened(address(drive))
        for number in range(rounds + 1):
            names = [f"run/blobs/{number}-{each}" for each in range(2)]
            # One, other, other, one: what slows the machine down while they run, or up, meets both.
            first, ids = _timed(bare.put, source)
            ours = sum(_timed(store.put, name, source)[0] for name in names)
            last, more = _timed(bare.put, source)
            read = _timed(bare.get, ids)[0]
            ours_read = sum(_timed(_read, store, name)[0] for name in names)
            read += _timed(bare.get, more)[0]
            if number:  # in the first one the folders are made
                bare_up.append((first + last) / 2)
                bare_down.append(read / 2)
                up.append(ours / (first + last))
                down.append(ours_read / read)
            for name in names:
                store.delete(name)
            bare.delete(ids, more)
        store.close()
        bare.close()
    label = f"{megabytes} MB"
    return [
        figure(f"{label}: a bare loop of requests, to Drive", "s", bare_up),
        figure(f"{label}: DriveStore.put", "times that", up, goal=GOAL),
        figure(f"{label}: a bare loop of requests, from Drive", "s", bare_down),
        figure(f"{label}: DriveStore.get", "times that", down, goal=GOAL),
    ]


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = call(*arguments)
    return time.perf_counter() - start, answer


def _read(store: DriveStore, name: str) -> None:
    buffer = bytearray(PIECE)
    with store.get(name) as reader:
        while reader.readinto(buffer):  # type: ignore[attr-defined]
            pass


class _Bare:
    """The same protocol by hand, with nothing around it: no retries, no check, no journal."""

    def __init__(self, drive: Any) -> None:
        credentials = drive.credentials()
        credentials.refresh(Request())
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {credentials.token}"
        self._files = f"{drive.url}/drive/v3/files"
        self._uploads = f"{drive.url}/upload/drive/v3/files"

    def put(self, source: Source) -> str:
        begun = self._session.post(
            self._uploads,
            params={"uploadType": "resumable"},
            json={"name": "bare"},
            headers={"X-Upload-Content-Length": str(source.size)},
        )
        pieces, at = source.chunks(), 0
        while at < source.size:
            data = b"".join(islice(pieces, CHUNK_BYTES // PIECE))
            answer = self._session.put(
                begun.headers["Location"],
                data=data,
                headers={"Content-Range": f"bytes {at}-{at + len(data) - 1}/{source.size}"},
            )
            answer.raise_for_status()
            at += len(data)
        return str(answer.json()["id"])

    def get(self, id: str) -> None:
        with self._session.get(f"{self._files}/{id}", params={"alt": "media"}, stream=True) as answer:
            for _ in answer.iter_content(PIECE):
                pass

    def delete(self, *ids: str) -> None:
        for id in ids:
            self._session.delete(f"{self._files}/{id}").raise_for_status()

    def close(self) -> None:
        self._session.close()
