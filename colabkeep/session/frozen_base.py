"""A pretrained base that is not trained: checkpoints name its weights by checksums, and a resume compares them.

Only what can be had again may be named so, and who hands in a `Base` says that. What a resumed run names is what its
checkpoint names: weights that were trained, or that it holds, go on being stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from colabkeep.checkpoint.writer import size_text
from colabkeep.core.errors import Incompatible
from colabkeep.core.events import Event, Noted, RestoredInexactly
from colabkeep.core.state import Tree, referred
from colabkeep.frameworks.base import Framework

MODEL = "model"
_NAMED = 5  # weights that an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What of the model is frozen and was read from a pretrained base. `name`: on the Hub, or of a folder; `revision`:
    the commit, "" where it is not known. `refer`: its weights are not to be stored. `local`: it is a folder of this
    machine."""

    names: Collection[str]
    name: str
    revision: str = ""
    refer: bool = True
    local: bool = False

    @property
    def origin(self) -> str:
        """As a checkpoint keeps it."""
        return f"{self.name}@{self.revision}" if self.revision else self.name


def base_of(tree: Tree) -> str:
    """Where the weights come from that this part of a checkpoint names and does not hold; "" where it holds all."""
    return str(tree.get("base", "")) if isinstance(tree, dict) else ""


def named_in(tree: Tree) -> dict[str, str]:
    """Name → checksum of the weights that this part of a checkpoint names and does not hold."""
    weights = tree.get("weights") if isinstance(tree, dict) else None
    found = {name: referred(leaf) for name, leaf in weights.items()} if isinstance(weights, dict) else {}
    return {name: checksum for name, checksum in found.items() if checksum}


def other_weights(framework: Framework, part: str, module: object, named: Mapping[str, str]) -> dict[str, str]:
    """Of the named weights those that are others here; name → the checksum here, "" where none can be taken."""
    here = framework.checksums({part: module}, {part: named})[part]
    return {name: here.get(name, "") for name, then in named.items() if here.get(name) != then}


def begin(framework: Framework, parts: Mapping[str, object], base: Base) -> Iterator[Event]:
    """A new run: from now on the base is named."""
    if base.refer and MODEL in parts:
        checksums = framework.checksums(parts, {MODEL: frozenset(base.names)})[MODEL]
        size = framework.refer(parts, MODEL, checksums, base.origin)
        if size:
            yield Noted(
                text=f"The frozen base {base.name} ({size_text(size)}) is not stored: each checkpoint names it by its "
                "checksums, and a resume compares them."
            )
    elif base.local:
        yield Noted(
            text=f"The frozen base is stored with the run, once: it was read from {base.name}, and colabkeep cannot "
            'see whether that folder outlives this machine. If you have it in each session, frozen="refer" names it '
            "only."
        )


def go_on(
    framework: Framework, parts: Mapping[str, object], trees: Mapping[str, Tree], base: Base | None, checkpoint: str,
    *, apply: bool,
) -> Iterator[Event]:  # fmt: skip
    """A resumed run: see that the base is the one of the checkpoint; it goes on being named, unless it is to be stored
    now. With `apply` another one is taken as it is, and told.

    Raises:
        Incompatible: it is another one. Nothing was touched.
    """
    for part, tree in trees.items():
        named = named_in(tree)
        if not named or part not in parts:
            continue
        other = other_weights(framework, part, parts[part], named)
        if other and not apply:
            raise another_base(base_of(tree), named, other, checkpoint)
        if other:
            reason = (
                f"{len(other)} of the {len(named)} frozen weights of the base are others than those that the run was "
                f"trained with (first: {next(iter(other))})"
            )
            yield RestoredInexactly(checkpoint=checkpoint, reason=reason)
        if base is None or base.refer:
            framework.refer(parts, part, {**named, **other}, base_of(tree))


def first_of(names: Collection[str]) -> list[str]:
    """What an error names of many."""
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return [*list(names)[:_NAMED], *more]


def another_base(origin: str, named: Mapping[str, str], other: Mapping[str, str], where: str) -> Incompatible:
    """The error for weights that are others than those that a checkpoint names."""
    name, _, revision = origin.rpartition("@") if "@" in origin else (origin, "", "")
    load = f'revision="{revision}"' if revision else "the same revision"
    return Incompatible(
        problem=f"The frozen base differs from that of checkpoint {where}, which identifies {name or 'it'} by "
        f"checksums: {len(other)} of its {len(named)} weights have other bytes here. It is another model or revision, "
        "was quantised in another way or on another kind of GPU, or was changed after it was loaded:",
        remedy=f"Nothing was touched. Load {name or 'the base'} as before, with {load} in from_pretrained, and the "
        'same dtype and quantisation. Or pass on_change="apply" to continue with the base as it is now; the steps are '
        "then not those of the same training. To make a run independent of the base, use Resumable(…, "
        'frozen="store").',
        differences=first_of(other),
    )
