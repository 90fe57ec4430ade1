"""What the losses of a run prove of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from colabkeep.vocabulary.manifest import Manifest

__all__ = ["Proof", "stored_proof"]


@dataclass(slots=True)
class Proof:
    """How far losses are known to be finite numbers. The training thread writes it, the writer's thread reads it.

    The loss of a step is computed from the weights after the step before. So a checkpoint is proven good once the loss
    of a later step is a finite number: weights that are not finite do not become so again.

    `finite`: the last step whose loss is known to be finite, None before there is any. `broken`: the first step after
    that whose loss is not, None while there is none; `value`: what it was, "nan", "inf" or "-inf". `named`: the
    checkpoint that the user was told to go back to, which is kept though a newer one may turn out good.
    """

    finite: int | None = None
    broken: int | None = None
    value: str = ""
    named: str = field(default="", compare=False)

    def newest_good(self, line: Sequence[Manifest]) -> Manifest | None:
        """The newest of these checkpoints, oldest first, that is proven good; None where none is."""
        finite = self.finite
        if finite is None:
            return None
        return next((manifest for manifest in reversed(line) if manifest.progress.step < finite), None)


def stored_proof(manifest: Manifest) -> Proof | None:
    """What was proven when a checkpoint was made, as far as its manifest tells without its tensors. None where it does
    not: it is older than this record, or its last losses had not arrived yet."""
    part = manifest.parts.get("losses")
    state = part.get("state") if isinstance(part, dict) else None
    if not isinstance(state, dict) or "finite" not in state or state.get("waiting"):
        return None
    finite, broken = (value if type(value) is int else None for value in (state["finite"], state.get("broken")))
    return Proof(finite=finite, broken=broken, value=str(state.get("value", "")))
