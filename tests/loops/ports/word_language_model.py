"""A language model with a hidden state carried from batch to batch. The shape of pytorch/examples,
word_language_model/main.py: the text cut into columns, batches by `range(0, n, bptt)`, plain SGD by hand through
`.data`, a learning rate that is a variable of the script, a sum of losses begun anew every few batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.loops.ports._parts import seed

RESUMES = "mid-epoch"
EPOCHS, TOKENS, WIDTH, BATCH, BPTT, REPORT = 3, 12, 16, 3, 5, 2


class RNNModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(TOKENS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, TOKENS)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).view(-1, TOKENS), dim=1), hidden

    def init_hidden(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2, batch, WIDTH), torch.zeros(2, batch, WIDTH)


def detached(hidden: Any) -> Any:
    return tuple(each.detach() for each in hidden)


def get_batch(source: torch.Tensor, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def build() -> tuple[Any, ...]:
    seed()
    text = (torch.arange(BATCH * 34) + torch.randint(0, 2, (BATCH * 34,))) % TOKENS
    columns = text.view(BATCH, -1).t().contiguous()
    return columns, columns[:12].clone(), RNNModel()


def evaluate(model: Any, source: torch.Tensor) -> float:
    model.eval()
    total, hidden = 0.0, model.init_hidden(BATCH)
    with torch.no_grad():
        for i in range(0, len(source) - 1, BPTT):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total += len(data) * F.nll_loss(output, targets).item()
    return total / (len(source) - 1)


def update(model: Any, data: Any, targets: Any, hidden: Any, lr: float) -> tuple[torch.Tensor, Any]:
    model.zero_grad()
    output, hidden = model(data, detached(hidden))
    loss = F.nll_loss(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-lr)
    return loss, hidden


def original() -> dict[str, Any]:
    train_data, val_data, model = build()
    lr, best_val_loss, log = 20.0, None, []
    for _ in range(EPOCHS):
        model.train()
        total_loss, hidden = 0.0, model.init_hidden(BATCH)
        for batch, i in enumerate(range(0, len(train_data) - 1, BPTT)):
            data, targets = get_batch(train_data, i)
            loss, hidden = update(model, data, targets, hidden, lr)
            total_loss += loss.item()
            if batch % REPORT == 0 and batch > 0:
                log.append(total_loss / REPORT)
                total_loss = 0.0
        val_loss = evaluate(model, val_data)
        if not best_val_loss or val_loss < best_val_loss:
            best_val_loss = val_loss
        else:
            lr /= 4.0
    return {"model": model.state_dict(), "log": log, "lr": lr, "best": best_val_loss}


def train(colabkeep: Any) -> dict[str, Any]:
    train_data, val_data, model = build()
    with colabkeep.Run("lstm", model=model) as run:
        state = run.state
        state.lr, state.best_val_loss, state.log = 20.0, None, []
        for _ in run.epochs(EPOCHS):
            model.train()
            state.total_loss, state.hidden = 0.0, model.init_hidden(BATCH)
            for batch, i in run.enumerate(range(0, len(train_data) - 1, BPTT)):
                data, targets = get_batch(train_data, i)
                loss, hidden = update(model, data, targets, state.hidden, state.lr)
                run.step(loss=loss)
                state.hidden = detached(hidden)
                state.total_loss += loss.item()
                if batch % REPORT == 0 and batch > 0:
                    state.log.append(state.total_loss / REPORT)
                    state.total_loss = 0.0
            val_loss = evaluate(model, val_data)
            if not state.best_val_loss or val_loss < state.best_val_loss:
                state.best_val_loss = val_loss
            else:
                state.lr /= 4.0
    return {"model": model.state_dict(), "log": state.log, "lr": state.lr, "best": state.best_val_loss}
