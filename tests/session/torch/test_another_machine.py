"""A run that goes on where something is different that its bits depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from colabkeep.core.events import Event, RestoredInexactly
from colabkeep.core.manifest import Manifest


def write_as_elsewhere(folder: Path, differences: Mapping[str, str]) -> None:
    """Make the checkpoints those of a machine where these facts were other ones."""
    for path in (folder / "r" / "checkpoints").glob("*.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), id=path.stem)
        path.write_bytes(replace(manifest, fingerprint={**manifest.fingerprint, **differences}).to_bytes())


@pytest.mark.parametrize(
    "differences",
    [{"torch": "1.13.1"}, {"devices": "cuda:0", "gpu": "Tesla K80"}, {"threads": "96"}, {"cpu capability": "VSX"}],
    ids=lambda differences: next(iter(differences)),
)
def test_another_machine_goes_on_and_names_each_difference(
    tmp_path: Path, kit: SimpleNamespace, differences: dict[str, str]
) -> None:
    """No step is lost, and whoever trains reads what was, what is, and that bits may differ from here on."""
    kit.fit(tmp_path, max_steps=5)
    write_as_elsewhere(tmp_path, differences)
    events: list[Event] = []
    result = kit.fit(tmp_path, max_steps=7, callbacks=[events.append])
    assert result.resumed_from == 5
    told = [event.reason for event in events if isinstance(event, RestoredInexactly)]
    assert len(told) == len(differences)
    for name, before in differences.items():
        assert any(f"{name} was {before} and is " in reason for reason in told)
    assert all("may round differently" in reason for reason in told)
