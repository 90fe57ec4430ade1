"""The report as people see it: text, HTML, a plot, a record, and the command line; and the other things with a face."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import colabkeep
from colabkeep.core.errors import CheckpointNotFound, MissingDependency, UsageError
from colabkeep.core.events import MachineGiven
from colabkeep.stores import open_store
from colabkeep.testing.clock import FakeClock
from colabkeep.ui.cli import main
from colabkeep.ui.report import report_on

HOUR = 3600.0
HOSTILE = "<script src=https://a.example>alert(1)</script>\x1b[31m\u202e</td></table>&amp;"


@pytest.fixture
def told(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> Path:
    """A run of three sessions on two machines; the second one ended unexpectedly."""
    kit.session(tmp_path, clock, to=17)
    clock.advance(2 * HOUR)
    journal = tmp_path / "r/journal"
    written: dict[Path, bytes] = {}  # by the second session, before its last step

    def look(run: Any) -> None:
        if run.progress.step == 31:
            written.update({file: file.read_bytes() for file in journal.glob(f"{run._session.id}-*")})

    lost = kit.session(tmp_path, clock, to=31, machine=kit.KAGGLE, each=look)
    for file in journal.glob(f"{lost._session.id}-*"):
        file.unlink()
    for file, content in written.items():
        file.write_bytes(content)
    (tmp_path / f"r/checkpoints/{lost.checkpoint}.json").unlink()
    clock.advance(HOUR)
    kit.session(tmp_path, clock, to=40)
    return tmp_path


def test_the_text_tells_it_all(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How it stands, each session with machine, steps, end and what was done again, and the saves."""
    print(colabkeep.report("r", storage=told))
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    assert first.startswith("r: finished. Since 2023-11-14 22:13 UTC, in ")
    assert (
        "Step 40 after 40 min of training, in 3 sessions over 3 h 41 min (3 h 01 min of that without a machine)" in out
    )
    rows = [line for line in rest if " · " in line]
    assert "colab hosted, Tesla T4" in rows[0]
    assert "0 to 17" in rows[0]
    assert rows[0].endswith("max_steps")
    assert "kaggle batch, Tesla P100 x2" in rows[1]
    assert "17 to 30 or more" in rows[1]
    assert "ended unexpectedly after 2023-11-15 00:" in rows[1]
    assert rows[1].endswith("none")
    assert "30 to 40" in rows[2]
    assert "0 steps or more, at most 61 min" in rows[2]
    saves = [line for line in rest if "local" in line]
    assert len(saves) >= 6
    assert any("deleted since" in line for line in saves)


def test_the_html_is_what_every_notebook_keeps(told: Path, kit: SimpleNamespace) -> None:
    """No script, no style sheet, no address; curve and marks are in a picture that says in words what it shows."""
    report = colabkeep.report("r", storage=told)
    shown = kit.Shown(report._repr_html_())
    assert "http" not in report._repr_html_()
    (picture,) = shown.pictures
    assert picture.startswith("loss, 40 points from step 1 to 40")
    assert "resumed at 17, resumed at 30" in picture
    for word in ("✔ FINISHED", "kaggle batch, Tesla P100 x2", "ended unexpectedly after", "at most 61 min", "As of "):
        assert word in shown.text, word


def test_a_run_of_many_sessions_is_shown_in_few_bytes(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """A notebook of many reports stays small; every session is there, and a name in it is text."""
    for number in range(1, 21):
        cards = ("NVIDIA RTX PRO 6000 Blackwell Server Edition" if number > 3 else "<script>alert(1)</script>",)
        machine = MachineGiven(platform="lightning", kind="studio", accelerators=cards, id=str(number))
        run = kit.session(tmp_path, clock, to=7 * number, machine=machine)
        clock.advance(HOUR)
    html = colabkeep.report("r", storage=tmp_path)._repr_html_()
    shown = kit.Shown(html)
    assert len(html.replace(str(tmp_path), "~").encode()) < 20_800  # how long a machine's folder is, it does not say
    assert all(f"{number} · " in shown.text for number in range(1, 21))
    assert f"20 · {run._session.id}" in shown.text
    assert "<script>alert(1)</script>" in shown.text


def test_whatever_a_journal_says_is_text(told: Path, kit: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup, terminal codes and changes of direction from a stranger's file are shown, not obeyed."""
    newest = sorted((told / "r/lease").glob("*.json"))[-1].stem.split("-")[1]
    kit.noted(
        told,
        newest,
        {"at": 1.0, "event": "Noted", "text": HOSTILE},
        {"at": 1.0, "event": "StoreDegraded", "url": HOSTILE, "detail": HOSTILE},
        {"at": 1.0, "event": "SaveFailing", "error": HOSTILE, "progress": {"step": 3, "seconds": 1.0}},
        {"at": 1.0, "event": "RunStopped", "reason": HOSTILE, "error": HOSTILE},
    )
    for file in (told / "r/lease").glob("*.json"):
        file.write_bytes(b"{}")  # so that the journal alone says which machine it was
    report = colabkeep.report("r", storage=told)
    html = report._repr_html_()
    assert "<script" not in html
    shown = kit.Shown(html)
    assert "<script src=" in shown.text
    print(report)
    text = capsys.readouterr().out
    assert HOSTILE.split("\x1b", maxsplit=1)[0] in text
    assert not {"\x1b", "\u202e"} & set(text + html)
    kit.strict(report.to_json())


def test_the_record_is_json_whatever_the_losses_were(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """A loss that is no finite number is a text; everything else has its type."""
    kit.session(tmp_path, clock, to=3, loss=lambda step: [1.5, math.nan, math.inf][step - 1])
    record = kit.strict(colabkeep.report(storage=tmp_path).to_json())
    assert record["losses"] == [[1, 1.5], [2, "nan"], [3, "inf"]]
    assert (record["name"], record["storage"], record["left_out"]) == ("r", str(tmp_path), 0)
    assert record["totals"]["steps"] == 3
    (session,) = record["sessions"]
    assert (session["platform"], session["accelerators"], session["stopped"]) == ("colab", ["Tesla T4"], "max_steps")
    assert session["saves"][0]["reason"] == "max_steps"
    kit.Shown(colabkeep.report(storage=tmp_path)._repr_html_())


def test_without_a_name_the_only_run_is_meant(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """With several an error names them, with none it says where it looked."""
    with pytest.raises(CheckpointNotFound, match=r"There is no run in .*nowhere"):
        colabkeep.report(storage=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    kit.session(tmp_path, clock, to=3)
    assert colabkeep.report(storage=tmp_path).run_history.run == "r"
    kit.session(tmp_path, clock, to=3, run_name="q")
    with pytest.raises(UsageError, match=r"There are 2 runs in .*: q, r\.") as error:
        colabkeep.report(storage=tmp_path)
    said = f"Say which one: colabkeep.report('q', storage={str(tmp_path)!r}), or `colabkeep report q --storage "
    assert error.value.remedy == f"{said}{str(tmp_path)!r}`."
    assert main(["report", *shlex.split(error.value.remedy.split("`")[1])[2:]]) == 0


def test_reading_changes_nothing(told: Path) -> None:
    """Not a file more, not a byte else."""
    before = {path: path.read_bytes() for path in told.rglob("*") if path.is_file()}
    str(colabkeep.report("r", storage=told))
    assert {path: path.read_bytes() for path in told.rglob("*") if path.is_file()} == before


def test_a_run_that_is_being_trained_can_be_reported(tmp_path: Path, kit: SimpleNamespace, clock: FakeClock) -> None:
    """From another notebook, without disturbing it; nobody knows yet how it ends."""
    seen: list[Any] = []

    def each(run: Any) -> None:
        if run.progress.step == 12:
            seen.append(report_on(open_store(tmp_path), "r"))

    kit.session(tmp_path, clock, to=20, each=each)
    (report,) = seen
    text = str(report)
    assert text.startswith("r: still training, or ended unexpectedly.")
    assert "still training, or ended unexpectedly after" in text
    assert "0 to 10 or more" in text or "0 to 11 or more" in text


def test_the_plot_shows_the_curve_and_the_sessions(told: Path, tmp_path: Path) -> None:
    """One line for the loss, one upright for each time it went on, one line for each session."""
    pytest.importorskip("matplotlib")
    report = colabkeep.report("r", storage=told)
    figure = report.plot()
    losses, hours = figure.axes
    raw, smooth, *upright = losses.lines
    assert list(raw.get_xdata()) == list(smooth.get_xdata()) == list(range(1, 41))
    assert [line.get_xdata()[0] for line in upright] == [17, 30]
    assert [list(line.get_ydata()) for line in hours.lines] == [[0, 17], [17, 30], [30, 40]]
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_a_plot_without_matplotlib_says_what_to_install(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is there all the same."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = colabkeep.report("r", storage=told)
    with pytest.raises(MissingDependency, match="pip install matplotlib"):
        report.plot()
    assert str(report).startswith("r: finished.")


# -- the command line ----------------------------------------------------------------------------------


def test_the_command_says_the_same(told: Path, kit: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """As text, and as one JSON object."""
    assert main(["report", "r", "--storage", str(told)]) == 0
    assert capsys.readouterr().out == f"{colabkeep.report('r', storage=told)}\n"
    assert main(["report", "--storage", str(told), "--json"]) == 0
    record = kit.strict(capsys.readouterr().out)
    wanted = kit.strict(colabkeep.report("r", storage=told).to_json())
    assert {**record, "as_of": 0} == {**wanted, "as_of": 0}


def test_the_command_writes_a_page(told: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, readable by any browser, and never over a file that is there unless told so."""
    page = tmp_path / "out/page.html"
    page.parent.mkdir()
    words = ["report", "r", "--storage", str(told), "--html"]
    assert main([*words, str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "ended unexpectedly after" in text
    assert main([*words, str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, str(page), "--force"]) == 0
    assert main([*words, str(page.parent)]) == 0
    assert (page.parent / "report.html").read_text().startswith("<!doctype html>")


# -- other things that a user types and presses enter on -----------------------------------------------


def trained(folder: Path, epochs: int, **words: Any) -> Any:
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    return colabkeep.resumable_fit(
        model,
        [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(5)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss_fn=nn.functional.mse_loss,
        val_loader=[(torch.randn(4, 2), torch.randn(4, 1))],
        max_epochs=epochs,
        run_name="fit",
        storage=folder,
        progress=False,
        **words,
    )


def test_a_result_is_shown_with_its_curve_its_epochs_and_its_checkpoints(tmp_path: Path, kit: SimpleNamespace) -> None:
    """After a resume, over all sessions."""
    stopped = trained(tmp_path, 9, max_steps=12)
    assert "STOPPED" not in kit.Shown(stopped._repr_html_()).text
    result = trained(tmp_path, 4)
    assert (result.resumed_from, result.resumed_at, result.stopped) == (12, (12,), "finished")
    shown = kit.Shown(result._repr_html_())
    (picture,) = shown.pictures
    assert picture.startswith("loss, 20 points from step 1 to 20")
    assert "resumed at 12" in picture
    for word in ("✔ FINISHED", "20 steps, 4 epochs; this session resumed from step 12.", "val_loss", "Best val_loss"):
        assert word in shown.text, word
    assert all(info.id in shown.text for info in result.checkpoints)
    assert result.best is not None
    best = f"best val_loss {result.best.value:.6g} in epoch {result.best.epoch}"
    assert repr(result) == f"<FitResult 'fit': finished, 4 epochs, 20 steps, {best}>"
    head, *rows = repr(result.checkpoints).splitlines()
    assert head.split() == ["checkpoint", "step", "size", "saved", "state"]
    assert [row.split()[0] for row in rows] == [info.id for info in result.checkpoints]
    listed = kit.Shown(result.checkpoints._repr_html_())
    assert listed.rows == len(result.checkpoints) + 1
    assert "committed" in listed.text


def test_a_result_can_be_plotted(tmp_path: Path) -> None:
    """The loss of the steps, the validation's, and where it went on."""
    pytest.importorskip("matplotlib")
    trained(tmp_path, 1)
    result = trained(tmp_path, 3)
    (axes,) = result.plot().axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["training loss"].get_xdata()) == list(lines["each step"].get_xdata()) == list(range(1, 16))
    assert list(lines["val_loss"].get_xdata()) == [5, 10, 15]
    assert any(list(line.get_xdata()) == [5, 5] for line in axes.lines)


def test_a_run_is_shown_before_in_and_after_its_block(tmp_path: Path, kit: SimpleNamespace) -> None:
    """What it stands at, and what would be lost; names of metrics are text."""
    run = colabkeep.Run("own", model=nn.Linear(1, 1), storage=tmp_path, progress=False)
    assert "NOT STARTED" in kit.Shown(run._repr_html_()).text
    with run:
        for _ in run.epochs(1):
            for step, _batch in run.enumerate([0] * 6, 1):
                run.step(loss=torch.tensor(1.0 / step))
            run.log(**{"<b>acc</b>": 0.5})
            inside = kit.Shown(run._repr_html_())
    after = kit.Shown(run._repr_html_())
    assert "○ TRAINING own Epoch 1, step 6. If this machine vanished now" in inside.text
    assert "<b>acc</b>" in inside.text
    assert inside.pictures[0].startswith("loss, 6 points from step 1 to 6")
    assert "✔ FINISHED" in after.text


def test_check_and_comparison_are_what_every_notebook_keeps(kit: SimpleNamespace) -> None:
    """The other two tables that are drawn for notebooks."""
    assert "All advice" in kit.Shown(colabkeep.check()._repr_html_()).text
    assert "Tesla T4" in kit.Shown(colabkeep.compare_gpus()._repr_html_()).text
