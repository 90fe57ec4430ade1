"""The fakes answer as the real ones do, for a wrong fake makes every test that uses it worthless."""

from __future__ import annotations

import inspect
import subprocess
from importlib import util

import pytest

from colabkeep.hardware.base import Accelerator
from colabkeep.testing.hardware import FinderContract, machine
from tests.fakes.devices import FakeCard, fake_card, fake_nvidia_smi, fake_nvml

QUERY = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")


def run(path, *arguments, **environ):
    ran = subprocess.run([path, *arguments], check=False, capture_output=True, env=environ, timeout=60)
    return ran.returncode, ran.stdout


def test_the_program_answers_the_fields_it_is_asked_for(tmp_path):
    """In their order, one line for each card; with units unless told otherwise."""
    path = fake_nvidia_smi(tmp_path, ["Tesla T4", ("Mine", 100, (9, 1))])
    assert run(path, *QUERY) == (0, b"Tesla T4, 15360, 7.5\nMine, 100, 9.1\n")
    assert run(path, "--query-gpu=memory.used,name", "--format=csv,noheader") == (0, b"0 MiB, Tesla T4\n0 MiB, Mine\n")


def test_the_program_refuses_a_field_as_the_real_one_does(tmp_path):
    """By name, with the exit code of its manual; an old driver does not know what is newer than it."""
    refusal = (2, b'Field "compute_cap" is not a valid field to query.\n\n')
    assert run(fake_nvidia_smi(tmp_path, ["Tesla K80"], does="old"), *QUERY) == refusal
    code, said = run(fake_nvidia_smi(tmp_path, ["Tesla T4"]), "--query-gpu=colour", "--format=csv")
    assert (code, b'"colour"' in said) == (2, True)


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


def test_the_program_speaks_the_language_of_its_caller(tmp_path):
    """ "localised" writes numbers in the user's way unless it is asked for plain ones."""
    path = fake_nvidia_smi(tmp_path, ["Tesla T4"], does="localised")
    assert run(path, *QUERY, LC_ALL="de_DE.UTF-8") == (0, b"Tesla T4, 15.360, 7,5\n")
    assert run(path, *QUERY, LC_ALL="C", LANG="de_DE.UTF-8") == (0, b"Tesla T4, 15360, 7.5\n")


def test_slices_are_listed_below_their_card(tmp_path):
    """`-L` is the only way in which the program tells them."""
    path = fake_nvidia_smi(tmp_path, [FakeCard(name="A", capability=(8, 0), slices=(("1g.5gb", 4864),))])
    _, said = run(path, "-L")
    first, second = said.decode().splitlines()
    assert first.startswith("GPU 0: A (UUID: GPU-")
    assert second.startswith("  MIG 1g.5gb          Device  0: (UUID: MIG-")


def test_a_card_that_nobody_knows_is_told():
    """A misspelt name in a test is an error, not a machine without cards."""
    with pytest.raises(LookupError, match="Tesla T5"):
        fake_card("Tesla T5")
    with pytest.raises(LookupError, match="nvmlDeviceGetColour"):
        fake_nvml(fails="nvmlDeviceGetColour")


@pytest.mark.skipif(util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed")
def test_the_fake_library_has_the_real_names():
    """Every function and error of the fake exists in the real package, and takes the same arguments."""
    import pynvml

    fake = fake_nvml(["Tesla T4"])
    for name, part in vars(fake).items():
        if name.startswith("nvmlDevice"):
            real = inspect.signature(getattr(pynvml, name)).parameters
            assert len(inspect.signature(part.args[1]).parameters) == len(real), name
        elif name.startswith(("nvml", "NVML_")):
            assert hasattr(pynvml, name), name
        elif name.startswith("NVMLError"):
            assert issubclass(getattr(pynvml, name), pynvml.NVMLError), name
    assert pynvml.nvmlMemory_v2 == fake.nvmlMemory_v2


class Wrong:
    """Breaks each obligation once."""

    name = "wrong"

    def __init__(self, fault):
        self.fault = fault

    def find(self, environment, *, timeout):
        if self.fault == "raises":
            return list((environment.root / "dev").iterdir())
        if self.fault == "imports":
            with pytest.raises(ImportError):
                import torch_npu  # noqa: F401
        if self.fault == "connects":
            import socket

            socket.socket()
        megabytes = self.fault == "megabytes"
        name = "" if self.fault == "nameless" else "Card"
        return [Accelerator(kind="cuda", name=name, memory_bytes=15360 if megabytes else 15360 << 20, found_by="wrong")]


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("raises", "test_a_machine_without_anything_has_nothing"),
        ("always there", "test_a_machine_without_anything_has_nothing"),
        ("megabytes", "test_what_is_there_is_found_and_described"),
        ("nameless", "test_what_is_there_is_found_and_described"),
        ("imports", "test_no_framework_is_imported"),
        ("connects", "test_no_network_is_touched"),
    ],
)
def test_the_contract_sees_a_finder_that_breaks_it(tmp_path, monkeypatch, fault, promise):
    """A contract that cannot fail proves nothing."""

    class Contract(FinderContract):
        def make_finder(self):
            return Wrong(fault)

        def make_machine(self, root, patch):
            return machine(root)

    arguments = [tmp_path] if promise.endswith("nothing") else [tmp_path, monkeypatch]
    with pytest.raises((AssertionError, OSError)):
        getattr(Contract(), promise)(*arguments)
