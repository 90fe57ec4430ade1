"""Each synchronisation of the product's way from a device to host memory, taken away or put in a wrong place.

What keeps a copy whole is one line each time, and tests that pass without it prove nothing. So each line here is taken
away in turn, and a schedule must notice. A text that is not found, or found twice, is a failure: the line moved, and
its mutant has to move with it. Whoever adds a stream, an event or a buffer that is used again adds its mutants.

Not here is `_ready` of the checksums: the numbers that it guards are the result of an operator, which is never late in
the simulation.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import colabkeep
from tests.environments import TESTS
from tests.simcuda.lives import forkserver

__all__ = ["CHECKS", "MUTANTS", "PACKAGE", "Mutant", "verdict"]

PACKAGE = Path(colabkeep.__file__).parent

CHECKS = ("simcuda/test_order.py", "simcuda/test_saving.py", "frameworks/torch/test_losses.py")
_PATIENCE = 240  # seconds
_ENDED = 40  # a child that ends otherwise did not come to its tests


class Mutant(NamedTuple):
    """In `file`, `old` becomes `new`. `seen_by` and `checks`: the schedule and the tests that are tried first."""

    name: str
    file: str
    old: str
    new: str
    seen_by: str
    checks: tuple[str, ...] = CHECKS[:1]


_COPY = "frameworks/torch/copies.py"
_LOSSES = "frameworks/torch/adapter.py"

MUTANTS = (
    Mutant(
        "the drain does not wait for the copy on the device",
        _COPY,
        "side.wait_event(self._devices.events(device)[0])",
        "pass",
        "worst_early",
    ),
    Mutant(
        "the event that the drain waits for is of another stream",
        _COPY,
        "self._devices.events(device)[0].record(cuda.current_stream(device))",
        "self._devices.events(device)[0].record(self._devices.side(device))",
        "worst_early",
    ),
    Mutant("a piece is read before it has come", _COPY, "self._event.synchronize()", "pass", "worst_late"),
    Mutant(
        "the event of a piece is of another stream",
        _COPY,
        "event.record(stream)",
        "event.record(cuda.Stream())",
        "worst_late",
    ),
    Mutant(
        "the drain does not run on its own stream",
        _COPY,
        "cuda.stream(side), ",
        "",
        "worst_late",
    ),
    Mutant(
        "pieces do not take turns",
        _COPY,
        "zip(self._devices.pieces, self._devices.events(stream.device)[1:], strict=True)",
        "[(self._devices.pieces[0], self._devices.events(stream.device)[1])]",
        "eager",
    ),
    Mutant(
        "a large tensor is drained from where training writes",
        _COPY,
        "data if own else _copy(data)",
        "data.view(-1).view(torch.uint8)",
        "worst_late",
        (f"{CHECKS[1]}::test_a_full_device_never_brings_a_step_out_of_memory",),
    ),
    Mutant(
        "a small tensor that is the only one of its type is drained from where training writes",
        _COPY,
        "whole = _copy(some[0][1]) if len(some) == 1 else ",
        "whole = ",
        "worst_late",
    ),
    Mutant("the device's copy is given back before it has come", _COPY, "self._data = data", "pass", "side_late"),
    Mutant(
        "a small number is drained from where training writes",
        _COPY,
        "else tensor.detach().clone()",
        "else tensor.detach()",
        "side_late",
        (f"{CHECKS[1]}::test_the_scale_of_a_scaler_is_that_of_the_save",),
    ),
    Mutant(
        "losses are read before they have come", _LOSSES, "or not self._arrival.query()", "", "worst_late", CHECKS[2:]
    ),
    Mutant(
        "the event of the losses is of another stream",
        _LOSSES,
        "self._arrival.record(cuda.current_stream(self._values.device))",
        "self._arrival.record(cuda.Stream())",
        "worst_late",
        CHECKS[2:],
    ),
)


def verdict(schedule: str, mutant: Mutant | None, folder: Path, checks: tuple[str, ...] = CHECKS) -> pytest.ExitCode:
    """What these checks say of the product with that change, whose file lies in the folder as `mutated.py`.

    They run in a process of their own; what they print is in the file `said`. One that hangs has failed.
    """
    process = forkserver().Process(target=_checked, args=(schedule, mutant and mutant.file, folder, checks))
    process.start()
    process.join(_PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        return pytest.ExitCode.TESTS_FAILED
    return pytest.ExitCode(process.exitcode - _ENDED)


class _Mutated(MetaPathFinder):
    """Finds one module elsewhere than where it lies."""

    def __init__(self, module: str, file: Path) -> None:
        self._module, self._file = module, file

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        return spec_from_file_location(name, self._file) if name == self._module else None


def _checked(schedule: str, file: str | None, folder: Path, checks: tuple[str, ...]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("colabkeep", "tests")]:
        del sys.modules[name]  # imported anew, with the mutant
    if file is not None:
        module = ".".join(["colabkeep", *Path(file).with_suffix("").parts])
        sys.meta_path.insert(0, _Mutated(module, folder / "mutated.py"))
    arguments = ["-n0", "-x", "-q", "-m", "cuda or simulated", "-p", "no:cacheprovider", f"--simulated-gpu={schedule}"]
    arguments += [f"--rootdir={TESTS.parent}", f"--config-file={TESTS.parent / 'pyproject.toml'}"]
    arguments += [f"--basetemp={folder / 'tmp'}", *(str(TESTS / check) for check in checks)]
    with (folder / "said").open("w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main(arguments)
    os._exit(_ENDED + status)
