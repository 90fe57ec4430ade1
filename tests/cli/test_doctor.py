"""`colabkeep doctor`: the check on the command line."""

from __future__ import annotations

import json

import pytest

from colabkeep.core.system import Environment
from colabkeep.hardware.base import Build
from colabkeep.hardware.probe import ProbeResult
from colabkeep.ui.check import facts
from tests.fakes.devices import fake_nvidia_smi
from tests.fakes.platforms import fake_colab


@pytest.fixture
def k80(tmp_path, monkeypatch):
    """This process is on a Colab with a K80."""
    with fake_colab(tmp_path) as colab:
        fake_nvidia_smi(colab.root / "usr/bin", ["Tesla K80"])
        colab.environ["PATH"] = "/usr/bin"
        monkeypatch.setattr(Environment, "here", classmethod(lambda _: colab.environment))
        yield


def test_doctor_says_what_to_do(colabkeep_cli, k80):
    """The report as text; an unlucky card is no failure of the command."""
    said = colabkeep_cli("doctor")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("Google Colab (hosted), Tesla K80 11.2 GiB: reconnect.")
    assert "→ Save first" in said.out


def test_doctor_speaks_json(colabkeep_cli, k80):
    """Machines get exactly the words that are documented."""
    told = colabkeep_cli("doctor", "--json").json
    assert set(told) == {"platform", "accelerators", "verdict", "advice", "storage", "session", "machine"}
    assert (told["platform"]["name"], told["verdict"]) == ("colab", "reconnect")
    (card,) = told["accelerators"]
    assert set(card) == {"kind", "name", "memory_bytes", "capability", "tier", "score"}
    assert (card["name"], card["capability"], card["tier"]) == ("Tesla K80", [3, 7], "D")


def test_doctor_tries_the_card_only_if_asked(colabkeep_cli, k80, monkeypatch):
    """`--probe` starts the trial, nothing else does."""
    tried = []

    def probe(framework, *_, timeout):
        tried.append((framework, timeout > 0))
        return ProbeResult(works=False, detail="No.")

    torch = Build(framework="torch", version="2.10.0+cu128", cuda="12.8", architectures=(), known_from="table")
    monkeypatch.setattr(facts, "probe", probe)
    monkeypatch.setattr(facts, "installed_build", lambda name: torch if name == "torch" else None)
    assert colabkeep_cli("doctor").status == 0
    assert tried == []
    assert colabkeep_cli("doctor", "--probe").status == 0
    assert tried == [("torch", True)]


def test_doctor_is_light_and_whole_in_a_process_of_its_own(process):
    """The real machine under the tests has a report too, on one line of strict JSON, and nothing on stderr."""
    said = process("doctor", "--json")
    assert (said.status, said.err) == (0, "")
    told = json.loads(said.out, parse_constant=pytest.fail)
    assert told["verdict"] in ("keep", "reconnect", "switch", "enable", "unusable")
    assert told["storage"]["free_bytes"] > 0


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_doctor_is_read_where_the_terminal_knows_no_arrows(process, monkeypatch, encoding):
    """A pipe or a locale without UTF-8 loses the signs that it does not have, and nothing else."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setenv("COLABKEEP_PLATFORM", "kaggle")
    said = process("doctor")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("Kaggle (interactive)")
    assert "Settings ? Accelerator" in said.out


def test_doctor_says_what_a_place_takes(colabkeep_cli, k80):
    """How often the Hub lets itself be written to, and where that is known from; nothing of a place without limits."""
    said = colabkeep_cli("doctor", "--storage", "hf://ada/run").out
    assert "Limits of hf://ada/run" in said
    assert "128 commits in an hour; a save takes 1" in said
    assert "Limits of" not in colabkeep_cli("doctor").out, "a good machine takes four lines"
    limits = colabkeep_cli("doctor", "--json", "--storage", "/content/fast + drive://runs").json["storage"]["limits"]
    assert (limits[0]["what"], limits[0]["most"], limits[0]["seconds"]) == ("bytes", 750 * 10**9, 86400.0)
    assert all(limit["source"] for limit in limits)
    buckets = colabkeep_cli("doctor", "--json", "--storage", "hf://buckets/ada/run").json["storage"]["limits"]
    assert [limit["what"] for limit in buckets] == ["requests"]
    assert colabkeep_cli("doctor", "--json", "--storage", "/content/fast").json["storage"]["limits"] == []
    assert "no limits are known" in colabkeep_cli("doctor", "--storage", "s3://bucket/runs").out
    said = " ".join(colabkeep_cli("doctor", "--storage", "kaggle://ada/checkpoints").out.split())
    assert "one is sent every 30 minutes, so that much training" in said


@pytest.mark.parametrize(
    "storage",
    [
        "hf://name/run?token=SESAME",
        "drive://SESAME@runs",
        "drive://runs?token=SESAME",
        "/content/fast + hf://u:SESAME@name/run",
        "s3://KEY:SESAME@bucket/runs",
        "https://u:SESAME@host/runs",
        "HF://name/run#SESAME",
    ],
)
def test_no_secret_of_a_storage_is_in_the_report(colabkeep_cli, k80, storage):
    """A report is sent to strangers: what stands before an "@" or behind a "?" in the place that was asked about is in
    neither form of it."""
    said, record = (
        colabkeep_cli("doctor", "--storage", storage),
        colabkeep_cli("doctor", "--json", "--storage", storage),
    )
    assert (said.status, record.status) == (0, 0)
    assert "SESAME" not in said.out + said.err + record.out + record.err
    named = record.json["storage"]["limits_of"]
    assert named.partition(":")[0] in storage
    assert "…" in named
