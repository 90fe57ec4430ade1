"""One thread does one job at a time, and a chore when it has none."""

from __future__ import annotations

import threading

import pytest

from colabkeep.checkpoint.writer import Writer

LONG = 30.0  # seconds; a limit for what happens at once, so that a broken test ends


class Chore:
    """Counts its calls; more is to be done `times` times."""

    def __init__(self, times=0):
        self.times = times
        self.calls = 0
        self.threads = set()
        self.done = threading.Event()

    def __call__(self):
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        if self.calls > self.times:
            self.done.set()
        return self.calls <= self.times


@pytest.fixture
def gate():
    """A job that waits until it is let go."""
    return threading.Event()


def test_a_job_runs_on_another_thread(gate):
    """Training goes on at once: the job is somebody else's."""
    ran = []
    writer = Writer(Chore())
    writer.submit(lambda: (gate.wait(LONG), ran.append(threading.current_thread().name)))
    assert writer.busy
    assert ran == []
    gate.set()
    assert writer.wait(LONG)
    assert not writer.busy
    assert ran == ["colabkeep-writer"]
    writer.close()


def test_one_job_is_in_flight_at_most(gate):
    """A second job is refused while the first runs, so that at most one copy of the state is held."""
    writer = Writer(Chore())
    writer.submit(lambda: gate.wait(LONG))
    with pytest.raises(RuntimeError, match="busy"):
        writer.submit(lambda: None)
    gate.set()
    writer.close()


def test_waiting_has_an_end(gate):
    """Who waits with a limit is told when the job is not done by then."""
    writer = Writer(Chore())
    writer.submit(lambda: gate.wait(LONG))
    assert writer.wait(0.0) is False
    gate.set()
    assert writer.wait(LONG) is True
    writer.close()


def test_a_job_that_hangs_is_not_waited_for(gate):
    """A disk that takes nothing any more does not hold the training, nor its end."""
    writer = Writer(Chore(), stall=0.05)
    writer.submit(lambda: gate.wait(LONG))
    assert writer.wait() is False
    assert writer.close() is False
    gate.set()
    writer._thread.join(LONG)
    assert writer.close() is True


def test_a_job_that_gets_on_is_waited_for_however_long_it_takes(gate):
    """A slow disk is no dead one: the last save of a session is worth the wait."""
    ran = []
    writer = Writer(Chore(), stall=2.0)

    def slow():
        for _ in range(30):
            gate.wait(0.1)
            writer.moved()
        ran.append(1)

    writer.submit(slow)
    assert writer.wait() is True
    assert ran == [1]
    writer.close()


def test_closing_finishes_the_job_in_flight(gate):
    """What was handed over is written before the session ends."""
    ran = []
    writer = Writer(Chore())
    writer.submit(lambda: (gate.wait(LONG), ran.append(1)))
    threading.Timer(0.05, gate.set).start()
    writer.close()
    assert ran == [1]
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(lambda: None)
    writer.close()


def test_a_writer_that_never_worked_has_no_thread():
    """A run that is only read starts nothing."""
    before = threading.active_count()
    writer = Writer(Chore())
    assert threading.active_count() == before
    assert writer.wait(0.0)
    writer.close()


def test_the_chore_is_done_while_there_is_more_of_it():
    """Between jobs the chore comes again and again, until it says that nothing is left."""
    chore = Chore(times=3)
    writer = Writer(chore, pause=0.001)
    writer.submit(lambda: None)
    assert chore.done.wait(LONG)
    writer.close()
    assert chore.calls == 4
    assert chore.threads == {"colabkeep-writer"}


def test_a_job_wakes_the_chore_again():
    """After each job there may be something to tidy up."""
    chore = Chore()
    writer = Writer(chore, pause=0.001)
    for _ in range(2):
        writer.submit(lambda: None)
        assert chore.done.wait(LONG)
        chore.done.clear()
    writer.close()
    assert chore.calls == 2


def test_nothing_runs_after_closing():
    """When close returns, no thread of the writer touches the store any more."""
    before = set(threading.enumerate())  # of other tests
    chore = Chore(times=10**9)
    writer = Writer(chore, pause=0.0)
    writer.submit(lambda: None)
    assert any(thread.name == "colabkeep-writer" for thread in set(threading.enumerate()) - before)
    writer.close()
    calls = chore.calls
    assert not set(threading.enumerate()) - before
    assert chore.calls == calls
