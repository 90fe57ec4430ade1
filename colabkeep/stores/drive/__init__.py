"""Google Drive over its own API, from any machine: `drive://<folder>`.

`store` keeps the promise of `colabkeep.stores.base`; `tree` knows what lies where; `files` reads the URL and asks the
service about files and folders; `transfer` moves the bytes; `api` sends one request, or the same one again, says in
words what the service answered, and knows how much room there is. Who is signed in, and how, is the business of
`colabkeep.stores.google`.
"""

from __future__ import annotations

from colabkeep.stores.drive.store import DriveStore, open_pydrive, open_url

__all__ = ["DriveStore", "open_pydrive", "open_url"]
