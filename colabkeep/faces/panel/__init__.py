"""The panel of a run: `model` folds events into a `state`, `html` and `line` draw it, the displays show it.

`choosing` says which displays a front end gets: one HTML output in a notebook (`notebook`), the same with widgets above
it (`widgets`), lines of text elsewhere (`colabkeep.faces.lines`), and a page beside the checkpoints (`status`).
"""
