"""keep_demo: a script that knows nothing of colabkeep is killed, and goes on on a machine that has only its storage."""

from __future__ import annotations

import re

import pytest

from tests.fakes.platforms import fake_colab

pytestmark = pytest.mark.torch  # its script trains with it


def test_the_killed_script_ends_like_the_other_one(maker, shown, tmp_path):
    """It goes on after its beginning; the panel speaks of versions, from the watcher's own thread too."""
    notebook = maker.source("keep_demo")
    with fake_colab(tmp_path) as machine, maker.uploading(machine.account):
        maker.execute(notebook, machine.environment.folder, machine)
    told = shown(notebook)
    assert "The program is gone: SIGKILL." in told.by("disconnect")
    assert told.went_on_from("training") > 0
    assert told.is_equal()
    (panel,) = [output for output in maker.tagged(notebook, "training").outputs if output.output_type == "display_data"]
    assert "FINISHED safe version" in panel.data["text/plain"]
    assert "nothing has changed since" in panel.data["text/html"]
    assert "nothing would be lost now" in panel.data["text/html"]
    assert re.search(r"\bsteps?\b|loss|epoch|training", panel.data["text/html"]) is None
    assert "1 of them cut off" in told.by("report")
    assert "every byte checked" in told.by("export")
