"""Drawing for notebooks: HTML with inline styles only, and a curve as a picture. Nothing here knows of a training.

A notebook that is opened on another machine, or on GitHub, keeps inline styles, tables, `<details>`, `<progress>` and
pictures with a data address; style sheets, scripts, inline `<svg>`, ids and roles are stripped from it.
"""
