"""Public scripts of transformers' `Trainer` with one line added: killed over and over, the same bits in the end.

    python -m tests.long.trainers [--only lora ner] [--kills 3] [--seed 1] [--json]
    python -m tests.long.trainers --overhead 9      what Resumable costs, against the Trainer alone without saves

Run it from the repository (about five minutes on two cores). The scripts are those of transformers' examples and of
TRL's guide, with tiny models made of a configuration and synthetic data: text classification (`run_glue`), translation
(`run_translation`), masked language modelling (`run_mlm`), token classification (`run_ner`), LoRA under the Trainer,
and TRL's `SFTTrainer` with LoRA. Each is run whole, twice; then it is killed so many times by SIGKILL, at random steps,
and at last let alone to its end. The exit status is 1 if anything differs. What is not installed is left out, and said.

"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.long.running import with_modules

WORDS = [f"w{i}" for i in range(40)]
CLOCKS = ("runtime", "per_second", "entropy_time")


def tokenizer() -> Any:
    """One word, one number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "<mask>", "<eos>"]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **named)


def texts(count: int = 70) -> list[str]:
    """Sentences of several lengths, so that batches are padded."""
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(4, 12))) for _ in range(count)]


def bert(kind: str, **words: Any) -> Any:
    """A tiny one, made of its configuration."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **words
    )
    return getattr(transformers, kind)(config)


def settings(folder: Path, kind: str = "TrainingArguments", **more: Any) -> Any:
    """Those that the scripts share: some 3 epochs, accumulation, a schedule that warms up, evaluation at each epoch."""
    import transformers

    found: dict[str, Any] = {
        "output_dir": str(folder / "own"),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "lr_scheduler_type": "linear",
        "logging_steps": 2,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "dataloader_num_workers": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "log_level": "error",
    }
    if kind == "SFTConfig":
        import trl

        return trl.SFTConfig(**{**found, **more})
    return getattr(transformers, kind)(**{**found, **more})


def glue(folder: Path, callbacks: list[Any]) -> Any:
    """Text classification, as in run_glue.py; early stopping near its patience."""
    import transformers

    words, data = tokenizer(), texts()
    samples = [{**words(text), "labels": i % 2} for i, text in enumerate(data)]
    return transformers.Trainer(
        model=bert("BertForSequenceClassification", num_labels=2),
        args=settings(folder, metric_for_best_model="eval_accuracy", bf16=True),
        train_dataset=samples[:60],
        eval_dataset=samples[60:],
        processing_class=words,
        data_collator=transformers.DataCollatorWithPadding(words, pad_to_multiple_of=8),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
        callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=3), *callbacks],
    )


def seq2seq(folder: Path, callbacks: list[Any]) -> Any:
    """Translation, as in run_translation.py: `Seq2SeqTrainer` that generates at each evaluation."""
    import transformers

    words, data = tokenizer(), texts()
    config = transformers.T5Config(
        vocab_size=44, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    samples = [words(text, text_target=" ".join(reversed(text.split()))) for text in data]
    return transformers.Seq2SeqTrainer(
        model=model,
        args=settings(folder, "Seq2SeqTrainingArguments", predict_with_generate=True, generation_max_length=8),
        train_dataset=[dict(sample) for sample in samples[:60]],
        eval_dataset=[dict(sample) for sample in samples[60:]],
        processing_class=words,
        data_collator=transformers.DataCollatorForSeq2Seq(words, model=model),
        compute_metrics=lambda p: {"length": float((p.predictions > 0).sum(1).mean())},
        callbacks=callbacks,
    )


def mlm(folder: Path, callbacks: list[Any]) -> Any:
    """Masked language modelling, as in run_mlm.py: the collator draws other masks in each epoch."""
    import transformers

    words, data = tokenizer(), texts()
    samples = [dict(words(text, return_special_tokens_mask=True)) for text in data]
    return transformers.Trainer(
        model=bert("BertForMaskedLM"),
        args=settings(folder, lr_scheduler_type="cosine"),
        train_dataset=samples[:60],
        eval_dataset=samples[60:],
        processing_class=words,
        data_collator=transformers.DataCollatorForLanguageModeling(words, mlm_probability=0.15),
        callbacks=callbacks,
    )


def ner(folder: Path, callbacks: list[Any]) -> Any:
    """Token classification, as in run_ner.py: batches of samples of about the same length, and steps in the place of
    epochs."""
    import transformers

    words, data = tokenizer(), texts()
    samples = [dict(words(text)) for text in data]
    for sample in samples:
        sample["labels"] = [token % 3 for token in sample["input_ids"]]
    return transformers.Trainer(
        model=bert("BertForTokenClassification", num_labels=3),
        args=settings(
            folder, train_sampling_strategy="group_by_length", max_steps=13, eval_strategy="steps", eval_steps=4
        ),
        train_dataset=samples[:60],
        eval_dataset=samples[60:],
        processing_class=words,
        data_collator=transformers.DataCollatorForTokenClassification(words),
        callbacks=callbacks,
    )


def llama() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=44, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return transformers.LlamaForCausalLM(config)


def adapter() -> Any:
    import peft

    return peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def lora(folder: Path, callbacks: list[Any]) -> Any:
    """A causal model with LoRA, as in PEFT's guide: the base is frozen."""
    import peft
    import transformers

    words, data = tokenizer(), texts()
    samples = [dict(words(text)) for text in data]
    return transformers.Trainer(
        model=peft.get_peft_model(llama(), adapter()),
        args=settings(folder, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}),
        train_dataset=samples[:60],
        eval_dataset=samples[60:],
        processing_class=words,
        data_collator=transformers.DataCollatorForLanguageModeling(words, mlm=False),
        callbacks=callbacks,
    )


def sft(folder: Path, callbacks: list[Any]) -> Any:
    """TRL's `SFTTrainer` with LoRA, as in its quick start."""
    import datasets
    import trl

    data = datasets.Dataset.from_dict({"text": texts()})
    return trl.SFTTrainer(
        model=llama(),
        args=settings(folder, "SFTConfig", max_length=16, dataloader_num_workers=0, bf16=True),
        train_dataset=data.select(range(60)),
        eval_dataset=data.select(range(60, 70)),
        processing_class=tokenizer(),
        peft_config=adapter(),
        callbacks=callbacks,
    )


SCRIPTS: dict[str, tuple[Callable[[Path, list[Any]], Any], tuple[str, ...]]] = {
    "glue": (glue, ()),
    "seq2seq": (seq2seq, ()),
    "mlm": (mlm, ()),
    "ner": (ner, ()),
    "lora": (lora, ("peft",)),
    "sft": (sft, ("peft", "trl", "datasets")),
}


def train(name: str, folder: Path, kill_at: int = 0) -> dict[str, Any]:
    """One session of a script; what it came to."""
    import torch
    import transformers

    from colabkeep.integrations.transformers import Resumable

    class Killer(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    transformers.set_seed(42)
    keep = Resumable(name, storage=str(folder / "runs"), save_every="1 steps", progress=False)
    trainer = SCRIPTS[name][0](folder, [keep, Killer()])
    out = trainer.train()
    weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.state_dict().values())
    log = [{n: v for n, v in line.items() if not n.endswith(CLOCKS)} for line in trainer.state.log_history]
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "steps": trainer.state.global_step,
        "log": log,
        "loss": out.training_loss,
        "random": torch.rand(2).tolist(),
    }


def overhead(rounds: int) -> dict[str, float]:
    """What `Resumable` adds to each step, in milliseconds, against the Trainer alone without saves: in each round each
    way trains 400 steps of a tiny model, and its fastest step counts, for other programs only make steps slower; the
    medians of the rounds. And the length of a step from which on that is no more than 2 %."""
    import torch
    import transformers

    from colabkeep.integrations.transformers import Resumable

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.at: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.at.append(time.perf_counter())

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    data = [{"input_ids": torch.randint(0, 44, (8,)), "labels": i % 2} for i in range(6400)]
    found: dict[str, list[float]] = {"alone": [], "no saves": [], "auto": []}
    for turn in range(rounds):
        for way in sorted(found, reverse=turn % 2 == 0):
            with tempfile.TemporaryDirectory() as home:
                save_every = "auto" if way == "auto" else None
                keep = Resumable("timed", storage=home, progress=False, save_every=save_every)
                words = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "max_steps": 400}
                args = settings(Path(home), **words, eval_strategy="no", dataloader_num_workers=0, logging_steps=100)
                callbacks = [clock := Clock(), *([] if way == "alone" else [keep])]
                model = bert("BertForSequenceClassification")
                trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=callbacks)
                trainer.remove_callback(transformers.PrinterCallback)
                trainer.train()
            found[way].append(1000 * min(b - a for a, b in zip(clock.at[20:], clock.at[21:], strict=False)))
    alone = found["alone"]
    more = {
        way: statistics.median(mine - bare for mine, bare in zip(found[way], alone, strict=True))
        for way in ("no saves", "auto")
    }
    told = {f"{way}: ms more": round(each, 3) for way, each in more.items()}
    return {**told, "ms of a step alone": round(min(alone), 2), "2 % from ms": round(max(more.values()) / 0.02, 1)}


def session(name: str, folder: Path, kill_at: int = 0) -> dict[str, Any] | None:
    """The same in a process of its own; None if that was killed."""
    words = [sys.executable, "-m", "tests.long.trainers", "--session", name, str(folder), str(kill_at)]
    done = subprocess.run(words, env=with_modules(), capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode:
        raise SystemExit(f"{name} failed by itself:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def examine(name: str, kills: int, chance: random.Random, folder: Path) -> dict[str, Any]:
    """What came of one script."""
    began = time.monotonic()
    whole, again = session(name, folder / "whole"), session(name, folder / "again")
    assert whole is not None
    assert again is not None
    at = sorted(chance.sample(range(2, whole["steps"]), kills))
    killed = [step for step in at if session(name, folder / "kept", step) is None]
    last = session(name, folder / "kept")
    assert last is not None
    differs = [f"twice: {key}" for key in whole if whole[key] != again[key]]
    differs += [f"killed: {key}" for key in whole if whole[key] != last[key]]
    differs += [] if killed == at else [f"was to be killed at {at}, was at {killed}"]
    return {"name": name, "kills": killed, "differs": differs, "seconds": round(time.monotonic() - began)}


def main() -> int:
    if sys.argv[1:2] == ["--session"]:
        name, folder, step = sys.argv[2:]
        print(json.dumps(train(name, Path(folder), int(step))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="SCRIPT", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--kills", type=int, default=3, help="of each script")
    parser.add_argument("--seed", type=int, default=1, help="of the steps at which it is killed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--overhead", type=int, metavar="ROUNDS", help="measure this instead")
    words = parser.parse_args()
    if words.overhead:
        print(json.dumps(overhead(words.overhead)))
        return 0
    records = []
    for name in words.only:
        missing = [each for each in SCRIPTS[name][1] if importlib.util.find_spec(each) is None]
        if missing:
            print(f"left out: {name}, for {', '.join(missing)} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            records.append(examine(name, words.kills, random.Random(f"{words.seed} {name}"), Path(folder)))
        told = records[-1]
        state = "; ".join(told["differs"]) or "the same bits"
        print(f"{name}: killed at {told['kills']}, {state}, {told['seconds']} s", file=sys.stderr, flush=True)
    if words.json:
        print(json.dumps(records))
    return 1 if any(record["differs"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
