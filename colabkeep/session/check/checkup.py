"""The check as a whole: what is here, is it worth starting on, what else to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from colabkeep.session.check.advice import Advice, advise
from colabkeep.session.check.facts import Facts, gather, prove
from colabkeep.session.check.verdict import Verdict, judge
from colabkeep.vocabulary.clock import Clock
from colabkeep.vocabulary.environment import Environment
from colabkeep.vocabulary.errors import BadAccelerator

__all__ = ["Checkup", "check_up", "judge_again", "refuse_bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The facts of a session, the verdict on its accelerator, and the advice."""

    facts: Facts
    verdict: Verdict
    advice: tuple[Advice, ...]


def check_up(environment: Environment, clock: Clock, *, probe: bool = False, previous: Sequence[str] = ()) -> Checkup:
    """Check this session, in five seconds at most. Raises nothing for what the machine is like.

    `probe`: where it is in doubt whether the framework can use the GPU, try in another process, which imports the
    framework and may take a minute more. `previous`: the cards that earlier sessions got, the latest last.
    """
    facts = gather(environment, clock, previous=previous)
    if probe:
        facts = prove(facts)
    return _checkup(facts)


def judge_again(checkup: Checkup, previous: Sequence[str]) -> Checkup:
    """The same machine, which is not asked again, in the light of the cards that came before."""
    return _checkup(replace(checkup.facts, previous=tuple(previous)))


def refuse_bad(verdict: Verdict) -> None:
    """Go on only with an accelerator worth keeping.

    Raises:
        BadAccelerator: the verdict is another; nothing was trained.
    """
    if verdict.word != "keep":
        raise BadAccelerator(
            problem=f"Nothing was trained, because of the accelerator ({verdict.word}). {verdict.reason}",
            remedy=f'{verdict.action} To train on it all the same: on_bad_gpu="advise".',
        )


def _checkup(facts: Facts) -> Checkup:
    return Checkup(facts=facts, verdict=judge(facts), advice=advise(facts))
