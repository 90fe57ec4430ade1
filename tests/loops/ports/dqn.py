"""Deep Q-learning. The shape of PyTorch's tutorial (reinforcement_q_learning.py): a replay memory, a target net that
follows softly, a chance of random actions by the number of actions so far, an update after each action.

An episode is an epoch that reads no loader: it is saved at its end, and told so. The memory and the environment get
methods to be saved with."""

from __future__ import annotations

import math
import random
from collections import deque
from itertools import count
from typing import Any

import torch
from torch import nn

from tests.loops.ports._parts import Pole, mlp, seed

RESUMES = "epoch"
TOLD = ("can be saved at its end only",)
EPISODES, BATCH, LONGEST = 6, 8, 11


class ReplayMemory:
    def __init__(self, capacity: int) -> None:
        self.memory: deque[tuple[Any, ...]] = deque(maxlen=capacity)

    def push(self, *transition: Any) -> None:
        self.memory.append(transition)

    def sample(self, count: int) -> list[tuple[Any, ...]]:
        return random.sample(self.memory, count)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": list(self.memory)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = deque(state["memory"], maxlen=self.memory.maxlen)


def build() -> dict[str, Any]:
    seed()
    policy, target = mlp(4, 16, 2), mlp(4, 16, 2)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
    return {"env": Pole(3), "policy": policy, "target": target, "memory": ReplayMemory(40), "optimizer": optimizer}


def select_action(policy: nn.Module, state: torch.Tensor, steps_done: int) -> torch.Tensor:
    if random.random() > 0.05 + 0.85 * math.exp(-steps_done / 40):
        with torch.no_grad():
            return policy(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


def optimize_model(parts: dict[str, Any]) -> torch.Tensor | None:
    policy, target, memory, optimizer = (parts[name] for name in ("policy", "target", "memory", "optimizer"))
    if len(memory.memory) < BATCH:
        return None
    states, actions, following, rewards = zip(*memory.sample(BATCH), strict=True)
    values = policy(torch.cat(states)).gather(1, torch.cat(actions))
    next_values = torch.zeros(BATCH)
    alive = torch.tensor([each is not None for each in following])
    with torch.no_grad():
        next_values[alive] = target(torch.cat([each for each in following if each is not None])).max(1).values
    loss = nn.SmoothL1Loss()(values, (next_values * 0.99 + torch.tensor(rewards)).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    weights = target.state_dict()
    for key, value in policy.state_dict().items():
        weights[key] = value * 0.005 + weights[key] * 0.995
    target.load_state_dict(weights)
    return loss


def act(parts: dict[str, Any], state: torch.Tensor, steps_done: int) -> tuple[torch.Tensor | None, float]:
    action = select_action(parts["policy"], state, steps_done)
    observation, reward, done = parts["env"].step(int(action))
    following = None if done else torch.tensor(observation, dtype=torch.float32).unsqueeze(0)
    parts["memory"].push(state, action, following, reward)
    return following, reward


def original() -> dict[str, Any]:
    parts = build()
    steps_done, durations = 0, []
    for _ in range(EPISODES):
        state = torch.tensor(parts["env"].reset(), dtype=torch.float32).unsqueeze(0)
        for t in count():
            state, _ = act(parts, state, steps_done)
            steps_done += 1
            optimize_model(parts)
            if state is None or t == LONGEST:
                durations.append(t + 1)
                break
    return {"policy": parts["policy"].state_dict(), "target": parts["target"].state_dict(), "durations": durations}


def train(colabkeep: Any) -> dict[str, Any]:
    parts = build()
    others = {name: parts[name] for name in ("env", "target", "memory")}
    with colabkeep.Run("dqn", model=parts["policy"], optimizer=parts["optimizer"], state=others) as run:
        run.state.steps_done, run.state.durations = 0, []
        for _ in run.epochs(EPISODES):
            state = torch.tensor(parts["env"].reset(), dtype=torch.float32).unsqueeze(0)
            for t in count():
                state, _ = act(parts, state, run.state.steps_done)
                run.state.steps_done += 1
                loss = optimize_model(parts)
                if loss is not None:
                    run.step(loss=loss)
                if state is None or t == LONGEST:
                    run.state.durations.append(t + 1)
                    break
    target = parts["target"].state_dict()
    return {"policy": parts["policy"].state_dict(), "target": target, "durations": run.state.durations}
