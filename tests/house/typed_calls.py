"""What type checkers see of the public names: a misspelt word is an error in the editor, a right call is none.

Nobody runs this. mypy reads it with the package: each wrong line is marked with its error, and mypy complains of a mark
where there is none.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import colabkeep
from colabkeep.core.events import Event
from colabkeep.stores.memory import MemoryStore


def tell(event: Event) -> None: ...


def loss(output: Any, target: Any) -> Any: ...


def right(model: Any) -> tuple[int, dict[str, Any], str]:
    result = colabkeep.resumable_fit(
        model,
        [],
        optimizer=model,
        loss_fn=loss,
        max_epochs=3,
        resume="must",
        save_every=[1, "10 min"],
        max_time=timedelta(hours=1),
        storage=(Path("a"), "drive://b"),
        callbacks=[tell, print],
        precision="16-mixed",
    )
    with colabkeep.Run("r", model=model, storage=MemoryStore(), resume="000000000003-abcdef01", save_every=None) as run:
        for epoch in run.epochs(3):
            for batch in run.batches([]):
                run.step(loss=batch)
            run.log(val_loss=epoch)
    weights = colabkeep.load_weights("r", which="best", framework="numpy")
    colabkeep.browse("x")
    colabkeep.report("r", storage=Path("x"))
    colabkeep.check(probe=True)
    return result.steps, weights, colabkeep.secret("a", timeout="1 min")


def wrong(m: Any) -> None:
    colabkeep.resumable_fit(m, [], optimizer=m, max_epoch=3)  # type: ignore[call-arg]
    colabkeep.resumable_fit(m, [], m)  # type: ignore[call-arg]
    colabkeep.resumable_fit(m, [])  # type: ignore[call-arg]
    colabkeep.resumable_fit(m, [], optimizer=m, resume=True)  # type: ignore[arg-type]
    colabkeep.resumable_fit(m, [], optimizer=m, mode="largest")  # type: ignore[arg-type]
    colabkeep.resumable_fit(m, [], optimizer=m, precision="fp16")  # type: ignore[arg-type]
    colabkeep.resumable_fit(m, [], optimizer=m, storage=7)  # type: ignore[arg-type]
    colabkeep.resumable_fit(m, [], optimizer=m, run_name=7)  # type: ignore[arg-type]
    colabkeep.Run("r", modle=m)  # type: ignore[call-arg]
    colabkeep.Run(model=m)  # type: ignore[call-arg]
    colabkeep.Run("r", model=m, callbacks=[3])  # type: ignore[list-item]
    colabkeep.Run("r", model=m).setp()  # type: ignore[attr-defined]
    colabkeep.load_weights("r", wich="best")  # type: ignore[call-arg]
    colabkeep.report("r", store="x")  # type: ignore[call-arg]
    colabkeep.verify_resume(dict, step=3)  # type: ignore[call-arg]
    colabkeep.browse(folder=3)  # type: ignore[call-arg]
