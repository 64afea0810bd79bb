"""Tasks of one agent that counts letters: what it says is scored by the task."""

import verifiers.v1 as vf

__all__ = ["CountingTaskset"]


class CountingData(vf.TaskData):
    letter: str


class CountingTask(vf.Task[CountingData]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=0.5)
    async def share(self, trace: vf.Trace) -> float:
        reply = trace.last_reply
        return reply.count(self.data.letter) / max(len(reply), 1)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class CountingTaskset(vf.Taskset[CountingTask, vf.TasksetConfig]):
    def load(self):
        for letter in "abcdefghij":
            data = CountingData(prompt=f"Write {letter}.", system_prompt="Be brief.", letter=letter)
            yield CountingTask(data, self.config.task)
