"""Where checkpoints go, whether that place outlives the machine, and what is said where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabkeep.core.errors import NotPersistent, SecretError
from colabkeep.core.system import Environment
from colabkeep.platforms import find_platform
from colabkeep.platforms.aistudio import AIStudioPlatform
from colabkeep.platforms.colab.platform import ColabPlatform
from colabkeep.platforms.services import ROWS, TablePlatform
from colabkeep.session.open import find_store
from colabkeep.stores.local import DirectoryStore
from colabkeep.testing.platforms import laptop
from tests.fakes.platforms import fake_aistudio, fake_kaggle

ROW = {row.name: TablePlatform(row) for row in ROWS}


def at(monkeypatch, environment):
    monkeypatch.setattr(Environment, "here", classmethod(lambda cls: environment))


def test_on_aistudio_checkpoints_go_to_work_with_a_warning(tmp_path):
    """It survives a restart as far as anybody knows; its size is what makes it fail."""
    with fake_aistudio(tmp_path) as studio:
        home = AIStudioPlatform().home(studio.environment)
        assert home.folder == str(studio.work / "colabkeep-runs")
        assert home.persists is None
        assert "proven" in home.reason
        assert "small" in home.remedy
    assert AIStudioPlatform().home(laptop(tmp_path / "laptop")).persists is False


def test_a_place_that_is_mounted_is_looked_after_in_a_training():
    """Where a platform mounts its place, a training hears when that dies, and mounts it again; elsewhere nothing is
    mounted."""
    assert ColabPlatform().mounts
    assert not AIStudioPlatform().mounts
    assert not any(platform.mounts for platform in ROW.values())


def test_on_aistudio_work_is_there_after_a_restart_and_data_is_not(tmp_path):
    """The fake does as users report, so that a test of a resume there means something."""
    with fake_aistudio(tmp_path, data={"train.csv": "1"}) as studio:
        for folder in (studio.work, studio.data):
            (folder / "mine").write_text("x")
        (studio.work / "dropped").write_text("x")
        (studio.work / "dropped").unlink()
    with fake_aistudio(tmp_path, data={"train.csv": "1"}) as studio:
        assert {path.name for path in studio.work.iterdir()} == {"mine"}
        assert {path.name for path in studio.data.iterdir()} == {"train.csv"}


def test_on_aistudio_the_card_is_chosen_at_the_start(tmp_path):
    """No drawing by chance, no reconnecting; the limits are old, and said to be unsure."""
    menus = AIStudioPlatform().menus(laptop(tmp_path))
    assert (menus.reconnect, menus.draws) == (None, False)
    assert "启动环境" in menus.enable
    assert "A800 with 80 GB" in menus.offered
    limits = AIStudioPlatform().limits(laptop(tmp_path))
    assert (limits.max_seconds, limits.idle_seconds, limits.confidence) == (None, 3600.0, "low")


def test_an_aistudio_that_was_not_recognised_still_uses_its_work_folder(tmp_path):
    """The current folder would be reset; the folder below it that is kept is taken, and that is told."""
    with fake_aistudio(tmp_path, signs=["folders"]) as studio:
        platform = find_platform(studio.environment)
        home = platform.home(studio.environment)
        assert platform.name == "jupyter"
        assert (home.folder, home.persists) == (str(studio.work / "colabkeep-runs"), None)
        assert "COLABKEEP_PLATFORM=aistudio" in home.remedy


def test_on_a_machine_of_ones_own_they_lie_beside_the_script(tmp_path):
    """It is the user's own disk, so that counts as kept, without a warning."""
    here = laptop(tmp_path)
    home = find_platform(here).home(here)
    assert (home.folder, home.persists, home.remedy) == (str(here.folder / "colabkeep-runs"), True, "")


OVERLAY = "overlay / overlay rw,lowerdir=/l,upperdir=/u 0 0\nproc /proc proc rw 0 0\n"
DISK = "/dev/sda2 / ext4 rw 0 0\n"


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("/.dockerenv", "/.dockerenv"),
        ("/run/.containerenv", "/run/.containerenv"),
        ("container=podman", "container is set"),
        ("KUBERNETES_SERVICE_HOST=10.0.0.1", "Kubernetes"),
        ("CLOUD_ML_JOB_ID=123", "Vertex AI"),
        ("AIP_MODEL_DIR=gs://bucket/model", "Vertex AI"),
        ("SM_TRAINING_ENV={}", "SageMaker"),
        ("AWS_BATCH_JOB_ID=1f2e", "AWS Batch"),
        ("ECS_CONTAINER_METADATA_URI_V4=http://169.254.170.2/v4/1", "ECS"),
        ("K_SERVICE=trainer", "Cloud Run"),
        ("CLOUD_RUN_JOB=trainer", "Cloud Run"),
        ("DATABRICKS_RUNTIME_VERSION=17.3", "Databricks"),
        ("SPACE_ID=ada/space", "Space"),
        ("CI=true", "CI"),
        ("GITHUB_ACTIONS=true", "CI"),
        (OVERLAY, "overlay"),
        (f"{DISK}overlay /home overlay rw 0 0\n", "overlay"),
        (f"{DISK}tmpfs /home/student tmpfs rw 0 0\n", "tmpfs"),
        ("overlay / overlay rw 0 0\n/dev/sda2 /home/stud ext4 rw 0 0\n", "overlay"),
    ],
)
@pytest.mark.parametrize("shell", ["", "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f>"])
def test_a_machine_that_may_vanish_is_never_said_to_last(tmp_path, mark, named, shell):
    """A container, a pod, a job of CI or of a cloud: nobody inside can tell what is kept, so a place is asked for."""
    here = replace(laptop(tmp_path), shell=shell)
    if "\n" in mark:
        here.path("/proc").mkdir()
        here.path("/proc/mounts").write_text(mark)
    elif mark.startswith("/"):
        here.path(mark).parent.mkdir(exist_ok=True)
        here.path(mark).touch()
    else:
        name, _, value = mark.partition("=")
        here = replace(here, environ={**here.environ, name: value})
    platform = find_platform(here)
    home = platform.home(here)
    assert home.persists is None
    assert named in home.reason
    assert "storage=" in home.remedy
    assert "own has no limit" not in platform.limits(here).source


@pytest.mark.parametrize(
    ("mounts", "variables"),
    [
        (DISK, {}),
        (DISK, {"CI": "false", "container": ""}),
        ("overlay / overlay rw 0 0\n/dev/sda2 /home btrfs rw 0 0\n", {}),
        ("overlay /home overlay rw 0 0\n/dev/sda2 /home xfs rw 0 0\n", {}),
        ("garbage\n\n / \noverlay relative overlay\n", {}),
    ],
    ids=["disk", "no", "image-based system", "mounted over", "garbage"],
)
def test_a_machine_of_ones_own_is_not_taken_for_a_container(tmp_path, mounts, variables):
    """A system whose root is made of layers and whose home lies on the disk lasts, as any other does."""
    here = laptop(tmp_path)
    here = replace(here, environ={**here.environ, **variables})
    here.path("/proc").mkdir()
    here.path("/proc/mounts").write_text(mounts)
    assert find_platform(here).home(here).persists is True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_service_without_its_lasting_folder_keeps_nothing(tmp_path, row):
    """What is missing is named, and a folder to name instead, or what to do."""
    here = laptop(tmp_path)
    home = ROW[row.name].home(here)
    assert (home.folder, home.persists) == (str(here.folder / "colabkeep-runs"), False)
    assert all(folder in home.reason for folder in row.folders)
    assert home.remedy == row.remedy


@pytest.mark.parametrize("row", [row for row in ROWS if row.folders], ids=lambda row: row.name)
def test_a_service_keeps_what_lies_in_its_lasting_folder(tmp_path, row):
    """The best one that is there; unproven where the facts are."""
    here = laptop(tmp_path)
    for folder in reversed(row.folders):
        here.path(folder.replace("~", "/home/student")).mkdir(parents=True)
        home = ROW[row.name].home(here)
        assert home.folder == str(here.path(folder.replace("~", "/home/student")) / "colabkeep-runs")
        assert home.persists is row.persists


def test_a_secret_elsewhere_is_a_variable(tmp_path):
    """AI Studio, the rows, Jupyter and scripts read the environment variable of that name; an empty one is none."""
    here = laptop(tmp_path)
    here = replace(here, environ={**here.environ, "MINE": "value", "EMPTY": ""})
    for platform in (AIStudioPlatform(), ROW["spaces"], find_platform(here)):
        assert platform.secret(here, "MINE", timeout=1.0) == "value"
        with pytest.raises(SecretError, match="EMPTY") as caught:
            platform.secret(here, "EMPTY", timeout=1.0)
        assert "getpass" in caught.value.remedy


# -- storage="auto" --------------------------------------------------------------------------------


def test_auto_refuses_a_place_that_vanishes(tmp_path, monkeypatch):
    """Nobody trains for hours into a disk that is deleted: an error, with the line to type."""
    at(monkeypatch, replace(laptop(tmp_path), environ={"MODAL_TASK_ID": "ta-1"}))
    with pytest.raises(NotPersistent) as caught:
        find_store("auto")
    assert 'storage="/<volume>/checkpoints"' in caught.value.remedy
    assert str(tmp_path) in caught.value.problem


def test_binder_asks_for_a_place_elsewhere(tmp_path, monkeypatch):
    """It keeps nothing, so a training begins only where a storage is named."""
    at(monkeypatch, replace(laptop(tmp_path), environ={"BINDER_LAUNCH_HOST": "https://mybinder.org/"}))
    with pytest.raises(NotPersistent, match="Binder") as caught:
        find_store("auto")
    assert 'storage="hf://' in caught.value.remedy


def test_auto_is_the_folder_of_the_platform(tmp_path, monkeypatch):
    """On a laptop beside the script; nothing is made before the first save."""
    here = laptop(tmp_path)
    at(monkeypatch, here)
    store = find_store("auto")
    assert isinstance(store, DirectoryStore)
    assert store.url == str(here.folder / "colabkeep-runs")
    assert list(here.folder.iterdir()) == []


def test_auto_on_kaggle_takes_an_unproven_place(tmp_path, monkeypatch):
    """An interactive session may keep its files or not: that is a warning's business, not an error's."""
    with fake_kaggle(tmp_path) as kaggle:
        at(monkeypatch, kaggle.environment)
        assert find_store("auto").url == str(kaggle.root / "kaggle" / "working" / "colabkeep-runs")
