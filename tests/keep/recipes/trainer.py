"""Hugging Face's Trainer with `output_dir` and `resume_from_checkpoint`, a tiny model made here."""

import sys

import torch
from telling import at, done
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        made = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 50, (12,), generator=made)
        if "--augment" in sys.argv:  # from the global generator, as augmentations are
            ids = ids.roll(int(torch.randint(0, 12, ())))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids.sum() % 2)}


class Tell(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        at(state.global_step)


torch.manual_seed(0)
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)
arguments = TrainingArguments(
    sys.argv[1],
    max_steps=30,
    per_device_train_batch_size=8,
    save_steps=5,
    save_total_limit=2,
    logging_steps=5,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=0,
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Data(), callbacks=[Tell()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(sys.argv[1]))
done(p.detach() for p in trainer.model.parameters())
