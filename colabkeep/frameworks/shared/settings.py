"""How modules, optimizers and schedulers are set up, beside their tensors: attributes, modes, options, and the mark
that a run leaves on what it trained.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import unwrap
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from colabkeep.core.settings import Change, Item, Plain, Settings, same
from colabkeep.core.state import Tree
from colabkeep.frameworks.shared.describe import NOT_PLAIN, described, is_library, is_plain, plain
from colabkeep.frameworks.shared.trees import FUNCTIONS

# A dict of plain data under one attribute: it is no part of `state_dict()`, and is read back without colabkeep.


MARK = "_colabkeep_left"

Moved = Mapping[str, Mapping[str, "tuple[Plain, Plain]"]]
"""Item → option → (as written, as it was left)."""


def mark(target: object, record: Mapping[str, Any]) -> None:
    """Leave the record; on nothing that has no attributes of its own."""
    held = getattr(target, "__dict__", None)
    if type(held) is dict:
        held[MARK] = dict(record)


def marked(target: object) -> Mapping[str, Any]:
    """What was left there last; nothing if nobody did."""
    held = getattr(target, "__dict__", None)
    found = held.get(MARK) if type(held) is dict else None
    return found if isinstance(found, dict) else {}


def left(written: Mapping[str, Item], now: Mapping[str, Item]) -> dict[str, dict[str, list[Plain]]]:
    """The options that are not as written, with both values."""
    found = {
        name: {
            option: [written[name].options.get(option), value]
            for option, value in item.options.items()
            if not same(written[name].options.get(option), value)
        }
        for name, item in now.items()
        if name in written
    }
    return {name: options for name, options in found.items() if options}


def as_written(now: Mapping[str, Item], moved: Moved) -> dict[str, Item]:
    """The items with the values that were written, where they are as a run left them."""
    return {name: _as_written(item, moved.get(name, {})) for name, item in now.items()}


def _as_written(item: Item, moved: Mapping[str, Any]) -> Item:
    known = {key: was for key, (was, then) in moved.items() if key in item.options and same(item.options[key], then)}
    return replace(item, options={**item.options, **known})


Values = Mapping[str, Mapping[str, Plain]]
"""Module → attribute → value."""

_MODE = attrgetter("training")
_MACHINE = ("cpu", "cuda", "gpu", "mps", "xla", "npu")  # a text that begins so, or has a slash, names a place


@dataclass(frozen=True, slots=True)
class Kind:
    """How a framework builds its modules. `base`: the attributes that every module has; `package`: where its own
    classes come from; `private`: are attributes with an underscore settings of those? `trained` and `train`: whether a
    parameter is trained, read and set."""

    base: frozenset[str]
    package: str
    private: bool
    trained: Callable[[Any], bool]
    train: Callable[[Any, bool], object]


class Attributes:
    """Those of one module and all that are inside it. Made before anything is touched.

    `modules` and `parameters` by name, in their order; a name may stand for the same object as another one.
    """

    def __init__(self, kind: Kind, modules: Iterable[tuple[str, Any]], parameters: Iterable[tuple[str, Any]]) -> None:
        self._kind = kind
        self._modules = _once(modules)
        self._parameters = _once(parameters)
        self._rows = [_Row(name, vars(module), self._keys(module)) for name, module in self._modules]
        self._frozen: frozenset[str] = frozenset()
        self.restless: list[_Row] = []  # those in which training was seen to move something
        self._marked: list[dict[str, Plain]] = []

    @property
    def root(self) -> Any:
        """The outermost module."""
        return self._modules[0][1]

    def items(self) -> dict[str, Item]:
        """Each module as it is set up now."""
        found = {}
        names: dict[type, frozenset[str]] = {}
        for (name, module), row in zip(self._modules, self._rows, strict=True):
            kind, options = type(module), row.values()
            if not self._is_own(kind):
                found[name] = Item(kind=kind.__name__, sure=False, options=options)
                continue
            own = names.setdefault(kind, _names_of(kind))
            doubtful = tuple(key for key in options if key not in own)  # the user's, on a layer of the framework's
            options |= self._functions(module)
            found[name] = Item(kind=kind.__name__, sure=True, options=options, doubtful=doubtful)
        first, item = next(iter(found.items()))
        found[first] = replace(item, frozen=self.frozen())
        return found

    def frozen(self) -> tuple[str, ...]:
        """The names of the parameters that are not trained now."""
        return tuple(name for name, each in self._parameters if not self._kind.trained(each))

    def values(self) -> dict[str, dict[str, Plain]]:
        """All plain attributes now."""
        return {row.name: row.values() for row in self._rows}

    def modes(self) -> dict[str, Any]:
        """Who trains and who evaluates: "training" of the outermost module, and the names of the "others"."""
        modes = list(map(_MODE, map(itemgetter(1), self._modules)))
        others = [name for (name, _), mode in zip(self._modules, modes, strict=True) if mode != modes[0]]
        return {"training": bool(modes[0]), "others": others}

    def begin(self, written: Mapping[str, Item]) -> None:
        """From here on, what `moved` tells is what differs from these."""
        for row in self._rows:
            row.begin(written[row.name].options if row.name in written else {})
        self._frozen = frozenset(chain.from_iterable(item.frozen for item in written.values()))
        self.restless = [row for row in self._rows if not row.quiet()]
        self.mark()

    def moved(self) -> dict[str, Tree]:
        """What is not as written, by "attributes", "frozen" and "modes"; the first two only where there is any."""
        found: dict[str, Tree] = {"modes": self.modes()}
        restless = [row for row in self._rows if not row.quiet()]
        if restless != self.restless:
            self.restless = restless
            self.mark()
        attributes = {row.name: row.moved() for row in restless}
        attributes = {name: values for name, values in attributes.items() if values}
        if attributes:
            found["attributes"] = attributes
        frozen = self.frozen()
        if set(frozen) != self._frozen:
            found["frozen"] = list(frozen)
        return found

    def mark(self) -> None:
        """The training is between two steps: remember what it was seen to move."""
        self._marked = [row.values() for row in self.restless]

    def rewind(self) -> str | None:
        """Put that back to the last mark; or name an attribute that was moved and that nobody had seen to move."""
        known = set(map(id, self.restless))
        for row in self._rows:
            if id(row) not in known and not row.quiet() and (moved := row.moved()):
                return ".".join(filter(None, (row.name, next(iter(moved)))))
        for row, values in zip(self.restless, self._marked, strict=True):
            for key, value in values.items():
                row.put(key, value)
        return None

    def put_values(self, values: Values) -> None:
        """Set attributes. Lists are changed in place: others may hold them."""
        for row in self._rows:
            for key, value in values.get(row.name, {}).items():
                row.put(key, value)

    def put_modes(self, modes: Mapping[str, Any]) -> None:
        """Let train or evaluate who did."""
        others = set(modes["others"])
        for name, module in self._modules:
            if module.training != (modes["training"] != (name in others)):
                module.training = not module.training

    def put_frozen(self, names: Iterable[str]) -> None:
        """Train all parameters but these."""
        frozen = set(names)
        for name, each in self._parameters:
            if self._kind.trained(each) == (name in frozen):
                self._kind.train(each, name not in frozen)

    def _keys(self, module: Any) -> Callable[[], list[str]]:
        kind, held = self._kind, vars(module)
        hidden = self._is_own(type(module)) and not kind.private
        return lambda: [
            key
            for key, value in held.items()
            if key not in kind.base and key != MARK and not (hidden and key[0] == "_") and is_plain(value)
        ]

    def _functions(self, module: Any) -> dict[str, Plain]:
        """The activation of a transformer's layer, the rule of an average."""
        found = {}
        for key, value in vars(module).items():
            if callable(value) and key not in self._kind.base and key[0] != "_":
                for name, item in described(value).items():
                    start = f"{key}.{name}" if name else key
                    found[f"{start}()"] = item.kind
                    found |= {f"{start}().{option}": held for option, held in item.options.items()}
        return found

    def _is_own(self, kind: type) -> bool:
        return kind.__module__.partition(".")[0] == self._kind.package


class _Row:
    """The plain attributes of one module."""

    def __init__(self, name: str, held: dict[str, Any], keys: Callable[[], list[str]]) -> None:
        self.name = name
        self._held = held
        self._find = keys
        self._written: dict[str, Plain] = {}
        self._plan()

    def values(self) -> dict[str, Plain]:
        """Copies of what is there now."""
        return {key: _copy(self._held[key]) for key in self._find()}

    def begin(self, written: Mapping[str, Plain]) -> None:
        self._written = {key: value for key, value in written.items() if "()" not in key}
        self._plan()

    def quiet(self) -> bool:
        """Is every attribute the very object that was written? No, where one may change inside."""
        try:
            return (
                len(self._held) == self._count and not self._lists and all(map(is_, self._get(self._held), self._base))
            )
        except KeyError:
            return False

    def moved(self) -> dict[str, Plain]:
        """What differs from what was written."""
        if len(self._held) != self._count:
            self._plan()
        return {
            key: _copy(value)
            for key, value in ((key, self._held.get(key, NOT_PLAIN)) for key in self._keys)
            if is_plain(value) and not same(value, self._written.get(key, NOT_PLAIN)) and not _is_place(value)
        }

    def put(self, key: str, value: Plain) -> None:
        live = self._held.get(key)
        if type(live) is list and isinstance(value, (list, tuple)):
            live[:] = value
        else:
            self._held[key] = tuple(value) if type(live) is tuple and type(value) is list else _copy(value)

    def _plan(self) -> None:
        self._keys = self._find()
        self._count = len(self._held)
        self._get = _getter(self._keys)
        live = self._get(self._held)
        # The live object where it is as written: a look by identity is enough then. A list may change where it is.
        self._lists = any(type(value) is list for value in live)
        self._base = tuple(
            value if same(value, self._written.get(key, NOT_PLAIN)) else NOT_PLAIN
            for key, value in zip(self._keys, live, strict=True)
        )


def _names_of(kind: type) -> frozenset[str]:
    """The attributes that a class of the framework gives its modules when they are made."""
    found: set[str] = set()
    for cls in kind.__mro__[:-1]:
        made = unwrap(vars(cls).get("__init__", _names_of))
        code = getattr(made, "__code__", None)
        found.update(code.co_names if code is not None else ())
    return frozenset(found)


def _once(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Each object under the first of its names."""
    found: dict[int, tuple[str, Any]] = {}
    for name, each in named:
        found.setdefault(id(each), (name, each))
    return list(found.values())


def _getter(keys: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda held: tuple(held[key] for key in keys)


def _copy(value: Plain) -> Plain:
    return [_copy(member) for member in value] if type(value) is list else value


def _is_place(value: Plain) -> bool:
    """Does a text name a device or a folder, which the next machine may not have?"""
    return type(value) is str and ("/" in value or "\\" in value or value.partition(":")[0] in _MACHINE)


_FROZEN = "requires_grad"


# Schedulers of both frameworks are plain objects, which may hold others.

_AGAIN = "Run the cells that build the optimizer and the scheduler again, then this one."
_SAMPLES, _EACH = 16, 64  # parameters, and numbers of each, by which weights are known again


def schedulers_in(scheduler: Any, kind: type[Any], name: str = "") -> Iterator[tuple[str, Any]]:
    """The scheduler, and those of this kind that it chains, runs one after another, or leads to, by name."""
    yield name, scheduler
    for key, value in vars(scheduler).items():
        listed = enumerate(value) if isinstance(value, (list, tuple)) else ((None, value),)
        for i, each in listed:
            if isinstance(each, kind):
                where = key if i is None else f"{key}[{i}]"
                yield from schedulers_in(each, kind, ".".join(filter(None, (name, where))))


def schedule_state(scheduler: Any, kind: type[Any]) -> list[dict[str, Any]]:
    """Its attributes, and those of the schedulers inside it and of rates that are objects and may count."""
    holders = [each for _, each in schedulers_in(scheduler, kind)]
    holders += [function for each in holders for function in _counting(each)]
    return [{key: _kept(value) for key, value in vars(each).items() if key != "optimizer"} for each in holders]


def put_schedule(scheduler: Any, kind: type[Any], state: Sequence[Mapping[str, Any]]) -> None:
    """Give it what `schedule_state` told."""
    holders = [each for _, each in schedulers_in(scheduler, kind)]
    holders += [function for each in holders for function in _counting(each)]
    for each, held in zip(holders, state, strict=True):
        vars(each).update({key: _kept(value) for key, value in held.items()})


def schedule_items(scheduler: Any, kind: type[Any], counters: frozenset[str], *, fresh: bool) -> dict[str, Item]:
    """The scheduler and those inside it as they are set up, but for `counters`. One of the user's own class that is not
    `fresh` may have counters of its own."""
    found = {}
    for name, each in schedulers_in(scheduler, kind):
        held = vars(each) if fresh or is_library(type(each).__module__) else {}
        options: dict[str, Any] = {}
        for key, value in held.items():
            if key in counters or isinstance(value, kind):
                continue
            functions = value if isinstance(value, list) and value and all(map(callable, value)) else [value]
            if callable(functions[0]):
                options |= _of_functions(key, functions)
            elif (short := plain(value)) is not NOT_PLAIN:
                options[key] = short
        found[name] = Item(kind=type(each).__name__, sure=True, options=options)
    return found


def steps_wrong(name: str, step: Callable[[], object], times: int) -> str:
    """Step a schedule with new settings so often; why that cannot be, "" if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # that no step of the optimizer came before: there were, in earlier sessions
            for _ in range(times):
                step()
    except Exception as error:  # noqa: BLE001  # whatever a schedule raises, it is told and taken back
        return f"{name} cannot take {times} steps with its new settings, and the run has taken them: {error}"
    return ""


def counted_already(name: str, count: int) -> str:
    """Why its settings cannot be new."""
    return (
        f"{name} has counted to {count} already, and a schedule with new settings is run from its beginning. {_AGAIN}"
    )


def samples(parameter: Any) -> str:
    """Some numbers of a parameter: other ones show that it was changed."""
    row = parameter
    while len(row.shape) > 1:
        row = row[0]
    return repr(row.reshape([-1])[:_EACH].tolist())


def digest_of(parameters: Sequence[Any]) -> str:
    """What tells weights from others, by samples."""
    some = parameters[:: max(1, len(parameters) // _SAMPLES)]
    return hashlib.sha256("".join(map(samples, some)).encode()).hexdigest()[:16] if some else ""


def _of_functions(key: str, functions: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    same = all(function is functions[0] for function in functions)
    for i, function in enumerate(functions[:1] if same else functions):
        start = f"{key}()" if same else f"{key}[{i}]()"
        for name, item in described(function).items():
            if item.sure:
                yield ".".join(filter(None, (start, name))), item.kind
                yield from ((".".join(filter(None, (start, name, key))), value) for key, value in item.options.items())


def _counting(scheduler: Any) -> list[Any]:
    """Learning rates that are objects. Torch keeps their attributes, too."""
    lambdas = vars(scheduler).get("lr_lambdas", ())
    return [each for each in lambdas if hasattr(each, "__dict__") and not isinstance(each, FUNCTIONS)]


def _kept(value: Any) -> Any:
    """What stepping may change inside is copied; functions, and whatever else a scheduler knows, stay the same."""
    return deepcopy(value) if plain(value) is not NOT_PLAIN else value


def is_value(change: Change) -> bool:
    """Is what changed a value of an option, and neither a class nor code?"""
    return change.option != "" and "()" not in f"{change.item}.{change.option}"


class Setup:
    """See `colabkeep.frameworks.base.PartsSettings`: the modules of a run. A framework adds its optimizers and
    schedulers. `digest` tells the weights of a module from others, by samples."""

    def __init__(self, modules: Mapping[str, Attributes], digest: Callable[[Any], str]) -> None:
        self.modules = modules
        self._digest = digest
        self.replaced: frozenset[str] = frozenset()
        self._written: Settings = {}

    def written(self) -> Settings:
        return {part: _of_module(attributes) for part, attributes in self.modules.items()}

    def reached(self, trees: Mapping[str, Tree], moved: Mapping[str, Tree]) -> Settings:
        return {part: _items(each.get("attributes", {})) for part, each in moved.items()}

    def keepable(self, change: Change) -> bool:
        return change.part in self.modules and is_value(change)

    def plan(self, changes: Sequence[Change], trees: Mapping[str, Tree]) -> list[str]:
        return []

    def settle(
        self, written: Settings, moved: Mapping[str, Tree], *, new: Sequence[Change], kept: Sequence[Change]
    ) -> None:
        for part, attributes in self.modules.items():
            theirs = {change.where for change in new if change.part == part}
            if part in written and part in moved:
                _restore(attributes, part, written[part], moved[part], theirs)

    def begin(self, written: Settings) -> None:
        self._written = written
        for part, attributes in self.modules.items():
            attributes.begin(written.get(part, {}))

    def moved(self) -> dict[str, Tree]:
        return {part: attributes.moved() for part, attributes in self.modules.items()}

    def mark(self) -> None:
        for attributes in self.modules.values():
            if attributes.restless:
                attributes.mark()

    def rewind(self) -> str | None:
        clauses = (attributes.rewind() for attributes in self.modules.values())
        moved = {part: clause for part, clause in zip(self.modules, clauses, strict=True) if clause}
        return next(
            (f"{part}.{name} may have been changed in the middle of the step" for part, name in moved.items()), None
        )

    def trained(self) -> list[str]:
        found = []
        for part, attributes in self.modules.items():
            was = marked(attributes.root)
            if was.get("digest") and was["digest"] == self._digest(attributes.root):
                found.append(f"{part} holds the weights that the run {was['run']!r} had at step {was['step']}")
        return found

    def leave(self, run: str, step: int, *, failed: bool) -> None:
        for part, attributes in self.modules.items():
            then, digest = self.then(part), "" if failed else self._digest(attributes.root)
            record = {"run": run, "step": step, "digest": digest, "moved": left(then, _items(attributes.values()))}
            was = next((item.frozen for item in then.values()), ())
            if set(was) != set(attributes.frozen()):
                record[_FROZEN] = [list(was), list(attributes.frozen())]
            mark(attributes.root, record)

    def then(self, part: str) -> Mapping[str, Item]:
        """The items of a part as the run's own were written."""
        return self._written.get(part, {})


def _of_module(attributes: Attributes) -> dict[str, Item]:
    record = marked(attributes.root)
    items = as_written(attributes.items(), record.get("moved", {}))
    was, then = record.get(_FROZEN, ((), None))
    if then is not None and set(then) == set(attributes.frozen()):
        first, item = next(iter(items.items()))
        items[first] = replace(item, frozen=tuple(was))
    return items


def _items(values: Values) -> dict[str, Item]:
    return {name: Item(kind="", sure=True, options=options) for name, options in values.items()}


def _restore(
    attributes: Attributes, part: str, written: Mapping[str, Item], moved: Tree, new: set[tuple[str, str, str]]
) -> None:
    """Put everything where the checkpoint had it, but for what is `new`."""
    then: Values = moved.get("attributes", {})
    targets: dict[str, dict[str, Plain]] = {}
    for name, live in attributes.values().items():
        known = written[name].options if name in written else {}
        wanted = {**{key: known[key] for key in live if key in known}, **then.get(name, {})}
        targets[name] = {
            key: value
            for key, value in wanted.items()
            if (part, name, key) not in new and not (key in live and same(live[key], value))
        }
    attributes.put_values(targets)
    if (part, "", _FROZEN) not in new:
        attributes.put_frozen(moved.get("frozen", next((item.frozen for item in written.values()), ())))
    attributes.put_modes(moved["modes"])
