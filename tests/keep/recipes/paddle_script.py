"""A script for AI Studio: `paddle.save` of model and optimizer at the end of each epoch, under two fixed names."""

import sys
from pathlib import Path

import numpy as np
import paddle
from telling import at, done

out = Path(sys.argv[1])
paddle.set_device("cpu")
paddle.seed(0)
model = paddle.nn.Sequential(
    paddle.nn.Linear(8, 16), paddle.nn.Dropout(0.5 if "--dropout" in sys.argv else 0.0), paddle.nn.Linear(16, 1)
)
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
x = paddle.to_tensor(np.random.default_rng(0).normal(size=(40, 8)).astype("float32"))
start = 0
if "--resume" in sys.argv:
    model.set_state_dict(paddle.load(str(out / "model.pdparams")))
    state = paddle.load(str(out / "model.pdopt"))
    start = state.pop("epoch")
    optimizer.set_state_dict(state)
for epoch in range(start, 6):
    for batch in range(5):
        at(5 * epoch + batch)
        part = x[8 * batch : 8 * batch + 8]
        loss = (model(part) - part.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    paddle.save(model.state_dict(), str(out / "model.pdparams"))
    paddle.save({**optimizer.state_dict(), "epoch": epoch + 1}, str(out / "model.pdopt"))
done(p.numpy() for p in model.parameters())
