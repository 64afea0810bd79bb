"""A program of two policies for tests of whole runs: each earns by the letters it writes.

The batches and the evaluations of ``Sampled`` draw from one store, which grows in each step.
"""

from pathlib import Path

SOURCE = """
import shutil
from pathlib import Path

from sparring.core import Arena, Artifact, EpisodeRequest, Role, Rubric, SingleTurnEpisode
from sparring.programs.judge import JudgeError


def letters(role_id, sign):
    def share_of_odd_letters(rollout, arena):
        text = rollout.steps[-1].completion_text
        return {role_id: sign * sum(ord(letter) % 2 for letter in text) / max(len(text), 1)}

    return Rubric([share_of_odd_letters])


class Hide(SingleTurnEpisode):
    episode_type = "hide"
    rubric = letters("Hider", 1)

    def get_initial_actor(self, artifact, state):
        return "Hider"

    def get_initial_prompt(self, arena, artifact, state):
        return f"hide {artifact}"

    async def rollout(self, arena, artifact, state=None):
        state = await super().rollout(arena, artifact, state)
        state.child_results += await arena.generate_rollouts([EpisodeRequest("seek", artifact)] * 2)
        return state


class Seek(SingleTurnEpisode):
    episode_type = "seek"
    rubric = letters("Seeker", -1)

    def get_initial_actor(self, artifact, state):
        return "Seeker"

    def get_initial_prompt(self, arena, artifact, state):
        return f"seek {artifact}"


class HideAndSeek(Arena):
    def __init__(self, client, *, seed=0, batch_size=4, seeker="seeker"):
        super().__init__(client, seed=seed)
        self.batch_size = batch_size
        self.add_role(Role("Hider", max_tokens=4, policy="hider"))
        self.add_role(Role("Seeker", max_tokens=4, policy=seeker))
        self.add_episode("hide", Hide())
        self.add_episode("seek", Seek())

    def get_batch(self):
        return [EpisodeRequest("hide", index) for index in range(self.batch_size)]

    def outcomes(self, result):
        return [
            {"Hider": result.rewards["Hider"], "Seeker": child.rewards["Seeker"]} for child in result.children
        ]

    async def evaluate(self):
        results = await self.generate_rollouts([EpisodeRequest("hide", 9, {"seed": 5})] * 3)
        return {"odd letters": [result.rewards["Hider"] for result in results]}


class Call(Seek):
    episode_type = "call"
    rubric = letters("Caller", 1)

    def get_initial_actor(self, artifact, state):
        return "Caller"


class HideAndCall(Hide):
    async def rollout(self, arena, artifact, state=None):
        state = await super().rollout(arena, artifact, state)
        state.child_results += await arena.generate_rollouts([EpisodeRequest("call", artifact)])
        return state


class Three(HideAndSeek):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.add_role(Role("Caller", max_tokens=4, policy="caller"))
        self.episodes["hide"] = HideAndCall()
        self.add_episode("call", Call())

    def outcomes(self, result):
        rewards = [one.rewards for one in result.all_rollouts()]
        return [{role: reward for one in rewards for role, reward in one.items()}]


class Measured(HideAndSeek):
    async def evaluate(self):
        results = await self.generate_rollouts([EpisodeRequest("hide", 9, {"seed": n}) for n in range(3)])
        texts = [result.rollout.steps[0].completion_text for result in results]
        return {"sum of letters": [float(sum(map(ord, text))) for text in texts]}


class OftenQuiet(HideAndSeek):  # after its first update, nobody seeks
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.episodes["hide"] = HideOnce()

    def outcomes(self, result):
        return super().outcomes(result) if result.children else []


class HideOnce(Hide):
    async def rollout(self, arena, artifact, state=None):
        if arena.step_num == 1:
            return await super().rollout(arena, artifact, state)
        return await SingleTurnEpisode.rollout(self, arena, artifact, state)


class Late(HideAndSeek):
    async def evaluate(self):
        return await super().evaluate() if self.step_num > 1 else {"odd letters": []}


class Sampled(HideAndSeek):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        store = self.add_store("numbers")
        for number in range(100):
            store.add(Artifact(number, str(number)))

    def get_batch(self):
        return [EpisodeRequest("hide", one.data) for one in self.stores["numbers"].sample(4)]

    def adjust_rewards(self, results):
        self.stores["numbers"].add(Artifact(self.step_num, f"step {self.step_num}"))

    async def evaluate(self):
        stored = self.stores["numbers"].count()
        self.stores["numbers"].sample(3)
        return {"stored": [float(stored)]}


class Failing(HideAndSeek):
    def __init__(self, client, *, seed=0, method="evaluate"):
        super().__init__(client, seed=seed)

        def fail(*_):
            raise ValueError("as written")

        setattr(self, method, fail)


class NoJson(HideAndSeek):
    def state_dict(self):
        return super().state_dict() | {"seen": {1}}


class Grouped(HideAndSeek):
    def get_batch(self):
        return [EpisodeRequest("hide", index // 2, {"group": index // 2}) for index in range(4)]


class Spoiling(HideAndSeek):
    def __init__(self, client, *, seed=0, spoils=""):
        super().__init__(client, seed=seed)
        self.spoils = Path(spoils)

    async def startup(self):
        shutil.rmtree(self.spoils)
        self.spoils.touch()


class NoArena:
    pass


class Silent(HideAndSeek):
    def get_batch(self):
        return []


class Disputed(HideAndSeek):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)

        def judged(rollout, arena):
            if rollout.artifact == 1:
                raise JudgeError("no verdict")
            return {"Hider": 1.0}

        self.episodes["hide"].rubric = Rubric([judged])

    def outcomes(self, result):
        return []


class Bypassed(HideAndSeek):
    async def play_step(self, concurrency=None, verbose=False):
        return await super().play_step(concurrency, verbose)


class Warm(HideAndSeek):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.add_role(Role("Hider", temperature=0.0))
"""


def write_program(directory: Path) -> Path:
    """Write the program's file and return its path."""
    path = directory / "hide_and_seek.py"
    path.write_text(SOURCE)
    return path
