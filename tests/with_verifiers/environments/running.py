"""Tasks that come with a program of their own for the agent."""

import verifiers.v1 as vf

__all__ = ["Runner", "RunningTaskset"]


class Runner(vf.Harness[vf.HarnessConfig]):
    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        return await runtime.run(["true"], {})


class RunningTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        for number in range(2):
            yield vf.Task(vf.TaskData(prompt=f"Task {number}"))
