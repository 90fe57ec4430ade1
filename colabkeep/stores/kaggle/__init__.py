"""A Kaggle dataset as a store: `kaggle://owner/name`.

A dataset is a list of versions, each a whole set of files: nothing can be added to one, and nothing changed. So the
objects are gathered on this machine's disk (`contents`), packed below fifty files with an index (`index`, `pieces`),
and every so often (`publisher`, `pace`) sent as one version, which is then proven (`publication`). What the dataset
holds is known to `dataset`; an attached copy of it is found by `inputs`. Kaggle's own client runs in a process of its
own: `service` and `hub` ask, `child` does it, `refusals` says in our words what went wrong.
"""

from colabkeep.stores.kaggle.store import KaggleStore, open_url

__all__ = ["KaggleStore", "open_url"]
