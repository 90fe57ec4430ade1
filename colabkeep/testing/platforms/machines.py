"""What the fakes of several services share: a new disk in a user's world."""

from __future__ import annotations

from pathlib import Path

__all__ = ["new_root", "write"]


def new_root(world: Path) -> Path:
    """An empty disk for the next machine of this world."""
    world.mkdir(parents=True, exist_ok=True)
    root = world / f"machine-{len(list(world.glob('machine-*'))) + 1}"
    root.mkdir()
    return root.resolve()


def write(root: Path, absolute: str, text: str) -> Path:
    """Put a file on a disk."""
    place = root / absolute.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place
