"""Memory copied and compared by a thread, and by who cannot wait."""

from __future__ import annotations

import _thread
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

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


FORKED = """
import ctypes, os, sys, time, _thread
from colabkeep.frameworks.common import moves
really = _thread.start_new_thread
moves._thread.start_new_thread = lambda work, args: really(lambda: (time.sleep(0.5), work(*args)), ())
size = 9 * 2**20
blocks = [(ctypes.c_char * size)(), (ctypes.c_char * size)()]
under_way = moves.Moves(moves.Move(*map(ctypes.addressof, blocks), size).pieces())
under_way.start()
child = os.fork()
if not child:
    under_way.hurry()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows forks nothing")
def test_a_forked_process_ends_though_the_copying_thread_is_not_in_it() -> None:
    """A child that leaves by `sys.exit` does not wait for a thread of its parent's, which would be for ever."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "7\n"


def test_moves_that_are_stopped_write_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `stop` the memory is somebody else's, and the moves are known not to be whole."""
    gate, really = threading.Event(), _thread.start_new_thread

    class Late(Moves):
        """Its thread begins when somebody waits for it."""

        def wait(self) -> None:
            gate.set()
            super().wait()

    monkeypatch.setattr(
        "colabkeep.frameworks.common.moves._thread.start_new_thread",
        lambda work, arguments: really(lambda: (gate.wait(), work(*arguments)), ()),
    )
    blocks = Blocks()
    moves = Late(blocks.move().pieces())
    moves.start()
    moves.stop()
    assert blocks.target == bytes(SIZE)
    assert not moves.complete


@pytest.mark.parametrize("began", [True, False])
def test_an_interrupt_while_the_thread_is_started_leaves_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    """Whether or not the thread has begun by then: `stop` returns, and nothing is written after it."""
    really, threads = _thread.start_new_thread, []
    memmove, writing, calls = ctypes.memmove, threading.Event(), []

    def slow(*block: int) -> None:
        calls.append("begins")
        writing.set()
        time.sleep(0.05)
        memmove(*block)
        calls.append("ends")

    def interrupted(work: Callable[..., None], arguments: tuple[object, ...]) -> int:
        if began:
            really(work, arguments)
            writing.wait()
        threads.append(lambda: work(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr("colabkeep.frameworks.common.moves._thread.start_new_thread", interrupted)
    monkeypatch.setattr("colabkeep.frameworks.common.moves.ctypes.memmove", slow)
    blocks = Blocks()
    moves = Moves(blocks.move().pieces())
    with pytest.raises(KeyboardInterrupt):
        moves.start()
    moves.stop()
    assert calls.count("begins") == calls.count("ends") == began
    blocks.target[:] = bytes(SIZE)
    threads[0]()  # a thread that begins late, after all
    assert blocks.target == bytes(SIZE)
