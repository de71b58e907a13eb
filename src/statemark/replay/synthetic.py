"""Agents as they talk: a system prompt and tools that all share, turns that grow, reasoning that history drops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statemark.replay.workload import Abstract, SessionPlan, Turn


@dataclass(frozen=True)
class Agent:
    """Sizes in tokens. `shared`: system prompt and tools of all sessions; `reasoning`: generated, never in history.

    `header`: what a template puts before an answer and replaces when history is rendered.
    """

    sessions: int = 3
    turns: int = 4
    shared: int = 3000
    user: int = 120
    answer: int = 48
    reasoning: int = 32
    header: int = 4
    think: float = 0.5


def agent_sessions(agent: Agent, seed: int = 0) -> list[SessionPlan]:
    """The sessions; equal seeds give equal ones."""
    draw = np.random.default_rng(seed)

    def fresh(count: int) -> Abstract:
        return draw.integers(1 << 32, 1 << 48, size=count, dtype=np.int64)

    shared, header = fresh(agent.shared), fresh(agent.header)
    plans = []
    for number in range(agent.sessions):
        history, turns = shared, []
        for turn in range(agent.turns):
            history = np.concatenate([history, fresh(agent.user)])
            prompt = np.concatenate([history, header])
            wait = agent.think if turn else 0.0
            turns.append(Turn(prompt, agent.reasoning + agent.answer, wait, after_end=True))
            history = np.concatenate([history, fresh(agent.answer)])  # without header and reasoning
        plans.append(SessionPlan(f"agent {number}", tuple(turns)))
    return plans
