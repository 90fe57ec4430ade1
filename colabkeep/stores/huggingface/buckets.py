"""Work at a bucket of the Hub: files that are overwritten without history, which suits checkpoints that come and go.

Its bytes travel by Xet only, a service that cannot be had on one's own machine, so what is here was tried against
the client's own code (huggingface_hub 2.4.0) with a stand-in for Xet. tests/stores/huggingface/test_buckets.py says how
to try it against the real Hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from colabkeep.stores._asking import Asking
from colabkeep.stores.anywhere.filesystem import FolderHands
from colabkeep.stores.anywhere.hands import block_size
from colabkeep.stores.base import Source
from colabkeep.vocabulary.errors import MissingDependency, ObjectNotFound

__all__ = ["BucketHands"]

_WRITE = "wb"


class BucketHands(FolderHands):
    """`make` makes the bucket, private, before the first upload; it is no error that it is there.

    A file appears whole when huggingface_hub has uploaded it, from a file of its own in the machine's temporary folder.
    Whether a name is taken is looked at just before.
    """

    def __init__(self, fs: Any, root: str, ask: Asking, make: Any) -> None:
        super().__init__(fs, root, ask)
        self._make = make
        self._made = False

    @classmethod
    def at(cls, bucket: str, folder: str, *, token: str | None, endpoint: str | None, ask: Asking) -> BucketHands:
        """The hands at a folder of a bucket. Nothing is contacted yet.

        Raises:
            MissingDependency: huggingface_hub is too old for buckets.
        """
        from huggingface_hub import HfApi, HfFileSystem

        api = HfApi(endpoint=endpoint, token=token or False)
        if not hasattr(api, "batch_bucket_files"):
            raise MissingDependency(
                problem="The huggingface_hub that is installed has no buckets.",
                remedy='Run: pip install -U "huggingface_hub>=1.5", or use a repository: hf://owner/name',
            )
        fs = HfFileSystem(endpoint=endpoint, token=token or False, skip_instance_cache=True, use_listings_cache=False)
        root = "/".join(part for part in ("buckets", bucket, folder) if part)
        return cls(fs, root, ask, partial(api.create_bucket, bucket, private=True, exist_ok=True))

    def send(self, name: str, source: Source, blocks: Iterator[memoryview]) -> None:
        doing = f"write {name!r}"
        if not self._made:
            self._ask("be created", self._make)
            self._fs.invalidate_cache()  # it may remember that there was none
            self._made = True
        file = self._ask(doing, lambda: self._fs.open(self._path(name), _WRITE, block_size=block_size(source.size)))
        try:
            for piece in blocks:
                self._ask(doing, partial(file.write, piece), again=False)
            self._ask(doing, file.close, again=False)
        except BaseException:
            file.closed = True  # else its destructor would upload what was given up
            self._drop(getattr(file, "temp_file", None))
            raise

    def _drop(self, temporary: Any) -> None:
        """huggingface_hub leaves its temporary file where an upload fails."""
        from fsspec import filesystem

        if temporary is not None:
            temporary.close()
            with suppress(ObjectNotFound):
                self._ask("tidy up", partial(filesystem("file").rm_file, temporary.name), missing=ObjectNotFound)
