"""What a place takes for a time: so many commits an hour, so many bytes a day. Pure figures, each with its source.

How often is saved respects them from the first hour on: a place that has refused once takes nothing for the rest of its
hour, or day, and whatever is trained in that time lies on this machine only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

_SHARE = 0.9  # of a limit; the rest is for sessions before this one, for other programs and for what is tried again
_SPANS = {60.0: "a minute", 300.0: "5 minutes", 3600.0: "an hour", 86400.0: "a day"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `most` of `what` within `seconds`. `each`: how many one save takes; of bytes, those that it writes.
    `source`: where the figure is from."""

    what: Literal["commits", "requests", "bytes"]
    most: int
    seconds: float
    source: str
    each: float = 0.0

    def interval(self, written: int) -> float:
        """Seconds between two saves of so many new bytes that keep within this for ever."""
        return (written if self.what == "bytes" else self.each) * self.seconds / (_SHARE * self.most)

    def text(self) -> str:
        """For people."""
        amount = f"{self.most / 1e9:,.0f} GB" if self.what == "bytes" else f"{self.most:,} {self.what}"
        taken = f"; a save takes {self.each:g}" if self.each else ""
        return f"{amount} in {_SPANS[self.seconds]}{taken} ({self.source})"


@dataclass(frozen=True, slots=True)
class Budget:
    """All limits that are known of a place. `beside`: what else it takes, or leaves at risk, a sentence without its
    end."""

    limits: tuple[Limit, ...]
    beside: str = ""

    def interval(self, written: int) -> float:
        """The least seconds between two saves of so many new bytes."""
        return max((limit.interval(written) for limit in self.limits), default=0.0)

    def text(self) -> str:
        """For people."""
        return "; ".join(filter(None, [*(limit.text() for limit in self.limits), self.beside]))


HUB_COMMITS = Limit(
    what="commits",
    most=128,
    seconds=3600.0,
    each=1,
    source="the Hub's own refusal of free accounts, as users met it in August and September 2026",
)
_HUB_REQUESTS = Limit(
    what="requests",
    most=1000,
    seconds=300.0,
    each=25,
    source="of a free account; huggingface.co/docs/hub/rate-limits, September 2026",
)
HUB = Budget((HUB_COMMITS, _HUB_REQUESTS))
DRIVE = Budget(
    (
        Limit(
            what="bytes",
            most=750 * 10**9,
            seconds=86400.0,
            source="of a user, all programs together; Google Workspace, upload limits",
        ),
        Limit(
            what="requests",
            most=12_000,
            seconds=60.0,
            each=20,
            source="Drive API, usage limits of projects from before May 2026; newer ones may do more",
        ),
    )
)
KAGGLE_VERSION_SECONDS = 1800.0
"""From one version of a dataset to the next. Chosen: each is uploaded whole, and stays in the dataset's history."""

KAGGLE = Budget(
    (),
    beside="Kaggle publishes no limit, but takes whole versions only, which stay in the dataset's history: one is sent "
    f"every {KAGGLE_VERSION_SECONDS / 60:.0f} minutes, so that much training, and what an upload takes, is on this "
    "machine only, however often it is saved",
)

_BY_SCHEME: Mapping[str, Budget] = MappingProxyType(
    {"hf": HUB, "hf://buckets": Budget((_HUB_REQUESTS,)), "drive": DRIVE, "mounted": DRIVE, "kaggle": KAGGLE}
)


def budget_of(url: str) -> Budget | None:
    """The budget of the place that this URL names; None where none is known."""
    scheme, _, rest = url.strip().partition("://")
    scheme = scheme.lower()
    return _BY_SCHEME.get(f"{scheme}://{rest.partition('/')[0]}") or _BY_SCHEME.get(scheme)
