"""RunFiles: where a stage trainer keeps what."""

import re
from pathlib import Path

ROLLOUT_FILE = re.compile(r"(step|train|test)-\d{6,}\.jsonl")
"""The files of an iteration's rollouts, and of what was asked about them."""
GROWING_FILE = re.compile(r"(growing-)?(train|test)-\d{6,}\.jsonl")
JOB_FILE = re.compile(r".+_iter_\d+_.+\.jsonl?")
"""A job's record and its examples; see ``PureTextRlTrainer._get_fine_tune_job_name``."""


class RunFiles:
    """The directory of one experiment.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.metadata = root / "metadata.json"
        self.state = root / "state.json"
        self.params = root / "hyper_params.json"
        self.metrics = root / "metrics.jsonl"
        self.evaluation = root / "evaluation"
        self.sampling = root / "sampling.json"
        self.jobs = root / "jobs"
        self.states = root / "states"
        self.job_states = root / "job_states.json"
        self.rollouts = root / "rollouts"
        self.answers = root / "answers"
        self.raw_transcripts = root / "raw_transcripts"
        self.processed_transcripts = root / "processed_transcripts"
        self.prompts = root / "prompts"
        self.analysis = root / "analysis"

    def state_of(self, iteration: int) -> Path:
        """Return the file of the state with the models that an iteration plays with."""
        return self.states / f"{iteration:06d}.json"

    def growing(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration while it is sampled."""
        return self.rollouts / f"growing-{split}-{iteration:06d}.jsonl"

    def answers_of(self, split: str, iteration: int) -> Path:
        """Return the file of the models' answers in an iteration while it is sampled."""
        return self.answers / f"{split}-{iteration:06d}.jsonl"

    def sampled(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration that is sampled."""
        name = "step" if split == "train" else split
        return self.rollouts / f"{name}-{iteration:06d}.jsonl"

    def transcripts(self, split: str, iteration: int, kind: str) -> tuple[Path, Path, Path]:
        """Return the files of the raw transcripts, the processed ones and the prompts; ``kind`` ends them."""
        base = str(iteration) if split == "train" else f"{split}_{iteration}"
        return (
            self.raw_transcripts / f"raw_{base}.{kind}",
            self.processed_transcripts / f"processed_{base}.{kind}",
            self.prompts / f"prompts_{base}.{kind}",
        )

    def remove_unfinished(self) -> None:
        """Delete what a new run in this directory would continue: sampling, and the records of jobs."""
        self.remove_growing()
        for path in list(self.jobs.glob("*.json*")):
            if JOB_FILE.fullmatch(path.name):
                path.unlink()

    def remove_growing(self) -> None:
        """Delete the files that grew while iterations were sampled."""
        for path in [*self.rollouts.glob("growing-*.jsonl"), *self.answers.glob("*.jsonl")]:
            if GROWING_FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)
