"""A Kaggle dataset as a store: `kaggle://owner/name`.

A dataset is a list of versions, each a whole set of files: nothing can be added to one, and nothing changed. So the
objects are gathered on this machine's disk (`contents`), packed below fifty files with an index (`index`), and every so
often sent as one version (`store`), which is then verified (`dataset`). Kaggle's own client runs in a process of its
own: `service` asks and says in our words what went wrong, `child` does it.
"""

from colabkeep.stores.kaggle.store import KaggleStore, open_url

__all__ = ["KaggleStore", "open_url"]
