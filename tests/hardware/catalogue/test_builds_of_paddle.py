"""The installed build of Paddle says what it has kernels for."""

from __future__ import annotations

import sys

import pytest

from colabkeep.hardware.base import Accelerator
from colabkeep.hardware.support import installed_build, supports

V100 = Accelerator(kind="cuda", name="Tesla V100-SXM2-32GB", capability=(7, 0))
A10 = Accelerator(kind="cuda", name="NVIDIA A10", capability=(8, 6))
H800 = Accelerator(kind="cuda", name="NVIDIA H800", capability=(9, 0))


@pytest.mark.parametrize(
    ("stated", "architectures"),
    [("[70, 80]", ("sm_70", "sm_80", "…")), ("['70', '80']", ("sm_70", "sm_80", "…")), ("[]", None), ("''", None)],
)
def test_what_it_was_compiled_for_is_read_where_it_says_so(tmp_path, monkeypatch, stated, architectures):
    """Since Paddle 3. A card that it names is supported; of others nothing is claimed: portable code is not told."""
    version = tmp_path / "paddle" / "version" / "__init__.py"
    version.parent.mkdir(parents=True)
    version.write_text(f"full_version = '3.2.0'\ncuda_version = '12.6'\ncompiled_cuda_archs = {stated}\n")
    (tmp_path / "paddle" / "__init__.py").write_text("raise AssertionError('a framework was imported')\n")
    monkeypatch.delitem(sys.modules, "paddle", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    build = installed_build("paddle")
    assert (build.cuda, build.architectures) == ("12.6", architectures)
    assert build.known_from == ("stated" if architectures else "unknown")
    known = True if architectures else None
    assert [supports(build, card) for card in (V100, A10, H800)] == [known, known, None]
