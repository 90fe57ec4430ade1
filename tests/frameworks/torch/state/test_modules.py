"""Modules: every tensor under the user's name, in place, with its ties."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from colabkeep.core.errors import Incompatible, NotStorable
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import addresses, captured, same_bits

Parts = dict[str, Any]


class Tied(nn.Module):
    """A language model's habit: one matrix to read with and to write with."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Cached(nn.Module):
    """Buffers of every kind: kept, not kept, grown, empty at first, expanded, sparse, and registered late."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        self.register_buffer("later", None, persistent=False)
        self.register_buffer("later_kept", None)
        self.register_buffer("gone", torch.zeros(1), persistent=False)
        self.register_buffer("expanded", torch.zeros(1).expand(4))
        self.register_buffer("adjacency", torch.zeros(3, 3).to_sparse())

    def grow(self) -> None:
        self.kept += 1
        self.cache = torch.arange(5, dtype=torch.int64)
        self.later = torch.full((2, 2), 3.0)
        self.later_kept = torch.full((2,), 4.0)
        self.gone = None
        self.expanded = torch.ones(1).expand(4)
        self.adjacency = torch.eye(3).to_sparse()
        self.register_buffer("newcomer", torch.ones(2), persistent=False)


class Counting(nn.Module):
    """State beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0
        self.scale = torch.ones(2)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "scale": self.scale, 3: (1, 2)}

    def set_extra_state(self, state: Any) -> None:
        assert state[3] == (1, 2)
        self.calls, self.scale = state["calls"], state["scale"]


def weights(framework: TorchFramework, module: nn.Module) -> dict[str, Any]:
    return framework.native(captured(framework, {"model": module})["model"]["weights"])


def transferred(framework: TorchFramework, before: nn.Module, after: nn.Module) -> nn.Module:
    trees = captured(framework, {"model": before})
    assert list(framework.check({"model": after}, trees)) == []
    framework.restore({"model": after}, trees)
    return after


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), Tied(), nn.LSTM(3, 4, num_layers=2),
        nn.MultiheadAttention(4, 2),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_weights_have_the_names_and_values_of_the_state_dict(framework: TorchFramework, module: nn.Module) -> None:
    """What is stored is what `load_state_dict` of the bare model takes, in its order."""
    stored, told = weights(framework, module), module.state_dict()
    assert list(stored) == list(told)
    assert all(torch.equal(stored[name], told[name]) for name in told)


def test_parameters_are_filled_in_place(framework: TorchFramework) -> None:
    """Optimizers, ties and views that know the tensors know them still."""
    after = nn.Linear(3, 4)
    parameters = list(after.parameters())
    places = [p.data_ptr() for p in parameters]
    before = nn.Linear(3, 4)
    transferred(framework, before, after)
    assert all(a is b for a, b in zip(after.parameters(), parameters, strict=True))
    assert [p.data_ptr() for p in after.parameters()] == places
    assert all(torch.equal(a, b) for a, b in zip(after.parameters(), before.parameters(), strict=True))
    assert all(p.requires_grad and p.is_leaf for p in after.parameters())


@pytest.mark.parametrize("wrap", ["plain", "compiled", "data_parallel", "both", "inside"])
@pytest.mark.parametrize("unwrap", ["plain", "compiled", "data_parallel", "both", "inside"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_wrappers_leave_no_trace(framework: TorchFramework, wrap: str, unwrap: str) -> None:
    """A checkpoint of a compiled or data-parallel model fits the plain one, and the other way round."""

    def built(how: str) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 3), nn.ModuleDict({"module": nn.Linear(3, 2)}))
        if how == "inside":
            model[0] = torch.compile(model[0], backend="eager")
        if how in ("data_parallel", "both"):
            model = nn.DataParallel(model)
        return torch.compile(model, backend="eager") if how in ("compiled", "both") else model

    before = built(wrap)
    assert list(weights(framework, before)) == ["0.weight", "0.bias", "1.module.weight", "1.module.bias"]
    after = transferred(framework, before, built(unwrap))
    assert all(torch.equal(a, b) for a, b in zip(after.parameters(), before.parameters(), strict=True))


def test_a_tied_weight_is_stored_once_and_stays_tied(framework: TorchFramework) -> None:
    """One tensor under two names is one in the file and one in the model."""
    tree = captured(framework, {"model": Tied()})["model"]
    assert tree["weights"]["head.weight"] is tree["weights"]["embed.weight"]
    after = transferred(framework, Tied(), Tied())
    assert after.head.weight is after.embed.weight


def test_ties_that_came_or_went_are_refused(framework: TorchFramework) -> None:
    """Loading two matrices into one would keep the last; loading one into two would part them."""
    tied, apart = captured(framework, {"model": Tied()}), captured(framework, {"model": Tied(tie=False)})
    assert list(framework.check({"model": Tied(tie=False)}, tied)) == [
        "model: embed.weight was tied to head.weight in the checkpoint, and is not now."
    ]
    assert list(framework.check({"model": Tied()}, apart)) == [
        "model: head.weight was not tied to embed.weight in the checkpoint, and is now."
    ]


def test_buffers_of_every_kind_come_back(framework: TorchFramework) -> None:
    """Also those that `state_dict()` leaves out, and those that changed their shape since the model was built."""
    before = Cached()
    before.grow()
    after = transferred(framework, before, Cached())
    for name in ("kept", "cache", "later", "later_kept", "expanded", "newcomer"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name
        assert getattr(after, name).dtype == getattr(before, name).dtype
    assert after.gone is None
    assert torch.equal(after.adjacency.to_dense(), torch.eye(3))
    assert "newcomer" not in after.state_dict()
    assert same_bits(captured(framework, {"model": after}), captured(framework, {"model": before}))


def test_a_kept_buffer_of_another_shape_is_refused(framework: TorchFramework) -> None:
    """What belongs to the architecture is compared, what is a cache is not."""
    trees = captured(framework, {"model": nn.BatchNorm1d(3, affine=False)})
    assert list(framework.check({"model": nn.BatchNorm1d(4, affine=False)}, trees)) == [
        "model: running_mean has shape (3,) in the checkpoint and (4,) now.",
        "model: running_var has shape (3,) in the checkpoint and (4,) now.",
    ]


def test_extra_state_comes_back(framework: TorchFramework) -> None:
    """What a module tells beside its tensors is handed to it again."""
    before = nn.Sequential(Counting(), Counting())
    before[1].calls, before[1].scale = 5, torch.tensor([2.0, 3.0])
    after = transferred(framework, before, nn.Sequential(Counting(), Counting()))
    assert (after[0].calls, after[1].calls) == (0, 5)
    assert torch.equal(after[1].scale, before[1].scale)
    lines = framework.check({"model": nn.Sequential(Counting(), nn.Module())}, captured(framework, {"model": before}))
    assert "model: extra state of the module '1' is in the checkpoint, and not in this model." in lines


def test_extra_state_that_cannot_be_stored_is_named(framework: TorchFramework) -> None:
    """The path says which module."""
    model = nn.Sequential(Counting())
    model[0].calls = object()
    with pytest.raises(NotStorable) as caught:
        framework.capture({"model": model})
    assert caught.value.path == "model.0.get_extra_state().calls"


def test_frozen_parameters_are_marked(framework: TorchFramework) -> None:
    """They are packed apart, so that a frozen backbone is written once; unfreezing is seen."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)

    def marks() -> list[bool]:
        return [host.frozen for host in captured(framework, {"model": model})["model"]["weights"].values()]

    assert marks() == [True, True, False, False]
    model.requires_grad_(True)
    assert marks() == [False] * 4


def test_another_architecture_is_described(framework: TorchFramework) -> None:
    """Names, shapes and dtypes, each difference in a sentence, nothing touched."""
    trees = captured(framework, {"model": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))})
    other = nn.Sequential(
        nn.Linear(2, 3, dtype=torch.float64), nn.Linear(3, 5, bias=False), nn.Linear(1, 1, bias=False)
    )
    before = captured(framework, {"model": other})
    assert set(framework.check({"model": other}, trees)) == {
        "model: 1.bias is in the checkpoint, and not in this Sequential.",
        "model: 2.weight is in this Sequential, and not in the checkpoint.",
        "model: 0.weight is float32 in the checkpoint and float64 now.",
        "model: 0.bias is float32 in the checkpoint and float64 now.",
        "model: 1.weight has shape (4, 3) in the checkpoint and (5, 3) now.",
    }
    assert same_bits(captured(framework, {"model": other}), before)


def test_many_differences_are_counted(framework: TorchFramework) -> None:
    """A wholly different model gives a list one can read."""
    trees = captured(framework, {"model": nn.Sequential(*(nn.Linear(1, 1) for _ in range(30)))})
    lines = framework.check({"model": nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))}, trees)
    assert len(lines) == 21
    assert lines[-1] == "and 40 more differences"


def test_a_parameter_of_another_shape_is_never_filled_by_halves(framework: TorchFramework) -> None:
    """Even unchecked, a shorter parameter is not spread over a longer one."""
    trees = captured(framework, {"model": nn.Linear(1, 1, bias=False)})
    model = nn.Linear(1, 3, bias=False)
    before = model.weight.clone()
    with pytest.raises(Incompatible):
        framework.restore({"model": model}, trees)
    assert torch.equal(model.weight, before)


def test_an_optimizer_in_place_of_a_model_is_told(framework: TorchFramework) -> None:
    """Mixed-up names do not end in a stack trace."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trees = captured(framework, {"one": model, "two": optimizer})
    assert list(framework.check({"one": optimizer, "two": model}, trees)) == [
        "one: the checkpoint holds a module, and this run has an optimizer there.",
        "two: the checkpoint holds an optimizer, and this run has a module there.",
    ]


def test_a_lazy_parameter_asks_for_a_forward_pass(framework: TorchFramework) -> None:
    """What has no shape yet cannot be saved or resumed, and the remedy says how it gets one."""
    model = nn.LazyLinear(3)
    with pytest.raises(NotStorable) as caught:
        framework.capture({"model": model})
    assert caught.value.path == "model.weight"
    assert "forward pass" in caught.value.remedy
    trees = captured(framework, {"model": nn.Linear(2, 3)})
    assert "model: weight has no shape yet; run one forward pass before resuming." in framework.check(
        {"model": model}, trees
    )
    model(torch.randn(1, 2))
    assert list(framework.check({"model": model}, trees)) == []


def test_a_model_without_data_is_refused(framework: TorchFramework) -> None:
    """A model built on the meta device has nothing to save."""
    with pytest.raises(NotStorable) as caught:
        framework.capture({"model": nn.Linear(2, 2, device="meta")})
    assert "meta device" in caught.value.remedy


def test_state_that_only_the_module_knows_is_not_lost_silently(framework: TorchFramework) -> None:
    """A module that adds tensors to its `state_dict()` by hand is told to register them."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.secret = torch.ones(2)

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "secret"] = self.secret

    with pytest.raises(NotStorable) as caught:
        framework.capture({"model": nn.Sequential(nn.Linear(1, 1), Hidden())})
    assert caught.value.path == "model.1.secret"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.full((2, 2), 5.0))),
        lambda m: setattr(m[0].weight, "data", torch.full((2, 2), 6.0)),
        lambda m: m.append(nn.Linear(2, 1)),
        lambda m: m.double(),
        lambda m: m[0].register_buffer("more", torch.ones(3)),
        lambda m: m.__setitem__(1, nn.Identity()),
        lambda m: m.__delitem__(1),
        lambda m: setattr(m[0], "bias", None),
        lambda m: setattr(m.mask, "data", m.mask.data.view(torch.int32)),
        lambda m: setattr(m.mask, "data", m.mask.data[:1]),
    ],
    ids=[
        "parameter", "data", "child", "dtype", "buffer", "replaced child", "lost child", "lost parameter", "other view",
        "shorter view",
    ],
)  # fmt: skip
def test_a_model_changed_between_saves_is_saved_as_it_is(framework: TorchFramework, change: Any) -> None:
    """The plan of a capture ends when the model is another one: surgery in the middle of a training is seen."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.register_buffer("mask", torch.ones(3))
    captured(framework, {"model": model})
    change(model)
    stored, told = weights(framework, model), model.state_dict()
    assert list(stored) == list(told)
    for name, tensor in told.items():
        assert stored[name].dtype == tensor.dtype
        assert torch.equal(stored[name], tensor)


def test_memory_of_a_part_that_is_gone_is_let_go(framework: TorchFramework) -> None:
    """Host memory follows what is trained."""
    model, other = nn.Linear(4, 4), nn.Linear(256, 256)
    snapshot = framework.capture({"model": model, "other": other}).finish()
    kept = addresses({"model": snapshot.parts["model"]})
    gone = weakref.ref(snapshot.parts["other"]["weights"]["weight"].data.obj)
    snapshot.release()
    del snapshot
    again = framework.capture({"model": model}).finish()
    gc.collect()
    assert gone() is None
    assert addresses(again.parts) == kept


def test_channels_last_parameters_keep_their_strides(framework: TorchFramework) -> None:
    """A file holds plain rows that any tool reads; the model keeps its order in memory."""
    before, after = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    for module in (before, after):
        module.to(memory_format=torch.channels_last)
    host = captured(framework, {"model": before})["model"]["weights"]["weight"]
    assert bytes(host.data) == before.weight.detach().contiguous().numpy().tobytes()
    transferred(framework, before, after)
    assert after.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(after.weight, before.weight)


def test_complex_and_odd_dtypes_keep_their_bits(framework: TorchFramework) -> None:
    """Also those that safetensors has no name for."""

    def built() -> nn.Module:
        module = nn.Module()
        module.wide = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
        module.narrow = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        module.register_buffer("eight", torch.randn(5).to(torch.float8_e4m3fnuz))
        module.register_buffer("brain", torch.randn(()).bfloat16())
        module.register_buffer("empty", torch.zeros(0, 3, dtype=torch.int16))
        return module

    before = built()
    after = transferred(framework, before, built())
    for a, b in zip(after.state_dict().values(), before.state_dict().values(), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def test_a_save_that_failed_on_one_module_does_not_hide_what_changed_in_another(framework: TorchFramework) -> None:
    """Both changed before it; when the second can be kept again, the optimizer has its state of the new parameters."""
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)
    parts = {"generator": generator, "critic": critic, "optimizer": optimizer}
    framework.capture(parts).finish().release()
    generator.weight = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(2, 2))
    kept, critic.weight = critic.weight, nn.Parameter(torch.empty(2, 2, device="meta"))
    with pytest.raises(NotStorable, match="critic"):
        framework.capture(parts)
    critic.weight = kept
    generator(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert same_bits(captured(framework, parts), captured(TorchFramework(), parts))
