"""A state as one line of text that a program can take apart again."""

from __future__ import annotations

from colabkeep.faces.panel.sentences import says, utc
from colabkeep.faces.panel.state import FINAL, PanelState
from colabkeep.faces.tables import plain
from colabkeep.vocabulary.durations import duration_text

__all__ = ["line"]


def line(state: PanelState) -> str:
    """``[colabkeep 15:42:10] UPLOADING step 712/1000 71% loss 0.3706 safe 600 at-risk 112 steps (36 s) left 7 h 10 min
    (estimate) | The checkpoint of step 700 is on …``. The time is UTC, and the state's name English; what is not
    known is left out."""
    total = "" if state.total_steps is None else f"/{state.total_steps}"
    words = [f"[colabkeep {utc(state.now, '%H:%M:%S')}]", state.phase.upper(), f"step {state.progress.step}{total}"]
    if state.share is not None:
        words.append(f"{int(state.share * 100)}%")
    if state.loss is not None:
        words.append(f"loss {state.loss:.4g}")
    none = "unknown" if state.asking else "none"
    known = "safe" if state.lasts or state.safe_step is None else "saved"  # where nobody knows whether that lasts
    words.append(f"{known} {none if state.safe_step is None else state.safe_step}")
    words.append(f"at-risk {state.lost_steps} steps ({duration_text(state.lost_seconds)})")
    if state.session_left is not None and state.phase not in FINAL:
        words.append(f"left {duration_text(state.session_left)} (estimate)")
    return f"{' '.join(words)} | {plain(' '.join(says(state).split()))}"
