"""A game of two agents in turns: who says the greater number of digits in two rounds wins."""

import verifiers.v1 as vf

__all__ = ["BiddingEnv", "BiddingTaskset"]
NULL = {"id": "null"}


class BiddingConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness=NULL)
    second: vf.AgentConfig = vf.AgentConfig(harness=NULL, max_turns=2)
    trains_second: bool = True
    rounds: int = 2


class BiddingEnv(vf.Env[BiddingConfig]):
    async def setup(self, agents):
        agents.second.trainable = self.config.trains_second

    async def run(self, task, agents):
        seat = vf.Task(vf.TaskData(prompt=None, system_prompt=task.data.system_prompt))
        totals = [0, 0]
        async with agents.first.interaction(seat) as first, agents.second.interaction(seat) as second:
            heard = "Begin."
            for _ in range(self.config.rounds):
                for place, one in enumerate((first, second)):
                    answer = await one.turn(heard)
                    heard = answer.last_reply or "nothing"
                    totals[place] += sum(map(str.isdigit, heard))
        for one, won in ((first, totals[0] - totals[1]), (second, totals[1] - totals[0])):
            one.trace.record_reward("margin", float(won))
            one.trace.info["totals"] = totals

    async def finalize(self, task, episode):
        for trace in episode.traces:
            trace.record_metric("agents", float(len(episode.traces)))


class BiddingTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            yield vf.Task(vf.TaskData(name=str(number), system_prompt=f"Bid in deal {number}."))
            number += 1
