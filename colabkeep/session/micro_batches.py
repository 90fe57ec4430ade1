"""`micro_batch` of `resumable_fit`: how much of a batch is computed at a time. It is tried where it is not known, and
less where memory runs out; the step is begun again then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from colabkeep.core.events import Noted, RestoredInexactly
from colabkeep.frameworks.base import Pieces
from colabkeep.frameworks.shared.loaders import Share
from colabkeep.frameworks.shared.training import largest_piece
from colabkeep.session.run import Run

NOT_FIXED = (
    'With micro_batch="auto", the micro-batch becomes smaller where the GPU\'s memory runs out. If that is at another '
    "step than before, sums are rounded differently from there on. A number that fits, such as micro_batch=8, never "
    "changes."
)
"""What prevents the same bits where "auto" decides."""


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """What a run knows of it, in every checkpoint once there is something to know.

    `asked`: as the user wrote it; `card`: the kind of device, "" where memory is not watched and "auto" is the whole
    batch. `now`: the samples at a time, None for the whole batch. `fits`: by kind of card, how many did, where that was
    less than a batch. `before`: `now`, as the checkpoint has it that this session went on from.
    """

    asked: int | Literal["auto"] | None
    card: str = ""
    now: int | None = None
    fits: dict[str, int] = field(default_factory=dict)
    before: int | None = None
    resumed: bool = False

    def __post_init__(self) -> None:
        if self.asked is not None and self.asked != "auto":
            self.now = self.asked

    @property
    def adapts(self) -> bool:
        """Does it become smaller where memory runs out?"""
        return self.asked == "auto" and bool(self.card)

    def take(self, samples: int) -> None:
        """So many at a time from here on, as this device, or that of another process, cannot do more."""
        self.now = self.fits[self.card] = samples

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds; empty where no batch was ever cut."""
        return {"now": self.now, "fits": dict(self.fits)} if self.now is not None or self.fits else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; an empty one is that of versions that knew of no micro-batches."""
        self.resumed, self.before, self.fits = True, state.get("now"), dict(state.get("fits", {}))
        if self.adapts:
            self.now = self.fits.get(self.card)

    def other(self, batch: int | None) -> str | None:
        """A sentence where the session before computed another part of a batch of so many samples at a time. None:
        their number is not known."""
        most = math.inf if batch is None else batch
        then, now = (min(most if each is None else each, most) for each in (self.before, self.now))
        if not self.resumed or then == now:
            return None
        was, became = ("as a whole" if each >= most else f"{each} samples at a time" for each in (then, now))
        return f"batches were computed {was} and are computed {became} now: the state is exact, later steps are not"


class _Held(NamedTuple):
    """A batch of the step under way, of `samples`; of several processes, the `part` of it that this one has, in which
    there are `own` samples. `share`: what the batch counts in the step."""

    batch: Any
    samples: int | None
    own: int | None
    part: float
    share: float


class MicroBatches:
    """Forward and backward of each batch, in pieces that fit.

    `largest`: the samples of a batch, as the loader says; None where it does not.
    """

    def __init__(self, run: Run, pieces: Pieces, micro: MicroBatch, largest: int | None) -> None:
        self._run, self._pieces, self._micro = run, pieces, micro
        self._largest = None if largest is None else -(-largest // run.ranks)
        self._held: list[_Held] = []
        self._told = self._checked = self._excused = False
        self._steps = 0
        self._streams: object = None
        self._said: int | None = None  # the samples at a time that were told
        if micro.adapts:
            run.agree_on(micro)

    def __call__(self, batch: Any, part: float, size: int, window: list[tuple[Any, float]]) -> None:
        """Compute a batch, or the `part` of it that this process has, and append its loss to the window of `size`
        batches, with the number of its samples. The losses of batches before it in the window are others afterwards
        where the step was begun again.

        Raises:
            UsageError: the batch has to be cut and cannot be, or the loss is no mean over samples.
        """
        if not window:
            self._held.clear()
            self._excused = False
            self._steps += 1
            if self._told and self._micro.now != self._said:
                self._tell_theirs()
            if self._micro.adapts or not self._checked:
                self._run.mark_step()
            if not self._told:
                self._streams = self._pieces.streams()
        samples = self._run.batch_samples
        held = _Held(batch, samples, self._own(samples), part, part / size)
        self._held.append(held)
        self._check(held, window)
        while not self._computed(window):
            self._begin_again(window)
        # The optimizer makes its state in the first step of all, so what fitted then may not fit in the second.
        if not self._told and (self._steps > 1 or self._micro.resumed or not self._micro.adapts):
            self._tell_first(held)

    def _own(self, samples: int | None) -> int | None:
        if samples is None or self._run.ranks == 1:
            return samples
        begin, end = Share(self._run.rank, self._run.ranks).held(samples)
        return end - begin

    def _computed(self, window: list[tuple[Any, float]]) -> bool:
        """Compute the batches that are not in the window; False where one does not fit, and fewer samples might."""
        try:
            for batch, samples, own, part, share in self._held[len(window) :]:
                loss = self._pieces.backward(batch, own, self._micro.now, share)
                window.append((loss if part == 1.0 else loss * part, samples or 1))
        except Exception as error:
            if not self._pieces.is_out_of_memory(error):
                raise
            if not self._may_shrink(self._held[len(window)]):
                raise
            return False  # the error ends here, and the tensors that its frames hold
        return True

    def _may_shrink(self, held: _Held) -> bool:
        piece = None if held.own is None else largest_piece(held.own, self._micro.now)
        if not self._micro.adapts:
            text = 'Write fewer: micro_batch=…, or "auto".' if self._micro.card else ""
        elif piece is None:
            text = "How many samples a batch has is not known, so it cannot be cut."
        elif piece == 1:
            text = (
                "Not even one sample of a batch fits. A smaller model, shorter sequences or smaller pictures take less "
                "memory, and so does gradient checkpointing (torch.utils.checkpoint)."
            )
        elif self._run.updates_begun:
            text = "The step cannot be begun again, for parameters or schedules had changed already."
        else:
            return True
        self._run.tell(Noted(text=f"The memory of {self._device} does not suffice. {text}".rstrip()))
        return False

    def _begin_again(self, window: list[tuple[Any, float]]) -> None:
        """Go back to the beginning of the step, and take fewer samples at a time; as many, where the memory was taken
        by a save that is over now."""
        micro, run, failed = self._micro, self._run, self._held[len(window)]
        saving = run.saving and not self._excused
        left = run.redo_step()
        window.clear()
        self._pieces.release()
        if left:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=f"a step was begun twice: {left}"))
        if saving:
            self._excused = True
            return
        tried = largest_piece(failed.own or 1, micro.now)
        micro.take(-(-tried // 2))
        if self._told:
            run.tell(
                Noted(
                    text=f"Step {run.progress.step + 1}: {tried} samples at a time did not fit into the memory of "
                    f"{self._device}, so the step was repeated with {micro.now}. The run keeps this number; from here "
                    "on sums are rounded differently."
                )
            )
            self._said = micro.now
        self._check(failed, window)

    def _tell_theirs(self) -> None:
        self._said = self._micro.now
        self._run.tell(
            Noted(
                text=f"Step {self._run.progress.step + 1}: another process has no memory for more than {self._said} "
                "samples at a time, and all take as many from here on. Sums are rounded differently from here on."
            )
        )

    def _check(self, held: _Held, window: list[tuple[Any, float]]) -> None:
        """Before the first cut: may this training be cut?"""
        micro, samples = self._micro.now, held.own
        if self._checked or micro is None or samples is None or samples <= micro:
            return
        self._checked = True
        unknown = self._pieces.check(held.batch, samples)
        self._run.redo_step()
        window.clear()
        if unknown:
            text = f"It could not be tried whether the loss is a mean over samples, which micro_batch needs: {unknown}."
            self._run.tell(Noted(text=text))

    def _tell_first(self, held: _Held) -> None:
        self._told, self._said = True, self._micro.now
        run, of = self._run, self._largest or held.own
        if text := self._sentence(of):
            if run.ranks > 1:
                text = " ".join([f"{run.ranks} processes share each batch: {of} samples for each.", text])
            run.tell(Noted(text=text))
        if (other := self._micro.other(of)) is not None:
            run.tell(RestoredInexactly(checkpoint=run.checkpoint or "", reason=other))

    def _sentence(self, of: int | None) -> str:
        """What is computed at a time of batches of `of` samples, and whether that is the training of whole ones."""
        micro = self._micro
        if micro.now is None or (of is not None and of <= micro.now):
            size = "" if of is None else f" of {of} samples"
            return f"T{self._device[1:]} takes whole batches{size}." if micro.adapts else ""
        piece = micro.now if of is None else largest_piece(of, micro.now)
        text = f"micro_batch={micro.now}: {piece} of the {of} samples of a batch are computed at a time"
        if micro.adapts:
            text = f"T{self._device[1:]} takes {piece} of the {of} samples at a time"
        across, drawn = self._pieces.across(), self._streams != self._pieces.streams()
        if not across and not drawn:
            return f"{text}; the result is that of batches of {of} up to rounding."
        text += "."
        if across:
            more = f" and {len(across) - 1} more" if len(across) > 1 else ""
            text += (
                f" BatchNorm ({across[0]}{more}) takes mean and variance of {piece} samples instead of {of}, so "
                "the training is not that of whole batches. GroupNorm, LayerNorm, or BatchNorm in eval() mode do not "
                "look at other samples."
            )
        if drawn:
            text += (
                " Random numbers of the model (dropout) are drawn for each piece, and are not those of whole batches."
            )
        return text

    @property
    def _device(self) -> str:
        return f"this GPU ({self._micro.card})" if self._micro.card else "this device"
