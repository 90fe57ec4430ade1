"""How much memory it takes to bring a large object to Drive and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from measuring import Figure, Setting, figure

MIB = 2**20
GOAL = 64.0  # MiB beside one chunk


def run(setting: Setting) -> list[Figure]:
    """In a process of its own, by a store alone and by the pair that a training has."""
    from stores_service import address, service

    size = 40 * 10**6 if setting.quick else 2 * 10**9
    found = []
    for what, title in (("alone", "DriveStore, there and back"), ("pair", "a pair, from this machine's disk to Drive")):
        with service(setting.folder / f"memory-{what}") as drive:
            words = [what, *address(drive), str(size), str(setting.folder / f"disk-{what}")]
            child = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
        grown = json.loads(child.stdout.splitlines()[-1])
        found.append(figure(f"{size / 10**6:.0f} MB: {title}", "MiB beside one chunk", [grown], goal=GOAL))
    return found


def _child(what: str, url: str, secret: str, size: int, disk: Path) -> float:
    """MiB that the memory in use grew by, at its peak, beside a chunk of an upload."""
    from stores_service import PIECE, Source, opened

    from colabkeep.stores.base import BytesSource
    from colabkeep.stores.drive.transfer import CHUNK_BYTES
    from colabkeep.stores.local import DirectoryStore
    from colabkeep.stores.tiered import TieredStore

    name, drive = "run/blobs/large", opened((url, secret))
    drive.put("run/small", BytesSource(b"so that all is imported"))
    if what == "alone":
        source = Source(size)
        before = _resident()
        drive.put(name, source)
    else:
        sparse = disk / name
        sparse.parent.mkdir(parents=True)
        with sparse.open("wb") as file:
            file.truncate(size)
        pair = TieredStore(DirectoryStore(disk), drive)
        before = _resident()
        for entry in pair.unsent("run"):
            pair.send(entry, None)
        pair.put("run/lease/one", BytesSource(b"what earlier sessions left is sent after this"))
        if not pair.flush(500):
            raise TimeoutError(pair.degraded)
        pair.close()
        drive = opened((url, secret))
    buffer = bytearray(PIECE)
    with drive.get(name) as reader:
        while count := reader.readinto(buffer):  # type: ignore[attr-defined]
            size -= count
    if size:
        raise EOFError(f"{size} bytes are missing")
    drive.close()
    return (_peak() - before - CHUNK_BYTES) / MIB


def _resident() -> int:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    return _field("VmRSS")


def _peak() -> int:
    return _field("VmHWM")


def _field(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))), flush=True)
    os._exit(0)
