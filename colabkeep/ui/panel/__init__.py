"""The panel of a run: `state` is what is known of it and how events change that, `render` draws it as sentences, as
one line and as HTML, `displays` shows it.
"""
