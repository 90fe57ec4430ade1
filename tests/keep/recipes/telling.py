"""What a recipe tells of itself: where it is, and what came out. With `--hold N` it stays at N until it is killed."""

import hashlib
import sys
import time

import numpy as np


def at(number):
    """The program begins with its step, batch or round `number` now."""
    print(f"\nat {number}", flush=True)  # whatever a progress bar has left on the line
    if "--hold" in sys.argv and number == int(sys.argv[sys.argv.index("--hold") + 1]):
        print("held", flush=True)
        time.sleep(3600)


def done(arrays):
    """The result: every bit of it."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    print(f"\ndone {digest.hexdigest()}", flush=True)
