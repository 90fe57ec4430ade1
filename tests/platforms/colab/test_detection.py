"""Colab is recognised in each of its kinds, and nothing else is taken for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from colabkeep.core.errors import MountError
from colabkeep.core.system import Environment

KINDS = ("hosted", "process", "enterprise", "local")


def laptop(tmp_path: Path, **facts) -> Environment:
    facts = {"environ": {}, "root": tmp_path, "folder": tmp_path, **facts}
    return Environment(**facts)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_colab_is_told_from_the_others(machine, platform, kind):
    """The notebook's kernel, a `!python` beside it, Enterprise, and the docker image on one's own machine."""
    environment = machine(kind=kind).environment
    assert platform.matches(environment)
    assert platform.kind(environment) == kind


def test_a_hosted_machine_is_known_without_any_variable(machine, platform):
    """A cleaned environment, as `env -i python train.py` has it, hides nothing: the machine's own mark is enough."""
    environment = replace(machine(kind="process").environment, environ={})
    assert platform.matches(environment)
    assert platform.kind(environment) == "process"


def test_front_ends_that_share_the_kernel_are_one_kind(machine, platform):
    """VS Code and the terminal client leave no trace in the machine, so none is claimed to be seen."""
    kinds = {platform.kind(machine(front_end=one).environment) for one in ("answers", "vscode", "absent", "late")}
    assert kinds == {"hosted"}


def test_a_laptop_with_every_token_is_not_colab(tmp_path, platform):
    """Tokens, and variables of other tools, are no mark; nor is a package that somebody installed."""
    tokens = ("KAGGLE_USERNAME", "KAGGLE_KEY", "HF_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG")
    environment = laptop(tmp_path, environ=dict.fromkeys(tokens, "x"), modules=frozenset({"google.colab"}))
    assert not platform.matches(environment)


def test_one_trace_alone_is_not_colab(tmp_path, platform):
    """A folder called /content, or a variable copied into a shell, does not make a laptop a Colab machine."""
    assert not platform.matches(laptop(tmp_path, environ={"COLAB_RELEASE_TAG": "release-colab"}))
    (tmp_path / "content").mkdir()
    assert not platform.matches(laptop(tmp_path))
    assert platform.matches(laptop(tmp_path, environ={"COLAB_RELEASE_TAG": "release-colab"}))


def test_the_sister_product_is_another_platform(machine, platform):
    """Vertex Workbench has Colab's package and variables, and is not Colab."""
    environment = machine(kind="local").environment
    environment = replace(environment, environ={**environment.environ, "VERTEX_PRODUCT": "WORKBENCH_INSTANCE"})
    assert not platform.matches(environment)


@pytest.mark.parametrize("kind", KINDS)
def test_detection_only_looks(machine, platform, kind):
    """Nothing is asked of Colab, and the disk is as it was."""
    colab = machine(kind=kind)
    before = sorted(colab.root.rglob("*"))
    for question in (platform.matches, platform.kind, platform.home, platform.limits, platform.menus):
        question(colab.environment)
    assert colab.calls == []
    assert sorted(colab.root.rglob("*")) == before


def test_a_session_lasts_twelve_hours_at_most(machine, platform):
    """The free service's own figure, with the idle time and where both come from."""
    for kind in ("hosted", "process"):
        limits = platform.limits(machine(kind=kind).environment)
        assert (limits.max_seconds, limits.idle_seconds) == (12 * 3600, 90 * 60)
        assert "FAQ" in limits.source
    assert platform.limits(machine(kind="enterprise").environment).max_seconds == 18 * 3600
    assert platform.limits(machine(kind="local").environment).max_seconds is None


def test_the_menus_are_those_of_the_kind(machine, platform):
    """On Google's machines the next card is drawn; on one's own there is nothing to reconnect to."""
    for kind in ("hosted", "process"):
        menus = platform.menus(machine(kind=kind).environment)
        assert "Change runtime type" in menus.enable
        assert "Disconnect and delete runtime" in menus.reconnect
        assert "T4" in menus.offered
        assert menus.draws
    local = platform.menus(machine(kind="local").environment)
    assert "--gpus=all" in local.enable
    assert (local.reconnect, local.draws) == (None, False)
    enterprise = platform.menus(machine(kind="enterprise").environment)
    assert "Runtime templates" in enterprise.enable
    assert not enterprise.draws


def test_an_empty_variable_says_nothing(machine, platform):
    """VERTEX_PRODUCT="" is as good as none: the machine is Google's, and Drive can be mounted."""
    colab = machine()
    colab.environ["VERTEX_PRODUCT"] = ""
    assert platform.matches(colab.environment)
    assert platform.kind(colab.environment) == "hosted"


def test_vs_code_is_sent_to_its_own_menus(machine, platform):
    """It has no Runtime menu: clicks and remedies are those of the front end that shows the notebook."""
    page, colab = platform.menus(machine().environment), machine(drivefs="stops", on_import=None)
    here = replace(colab.environment, vscode=True)
    menus = platform.menus(here)
    assert "Runtime > Change runtime type" in page.enable
    for told in (menus.enable, menus.switch, menus.reconnect):
        assert "Runtime >" not in told
        assert "New Colab Server" in told
    with pytest.raises(MountError) as caught:
        platform.mount(here, timeout=30.0)
    assert "Runtime >" not in caught.value.remedy
    assert "Remove Server" in caught.value.remedy
