"""The fakes answer as the real ones do, for a wrong fake makes every test that uses it worthless."""

from __future__ import annotations

import subprocess

import pytest

from tests.fakes.devices import fake_nvidia_smi

QUERY = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")


def run(path, *arguments, **environ):
    ran = subprocess.run([path, *arguments], check=False, capture_output=True, env=environ, timeout=60)
    return ran.returncode, ran.stdout


def test_the_program_answers_the_fields_it_is_asked_for(tmp_path):
    """In their order, one line for each card; with units unless told otherwise."""
    path = fake_nvidia_smi(tmp_path, ["Tesla T4", ("Mine", 100, (9, 1))])
    assert run(path, *QUERY) == (0, b"Tesla T4, 15360, 7.5\nMine, 100, 9.1\n")
    assert run(path, "--query-gpu=memory.used,name", "--format=csv,noheader") == (0, b"0 MiB, Tesla T4\n0 MiB, Mine\n")


@pytest.mark.parametrize(
    ("does", "code", "text"),
    [
        ("no devices", 6, b"No devices were found\n"),
        ("no driver", 9, b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("no library", 12, b"NVIDIA-SMI couldn't find libnvidia-ml.so"),
        ("mismatch", 18, b"Failed to initialize NVML: Driver/library version mismatch\n"),
        ("empty", 0, b""),
        ("garbage", 0, b"\x80\xff\x00"),
        ("truncated", 0, b"Tesla T4, 15360, "),
        ("always localised", 0, b"Tesla T4, 15.360, 7,5\n"),
        ("lost", 0, b"Tesla T4, 15360, 7.5\nUnable to determine the device handle for GPU1"),
        ("fails", 255, b"Tesla T4, 15360, 7.5\n"),
    ],
)
def test_the_program_misbehaves_as_told(tmp_path, does, code, text):
    """Each misbehaviour is the one that its word says."""
    answer, said = run(fake_nvidia_smi(tmp_path, ["Tesla T4"], does=does), *QUERY)
    assert (answer, said[: len(text)]) == (code, text)
