"""Every place that fsspec reaches keeps every promise of a store."""

from __future__ import annotations

import hashlib

import pytest

from colabkeep.testing.stores import StoreContract


class _Anywhere(StoreContract):
    """The subclasses say where."""

    same_folder_same_place = True

    @pytest.fixture(autouse=True)
    def _tools(self, opened):
        self.opened = opened


class TestS3(_Anywhere):
    """S3."""

    @pytest.fixture(autouse=True)
    def _place(self, place):
        self.place = place

    def make_store(self, folder):
        return self.opened(self.place(folder))


class TestMemory(_Anywhere):
    """fsspec's memory."""

    def make_store(self, folder):
        return self.opened(f"fsspec+memory://{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}")


class TestFolder(_Anywhere):
    """A folder, through fsspec: the stand-in for SFTP and others that have folders."""

    def make_store(self, folder):
        return self.opened(f"fsspec+file://{folder}")
