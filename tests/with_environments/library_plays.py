"""Games of libraries played again by the libraries' own means: from a seed and the names of moves to rewards,
and whether the game is over then."""

import gem
import gem.envs
import gymnasium
import numpy as np
import rlcard

from sparring.envs.pettingzoo_words import WORDS

Outcome = tuple[list[float], bool, bool]
"""The rewards of the players, whether the game ended with the last move, and whether it was cut there."""


def pettingzoo_turns(name: str, seed: int, moves: list[str], **settings) -> Outcome:
    """PettingZoo's own loop over agents."""
    module = __import__(f"pettingzoo.classic.{name}", fromlist=["env"])
    env = module.env(**settings)
    env.reset(seed=seed % 2**31)
    agents, left = env.possible_agents, list(moves)
    total, cut = dict.fromkeys(agents, 0.0), False
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        total[agent] += reward
        cut = cut or truncated
        if terminated or truncated:
            env.step(None)
            continue
        if not left:
            return [*total.values()], False, cut
        legal = np.flatnonzero(observation["action_mask"])
        name_of = WORDS[name].action_name or (lambda action, *_: str(action))
        move = left.pop(0)
        env.step(next(one for one in legal if name_of(one, env, agent) == move))
    return [total[agent] for agent in agents], not left, cut


def pettingzoo_at_once(name: str, seed: int, moves: list[str], **settings) -> Outcome:
    """PettingZoo's own loop where all move at once."""
    env = __import__(f"pettingzoo.classic.{name}", fromlist=["env"]).parallel_env(**settings)
    env.reset(seed=seed % 2**31)
    agents, left, cut = env.possible_agents, list(moves), False
    total = dict.fromkeys(agents, 0.0)
    while env.agents and left:
        actions = {agent: ("rock", "paper", "scissors").index(left.pop(0)) for agent in env.agents}
        _, rewards, _, truncated, _ = env.step(actions)
        cut = any(truncated.values())
        for agent, reward in rewards.items():
            total[agent] += reward
    return [*total.values()], not env.agents and not left, cut


def rlcard_game(name: str, seed: int, moves: list[str], **settings) -> Outcome:
    """RLCard's own game, moved by its own actions, not by their numbers."""
    env = rlcard.make(name, {"seed": seed % 2**31, **settings})
    state, _ = env.reset()
    for move in moves:
        actions = state["raw_legal_actions"]
        names = [one.name.lower() if hasattr(one, "name") else str(one) for one in actions]
        state, _ = env.step(actions[names.index(move)], raw_action=True)
    return [float(one) for one in env.get_payoffs()], bool(env.is_over()), False


def gymnasium_game(name: str, seed: int, moves: list[str], **settings) -> Outcome:
    """Gymnasium's own environment, which draws nothing."""
    env = gymnasium.make(name, **settings)
    env.reset(seed=seed % 2**31)
    total, terminated, truncated = 0.0, False, False
    for move in moves:
        _, reward, terminated, truncated, _ = env.step(int(move))
        total += float(reward)
    return [total], terminated or truncated, truncated and not terminated


def gem_game(name: str, seed: int, moves: list[str], **settings) -> Outcome:
    """GEM's own environment, alone in the process."""
    env = gem.make(name, **settings)
    env.reset(seed % 2**32)
    total, terminated, truncated = 0.0, False, False
    for move in moves:
        _, reward, terminated, truncated, _ = env.step(f"\\boxed{{{move}}}")
        total += float(reward)
    return [total], terminated or truncated, truncated and not terminated
