"""What a place has stated about its objects: each is asked about once, and believed until it is gone."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from colabkeep.stores.base import Receipt

__all__ = ["Confirmed"]


class Confirmed:
    """Which objects are there with which SHA-256, and which are known not to be confirmed by asking."""

    def __init__(self) -> None:
        self._right: dict[str, str] = {}
        self._wrong: set[tuple[str, str]] = set()

    def learn(self, name: str, sha256: str) -> None:
        """The place stated that the object has this digest."""
        self._right[name] = sha256

    def forget(self, name: str) -> None:
        """It was deleted."""
        self._right.pop(name, None)
        self._wrong = {one for one in self._wrong if one[0] != name}

    def listed(self, prefix: str, names: Container[str]) -> None:
        """These are there below the prefix: what another session deleted is not called confirmed any more."""
        start = f"{prefix}/" if prefix else ""
        for name in {*self._right, *(name for name, _ in self._wrong)}:
            if name.startswith(start) and name not in names:
                self.forget(name)

    def answer(self, receipt: Receipt, ask: Callable[[Receipt], bool | None]) -> Receipt:
        """The receipt, "confirmed" if these very bytes are known to be there. `ask` finds out; None: not now."""
        name, sha256 = receipt.name, receipt.sha256
        if receipt.rung == "confirmed" or not sha256:
            return receipt
        if name not in self._right and (name, sha256) not in self._wrong:
            there = ask(receipt)
            if there:
                self.learn(name, sha256)
            elif there is False:
                self._wrong.add((name, sha256))
        return replace(receipt, rung="confirmed") if self._right.get(name) == sha256 else receipt
