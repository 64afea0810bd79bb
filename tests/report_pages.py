"""Runs written by hand, and the pages that are made of them."""

import gzip
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

from run_files import match, nash
from sparring.evaluation.results import write_evaluation
from sparring.view.report import build_report

CONFIG = """\
seed = 3

[model]
name = "smollm2-135m"

[[envs]]
id = "kuhn_poker"
template = "fewshot-chat"
"""


RULES = [
    {"role": "user", "content": "Kuhn poker, 2 players, cards J, Q, K (lowest first). Moves so far: none."},
    {"role": "assistant", "content": "check"},
    {"role": "user", "content": "Moves so far: they bet. Legal moves: fold, call. Your card: Q."},
    {"role": "assistant", "content": "call"},
]


def write_run(run_dir: Path, steps: int = 60, games_per_step: int = 8, seed: int = 0) -> Path:
    """Make a run directory like that of a Kuhn poker run, with all files and plausible figures."""
    rng = random.Random(seed)
    (run_dir / "evaluation").mkdir(parents=True)
    (run_dir / "rollouts").mkdir()
    (run_dir / "batches").mkdir()
    (run_dir / "config.toml").write_text(CONFIG)
    with (run_dir / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps(metrics_line(step, rng)) + "\n")
    for step in range(0, steps + 1, 10):
        write_evaluations(run_dir / "evaluation", step, rng)
    for step in (1, steps // 2, steps):
        write_games(run_dir, step, games_per_step, rng)
    return run_dir


def metrics_line(step: int, rng: random.Random) -> dict[str, float]:
    learned = 1 - math.exp(-step / 15)
    line = {
        "step": step,
        "wall_time": 1.7e9 + 9.3 * step,
        "collection-kuhn_poker/Games": 256 * step,
        "collection-kuhn_poker/Win Rate": 0.5 + rng.gauss(0, 0.01),
        "collection-kuhn_poker/Draw Rate": 0.0,
        "collection-kuhn_poker/Invalid Move Rate": 0.35 * math.exp(-step / 5),
        "collection-kuhn_poker/Format Success Rate": 1 - 0.3 * math.exp(-step / 5),
        "collection-kuhn_poker/Reward (pid=0)": -0.055 + rng.gauss(0, 0.05),
        "collection-kuhn_poker/Reward (pid=1)": 0.055 + rng.gauss(0, 0.05),
        "collection-kuhn_poker/Response Length (tokens)": 2 + 3 * math.exp(-step / 5),
        "learner/loss": -0.02 + rng.gauss(0, 0.01),
        "learner/grad_norm": 0.4 + abs(rng.gauss(0, 0.1)),
        "learner/legal_entropy": 0.9 - 0.4 * learned,
        "learner/kl_to_base": 0.05 * learned,
        "learner/legal_mass": 0.65 + 0.34 * learned,
        "learner/mismatch": 10 ** rng.uniform(-5.5, -4.5),
        "time/generated_tokens_per_second": 900 + rng.gauss(0, 60),
        "time/trained_tokens_per_second": 9000 + rng.gauss(0, 300),
        "time/games_per_second": 60 + rng.gauss(0, 4),
        "time/play_seconds": 4.2 + rng.gauss(0, 0.3),
        "time/learn_seconds": 3.1 + rng.gauss(0, 0.2),
        "time/evaluation_seconds": 1.9 if step % 10 == 0 else 0.0,
        **{
            f"answers/{name}/player_{pid}": value * learned
            for name, value in (("zero_advantage_share", 0.4), ("cut_share", 0.1), ("tokens", 5.0))
            for pid in (0, 1)
        },
        "exploration/kuhn_poker/Pct. Unique Action 2-gram": 0.02 * math.exp(-step / 30),
    }
    if step % 10 == 0:
        line[f"model-pool/ckpt-{step}/mu"] = 25 + 4 * learned + rng.gauss(0, 0.3)
        line[f"model-pool/ckpt-{step}/sigma"] = 1.2 + 2 / step
        line["model-pool/fixed-random/mu"] = 22 - 2 * learned
        line["model-pool/fixed-random/sigma"] = 1.0
    return line


def write_evaluations(directory: Path, step: int, rng: random.Random) -> None:
    learned = 1 - math.exp(-step / 15)
    invalid = round(400 * 0.31 * (1 - learned) ** 3)
    for opponent, best in (("random", 0.66), ("optimal", 0.47)):
        wins = round(400 * (0.36 + (best - 0.36) * learned) + rng.gauss(0, 8))
        draws = 12 if opponent == "optimal" and step else 0
        result = match(wins, 400, draws=draws, invalid=invalid, opponent=opponent)
        write_evaluation(directory, step, opponent, result)
    policy = {}
    for card in "012":
        for history, actions in (
            ("", "check bet"),
            ("p", "check bet"),
            ("b", "fold call"),
            ("pb", "fold call"),
        ):
            chance = min(0.97, max(0.03, 0.3 + learned * (int(card) - 1) * 0.6 + rng.gauss(0, 0.03)))
            first, second = actions.split()
            policy[card + history] = {first: 1 - chance, second: chance}
    observations = {state: f"Your card: {'JQK'[int(state[0])]}. History: {state[1:]}." for state in policy}
    mass = 0.66 + 0.339 * learned
    exact = nash(1.41 - 1.2 * learned, mass=mass, policy=policy, observations=observations)
    write_evaluation(directory, step, "nashconv", exact)


def write_games(run_dir: Path, step: int, count: int, rng: random.Random) -> None:
    rollouts = [make_rollout(step, number, rng) for number in range(count)]
    batch = [
        {
            "rollout_id": rollout["id"],
            "pid": logged["pid"],
            "step_index": 0,
            "role_id": logged["role_id"],
            "env_id": "kuhn_poker",
            "policy_version": 0,
            "obs": "",
            "act": "",
            "rewards": {"final": 2.0, "final_transformed": 1.9, "step": 1.9, "sampled": 0.83},
        }
        for rollout in rollouts
        for logged in rollout["steps"][:2]
    ]
    log = run_dir / "rollouts" / f"step-{step:06d}.jsonl"
    numbered = enumerate(rollouts, 1)
    log.write_text("".join(json.dumps(line(one, step, number, count)) + "\n" for number, one in numbered))
    batches = run_dir / "batches" / f"batch-{step:06d}.jsonl.gz"
    batches.write_bytes(gzip.compress("".join(json.dumps(entry) + "\n" for entry in batch).encode()))


def line(rollout: dict, step: int, number: int = 1, count: int = 1) -> dict:
    return {"schema_version": 1, "step": step, "line": number, "lines": count, "rollout": rollout}


def make_rollout(step: int, number: int, rng: random.Random, invalid: bool | None = None) -> dict:
    invalid = number == 3 and step == 1 if invalid is None else invalid
    mirror = number % 2 == 0
    cards = rng.sample("JQK", 2)
    history: list[str] = []
    turns, steps = [], []
    for turn, action in enumerate(["I would like to bet" if invalid else "check", "bet", "call"]):
        pid = turn % 2
        legal = "fold, call" if "bet" in history else "check, bet"
        said = ", ".join(history) or "none"
        observation = f"Moves so far: {said}. Legal moves: {legal}. Your card: {cards[pid]}."
        trained = pid == 0 or mirror
        turns.append(
            {
                "pid": pid,
                "kind": "policy" if trained else "script",
                "model": "default" if trained else "random",
                "observation": observation,
                "text": f" {action}\n" if invalid else action,
                "action": action,
                "well_formed": not invalid,
                "invalid": invalid,
            }
        )
        if trained:
            steps.append(
                {
                    "role_id": f"player_{pid}",
                    "prompt": [*RULES, {"role": "user", "content": observation}],
                    "completion": [{"role": "assistant", "content": action}],
                    "prompt_token_ids": list(range(180 + turn)),
                    "completion_token_ids": [7, 2],
                    "completion_logprobs": [rng.uniform(-1, 0), -0.01],
                    "reward": 2.0,
                    "advantage": 0.0,
                    "info": {"extracted_action": action},
                    "pid": pid,
                    "env_id": "kuhn_poker",
                    "policy_version": step - 1,
                }
            )
        history.append(action)
        if invalid:
            break
    reward = 2.0 if cards[0] > cards[1] else -2.0
    return {
        "episode_type": "game",
        "artifact": {
            "env_id": "kuhn_poker",
            "agents": [
                {"kind": "policy", "model": "default"},
                {"kind": "policy" if mirror else "script", "model": "default" if mirror else "random"},
            ],
        },
        "id": f"game-{step}-{number}",
        "meta": {},
        "steps": steps,
        "extras": {
            "turns": turns,
            "final_rewards": {"0": -1.0 if invalid else reward, "1": 1.0 if invalid else -reward},
            "num_turns": len(turns),
            "game_info": {},
            "action_seq": [],
            "raised": None,
            "invalid_pid": 0 if invalid else None,
            "truncated": False,
        },
        "rewards": {"player_0": reward},
    }


class Page(HTMLParser):
    """Collects what a browser finds in a page: elements, attributes and visible text."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def build(run_dir: Path) -> str:
    """Build a report and return it without the plotting library, which is large."""
    html = build_report(run_dir).read_text(encoding="utf-8")
    return re.sub(r"<script>/\*.*?</script>", "<script></script>", html, count=1, flags=re.DOTALL)


HOSTILE = '</script></pre></details><script>alert("x")</script><img src=x onerror=alert(1)>&amp;"\''


def figures_of(page: str) -> list[dict]:
    return json.loads(page.split('id="figures" type="application/json">')[1].split("</script>")[0])


def heat_map_of(page: str) -> dict:
    (found,) = [one for one in figures_of(page) if one["traces"][0]["type"] == "heatmap"]
    return found
