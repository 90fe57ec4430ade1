"""The frameworks: one line each, recognised by what the user has imported already."""

from __future__ import annotations

__all__: list[str] = []
