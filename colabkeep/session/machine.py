"""Which machine each session of a run was given: noted in its lease, read by the sessions after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.hardware import find_accelerators
from colabkeep.platforms import find_platform
from colabkeep.session.catalogue import sessions
from colabkeep.session.check.errands import Errand
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.events import MachineGiven

__all__ = ["earlier_cards", "machine_id", "this_machine"]

_TOOL_PATIENCE = 1.0  # seconds for the tool that lists accelerators, at the start of every run
_PATIENCE = 2.0  # seconds for all that is asked about them
_LOOKED_AT = 5  # machines; what is asked is whether the last ones had the same card

_BOOT = "/proc/sys/kernel/random/boot_id"  # new at each boot (random(4)); in a container, the host's


def this_machine(environment: Environment) -> MachineGiven:
    """The platform and the accelerators of this session; none where they cannot be told, for training needs no name.

    Raises:
        UsageError: COLABKEEP_PLATFORM names none.
    """
    platform = find_platform(environment)
    asked = Errand("the accelerators", lambda: find_accelerators(environment, timeout=_TOOL_PATIENCE))
    answers, _ = asked.answer(_PATIENCE)
    return MachineGiven(
        platform=platform.name,
        kind=platform.kind(environment),
        accelerators=tuple(each.name for found in answers if isinstance(found, tuple) for each in found),
        id=machine_id(environment),
    )


def machine_id(environment: Environment) -> str:
    """What tells this machine from the next: its name, which a container has for itself, and its boot."""
    return " ".join(filter(None, (environment.hostname, environment.text(_BOOT, 100).strip())))


def earlier_cards(repository: Repository, here: str = "") -> tuple[str, ...]:
    """The first accelerator of each of the last machines of a run that had one, the latest last.

    `here`: the id of this very machine, which is left out: running a cell again on it draws no card.
    """
    return tuple(islice(_cards(sessions(repository), here), _LOOKED_AT))[::-1]


def _cards(leases: Iterable[dict[str, Any]], here: str) -> Iterator[str]:
    seen = {here} if here else set()
    for lease in leases:
        # From a file that anybody may have written: what is not of this form tells nothing.
        machine = lease.get("machine")
        if not isinstance(machine, dict):
            continue
        names, id = machine.get("accelerators"), machine.get("id")
        if isinstance(id, str) and id:
            if id in seen:
                continue
            seen.add(id)
        if isinstance(names, list) and names and isinstance(names[0], str):
            yield names[0]
