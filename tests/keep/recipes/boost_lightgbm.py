"""LightGBM: a snapshot every three rounds by a callback, for `snapshot_freq` is the
command line's; continued by `init_model`."""

import sys
from pathlib import Path

import lightgbm
import numpy as np
from telling import at, done

out = Path(sys.argv[1])
x = np.random.default_rng(0).normal(size=(500, 5))
data = lightgbm.Dataset(x, label=x.sum(1), free_raw_data=False)
snapshots = sorted(out.glob("model_*.txt"), key=lambda path: int(path.stem.rpartition("_")[2]))
newest = snapshots[-1] if snapshots and "--resume" in sys.argv else None
before = 0 if newest is None else lightgbm.Booster(model_file=newest).current_iteration()


def snapshot(env):
    number = env.model.current_iteration()
    if number % 3 == 0:
        env.model.save_model(out / f"model_{number}.txt")


def tell(env):
    at(env.iteration)


tell.before_iteration = True
words = {"objective": "l2", "num_leaves": 7, "seed": 0, "deterministic": True, "force_row_wise": True, "verbose": -1}
words |= {"bagging_fraction": 0.5, "bagging_freq": 1} if "--bagging" in sys.argv else {}
booster = lightgbm.train(words, data, num_boost_round=24 - before, init_model=newest, callbacks=[snapshot, tell])
assert booster.current_iteration() == 24
done([booster.predict(x)])
