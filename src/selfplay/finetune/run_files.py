"""RunFiles: where a stage trainer keeps what."""

from pathlib import Path


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
        self.job_states = root / "job_states.json"
        self.rollouts = root / "rollouts"
        self.raw_transcripts = root / "raw_transcripts"
        self.processed_transcripts = root / "processed_transcripts"
        self.prompts = root / "prompts"
        self.analysis = root / "analysis"

    def growing(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration while it is sampled."""
        return self.rollouts / f"growing-{split}-{iteration:06d}.jsonl"

    def sampled(self, split: str, iteration: int) -> Path:
        """Return the file of the rollouts of an iteration that is sampled."""
        name = "step" if split == "train" else split
        return self.rollouts / f"{name}-{iteration:06d}.jsonl"
