"""Experiment: the components of a run over fine-tuning jobs, its state, and what is kept of it."""

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparring.core import InputError, Rollout
from sparring.finetune.analysers import PureTextRolloutAnalyser
from sparring.finetune.analysis import Analysis, drawing_client
from sparring.finetune.hyper_params import ExperimentSettings, HyperParameters, check_parameters
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.finetune.run_files import (
    CheckPointNotFoundError,
    RunFiles,
    State,
    load_rollouts,
    read_state,
    save_rollouts,
    save_transcript,
    write_json,
)
from sparring.finetune.scenario import PureTextEnvironment, ScenarioInstance
from sparring.finetune.statistics import RunRecords, View
from sparring.finetune.trees import (
    Prompts,
    Transcript,
    processed_transcripts,
    prompts_of,
    raw_transcripts,
)
from sparring.programs.proofs.protocol import Protocol


class Experiment:
    """What a stage trainer works with, apart from its stages. ``hyper_params`` decide results, ``settings``
    must not. Raises InputError: the directory holds a run with other parameters."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        scenario_instance: ScenarioInstance,
        settings: ExperimentSettings,
        view: View | None = None,
    ) -> None:
        self.hyper_params = hyper_params
        self.scenario_instance = scenario_instance
        self.settings = settings
        self.view = view or View()
        kept_in = None if settings.test_run else settings.run_dir
        self.files = None if kept_in is None else RunFiles(kept_in)
        self.records = None if self.files is None else RunRecords(self.files)
        self._state = State()
        if settings.do_not_load_checkpoint or settings.test_run:
            self._initialise_state()
            if self.files is not None:
                self.files.remove_unfinished()
            return
        try:
            self.load_and_set_state_from_checkpoint()
        except CheckPointNotFoundError:
            self._initialise_state()

    def _initialise_state(self) -> None:
        self.state = State()

    def save_checkpoint(self, log: bool = True) -> None:
        """Write the state, unless this is a test run. The state in which an iteration is tested is kept too,
        for runs that play its tests again; W&B gets it and the last one."""
        if self.files is None:
            return
        check_parameters(self.files, self.hyper_params, self.agent_names, accept=True)
        stage = self.state.train_loop_stage
        if stage == "test_during_training":
            write_json(self.files.state_of(self.state.iteration), self.state)
        write_json(self.files.state, self.state)
        if stage in ("test_during_training", "done"):
            for path in (self.files.state, self.files.params):
                self._add_file_to_wandb_artifact(f"state_{self.run_id}", "state", path)
        if log:
            self.view.say(f"saved {self.files.state}")

    def _add_file_to_wandb_artifact(self, artifact_name: str, artifact_type: str, file_path: Path) -> None:
        """Log a new version of an artifact of the run's W&B run, if it has one: its files so far, and this.
        That works without a network and after a restart."""
        if self.settings.wandb_run is not None:
            wandb = importlib.import_module("wandb")  # only where a run asks for it
            name = re.sub(r"[^\w.-]", "-", artifact_name, flags=re.ASCII)
            artifact = wandb.Artifact(name, artifact_type, incremental=True)
            artifact.add_file(str(file_path))
            self.settings.wandb_run.log_artifact(artifact)

    def _log(self, stats: Mapping[str, float]) -> None:
        if self.records is not None:
            self.records.log(self.state.iteration, stats)
        self.view.log(self.state.iteration, stats)
        if self.settings.wandb_run is not None:
            self.settings.wandb_run.log(dict(stats), step=self.state.iteration)

    def load_and_set_state_from_checkpoint(
        self, from_base_run: bool = False, version: str = "latest"
    ) -> None:
        """Continue from a saved state, of this run or of the base run; there, ``version`` may name an
        iteration, also as ``v3``: the models that it played with.

        Raises CheckPointNotFoundError: there is none; InputError: the parameters are others, and
        ``accept_changes`` is not set.
        """
        if version != "latest" and not from_base_run:
            raise ValueError("version must be 'latest' unless from_base_run is true")
        if from_base_run:
            self.state = self._load_state_dict_from_base_run_checkpoint(version)
        else:
            self.state = self._load_state_dict_from_active_run_checkpoint()

    def _load_state_dict_from_active_run_checkpoint(self) -> State:
        if self.files is None:
            raise CheckPointNotFoundError("a run without a directory has no state")
        state = read_state(self.files.state)
        accept = self.settings.accept_changes
        for line in check_parameters(self.files, self.hyper_params, self.agent_names, accept=accept):
            self.view.say(line)
        return state

    def _load_state_dict_from_base_run_checkpoint(self, version: str = "latest") -> State:
        base = self.hyper_params.base_run.run_id
        if base is None:
            raise InputError("base_run.run_id", "is missing", "Name the run")
        files = RunFiles(self.get_checkpoint_base_dir_from_run_id(base))
        if version == "latest":
            return read_state(files.state)
        number = version.removeprefix("v")
        if not number.isdecimal():
            raise CheckPointNotFoundError(f"{version} is no version of a state; versions are iterations")
        return read_state(files.state_of(int(number)))

    @classmethod
    def get_checkpoint_base_dir_from_run_id(cls, run_id: str) -> Path:
        """Return the directory of a run: a path, or a name in ``runs``."""
        return Path(run_id) if Path(run_id).is_dir() else Path("runs") / run_id

    def _save_rollouts(
        self, rollouts: list[Rollout], environment: PureTextEnvironment, iteration: int | None = None
    ) -> None:
        extracted: tuple[list[Any], ...] = self._extract_transcripts_and_prompts(rollouts, environment)
        if self.files is None:
            return
        given, split = self.hyper_params.text_rl, environment.split
        number = self.state.iteration if iteration is None else iteration
        path = self.files.sampled(split, number)
        save_rollouts(path, rollouts)
        self._add_file_to_wandb_artifact(f"full_rollouts_{self.run_id}", "full_rollouts", path)
        if not given.save_transcripts:
            return
        paths = self.files.transcripts(split, number, given.transcript_format)
        kinds = ("raw_transcript", "processed_transcript", "prompts")
        for kind, path, content in zip(kinds, paths, extracted, strict=True):
            save_transcript(path, content)
            self._add_file_to_wandb_artifact(f"{kind}_{self.run_id}", kind, path)

    def _extract_transcripts_and_prompts(
        self, rollouts: list[Rollout], environment: PureTextEnvironment
    ) -> tuple[list[Transcript], list[Transcript], list[Prompts]]:
        """Return the raw transcripts, the processed transcripts and the prompts of all proofs. In a processed
        transcript a message is ``agent@channel``, a decision ``agent.decision``. A tree has one for each of
        its ends.
        """
        datapoint = environment.get_datapoint_from_env_state_as_dict
        return (
            raw_transcripts(rollouts, datapoint),
            processed_transcripts(rollouts, datapoint),
            prompts_of(rollouts),
        )

    def _load_rollouts(self, iterations: int | Iterable[int]) -> list[Rollout]:
        if self.files is None:
            raise RuntimeError("a test run keeps no rollouts")
        wanted = [iterations] if isinstance(iterations, int) else list(iterations)
        files = self.files
        return [rollout for one in wanted for rollout in load_rollouts(files.sampled("train", one), one)]

    def run_analysers(
        self,
        analysers: Sequence[str | type[PureTextRolloutAnalyser]],
        model_name: str,
        *,
        overwrite: bool = False,
        use_tqdm: bool = True,
        dry_run: bool = False,
    ) -> None:
        """Ask a model, at the API of the agents, Yes or No questions about the messages of all sampled
        iterations. The answers are kept in ``analysis/NAME/``, so a killed analysis continues.

        ``overwrite`` replaces earlier answers; a dry run draws answers and keeps none. Raises InputError:
        there is no such analyser, or no rollouts.
        """
        if self.files is None:
            raise RuntimeError("a test run keeps no rollouts")
        Analysis(
            files=self.files,
            protocol=self.protocol_handler,
            iterations=self.hyper_params.rl.num_iterations,
            client=drawing_client() if dry_run else self.train_environment.arena.client,
            model=model_name,
            workers=self.settings.num_rollout_workers,
            view=self.view,
            overwrite=overwrite,
            use_tqdm=use_tqdm,
            dry_run=dry_run,
        ).run(analysers)

    @property
    def state(self) -> State:
        """The state, with that of the groups as it is now."""
        groups = self.scenario_instance.shared_model_groups
        self._state.shared_model_groups = {name: group.state for name, group in groups.items()}
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        for name, of_group in state.shared_model_groups.items():
            if name not in self.scenario_instance.shared_model_groups:
                raise InputError("state", f"there is no group {name}", "Keep the groups of the agents")
            self.scenario_instance.shared_model_groups[name].state = of_group

    @property
    def run_id(self) -> str:
        """The name of the run."""
        if self.settings.run_id is not None:
            return self.settings.run_id
        return self.settings.run_dir.name if self.settings.run_dir is not None else "NO_RUN_ID"

    @property
    def agent_names(self) -> list[str]:
        """The names of the agents."""
        return [agent.name for agent in self.protocol_handler.agents]

    @property
    def shared_model_groups(self) -> dict[str, PureTextSharedModelGroup]:
        """The agents grouped by their models."""
        return dict(self.scenario_instance.shared_model_groups)

    @property
    def protocol_handler(self) -> Protocol:
        """Who speaks when, and what they earn."""
        return self.scenario_instance.protocol_handler

    @property
    def train_environment(self) -> PureTextEnvironment:
        """What is learned from."""
        return self.scenario_instance.train_environment

    @property
    def test_environment(self) -> PureTextEnvironment:
        """What is only measured."""
        return self.scenario_instance.test_environment
