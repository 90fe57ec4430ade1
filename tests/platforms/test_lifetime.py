"""How long a session has lasted, and how much is left at most: told only where it can be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.platforms import find_platform
from colabkeep.platforms.lifetime import session_time
from colabkeep.testing.platforms import laptop
from tests.fakes.platforms.colab import fake_colab
from tests.fakes.platforms.services import write

HOUR = 3600.0
NOW = 1_790_000_000.0  # in 2026
DAYS = 100 * 24 * HOUR


def stat(started):
    """/proc/<pid>/stat of a process that started so many seconds after the boot, with a name made to confuse."""
    return f"1 (a) b (c) S 0 1 1 0 -1 4194560 99 0 0 0 1 2 3 4 20 0 1 0 {int(started * 100)} 1000 10 184467440737095\n"


def machine(root, *, uptime=None, first=None, own=None, **variables):
    """A machine: its uptime, and when process 1 and this one started after that."""
    here = laptop(root)
    if uptime is not None:
        write(root, "/proc/uptime", f"{uptime:.2f} 12.00\n")
    if first is not None:
        write(root, "/proc/1/stat", stat(first))
    if own is not None:
        write(root, "/proc/self/stat", stat(own))
    return replace(here, environ={"KAGGLE_KERNEL_RUN_TYPE": "Batch", **variables})


def told(here, now=NOW, **words):
    answer = session_time(find_platform(here), here, now, **words)
    return answer.used_seconds, answer.left_seconds, answer.confidence


@pytest.mark.parametrize(
    ("facts", "used", "confidence"),
    [
        # a virtual machine: all witnesses agree
        ({"uptime": 2 * HOUR, "first": 0, "own": HOUR}, 2 * HOUR, "medium"),
        # a container whose uptime is the host's: the age of its first process is right all the same
        ({"uptime": DAYS, "first": DAYS - 2 * HOUR, "own": DAYS - HOUR}, 2 * HOUR, "medium"),
        ({"uptime": 5 * HOUR, "first": 3 * HOUR, "own": 4 * HOUR}, 2 * HOUR, "medium"),
        # a container whose uptime is its own, while processes count from the host's boot
        ({"uptime": 2 * HOUR, "first": DAYS, "own": DAYS + HOUR}, 2 * HOUR, "low"),
        # first process and uptime are a host's: this process is younger, but sure
        ({"uptime": DAYS, "first": 0, "own": DAYS - HOUR}, HOUR, "low"),
        # files are missing
        ({"uptime": 2 * HOUR}, 2 * HOUR, "low"),
        # a host that has been up longer than a session lasts, not longer than some do: the container is younger
        ({"uptime": 13 * HOUR, "own": 13 * HOUR - 600}, 600.0, "low"),
        ({"uptime": 12 * HOUR, "own": 12 * HOUR - 600}, 600.0, "low"),
        ({"uptime": 20 * HOUR, "first": 0, "own": 18 * HOUR}, 2 * HOUR, "low"),
        ({"uptime": 13 * HOUR, "first": 11 * HOUR, "own": 0}, 2 * HOUR, "medium"),
        # nothing that can be believed
        ({}, None, "low"),
        ({"uptime": DAYS}, None, "low"),
        ({"first": 5.0, "own": 6.0}, None, "low"),
        # this process is older than the first one seems: the larger of the two
        ({"uptime": 2 * HOUR, "first": 1.5 * HOUR, "own": 0}, 2 * HOUR, "low"),
    ],
    ids=str,
)
def test_the_time_used_is_what_the_machine_can_be_believed(tmp_path, facts, used, confidence):
    """Ages above the service's limit, or less than nothing, belong to another machine or to a clock that was set."""
    here = machine(tmp_path, **facts)
    left = 12 * HOUR if used is None else 12 * HOUR - used
    assert told(here) == (used, pytest.approx(left), confidence)


def test_a_clock_that_jumps_changes_nothing_where_the_uptime_is_told(tmp_path):
    """A set clock, forwards or backwards by a year, moves neither figure."""
    here = machine(tmp_path, uptime=2 * HOUR, first=0, own=HOUR)
    year = 365 * 24 * HOUR
    assert told(here) == told(here, now=NOW - year) == told(here, now=NOW + year) == (2 * HOUR, 10 * HOUR, "medium")


@pytest.mark.parametrize("text", ["", "garbage", "nan 1", "inf 1", "-5.0 1", "1e999 1", "(x) S 1 2", "\x00" * 100])
def test_nonsense_in_the_files_is_no_time(tmp_path, text):
    """Empty, cut, negative, endless: the time used is not known, and the most that can be left is the limit."""
    here = machine(tmp_path)
    for file in ("/proc/uptime", "/proc/1/stat", "/proc/self/stat"):
        write(tmp_path, file, text)
    assert told(here) == (None, 12 * HOUR, "low")


def test_a_session_that_outlived_its_limit_stops_nobody(tmp_path):
    """Then the limit, or the time used, is wrong here: nothing is said to be left, and nothing to be over."""
    answer = session_time(find_platform(here := machine(tmp_path, uptime=20 * HOUR, first=0)), here, NOW)
    assert (answer.used_seconds, answer.left_seconds, answer.confidence) == (20 * HOUR, None, "low")
    assert "COLABKEEP_SESSION_LIMIT" in answer.source


def test_slurm_tells_when_its_job_ends(tmp_path):
    """A node that has been up for months, and a job of four hours that began one hour ago."""
    here = laptop(tmp_path)
    write(tmp_path, "/proc/uptime", f"{DAYS} 1.0\n")
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_START_TIME": f"{NOW - HOUR:.0f}",
        "SLURM_JOB_END_TIME": f"{NOW + 3 * HOUR:.0f}",
    }
    here = replace(here, environ={**here.environ, **job})
    answer = session_time(find_platform(here), here, NOW)
    assert (answer.used_seconds, answer.limit_seconds, answer.left_seconds) == (HOUR, 4 * HOUR, 3 * HOUR)
    assert (answer.confidence, "SLURM_JOB_END_TIME" in answer.source) == ("high", True)
    mine = session_time(find_platform(here), here, NOW, limit=2 * HOUR)
    assert mine.left_seconds == HOUR, "the user knows better"
    for name, value in (("SLURM_JOB_ID", ""), ("SLURM_JOB_END_TIME", "Unknown"), ("SLURM_JOB_END_TIME", "0")):
        odd = replace(here, environ={**here.environ, name: value})
        assert session_time(find_platform(odd), odd, NOW).left_seconds is None
    late = session_time(find_platform(here), here, NOW + 5 * HOUR)
    assert late.left_seconds is None, "it was given more time, and nobody told its programs"


def test_the_users_own_limit_goes_before_the_platforms(tmp_path):
    """The argument before the variable before the table; and when that is over, nothing is left."""
    here = machine(tmp_path, uptime=2 * HOUR, first=0, COLABKEEP_SESSION_LIMIT="24 h")
    assert told(here) == (2 * HOUR, 22 * HOUR, "medium")
    assert told(here, limit=9 * HOUR) == (2 * HOUR, 7 * HOUR, "medium")
    assert told(here, limit=HOUR) == (2 * HOUR, 0.0, "medium")
    assert "COLABKEEP_SESSION_LIMIT" in session_time(find_platform(here), here, NOW).source


def test_a_variable_that_is_no_time_is_told_and_ignored(tmp_path):
    """The check does not fail for it, and does not keep quiet either."""
    here = machine(tmp_path, uptime=2 * HOUR, first=0, COLABKEEP_SESSION_LIMIT="a day")
    answer = session_time(find_platform(here), here, NOW)
    assert answer.limit_seconds == 12 * HOUR
    assert "'a day'" in answer.source


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), True])
def test_a_limit_that_is_no_time_is_refused(tmp_path, limit):
    """An argument that cannot be meant is an error at once."""
    here = machine(tmp_path)
    with pytest.raises(UsageError, match="limit="):
        told(here, limit=limit)


def test_without_a_limit_nothing_is_left_to_tell(tmp_path):
    """A laptop: how long it has been on, as far as that means anything, and no end."""
    here = replace(machine(tmp_path, uptime=DAYS, first=0, own=DAYS - HOUR), environ={})
    assert told(here) == (HOUR, None, "low")
    assert session_time(find_platform(here), here, NOW).limit_seconds is None


def test_a_users_own_limit_makes_no_machine_unbelievable(tmp_path):
    """Whoever says "12 h" on a machine that is 20 hours old is over it: that is not put down to another machine."""
    here = machine(tmp_path, uptime=20 * HOUR, first=0, own=19 * HOUR)
    assert told(here, limit=12 * HOUR) == (20 * HOUR, 0.0, "medium")


def test_the_idle_limit_is_told_apart_from_the_other(tmp_path):
    """Colab's 90 minutes are less sure than its 12 hours; where nobody published a figure, none is told."""
    with fake_colab(tmp_path) as colab:
        answer = session_time(find_platform(colab.environment), colab.environment, NOW)
    assert (answer.idle_seconds, answer.idle_confidence) == (1.5 * HOUR, "medium")
    here = machine(tmp_path / "kaggle")
    assert session_time(find_platform(here), here, NOW).idle_seconds is None
