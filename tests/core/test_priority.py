"""Work behind a training that lets the training have the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from colabkeep.core import system
from colabkeep.core.system import Breather

NICE = """
import os, threading
from colabkeep.core.system import FAR, give_way

def behind(steps, then=lambda: None):
    give_way(*steps)
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    then()

def thread(*arguments):
    one = threading.Thread(target=behind, args=arguments)
    one.start()
    one.join()

thread((), lambda: thread((FAR,)))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.parametrize("nice", [0, 10, 15])
def test_a_thread_that_gives_way_is_below_the_training_whatever_that_has(nice: int) -> None:
    """Under `nice -n 10` the training has less than other programs, and what works behind it has less still."""
    base = min(19, os.getpriority(os.PRIO_PROCESS, 0) + nice)
    command = ["nice", "-n", str(nice), sys.executable, "-c", NICE]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in out.split()] == [min(19, base + 5), min(19, base + 10), base]


def test_long_work_rests_every_so_often_and_short_work_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten milliseconds of Python are not one wait for the training, but many short ones; a rest is no work."""
    now, rests = [0.0], []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(system.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(system.time, "sleep", sleep)
    breather = Breather()
    for _ in range(1000):
        now[0] += 10e-6
        breather.breathe()
    assert 30 <= len(rests) <= 50
    assert all(0 < rest < 1e-3 for rest in rests)
    rests.clear()
    Breather().breathe()
    assert not rests
