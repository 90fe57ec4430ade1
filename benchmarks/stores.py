"""What keeping a run on a remote store costs, against the tests' Drive service on this machine."""

from __future__ import annotations

import stores_memory
import stores_requests
import stores_speed
from measuring import Figure, Setting


def run(setting: Setting) -> list[Figure]:
    """How fast, in how much memory, and in how many requests and bytes."""
    return [*stores_speed.run(setting), *stores_memory.run(setting), *stores_requests.run(setting)]
