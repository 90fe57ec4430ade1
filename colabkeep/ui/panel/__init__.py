"""The panel of a run: `model` folds events into a `state`, `render` draws it, the displays show it.

`choosing` says which displays a front end gets: one HTML output in a notebook, the same with widgets above it
(`widgets`), lines of text elsewhere, and a page beside the checkpoints (`displays` has these three).
"""
