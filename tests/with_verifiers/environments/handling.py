"""Tasks that need more than talk: each is refused by what it needs."""

import verifiers.v1 as vf

__all__ = ["HandlingTaskset"]


class Boxed(vf.Task):
    NEEDS_CONTAINER = True


class Prepared(vf.Task):
    async def setup(self, trace, runtime):
        await runtime.run(["true"], {})


class Inspected(vf.Task):
    @vf.reward
    async def files(self, trace, runtime) -> float:
        return 1.0


class Rewritten(vf.Task):
    @vf.intercept
    async def change(self, request: vf.Request) -> vf.Request | None:
        return None


KINDS = {one.__name__: one for one in (Boxed, Prepared, Inspected, Rewritten)}


class HandlingConfig(vf.TasksetConfig):
    kind: str


class HandlingTaskset(vf.Taskset[vf.Task, HandlingConfig]):
    def load(self):
        for number in range(2):
            yield KINDS[self.config.kind](vf.TaskData(prompt=f"Task {number}"))
