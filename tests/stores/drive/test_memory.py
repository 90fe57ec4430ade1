"""However large a checkpoint is, sending and reading it takes one chunk of memory."""

from __future__ import annotations

import json
import subprocess
import sys

CHILD = """
import hashlib, json, sys
from pathlib import Path
from colabkeep.stores.base import BytesSource
from colabkeep.stores.drive import DriveStore
from colabkeep.stores.drive.files import read_place
from colabkeep.stores.drive.transfer import CHUNK_BYTES
from colabkeep.stores.google.account import Account, SignedIn
from colabkeep.stores.google.account import read_secret

url, secret, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
PIECE = 2**20


class Zeros:
    \"\"\"As many zeros, from one piece of memory.\"\"\"

    def __init__(self):
        self.size = size
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        self.sha256 = digest.hexdigest()

    def chunks(self):
        piece = memoryview(bytes(PIECE))
        for start in range(0, size, PIECE):
            yield piece[: min(PIECE, size - start)]


def peak():
    # Of this program only: what getrusage says goes back to the process that started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


source = Zeros()
store = DriveStore(read_place(url), Account(lambda: SignedIn(credentials=read_secret(secret).credentials())))
store.put("run/warm-up", BytesSource(bytes(PIECE)))
before = peak()
rung = store.put("run/blobs/large", source).rung
read, buffer = 0, bytearray(PIECE)
with store.get("run/blobs/large") as reader:
    while count := reader.readinto(buffer):
        read += count
store.close()
print(json.dumps({"grown": peak() - before, "chunk": CHUNK_BYTES, "rung": rung, "read": read}))
"""


def test_memory_stays_flat(drive):
    """Less than 64 MiB above the chunk, for an object larger than any pack; each is sent and read by itself."""
    size = 300 * 2**20
    secret = json.dumps(drive.authorized_user())
    words = [sys.executable, "-c", CHILD, f"drive://large?service={drive.url}", secret, str(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["rung"], said["read"]) == ("confirmed", size)
    assert said["grown"] < said["chunk"] + 64 * 2**20
    print(f"grown by {said['grown'] / 2**20:.1f} MiB")
