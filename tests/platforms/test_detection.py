"""Where am I? Told from the machine alone, and by the user where that is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from colabkeep.core.errors import UsageError
from colabkeep.core.system import Environment
from colabkeep.platforms import find_platform, platform_names
from colabkeep.platforms.services import ROWS
from colabkeep.testing.platforms import laptop
from tests.fakes.platforms import fake_aistudio, fake_colab, fake_kaggle

KERNEL = "<ipykernel.zmqshell.ZMQInteractiveShell object at 0x7f1b2c3d4e5f>"
TERMINAL = "<IPython.terminal.interactiveshell.TerminalInteractiveShell object at 0x7f1b2c3d4e5f>"


def found(environment, name=None):
    platform = find_platform(environment, name)
    return platform.name, platform.kind(environment)


def test_kaggle_is_not_taken_for_colab_though_it_looks_like_it(tmp_path):
    """Its image is Colab's: the module, the tag and /content are there."""
    with fake_kaggle(tmp_path) as kaggle:
        assert kaggle.environment.modules >= {"google.colab"}
        assert kaggle.environ["COLAB_RELEASE_TAG"]
        assert found(kaggle.environment) == ("kaggle", "interactive")


def test_colab_is_not_taken_for_kaggle_though_the_user_has_its_keys(tmp_path):
    """A notebook on Colab that downloads from Kaggle."""
    with fake_colab(tmp_path) as colab:
        colab.environ |= {"KAGGLE_USERNAME": "me", "KAGGLE_KEY": "0", "KAGGLE_CONFIG_DIR": "/content"}
        (colab.root / "kaggle" / "working").mkdir(parents=True)
        assert find_platform(colab.environment).name == "colab"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "kaggle"),
        ({"KAGGLE_KERNEL_RUN_TYPE": ""}, "kaggle"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "", "KAGGLE_URL_BASE": "", "KAGGLE_DATA_PROXY_URL": ""}, "kaggle"),
        (dict.fromkeys(["KAGGLE_URL_BASE", "KAGGLE_DATA_PROXY_URL", "KAGGLE_CONTAINER_NAME"], ""), "kaggle"),
        (dict.fromkeys(["KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE", "KAGGLE_DATA_PROXY_URL", "KAGGLE_CONTAINER_NAME"],
                       ""), None),
    ],
)  # fmt: skip
def test_kaggle_needs_its_run_type_or_its_folder_and_a_variable_of_the_service(tmp_path, changes, expected):
    """One of them may be missing; the folder alone, which anybody can make, is not enough."""
    with fake_kaggle(tmp_path) as kaggle:
        kaggle.environ |= changes
        assert (find_platform(kaggle.environment).name == "kaggle") is (expected == "kaggle")


@pytest.mark.parametrize("sign", ["hostname", "prefix", "variables", "webide"])
def test_aistudio_is_known_by_its_folder_and_any_one_sign(tmp_path, sign):
    """No marker is official, so each that users have shown is enough beside the folder."""
    with fake_aistudio(tmp_path, signs=[sign]) as studio:
        assert found(studio.environment) == ("aistudio", "notebook")


def test_a_home_folder_of_that_name_makes_no_aistudio(tmp_path):
    """A user called aistudio, with ~/work, ~/data, the token and the settings of aistudio-sdk, on a laptop."""
    with fake_aistudio(tmp_path, signs=["folders"]) as studio:
        assert (studio.work.is_dir(), studio.data.is_dir()) == (True, True)
        studio.environ |= {"STUDIO_GIT_HOST": "git.aistudio.baidu.com", "STUDIO_CDN_HOST": "cdn"}
        assert found(replace(studio.environment, shell="")) == ("script", "process")
        assert found(studio.environment) == ("jupyter", "notebook")


def test_its_signs_without_its_folder_make_no_aistudio(tmp_path):
    """A laptop with the name of one of its hosts is a laptop."""
    here = replace(laptop(tmp_path), hostname="jupyter-1234567-7654321")
    assert find_platform(here).name == "script"


@pytest.mark.parametrize("number", range(8))
def test_no_folder_name_alone_makes_a_service(tmp_path, number):
    """Folders named as those of services, on a machine of one's own."""
    folders = ["/workspace", "/workspaces", "/data", "/notebooks", "/mnt/workspace", "/home/jupyter",
               "/home/studio-lab-user", "/kaggle/working"]  # fmt: skip
    here = laptop(tmp_path)
    here.path(folders[number]).mkdir(parents=True)
    assert find_platform(here).name == "script"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_marker_of_a_row_is_enough_and_no_part_of_it_is(tmp_path, row):
    """All signs of any one marker; take one of them away, and it is a plain script."""
    for number, signs in enumerate(row.markers):
        for without in (None, *signs):
            here = laptop(tmp_path / f"{number} {'' if without is None else signs.index(without)}")
            environ = {name: value for name, value in here.environ.items() if name not in ("SYSTEM",)}
            for sign in signs:
                name, _, value = sign.partition("=")
                if sign == without:
                    environ |= {} if sign.startswith("/") or not value else {name: f"not {value}"}
                elif sign.startswith("/"):
                    here.path(sign).mkdir(parents=True, exist_ok=True)
                else:
                    environ[name] = value or "x"
            platform = find_platform(replace(here, environ=environ))
            assert platform.name == (row.name if without is None else "script")


@pytest.mark.parametrize(
    ("shell", "variables", "expected"),
    [
        ("", {}, ("script", "process")),
        (TERMINAL, {}, ("script", "terminal")),
        (KERNEL, {}, ("jupyter", "notebook")),
        (KERNEL, {"VSCODE_PID": "12"}, ("jupyter", "vscode")),
        ("", {"JPY_PARENT_PID": "11"}, ("jupyter", "process")),
        ("", {"VSCODE_PID": "12"}, ("script", "process")),
    ],
)
def test_a_machine_of_ones_own_is_jupyter_or_a_script(tmp_path, shell, variables, expected):
    """By the shell that runs the code, and by what a kernel hands to its children."""
    here = laptop(tmp_path)
    assert found(replace(here, shell=shell, environ={**here.environ, **variables})) == expected


def test_the_users_word_goes_before_what_is_seen(tmp_path):
    """The argument before the variable, the variable before the machine; in any case, with blanks around."""
    with fake_kaggle(tmp_path) as kaggle:
        kaggle.environ["COLABKEEP_PLATFORM"] = " Script "
        assert find_platform(kaggle.environment).name == "script"
        assert find_platform(kaggle.environment, "AIStudio").name == "aistudio"
        kaggle.environ["COLABKEEP_PLATFORM"] = "  "
        assert find_platform(kaggle.environment).name == "kaggle"


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_an_unknown_platform_is_refused_with_the_known_ones(tmp_path, by):
    """The error shows what was written, where, and every name there is."""
    here = laptop(tmp_path)
    environ, argument = ({}, "collab") if by == "argument" else ({"COLABKEEP_PLATFORM": "collab"}, None)
    with pytest.raises(UsageError) as caught:
        find_platform(replace(here, environ=environ), argument)
    assert ("platform='collab'" if by == "argument" else "COLABKEEP_PLATFORM='collab'") in caught.value.problem
    assert all(name in caught.value.remedy for name in platform_names())


def test_every_platform_has_a_name_of_its_own():
    """The order in which they are asked: Kaggle before Colab, the machine of one's own last."""
    names = platform_names()
    assert len(set(names)) == len(names)
    assert names[:3] == ("kaggle", "aistudio", "colab")
    assert names[-2:] == ("jupyter", "script")
    assert {"studiolab", "gradient", "lightning", "spaces", "deepnote", "codespaces", "databricks", "modelscope",
            "runpod", "modal", "binder", "workbench"} <= set(names[3:-2])  # fmt: skip


def test_the_real_machine_can_be_asked():
    """Whatever this is, it has a platform, which tells where checkpoints go."""
    here = Environment.here()
    platform = find_platform(here, None)
    assert platform.name in platform_names()
    assert platform.home(here).storage


def test_recognising_a_service_loads_no_other():
    """The first that matches is the last that is loaded, and nothing heavy is."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from colabkeep.platforms import find_platform\n"
        "from colabkeep.core.system import Environment\n"
        "here = Environment(environ={'KAGGLE_KERNEL_RUN_TYPE': 'Batch'}, root=Path('/nowhere'), folder=Path('/'))\n"
        "assert find_platform(here).name == 'kaggle'\n"
        "for name in ('colabkeep.platforms.colab.platform', 'colabkeep.platforms.services', 'torch', 'urllib.error'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
