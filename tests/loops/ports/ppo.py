"""Proximal policy optimization. The shape of vwxyzjn/cleanrl, ppo.py: a rollout and then several passes over it in
shuffled pieces make one turn; the observation at hand and whether an environment fell go on into the next turn, the
learning rate falls by the number of the turn. A turn is a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from tests.loops.ports._parts import Pole, mlp, seed

RESUMES = "step"
UPDATES, STEPS, ENVS = 12, 8, 2


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = mlp(4, 16, 1), mlp(4, 16, 2)

    def act(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).flatten()


class Envs:
    """Several environments; one that falls is begun anew."""

    def __init__(self) -> None:
        self.envs = [Pole(seed) for seed in range(ENVS)]

    def reset(self) -> torch.Tensor:
        return torch.tensor(np.stack([env.reset() for env in self.envs]), dtype=torch.float32)

    def step(self, actions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        told = [env.step(int(action)) for env, action in zip(self.envs, actions, strict=True)]
        seen = [env.reset() if done else obs for env, (obs, _, done) in zip(self.envs, told, strict=True)]
        rewards, dones = (torch.tensor([float(each[i]) for each in told]) for i in (1, 2))
        return torch.tensor(np.stack(seen), dtype=torch.float32), rewards, dones

    def state_dict(self) -> dict[str, Any]:
        return {"envs": [env.state_dict() for env in self.envs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for env, each in zip(self.envs, state["envs"], strict=True):
            env.load_state_dict(each)


def build() -> tuple[Any, ...]:
    seed()
    agent = Agent()
    return Envs(), agent, torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)


def turn(envs: Envs, agent: Agent, optimizer: Any, next_obs: Any, next_done: Any) -> tuple[torch.Tensor, ...]:
    """A rollout and the updates from it. What the next turn begins with, and the last loss."""
    obs, actions = torch.zeros(STEPS, ENVS, 4), torch.zeros(STEPS, ENVS)
    logprobs, rewards, dones, values = (torch.zeros(STEPS, ENVS) for _ in range(4))
    for step in range(STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            actions[step], logprobs[step], _, values[step] = agent.act(next_obs)
        next_obs, rewards[step], next_done = envs.step(actions[step].numpy())
    with torch.no_grad():
        following, advantages, last = agent.critic(next_obs).flatten(), torch.zeros_like(rewards), torch.zeros(ENVS)
        for t in reversed(range(STEPS)):
            goes_on = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
            delta = rewards[t] + 0.99 * (following if t == STEPS - 1 else values[t + 1]) * goes_on - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * goes_on * last
    returns = advantages + values
    inds = np.arange(STEPS * ENVS)
    for _ in range(2):
        np.random.shuffle(inds)
        for start in range(0, len(inds), 8):
            mb = inds[start : start + 8]
            _, newlogprob, entropy, newvalue = agent.act(obs.view(-1, 4)[mb], actions.view(-1)[mb])
            ratio = (newlogprob - logprobs.view(-1)[mb]).exp()
            gain = advantages.view(-1)[mb]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean() - 0.01 * entropy.mean()
            loss = loss + 0.25 * ((newvalue - returns.view(-1)[mb]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    return next_obs, next_done, loss


def original() -> dict[str, Any]:
    envs, agent, optimizer = build()
    next_obs, next_done = envs.reset(), torch.zeros(ENVS)
    for update in range(1, UPDATES + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / UPDATES) * 2.5e-3
        next_obs, next_done, _ = turn(envs, agent, optimizer, next_obs, next_done)
    return {"agent": agent.state_dict(), "obs": next_obs}


def train(colabkeep: Any) -> dict[str, Any]:
    envs, agent, optimizer = build()
    next_obs, next_done = envs.reset(), torch.zeros(ENVS)
    with colabkeep.Run("ppo", model=agent, optimizer=optimizer, state={"envs": envs}) as run:
        run.state.next_obs, run.state.next_done = next_obs, next_done
        for update in run.steps(UPDATES):
            optimizer.param_groups[0]["lr"] = (1.0 - update / UPDATES) * 2.5e-3
            run.state.next_obs, run.state.next_done, loss = turn(
                envs, agent, optimizer, run.state.next_obs, run.state.next_done
            )
            run.step(loss=loss)
    return {"agent": agent.state_dict(), "obs": run.state.next_obs}
