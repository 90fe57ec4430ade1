"""Ultralytics: `resume=` with the last.pt that came back, whose training arguments name folders of the old machine."""

import sys
from pathlib import Path

import cv2
import numpy as np
import torch

if "+cpu" in torch.__version__:  # torchvision's build on the package index is for CUDA: its one operator, by hand
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from telling import at, done
from ultralytics import YOLO
from ultralytics.utils.nms import TorchNMS

if "+cpu" in torch.__version__:
    import torchvision

    torchvision.ops.nms = TorchNMS.nms
out = Path(sys.argv[1]).resolve()
data = Path("data").resolve()  # beside what is kept: each machine makes its own
for part in ("images", "labels"):
    (data / part).mkdir(parents=True, exist_ok=True)
for number in range(8):
    image = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype="uint8")
    image[16:40, 8 + 2 * number : 32 + 2 * number] = 255
    cv2.imwrite(str(data / "images" / f"{number}.png"), image)
    (data / "labels" / f"{number}.txt").write_text(f"0 {(20 + 2 * number) / 64} {28 / 64} {24 / 64} {24 / 64}\n")
(data / "data.yaml").write_text(f"path: {data}\ntrain: images\nval: images\nnames: [box]\n")

last = out / "a" / "weights" / "last.pt"
resume = "--resume" in sys.argv
model = YOLO(last if resume else "yolo11n.yaml")


def tell(trainer):
    trainer.batches = getattr(trainer, "batches", 2 * trainer.epoch)
    at(trainer.batches)
    trainer.batches += 1


model.add_callback("on_train_batch_start", tell)
words = {"data": data / "data.yaml", "project": out, "name": "a", "exist_ok": True, "resume": resume}
if resume:  # without these it goes on in the folders of the old machine, which last.pt names
    words |= {"save_dir": out / "a"}
model.train(
    **words, **({} if resume else {"epochs": 4, "imgsz": 64, "batch": 4, "workers": 0, "device": "cpu", "plots": False})
)
print("in", model.trainer.save_dir, flush=True)
state = torch.load(out / "a" / "weights" / "last.pt", weights_only=False)["model"].state_dict()
done(tensor.float() for tensor in state.values())
