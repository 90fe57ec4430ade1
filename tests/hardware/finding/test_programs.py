"""Asking a program is bounded in time, in bytes and in what is left behind."""

from __future__ import annotations

import resource
import sys

import pytest

from colabkeep.hardware.programs import ProgramAnswer, ask, locate
from tests.fakes.devices import fake_nvidia_smi, machine

PATIENCE = 30.0


def say(program, timeout=PATIENCE, **environ):
    return ask([sys.executable, "-ISc", program], environ, timeout=timeout)


def test_what_is_said_comes_with_the_exit_code():
    """Only what is printed: complaints are not mixed in, and nothing is waited for on the input."""
    program = "import sys; print(sys.stdin.read() + 'said'); sys.stderr.write('complained'); sys.exit(3)"
    assert say(program) == ProgramAnswer("said\n", 3)


@pytest.mark.parametrize(("text", "whole"), [("a\\nb\\n", True), ("a\\nb", False), ("", False)])
def test_an_answer_knows_whether_it_was_cut(text, whole):
    """A last line without its end is one that was not finished."""
    assert say(f"import os; os.write(1, b'{text}')").whole is whole


@pytest.mark.parametrize(("size", "kept"), [(65535, True), (65536, False), (10_000_000, False)])
def test_no_program_fills_the_memory(size, kept):
    """64 KiB are more than any machine's cards need; what goes on after that is not an answer."""
    answer = say(f"print('x' * {size})")
    assert (answer.whole, answer.code == 0) == (kept, kept)


def test_a_program_that_does_not_start_is_no_error(tmp_path):
    """Missing, not executable, or with a variable that no process can have."""
    assert ask([str(tmp_path / "missing")], {}, timeout=PATIENCE) is None
    assert ask([str(tmp_path)], {}, timeout=PATIENCE) is None
    assert say("print()", A="\x00") is None


def test_no_time_is_no_answer():
    """A deadline that has passed already is kept too."""
    assert say("print('late')", timeout=0.0) == ProgramAnswer("", None)


def test_descriptors_beyond_a_thousand_do_not_matter(tmp_path):
    """A notebook that holds many files open still gets its answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200 if hard == resource.RLIM_INFINITY else min(hard, 1200)
    if wanted < 1200:
        pytest.skip("this machine does not allow that many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    held = [open("/dev/null") for _ in range(1100)]  # noqa: SIM115, PTH123
    try:
        assert say("print('said')") == ProgramAnswer("said\n", 0)
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_machine_of_a_test_stays_its_own(tmp_path):
    """A program is looked for below the root of the environment, wherever the real one lies."""
    assert locate(machine(tmp_path), "sh") is None
    path = fake_nvidia_smi(tmp_path / "usr/bin", ["Tesla T4"])
    assert locate(machine(tmp_path), "nvidia-smi") == str(path)
    path.chmod(0o644)
    (tmp_path / "bin/nvidia-smi").mkdir(parents=True)
    assert locate(machine(tmp_path, PATH="/usr/bin:/bin"), "nvidia-smi") is None
