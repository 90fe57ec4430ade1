"""Every optimizer goes on bit for bit, with its state found by parameter name."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from colabkeep.core.errors import CheckpointUnsupported, NotStorable
from colabkeep.core.state import HostTensor
from colabkeep.frameworks.torch import shells
from colabkeep.frameworks.torch.adapter import TorchFramework
from colabkeep.testing.frameworks import captured, same_bits, tensors_of

Parts = dict[str, Any]
Build = Callable[[Any], optim.Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "SGD": lambda p: optim.SGD(p, lr=0.05),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam": optim.Adam,
    "Adam amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "AdamW": optim.AdamW,
    "AdamW foreach": lambda p: optim.AdamW(p, foreach=True),
    "AdamW loop": lambda p: optim.AdamW(p, foreach=False),
    "AdamW fused": lambda p: optim.AdamW(p, fused=True),
    "AdamW tensor lr": lambda p: optim.AdamW(p, lr=torch.tensor(0.01)),
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Adagrad": optim.Adagrad,
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "ASGD": optim.ASGD,
    "RMSprop": lambda p: optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": optim.Rprop,
    "LBFGS": lambda p: optim.LBFGS(p, history_size=3, line_search_fn="strong_wolfe"),
}
if hasattr(optim, "Adafactor"):
    OPTIMIZERS["Adafactor"] = optim.Adafactor
NAMES = list(OPTIMIZERS)


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(
        OrderedDict(first=nn.Linear(4, 6, dtype=dtype), act=nn.Tanh(), second=nn.Linear(6, 2, dtype=dtype))
    )


def maker(build: Build, dtype: torch.dtype = torch.float32) -> Callable[[], Parts]:
    def make() -> Parts:
        model = net(dtype)
        return {"model": model, "optimizer": build(model.parameters())}

    return make


def step(parts: Parts) -> None:
    model, optimizer = parts["model"], parts["optimizer"]
    x = torch.randn(8, 4, dtype=next(model.parameters()).dtype)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_the_optimizer_continues_with_the_same_bits(name: str, continues: Any) -> None:
    """Resumed in new objects, every optimizer of torch takes the steps it would have taken."""
    continues(maker(OPTIMIZERS[name]), step)


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_that_has_not_stepped_yet_continues(name: str, continues: Any) -> None:
    """A checkpoint from before the first step, when state does not exist yet, resumes too."""
    continues(maker(OPTIMIZERS[name]), step, steps=0)


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_muon_continues_with_the_same_bits(continues: Any) -> None:
    """The one that takes matrices only."""

    def make() -> Parts:
        model = net()
        matrices = [p for p in model.parameters() if p.ndim == 2]
        return {"model": model, "optimizer": optim.Muon(matrices), "vectors": optim.SGD([model.first.bias], lr=0.1)}

    continues(make, step)


def test_sparse_adam_continues_with_the_same_bits(continues: Any) -> None:
    """Sparse gradients, dense state, and a step counter that is a plain number."""

    def make() -> Parts:
        model = nn.Embedding(10, 3, sparse=True)
        return {"model": model, "optimizer": optim.SparseAdam(model.parameters())}

    def sparse_step(parts: Parts) -> None:
        parts["optimizer"].zero_grad()
        parts["model"](torch.randint(10, (4,))).square().sum().backward()
        parts["optimizer"].step()

    continues(make, sparse_step)


def test_groups_keep_every_setting(resumed: Any) -> None:
    """Learning rates per group, tuples, None, flags and settings of the user's own come back as they were."""

    def make() -> Parts:
        model = net()
        groups = [
            {"params": model.first.parameters(), "lr": 0.5, "betas": (0.8, 0.9), "tag": {"own": [1, (2,)]}},
            {"params": model.second.parameters()},
        ]
        return {"model": model, "optimizer": optim.AdamW(groups, lr=0.1)}

    before = make()
    before["optimizer"].param_groups[1].update(lr=0.125, weight_decay=float("inf"), maximize=True, note=None)
    after = resumed(make, before)["optimizer"].param_groups
    for then, now in zip(before["optimizer"].param_groups, after, strict=True):
        plain_then, plain_now = ({k: v for k, v in group.items() if k != "params"} for group in (then, now))
        assert plain_then == plain_now
        assert type(plain_now["betas"]) is tuple


def test_parameters_in_another_order_keep_their_own_state(framework: TorchFramework) -> None:
    """State follows the parameter's name, not its place in the list."""
    before = maker(optim.AdamW)()
    step(before)
    trees = captured(framework, before)
    model = net()
    after = {"model": model, "optimizer": optim.AdamW(list(model.parameters())[::-1])}
    assert list(framework.check(after, trees)) == []
    framework.restore(after, trees)
    for name, parameter in model.named_parameters():
        then = before["optimizer"].state[before["model"].get_parameter(name)]
        now = after["optimizer"].state[parameter]
        assert now["exp_avg"].shape == parameter.shape
        assert torch.equal(now["exp_avg_sq"], then["exp_avg_sq"])


def test_a_named_optimizer_and_an_unnamed_one_understand_each_other(framework: TorchFramework) -> None:
    """Whether the parameters were handed over with names makes no difference."""
    model = net()
    try:
        named = optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)
    except TypeError:
        pytest.skip("this torch takes no named parameters")
    before = {"model": model, "optimizer": named}
    step(before)
    after = maker(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))()
    trees = captured(framework, before)
    assert list(framework.check(after, trees)) == []
    framework.restore(after, trees)
    assert torch.equal(
        after["optimizer"].state[after["model"].first.weight]["momentum_buffer"],
        named.state[model.first.weight]["momentum_buffer"],
    )


class FloatMoments(optim.AdamW):
    """Keeps float32 moments of parameters in a narrower dtype, as many training recipes do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=torch.tensor(0.0), moment=torch.zeros_like(p, dtype=torch.float32), half=[])
                state["step"] += 1
                state["moment"].mul_(0.9).add_(p.grad.float(), alpha=0.1)
                state["half"] = [state["moment"].to(torch.float16)]
                p.add_(state["moment"].to(p.dtype), alpha=-0.1)


def test_state_wider_than_its_parameter_loses_no_bits(continues: Any) -> None:
    """float32 moments of bfloat16 parameters come back as float32, though torch's own loading would cut them."""
    after = continues(maker(FloatMoments, torch.bfloat16), step)
    state = after["optimizer"].state[after["model"].first.weight]
    assert state["moment"].dtype == torch.float32
    assert state["half"][0].dtype == torch.float16
    assert type(state["half"]) is list


class Nested(optim.SGD):
    """Tells its state under a key of its own, as 8-bit optimizers do, and sorts it out when loading."""

    def state_dict(self) -> Any:
        told = super().state_dict()
        told["state"] = {i: {"packed": entry, "code": b"\x01"} for i, entry in told["state"].items()}
        return {**told, "version": (1, "a")}

    def load_state_dict(self, state_dict: Any) -> None:
        assert state_dict["version"] == (1, "a")
        assert all(entry["code"] == b"\x01" for entry in state_dict["state"].values())
        state = {i: entry["packed"] for i, entry in state_dict["state"].items()}
        super().load_state_dict({"state": state, "param_groups": state_dict["param_groups"]})


def test_an_optimizer_with_a_state_of_its_own_making_continues(continues: Any) -> None:
    """Subclasses that rearrange their state and add to it are asked, not looked into."""
    continues(maker(lambda p: Nested(p, lr=0.1, momentum=0.9)), step)


class Projection:
    """Directions found in the first gradient, as GaLore's projector: a slice of a matrix, or two of them in a list."""

    def __init__(self, gradient: torch.Tensor) -> None:
        found = torch.linalg.svd(gradient)
        self.rank, self.kind = 1, "std"
        self.directions, self.both = found.Vh[:1], [found.U[:, :1], None]


class Coded(torch.Tensor):
    """Numbers in 8 bits with a scale, as torchao's: a shell around two tensors."""

    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, step: float, dtype: torch.dtype) -> Coded:
        made: Coded = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=dtype, device=codes.device)  # type: ignore[attr-defined]
        made.codes, made.scale, made.step = codes, scale, step
        return made

    codes: torch.Tensor
    scale: torch.Tensor
    step: float

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], [self.step, self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, *_: Any) -> Coded:
        return cls(parts["codes"], parts["scale"], *context)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), words: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            return cls(given[0].codes, given[0].scale, given[0].step, (words or {}).get("dtype", given[0].dtype))
        raise NotImplementedError(function)

    def numbers(self) -> torch.Tensor:
        return self.codes * (self.scale * self.step)


class Shelled(optim.SGD):
    """Keeps its state in objects and tensors of its own package."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state and p.dim() == 2:
                state["projector"] = Projection(p.grad)
            moved = p.grad @ state["projector"].directions.T if p.dim() == 2 else p.grad
            was = state["moment"].numbers() if "moment" in state else torch.zeros_like(moved)
            now = 0.9 * was + moved
            scale = now.abs().max() / 127
            state["moment"] = Coded((now / scale).to(torch.int8), scale[None] * 2, 0.5, p.dtype)
            now = state["moment"].numbers()
            p.sub_(0.1 * (now @ state["projector"].directions if p.dim() == 2 else now))


def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if those classes were of packages that colabkeep knows."""
    monkeypatch.setattr(shells, "_RECORDS", frozenset({f"{__name__}.Projection"}))
    monkeypatch.setattr(shells, "_WRAPPERS", frozenset({f"{__name__}.Coded"}))


def test_state_in_the_shells_of_a_known_package_continues(continues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in them lie in memory as they did: the slice of a matrix gives other bits than its copy in one piece."""
    known(monkeypatch)
    after = continues(maker(Shelled), step)
    made = after["optimizer"].state[after["model"].first.weight]["projector"]
    assert made.directions.stride() == torch.linalg.svd(torch.ones(6, 4)).Vh[:1].stride()
    assert (made.rank, made.kind, type(made.both), made.both[1]) == (1, "std", list, None)
    shells.settle(made, torch.device("meta"))  # as on a GPU: beside its parameter
    assert (made.directions.device.type, made.both[0].device.type) == ("meta", "meta")


def test_no_name_in_a_checkpoint_makes_a_class_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is not known, nor a known one that nobody has imported."""
    framework, parts = TorchFramework(), maker(Shelled)()
    with monkeypatch.context() as patched:
        known(patched)
        step(parts)
        trees = captured(framework, parts)
    for there in (frozenset[str](), frozenset({f"{__name__}.Projection"})):
        monkeypatch.setattr(shells, "_RECORDS", there)
        monkeypatch.setattr(shells, "_WRAPPERS", frozenset({f"{__name__}.Coded"}))
        with monkeypatch.context() as patched:
            if there:
                patched.delitem(sys.modules, __name__)
            with pytest.raises(CheckpointUnsupported, match="Projection"):
                framework.restore(maker(Shelled)(), trees)


def test_hooks_on_the_state_are_heard(continues: Any) -> None:
    """What a registered hook adds when telling is there when loading."""
    heard = []

    def make() -> Parts:
        parts = maker(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))()
        parts["optimizer"].register_state_dict_post_hook(lambda o, told: {**told, "added": [1.5]})
        parts["optimizer"].register_load_state_dict_pre_hook(lambda o, told: heard.append(told.pop("added")))
        return parts

    continues(make, step)
    assert heard == [[1.5]]


def test_channels_last_state_keeps_its_order_in_memory(continues: Any) -> None:
    """Convolution kernels depend on it for their bits, and the copy for its speed."""

    def make() -> Parts:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)).to(memory_format=torch.channels_last)
        return {"model": model, "optimizer": optim.AdamW(model.parameters())}

    def conv_step(parts: Parts) -> None:
        parts["optimizer"].zero_grad()
        x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        parts["model"](x).square().mean().backward()
        parts["optimizer"].step()

    after = continues(make, conv_step)
    kernel = after["model"][0].weight
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert after["optimizer"].state[kernel]["exp_avg"].stride() == kernel.stride()


def test_parameters_that_no_module_holds_are_kept_with_the_optimizer(continues: Any) -> None:
    """A learned temperature outside the model is trained, so it is saved."""

    def make() -> Parts:
        model, temperature = net(), nn.Parameter(torch.randn(()))
        optimizer = optim.AdamW([{"params": model.parameters()}, {"params": [temperature]}])
        return {"model": model, "optimizer": optimizer}

    def warm_step(parts: Parts) -> None:
        parts["optimizer"].zero_grad()
        (temperature,) = parts["optimizer"].param_groups[1]["params"]
        (parts["model"](torch.randn(8, 4)).square().mean() * temperature.square()).backward()
        parts["optimizer"].step()

    continues(make, warm_step)


def test_two_models_with_two_optimizers_continue(continues: Any) -> None:
    """A GAN's generator and discriminator each find their own state; equal names inside do not clash."""

    def make() -> Parts:
        generator, critic = net(), net()
        optimizer = optim.Adam(generator.parameters())
        return {
            "model": generator, "optimizer": optimizer, "state.critic": critic,
            "state.critic_optimizer": optim.RMSprop([*critic.parameters(), *generator.first.parameters()]),
        }  # fmt: skip

    def both(parts: Parts) -> None:
        (parts["model"](torch.randn(8, 4)).sum() + parts["state.critic"](torch.randn(8, 4)).square().mean()).backward()
        for name in ("optimizer", "state.critic_optimizer"):
            parts[name].step()
        for name in ("optimizer", "state.critic_optimizer"):
            parts[name].zero_grad()

    continues(make, both)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_parameter_that_some_steps_do_not_use_moves_as_it_would_have(to_none: bool, resumed: Any) -> None:
    """By a zero gradient, as `zero_grad(set_to_none=False)` leaves it, Adam's moments move it; without one it stays."""

    def make() -> Parts:
        model = net()
        return {"model": model, "optimizer": optim.Adam(model.parameters())}

    def first_only(parts: Parts) -> None:
        parts["model"].first(torch.randn(8, 4)).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad(set_to_none=to_none)

    parts = make()
    step(parts)
    parts["optimizer"].zero_grad(set_to_none=to_none)
    later = resumed(make, parts)
    before = later["model"].second.weight.clone()
    for each in (parts, later):
        torch.manual_seed(3)
        first_only(each)
    assert same_bits(captured(TorchFramework(), later), captured(TorchFramework(), parts))
    assert torch.equal(before, later["model"].second.weight) is to_none


def test_another_optimizer_class_is_refused(framework: TorchFramework) -> None:
    """SGD's momentum means nothing to AdamW."""
    trees = captured(framework, maker(lambda p: optim.SGD(p, lr=0.1))())
    lines = framework.check(maker(optim.AdamW)(), trees)
    assert list(lines) == ["optimizer: the checkpoint was made with SGD, this run uses AdamW."]


def test_another_partition_into_groups_is_refused(framework: TorchFramework) -> None:
    """A parameter that moved to another group, or is not trained any more, is named."""
    trees = captured(framework, maker(lambda p: optim.SGD(p, lr=0.1))())
    model = net()
    fewer = {"model": model, "optimizer": optim.SGD(model.first.parameters(), lr=0.1)}
    assert list(framework.check(fewer, trees)) == [
        "optimizer: group 0 trained model.second.weight, and does not now.",
        "optimizer: group 0 trained model.second.bias, and does not now.",
    ]
    split = {"model": model, "optimizer": optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)}
    assert list(framework.check(split, trees)) == ["optimizer: it had 1 parameter groups, and has 4 now."]


def test_what_an_optimizer_cannot_keep_is_named(framework: TorchFramework) -> None:
    """The path leads to the setting or the state, by the parameter's name."""
    parts = maker(lambda p: optim.SGD(p, lr=0.1))()
    parts["optimizer"].param_groups[0]["schedule"] = lambda step: 0.1
    with pytest.raises(NotStorable) as caught:
        framework.capture(parts)
    assert caught.value.path == "optimizer.param_groups[0].schedule"
    del parts["optimizer"].param_groups[0]["schedule"]
    parts["optimizer"].state[parts["model"].first.weight]["cache"] = object()
    with pytest.raises(NotStorable) as caught:
        framework.capture(parts)
    assert caught.value.path == "optimizer.state['model.first.weight'].cache"


def test_state_that_appears_or_is_replaced_is_seen(framework: TorchFramework) -> None:
    """The plan of a capture ends when the optimizer's tensors are other ones."""
    parts = maker(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))()
    captured(framework, parts)
    step(parts)
    assert _moment(captured(framework, parts)) == _bytes(parts)
    state = parts["optimizer"].state[parts["model"].first.weight]
    state["momentum_buffer"] = torch.full((6, 4), 7.0)
    assert _moment(captured(framework, parts)) == _bytes(parts)
    state["momentum_buffer"].data = torch.full((6, 4), 8.0, dtype=torch.float64)
    assert _moment(captured(framework, parts)) == _bytes(parts)
    parts["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 1.0})
    tree = captured(framework, parts)["optimizer"]
    assert [group["params"] for group in tree["groups"]][1] == ["group1.0"]


def test_names_follow_the_parts_and_the_groups(framework: TorchFramework) -> None:
    """A part under another name, or parameters in another order, are not saved under yesterday's names."""
    parts = maker(lambda p: optim.SGD(p, lr=0.1))()

    def names(now: Parts) -> list[str]:
        return captured(framework, now)["optimizer"]["groups"][0]["params"]

    assert names(parts)[0] == "model.first.weight"
    assert names({"net": parts["model"], "optimizer": parts["optimizer"]})[0] == "net.first.weight"
    parts["optimizer"].param_groups[0]["params"].reverse()
    assert names({"net": parts["model"], "optimizer": parts["optimizer"]})[0] == "net.second.bias"


def test_settings_that_choose_a_kernel_stay_behind_on_another_kind_of_device(framework: TorchFramework) -> None:
    """A fused optimizer of a GPU resumes on a machine where fused kernels may not exist."""
    trees = captured(framework, maker(lambda p: optim.AdamW(p, fused=True, weight_decay=0.25))())
    trees["optimizer"]["groups"][0]["device"] = "cuda"
    after = maker(lambda p: optim.AdamW(p, foreach=False))()
    framework.restore(after, trees)
    (group,) = after["optimizer"].param_groups
    assert (group["fused"], group["foreach"], group["weight_decay"]) == (None, False, 0.25)


def test_restored_state_is_aligned_and_at_its_parameter(framework: TorchFramework) -> None:
    """Memory that torch itself allocated: some kernels give other bits on unaligned memory."""
    before = maker(optim.AdamW)()
    step(before)
    after = maker(optim.AdamW)()
    framework.restore(after, captured(framework, before))
    tensors = [t for entry in after["optimizer"].state.values() for t in entry.values()]
    assert len(tensors) == 12
    assert all(t.data_ptr() % 64 == 0 for t in tensors)


def _moment(trees: Any) -> bytes:
    leaf = trees["optimizer"]["state"]["model.first.weight"]["momentum_buffer"]
    (host,) = tensors_of(leaf)
    assert isinstance(host, HostTensor)
    return bytes(host.data)


def _bytes(parts: Parts) -> bytes:
    moment = parts["optimizer"].state[parts["model"].first.weight]["momentum_buffer"]
    return moment.numpy().tobytes()
