"""Knowledge distillation. The shape of PyTorch's tutorial (knowledge_distillation_tutorial.py): a teacher is trained
first, then a student from its softened answers. Two runs in one script; the second one's teacher is not part of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.loops.ports._parts import by_epoch, digits, mlp, seed

RESUMES = "mid-epoch"
EPOCHS, HEAT = 2, 2.0


def update(model: Any, optimizer: Any, x: Any, y: Any, teacher: Any = None) -> torch.Tensor:
    optimizer.zero_grad()
    logits = model(F.dropout(x.flatten(1), 0.1))
    loss = F.cross_entropy(logits, y)
    if teacher is not None:
        with torch.no_grad():
            soft = F.softmax(teacher(x.flatten(1)) / HEAT, dim=1)
        apart = F.kl_div(F.log_softmax(logits / HEAT, dim=1), soft, reduction="batchmean") * HEAT**2
        loss = 0.25 * apart + 0.75 * loss
    loss.backward()
    optimizer.step()
    return loss


def build() -> tuple[Any, ...]:
    seed(42)
    loader, teacher, student = by_epoch(digits()), mlp(64, 48, 4), mlp(64, 8, 4)
    return loader, teacher, student


def original() -> dict[str, Any]:
    loader, teacher, student = build()
    for model, guide in ((teacher, None), (student, teacher)):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if guide is not None:
            guide.eval()
        for epoch in range(EPOCHS):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                update(model, optimizer, x, y, guide)
    return {"teacher": teacher.state_dict(), "student": student.state_dict()}


def train(colabkeep: Any) -> dict[str, Any]:
    loader, teacher, student = build()
    for name, model, guide in (("teacher", teacher, None), ("student", student, teacher)):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if guide is not None:
            guide.eval()
        with colabkeep.Run(name, model=model, optimizer=optimizer) as run:
            for _ in run.epochs(EPOCHS):
                for x, y in run.batches(loader):
                    run.step(loss=update(model, optimizer, x, y, guide))
    return {"teacher": teacher.state_dict(), "student": student.state_dict()}
