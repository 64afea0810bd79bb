"""Runs that have a fault, or none: how each is made, and what the doctor must find in it.

Their models are tiny. They answer with the words of Kuhn poker, which suffices to earn different rewards.
"""

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rich.console import Console

from sparring.config import load_config
from sparring.core import SparringError
from sparring.run.single_process import train
from tiny_models import roomy_model

HERE = Path(__file__).parent
GAMES = HERE / "doctor_games.py"
BASE = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "4",
    "learning.schedule": "constant",
    "learning.steps": "20",
    "learning.max_batch_tokens": "4096",
    "evaluation.every": "10",
    "run.save_every": "100",
}
OF_GAMES = {
    "inference.max_tokens": "8",
    "collection.games_per_step": "64",
    "learning.learning_rate": "0.005",
    "evaluation.games": "200",
    "evaluation.games_during": "200",
    "evaluation.nash_conv": "false",
}
FIXED = {"population.sample_mode": "fixed", "learning.steps": "6", "learning.learning_rate": "1e-6"}
PLAYERS = (
    '{default = {role = "main", share = 2.0}, attacker = {role = "main_exploiter"}, '
    'finder = {role = "league_exploiter"}}'
)


@dataclass
class Lab:
    """Makes runs below ``place``; two models are taught once, by and by."""

    place: Path
    made: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def poker(self) -> Path:
        """A model that plays Kuhn poker at random, with some moves that are none."""
        return self._taught("poker", "kuhn_poker")

    @cached_property
    def words(self) -> Path:
        """A model that says the words of the games of ``doctor_games.py`` at random."""
        return self._taught("words", f"{GAMES}:Words")

    def _taught(self, name: str, env_id: str) -> Path:
        sys.path.insert(0, str(HERE.parent / "benchmarks"))
        from playing_model import save_playing_model

        return save_playing_model(self.place / f"model-{name}", env_id)

    def program(self, name: str, kind: str = "Asking", options: str = "", **changes: str) -> Path:
        """Train a program of ``doctor_programs.py``."""
        file = self.place / f"{name}.toml"
        path = f"{HERE / 'doctor_programs.py'}:{kind}"
        file.write_text(f'[program]\ntype = "python"\npath = "{path}"\n[program.options]\n{options}\n')
        given = {
            "model.name": str(self.poker),
            "learning.learning_rate": "0.002",
            "tracking.games_logged": "16",
        }
        return self._train(name, str(file), given, changes)

    def game(self, name: str, kind: str = "Words", **changes: str) -> Path:
        """Train on a game of ``doctor_games.py``."""
        given = OF_GAMES | {
            "model.name": str(self.words),
            "envs": f'[{{id = "{GAMES}:{kind}", template = "fewshot-chat"}}]',
            "evaluation.opponents": "['base']",
        }
        return self._train(name, "quickstart", given, changes)

    def kuhn(self, name: str, recipe: str, **changes: str) -> Path:
        """Train on Kuhn poker by a recipe."""
        given = OF_GAMES | {"model.name": str(self.poker), "evaluation.opponents": "['random']"}
        return self._train(name, "quickstart", given, changes, recipe)

    def once(self, name: str, kind: str) -> str:
        """Return the directory of a run of a game with whose result others play or begin."""
        if name not in self.made:
            self.made[name] = self.game(name, kind)
        return str(self.made[name])

    def _train(
        self, name: str, base: str, given: dict[str, str], changes: dict[str, str], *recipe: str
    ) -> Path:
        own = {key.replace("__", "."): value for key, value in changes.items()}
        path = self.place / name
        with suppress(SparringError):  # some faults stop a run
            config = load_config(base, BASE | given | own, *recipe)
            train(config, path, Console(file=io.StringIO(), width=100))
        return path


@dataclass(frozen=True)
class Fault:
    """A fault, the causes of which at least one must be found, and how a run with it is made."""

    name: str
    causes: tuple[str, ...]
    make: Callable[[Lab], Path]


FAULTS = [
    Fault(
        "no answer is right",
        ("no advantage",),
        lambda lab: lab.program("wrong", options='kind = "wrong"', learning__steps="6"),
    ),
    Fault(
        "every answer is right",
        ("no advantage",),
        lambda lab: lab.program("right", options='kind = "right"', learning__steps="6"),
    ),
    Fault(
        "an invalid move costs less than a lost game",
        ("cheap invalid moves/Dear",),
        lambda lab: lab.game("dear", "Dear", inference__temperature="1.5", learning__steps="6"),
    ),
    Fault(
        "a game that raises", ("game raises",), lambda lab: lab.game("raises", "Raises", learning__steps="4")
    ),
    Fault(
        "a game that raises on a move that it lists",
        ("stopped",),
        lambda lab: lab.game("broken", "Broken", learning__steps="4", evaluation__opponents="[]"),
    ),
    Fault("all games are draws", ("alike/",), lambda lab: lab.game("draws", "Draw", learning__steps="10")),
    Fault(
        "only the form of answers is rewarded, in a program",
        ("only format/Player",),
        lambda lab: lab.program("form", options='kind = "format"'),
    ),
    Fault(
        "only the form of answers is rewarded, in a game",
        ("only format/Draw",),
        lambda lab: lab.game(
            "valid",
            "Draw",
            learning__steps="10",
            rewards__step='[{type = "penalty_for_invalid_move", reward = 2.0, penalty = -2.0}]',
        ),
    ),
    Fault(
        "two answers of a group at a high rate",
        ("entropy/",),
        lambda lab: lab.program("collapse", options="group = 2", learning__learning_rate="0.005"),
    ),
    Fault(
        "a learning rate far too high, in a program",
        ("large steps/",),
        lambda lab: lab.program("explodes", learning__learning_rate="0.05"),
    ),
    Fault(
        "a learning rate far too high, in a game",
        ("became worse/",),
        lambda lab: lab.game("worse", learning__learning_rate="0.05"),
    ),
    Fault(
        "many steps of PPO at a high rate",
        ("large steps",),
        lambda lab: lab.program(
            "ppo",
            options='kind = "letters"',
            model__name=str(roomy_model()),
            learning__algorithm='{type = "ppo"}',
            learning__epochs="4",
            learning__minibatches="2",
            learning__learning_rate="0.01",
            learning__steps="6",
        ),
    ),
    Fault(
        "a reward function that turns round",
        ("went back/",),
        lambda lab: lab.program(
            "turns", options='kind = "turning"', learning__learning_rate="0.005", learning__steps="40"
        ),
    ),
    Fault("no room for an answer", ("cut/Player",), lambda lab: lab.program("cut", options="limit = 2")),
    Fault(
        "a model that knows no move",
        ("invalid moves/kuhn_poker",),
        lambda lab: lab.kuhn("invalid", "grpo", inference__max_tokens="2", learning__steps="6"),
    ),
    Fault(
        "a game that the first player wins",
        ("takes all/FirstWins",),
        lambda lab: lab.game("first", "FirstWins", learning__learning_rate="0.0005"),
    ),
    Fault(
        "a program that its first role wins",
        ("takes all/duel",),
        lambda lab: lab.program("duel", "Dueling", "always_first = true", evaluation__every="0"),
    ),
    Fault(
        "opponents too weak",
        ("weak opponents/default",),
        lambda lab: lab.game(
            "weak",
            population__fixed_opponents="['low']",
            frozen__low=lab.once("low", "Lowest"),
            start__default=lab.once("high", "Words"),
            **FIXED,
        ),
    ),
    Fault(
        "opponents too strong",
        ("strong opponents/default",),
        lambda lab: lab.game(
            "strong",
            population__fixed_opponents="['high']",
            frozen__high=lab.once("high", "Words"),
            start__default=lab.once("low", "Lowest"),
            **FIXED,
        ),
    ),
    Fault(
        "a learner with other weights than the engine",
        ("mismatch",),
        lambda lab: lab.game(
            "noise",
            learning__algorithm=f'{{path = "{HERE / "doctor_algorithm.py"}:Noisy"}}',
            learning__steps="4",
        ),
    ),
    Fault(
        "old answers at a high rate",
        ("stale answers",),
        lambda lab: lab.game(
            "stale", collection__max_staleness="2", learning__learning_rate="0.01", learning__steps="8"
        ),
    ),
    Fault(
        "an engine that stops the run",
        ("stopped",),
        lambda lab: lab.game(
            "stopped",
            learning__algorithm=f'{{path = "{HERE / "doctor_algorithm.py"}:Noisy"}}',
            learning__steps="40",
        ),
    ),
    Fault(
        "groups of two",
        ("small groups",),
        lambda lab: lab.program("small", options="group = 2\nquestions = 8", learning__steps="6"),
    ),
    Fault(
        "20 items in an evaluation",
        ("noisy evaluation",),
        lambda lab: lab.program(
            "noisy", options="measured = 20", learning__learning_rate="1e-5", learning__steps="6"
        ),
    ),
    Fault(
        "questions that are trained on",
        ("leak/",),
        lambda lab: lab.program("leak", options="leaks = true", learning__steps="6"),
    ),
    Fault(
        "a game that goes round",
        ("circles",),
        lambda lab: lab.game(
            "circle",
            "Circle",
            population__sample_mode="meta-nash",
            population__add_every="3",
            population__max_active_lora="16",
            learning__steps="40",
            learning__learning_rate="0.008",
        ),
    ),
    Fault(
        "a judge that fails",
        ("failures",),
        lambda lab: lab.program("fails", options='kind = "failing"', learning__steps="6"),
    ),
]

HEALTHY: dict[str, Callable[[Lab], Path]] = {
    "a program, by grpo": lambda lab: lab.program(
        "healthy-program", learning__learning_rate="0.0008", learning__steps="10"
    ),
    "a game of words, by rae": lambda lab: lab.game("healthy-game", learning__learning_rate="0.002"),
    "Kuhn poker, by magnet": lambda lab: lab.kuhn("healthy-magnet", "magnet", learning__steps="30"),
    "a game of words against its past, by rloo": lambda lab: lab.game(
        "healthy-past",
        learning__learning_rate="0.002",
        credit='{type = "rloo"}',
        population__sample_mode="random",
        population__add_every="5",
        population__max_active_lora="3",
    ),
    "a league of Kuhn poker": lambda lab: lab.kuhn(
        "healthy-league",
        "magnet",
        league__players=PLAYERS,
        league__snapshot_updates="8",
        population__add_every="4",
        collection__games_per_step="96",
    ),
}
