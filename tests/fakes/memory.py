"""How much memory a store takes to send and read an object of 96 MiB, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["SIZE", "growth"]

SIZE = 96 * 2**20  # bytes, all of them zero

_PROGRAM = """
import hashlib, sys
from pathlib import Path
from colabkeep.stores.base import BytesSource
{opening}

class Zeros:
    size = 96 * 2**20

    def __init__(self):
        digest = hashlib.sha256()
        for piece in self.chunks():
            digest.update(piece)
        self.sha256 = digest.hexdigest()

    def chunks(self):
        piece = memoryview(bytes(2**20))
        for _ in range(96):
            yield piece

def peak():
    # Of this program only: what getrusage says goes back to the process that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) >> 10

store.put("run/warm.safetensors", BytesSource(bytes(2**20)))
before, source, read = peak(), Zeros(), 0
assert store.put("run/blobs/large.safetensors", source).level in ("sent", "confirmed")
with store.get("run/blobs/large.safetensors") as reader:
    while piece := reader.read(2**20):
        read += len(piece)
store.close()
assert read == source.size
print(peak() - before)
"""


def growth(opening: str, *arguments: str) -> int:
    """MiB. `opening`: the lines that make the `store`; the arguments are in `sys.argv` there."""
    program = _PROGRAM.format(opening=opening)
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
