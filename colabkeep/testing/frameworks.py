"""The obligations of `colabkeep.frameworks.base`, one test each, for any adapter.

Subclass it in a test file and tell how to build and train something small::

    class TestMyFramework(FrameworkContract):
        def make_framework(self): return MyFramework()
        def make_parts(self, seed): ...      # "model", "optimizer", …: equally built, other numbers for each seed
        def make_other_parts(self): ...      # the same names, another architecture
        def train(self, parts, steps): ...   # changes every part and draws from the global random streams
        def tensor(self, number): ...        # a small tensor of the framework

`through_files` is what happens to state between sessions, without the files.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from colabkeep.core.errors import NotStorable
from colabkeep.core.settings import changes, from_text, to_text
from colabkeep.core.state import HostTensor, Tagged, Tree
from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.shared.trees import rebuild

__all__ = [
    "FrameworkContract",
    "Keeper",
    "addresses",
    "captured",
    "same_bits",
    "tensors_of",
    "through_files",
]

_PAD = 3  # bytes: a tensor in a file starts at any address


class Keeper:
    """A part with any state: what `value` is."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> Any:
        """The value itself."""
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        """Take the value."""
        self.value = state["value"]


def through_files(trees: Mapping[str, Tree], pad: int = _PAD) -> dict[str, Tree]:
    """The trees as they come back from storage: other objects, ties kept, tensors `pad` bytes into their buffers."""

    def read(node: HostTensor | Tagged, inner: Any) -> Any:
        if isinstance(node, Tagged):
            return Tagged(node.kind, inner(node.value))
        buffer = bytearray(pad) + node.data
        return HostTensor(dtype=node.dtype, shape=node.shape, data=memoryview(buffer)[pad:], frozen=node.frozen)

    return {name: rebuild(tree, read) for name, tree in trees.items()}


def captured(framework: Framework, parts: Mapping[str, object]) -> dict[str, Tree]:
    """The parts' trees as a later session reads them."""
    snapshot = framework.capture(parts).finish()
    trees = through_files(snapshot.parts)
    snapshot.release()
    return trees


def tensors_of(tree: Tree) -> list[HostTensor]:
    """All tensors of a tree, each once."""
    found: list[HostTensor] = []

    def note(node: HostTensor | Tagged, inner: Any) -> Any:
        if isinstance(node, Tagged):
            inner(node.value)
        else:
            found.append(node)
        return node

    rebuild(tree, note)
    return found


def addresses(trees: Mapping[str, Tree]) -> list[int]:
    """Where the tensors of the trees lie in memory."""
    hosts = [host for tree in trees.values() for host in tensors_of(tree) if host.data.nbytes]
    return [ctypes.addressof(ctypes.c_char.from_buffer(host.data)) for host in hosts]


def same_bits(one: Tree, other: Tree) -> bool:
    """Are two trees equal in types, order, dtypes, shapes and every bit?"""
    return _plain(one) == _plain(other)


def _plain(tree: Tree) -> str:
    def show(node: HostTensor | Tagged, inner: Any) -> Any:
        if isinstance(node, Tagged):
            return ("tagged", node.kind, inner(node.value))
        return ("tensor", node.dtype, node.shape, bytes(node.data).hex(), node.frozen)

    return repr(rebuild(tree, show))


def _draws() -> list[float]:
    return [random.gauss(0, 1), random.random(), random.gauss(0, 1)]  # noqa: S311  # the user's own streams are what is tested


class FrameworkContract:
    """See the top of this page."""

    def make_framework(self) -> Framework:
        raise NotImplementedError

    def make_parts(self, seed: int) -> dict[str, Any]:
        raise NotImplementedError

    def make_other_parts(self) -> dict[str, Any]:
        raise NotImplementedError

    def train(self, parts: Mapping[str, Any], steps: int) -> None:
        raise NotImplementedError

    def tensor(self, number: float) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def framework(self) -> Framework:
        return self.make_framework()

    def test_plain_values_come_back_with_their_types(self, framework: Framework) -> None:
        """Integer keys stay integers, tuples tuples, and an infinity is one."""
        value: dict[Any, Any] = {
            1: None, "a b": True, (1, "x"): -(2**80), 2.5: [float("inf"), -0.0, 1e-310], "c": complex(1, -0.0),
            "bytes": b"\x00", "array": bytearray(b"x"), "set": {1, 2}, "frozen": frozenset("a"), "r": range(1, 9, 2),
            "slice": slice(1, None), "time": datetime(2026, 1, 2, tzinfo=timezone.utc), "day": date(2026, 1, 2),
            "delta": timedelta(days=-1, microseconds=3), "path": Path("a/b"),
            "deque": deque([1, [2]], maxlen=3),
            "ordered": OrderedDict(b=1, a=2), "counter": Counter("aab"), "default": defaultdict(list, x=[1]),
            "nested": [({"deep": (self.tensor(1.0), [])},)],
        }  # fmt: skip
        trees = captured(framework, {"keeper": Keeper(value)})
        keeper = Keeper()
        framework.restore({"keeper": keeper}, trees)
        back = keeper.value
        assert back["deque"].maxlen == 3
        assert back["default"].default_factory is list
        assert same_bits(captured(framework, {"keeper": keeper}), trees)
        del value["nested"], back["nested"]
        assert repr(back) == repr(value)

    def test_one_tensor_in_two_places_stays_one(self, framework: Framework) -> None:
        """What was shared is shared again, and stored once."""
        shared = self.tensor(2.0)
        trees = captured(framework, {"keeper": Keeper([shared, {"again": shared}, self.tensor(2.0)])})
        assert len(tensors_of(trees["keeper"])) == 2
        keeper = Keeper()
        framework.restore({"keeper": keeper}, trees)
        assert keeper.value[0] is keeper.value[1]["again"]
        assert keeper.value[0] is not keeper.value[2]

    def test_tensors_that_come_and_go_are_not_mixed_up(self, framework: Framework) -> None:
        """State made anew for each save, as many objects do, is stored each with its own numbers."""

        class Fresh(Keeper):
            def state_dict(self) -> Any:
                return {"value": [self.value(float(i)) for i in range(50)]}

        keeper = Keeper()
        framework.restore({"keeper": keeper}, captured(framework, {"keeper": Fresh(self.tensor)}))
        assert [float(each) for each in keeper.value] == list(range(50))

    @pytest.mark.parametrize(
        "culprit",
        [lambda: 0, object(), print, Keeper(), type("Text", (str,), {})("x")],
        ids=lambda each: type(each).__name__,
    )
    def test_what_cannot_be_stored_is_named_with_its_path(self, framework: Framework, culprit: Any) -> None:
        """The error says where the value sits and what to do."""
        with pytest.raises(NotStorable) as caught:
            framework.capture({"mine": Keeper({"a": [1, (culprit,)]})})
        assert caught.value.path == "mine.value.a[1][0]"
        assert caught.value.path in caught.value.problem
        assert caught.value.remedy

    def test_a_key_that_cannot_be_stored_is_named(self, framework: Framework) -> None:
        """Keys count too: a dict by objects would come back with other keys."""
        with pytest.raises(NotStorable, match="key"):
            framework.capture({"mine": Keeper({print: 1})})

    def test_state_that_contains_itself_is_refused(self, framework: Framework) -> None:
        """A loop in the state ends in a sentence, not in a recursion."""
        loop: list[Any] = []
        loop.append({"back": loop})
        with pytest.raises(NotStorable, match="contains itself"):
            framework.capture({"mine": Keeper(loop)})

    def test_a_part_without_a_state_is_refused(self, framework: Framework) -> None:
        """Handing over an object that cannot tell its state is noticed at the first save."""
        with pytest.raises(NotStorable) as caught:
            framework.capture({"mine": object()})
        assert caught.value.path == "mine"

    def test_a_rehearsal_refuses_what_a_capture_refuses(self, framework: Framework) -> None:
        """What cannot be stored is said at the start of a training, not at its first save."""
        with pytest.raises(NotStorable) as caught:
            framework.rehearse({"mine": Keeper({"a": [1, (print,)]})})
        assert caught.value.path == "mine.value.a[1][0]"
        framework.capture({"mine": Keeper(1)}).finish().release()  # nothing is left lent out

    def test_equally_built_objects_are_set_up_alike_and_trained_ones_do_not_differ(self, framework: Framework) -> None:
        """Settings are what was written: neither the numbers in the tensors nor what training moves."""
        fresh, live = framework.settings(self.make_parts(1)), self.make_parts(2)
        mine = framework.settings(live)
        mine.begin(mine.written())
        assert changes(fresh.written(), mine.written()) == []
        self.train(live, 2)
        assert set(mine.moved()) <= set(live)
        mine.leave("run", 2, failed=False)
        assert changes(fresh.written(), framework.settings(live).written()) == []
        assert from_text(to_text(fresh.written())) == from_text(to_text(mine.written()))

    def test_what_is_remembered_is_put_back_and_changes_nothing_by_itself(self, framework: Framework) -> None:
        """For the top of an epoch that is run again."""
        parts = self.make_parts(1)
        self.train(parts, 2)
        before = captured(framework, parts)
        assert framework.remember(parts)() is None
        assert same_bits(captured(framework, parts), before)

    def begun(self, framework: Framework) -> dict[str, Any]:
        """Parts after a little training, with the random streams as one of them."""
        parts = {**self.make_parts(seed=1), "rng": framework.rng()}
        self.train(parts, 3)
        return parts

    def test_training_goes_on_with_the_same_bits_in_new_objects(self, framework: Framework) -> None:
        """Killed, resumed in another session and trained on: nobody can tell from the result."""
        parts = self.begun(framework)
        trees = captured(framework, parts)
        self.train(parts, 3)
        uninterrupted = captured(framework, parts)
        later = self.make_framework()
        resumed = {**self.make_parts(seed=2), "rng": later.rng()}
        assert list(later.check(resumed, trees)) == []
        later.restore(resumed, trees)
        self.train(resumed, 3)
        assert same_bits(captured(later, resumed), uninterrupted)

    def test_what_is_restored_is_what_was_captured(self, framework: Framework) -> None:
        """A checkpoint loaded and saved again is the same checkpoint."""
        trees = captured(framework, self.begun(framework))
        later = self.make_framework()
        resumed = {**self.make_parts(seed=2), "rng": later.rng()}
        later.restore(resumed, trees)
        assert same_bits(captured(later, resumed), trees)

    def test_a_snapshot_does_not_follow_training(self, framework: Framework) -> None:
        """What is being written stays as it was at its step, while training goes on."""
        parts = self.begun(framework)
        snapshot = framework.capture(parts).finish()
        before = through_files(snapshot.parts)
        self.train(parts, 2)
        assert same_bits(through_files(snapshot.parts), before)

    def test_a_snapshot_does_not_follow_a_training_whose_steps_are_watched(self, framework: Framework) -> None:
        """The same where the optimizers are watched, and at each of several saves."""
        parts = self.begun(framework)
        boundary = framework.boundary(parts)
        boundary.mark()
        for _ in range(5):
            self.train(parts, 1)
            boundary.mark()
            before = captured(self.make_framework(), parts)
            capture = framework.capture(parts)
            self.train(parts, 1)
            boundary.mark()
            snapshot = capture.finish()
            assert same_bits(through_files(snapshot.parts), before)
            snapshot.release()
        boundary.close()

    def test_the_second_capture_uses_the_memory_of_the_first(self, framework: Framework) -> None:
        """Saving often does not take more memory, nor the time to get it."""
        parts = self.begun(framework)
        first = framework.capture(parts).finish()
        places = addresses(first.parts)
        first.release()
        self.train(parts, 1)
        assert places
        assert addresses(framework.capture(parts).finish().parts) == places

    def test_bytes_that_changed_are_never_shown_by_an_object_that_said_it_lasts(self, framework: Framework) -> None:
        """What a checkpoint takes over from the one before, unread, is what it would have read."""
        parts = self.begun(framework)
        boundary = framework.boundary(parts)
        boundary.mark()
        shown: list[tuple[HostTensor, bytes]] = []  # holds the objects, so that none comes back as another
        framework.rehearse(parts).finish().release()
        for steps in (0, 1, 0, 1, 1):
            self.train(parts, steps)
            boundary.mark()
            snapshot = framework.capture(parts).finish()
            now = [host for tree in snapshot.parts.values() for host in tensors_of(tree) if host.lasting]
            for host, before in shown:
                assert not any(host is one for one in now) or bytes(host.data) == before
            shown += [(host, bytes(host.data)) for host in now]
            snapshot.release()
        boundary.close()

    def test_memory_in_use_is_never_lent_twice(self, framework: Framework) -> None:
        """A snapshot under a writer's hands cannot be overwritten by mistake."""
        parts = self.begun(framework)
        snapshot = framework.capture(parts).finish()
        with pytest.raises(RuntimeError, match="release"):
            framework.capture(parts)
        snapshot.release()
        newer = framework.capture(parts).finish()
        snapshot.release()  # late and twice: it has no claim on the newer one's memory
        with pytest.raises(RuntimeError, match="release"):
            framework.capture(parts)
        newer.release()

    def test_a_capture_that_failed_does_not_block_the_next(self, framework: Framework) -> None:
        """After the bad value is taken out, saving works."""
        parts = self.begun(framework)
        with pytest.raises(NotStorable):
            framework.capture({**parts, "bad": Keeper(lambda: 0)})
        framework.capture(parts).finish().release()

    def test_saving_and_restoring_draw_no_random_numbers(self, framework: Framework) -> None:
        """Saving more often does not change a training."""
        parts = self.begun(framework)
        fresh = self.make_parts(seed=2)
        before = captured(framework, {"rng": framework.rng()})
        trees = captured(framework, {name: part for name, part in parts.items() if name != "rng"})
        framework.check(fresh, trees)
        framework.restore({name: part for name, part in parts.items() if name != "rng"}, trees)
        framework.native(trees)
        assert same_bits(captured(framework, {"rng": framework.rng()}), before)

    @pytest.mark.parametrize("pad", [_PAD, 64])
    def test_restored_state_does_not_live_in_the_files_buffer(self, framework: Framework, pad: int) -> None:
        """The buffers of a checkpoint can be let go, and unaligned memory never reaches a kernel."""
        trees = through_files(captured(framework, self.begun(framework)), pad)
        resumed = {**self.make_parts(seed=2), "rng": framework.rng()}
        framework.restore(resumed, trees)
        before = captured(framework, resumed)
        for tree in trees.values():
            for host in tensors_of(tree):
                host.data[:] = bytes(host.data.nbytes)
        assert same_bits(captured(framework, resumed), before)

    def test_another_architecture_is_refused_in_words(self, framework: Framework) -> None:
        """A changed model is named before anything is touched."""
        trees = captured(framework, self.begun(framework))
        other = {**self.make_other_parts(), "rng": framework.rng()}
        before = captured(framework, other)
        differences = framework.check(other, trees)
        assert differences
        assert {type(line) for line in differences} == {str}
        assert same_bits(captured(framework, other), before)

    def test_a_part_on_one_side_only_is_told(self, framework: Framework) -> None:
        """A forgotten scheduler is noticed, in both directions."""
        parts = self.begun(framework)
        trees = captured(framework, parts)
        with_more = {**parts, "extra": Keeper(1)}
        assert any("extra" in line for line in framework.check(with_more, trees))
        assert any("extra" in line for line in framework.check(parts, captured(framework, with_more)))

    def test_random_streams_go_on_where_they_were(self, framework: Framework) -> None:
        """Python's numbers, with the remembered half of a pair of Gaussians, come as they would have."""
        random.gauss(0, 1)
        trees = captured(framework, {"rng": framework.rng()})
        expected = _draws()
        later = self.make_framework()
        later.rng().load_state_dict(later.native(trees["rng"])["state"])
        assert _draws() == expected

    def test_a_broken_step_is_undone_by_going_back_to_its_boundary(self, framework: Framework) -> None:
        """An exception in the middle of a step leaves random streams as they were at its beginning."""
        boundary = framework.boundary(self.make_parts(seed=1))
        for _ in range(3):
            boundary.mark()
            expected = captured(framework, {"rng": framework.rng()})
            _draws()
            boundary.rewind()
            assert same_bits(captured(framework, {"rng": framework.rng()}), expected)
            random.gauss(0, 1)  # each mark finds another half of a pair remembered
        assert not boundary.torn
        boundary.close()
        boundary.close()

    def test_the_fingerprint_is_text_and_stable(self, framework: Framework) -> None:
        """Two looks at one machine agree, so that each difference means something."""
        parts = self.make_parts(seed=1)
        facts = framework.fingerprint(parts)
        assert facts["framework"] == framework.name
        assert "python" in facts
        assert {type(text) for fact in facts.items() for text in fact} == {str}
        assert self.make_framework().fingerprint(self.make_parts(seed=2)) == facts

    def test_what_prevents_the_same_bits_is_told_in_sentences(self, framework: Framework) -> None:
        """A user reads at the start what a resume will share with an uninterrupted run."""
        told = framework.exactness(self.make_parts(seed=1))
        assert told.same
        for sentence in (*told.obstacles, *told.exceptions, *told.notes):
            assert sentence.endswith(".")
            assert "\n" not in sentence

    def test_losses_are_heard_of_and_none_is_lost(self, framework: Framework) -> None:
        """At once where that is free; else they arrive. What is no number is left out."""
        reader = framework.losses()
        taken = [reader.take(step, loss) for step, loss in enumerate([1.5, self.tensor(1), None, "low", 3], 1)]
        assert (taken[0], *taken[2:]) == (1.5, None, None, 3.0)
        assert [step for step, _ in (*reader.arrived(), *reader.settle())] in ([], [2])
        assert not reader.state_dict()

    def test_a_training_by_itself_is_one_process(self, framework: Framework) -> None:
        """Nothing waits for ranks that do not exist."""
        assert framework.place() == (0, 1)
        assert framework.ranks() is None

    def test_its_own_objects_are_recognised(self, framework: Framework) -> None:
        """A tensor is the framework's, a number is nobody's."""
        assert framework.owns(self.tensor(1.0))
        assert not framework.owns(1.0)
        assert not framework.owns(Keeper())
