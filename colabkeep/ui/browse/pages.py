"""The browser's pieces as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from colabkeep.core.errors import ColabKeepError
from colabkeep.ui.browse.model import HEAD, Listing, RunShown, cells, error_lines, storage_words
from colabkeep.ui.browse.storage_guide import MARKS, Step, Walk
from colabkeep.ui.drawing import (
    BLUE,
    GREEN,
    GREY,
    RED,
    Colour,
    Markup,
    bar,
    details,
    escape,
    frame,
    join,
    paragraph,
    table,
)

__all__ = [
    "busy",
    "failed",
    "listed",
    "said",
    "shown_run",
    "shown_step",
    "shown_storage",
    "untold",
    "untouched",
]

# The HTML widget typesets mathematics, and TeX knows links that run scripts: so each piece tells it to leave it alone.


_LONG = 2000  # characters of a sentence for people
_FEW = 4  # lines of a step that are shown unasked


def untouched(content: object) -> Markup:
    """The same, and no mathematics in it is typeset (the classes are those of MathJax 2 and 3)."""
    return Markup(f'<div class="tex2jax_ignore mathjax_ignore">{escape(content)}</div>')


def listed(listing: Listing) -> Markup:
    """All of a listing, for a front end that shows no buttons."""
    parts = [shown_storage(listing), *map(shown_run, listing.runs)]
    return join(*parts)


def shown_storage(listing: Listing) -> Markup:
    """The storage, or why it cannot be looked at."""
    words = [] if listing.storage is None else list(storage_words(listing.storage))
    parts = [_line(word, strong=number == 0) for number, word in enumerate(words)]
    if listing.trouble is not None:
        return untouched(frame(join(*parts, *_trouble(listing.trouble)), RED))
    if not listing.runs:
        parts.append(_line("There are no runs here. Is that the right place?"))
    return untouched(frame(join(*parts), BLUE))


def shown_run(run: RunShown) -> Markup:
    """A run with its checkpoints."""
    if run.trouble is not None:
        return untouched(frame(join(_line(run.name, strong=True), *_trouble(run.trouble)), RED))
    rows = [cells(checkpoint) for checkpoint in run.checkpoints]
    what = table(run.name, HEAD, rows, right=(1, 2, 3)) if rows else _line(f"{run.name}: no checkpoint yet")
    wide = Markup(f'<div style="overflow-x:auto">{what}</div>')
    return untouched(frame(join(wide, _line(run.promise)), GREY))


def untold(walk: Walk) -> Markup:
    """What could not be told of a walk; its steps are shown one by one."""
    lines = [_line(f"Not known: {what}") for what in walk.untold]
    return untouched(frame(join(*lines), RED)) if lines else Markup("")


def shown_step(number: int, step: Step) -> Markup:
    """One step of a walk."""
    code = Markup(f'<pre style="margin:4px 0;white-space:pre-wrap">{_code(step.code)}</pre>') if step.code else ""
    title = _line(f"{number}. {step.title}{MARKS[step.done]}", strong=True)
    words = join(*map(_line, step.lines))
    if len(step.lines) > _FEW:
        words = details("How", words)
    return untouched(frame(join(title, words, code), GREEN if step.done else GREY))


def said(lines: Iterable[str], *, good: bool = True) -> Markup:
    """What an action came to."""
    return untouched(frame(join(*map(_line, lines)), GREEN if good else RED))


def failed(problem: str, remedy: str) -> Markup:
    """What went wrong, and what to do now."""
    return untouched(frame(join(_line(problem, strong=True), _line(f"→ {remedy}")), RED))


def busy(text: str, share: float | None) -> Markup:
    """What is being done, and how far it is."""
    colour: Colour = BLUE
    return untouched(frame(join(bar(share) if share is not None else "", escape(text, _LONG)), colour))


def _line(text: object, *, strong: bool = False) -> Markup:
    return paragraph(escape(text, _LONG), strong=strong)


def _trouble(error: ColabKeepError) -> Iterator[Markup]:
    problem, remedy = error_lines(error)
    yield _line(problem, strong=True)
    yield _line(remedy)


def _code(code: str) -> Markup:
    return Markup("\n".join(escape(line) for line in code.splitlines()))
