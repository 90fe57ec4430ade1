"""Google Drive as a mounted folder: the store behind the machine's own disk on Colab.

What the mount is. DriveFS writes into a cache on this machine's disk and uploads later, several files at a time;
a machine that is taken away first leaves a file missing, empty or cut in Drive (googlecolab/colabtools #287, #2607;
stable-audio-tools #151, 2024-10). Renaming and overwriting let names and contents diverge
(#4032, 2023-10; #6106, 2026-09), links fail, and what is deleted goes to a trash that counts against the quota.

So every object is one file under a name that was never used before and never will be again: the object's name, its
size, and a random token (`files`). It is written once, from the first byte to the last, and touched again only to be
removed. No second file says that it is complete, for the two would be uploaded in any order: **a file is the object
if, and only if, it has the size that its own name states.** A copy cut short by a kill, a dead mount or a lost machine
never has it, and no reader takes it for anything. The last byte is held back until the source has ended and added up,
so that writing it is what makes the object exist; then the whole file is read again and its digest compared.

What that proves is that the mount has the bytes. That *Drive* has them is told by DriveFS alone, in two attributes
(`uploads`); where it says nothing of any file, the level is "unknown". What vanished before Drive had it is "local",
and not listed; put again, it and all that waited for it are confirmed again.

The mount is away at times, and may stay so ("transport endpoint is not connected": #3436 of 2023 to #5970 of 2026).
Each call waits a few seconds for it (`store`) and then gives up; the next ones try once and do not wait. Where the
platform can mount it again, that is done once in an outage, on the main thread.

Files that lie there under an object's plain name, because somebody copied a run into Drive by hand, are read too.
"""

from __future__ import annotations

from colabkeep.stores.colab_drive.store import MountedStore, open_url

__all__ = ["MountedStore", "open_url"]
