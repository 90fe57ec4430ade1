"""Which machine each session of a run was given: noted in its lease, read by the sessions after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from colabkeep._engine.repository import Repository
from colabkeep.hardware import find_accelerators
from colabkeep.platforms import find_platform
from colabkeep.session.catalogue import sessions
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.events import MachineGiven

__all__ = ["earlier_cards", "this_machine"]

_PATIENCE = 1.0  # seconds for the tool that lists accelerators, at the start of every run
_LOOKED_AT = 5  # sessions; what is asked is whether the last ones got the same card


def this_machine(environment: Environment) -> MachineGiven:
    """The platform and the accelerators of this session."""
    platform = find_platform(environment)
    found = find_accelerators(environment, timeout=_PATIENCE)
    return MachineGiven(
        platform=platform.name, kind=platform.kind(environment), accelerators=tuple(each.name for each in found)
    )


def earlier_cards(repository: Repository) -> tuple[str, ...]:
    """The first accelerator of each of the last sessions of a run that had one, the latest last."""
    return tuple(_cards(sessions(repository)[:_LOOKED_AT]))[::-1]


def _cards(leases: list[dict[str, Any]]) -> Iterator[str]:
    for lease in leases:
        # From a file that anybody may have written: what is not of this form tells nothing.
        machine = lease.get("machine")
        names = machine.get("accelerators") if isinstance(machine, dict) else None
        if isinstance(names, list) and names and isinstance(names[0], str):
            yield names[0]
