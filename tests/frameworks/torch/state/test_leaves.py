"""Values of every type that may sit in a state: exactly back, or refused with a path."""

from __future__ import annotations

import random
from collections import namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch

from colabkeep.core.errors import CheckpointDamaged, CheckpointUnsupported, NotStorable, UsageError
from colabkeep.core.state import HostTensor, Tagged
from colabkeep.frameworks.base import Framework
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits, tensors_of, through_files

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

Point = namedtuple("Point", "x y")


class Color(IntEnum):
    RED = 1


class Subtensor(torch.Tensor):
    pass


def back(framework: Framework, value: Any) -> Any:
    """The value after a checkpoint; also checks that storing it again gives the same bits."""
    trees = captured(framework, {"keeper": Keeper(value)})
    keeper = Keeper()
    framework.restore({"keeper": keeper}, trees)
    assert same_bits(captured(framework, {"keeper": keeper}), trees)
    return keeper.value


TENSORS = {
    "matrix": torch.randn(3, 4),
    "number": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last, size one": torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last),
    "batch of one": torch.randn(2, 1, 3).transpose(0, 1),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
    "bool": torch.tensor([True, False]),
    "unsigned": torch.tensor([1, 2], dtype=torch.uint16),
    "bfloat16": torch.randn(5).bfloat16(),
    "eight bits": torch.randn(5).to(torch.float8_e5m2),
    "eight odd bits": torch.randn(4, 2).to(torch.float8_e4m3fnuz),
    "complex": torch.randn(3, dtype=torch.complex64),
    "wide complex": torch.randn(2, 3, dtype=torch.complex128).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_bit_for_bit(name: str, framework: TorchFramework) -> None:
    """Shape, dtype, order in memory and every bit."""
    tensor = TENSORS[name]
    now = back(framework, tensor)
    assert (now.dtype, now.shape, now.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(
        now.contiguous().reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)
    )
    assert not now.requires_grad


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("pad", [3, 64])
def test_a_restored_tensor_has_memory_of_its_own(name: str, pad: int, framework: TorchFramework) -> None:
    """Where it lay in the file, aligned or not, plays no part."""
    trees = through_files(captured(framework, {"keeper": Keeper(TENSORS[name])}), pad)
    now = framework.native(trees["keeper"])["state"]["value"]
    before = now.clone()
    for host in tensors_of(trees["keeper"]):
        host.data[:] = bytes(host.data.nbytes)
    assert torch.equal(now.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))
    assert now.data_ptr() % 16 == 0


def test_views_with_gaps_keep_their_values(framework: TorchFramework) -> None:
    """A slice, an expanded or a conjugated tensor becomes an ordinary one with the same numbers."""
    base = torch.randn(4, 6, dtype=torch.complex64)
    for view in (base[:, ::2], base[:, :1].expand(4, 3), base.conj(), base.real):
        now = back(framework, view)
        assert now.is_contiguous()
        assert torch.equal(now, view.resolve_conj())


@pytest.mark.parametrize("layout", ["coo", "coo uncoalesced", "csr", "csc", "bsr", "bsc"])
def test_sparse_tensors_come_back(layout: str, framework: TorchFramework) -> None:
    """Every sparse layout of torch, with its indices as they were."""
    dense = torch.eye(4)
    if layout == "coo uncoalesced":
        indices, values = torch.tensor([[0, 0, 1]]), torch.tensor([1.0, 2.0, 3.0])
        tensor = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=True)
    else:
        convert = getattr(dense, f"to_sparse_{layout}")
        tensor = convert((2, 2)) if layout.startswith("bs") else convert()
    now = back(framework, tensor)
    assert now.layout == tensor.layout
    assert torch.equal(now.to_dense(), tensor.to_dense())
    if tensor.layout is torch.sparse_coo:
        assert now.is_coalesced() == tensor.is_coalesced()


def test_parameters_and_gradients_wanted_come_back(framework: TorchFramework) -> None:
    """A parameter is one again; what requires a gradient does; what a graph made is a plain number."""
    leaf = torch.ones(2, requires_grad=True)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter, stopped, wants, made = back(framework, [torch.nn.Parameter(torch.ones(2)), frozen, leaf, leaf * 2])
    assert type(parameter) is torch.nn.Parameter
    assert (parameter.requires_grad, stopped.requires_grad) == (True, False)
    assert type(stopped) is torch.nn.Parameter
    assert type(wants) is torch.Tensor
    assert (wants.requires_grad, made.requires_grad) == (True, False)


def test_torch_constants_come_back(framework: TorchFramework) -> None:
    """Data types, devices, layouts and sizes, as values and as keys."""
    value = {
        torch.bfloat16: torch.device("cuda", 1), "size": torch.Size([1, 2]), torch.Size([3]): torch.channels_last,
        "layout": torch.sparse_csr,
    }  # fmt: skip
    assert back(framework, value) == value
    assert type(back(framework, value)["size"]) is torch.Size


def test_private_generators_go_on(framework: TorchFramework) -> None:
    """Generators that a part holds draw what they would have drawn."""
    generators = {
        "torch": torch.Generator().manual_seed(4), "numpy": np.random.default_rng(4), "python": random.Random(4),
        "legacy": np.random.RandomState(4), "mt": np.random.Generator(np.random.MT19937(4)),
        "philox": np.random.Generator(np.random.Philox(4)),
    }  # fmt: skip

    def draws(of: dict[str, Any]) -> list[Any]:
        numbers = [of["torch"].initial_seed(), torch.rand(3, generator=of["torch"]).tolist(), of["python"].gauss(0, 1)]
        numbers += [of[name].standard_normal(3).tolist() for name in ("numpy", "legacy", "mt", "philox")]
        return [*numbers, of["numpy"].spawn(1)[0].random() if hasattr(of["numpy"], "spawn") else None]

    draws(generators)
    now = back(framework, generators)
    assert draws(now) == draws(generators)


@pytest.mark.parametrize("framework", [TorchFramework(), NumpyFramework()], ids=["torch", "numpy"])
def test_arrays_come_back_bit_for_bit(framework: Framework) -> None:
    """NumPy arrays, scalars and dtypes stay what they were, in every order in memory."""
    arrays = [
        np.random.rand(3, 4), np.asfortranarray(np.random.rand(3, 4)), np.zeros((0, 3), np.float32), np.array(2.5),
        np.array([1, 2], dtype=">i4"), np.array(["a", "bc"]), np.array(["2026-01-02"], dtype="M8[D]"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.arange(12).reshape(3, 4)[:, ::2], np.array([True]),
        np.array([1 + 2j]), np.float16([1, 2]), np.arange(6, dtype="u2").reshape(2, 3).T,
    ]  # fmt: skip
    for now, array in zip(back(framework, arrays), arrays, strict=True):
        assert type(now) is np.ndarray
        assert (now.dtype, now.shape) == (array.dtype, array.shape)
        assert now.tobytes() == array.tobytes()
        assert now.flags.writeable
        assert now.flags.f_contiguous == array.flags.f_contiguous or not array.flags.forc
    scalars = [
        np.float64(1.5),
        np.int8(-3),
        np.bool_(True),
        np.str_("x"),
        np.datetime64("2026-01-02"),
        np.complex64(1j),
    ]
    for now, scalar in zip(back(framework, scalars), scalars, strict=True):
        assert type(now) is type(scalar)
        assert now == scalar
    assert back(framework, {np.int64(3): np.dtype("<f4")}) == {np.int64(3): np.dtype("<f4")}


BAD = {
    "enum": (Color.RED, ".value"),
    "named tuple": (Point(1, 2), "tuple(x)"),
    "module": (torch.nn.Linear(1, 1), "state={...}"),
    "function": (back, "function"),
    "tensor subclass": (torch.ones(2).as_subclass(Subtensor), "as_subclass"),
    "meta": (torch.ones(2, device="meta"), "to_empty"),
    "lazy": (torch.nn.UninitializedParameter(), "forward pass"),
    "object array": (np.array([object()]), "numeric dtype"),
    "matrix": (np.ma.array([1.0]), "plain values"),
    "system random": (random.SystemRandom(), "plain values"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_has_no_exact_form_is_refused(name: str, framework: TorchFramework) -> None:
    """With the path, and a remedy that fits the type."""
    value, remedy = BAD[name]
    with pytest.raises(NotStorable) as caught:
        framework.capture({"state.mine": Keeper({"deep": [value]})})
    assert caught.value.path == "state.mine.value.deep[0]"
    assert remedy in caught.value.remedy


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused(framework: TorchFramework) -> None:
    """It cannot be trained, and has no bytes of its own."""
    with pytest.raises(NotStorable) as caught:
        framework.capture({"mine": Keeper(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))})
    assert "dequantize" in caught.value.remedy


def test_a_tensor_as_a_key_is_refused(framework: TorchFramework) -> None:
    """It is found by identity, which does not survive."""
    with pytest.raises(NotStorable, match="key"):
        framework.capture({"mine": Keeper({torch.ones(1): 1})})


def test_a_state_nested_without_measure_is_refused(framework: TorchFramework) -> None:
    """A linked list of dicts ends in a sentence, not in a recursion."""
    deep: Any = []
    for _ in range(5000):
        deep = {"next": [deep]}
    with pytest.raises(NotStorable, match="nested deeper"):
        framework.capture({"mine": Keeper(deep)})


def test_tensors_are_stored_under_the_names_of_safetensors(framework: TorchFramework) -> None:
    """Other tools open the files: bfloat16 is BF16, and what has no name there is bytes."""
    values = [torch.ones(2).bfloat16(), torch.ones(3, dtype=torch.complex64), torch.ones(2, dtype=torch.complex128)]
    hosts = tensors_of(captured(framework, {"mine": Keeper(values)})["mine"])
    assert [(host.dtype, host.shape) for host in hosts] == [("BF16", (2,)), ("C64", (3,)), ("U8", (2, 16))]


def test_a_checkpoint_of_another_framework_or_time_is_refused_in_words(framework: TorchFramework) -> None:
    """Unknown leaves, dtypes and impossible strides are told, not guessed."""
    host = HostTensor(dtype="F32", shape=(2, 3), data=memoryview(bytearray(24)))
    with pytest.raises(CheckpointUnsupported):
        framework.native(Tagged("paddle.tensor", 1))
    with pytest.raises(CheckpointUnsupported):
        framework.native(HostTensor(dtype="F3", shape=(1,), data=memoryview(bytearray(1))))
    with pytest.raises(CheckpointUnsupported):
        framework.native(Tagged("torch.dtype", "nn"))
    with pytest.raises(CheckpointUnsupported):
        framework.native(Tagged("numpy.generator", {"state": {"bit_generator": "seed"}, "sequence": None}))
    with pytest.raises(CheckpointDamaged):
        framework.native(Tagged("torch.tensor", {"data": host, "stride": (1, 7)}))
    with pytest.raises(UsageError, match="BF16"):
        NumpyFramework().native(HostTensor(dtype="BF16", shape=(1,), data=memoryview(bytearray(2))))


def test_weights_made_with_torch_load_as_arrays(framework: TorchFramework) -> None:
    """Without torch, a checkpoint's plain tensors are arrays."""
    trees = captured(framework, {"model": torch.nn.Linear(2, 3)})
    arrays = NumpyFramework().native(trees["model"]["weights"])
    assert {name: array.shape for name, array in arrays.items()} == {"weight": (3, 2), "bias": (3,)}


def test_read_only_buffers_are_read_too(framework: TorchFramework) -> None:
    """A tree whose bytes may not be written gives tensors that may."""
    host = HostTensor(dtype="I16", shape=(2,), data=memoryview(b"\x01\x00\x02\x00"))
    tensor = framework.native(host)
    tensor += 1
    assert tensor.tolist() == [2, 3]
