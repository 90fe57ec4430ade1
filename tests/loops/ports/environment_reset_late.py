"""The same as `ppo`, with the environments reset where the script does it, right above its loop, where a resumed
session has restored them already. It is undone there."""

from __future__ import annotations

from typing import Any

import torch

from tests.loops.ports.ppo import ENVS, UPDATES, build, original, turn

__all__ = ["original"]

RESUMES = "step"


def train(colabkeep: Any) -> dict[str, Any]:
    envs, agent, optimizer = build()
    with colabkeep.Run("ppo", model=agent, optimizer=optimizer, state={"envs": envs}) as run:
        run.state.next_obs, run.state.next_done = envs.reset(), torch.zeros(ENVS)
        for update in run.steps(UPDATES):
            optimizer.param_groups[0]["lr"] = (1.0 - update / UPDATES) * 2.5e-3
            run.state.next_obs, run.state.next_done, loss = turn(
                envs, agent, optimizer, run.state.next_obs, run.state.next_done
            )
            run.step(loss=loss)
    return {"agent": agent.state_dict(), "obs": run.state.next_obs}
