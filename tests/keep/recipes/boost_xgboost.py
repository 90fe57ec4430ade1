"""XGBoost with TrainingCheckPoint, continued from the newest snapshot."""

import sys
from pathlib import Path

import numpy as np
import xgboost
from telling import at, done

out = Path(sys.argv[1])
x = np.random.default_rng(0).normal(size=(500, 5))
matrix = xgboost.DMatrix(x, label=x.sum(1))
snapshots = sorted(out.glob("model_*.ubj"), key=lambda path: int(path.stem.rpartition("_")[2]))
newest = snapshots[-1] if snapshots and "--resume" in sys.argv else None
before = 0 if newest is None else xgboost.Booster(model_file=newest).num_boosted_rounds()


class Tell(xgboost.callback.TrainingCallback):
    def before_iteration(self, model, epoch, evals_log):
        at(before + epoch)
        return False


booster = xgboost.train(
    {"max_depth": 3, "seed": 0, "subsample": 0.5 if "--subsample" in sys.argv else 1.0},
    matrix,
    num_boost_round=24 - before,
    xgb_model=newest,
    callbacks=[xgboost.callback.TrainingCheckPoint(out, interval=3), Tell()],
)
assert booster.num_boosted_rounds() == 24
done([booster.predict(matrix)])
