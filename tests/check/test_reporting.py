"""What the check shows: text that is short, HTML that is safe, JSON that keeps its words."""

from __future__ import annotations

import dataclasses
import json
import sys
from html.parser import HTMLParser

import pytest

from tests.fakes.devices import FakeCard

TORCH = "torch 2.10.0+cu128"


@pytest.fixture
def report(world):
    """The report on a machine: platform, cards, and what else is special about it."""

    def make(platform, cards=(), *, torch=TORCH, words=(), **more):
        world.install(*([torch] if torch else []))
        return world.check(world.start(platform, cards, **more), **dict(words))

    return make


def test_a_good_machine_takes_four_lines(report):
    """Where, which card, how fast, where checkpoints live, how long, which settings, the first cell for the same bits:
    and nothing else."""
    lines = str(report("colab", ["Tesla T4"], drive="mounted")).splitlines()
    assert len(lines) == 4
    assert 'os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"; import torch; torch.use_det' in lines[3]
    assert lines[0] == ("Google Colab (hosted), Tesla T4 15.0 GiB: keep. Tier B, the card that others are measured by.")
    assert "/content/drive/MyDrive/colabkeep, which is kept when this session ends" in lines[1]
    assert "10 min used, at most 11 h 50 min left" in lines[1]
    assert lines[2].startswith('Use precision="16-mixed" (never bf16 on this card), num_workers=')


def test_a_machine_out_of_order_says_what_and_what_to_do(report):
    """The click has a line of its own below the verdict, and every warning one of its own."""
    lines = str(report("colab", [])).splitlines()
    assert lines[0].startswith("Google Colab (hosted), no GPU: turn one on. ")
    assert lines[1].startswith("→ Runtime > Change runtime type")
    assert [line for line in lines if line.startswith("! ")]


def test_the_idle_limit_is_told_with_how_sure_it_is(report):
    """Beside the other limit, or alone; and where no figure is known, none is made up."""
    idle = "it may end after 90 min without you at the page (medium confidence)."
    assert f"left (low confidence); {idle[:-1]};" in str(report("colab", ["Tesla T4"]))
    assert "Session: it may end after 60 min without you at the page (low confidence)." in str(report("aistudio"))
    assert "without you" not in str(report("kaggle", ["Tesla T4"]))
    assert "Session:" not in str(report("script"))


def test_how_long_sessions_really_live_stands_beside_the_limit(report):
    """Twelve hours are the most that Colab gives; who plans with them is told what users report."""
    told = str(report("colab", ["Tesla T4"]))
    assert "at most 12 h" in told or "at most 11 h" in told
    assert "users report 1.5 to 3.5 hours on free machines" in told
    mine = str(report("colab", ["Tesla T4"], environ={"COLABKEEP_SESSION_LIMIT": "24 h"}))
    assert "users report" not in mine, "whoever says how long it lasts knows"


def test_a_process_that_may_have_no_more_threads_has_a_report(report, monkeypatch):
    """Each question is told to be open, and why; nothing is raised."""

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    told = str(report("script"))
    assert "the platform (RuntimeError: can't start new thread)" in told
    assert "the accelerators (RuntimeError: can't start new thread)" in told


def test_a_part_that_ends_the_program_is_a_line_with_its_reason(report, monkeypatch):
    """A package that calls sys.exit where it is looked at ends its own question, and is named."""
    monkeypatch.setattr("colabkeep.ui.check.facts.usable_cpus", lambda _: sys.exit("no licence"))
    assert "the CPUs (SystemExit: no licence)" in str(report("script"))


def test_json_has_the_words_that_are_documented(report):
    """The same keys on every machine, numbers in bytes and seconds, strict JSON."""
    told = json.loads(report("kaggle batch", ["Tesla T4", "Tesla T4"]).to_json(), parse_constant=pytest.fail)
    assert set(told) == {"platform", "accelerators", "verdict", "advice", "storage", "session", "machine"}
    assert told["platform"] == {"name": "kaggle", "title": "Kaggle", "kind": "batch"}
    assert (
        told["accelerators"]
        == [
            {
                "kind": "cuda",
                "name": "Tesla T4",
                "memory_bytes": 15360 * 2**20,
                "capability": [7, 5],
                "tier": "B",
                "score": 1.0,
            }
        ]
        * 2
    )
    assert told["verdict"] == "keep"
    assert all(set(line) == {"code", "text"} for line in told["advice"])
    assert set(told["storage"]) == {"url", "persistent", "free_bytes", "limits", "limits_of"}
    assert told["storage"]["persistent"] is True
    assert told["session"] == {"used_s": 600.0, "limit_s": 43200.0, "left_s": 42600.0, "confidence": "low"}


@pytest.mark.parametrize("platform", ["script", "colab", "kaggle tpu", "aistudio"])
def test_json_has_the_same_words_where_nothing_is_known(report, platform):
    """A program need not ask which keys there are."""
    told = report(platform, torch=None).to_dict()
    assert set(told) == {"platform", "accelerators", "verdict", "advice", "storage", "session", "machine"}
    assert set(told["storage"]) == {"url", "persistent", "free_bytes", "limits", "limits_of"}
    assert set(told["session"]) == {"used_s", "limit_s", "left_s", "confidence"}


MACHINE = {"colabkeep", "python", "system", "front_end", "vscode", "marks", "packages", "file_system", "may_vanish",
           "builds", "drivers", "found_by", "supported", "trial", "trouble", "storage_reason", "time_source", "idle_s",
           "cpus", "unanswered"}  # fmt: skip


@pytest.mark.parametrize("platform", ["script", "colab", "kaggle batch", "aistudio", "jupyter"])
def test_json_tells_the_facts_that_the_page_of_manual_checks_asks_for(report, platform):
    """Versions, driver, front end, marks: whoever reads the line from afar need not ask for more."""
    machine = report(platform, ["Tesla T4"]).to_dict()["machine"]
    assert set(machine) == MACHINE
    assert machine["drivers"] == ["580.82.07"]
    assert machine["found_by"] == ["nvidia-smi"]
    assert [(one["version"], one["cuda"]) for one in machine["builds"]] == [("2.10.0+cu128", "12.8")]
    assert machine["packages"]["safetensors"]
    assert machine["front_end"] in ("notebook", "process")


SECRETS = ("KAGGLE_KEY", "KAGGLE_API_TOKEN", "KAGGLE_USER_SECRETS_TOKEN", "COLAB_JUPYTER_TOKEN", "SLURM_JWT",
           "STUDIO_MODEL_API_SDK_TOKEN", "JUPYTERHUB_API_TOKEN", "LIGHTNING_API_KEY", "SM_TOKEN", "HF_TOKEN",
           "AWS_SECRET_ACCESS_KEY", "COLABKEEP_DRIVE", "GITHUB_TOKEN", "MODAL_TOKEN_SECRET", "DATABRICKS_TOKEN",
           "AISTUDIO_ACCESS_TOKEN")  # fmt: skip


@pytest.mark.parametrize(
    "platform", ["script", "colab", "colab process", "kaggle", "kaggle batch", "aistudio", "jupyter"]
)
def test_no_secret_is_in_what_is_sent_back(report, platform):
    """Each token of the services and of the user is set, and none of what they hold is in the report, in any form."""
    value = "s3cr3t-Value-7f9a"
    made = report(platform, ["Tesla T4"], environ=dict.fromkeys(SECRETS, value))
    assert "KAGGLE_KEY" in made.to_dict()["machine"]["marks"], "names are told"
    for text in (made.to_json(), str(made), made._repr_html_()):
        assert value not in text
        assert value.lower() not in text.lower()


class Tags(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_html_says_what_the_text_says(report):
    """All lines, and the advice in full; nothing that an untrusted notebook would strip."""
    made = report("kaggle", ["Tesla P100-PCIE-16GB"])
    page = Tags(made._repr_html_())
    assert all(line in page.text for line in str(made).splitlines())
    assert all(line["text"][:60] in page.text for line in made.to_dict()["advice"])
    assert page.tags == {"div", "b", "br", "details", "summary", "ul", "li"}
    assert page.attributes == {"style"}


EVIL = "<img src=x onerror=alert(1)> & \"'"


def test_html_takes_nothing_from_the_machine_for_markup(report, world):
    """A card or a variable that is named like a tag is shown, not obeyed."""
    card = FakeCard(name=EVIL)
    made = report("script", [card], environ={"COLABKEEP_PLATFORM": EVIL})
    page = Tags(made._repr_html_())
    assert page.tags == {"div", "b", "br", "details", "summary", "ul", "li"}
    assert [one["name"] for one in made.to_dict()["accelerators"]] == [EVIL]
    assert EVIL in page.text
    assert "onerror=alert(1)" in page.text


def test_text_cannot_steer_the_terminal(world):
    """A folder's name is printed without its escape codes, and cannot begin a line of its own."""
    world.install(TORCH)
    environment = world.start("script")
    made = world.check(dataclasses.replace(environment, folder=environment.root / "\x1b[2Jx\r\nkeep"))
    assert "\x1b" not in str(made)
    assert "\r" not in str(made)
    assert not any(line.startswith("keep") for line in str(made).splitlines())


def test_the_same_card_again_is_handed_in_by_name(report):
    """`check(previous=…)` ends the trying on a service that draws cards."""
    cards = ["Tesla K80"]
    assert report("colab", cards, torch="torch 2.0.1+cu118").to_dict()["verdict"] == "reconnect"
    again = report("colab", cards, torch="torch 2.0.1+cu118", words={"previous": ["K80"]})
    assert again.to_dict()["verdict"] == "switch"
    assert "stop trying" in str(again)


@pytest.mark.parametrize(
    ("torch", "behaves", "word", "advised"),
    [
        ("torch 2.10.0+cu128", "raise RuntimeError('CUDA error: no kernel image is available')", "switch", False),
        ("torch 2.10.0+cu128", "raise RuntimeError('CUDA out of memory')", "switch", False),
        ("torch 2.10.0+cu128", "return 16.0", "keep", False),
        ("torch 2.12.0a0+cu130", "return 16.0", "keep", False),
        ("torch 2.12.0a0+cu130", "raise SystemExit", "switch", False),
    ],
)
def test_doubt_is_settled_by_a_trial_if_asked(report, world, torch, behaves, word, advised):
    """What the table or a strange version says of the build is believed less than a computation on the card."""
    version = torch.split()[1]
    package = world.folder / "probed" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"""
class _Number:
    def __mul__(self, _): return self
    def sum(self): return self
    def item(self):
        {behaves}
class version: cuda, hip = "12.8", None
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
__version__ = {version!r}
def ones(*_, **__): return _Number()
"""
    )
    environ = {"PYTHONPATH": str(package.parent)}
    told = report("kaggle", ["Tesla P100-PCIE-16GB"], torch=torch, words={"probe": True}, environ=environ)
    assert told.to_dict()["verdict"] == word
    assert told.checkup.facts.probe is not None
    assert any(line["code"] == "kernels-unknown" for line in told.to_dict()["advice"]) is advised


def test_what_is_certain_is_not_tried(report, monkeypatch):
    """A card that the build has kernels for, one without CUDA, and no card at all: no second process is started."""
    monkeypatch.setattr("colabkeep.ui.check.facts.probe", lambda *_, **__: pytest.fail("a trial"))
    words = {"probe": True}
    assert report("kaggle", ["Tesla T4"], words=words).to_dict()["verdict"] == "keep"
    assert report("kaggle", ["Tesla T4"], torch="torch 2.10.0+cpu", words=words).to_dict()["verdict"] == "unusable"
    assert report("kaggle", [], words=words).to_dict()["verdict"] == "enable"
    assert report("kaggle", ["Tesla T4"], torch=None, words=words).to_dict()["verdict"] == "keep"
