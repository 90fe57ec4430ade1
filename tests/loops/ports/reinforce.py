"""Policy gradients. The shape of pytorch/examples, reinforcement_learning/reinforce.py: no loader, an episode per
update, log-probabilities and rewards kept on the model until the update, a running reward. An episode is a step.

The environment has a random generator of its own, as those of gymnasium have; so it is handed in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical

from tests.loops.ports._parts import Pole, seed

RESUMES = "step"
EPISODES = 16


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 2)
        self.saved_log_probs: list[torch.Tensor] = []
        self.rewards: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.affine2(torch.relu(self.dropout(self.affine1(x)))).softmax(dim=1)


def build() -> tuple[Any, ...]:
    seed()
    policy = Policy()
    return Pole(seed=7), policy, torch.optim.Adam(policy.parameters(), lr=1e-2)


def episode(env: Pole, policy: Policy) -> float:
    state, total = env.reset(), 0.0
    for _ in range(30):
        distribution = Categorical(policy(torch.from_numpy(state).float().unsqueeze(0)))
        action = distribution.sample()
        policy.saved_log_probs.append(distribution.log_prob(action))
        state, reward, done = env.step(int(action))
        policy.rewards.append(reward)
        total += reward
        if done:
            break
    return total


def finish_episode(policy: Policy, optimizer: Any) -> torch.Tensor:
    returns, follows = [], 0.0
    for reward in policy.rewards[::-1]:
        follows = reward + 0.99 * follows
        returns.insert(0, follows)
    scaled = torch.tensor(returns)
    scaled = (scaled - scaled.mean()) / (scaled.std(unbiased=False) + 1e-6)
    loss = torch.cat([-log * each for log, each in zip(policy.saved_log_probs, scaled, strict=True)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return loss


def original() -> dict[str, Any]:
    env, policy, optimizer = build()
    running_reward = 10.0
    for _ in range(EPISODES):
        running_reward = 0.05 * episode(env, policy) + 0.95 * running_reward
        finish_episode(policy, optimizer)
    return {"policy": policy.state_dict(), "reward": running_reward}


def train(colabkeep: Any) -> dict[str, Any]:
    env, policy, optimizer = build()
    with colabkeep.Run("reinforce", model=policy, optimizer=optimizer, state={"env": env}) as run:
        run.state.running_reward = 10.0
        for _ in run.steps(EPISODES):
            run.state.running_reward = 0.05 * episode(env, policy) + 0.95 * run.state.running_reward
            run.step(loss=finish_episode(policy, optimizer))
    return {"policy": policy.state_dict(), "reward": run.state.running_reward}
