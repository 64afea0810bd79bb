"""Experiments over fine-tuning jobs with agents that follow a script."""

import asyncio
import json
import re
from dataclasses import replace

from proof_scripts import Script, make
from sparring.config.finetune import RlParameters
from sparring.finetune.hyper_params import ExperimentSettings, HyperParameters
from sparring.finetune.model_groups import JobRecords, PureTextSharedModelGroup
from sparring.finetune.providers import DryRunJobs
from sparring.finetune.scenario import PureTextEnvironment, ScenarioInstance, agents_of
from sparring.finetune.statistics import View
from sparring.programs.proofs.claims import Claim

CLAIMS = [
    Claim(f"What is {n} + 1?", f"{n} + 1 = {n + 1 + n % 2}", int(n % 2 == 0), f"sum-{n}") for n in range(12)
]


def plain(text):
    """A job's name, or a text with such names, without what each record draws."""
    return re.sub(r"(_iter_[\w.-]+)_[0-9a-f]{8}\b", r"\1", text)


class Jobs(DryRunJobs):
    """Jobs that end as the test says; keeps what was asked for, under names without what is drawn.

    ``ends`` are the statuses of the jobs to come, by the order of their creation; then all succeed.
    """

    def __init__(self, *ends):
        super().__init__()
        self.ends = list(ends)
        self.requests = []
        self.files = {}
        self.jobs = {}

    async def upload(self, name, examples):
        self.files.setdefault(plain(name), examples)
        return await super().upload(plain(name), examples)

    async def create(self, request, file):
        request = replace(request, name=plain(request.name))
        if request.name not in [one.name for one in self.requests]:
            self.requests.append(request)
            job = await super().create(request, file)
            end = self.ends.pop(0) if self.ends else "succeeded"
            model = f"ft:{request.name}" if end == "succeeded" else None
            self.jobs[request.name] = replace(job, status=end, model=model)
        return self.jobs[request.name]

    async def status(self, job_id):
        made = [job for job in self.jobs.values() if job.id == job_id]
        return made[0] if made else await super().status(job_id)


def make_trainer(
    kind, client, directory, provider=None, *, rows=8, frozen=(), view=None, examples=False, **changes
):
    """A trainer in ``directory``. ``changes`` are HyperParameters; ``settings`` are ExperimentSettings."""
    settings = ExperimentSettings(
        run_dir=directory, **{"poll_seconds": 0.0, "num_rollout_workers": 4, **changes.pop("settings", {})}
    )
    params = HyperParameters(**changes)
    arena, episode = make(client, examples=examples)
    provider = provider or Jobs()
    groups = {
        agent.name: PureTextSharedModelGroup(
            agent.name,
            (agent.name,),
            f"base-{agent.name}",
            provider,
            JobRecords(directory / "jobs"),
            freeze_agent=agent.name in frozen,
        )
        for agent in episode.protocol.agents
    }
    environments = [
        PureTextEnvironment(
            arena,
            episode.protocol,
            CLAIMS,
            rows,
            lambda: agents_of(groups, {}),
            seed=params.seed,
            train=train,
        )
        for train in (True, False)
    ]
    scenario = ScenarioInstance(episode.protocol, episode, *environments, groups)
    return kind(params, scenario, settings, view)


THREE = RlParameters(num_iterations=3)


class Killed(BaseException):
    """Stands for the end of the process."""


class Stages(View):
    """Notes stages; may end the process when one begins."""

    def __init__(self, killed_at=None):
        super().__init__()
        self.stages = []
        self.killed_at = killed_at

    def stage(self, stage, iteration):
        self.stages.append((iteration, stage))
        if len(self.stages) - 1 == self.killed_at:
            raise Killed


def guesses(**more):
    """A verifier that asks once and then guesses by the seed."""

    def decide(messages, seed):
        asked = any(message["role"] == "assistant" for message in messages)
        return ("Decision: accept" if seed % 2 else "Decision: reject") if asked else f"Why {seed % 97}?"

    return Script(verifier=decide, prover=lambda messages, seed: f"Because of {seed % 89}.", **more)


class Mortal(Script):
    """Plays as :func:`guesses` does, counts its answers, and ends all work once there are enough.

    It is cancelled, as by a Ctrl-C: what a client raises itself would only fail an episode.
    """

    def __init__(self, last=None):
        super().__init__(**guesses().lines)
        self.last = float("inf") if last is None else last
        self.answered = 0

    async def complete(self, messages, *args, **kwargs):
        response = await super().complete(messages, *args, **kwargs)
        if self.answered >= self.last:
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(0)
        self.answered += 1
        return response


def run(kind, directory, provider, view=None, client=None, **changes):
    trainer = make_trainer(
        kind, client or guesses(), directory, provider, view=view, **{"rl": THREE} | changes
    )
    trainer.train()
    return trainer


def files_of(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def without_clocks(files):
    """The files with the times of rollouts and the drawn names of jobs left out."""

    def clean(line):
        entry = json.loads(line)
        for name in ("started_at", "ended_at"):
            entry["rollout"].pop(name)
        return entry

    return {
        name: [clean(line) for line in content.splitlines()]
        if name.startswith("rollouts")
        else plain(content.decode())
        for name, content in files.items()
    }
