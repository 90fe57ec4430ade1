"""The check as people see it: text, HTML, and a record for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape

from colabkeep._version import __version__
from colabkeep.core.arguments import duration_text, public
from colabkeep.core.errors import UsageError
from colabkeep.core.language import said
from colabkeep.core.rate_limits import budget_of
from colabkeep.core.system import Environment, SystemClock
from colabkeep.hardware.catalogue import advised_precision
from colabkeep.platforms.lifetime import SessionTime
from colabkeep.stores import shown
from colabkeep.ui.check.advice import Checkup, check_up
from colabkeep.ui.check.facts import MAIN, Device, Facts, best_gpu
from colabkeep.ui.text import Record, Report, plain, size_text


@public()
def check(*, probe: bool = False, previous: Sequence[str] = ()) -> CheckReport:
    """Tell where this is, which accelerator came, whether to start on it, and where checkpoints will live.

    Takes five seconds at most, and raises nothing for what the machine is like. Imports no framework, leaves CUDA
    alone, contacts nothing.

    Args:
        probe: where it is in doubt whether the framework can use the GPU, try it in another process. That imports
            the framework there, and may take a minute more.
        previous: the cards that earlier sessions got, the latest last, such as ``["Tesla K80"]``: where cards are drawn
            by chance, it is said when to stop trying.

    Returns:
        CheckReport: shown as the last line of a cell; ``print`` it elsewhere; ``to_dict()`` for programs.

    Raises:
        UsageError: an argument is invalid.
    """
    if not isinstance(probe, bool):
        raise UsageError(
            problem=f"probe={probe!r} is neither True nor False.", remedy="Pass probe=True or leave it out."
        )
    if not isinstance(previous, list | tuple) or not all(isinstance(name, str) for name in previous):
        raise UsageError(
            problem=f"previous must be a list of names, and is {previous!r}.",
            remedy='Pass names of cards: previous=["Tesla K80"].',
        )
    return examine(probe=probe, previous=previous)


def examine(*, probe: bool = False, previous: Sequence[str] = (), storage: str | None = None) -> CheckReport:
    """The report on this very session; `check_up` says what the words mean. `storage`: the place whose limits are to be
    told, instead of this platform's own."""
    return CheckReport(check_up(Environment.here(), SystemClock(), probe=probe, previous=previous), storage)


class CheckReport(Report):
    """What `colabkeep.check()` found. Printed it is text; as the last line of a cell, HTML; `to_dict` for programs.

    `checkup` holds the facts, the verdict and the advice themselves.
    """

    def __init__(self, checkup: Checkup, storage: str | None = None) -> None:
        self.checkup = checkup
        self._asked = storage is not None
        home = checkup.facts.home
        place = (storage or ("" if home is None else home.storage)).rpartition(" + ")[2]  # the one that lasts
        self._budget = budget_of(place)
        self._place = shown(place).strip("'")  # the report is sent to strangers

    def lines(self) -> Iterator[str]:
        """The report as lines of text: a few for a good machine, one more for each thing out of order."""
        yield self._headline()
        yield from self._next_click()
        yield _line(f"{self._storage()} {self._session()}".strip())
        yield from self._limits()
        yield from self._settings()
        yield from (_line(line.text) for line in self.checkup.advice if line.code == "same-bits")
        yield from self._warnings()

    def opening_lines(self, *, storage_was_named: bool = True) -> Iterator[str]:
        """The lines for the beginning of a training, which tells by itself of its storage and of the session's end:
        all but what to name, where nobody named a storage and the place that is taken may vanish."""
        yield self._headline()
        yield from self._next_click()
        yield from self._warnings(but=("storage-", "session-"))
        if not storage_was_named:
            yield from (_line(f"! {line.text}") for line in self.checkup.advice if line.code == "storage-unproven")

    def to_dict(self) -> Record:
        """The report for programs; its words do not change from version to version.

        ``{"platform": {"name", "title", "kind"}, "accelerators": [{"kind", "name", "memory_bytes", "capability",
        "tier", "score"}], "verdict", "advice": [{"code", "text"}], "storage": {"url", "persistent", "free_bytes",
        "limits": [{"what", "most", "seconds", "each", "source"}], "limits_of"}, "session": {"used_s", "limit_s",
        "left_s", "confidence"}, "machine": {…}}``. "verdict" is "keep", "reconnect", "switch", "enable" or "unusable";
        the first advice says why, and what to click. "score" is the speed for Transformers relative to a T4 with mixed
        precision. "limits" is what saving keeps to in the place "limits_of" (without what may be secret in it; None: in
        "url"): at most so much in so many seconds, and how much of it a save takes.
        "machine" is what somebody far away needs to know to help: versions, the driver, the front end, names of
        variables that services set (never what they hold), and where each figure comes from; its words may change. None
        is what is not known.
        """
        facts, verdict = self.checkup.facts, self.checkup.verdict
        place, home, time = facts.place, facts.home, facts.session
        why = {"code": verdict.code, "text": f"{verdict.reason} {verdict.action}".strip()}
        return {
            "platform": {"name": place.name, "title": place.title, "kind": place.kind},
            "accelerators": [_accelerator(device) for device in facts.devices or ()],
            "verdict": verdict.word,
            "advice": [why, *({"code": line.code, "text": line.text} for line in self.checkup.advice)],
            "storage": {
                "url": None if home is None else home.storage,
                "persistent": None if home is None else home.persists,
                "free_bytes": facts.free_bytes,
                "limits": [asdict(limit) for limit in self._budget.limits] if self._budget else [],
                "limits_of": self._place if self._asked else None,
            },
            "session": {
                "used_s": None if time is None else time.used_seconds,
                "limit_s": None if time is None else time.limit_seconds,
                "left_s": None if time is None else time.left_seconds,
                "confidence": "low" if time is None else time.confidence,
            },
            "machine": _machine(facts),
        }

    def _repr_html_(self) -> str:
        # Inline styles and <details> only: a notebook opened on another machine keeps these and strips the rest.
        first, *rest = [escape(said(line)) for line in self.lines()]
        more = "".join(f"<li>{escape(_line(f'{line.code}: {said(line.text)}'))}</li>" for line in self.checkup.advice)
        return (
            f'<div style="border-left:4px solid {_COLOURS[self.checkup.verdict.word]};padding:2px 10px">'
            f"<b>{first}</b>{''.join(f'<br>{line}' for line in rest)}"
            f"<details><summary>{said('All advice')}</summary><ul>{more}</ul></details></div>"
        )

    def _headline(self) -> str:
        facts, verdict = self.checkup.facts, self.checkup.verdict
        where = f"{facts.place.title} ({facts.place.kind})" if facts.place.kind else facts.place.title
        cards = _cards(facts.devices or ())
        found = f"{cards}: {verdict.word}"
        if verdict.word == "enable":
            found = ", no GPU: turn one on"
        elif verdict.word == "keep" and not cards:
            found = ", CPU" if facts.devices is not None else ", accelerator unknown"
        return _line(f"{where}{found}. {verdict.reason}")

    def _next_click(self) -> Iterator[str]:
        if self.checkup.verdict.action:
            yield _line(f"→ {self.checkup.verdict.action}")

    def _storage(self) -> str:
        home, free = self.checkup.facts.home, self.checkup.facts.free_bytes
        if home is None:
            return "It is not known where checkpoints will go."
        fate = {True: "is kept", False: "is lost", None: "may be lost"}[home.persists]
        room = "" if free is None else f", {size_text(free)} free"
        return f"Checkpoints go to {home.folder}, which {fate} when this session ends{room}."

    def _limits(self) -> Iterator[str]:
        if self._budget is not None and self._asked:
            yield _line(f"Limits of {self._place}, which saving keeps to: {self._budget.text()}.")
        elif self._asked:
            yield _line(f"Of {self._place} no limits are known.")

    def _session(self) -> str:
        time = self.checkup.facts.session
        told = () if time is None else tuple(filter(None, (_limit(time), _idle(time), time.usual)))
        return f"Session: {'; '.join(told)}." if told else ""

    def _settings(self) -> Iterator[str]:
        facts, words = self.checkup.facts, []
        gpu = best_gpu(facts)
        if gpu is not None and gpu.supported is not False:
            precision = advised_precision(gpu.accelerator, facts.framework)
            emulated = any(line.code == "bf16-emulated" for line in self.checkup.advice)
            words.append(f'precision="{precision.word}"' + (" (never bf16 on this card)" if emulated else ""))
        if facts.workers is not None:
            words.append(f"num_workers={facts.workers}")
        if words:
            yield f"Use {', '.join(words)}."

    def _warnings(self, but: tuple[str, ...] = ()) -> Iterator[str]:
        for line in self.checkup.advice:
            if line.warns and not line.code.startswith(but):
                yield _line(f"! {line.text}")


_COLOURS = {"keep": "#2e7d32", "reconnect": "#ef6c00", "switch": "#ef6c00", "enable": "#ef6c00", "unusable": "#c62828"}


def _limit(time: SessionTime) -> str:
    if time.limit_seconds is None:
        return ""
    used = "" if time.used_seconds is None else f"{duration_text(time.used_seconds)} used, "
    left = time.limit_seconds if time.left_seconds is None else time.left_seconds
    word = "in all" if time.left_seconds is None else "left"
    return f"{used}at most {duration_text(left)} {word} ({time.confidence} confidence)"


def _idle(time: SessionTime) -> str:
    if time.idle_seconds is None:
        return ""
    after = duration_text(time.idle_seconds)
    return f"it may end after {after} without you at the page ({time.idle_confidence} confidence)"


def _line(text: str) -> str:
    return plain(text, limit=4000)


def _cards(devices: tuple[Device, ...]) -> str:
    counted: dict[str, int] = {}
    for device in devices:
        memory = device.accelerator.memory_bytes
        name = device.accelerator.name + ("" if memory is None else f" {size_text(memory)}")
        counted[name] = counted.get(name, 0) + 1
    return "".join(f", {name}" + (f" x{number}" if number > 1 else "") for name, number in counted.items())


_UNKNOWN: Record = {"marks": [], "packages": {}} | dict.fromkeys(
    ("python", "system", "front_end", "vscode", "file_system", "may_vanish")
)


def _machine(facts: Facts) -> Record:
    time, home = facts.session, facts.home
    return {
        "colabkeep": __version__,
        **_UNKNOWN,
        **facts.around,
        "builds": [
            {"framework": one.framework, "version": one.version, "cuda": one.cuda, "known_from": one.known_from}
            for one in facts.builds
        ],
        "drivers": [one.accelerator.driver for one in facts.devices or ()],
        "found_by": [one.accelerator.found_by for one in facts.devices or ()],
        "supported": [one.supported for one in facts.devices or ()],
        "trial": None if facts.probe is None else facts.probe.detail,
        "trouble": None if facts.trouble is None else facts.trouble.problem,
        "storage_reason": None if home is None else home.reason,
        "time_source": None if time is None else time.source,
        "idle_s": None if time is None else time.idle_seconds,
        "cpus": facts.cpus,
        "unanswered": list(facts.unanswered),
    }


def _accelerator(device: Device) -> Record:
    told, speed = device.accelerator, device.speeds.get(MAIN)
    return {
        "kind": told.kind,
        "name": told.name,
        "memory_bytes": told.memory_bytes,
        "capability": None if told.capability is None else list(told.capability),
        "tier": device.tier,
        "score": None if speed is None else round(speed, 2),
    }
