"""Kaggle: what kind of session, what is kept of it, what to click, and secrets."""

from __future__ import annotations

import traceback

import pytest

from colabkeep.core.errors import SecretError
from colabkeep.platforms.kaggle import KagglePlatform, earlier_runs
from colabkeep.testing.platforms import laptop
from tests.fakes.platforms import fake_kaggle

HOUR = 3600.0
VALUE = "hf_the_value_that_nobody_may_see"
kaggle_platform = KagglePlatform()


def make_run(folder, name="r"):
    (folder / name / "checkpoints").mkdir(parents=True)
    (folder / name / "run.json").write_text("{}")


@pytest.mark.parametrize(
    ("words", "kind", "hours", "ends_cleanly", "persists"),
    [
        ({}, "interactive", 12, False, None),
        ({"run_type": "Batch"}, "batch", 12, True, True),
        ({"run_type": "batch"}, "batch", 12, True, True),
        ({"run_type": "Batch", "tpu": True}, "batch tpu", 9, True, True),
        ({"tpu": True}, "interactive tpu", 9, False, None),
        ({"run_type": "Batch", "rerun": True}, "rerun", 12, True, None),
        ({"run_type": ""}, "interactive", 12, False, None),
        ({"run_type": "Scheduled"}, "interactive ('Scheduled')", 12, False, None),
        ({"run_type": "新" * 99, "tpu": True}, "interactive tpu ('" + "\\u65b0" * 40 + "')", 9, False, None),
    ],
    ids=str,
)
def test_each_kind_of_session_has_its_limit_and_its_fate(tmp_path, words, kind, hours, ends_cleanly, persists):
    """An unknown run type counts as interactive, which promises least, and its text is kept for the report."""
    with fake_kaggle(tmp_path, **words) as kaggle:
        here = kaggle.environment
        limits, home = kaggle_platform.limits(here), kaggle_platform.home(here)
        assert kaggle_platform.kind(here) == kind
        assert (limits.max_seconds, limits.idle_seconds, limits.ends_cleanly) == (hours * HOUR, None, ends_cleanly)
        assert limits.confidence == "high"
        assert home.persists is persists
        assert home.storage == home.folder == str(kaggle.root / "kaggle" / "working" / "colabkeep-runs")


def test_an_interactive_session_is_told_how_its_files_are_kept(tmp_path):
    """Save Version, or Persistence; and in all kinds, what to attach next time."""
    with fake_kaggle(tmp_path) as kaggle:
        home = kaggle_platform.home(kaggle.environment)
        assert "Save Version" in home.remedy
        assert "Persistence" in home.remedy
        assert "Add Input" in home.remedy
    with fake_kaggle(tmp_path, run_type="Batch") as kaggle:
        assert "Add Input" in kaggle_platform.home(kaggle.environment).reason


def test_a_wrongly_named_kaggle_keeps_nothing(tmp_path):
    """COLABKEEP_PLATFORM=kaggle on a laptop: the folder is not there, and that is said."""
    home = kaggle_platform.home(laptop(tmp_path))
    assert home.persists is False
    assert "COLABKEEP_PLATFORM" in home.remedy


def test_the_clicks_name_the_accelerators_and_the_phone(tmp_path):
    """The card is chosen in the settings, restarting draws no other; from a batch run the way leads by the editor."""
    with fake_kaggle(tmp_path) as kaggle:
        menus = kaggle_platform.menus(kaggle.environment)
        assert menus.enable == menus.switch
        for words in ("Settings → Accelerator", "T4 x2", "phone"):
            assert words in menus.enable
        assert menus.draws is False
        assert menus.offered == "GPU T4 x2 and TPU v5e-8"
        kaggle.environ["KAGGLE_KERNEL_RUN_TYPE"] = "Batch"
        assert "Save & Run All" in kaggle_platform.menus(kaggle.environment).switch


# -- earlier outputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["resnet", "notebooks/me/resnet", "datasets/me/set/versions/3", "a/b/c/d/e"])
def test_runs_are_found_wherever_an_output_was_attached(tmp_path, place):
    """The path of an input depends on how it was attached, so none is assumed."""
    make_run(tmp_path / "output" / "colabkeep-runs")
    make_run(tmp_path / "output" / "colabkeep-runs", "another")
    (tmp_path / "output" / "notebook.html").write_text("…")
    with fake_kaggle(tmp_path / "world", inputs={place: tmp_path / "output"}) as kaggle:
        found = str(kaggle.root / "kaggle" / "input" / place / "colabkeep-runs")
        assert kaggle_platform.home(kaggle.environment).earlier == (found,)


def test_all_outputs_are_found_in_an_order_that_does_not_change(tmp_path):
    """Two versions, and a folder that the user named: sorted by their paths."""
    make_run(tmp_path / "output" / "colabkeep-runs")
    make_run(tmp_path / "named" / "checkpoints of mine")
    inputs = {"v2": tmp_path / "output", "v1": tmp_path / "output", "other": tmp_path / "named"}
    with fake_kaggle(tmp_path / "world", inputs=inputs) as kaggle:
        top = kaggle.root / "kaggle" / "input"
        assert earlier_runs(kaggle.environment) == (
            str(top / "other" / "checkpoints of mine"),
            str(top / "v1" / "colabkeep-runs"),
            str(top / "v2" / "colabkeep-runs"),
        )


def test_what_only_looks_like_a_run_is_none(tmp_path):
    """A data set's own run.json, a folder of that name, a link to a run elsewhere."""
    data = tmp_path / "data"
    (data / "mlflow").mkdir(parents=True)
    (data / "mlflow" / "run.json").write_text("{}")
    (data / "trap" / "r" / "run.json").mkdir(parents=True)
    (data / "trap" / "r" / "checkpoints").mkdir()
    make_run(tmp_path / "elsewhere")
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "linked").mkdir()
    (data / "linked" / "run.json").symlink_to(tmp_path / "elsewhere" / "r" / "run.json")
    (data / "linked" / "checkpoints").symlink_to(tmp_path / "elsewhere" / "r" / "checkpoints")
    (data / "halfway" / "checkpoints").mkdir(parents=True)
    (data / "halfway" / "run.json").symlink_to(tmp_path / "elsewhere" / "r" / "run.json")
    (data / "round").symlink_to(data)
    with fake_kaggle(tmp_path / "world", inputs={"data": data}) as kaggle:
        assert earlier_runs(kaggle.environment) == ()


def test_a_large_data_set_beside_it_hides_no_output(tmp_path):
    """Thousands of folders and files are attached too, and come first in the alphabet."""
    data = tmp_path / "data"
    for number in range(1200):
        (data / "train" / f"class {number:04d}").mkdir(parents=True)
    for number in range(1100):
        (data / f"{number}.png").touch()
    make_run(tmp_path / "output" / "colabkeep-runs")
    with fake_kaggle(tmp_path / "world", inputs={"aa": data, "zz/me/run": tmp_path / "output"}) as kaggle:
        assert len(earlier_runs(kaggle.environment)) == 1


@pytest.mark.parametrize("crowded", ["colabkeep-runs/r", "colabkeep-runs", "."])
def test_no_run_is_lost_among_thousands_of_files(tmp_path, crowded):
    """A training that wrote its samples beside its checkpoints: the disk lists them in no order, and the run counts."""
    output = tmp_path / "output"
    make_run(output / "colabkeep-runs")
    for number in range(5000):
        (output / crowded / f"sample {number}.png").touch()
    for number in range(300):
        (output / crowded / f"class {number}").mkdir()
    with fake_kaggle(tmp_path / "world", inputs={"me/run": output}) as kaggle:
        top = kaggle.root / "kaggle" / "input"
        assert earlier_runs(kaggle.environment) == (str(top / "me" / "run" / "colabkeep-runs"),)


def test_the_search_ends_whatever_is_attached(tmp_path):
    """A tree that is deep and wide is given up on, and the depth is bounded too."""
    deep = tmp_path / "data"
    for _ in range(30):
        deep = deep / "deeper"
    make_run(deep)
    with fake_kaggle(tmp_path / "world", inputs={"data": tmp_path / "data"}) as kaggle:
        assert earlier_runs(kaggle.environment) == ()


# -- secrets ---------------------------------------------------------------------------------------


def test_a_secret_is_handed_over(tmp_path):
    """By its label, from the service."""
    with fake_kaggle(tmp_path, secrets={"HF": VALUE}) as kaggle:
        assert kaggle_platform.secret(kaggle.environment, "HF", timeout=10.0) == VALUE


@pytest.mark.parametrize(
    ("service", "label", "problem", "remedy"),
    [
        ("answers", "WANDB", "No secret 'WANDB' is attached", "Add-ons → Secrets"),
        ("offline", "HF", "Temporary failure in name resolution", "Internet on"),
        ("times out", "HF", "TimeoutError", "Internet on"),
        ("refuses", "HF", "code 403", "Add-ons → Secrets"),
        ("fails", "HF", "code 500", "in a minute"),
        ("changed", "HF", "in a form that its client does not know", "in a minute"),
        ("page", "HF", "answered with a web page", "in a minute"),
        ("cut", "HF", "cut short", "in a minute"),
        ("silent", "HF", "answered with nothing at all", "in a minute"),
        ("answers", "EMPTY", "is attached to this notebook, and it is empty", "give it its value"),
        ("answers", " ", "empty", "label"),
    ],
)
def test_each_failure_has_its_own_sentence_and_never_the_value(tmp_path, service, label, problem, remedy):
    """A refusal comes as a ConnectionError too, and is not called "internet off"; the value is in no traceback."""
    kaggle = fake_kaggle(tmp_path, secrets={"HF": VALUE, "EMPTY": ""}, service=service)
    with kaggle as machine, pytest.raises(SecretError) as caught:
        kaggle_platform.secret(machine.environment, label, timeout=10.0)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    if service in ("refuses", "fails"):
        assert "Internet" not in str(caught.value)
    assert VALUE not in "".join(traceback.format_exception(caught.value))


def test_a_session_without_a_token_is_told_apart(tmp_path):
    """No token: this session may read no secret at all."""
    with fake_kaggle(tmp_path, secrets={"HF": VALUE}) as kaggle:
        del kaggle.environ["KAGGLE_USER_SECRETS_TOKEN"]
        with pytest.raises(SecretError, match="no token") as caught:
            kaggle_platform.secret(kaggle.environment, "HF", timeout=10.0)
        assert "restart" in caught.value.remedy


@pytest.mark.timeout(20)
def test_a_service_that_never_answers_is_given_up_on(tmp_path):
    """The deadline holds, and the next cell goes on."""
    kaggle = fake_kaggle(tmp_path, secrets={"HF": VALUE}, service="hangs")
    with kaggle as machine, pytest.raises(SecretError, match=r"within 0\.2 s"):
        kaggle_platform.secret(machine.environment, "HF", timeout=0.2)


@pytest.mark.parametrize("service", ["answers", "offline"])
def test_a_variable_of_that_name_stands_in(tmp_path, service):
    """What the service does not give, the environment may."""
    with fake_kaggle(tmp_path, service=service) as kaggle:
        kaggle.environ["HF"] = VALUE
        assert kaggle_platform.secret(kaggle.environment, "HF", timeout=10.0) == VALUE


def test_off_kaggle_there_is_no_client(tmp_path):
    """COLABKEEP_PLATFORM=kaggle on a laptop: said as it is."""
    with pytest.raises(SecretError, match="no Kaggle machine"):
        kaggle_platform.secret(laptop(tmp_path), "HF", timeout=10.0)
