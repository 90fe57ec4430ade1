"""Google Drive over its own API, from any machine: `drive://<folder>`.

`store` keeps the promise of `colabkeep.stores.base`; `place` reads the URL; `tree` knows what lies where, `folders`
where that begins; `files` asks the service about files; `upload` (with `journal` and `pieces`) and `download` move the
bytes; `api` sends one request, or the same one again; `refusals` says in words what the service answered; `quota`
knows how much room there is. Who is signed in, and how, is the business of `colabkeep.stores.google`.
"""

from __future__ import annotations

from colabkeep.stores.drive.store import DriveStore, open_pydrive, open_url

__all__ = ["DriveStore", "open_pydrive", "open_url"]
