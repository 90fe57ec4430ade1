"""Whatever is done to them, in whatever order, places that fsspec reaches show what the store in memory shows."""

from __future__ import annotations

import random
from functools import partial

from tests.fakes.model import run_beside_memory
from tests.fakes.s3 import Wrong

TROUBLES = [
    lambda: Wrong("PUT", "", count=2, code="SlowDown"),
    lambda: Wrong("PUT", "", "lost", 500, "InternalError"),
    lambda: Wrong("HEAD", "", status=500, code="InternalError"),
    lambda: Wrong("GET", "list-type", code="ServiceUnavailable"),
    lambda: Wrong("GET", "run", "refuse", status=500, code="InternalError"),
    lambda: Wrong("DELETE", "", "lost", 500, "InternalError"),
]


def test_a_bucket_looks_as_memory_does(opened, s3, door):
    """Random calls, with requests that fail, or whose answer is lost, in between."""

    def trouble(seed):
        chosen = random.Random(seed)
        door.wrong = [wrong() for wrong in chosen.sample(TROUBLES, 2)]
        for wrong in door.wrong:
            wrong.skip = chosen.randrange(3)

    def quiet():
        door.wrong = []

    run_beside_memory(
        lambda number: partial(opened, f"s3://checkpoints/machine-{number}"), examples=5, trouble=trouble, quiet=quiet
    )


def test_a_folder_looks_as_memory_does(opened, tmp_path):
    """By fsspec."""
    run_beside_memory(lambda number: partial(opened, f"fsspec+file://{tmp_path}/{number}"), examples=30)


def test_fsspec_s_memory_looks_as_memory_does(opened, tmp_path):
    """A file system in which a move is a copy."""
    run_beside_memory(lambda number: partial(opened, f"fsspec+memory://machine-{tmp_path.name}-{number}"), examples=30)
