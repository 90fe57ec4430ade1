"""A paper's `train.py --resume`: two networks, an epoch's checkpoint in a folder, the newest found by its number."""

import argparse
from pathlib import Path

import torch
from telling import at, done

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--no-rng", action="store_true", help="as most scripts: random numbers begin anew")
words, _ = parser.parse_known_args()
torch.manual_seed(0)
maker, judge = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (maker, judge)]
real = torch.randn(32, 8)
start = 0
if words.resume:
    newest = max(words.out.glob("net_*.pth"), key=lambda path: int(path.stem[4:]))
    state = torch.load(newest, weights_only=True)
    maker.load_state_dict(state["maker"]), judge.load_state_dict(state["judge"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    if "rng" in state:
        torch.set_rng_state(state["rng"])
    start = state["epoch"]
for epoch in range(start, 8):
    for batch in range(5):
        at(5 * epoch + batch)
        fake = maker(torch.randn(32, 4))
        loss = judge(real).mean() - judge(fake.detach()).mean()
        optimizers[1].zero_grad(), loss.backward(), optimizers[1].step()
        loss = judge(fake).mean()
        optimizers[0].zero_grad(), loss.backward(), optimizers[0].step()
    state = {
        "epoch": epoch + 1,
        "maker": maker.state_dict(),
        "judge": judge.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        **({} if words.no_rng else {"rng": torch.get_rng_state()}),
    }
    words.out.mkdir(exist_ok=True)
    torch.save(state, words.out / f"net_{epoch + 1}.pth")
    for old in sorted(words.out.glob("net_*.pth"), key=lambda path: int(path.stem[4:]))[:-2]:
        old.unlink()
done(p.detach() for net in (maker, judge) for p in net.parameters())
