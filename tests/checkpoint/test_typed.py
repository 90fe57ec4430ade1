"""Plain values come back from their JSON form exactly: type, order, bits."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from colabkeep.checkpoint.codec import UnknownKind, decode_part, encode_parts, references, unpack
from colabkeep.core.errors import NotStorable
from colabkeep.core.layout import dumps
from colabkeep.core.state import HostTensor, Tagged, Withheld

any_text = st.text(st.characters(), max_size=6) | st.sampled_from(
    ["$int", "$", "", "\ud83d\ude00", "\udcff", "a.b", "#2"]
)
any_float = st.floats() | st.integers(0, 2**64 - 1).map(lambda n: struct.unpack(">d", struct.pack(">Q", n))[0])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 10**400]),
    any_float,
    st.builds(complex, any_float, any_float),
    any_text,
    st.binary(max_size=8),
    st.datetimes(timezones=st.none() | st.just(timezone.utc) | st.just(timezone(timedelta(hours=-3, minutes=-30)))).map(
        lambda moment: moment.replace(fold=0)
    ),
    st.dates(),
    st.timedeltas(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.sampled_from([Path("a/b"), PurePosixPath("c"), PureWindowsPath("c:\\d"), slice(1, None, 2), slice(None)]),
)
hashables = st.one_of(
    scalars.filter(lambda value: not isinstance(value, slice)),
    st.tuples(scalars.filter(lambda value: not isinstance(value, slice)), st.integers()),
    st.frozensets(st.integers(), max_size=3),
)
tensors = st.builds(
    lambda data, frozen: HostTensor(dtype="U8", shape=(len(data),), data=memoryview(data), frozen=frozen),
    st.binary(max_size=5),
    st.booleans(),
)


def containers(inner):
    members = st.lists(inner, max_size=4)
    pairs = st.lists(st.tuples(hashables, inner), max_size=4)
    return st.one_of(
        members,
        members.map(tuple),
        st.builds(deque, members, st.none() | st.just(7)),
        members.map(lambda values: bytearray(repr(values).encode())),
        st.dictionaries(any_text, inner, max_size=4),
        pairs.map(dict),
        pairs.map(OrderedDict),
        st.builds(lambda pairs, make: defaultdict(make, pairs), pairs, st.sampled_from([None, int, list, set, str])),
        st.dictionaries(hashables, st.integers(), max_size=3).map(Counter),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.builds(Tagged, st.text(max_size=5), inner),
    )


trees = st.recursive(scalars | tensors, containers, max_leaves=12)


def there_and_back(parts):
    encoded = encode_parts(parts)
    text = dumps(encoded.parts)
    packs = [unpack(bytearray(b"".join(pack.chunks()))) for pack in encoded.packs]
    return {name: decode_part(node, packs) for name, node in json.loads(text).items()}


@settings(max_examples=400, deadline=None)
@given(parts=st.dictionaries(st.sampled_from(["model", "model.a", "state", "__metadata__"]), trees, max_size=4))
def test_any_state_comes_back_exactly(kit, parts):
    """Whatever a state is made of, what is read is what was written, in every type, order and bit."""
    assert kit.same(there_and_back(parts), parts)


@settings(deadline=None)
@given(tree=trees)
def test_the_same_state_has_the_same_bytes(tree):
    """A state that did not change costs nothing to save again: its packs have the same digests."""
    before, after = encode_parts({"part": tree}), encode_parts({"part": tree})
    assert [pack.sha256 for pack in before.packs] == [pack.sha256 for pack in after.packs]
    assert dumps(before.parts) == dumps(after.parts)


def test_a_nan_keeps_its_payload_and_a_zero_its_sign():
    """Floats come back bit for bit, also those that compare oddly."""
    odd = struct.unpack(">d", bytes.fromhex("7ff4deadbeef0001"))[0]
    back = there_and_back({"part": [odd, -0.0, math.inf]})["part"]
    assert struct.pack(">d", back[0]).hex() == "7ff4deadbeef0001"
    assert math.copysign(1, back[1]) == -1
    assert back[2] == math.inf


def test_an_integer_has_no_largest_size():
    """A number beyond what Python itself turns into decimal text is kept."""
    assert there_and_back({"part": [-(10**5000)]})["part"] == [-(10**5000)]


def test_a_dictionary_keeps_its_order_and_the_types_of_its_keys():
    """{1: …, "1": …, True-like keys} stay what they were, in the order they were in."""
    value = {"z": 1, 1: "one", "1": "text", (2, "x"): 2.5, None: 3, b"b": 4, -0.5: 5}
    back = there_and_back({"part": value})["part"]
    assert [(type(key), key, member) for key, member in back.items()] == [
        (type(key), key, member) for key, member in value.items()
    ]


def test_a_key_that_looks_like_one_of_ours_is_only_a_key():
    """A user's dictionary cannot be taken for a typed node, whatever its keys are."""
    for value in ({"$int": "0x10"}, {"$tensor": [0, "a"]}, {"$tag": ["k", 1], "x": 1}, {"$": 1}):
        assert there_and_back({"part": value})["part"] == value


def test_a_tensor_met_twice_is_stored_once_and_comes_back_as_one(kit):
    """Tied weights stay tied, also across parts, and take the room of one."""
    shared, other = kit.floats(1, 2), kit.floats(1, 2)
    encoded = encode_parts({"model": {"a": shared, "b": shared, "c": other}, "ema": {"a": shared}})
    packs = [unpack(bytearray(b"".join(pack.chunks()))) for pack in encoded.packs]
    assert sorted(packs[0]) == ["model.a", "model.c"]
    model, ema = (decode_part(encoded.parts[name], packs) for name in ("model", "ema"))
    assert model["a"] is model["b"] is ema["a"]
    assert model["c"] is not model["a"]


def test_no_two_tensors_share_a_name_in_a_file(kit):
    """Paths that read the same, in one part or in two, do not overwrite each other."""
    parts = {
        "state.a": {"state": {"x": kit.floats(1)}},
        "state.a.state": {"x": kit.floats(2)},
        "odd": {"a.b": kit.floats(3), "a": {"b": kit.floats(4)}, 1: kit.floats(5), "[1]": kit.floats(6)},
        "half": {"\ud83d\ude00": kit.floats(7), "\U0001f600": kit.floats(8)},
        "__metadata__": kit.floats(9),
    }
    assert kit.same(there_and_back(parts), parts)


def test_a_key_that_is_no_text_does_not_keep_others_from_reading(kit):
    """Half a character in a key of the state leaves a file that the reference library opens."""
    parts = {"odd": {"\ud83d": kit.floats(1), "whole \U0001f600": kit.floats(2)}}
    (pack,) = encode_parts(parts).packs
    names = {name for name, _ in safetensors.deserialize(b"".join(pack.chunks()))}
    assert names == {r"odd['\ud83d']", "odd['whole \U0001f600']"}
    assert kit.same(there_and_back(parts), parts)


def test_frozen_tensors_lie_apart(kit):
    """What training does not change is in files of its own, so that it is written once in a run."""
    encoded = [encode_parts({"model": {"body": kit.floats(1, frozen=True), "head": kit.floats(n)}}) for n in (2, 3)]
    first, second = ({pack.sha256 for pack in one.packs} for one in encoded)
    assert len(first) == len(second) == 2
    assert len(first & second) == 1


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: None,
        type("Named", (tuple,), {})((1,)),
        type("Number", (int,), {})(1),
        type("Text", (str,), {})("x"),
        defaultdict(lambda: 0),
        datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
        datetime(2024, 1, 1, fold=1),
        {"inside": [1, {2: object}]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_refused_with_its_path(value):
    """A value that has no exact plain form is named, with its place and the remedy, instead of bent into one."""
    with pytest.raises(NotStorable) as caught:
        encode_parts({"state.mine": {"deep": [0, value]}})
    assert caught.value.path.startswith("state.mine.deep[1]")
    assert caught.value.path in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    "node",
    [
        {"$unknown": 1},
        {"$eval": "1"},
        {"$int": "0x10", "more": 1},
        {"$int": "no number"},
        {"$int": None},
        {"$float": "00"},
        {"$complex": "00"},
        {"$float": "zz"},
        {"$text": "ff"},
        {"$tag": [1, 2]},
        {"$tag": []},
        {"$dict": [[{"$dict": []}, 1]]},
        {"$dict": [[1]]},
        {"$dict": 3},
        {"$set": [[]]},
        {"$defaultdict": ["open", []]},
        {"$defaultdict": [["int"], []]},
        {"$deque": [-1, []]},
        {"$range": [1, 2, 0]},
        {"$range": [1, 2, 3, 4]},
        {"$bytes": "not base64!"},
        {"$bytes": 5},
        {"$path": ["a"]},
        {"$datetime": "yesterday"},
        {"$timedelta": [10**12, 0, 0]},
        {"$tensor": [0, "gone"]},
        {"$tensor": [9, "weight"]},
        {"$tensor": [-1, "weight"]},
        {"$tensor": []},
        {"$tensor": None},
        {"$tensor": [0, []]},
    ],
    ids=str,
)
def test_a_node_that_nobody_wrote_is_refused(kit, node):
    """A manifest that was made up cannot make the reader call, import or guess anything: it is refused."""
    with pytest.raises(ValueError, match="a value of the state"):
        decode_part([node], [{"weight": kit.floats(1)}])


def test_a_state_nested_beyond_reason_is_refused():
    """A text of a million brackets ends in a refusal, not in a crash."""
    node = []
    for _ in range(100_000):
        node = [node]
    with pytest.raises(ValueError, match="a value of the state"):
        decode_part(node, [])


def test_the_tensors_that_a_part_names_are_found_without_decoding(kit):
    """What a part needs is known from its JSON alone, wherever the tensors sit in it."""
    tree = {"a": [kit.floats(1), ({2: kit.floats(2)},)], "b": Tagged("kind", {"c": kit.floats(3)})}
    encoded = encode_parts({"part": tree, "other": {"d": kit.floats(4)}})
    keys = {key for pack in encoded.packs for key in unpack(bytearray(b"".join(pack.chunks())))}
    named = {key for _, key in references(encoded.parts["part"])}
    assert len(named) == 3
    assert keys - named == {"other.d"}


def test_a_time_is_a_time_and_a_day_a_day():
    """datetime is a kind of date, and both come back as what they were."""
    value = [datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=timezone.utc), date(2024, 2, 29), timedelta(-1, 2, 3)]
    back = there_and_back({"part": value})["part"]
    assert [repr(member) for member in back] == [repr(member) for member in value]


def test_a_weight_that_is_named_by_its_checksum_comes_back_without_bytes(kit):
    """Under both of its names as one object, beside those that are stored; no pack holds it."""
    named = HostTensor(dtype="F32", shape=(2, 3), data=Withheld(24), frozen=True, referred="ab" * 32)
    parts = {"model": {"a": named, "b": named, "c": kit.floats(2)}}
    encoded = encode_parts(parts)
    assert [list(unpack(bytearray(b"".join(pack.chunks())))) for pack in encoded.packs] == [["model.c"]]
    found = there_and_back(parts)["model"]
    assert found["a"] is found["b"]
    assert (found["a"].dtype, found["a"].shape, found["a"].referred) == ("F32", (2, 3), "ab" * 32)
    assert found["a"].data.nbytes == 24


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (["k", "F99", [1], "ab" * 32], UnknownKind),
        (["k", "F32", [-1], "ab" * 32], ValueError),
        (["k", "F32", [1], "xy" * 32], ValueError),
        (["k", "F32", [1]], ValueError),
        (7, ValueError),
    ],
)
def test_a_name_that_is_made_up_is_refused(node, error):
    """Whoever forges a checkpoint gets no tensor of another kind out of it."""
    with pytest.raises(error):
        decode_part({"$referred": node}, [])
