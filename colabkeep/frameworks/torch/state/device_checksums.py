"""Checksums over all bytes of a GPU's memory, taken there in stream order.

Each row of 2^18 words of 32 bits is multiplied by as many secret 64-bit numbers, and summed up modulo 2^64: multilinear
hashing (D. Lemire and O. Kaser, "Strongly universal string hashing is fast", 2014). Of two rows that differ, whatever
in, the sums are equal with a probability of 2^-33 at most; nothing else is concluded from them. A matrix of gigabytes
is read once, and as much goes through a buffer of 16 MiB.
"""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = ["Checksums"]

_WORDS = 2**18  # of a row
_ROWS = 8  # at a time

cuda: Any = torch.cuda


class Checksums:
    """Those of one device, comparable as long as this object lives."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
        self._numbers = torch.randint(-(2**63), 2**63 - 1, (_WORDS,), generator=generator, device=device)
        self._ready = cuda.Event()  # the stream that is current may be another one next time
        self._done(device)

    @staticmethod
    def size(nbytes: int) -> int:
        """Bytes of the checksum of so many bytes."""
        return 8 * (-(-(nbytes // 4) // _WORDS) + (nbytes % 4 > 0))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The checksum of a tensor that is one gapless block."""
        device = tensor.device
        cuda.current_stream(device).wait_event(self._ready)
        data = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        if data.storage_offset() % 4:
            data = data.clone()
        whole = data.numel() // 4
        words, odd = data[: 4 * whole].view(torch.int32), data[4 * whole :]
        found = torch.empty(self.size(data.numel()) // 8, dtype=torch.int64, device=device)
        products = torch.empty((_ROWS, _WORDS), dtype=torch.int64, device=device)
        full = whole // _WORDS
        rows = words[: full * _WORDS].view(full, _WORDS)
        for start in range(0, full, _ROWS):
            self._sum(products, rows[start : start + _ROWS], found[start : min(start + _ROWS, full)])
        for at, rest in ((full, words[full * _WORDS :]), (len(found) - 1, odd)):
            if rest.numel():
                self._sum(products, rest.view(1, -1), found[at : at + 1])
        self._done(device)
        return found

    def _sum(self, products: torch.Tensor, rows: torch.Tensor, found: torch.Tensor) -> None:
        products = products[: rows.shape[0], : rows.shape[1]]
        torch.mul(rows, self._numbers[: rows.shape[1]], out=products)
        torch.sum(products, dim=1, out=found)

    def _done(self, device: torch.device) -> None:
        self._ready.record(cuda.current_stream(device))
