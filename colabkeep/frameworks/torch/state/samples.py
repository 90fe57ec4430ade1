"""A few bytes of each of many tensors, before and after: a cheap look for changes that no counter tells of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Samples", "sample_view"]

_WORDS, _WORD = 16, 8  # bytes are taken in 16 places of eight, spread over the tensor: a microsecond for each tensor


class Samples:
    """Samples of tensors, to be compared with those of their copies once these are made."""

    def __init__(self) -> None:
        self._taken: list[tuple[list[int], list[torch.Tensor], torch.Tensor]] = []

    def take(self, blocks: Sequence[tuple[int, Any]]) -> None:
        """Look at the tensors of `blocks`, each with its number. One too small for samples is left out."""
        groups: dict[torch.device, tuple[list[int], list[torch.Tensor], list[torch.Tensor]]] = {}
        for i, block in blocks:
            live, copy = block.taken
            if live is not None:
                numbers, lives, copies = groups.setdefault(live.device, ([], [], []))
                numbers.append(i)
                lives.append(live)
                copies.append(copy)
        self._taken = [(numbers, copies, _rows(lives)) for numbers, lives, copies in groups.values()]

    def differing(self) -> list[int]:
        """The numbers of the tensors whose copies have other bytes there. Waits for a device."""
        found = []
        for numbers, copies, before in self._taken:
            wrong = (_rows(copies) != before.cpu()).flatten(1).any(1)
            found += [numbers[i] for i in wrong.nonzero().flatten().tolist()]
        return found


def sample_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """A view of some bytes of a gapless tensor, None if it has too few."""
    places = tensor.nbytes // _WORD
    if places < _WORDS:
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return flat.as_strided((_WORDS, _WORD), (places // _WORDS * _WORD, 1), flat.storage_offset())


def _rows(views: list[torch.Tensor]) -> torch.Tensor:
    rows = torch.empty((len(views), _WORDS, _WORD), dtype=torch.uint8, device=views[0].device)
    with torch.no_grad():
        torch._foreach_copy_(list(rows.unbind(0)), views)
    return rows
