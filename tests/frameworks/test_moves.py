"""Memory copied and compared by a thread, and by who cannot wait."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from colabkeep.frameworks.common.moves import Move, Moves

SIZE = 9 * 2**20 + 5  # more than two pieces, and a little


class Blocks:
    def __init__(self) -> None:
        self.source, self.target = bytearray(os.urandom(SIZE)), bytearray(SIZE)
        self._kept = [(ctypes.c_char * SIZE).from_buffer(block) for block in (self.target, self.source)]
        self.addresses = [ctypes.addressof(each) for each in self._kept]

    def move(self, *, compare: bool = False) -> Move:
        return Move(*self.addresses, SIZE, compare)


@pytest.mark.parametrize("way", ["run", "wait", "hurry"])
def test_every_byte_is_moved(way: str) -> None:
    """Whoever does the work: the caller, the thread, or both."""
    one, two = Blocks(), Blocks()
    moves = Moves(one.move().pieces(), two.move().pieces())
    if way != "run":
        moves.start()
    getattr(moves, way)()
    assert one.target == one.source
    moves.wait()
    assert two.target == two.source
    assert moves.complete


def test_a_single_byte_that_differs_is_found() -> None:
    """A comparison is of all bytes, and names the block."""
    same, other = Blocks(), Blocks()
    same.target[:] = same.source
    other.target[:] = other.source
    other.target[-1] ^= 1
    moves = Moves(same.move(compare=True).pieces(), other.move(compare=True).pieces())
    moves.start()
    moves.wait()
    assert moves.different == {other.addresses[0]}


def test_without_a_thread_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gives no more threads gives a slower save."""

    def refused(*ignored: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("colabkeep.frameworks.common.moves._thread.start_new_thread", refused)
    blocks, called = Blocks(), []
    moves = Moves(blocks.move().pieces(), blocks.move(compare=True).pieces())
    moves.start(lambda: called.append(True))
    moves.wait()
    assert (blocks.target == blocks.source, moves.complete, called) == (True, True, [True])


@pytest.mark.skipif(sys.platform == "win32", reason="no memcmp is looked for there")
def test_what_cannot_be_compared_counts_as_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the C library's comparison, nothing is taken for unchanged."""
    monkeypatch.setattr("colabkeep.frameworks.common.moves._MEMCMP", None)
    blocks = Blocks()
    blocks.target[:] = blocks.source
    moves = Moves(blocks.move(compare=True).pieces())
    moves.run()
    assert moves.different == {blocks.addresses[0]}
