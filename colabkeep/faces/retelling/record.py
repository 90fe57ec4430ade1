"""A story for machines."""

from __future__ import annotations

from dataclasses import asdict

from colabkeep.faces.reports import durability_record
from colabkeep.faces.tables import Record
from colabkeep.session.losses import plain_points
from colabkeep.session.story import Story

__all__ = ["story_record"]


def story_record(story: Story, as_of: float) -> Record:
    """Everything, JSON-able: times in seconds since 1970 (UTC), lengths in seconds, sizes in bytes; None is what is
    not known, and a loss that is no finite number is a text."""
    return {
        "name": story.run,
        "storage": story.storage,
        "created": story.created,
        "as_of": as_of,
        "totals": asdict(story.totals),
        "sessions": [asdict(chapter) for chapter in story.sessions],
        "losses": plain_points(story.points),
        "resumed_at": list(story.resumed_at),
        "not_finite_since": story.nan_since,
        "durability": None if story.durability is None else durability_record(story.durability),
        "troubles": list(story.troubles),
        "left_out": story.left_out,
    }
