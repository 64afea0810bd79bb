"""Programs for runs that have a fault, or none, of a model that answers with the words of Kuhn poker."""

from sparring.core import AlternatingRolesEpisode, Arena, EpisodeRequest, Role, Rubric, SingleTurnEpisode
from sparring.core.episode import Utterance
from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template
from sparring.programs.judge import JudgeError

QUESTIONS = [f"What is best in game {number}?" for number in range(8)]
OTHERS = [f"What is best in game {number}?" for number in range(8, 16)]


def _tell(state, question, roles):
    """Tell each role the position of a game as the model was taught it, and return the last message."""
    number = int(question.rstrip("?").rpartition(" ")[2])
    *examples, last = get_template("fewshot-chat").messages(make_game("kuhn_poker", 2, seed=number), 0)
    for role in roles:
        for one in examples:
            author = role if one["role"] == "assistant" else ""
            state.transcript.append(Utterance(author, one["content"], role))
    return dict.fromkeys(roles, last["content"])


def _rubric(kind):
    def right(rollout, arena):
        said = rollout.steps[-1].completion_text
        if kind == "failing" and rollout.artifact == QUESTIONS[0]:
            raise JudgeError("no verdict")
        if kind == "letters":
            return {"Player": sum(ord(letter) % 2 for letter in said) / max(len(said), 1)}
        if kind == "turning" and arena.step_num > 15:
            return {"Player": float(said != "bet")}
        by_kind = {"right": 1.0, "wrong": 0.0, "format": 0.0}
        return {"Player": by_kind.get(kind, float(said == "bet"))}

    def well_formed(rollout, arena):
        return {"Player": float(rollout.steps[-1].completion_text in ("bet", "call"))}

    return Rubric([right, well_formed], [1.0, 0.2]) if kind == "format" else Rubric([right])


class Ask(SingleTurnEpisode):
    """One question; right is the answer "bet", or all answers are, or none is."""

    episode_type = "ask"
    rubric = Rubric([])

    def __init__(self, kind):
        self.rubric = _rubric(kind)

    def get_initial_actor(self, artifact, state):
        return "Player"

    def get_initial_prompt(self, arena, artifact, state):
        return _tell(state, artifact, ["Player"])


class Asking(Arena):
    """Asks questions in groups, and others when it is measured, unless it is told to leak."""

    def __init__(
        self, client, *, seed=0, kind="bet", questions=4, group=8, leaks=False, measured=200, limit=8
    ):
        super().__init__(client, seed=seed)
        self.asked, self.group = QUESTIONS[:questions], group
        self.measured = [(QUESTIONS if leaks else OTHERS)[number % 8] for number in range(measured)]
        self.add_role(Role("Player", max_tokens=limit))
        self.add_episode("ask", Ask(kind))

    def get_batch(self):
        return [EpisodeRequest("ask", one, {"group": one}) for one in self.asked for _ in range(self.group)]

    async def evaluate(self):
        requests = [EpisodeRequest("ask", one, {"seed": n}) for n, one in enumerate(self.measured)]
        results = await self.generate_rollouts(requests)
        return {"right answers": [float(one.rollout.steps[-1].completion_text == "bet") for one in results]}


class Duel(AlternatingRolesEpisode):
    """Two speak; the first wins, or whoever says "bet" while the other does not."""

    episode_type = "duel"
    roles = ("First", "Second")
    rubric = Rubric([])

    def __init__(self, always_first):
        def winner(rollout, arena):
            first, second = (step.completion_text == "bet" for step in rollout.steps)
            gain = 1.0 if always_first else float(first) - float(second)
            return {"First": gain, "Second": -gain}

        super().__init__(max_turns=2)
        self.rubric = Rubric([winner])

    def get_initial_prompt(self, arena, artifact, state):
        return _tell(state, artifact, self.roles)

    async def env_response(self, state, arena, artifact):
        return ""


class Dueling(Arena):
    """Two roles of one policy; the first wins always, or by what is said."""

    def __init__(self, client, *, seed=0, always_first=False):
        super().__init__(client, seed=seed)
        for name in ("First", "Second"):
            self.add_role(Role(name, max_tokens=8))
        self.add_episode("duel", Duel(always_first))

    def get_batch(self):
        return [EpisodeRequest("duel", QUESTIONS[0]) for _ in range(16)]
