"""A reader that stops and resumes, as the sessions of one run would, and what the data tests need of each framework."""

from __future__ import annotations

import importlib
import random
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["OwnGenerator", "Read", "alive", "open_kit"]


def open_kit(framework: str) -> SimpleNamespace:
    """The words of "torch" or "paddle", which is imported here; `read` reads with its loaders."""
    words = importlib.import_module(f"tests.frameworks.data.of_{framework}")

    def read(
        loader: Any,
        *,
        seed: int = 5,
        epoch: int = 1,
        after: Read | None = None,
        stop: int | None = None,
        data: Any = None,
    ) -> Read:
        """Read an epoch, from where `after` stopped, up to `stop` batches of it; as one session of a run would."""
        adapter = data or words.Data()
        done = after or Read()
        opened = adapter.open(
            loader, seed=seed, epoch=epoch, batches=len(done.values), samples=done.samples, state=done.state
        )
        result = Read(list(done.values), done.samples, length=opened.length)
        with ExitStack() as ending:  # also of one that an error broke off: its workers must not outlive the test
            if data is None:
                ending.callback(adapter.close)
            ending.callback(opened.close)
            batches = ending.enter_context(closing(iter(opened)))
            while stop is None or len(result.values) < stop:
                batch = next(batches, None)
                if batch is None:
                    break
                result.values.append(batch.value)
                result.samples += batch.samples or 0
            result.state = opened.state()
            result.notes = [note for note in opened.notes if not note.startswith("Freed")]
        return result

    def fingerprint() -> tuple[Any, ...]:
        """Where the global random streams are."""
        legacy = np.random.get_state()
        return words.own_stream(), legacy[1].tobytes(), legacy[2:], random.getstate()

    def seed_all(seed: int) -> None:
        """A new process is seeded differently."""
        words.seed(seed), np.random.seed(seed), random.seed(seed)

    own = {"framework": framework, "Read": Read, "read": read, "fingerprint": fingerprint, "seed_all": seed_all}
    return SimpleNamespace(**{**vars(words), **own})


@dataclass
class Read:
    """What one session read."""

    values: list[Any] = field(default_factory=list)
    samples: int = 0
    state: Any = None
    notes: list[str] = field(default_factory=list)
    length: int | None = None

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([np.asarray(value).reshape(-1, value.shape[-1]) for value in self.values])

    @property
    def indices(self) -> list[int]:
        return [int(row[0]) for row in self.rows]


class OwnGenerator:
    """A user's sampler with a private, unseeded NumPy generator."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.rng = np.random.default_rng()

    def __iter__(self):
        yield from self.rng.permutation(self.length).tolist()

    def __len__(self) -> int:
        return self.length


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
