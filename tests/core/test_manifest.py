"""A manifest is what was written, bit for bit, or it is not a manifest."""

from __future__ import annotations

import gc
import hashlib
import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported
from colabkeep.core.layout import seal, unseal
from colabkeep.core.manifest import _FITS, _READERS, FORMAT, BlobRef, Manifest, Progress

ID = "000000000007-0123abcd"
DIGEST = "ab" * 32

EXAMPLE = Manifest(
    id=ID,
    run="resnet-cifar",
    session="0123abcd",
    fence=3,
    progress=Progress(epoch=1, step=7, batches=2, epoch_samples=64, samples=224, seconds=1.5),
    blobs=(BlobRef(sha256=DIGEST, size=100, file=f"{DIGEST}.safetensors"),),
    parts={"model": {"weight": [0, "w"]}},
    framework="torch",
    metrics={"val_loss": 0.25},
    reason="epoch",
    fingerprint={"torch": "2.13.0"},
    created=1.7e9,
    parent="000000000004-0123abcd",
    lineage=(("fedcba98", 4),),
    version="0.1.0",
)


BARE = Manifest(
    id=ID,
    run="resnet-cifar",
    session="0123abcd",
    fence=3,
    progress=EXAMPLE.progress,
    blobs=EXAMPLE.blobs,
    parts=EXAMPLE.parts,
    framework="torch",
)


def sealed(**changes: Any) -> bytes:
    """The text of a hostile writer: the example with other fields, and a digest that is right."""
    record = {**unseal(EXAMPLE.to_bytes()), **changes}
    body = json.dumps(record, separators=(",", ":")).encode()
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def refused(text: bytes, id: str = ID) -> CheckpointDamaged:
    with pytest.raises(CheckpointDamaged) as caught:
        Manifest.from_bytes(text, id=id)
    assert id in caught.value.problem
    with pytest.raises(CheckpointDamaged) as checked:
        Manifest.from_bytes(text, id=id, whole=False)
    assert checked.value.problem == caught.value.problem
    return caught.value


text = st.text(max_size=8)
counts = st.integers(0, 2**40)
json_trees = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), text
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=12,
)
blobs = st.builds(
    lambda digest, size, tail: BlobRef(sha256=digest, size=size, file=f"{digest}{tail}.safetensors"),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    counts,
    st.one_of(st.just(""), st.binary(min_size=4, max_size=4).map(lambda b: "-" + b.hex())),
)


@st.composite
def any_manifest(draw: st.DrawFn) -> Manifest:
    step, session = draw(st.integers(0, 10**12 - 1)), draw(st.binary(min_size=4, max_size=4)).hex()
    nth = draw(st.one_of(st.just(""), st.integers(1, 999999).map("-{}".format)))
    progress = Progress(
        epoch=draw(counts),
        step=step,
        batches=draw(counts),
        epoch_samples=draw(counts),
        samples=draw(counts),
        seconds=draw(st.floats(0, 1e9)),
    )
    return Manifest(
        id=f"{step:012d}-{session}{nth}",
        run=draw(text),
        session=session,
        fence=draw(counts),
        progress=progress,
        blobs=tuple(draw(st.lists(blobs, max_size=4))),
        parts=draw(st.dictionaries(text, json_trees, max_size=3)),
        framework=draw(text),
        metrics=draw(st.dictionaries(text, st.floats(), max_size=4)),
        reason=draw(text),
        fingerprint=draw(st.dictionaries(text, text, max_size=3)),
        created=draw(st.floats(0, 1e11)),
        parent=draw(st.one_of(st.none(), text)),
        lineage=tuple(draw(st.lists(st.tuples(text, counts), max_size=3))),
        version=draw(text),
    )


@given(any_manifest())
def test_a_manifest_comes_back_as_it_was_written(manifest: Manifest) -> None:
    """Every field, with metrics that are NaN or infinite; written again, it is the same text."""
    Manifest.from_bytes(manifest.to_bytes(), id=manifest.id, whole=False)
    back = Manifest.from_bytes(manifest.to_bytes(), id=manifest.id)
    assert back.to_bytes() == manifest.to_bytes()
    same = {name: repr(value) for name, value in manifest.metrics.items()}
    assert {name: repr(value) for name, value in back.metrics.items()} == same
    assert replace(back, metrics={}) == replace(manifest, metrics={})


def test_metrics_that_are_no_numbers_in_json_survive() -> None:
    """A loss that went to infinity or NaN is part of the history, in files that any JSON reader takes."""
    written = replace(EXAMPLE, metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0}).to_bytes()
    assert json.loads(written)["metrics"] == {"a": "nan", "b": "inf", "c": "-inf", "d": -0.0}
    back = Manifest.from_bytes(written, id=ID).metrics
    assert [repr(value) for value in back.values()] == ["nan", "inf", "-inf", "-0.0"]


@pytest.mark.parametrize("field", ["metrics", "fingerprint", "settings", "parts"])
def test_a_check_takes_what_can_be_read(field: str) -> None:
    """A name that means a tensor elsewhere is a name like any other here: `run.log` is given what users think of."""
    values: dict[str, Any] = {"metrics": 1.0, "fingerprint": "a", "settings": "b", "parts": {"step": 3}}
    written = replace(EXAMPLE, **{field: {"$tensor": values[field]}}).to_bytes()
    Manifest.from_bytes(written, id=ID, whole=False)
    assert getattr(Manifest.from_bytes(written, id=ID), field) == {"$tensor": values[field]}


def test_a_check_keeps_no_tensor_in_memory() -> None:
    """Before a checkpoint exists its text is read once more: a thousand tensors would be as many containers at once."""
    parts = {"model": {f"layer{n}": {"$tensor": [0, f"layer{n}"]} for n in range(1000)}}
    text, rounds, usual = replace(EXAMPLE, parts=parts).to_bytes(), [], gc.get_threshold()

    def collecting(phase: str, info: object) -> None:
        rounds.append(phase)

    gc.collect()
    gc.callbacks.append(collecting)
    gc.set_threshold(500)  # containers that are there at once and were not before
    try:
        Manifest.from_bytes(text, id=ID, whole=False)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(collecting)
    assert not rounds


def test_what_the_shortcuts_say() -> None:
    """Size and order are read from the fields."""
    later = replace(EXAMPLE, id=ID + "-2", blobs=EXAMPLE.blobs * 2)
    assert later.total_bytes == 200
    assert EXAMPLE.order < later.order < replace(EXAMPLE, fence=4, progress=Progress(step=0)).order


def test_a_checkpoint_continues_those_of_its_own_line_only() -> None:
    """Of an earlier session, what it saved up to the take-over belongs to the line; what it saved later does not."""
    earlier = replace(EXAMPLE, session="fedcba98")
    assert EXAMPLE.continues(replace(EXAMPLE, progress=Progress(step=6)))
    assert EXAMPLE.continues(replace(earlier, progress=Progress(step=4)))
    assert not EXAMPLE.continues(replace(earlier, progress=Progress(step=5)))
    assert not EXAMPLE.continues(replace(EXAMPLE, session="00000000", progress=Progress(step=0)))


def test_every_single_flipped_bit_is_noticed() -> None:
    """All of them, over the whole text, one at a time."""
    written = EXAMPLE.to_bytes()
    assert Manifest.from_bytes(written, id=ID) == EXAMPLE
    for position in range(len(written)):
        for bit in range(8):
            flipped = bytearray(written)
            flipped[position] ^= 1 << bit
            refused(bytes(flipped))


def test_every_cut_and_every_addition_is_noticed() -> None:
    """A file cut anywhere, an empty one, one with something behind or before it."""
    written = EXAMPLE.to_bytes()
    for length in range(len(written)):
        refused(written[:length])
    for changed in (written + b"\n", b" " + written, written + written, b"\0" * len(written)):
        refused(changed)


def test_a_manifest_under_another_name_is_not_taken() -> None:
    """A file that was swapped with another, both intact, is noticed by its name."""
    refused(EXAMPLE.to_bytes(), id="000000000008-0123abcd")


def test_a_newer_format_says_update_and_not_damaged() -> None:
    """An old version meets a checkpoint of a new one: the remedy is an update, whatever the other fields are."""
    with pytest.raises(CheckpointUnsupported, match=f"format {FORMAT + 1}") as caught:
        Manifest.from_bytes(sealed(format=FORMAT + 1, parts=["a new kind of thing"]), id=ID)
    assert "pip install -U colabkeep" in caught.value.remedy


@pytest.mark.parametrize(
    "file",
    [
        "../../etc/passwd",
        f"../{DIGEST}.safetensors",
        f"/{DIGEST}.safetensors",
        f"a/{DIGEST}.safetensors",
        f"{DIGEST}.safetensors\n",
        f"{DIGEST}.safetensors/..",
        f"{DIGEST}.pt",
        f"{DIGEST.upper()}.safetensors",
        f"{'cd' * 32}.safetensors",
        f"{DIGEST}-../../x.safetensors",
        "",
        None,
        7,
    ],
)
def test_a_blob_name_cannot_lead_anywhere_else(file: Any) -> None:
    """Only the digest itself is a name, so no manifest can point outside the run's own blobs."""
    refused(sealed(blobs=[{"sha256": DIGEST, "size": 100, "file": file}]))


WRONG: dict[str, list[Any]] = {
    "id": [None, 7, "x", ID + "x"],
    "run": [None, 7, ["r"]],
    "session": [None, 7, "deadbeef", {}],
    "fence": [None, "3", 1.5, True, -1, [3]],
    "progress": [None, [], 7, {}, {"step": 7}, "x"],
    "blobs": [None, 7, {"a": 1}, [None], [[]], [{}], "x"],
    "parts": [None, [], "x", 7],
    "framework": [None, 7],
    "metrics": [None, [], {"a": None}, {"a": "x"}, {"a": True}, {"a": [1]}, {"a": 10**400}, "x"],
    "reason": [None, 7],
    "fingerprint": [None, [], {"a": 1}, "x"],
    "settings": [None, [], {"a": 1}, "x"],
    "created": [None, "x", [], True],
    "parent": [7, [], False],
    "lineage": [None, 7, [1], ["ab"], [["a"]], [["a", "x"]], [["a", 1, 2]], [[1, 1]], {"a": 1}],
    "version": [None, 7],
    "format": [None, "1", 1.0, True, 0, -1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_field_of_a_wrong_kind_is_damage_and_never_a_crash(name: str, value: Any) -> None:
    """Each field with what it cannot be, under a digest that is right: refused before anybody uses it."""
    refused(sealed(**{name: value}))


@pytest.mark.parametrize("name", ["epoch", "step", "batches", "epoch_samples", "samples", "seconds"])
@pytest.mark.parametrize("value", [None, "7", -1, True, [], 1e400, 10**30])
def test_a_position_that_cannot_be_is_refused(name: str, value: Any) -> None:
    """Positions are counts and seconds; nothing else may steer where the data goes on."""
    progress = {**unseal(EXAMPLE.to_bytes())["progress"], name: value}
    refused(sealed(progress=progress))


@pytest.mark.parametrize("size", [None, "100", -1, 1.0, True, 10**30])
def test_a_blob_size_that_cannot_be_is_refused(size: Any) -> None:
    """Nobody reserves memory for a size that no file has."""
    refused(sealed(blobs=[{"sha256": DIGEST, "size": size, "file": f"{DIGEST}.safetensors"}]))


def test_every_field_is_looked_at() -> None:
    """Whoever adds a field says what it cannot be: in the table of the manifest, and in the one above."""
    assert set(WRONG) == {field.name for field in fields(Manifest)} - {"unknown", "origin"}
    assert set(WRONG) == set(_FITS) | {"id", "progress"}


FIRST = {"id", "run", "session", "fence", "progress", "blobs", "parts", "framework", "format"}


@pytest.mark.parametrize("name", sorted(FIRST))
def test_a_missing_field_is_damage(name: str) -> None:
    """What every version wrote must be there."""
    record = unseal(EXAMPLE.to_bytes())
    del record[name]
    refused(seal(record))


@pytest.mark.parametrize("name", sorted(WRONG.keys() - FIRST))
def test_a_field_that_came_later_has_its_default(name: str) -> None:
    """A checkpoint from before a field was thought of is as good as any."""
    record = unseal(EXAMPLE.to_bytes())
    del record[name]
    found = Manifest.from_bytes(seal(record), id=ID)
    assert getattr(found, name) == getattr(BARE, name)
    assert replace(found, **{name: getattr(EXAMPLE, name)}) == EXAMPLE


@pytest.mark.parametrize("name", ["epoch", "step", "batches", "epoch_samples", "samples", "seconds"])
def test_a_position_is_whole(name: str) -> None:
    """Where data goes on is never filled in."""
    progress = unseal(EXAMPLE.to_bytes())["progress"]
    del progress[name]
    refused(sealed(progress=progress))


def test_what_a_newer_version_added_is_kept() -> None:
    """Fields that this version does not know are no damage, and written again as they were, wherever they stand."""
    record = unseal(EXAMPLE.to_bytes())
    record["progress"]["tokens"] = 5
    record["blobs"][0]["crc"] = {"a": [1, None]}
    written = seal({**record, "surprise": 1, "unknown": "x"})
    found = Manifest.from_bytes(written, id=ID)
    assert found.unknown == {
        "surprise": 1,
        "unknown": "x",
        "progress": {"tokens": 5},
        "blobs": [{"crc": {"a": [1, None]}}],
    }
    assert replace(found, unknown={}) == EXAMPLE
    assert unseal(found.to_bytes()) == unseal(written)
    Manifest.from_bytes(written, id=ID, whole=False)


def test_a_manifest_knows_the_file_it_was_read_from() -> None:
    """Whether a copy elsewhere is the same is asked by the bytes that were written, whoever wrote them."""
    record = unseal(EXAMPLE.to_bytes())
    del record["settings"]
    written = seal({"surprise": 1, **record})
    assert Manifest.from_bytes(written, id=ID).origin == (len(written), hashlib.sha256(written).hexdigest())


def test_each_format_has_a_reader() -> None:
    """A format that was ever written is read for ever."""
    assert sorted(_READERS) == list(range(1, FORMAT + 1))


@pytest.mark.parametrize(
    "body",
    [
        b'{"parts":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"parts":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"fence":' + b"9" * 100_000 + b"}",
        b'{"created":NaN}',
        b'{"created":Infinity}',
        b"[1]",
        b"7",
        b'{"a":"\xff"}',
        b"{}",
    ],
    ids=["deep lists", "deep objects", "a huge number", "NaN", "Infinity", "a list", "a number", "no UTF-8", "empty"],
)
def test_hostile_json_under_a_right_digest_is_refused(body: bytes) -> None:
    """Nesting that would exhaust the stack, numbers without end, what is not JSON at all."""
    refused(body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}')


def test_a_file_too_large_to_be_a_manifest_is_not_even_parsed() -> None:
    """A gigantic file costs no more than its reading."""
    assert "too large" in refused(b" " * (64 * 2**20 + 1)).problem


@given(st.dictionaries(text, json_trees, min_size=1, max_size=4))
def test_a_sealed_record_can_be_checked_in_any_language(record: dict[str, Any]) -> None:
    """The digest is that of the same text with the last member cut out; parsing JSON is all it takes."""
    written = seal(record)
    parsed = json.loads(written)
    claimed = parsed["sha256"]
    body = written.replace(f',"sha256":"{claimed}"'.encode(), b"")
    assert hashlib.sha256(body).hexdigest() == claimed
    assert unseal(written) == record


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_other_readers_of_json_refuse_is_neither_written_nor_read(constant: str) -> None:
    """Python's json would take NaN and infinity; a record that others cannot read is not one."""
    with pytest.raises(ValueError):
        seal({"x": float(constant)})
    body = f'{{"x":{constant}}}'.encode()
    with pytest.raises(ValueError, match=f"{constant} is not JSON"):
        unseal(body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}')
