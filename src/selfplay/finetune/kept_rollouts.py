"""KeptRollouts: an experiment's rollouts on disk, with transcripts that people read, and their analysis."""

from collections.abc import Iterable, Sequence
from typing import Any

from selfplay.core import Rollout
from selfplay.finetune.analysers.analyser import PureTextRolloutAnalyser
from selfplay.finetune.analysers.asking import drawing_client
from selfplay.finetune.analysers.runner import Analysis
from selfplay.finetune.environment import PureTextEnvironment
from selfplay.finetune.experiment import Experiment
from selfplay.finetune.saving import load_rollouts, save_rollouts, save_transcript
from selfplay.finetune.transcripts import (
    Prompts,
    Transcript,
    processed_transcripts,
    prompts_of,
    raw_transcripts,
)


class KeptRollouts(Experiment):
    """An experiment that writes, reads and analyses rollouts; see :class:`Experiment` for the arguments."""

    def _save_rollouts(
        self, rollouts: list[Rollout], environment: PureTextEnvironment, iteration: int | None = None
    ) -> None:
        """Write the rollouts of an iteration, and its transcripts. A test run writes nothing."""
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
        """Return the raw transcripts, the processed transcripts and the prompts of all proofs.

        A transcript has what the environment says of the claim, ``reward`` by agent, and ``transcript``, an
        entry for each round that was played: the text of each agent (raw), or ``agent@channel`` with each
        message and ``agent.decision`` with each decision (processed). A tree has one for each of its ends.
        """
        datapoint = environment.get_datapoint_from_env_state_as_dict
        return (
            raw_transcripts(rollouts, datapoint),
            processed_transcripts(rollouts, datapoint),
            prompts_of(rollouts),
        )

    def _load_rollouts(self, iterations: int | Iterable[int]) -> list[Rollout]:
        """Return the training rollouts of one or more iterations.

        Raises:
            InputError: an iteration has none.
        """
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
        """Ask a model Yes or No questions about the messages of all iterations that are sampled.

        The answers are kept in ``analysis/NAME/``, one by one, so a killed analysis continues.

        Args:
            analysers: names of built-in analysers, or classes.
            model_name: the model that answers, at the API that also answers for the agents.
            overwrite: replace earlier answers; otherwise what is answered is skipped.
            use_tqdm: show a bar.
            dry_run: draw answers instead of asking, and keep none.

        Raises:
            InputError: there is no analyser of a name, or no iteration has rollouts.
            SelfplayError: the model cannot be asked; the answers so far are kept.
        """
        if self.files is None or self.settings.test_run:
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
