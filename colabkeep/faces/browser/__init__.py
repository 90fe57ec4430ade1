"""The run browser: what is kept where, and what can be done with it, by clicks or by lines to type.

`model` does the work and knows no widget; `listing` is what it found, `outcome` what an action came to, `walk` the way
to a place that lasts. The same is shown as text (`text`), as HTML (`pages`) and with ipywidgets (`view`); `showing`
takes the best of these that the front end can do.
"""
