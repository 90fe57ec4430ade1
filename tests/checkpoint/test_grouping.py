"""What did not change is not written again, and the files of a run stay few."""

from __future__ import annotations

import copy
import gc
import mmap
import os
from dataclasses import replace

import pytest

from colabkeep.checkpoint import codec
from colabkeep.checkpoint.codec import PACK_BYTES, SMALL_BYTES, Encoder
from colabkeep.checkpoint.repository import Repository
from colabkeep.core.state import HostTensor
from colabkeep.stores.memory import MemoryStore
from colabkeep.testing.faults import FaultyStore

LAYER = SMALL_BYTES + 8  # bytes, so that a layer alone is worth a file


def layer() -> HostTensor:
    """A tensor with bytes of its own."""
    data = bytearray(LAYER)
    data[:8] = os.urandom(8)
    return HostTensor(dtype="U8", shape=(LAYER,), data=memoryview(data), lasting=True)


ZEROS = memoryview(mmap.mmap(-1, PACK_BYTES))  # memory that nobody touches is not taken


def bulk(size: int = LAYER) -> HostTensor:
    """A tensor whose bytes nobody asks for."""
    return HostTensor(dtype="U8", shape=(size,), data=ZEROS[:size], lasting=True)


class Training:
    """Layers of one part, which are grouped again after some of them have changed."""

    def __init__(self, layers: dict[str, HostTensor]) -> None:
        self._encoder = Encoder()
        self.layers = layers
        self.packs = self._encode()

    def _encode(self):
        encoded = self._encoder.encode({"model": dict(self.layers)})
        self.references = encoded.parts
        return encoded.packs

    def save(self, *changed: str):
        """The packs that were not there before, after these layers have changed."""
        for name in changed:
            self.layers[name] = replace(self.layers[name])
        before, self.packs = {id(pack) for pack in self.packs}, self._encode()
        return [pack for pack in self.packs if id(pack) not in before]


def payload(packs):
    """Bytes, less the headers."""
    return sum(pack.size // LAYER * LAYER for pack in packs)


def names(number):
    return [f"layer{n}" for n in range(number)]


def test_what_is_frozen_in_the_middle_of_a_training_is_not_written_again():
    """From the second save after six of eight layers were frozen on, a save writes the other two."""
    training = Training({name: bulk() for name in names(8)})
    assert payload(training.save(*names(8))) == 8 * LAYER
    training.save("layer6", "layer7")
    for _ in range(3):
        assert payload(training.save("layer6", "layer7")) == 2 * LAYER
    assert len(training.packs) == 2


def test_what_is_unfrozen_again_does_not_make_the_others_be_written_for_ever():
    """A layer that begins to train again leaves its pack once; the rest of that pack is quiet from then on."""
    training = Training({name: bulk() for name in names(8)})
    training.save("layer7")
    assert payload(training.save("layer6", "layer7")) == 8 * LAYER, "its pack is written once without it"
    assert payload(training.save("layer6", "layer7")) == 2 * LAYER
    assert payload(training.save("layer6", "layer7")) == 2 * LAYER


def test_a_network_that_is_updated_now_and_then_is_written_then_only():
    """A target network that is copied once in a while costs its bytes at that save, and nothing at those between."""
    training = Training({name: bulk() for name in names(4)})
    training.save("layer0", "layer1")  # the other two are the target
    training.save("layer0", "layer1")
    assert payload(training.save(*names(4))) == 4 * LAYER
    assert payload(training.save("layer0", "layer1")) == 2 * LAYER


def test_layers_that_are_frozen_one_by_one_share_files():
    """A hundred layers, the lowest frozen at each save: never many files, and in all few bytes written twice."""
    training = Training({name: bulk() for name in names(100)})
    most, written = 0, 0
    for number in range(1, 100):
        written += payload(training.save(*names(100)[number:])) - (100 - number) * LAYER
        most = max(most, len(training.packs))
    assert most <= 12
    assert written <= 100 * LAYER * 8, "each is written for being apart, and for a few joinings"


def test_one_layer_of_a_very_large_model_leaves_the_other_files_alone():
    """Where one of many packs is touched, the others are not repacked behind it."""
    third = PACK_BYTES // 3
    training = Training({name: bulk(third) for name in names(9)})
    assert len(training.packs) == 3
    training.layers["layer4"] = bulk(third)
    before = {id(pack) for pack in training.packs}
    after = training._encode()
    assert [id(pack) in before for pack in after] == [True, False, True, False]


def test_small_things_that_rest_are_no_files_of_their_own():
    """What would spare less than a few MB is written again: a drive is slow with many small files."""
    training = Training({"weights": bulk(), "generator": bulk(5000), "counter": bulk(8)})
    assert len(training.packs) == 1
    training.save("weights", "counter")
    assert len(training.packs) == 1


@pytest.mark.parametrize("changes", [(), ("layer1",), ("layer0", "layer2"), ("layer0", "layer1", "layer2", "layer3")])
def test_every_tensor_is_found_in_the_pack_that_its_reference_names(changes):
    """However the packs are formed, each tensor is referenced once and lies where the manifest says."""
    training = Training({name: layer() for name in names(4)})
    training.save("layer0")
    training.save(*changes)
    found = {}
    for key, node in training.references["model"].items():
        number, name = node["$tensor"]
        data = b"".join(training.packs[number].chunks())
        found[key] = (name, bytes(training.layers[key].data[:8]) in data)
    assert found == {name: (f"model.{name}", True) for name in names(4)}


def test_an_unchanged_pack_is_neither_hashed_nor_written_again(kit):
    """Saving costs what has changed: of the rest, not a byte is read."""
    store = FaultyStore(MemoryStore())
    session = kit.Session(store)
    body, head = layer(), [layer() for _ in range(3)]
    session.save(1, {"model": {"body": body, "head": head[0]}})
    session.save(2, {"model": {"body": body, "head": head[1]}})
    store.points.clear()
    body.data[100] ^= 1  # whoever read it would give it another name, and write it
    third = session.save(3, {"model": {"body": body, "head": head[2]}})
    puts = [point for point in store.points if point.startswith("before put run/blobs")]
    assert len(puts) == 1
    assert len(third.blobs) == 2
    assert session.events[-1].written <= LAYER + 1000


def test_an_unchanged_pack_that_has_gone_is_written_again(kit, disk):
    """What is remembered of a pack counts only as long as its file is there."""
    session = kit.Session(disk.store)
    parts = {"model": {"body": layer()}}
    first = session.save(1, parts)
    disk.damage(disk.only_blob(first), lambda data: None)
    second = session.save(2, parts)
    assert kit.same(Repository(disk.store, kit.run).load(second), parts)


def test_an_adapter_that_reuses_its_objects_and_says_nothing_loses_nothing(kit, disk):
    """Only an object that is marked as lasting is taken over unread; other bytes in any other one are written."""
    session = kit.Session(disk.store)
    reused = replace(layer(), lasting=False)
    parts = {"model": {"body": reused, "head": replace(layer(), lasting=False)}}
    session.save(1, parts)
    reused.data[100] ^= 1
    second = session.save(2, parts)
    assert kit.same(Repository(disk.store, kit.run).load(second), parts)


def trees(number: int) -> dict[str, HostTensor]:
    return {name: bulk(64) for name in names(number)}


def test_a_save_leaves_nothing_behind_for_each_of_its_tensors():
    """Containers that stay bring the garbage collector's great round, which stops a training for 0.2 s: of the many
    checkpoints that a session remembers, none has its own for what is the same in all."""
    encoder, first, second = Encoder(), trees(500), trees(500)
    kept = [encoder.encode({"model": first})]
    gc.collect()
    before = len(gc.get_objects())
    kept.append(encoder.encode({"model": second}))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert kept[0].parts == kept[1].parts


def test_a_tensor_that_comes_into_another_pack_changes_no_earlier_checkpoint():
    """What is shared by many checkpoints is replaced, not changed."""
    encoder, layers = Encoder(), {name: bulk() for name in names(4)}
    first = encoder.encode({"model": layers})
    before = copy.deepcopy(first.parts)
    layers["layer0"] = replace(layers["layer0"])
    second = encoder.encode({"model": layers})
    assert first.parts == before
    assert second.parts != before


def test_a_plan_that_failed_is_not_remembered(monkeypatch):
    """Memory may be short for a moment: the next save of the same tensors names every one of them."""
    encoder, tensors = Encoder(), {name: bulk(64) for name in names(3)}

    def short(reference):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(codec, "tensor_node", short)
        with pytest.raises(MemoryError):
            encoder.encode({"model": tensors})
    again = encoder.encode({"model": tensors})
    assert {key for _, key in codec.references(again.parts)} == {f"model.{name}" for name in names(3)}
