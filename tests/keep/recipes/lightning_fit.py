"""Lightning with `ModelCheckpoint(save_last=True)` and `ckpt_path="last"`."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from telling import at, done

out = sys.argv[1]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        (x,) = batch
        at(self.global_step)
        return (self.layer(x) - x.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


lightning.seed_everything(0, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(40, 8, generator=torch.Generator().manual_seed(1)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle="--shuffle" in sys.argv)
trainer = lightning.Trainer(
    max_epochs=6,
    default_root_dir=out,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(out, save_last=True, every_n_train_steps=3, save_on_train_epoch_end=True)],
)
model = Model()
trainer.fit(model, loader, ckpt_path="last" if "--resume" in sys.argv else None)
done(p.detach() for p in model.parameters())
