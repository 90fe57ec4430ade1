"""The run browser: what is kept where, and what can be done with it, by clicks or by lines to type.

`model` does the work and knows no widget: what it found, what an action came to, and all of it as text. `storage_guide`
is the way to a place that lasts. `pages` shows the same as HTML, `view` with ipywidgets, and takes the best of these
that the front end can do.
"""
