"""How often a run is saved and why, and what the last save cost training: a sentence for each."""

from __future__ import annotations

from colabkeep.faces.panel.state import PanelState
from colabkeep.faces.panel.words import words_of
from colabkeep.vocabulary.cadence import Cadence, Measures, cost_text
from colabkeep.vocabulary.events import CadenceChosen

__all__ = ["cadence_of", "how_it_saves", "last_save"]


def cadence_of(event: CadenceChosen) -> Cadence:
    """What was chosen, as far as it was told."""
    return Cadence(
        seconds=event.interval,
        least=event.interval,
        why=event.reason,
        overhead=event.overhead,
        measures=Measures(cost=event.cost, session=event.session, carried=event.carried),
    )


def how_it_saves(state: PanelState) -> str:
    """How often, where colabkeep chooses that; and what the last save cost."""
    words, last = words_of(state.language), last_save(state)
    if state.cadence is None:
        return last
    chosen = state.cadence.sentence(words)
    return words["saves"].format(chosen=f"{chosen[0].upper()}{chosen[1:]}", last=last)


def last_save(state: PanelState) -> str:
    """How long it stopped training, and what made that longer, if anything did; "" before there is one."""
    words, saved = words_of(state.language), state.newest_own
    if saved is None:
        return ""
    why = words["saves.why"].format(copy=saved.copy) if saved.copy else ""
    return words["saves.last"].format(stall=cost_text(saved.stall, words), why=why)
