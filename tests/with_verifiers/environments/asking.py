"""A proposer and several solvers at once: the proposer earns by what its word does to them."""

import asyncio

import verifiers.v1 as vf

__all__ = ["AskingEnv", "AskingTaskset"]


class AskingConfig(vf.EnvConfig):
    proposer: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()
    solvers: int = 3


class SolvingData(vf.TaskData):
    word: str


class SolvingTask(vf.Task[SolvingData]):
    @vf.reward
    async def alike(self, trace: vf.Trace) -> float:
        return float(trace.last_reply[:1] == self.data.word[:1])


class AskingEnv(vf.Env[AskingConfig]):
    async def run(self, task, agents):
        word = (await agents.proposer.run(task)).last_reply
        if word == "break":
            raise ValueError("no word")
        solving = SolvingTask(SolvingData(prompt=f"Say {word}", word=word))
        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.solvers):
                group.create_task(agents.solver.run(solving))

    async def finalize(self, task, episode):
        solved = [trace.reward for trace in episode.traces if trace.agent.name == "solver"]
        (proposer,) = (trace for trace in episode.traces if trace.agent.name == "proposer")
        proposer.record_reward("missed", 1 - sum(solved) / len(solved))


class AskingTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        for number in range(8):
            yield vf.Task(vf.TaskData(prompt=f"Say a word, number {number}."))
