"""PureTextRlTrainer: trains models behind an API, stage by stage, through fine-tuning jobs.

An iteration samples rollouts, logs their statistics, tests, makes a job for each group of agents that share a
model, and waits for the jobs. The state is saved after each stage, so a killed run continues where it was:
sampling keeps each answer, and a job is made once.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from itertools import chain

from sparring.core import Rollout, SparringError
from sparring.core.concurrency import all_results
from sparring.finetune.experiment import Experiment
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.finetune.providers import ENDED, Job
from sparring.finetune.run_files import GrowingFile, JobState, RolloutLine, Stage
from sparring.finetune.scenario import PureTextEnvironment, Row, answers_kept, sample
from sparring.finetune.statistics import log_stats
from sparring.finetune.trees import ends_of

MAX_RUN_ID = 32
"""So many characters of a run's name are in the names of its jobs."""


class PureTextRlTrainer(Experiment, ABC):
    """Base class of stage trainers. A subclass makes jobs: :meth:`_stage_create_fine_tune_jobs`."""

    _rollouts: list[Rollout] | None = None
    """This iteration's, once they are sampled or read."""

    def train(self) -> None:
        """Train to the end, or continue."""
        asyncio.run(self._train())

    async def _train(self) -> None:
        async with AsyncExitStack() as running:
            for provider in {group.provider for group in self.shared_model_groups.values()}:
                await running.enter_async_context(provider.running())
            await self._run_stages()

    async def _run_stages(self) -> None:
        total = self.hyper_params.rl.num_iterations
        if self.hyper_params.base_run.base_run_type == "rerun_tests":
            await self._rerun_tests()
        elif self.state.train_loop_stage == "done" and self.state.iteration < total:
            if not self.settings.force_more_iterations:
                self.view.say(f"the run is done after {self.state.iteration} iterations of now {total}")
                return
            self._go_to("create_fine_tune_jobs", iteration=self.state.iteration - 1)
        while self.state.train_loop_stage != "done":
            await self._run_stage()

    async def _rerun_tests(self) -> None:
        """Play the tests of the base run again, with the models that each of its iterations played with."""
        first = self.state.iteration
        for iteration in range(first, self.hyper_params.rl.num_iterations):
            self.load_and_set_state_from_checkpoint(from_base_run=True, version=str(iteration))
            if iteration == first:  # what a killed run has sampled for this test stays
                self.save_checkpoint(log=False)
            else:
                self._go_to("test_during_training")
            self.view.stage("test_during_training", iteration)
            await self._test_during_training()
        self._go_to("done", iteration=self.hyper_params.rl.num_iterations)

    async def _run_stage(self) -> None:
        stage, iteration = self.state.train_loop_stage, self.state.iteration
        self.view.stage(stage, iteration)
        match stage:
            case "sample_rollouts":
                self.view.say(self._get_iteration_begin_message())
                self._rollouts = await self._stage_sample_rollouts()
                self._go_to("log_stats")
            case "log_stats":
                self._stage_log_stats(self._current_rollouts())
                self._go_to("test_during_training")
            case "test_during_training":
                await self._test_during_training()
                if iteration + 1 >= self.hyper_params.rl.num_iterations:
                    self._go_to("done", iteration=iteration + 1)
                else:
                    self._go_to("create_fine_tune_jobs")
            case "create_fine_tune_jobs" | "recreate_fine_tune_jobs":
                again = stage == "recreate_fine_tune_jobs"
                await self._stage_create_fine_tune_jobs(self._rollouts_to_learn_from(), only_failed=again)
                self._go_to("await_fine_tune_jobs")
            case "await_fine_tune_jobs":
                await self._await_or_recreate()
            case _:
                self._go_to("done")

    async def _test_during_training(self) -> None:
        if self._check_if_run_test_loop():
            await self._stage_run_test_loop()

    async def _await_or_recreate(self) -> None:
        try:
            await self._stage_await_fine_tune_jobs()
        except ExceptionGroup as failed:
            tries = max(group.state.tries for group in self.shared_model_groups.values())
            if tries >= self.settings.recreate_failed_jobs:
                raise
            for error in failed.exceptions:
                self.view.say(f"{error}; it is made again")
            for group in self.shared_model_groups.values():
                if await group.fine_tune_job_failed():
                    group.state.tries += 1
            self._go_to("recreate_fine_tune_jobs")
            return
        for group in self.shared_model_groups.values():
            group.state.tries = 0
        self._rollouts = None
        self._go_to("sample_rollouts", iteration=self.state.iteration + 1)

    def _go_to(self, stage: Stage, iteration: int | None = None) -> None:
        self._state.train_loop_stage = stage
        if iteration is not None:
            self._state.iteration = iteration
        self.save_checkpoint(log=False)
        if self.files is not None:
            self.files.remove_growing()

    # Stages

    async def _stage_sample_rollouts(self) -> list[Rollout]:
        rollouts = await self._sample_rollouts(self.train_environment, self.state.iteration, use_tqdm=True)
        self._save_rollouts(rollouts, self.train_environment)
        return rollouts

    def _stage_log_stats(self, rollouts: list[Rollout]) -> None:
        self._log_sampled("train", rollouts)

    def _check_if_run_test_loop(self) -> bool:
        iteration, last = self.state.iteration, self.hyper_params.rl.num_iterations - 1
        match self.hyper_params.text_rl.test_scheme:
            case "none":
                return False
            case "all":
                return True
            case "last":
                return iteration == last
            case "first_and_last":
                return iteration in (0, last)
            case scheme:
                raise ValueError(f"test_scheme: there is no scheme {scheme}")

    async def _stage_run_test_loop(self) -> None:
        rollouts = await self._sample_rollouts(self.test_environment, "test", True, "Testing")
        self._save_rollouts(rollouts, self.test_environment)
        self._log_sampled("test", rollouts)

    def _log_sampled(self, split: str, rollouts: list[Rollout]) -> None:
        if self.records is not None:
            self.records.sampled(split, self.state.iteration, rollouts)
        self._log(self._get_log_stats(rollouts, train=split == "train"))

    @abstractmethod
    async def _stage_create_fine_tune_jobs(self, rollouts: list[Rollout], only_failed: bool = False) -> None:
        """Make a job for each group that learns; with ``only_failed``, for those whose last job failed."""

    async def _groups_to_train(self, only_failed: bool = False) -> list[PureTextSharedModelGroup]:
        """Return the groups that learn; with ``only_failed``, those of them whose last job failed."""
        groups = [group for group in self.shared_model_groups.values() if not group.freeze_agent]
        return [group for group in groups if not only_failed or await group.fine_tune_job_failed()]

    async def _stage_await_fine_tune_jobs(self) -> None:
        """Wait for the jobs of all groups and use their models. Raises an ExceptionGroup of
        FineTuneJobErrors."""
        groups = await self._groups_to_train()
        jobs = await all_results(self._ended_job(group) for group in groups)
        problems = [
            group.failure(job) for group, job in zip(groups, jobs, strict=True) if job.status != "succeeded"
        ]
        if problems:
            raise ExceptionGroup("fine-tuning jobs did not succeed", problems)
        for group, job in zip(groups, jobs, strict=True):
            group.switch_to_next_model(job)

    async def _ended_job(self, group: PureTextSharedModelGroup) -> Job:
        """Return the job of a group once it has ended. Raises SparringError: not within ``job_timeout``."""
        try:
            async with asyncio.timeout(self.settings.job_timeout):
                while True:
                    job = await group.get_fine_tune_job_status()
                    await self._show_job(group, job)
                    if job.status in ENDED:
                        return job
                    await asyncio.sleep(self.settings.poll_seconds)
        except TimeoutError:
            raise SparringError(
                f"the job {group.state.fine_tune_job_id} of {group.group_name} has not ended in "
                f"{self.settings.job_timeout:g} s; resume the run to go on waiting"
            ) from None

    async def _show_job(self, group: PureTextSharedModelGroup, job: Job) -> None:
        if self.records is not None:
            of = (self.state.iteration, group.group_name)
            self.records.job(JobState(*of, job.id, job.status, job.model, job.error))
        progress = await group.provider.progress(job.id) if job.status == "running" else ""
        self.view.job(group.group_name, job, progress)

    # Rollouts

    async def _sample_rollouts(
        self,
        environment: PureTextEnvironment,
        iteration: int | str,
        use_tqdm: bool = False,
        tqdm_desc: str = "Sampling rollouts",
    ) -> list[Rollout]:
        """Sample the rollouts of an iteration, or of the test set (``"test"``) in the present iteration."""
        number = self.state.iteration if iteration == "test" else int(iteration)
        kept: GrowingFile[RolloutLine] | None = None
        keeping: AbstractContextManager[None] = nullcontext()
        if self.files is not None and self.records is not None:
            self.records.sampling(environment.num_envs)
            kept = GrowingFile(self.files.growing(environment.split, number), RolloutLine)
            keeping = answers_kept(environment.arena, self.files.answers_of(environment.split, number))

        async def play(row: Row) -> Rollout:
            return await self._sample_rollouts_for_single_environment(environment, row)

        with keeping, self.view.progress(tqdm_desc if use_tqdm else "", environment.num_envs) as advance:
            return await sample(environment, number, play, kept, self.settings.num_rollout_workers, advance)

    async def _sample_rollouts_for_single_environment(
        self, environment: PureTextEnvironment, data_batch: Row | None = None
    ) -> Rollout:
        """Sample what is sampled for one claim, which is drawn if none is given. Override to sample in
        another way."""
        return await environment.play(self.state.iteration, data_batch or environment.draw())

    def _previous_compatible_iterations(self) -> Iterable[int]:
        """Return the earlier iterations whose rollouts can be learned from together with this one's."""
        return range(self.state.iteration)

    def _current_rollouts(self) -> list[Rollout]:
        if self._rollouts is None:
            self._rollouts = self._load_rollouts(self.state.iteration)
        return self._rollouts

    def _rollouts_to_learn_from(self) -> list[Rollout]:
        if not self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            return self._current_rollouts()
        return self._load_rollouts(chain(self._previous_compatible_iterations(), (self.state.iteration,)))

    # Figures and names

    def _get_log_stats(self, rollouts: list[Rollout], *, train: bool = True) -> dict[str, float]:
        played = [end for one in rollouts if one.error is None for end in ends_of(one)]
        return log_stats(self.protocol_handler, played, "" if train else "test_")

    def _get_verifier_guess_replacement_proportion(self, iteration: int) -> float:
        """Return the share of rollouts in which the verifier's verdict is replaced by the true one.

        With p and r the configured share and rate: p, max(p - i r, 0), or p (1 - r)^i at iteration i.
        """
        given = self.hyper_params.text_rl
        share = given.verifier_guess_replacement_proportion
        rate = given.verifier_guess_replacement_annealing_rate
        match given.verifier_guess_replacement_annealing:
            case "none":
                return share
            case "linear":
                return max(share - iteration * rate, 0.0)
            case "exponential":
                return float(share * (1 - rate) ** iteration)
            case annealing:
                raise ValueError(f"verifier_guess_replacement_annealing: there is no {annealing}")

    def _get_fine_tune_job_name(self, shared_model_group: PureTextSharedModelGroup) -> str:
        """Return the name of a group's job in this iteration; a job that is made again has another one. It
        also names files, so a run's long name is cut."""
        tries = shared_model_group.state.tries
        name = f"{self.run_id[:MAX_RUN_ID]}_iter_{self.state.iteration}_{shared_model_group.group_name}"
        return f"{name}_try_{tries + 1}" if tries else name

    def _get_iteration_begin_message(self) -> str:
        return f"iteration {self.state.iteration + 1} of {self.hyper_params.rl.num_iterations} begins"
