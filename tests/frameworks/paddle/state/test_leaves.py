"""Tensors of every dtype, and the other objects of Paddle that a state may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from colabkeep.core.errors import CheckpointUnsupported, NotStorable
from colabkeep.core.state import HostTensor, Tagged
from colabkeep.frameworks.numpy import NumpyFramework
from colabkeep.frameworks.paddle.adapter import PaddleFramework
from colabkeep.testing.frameworks import Keeper, captured, same_bits, through_files

DTYPES = [
    name
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128", "float8_e4m3fn", "float8_e5m2",
    )
    if hasattr(paddle, name)
]  # fmt: skip
SAFETENSORS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "complex64": "C64", "bool": "BOOL", "int64": "I64"}


def back(value: Any) -> Any:
    keeper = Keeper()
    trees = captured(PaddleFramework(), {"keeper": Keeper(value)})
    PaddleFramework().restore({"keeper": keeper}, trees)
    assert same_bits(captured(PaddleFramework(), {"keeper": keeper}), trees)
    return keeper.value


@pytest.mark.parametrize("shape", [[], [0], [3], [2, 0, 3], [2, 3]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_comes_back_bit_for_bit(dtype: str, shape: list[int]) -> None:
    """Every dtype that Paddle has on a CPU, also of no dimension, and of no element."""
    count = int(np.prod(shape))
    tensor = (paddle.arange(count, dtype="float32") - 1.5).reshape(shape).astype(dtype)
    found = back(tensor)
    assert (found.dtype, list(found.shape)) == (tensor.dtype, shape)
    wide = "complex128" if dtype.startswith("complex") else "float64"
    assert found.astype(wide).tolist() == tensor.astype(wide).tolist()


@pytest.mark.parametrize("dtype", SAFETENSORS)
def test_tensors_are_stored_under_the_names_of_safetensors(dtype: str, framework: PaddleFramework) -> None:
    """Any reader of the file sees the right dtype; NumPy would call bfloat16 a number of another kind."""
    if dtype not in DTYPES:
        assert dtype.startswith("float8")  # which Paddle 2 cannot make
        return
    tree = captured(framework, {"keeper": Keeper(paddle.ones([2]).astype(dtype))})["keeper"]
    assert tree["state"]["value"].dtype == SAFETENSORS[dtype]


def test_strange_bits_survive() -> None:
    """NaNs with a message, negative zeros, denormals."""
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], dtype=np.uint32)
    found = back(paddle.to_tensor(bits.view(np.float32)))
    assert found.numpy().view(np.uint32).tolist() == bits.tolist()


def test_views_with_gaps_keep_their_values() -> None:
    """A column of a matrix, a transposed one, every second element."""
    table = paddle.arange(24, dtype="float32").reshape([4, 6])
    for view in (table[:, 1], table.t(), table[::2, ::3], table[1]):
        assert back(view).tolist() == view.tolist()


def test_parameters_and_wanted_gradients_come_back() -> None:
    """What an object gets back can be trained on as before."""
    parameter = paddle.create_parameter([2], "float32")
    frozen = paddle.create_parameter([2], "float32")
    frozen.stop_gradient = True
    wanting = paddle.ones([2])
    wanting.stop_gradient = False
    kinds = [(type(each), each.stop_gradient) for each in back([parameter, frozen, wanting, paddle.ones([2])])]
    assert kinds == [(type(parameter), False), (type(frozen), True), (paddle.Tensor, False), (paddle.Tensor, True)]


def test_constants_of_paddle_come_back() -> None:
    """Dtypes and places in a user's state."""
    dtype, place = back([paddle.bfloat16, paddle.CPUPlace()])
    assert dtype == paddle.bfloat16
    assert str(place) == str(paddle.CPUPlace())


def test_arrays_stay_arrays() -> None:
    """NumPy's arrays among Paddle's tensors come back as what they were."""
    found = back({"array": np.arange(3, dtype=np.int16), "tensor": paddle.ones([1]), "number": np.float32(0.5)})
    assert found["array"].dtype == np.int16
    assert type(found["number"]) is np.float32


def test_a_state_of_a_generator_comes_back() -> None:
    """A user's own `paddle.get_rng_state()` is plain numbers in the file, and an object again after it."""
    (state,) = paddle.get_rng_state("cpu")
    if len(state.__getstate__()) < 4:
        with pytest.raises(NotStorable, match="GeneratorState") as caught:
            back([state])
        assert "position" in caught.value.remedy
        return
    expected = paddle.rand([3]).tolist()
    paddle.set_rng_state(back([state]), "cpu")
    assert paddle.rand([3]).tolist() == expected


def test_sparse_tensors_are_refused_with_the_way_out(framework: PaddleFramework) -> None:
    """They have no one block of memory."""
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0])
    with pytest.raises(NotStorable) as caught:
        framework.capture({"keeper": Keeper([sparse])})
    assert caught.value.path == "keeper.value[0]"
    assert "to_dense" in caught.value.remedy


def test_a_restored_tensor_has_memory_of_its_own(framework: PaddleFramework) -> None:
    """Wherever a tensor lies in its file, Paddle's kernels see memory that Paddle allocated."""
    big = paddle.arange(2**19, dtype="float32")
    tree = captured(framework, {"keeper": Keeper([big, big, paddle.ones([3])])})
    for pad in (1, 3, 64):
        files = through_files(tree, pad)
        first, again, small = framework.native(files["keeper"])["state"]["value"]
        assert first is again
        assert first.data_ptr() % 64 == small.data_ptr() % 64 == 0
        assert paddle.equal_all(first, big)


def test_read_only_buffers_are_read_too(framework: PaddleFramework) -> None:
    """A file that is mapped and not to be written."""
    host = HostTensor(dtype="F32", shape=(2,), data=memoryview(paddle.ones([2]).numpy().tobytes()))
    assert framework.native(host).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "leaf",
    [
        HostTensor(dtype="U32", shape=(1,), data=memoryview(bytearray(4))),
        Tagged("paddle.dtype", "float3"),
        Tagged("torch.tensor", {}),
    ],
    ids=["dtype", "constant", "framework"],
)
def test_what_this_paddle_does_not_know_is_refused_in_words(leaf: Any, framework: PaddleFramework) -> None:
    """A checkpoint of another framework, or of another time."""
    with pytest.raises(CheckpointUnsupported):
        framework.native({"x": leaf})


def test_weights_made_with_paddle_load_as_arrays(framework: PaddleFramework) -> None:
    """A machine without Paddle reads them with NumPy."""
    tree = captured(framework, {"model": paddle.nn.Linear(2, 3)})["model"]["weights"]
    arrays = NumpyFramework().native(tree)
    assert {name: array.shape for name, array in arrays.items()} == {"weight": (2, 3), "bias": (3,)}
