"""The stores: one line each. `open_store` turns what a user wrote into a store."""

from __future__ import annotations

__all__: list[str] = []
