"""What the fakes of several services share: a new disk in a user's world."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

__all__ = ["host_name", "new_root", "write"]


def new_root(world: Path) -> Path:
    """A disk for the next machine of this world, empty but for the mark of its boot."""
    world.mkdir(parents=True, exist_ok=True)
    root = world / f"machine-{len(list(world.glob('machine-*'))) + 1}"
    root.mkdir()
    write(root, "/proc/sys/kernel/random/boot_id", f"{uuid5(NAMESPACE_URL, str(root))}\n")
    return root.resolve()


def host_name(root: Path) -> str:
    """The name of the machine with this disk: twelve hexadecimal digits, as a container has, and no other has the
    same."""
    return sha256(str(root).encode()).hexdigest()[:12]


def write(root: Path, absolute: str, text: str) -> Path:
    """Put a file on a disk."""
    place = root / absolute.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place
