"""A pack is a safetensors file like any other, and a file that only claims to be one is refused."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colabkeep.checkpoint.codec import (
    DTYPE_BITS,
    PACK_BYTES,
    SLICE,
    SMALL_BYTES,
    Pack,
    encode_parts,
    read_layout,
    unpack,
)
from colabkeep.core.state import HostTensor

NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4"}
NUMPY |= {"F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8"}


def host(array):
    dtype = next(name for name, code in NUMPY.items() if np.dtype(code) == array.dtype)
    return HostTensor(dtype=dtype, shape=array.shape, data=memoryview(array.tobytes()))


def whole(pack):
    return b"".join(pack.chunks())


def text(header, body=b"", length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(struct.pack("<Q", len(head) if length is None else length) + head + body)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda n: n != "__metadata__")


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(sorted(NUMPY.values()))))
    shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


@settings(deadline=None)
@given(st.dictionaries(names, arrays(), max_size=5))
def test_the_reference_library_reads_what_we_write(arrays):
    """Any tool that knows safetensors can open a blob: same names, dtypes, shapes and bits."""
    found = safetensors.deserialize(whole(Pack({name: host(array) for name, array in arrays.items()})))
    expected = {name: (host(array).dtype, list(array.shape), array.tobytes()) for name, array in arrays.items()}
    assert {n: (e["dtype"], e["shape"], bytes(e["data"])) for n, e in found} == expected


@settings(deadline=None)
@given(st.dictionaries(names, arrays(), max_size=5))
def test_we_read_what_the_reference_library_writes(arrays):
    """A file of tensors from elsewhere is read the same way."""
    found = unpack(bytearray(safetensors.numpy.save(arrays, {"format": "np"})))
    assert {n: (t.dtype, t.shape, bytes(t.data)) for n, t in found.items()} == {
        name: (host(array).dtype, array.shape, array.tobytes()) for name, array in arrays.items()
    }


@settings(deadline=None)
@given(st.dictionaries(names, arrays(), max_size=5))
def test_a_pack_knows_its_size_and_layout_without_being_written(arrays):
    """Size and header say what the bytes are before one of them is read."""
    pack = Pack({name: host(array) for name, array in arrays.items()})
    data = whole(pack)
    assert pack.size == len(data)
    layout = read_layout(io.BytesIO(data), pack.size)
    assert {n: (e.dtype, e.shape, e.end - e.start) for n, e in layout.items()} == {
        name: (host(array).dtype, array.shape, array.nbytes) for name, array in arrays.items()
    }


def test_torch_reads_a_pack_with_odd_neighbours(tmp_path):
    """A float behind three booleans, and a bfloat16, are read by torch's own loader."""
    half = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
    tensors = {
        "flags": host(np.array([True, False, True])),
        "half": HostTensor(dtype="BF16", shape=(3,), data=memoryview(half.view(torch.uint8).numpy().tobytes())),
        "weight": host(np.array([[1.0, 2.0]], "<f4")),
    }
    (tmp_path / "a.safetensors").write_bytes(whole(Pack(tensors)))
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found["flags"].tolist() == [True, False, True]
    assert torch.equal(found["half"], half)
    assert found["weight"].tolist() == [[1.0, 2.0]]


def test_a_pack_gives_its_bytes_in_bounded_pieces_and_copies_none():
    """Writing a large tensor holds no second copy of it, and lets other threads run between pieces."""
    data = bytearray(3 * SLICE + 5)
    pack = Pack({"a": HostTensor(dtype="U8", shape=(len(data),), data=memoryview(data))})
    pieces = list(pack.chunks())
    assert max(piece.nbytes for piece in pieces) <= SLICE
    data[:3] = b"new"
    assert b"".join(pieces)[-len(data) :][:3] == b"new"


def test_small_tensors_are_written_together():
    """A model of thousands of small tensors takes few writes: training waits a moment for each."""
    tensors = {
        f"t{n}": HostTensor(dtype="U8", shape=(5000,), data=memoryview(bytes([n % 251]) * 5000)) for n in range(3000)
    }
    tensors["large"] = HostTensor(dtype="U8", shape=(2**21,), data=memoryview(bytes(2**21)))
    pack = Pack(tensors)
    chunks = list(pack.chunks())
    assert len(chunks) <= 20
    read = unpack(bytearray(b"".join(chunks)))
    assert {name: bytes(tensor.data) for name, tensor in read.items()} == {
        name: bytes(tensor.data) for name, tensor in tensors.items()
    }


def test_only_small_tensors_are_gathered_and_few_at_a_time():
    """Training can go on while a model of middling tensors is hashed and written: none of them is copied for it, and
    what is gathered, while no other thread can run, is never much."""
    middling = [bytearray(200_000) for _ in range(10)]
    datas = {f"m{n}": memoryview(data) for n, data in enumerate(middling)}
    datas |= {f"s{n}": memoryview(bytearray(100_000)) for n in range(50)}
    pack = Pack({name: HostTensor(dtype="U8", shape=(data.nbytes,), data=data) for name, data in datas.items()})
    chunks = list(pack.chunks())
    assert [any(chunk.obj is data for chunk in chunks) for data in middling] == [True] * 10
    gathered = [chunk for chunk in chunks if all(chunk.obj is not data for data in middling)]
    assert sum(chunk.nbytes for chunk in gathered) > 5_000_000
    assert max(chunk.nbytes for chunk in gathered) < 1.2 * 2**20


def entry(**other):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **other}


HOSTILE = {
    "nothing": b"",
    "too short for a length": b"\0" * 7,
    "a header of ten gigabytes": text(b"{}", length=10 * 10**9),
    "a header longer than the file": text({"a": entry()}, bytes(8), length=1000),
    "a header that is no JSON": text(b"{not json", b""),
    "a header that is no text": text(b"\xff\xfe\x00"),
    "a header that is a list": text([]),
    "a header nested a million deep": text(b"[" * 10**6),
    "a name twice": text(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
    "an entry that is a number": text({"a": 3}),
    "an entry with a field too many": text({"a": entry(more=1)}, bytes(8)),
    "an entry with a field too few": text({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "a dtype nobody knows": text({"a": entry(dtype="F99")}, bytes(8)),
    "a dtype that is a list": text({"a": entry(dtype=["F32"])}, bytes(8)),
    "a dtype that does not fit": text({"a": entry(dtype="F64")}, bytes(8)),
    "a shape that is text": text({"a": entry(shape="22")}, bytes(8)),
    "a negative size": text({"a": entry(shape=[-2])}, bytes(8)),
    "two negative sizes": text({"a": entry(shape=[-2, -1])}, bytes(8)),
    "a size that is half a number": text({"a": entry(shape=[2.0])}, bytes(8)),
    "a size that is True": text({"a": entry(shape=[True, 2])}, bytes(8)),
    "a shape larger than memory": text({"a": entry(shape=[2**61, 2**61])}, bytes(8)),
    "no elements, in a shape that overflows": text({"a": entry(shape=[2**61, 0, 2**61], data_offsets=[0, 0])}),
    "a header of a million empty lists": text(b'{"a":[' + b"[]," * 3 * 10**6 + b"[]]}"),
    "a shape with a million dimensions": text({"a": entry(shape=[9] * 10**6)}, bytes(8)),
    "offsets that go backwards": text({"a": entry(data_offsets=[8, 0])}, bytes(8)),
    "negative offsets": text({"a": entry(data_offsets=[-8, 0])}, bytes(8)),
    "offsets behind the end": text({"a": entry(data_offsets=[4, 12])}, bytes(8)),
    "three offsets": text({"a": entry(data_offsets=[0, 4, 8])}, bytes(8)),
    "overlap and a gap of the same size": text({"a": entry(), "b": entry()}, bytes(16)),
    "a gap": text({"a": entry(), "b": entry(data_offsets=[12, 20])}, bytes(20)),
    "bytes behind the last tensor": text({"a": entry()}, bytes(9)),
    "fewer bytes than promised": text({"a": entry()}, bytes(7)),
    "a pickle": bytearray(b"\x80\x04cposix\nsystem\n(S'true'\ntR."),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_that_is_none_of_ours_is_refused(data):
    """Whatever a file claims, nothing is allocated, read outside of it or believed: it is refused in words."""
    with pytest.raises(ValueError, match="is not a file of tensors"):
        unpack(bytearray(data))
    with pytest.raises(ValueError, match="is not a file of tensors"):
        read_layout(io.BytesIO(data), len(data))


def bulk(size, *, frozen=False):
    return HostTensor(
        dtype="U8",
        shape=(size,),
        data=memoryview(bytes(1)) if size == 1 else memoryview(bytearray(size)),
        frozen=frozen,
    )


def test_a_small_state_is_one_file():
    """Few files for a drive: parts that are small share one."""
    parts = {"model": {"a": bulk(100)}, "optimizer": {"b": bulk(100)}, "rng": {"c": bulk(5000)}}
    assert len(encode_parts(parts).packs) == 1


def test_a_large_part_has_files_of_its_own_and_none_is_too_large():
    """A state of any size is split into files that can be sent again one by one; one tensor is never split."""
    third = PACK_BYTES // 3 + 1
    parts = {"model": {str(i): bulk(third) for i in range(3)}, "rng": bulk(10), "optimizer": bulk(SMALL_BYTES)}
    sizes = [[t.data.nbytes for t in tensors_of(pack)] for pack in encode_parts(parts).packs]
    assert sizes == [[third, third], [third], [SMALL_BYTES], [10]]


def tensors_of(pack):
    header = io.BytesIO(b"".join(piece for piece, _ in zip(pack.chunks(), range(2), strict=False)))
    layout = read_layout(header, pack.size)
    return [bulk(e.end - e.start) for e in layout.values()]


def test_the_dtypes_of_a_pack_are_those_of_the_reference():
    """Every dtype that a pack may hold is read by the reference library, with the size that we think it has."""
    for dtype, width in DTYPE_BITS.items():
        data = memoryview(bytes(width // 8 * 2))
        ((name, found),) = safetensors.deserialize(whole(Pack({"a": HostTensor(dtype=dtype, shape=(2,), data=data)})))
        assert (name, found["dtype"], found["shape"]) == ("a", dtype, [2])
