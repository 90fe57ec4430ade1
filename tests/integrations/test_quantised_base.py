"""QLoRA: adapters on a base that bitsandbytes has quantised, on the card where there is one, else on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import colabkeep
from colabkeep.core.errors import Incompatible
from tests.integrations import test_frozen_base as frozen

transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.parametrize("bits", [4, 8]),
    pytest.mark.parametrize("word", ["refer", "store"]),
]
PLACE = "cuda:0" if torch.cuda.is_available() else "cpu"
UP = "base_model.model.model.layers.0.mlp.up_proj.weight"


class Data(frozen.Data):
    """Texts of twelve words."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = super().__getitem__(index)["input_ids"]
        return {"input_ids": ids, "labels": ids}


def base(folder: Path, seed: int = 0) -> Path:
    """A pretrained base in a folder, with weights that are so large that the scales of some are not stored either."""
    if not folder.exists():
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=600, hidden_size=256, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8192
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def model_of(folder: Path, bits: int, word: str) -> Any:
    """The base, quantised, with LoRA. What is stored, in 4 bits, has scales of its scales."""
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": word == "store"}
    config = transformers.BitsAndBytesConfig(**(four if bits == 4 else {"load_in_8bit": True}))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map=PLACE)
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.1, task_type="CAUSAL_LM"))


def said_by(model: Any) -> torch.Tensor:
    """What it computes of a text."""
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=torch.arange(12, device=PLACE)[None]).logits
    return logits


@pytest.fixture(autouse=True)
def _texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "Data", Data)


def test_a_training_that_failed_comes_to_the_same(tmp_path: Path, bits: int, word: str) -> None:
    """On a base that is quantised anew in each session; to the bit."""
    folder = base(tmp_path / "base")
    whole = frozen.train(tmp_path / "whole", model_of(folder, bits, word), last=6, frozen=word)
    with pytest.raises(RuntimeError, match="on purpose"):
        frozen.train(tmp_path / "kept", model_of(folder, bits, word), frozen.Does(frozen.fail, 3), last=6, frozen=word)
    assert frozen.same(frozen.train(tmp_path / "kept", model_of(folder, bits, word), last=6, frozen=word), whole)
    of_base = {name for name in frozen.stored(tmp_path / "kept") if ".mlp.up_proj.weight" in name}
    assert (UP in of_base) is (word == "store")
    assert (bits, word) != (4, "refer") or f"{UP}.absmax" not in of_base


def test_its_weights_are_loaded_onto_the_base(tmp_path: Path, bits: int, word: str) -> None:
    """`load_state_dict` takes what `load_weights(…, base=model)` gives, and the model computes the same. One that is
    quantised from other weights, or not at all, is refused."""
    trained = model_of(base(tmp_path / "base"), bits, word)
    frozen.train(tmp_path, trained, last=4, frozen=word)
    fresh = model_of(tmp_path / "base", bits, word)
    storage = str(tmp_path / "runs")
    assert not torch.equal(said_by(model_of(tmp_path / "base", bits, word)), said_by(trained))
    fresh.load_state_dict(colabkeep.load_weights("bert", storage=storage, base=fresh))
    assert torch.equal(said_by(fresh), said_by(trained))
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", device_map=PLACE)
    other = model_of(base(tmp_path / "other", seed=1), bits, word)
    for wrong in (other, peft.get_peft_model(plain, peft.LoraConfig(r=2, task_type="CAUSAL_LM"))):
        if bits == 4 or word == "refer":  # the scales of 8 bits are loaded with the weights
            with pytest.raises(Incompatible, match="base= differs from the base of"):
                colabkeep.load_weights("bert", storage=storage, base=wrong)
