"""A LoRA training as diffusers' examples write it: accelerate's `save_state` into checkpoint-N, of which two stay, and
`--resume_from_checkpoint latest`. The model is a small transformer made here."""

import argparse
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from telling import at, done

parser = argparse.ArgumentParser()
parser.add_argument("output_dir", type=Path)
parser.add_argument("--resume_from_checkpoint")
parser.add_argument(
    "--skip", action="store_true", help="as the example for unconditional images: what was seen is left out"
)
words, _ = parser.parse_known_args()
set_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = get_peft_model(model, LoraConfig(r=4, target_modules=["linear1", "linear2"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(40, 6, 16, generator=torch.Generator().manual_seed(1)))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
step, last = 0, 30
if words.resume_from_checkpoint:
    newest = max(words.output_dir.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    accelerator.load_state(newest)
    step = int(newest.name[11:])
first, seen = divmod(step, len(loader))
for epoch in range(first, 100):
    for index, (x,) in enumerate(loader):
        if words.skip and epoch == first and index < seen:
            continue
        at(step)
        loss = (model(x + 0.1 * torch.randn_like(x)) - x).square().mean()
        accelerator.backward(loss)
        optimizer.step(), schedule.step(), optimizer.zero_grad()
        step += 1
        if step % 5 == 0:
            for old in sorted(words.output_dir.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))[:-1]:
                shutil.rmtree(old)
            accelerator.save_state(words.output_dir / f"checkpoint-{step}")
        if step == last:
            break
    if step == last:
        break
done(p.detach() for p in accelerator.unwrap_model(model).parameters())
