"""Diagnoses of a run through fine-tuning jobs: whether there is anything to imitate, and what came of it."""

from collections.abc import Iterator

from sparring.core.text import counted
from sparring.evaluation.figures import Figure, FigureName, figure_text
from sparring.finetune.run_files import TRAINING
from sparring.view.findings.evidence import RunEvidence
from sparring.view.findings.finding import Finding
from sparring.view.findings.warnings import MOST
from sparring.view.fine_tuning import TOO_FEW
from sparring.view.tables import TRUTHS, VERDICTS

PAGE = "howto-finetune.md#an-iteration"
ONE_VERDICT = 0.95
"""The share of one verdict from which a verifier does not look at the claim."""
LEAST_VERDICTS = 20
RETRIES = 1.0
"""Invalid answers for each that was kept, from which most calls are in vain."""
BROKEN = ("failed", "cancelled", "not found")


def nothing_to_imitate(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each group whose last iteration gave too few examples for a job."""
    jobs = [] if seen.run.tuning is None else seen.run.tuning.jobs
    for group in dict.fromkeys(job.group for job in jobs):
        own = [job for job in jobs if job.group == group]
        few = [job.iteration for job in own if job.status == TOO_FEW and job.iteration is not None]
        if own[-1].status == TOO_FEW and few:
            yield Finding(
                f"nothing to imitate/{group}",
                "critical",
                f"{group} had too few examples in {len(few)} of {counted(len(own), 'iteration')}: no job",
                "play more rollouts, lower the threshold from which one is imitated, or give easier claims",
                ("finetune.rl.rollouts_per_iteration", _threshold(seen), "program.claims"),
                PAGE,
                len(few) / len(own),
                (min(few), max(few)),
                len(few),
            )


def broken_jobs(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each group at whose job the run has stopped: it made no model."""
    tuning = seen.run.tuning
    for job in [] if tuning is None else [one for one in tuning.jobs if one.id in tuning.awaited]:
        if job.status in BROKEN:
            why = f": {job.error}" if job.error else ""
            yield Finding(
                f"job failed/{job.group}",
                "critical",
                f"the job of {job.group} is {job.status}{why}",
                "mend this, and go on with sparring finetune --resume",
                ("finetune.provider.recreate_failed_jobs",),
                PAGE,
                updates=None if job.iteration is None else (job.iteration, job.iteration),
            )


def undecided(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where at least half of the last proofs ended without a verdict, or nearly all with the
    same one."""
    found = _last(seen, "no decision")
    if found is not None and found[1].value >= MOST:
        step, figure = found
        yield Finding(
            "no verdict",
            "critical",
            f"{figure_text(figure)} of the proofs end without a verdict",
            "leave room for one, allow more rounds, or force a guess",
            ("program.max_tokens_per_message", "program.max_message_rounds", "program.force_guess"),
            PAGE,
            figure.value,
            (step, step),
        )
    counts: dict[str, float] = {}
    for split in ("train", "test"):
        last = seen.recent.last(f"decisions/{split}/")
        if all(any(value for name, value in last.items() if name.startswith(truth)) for truth in TRUTHS):
            counts = {one: sum(last.get(f"{truth}/{one}", 0.0) for truth in TRUTHS) for one in VERDICTS[:-1]}
    first = max(counts, key=counts.__getitem__, default="")
    total = sum(counts.values())
    if total >= LEAST_VERDICTS and counts[first] >= ONE_VERDICT * total:
        yield Finding(
            "one verdict",
            "critical",
            f"the verdict is {first} in {counts[first] / total:.0%} of {total:.0f} proofs",
            "punish wrong verdicts more, imitate only right ones, or give claims that it can judge",
            ("program.verifier_incorrect_penalty", _threshold(seen), "program.claims"),
            PAGE,
            counts[first] / total,
            seen.recent.updates,
        )


def invalid_answers(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each agent most of whose answers are invalid, or cut at the token limit."""
    for agent, retries in seen.recent.medians("", ".retry_proportion").items():
        if retries >= RETRIES:
            yield Finding(
                f"invalid answers/{agent}",
                "warning",
                f"{agent} gives {retries:.2g} invalid answers for each that is kept",
                "show the form of answers by examples, or begin with a model that keeps it",
                ("program.examples", "finetune.agents"),
                PAGE,
                retries,
                seen.recent.updates,
            )
    for agent, share in seen.recent.medians("", ".token_limit_proportion").items():
        if share > MOST:
            yield Finding(
                f"cut/{agent}",
                "warning",
                f"{share:.0%} of the answers of {agent} are cut at the token limit",
                "raise the limit, or ask for fewer words",
                ("program.max_tokens_per_message", "program.max_response_words"),
                PAGE,
                share,
                seen.recent.updates,
            )


def rewards_alike(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each agent that earned the same in all episodes of most of the last iterations:
    there is then nothing to choose from."""
    for agent, spread in seen.recent.medians("", ".std_episode_reward").items():
        if spread == 0:
            mean = seen.recent.median(f"{agent}.mean_episode_reward") or 0.0
            yield Finding(
                f"alike/{agent}",
                "warning",
                f"{agent} earns {mean:.3g} in every episode, so none is better than another to imitate",
                "give harder or easier claims, or draw more different answers",
                ("program.claims", "finetune.agents"),
                PAGE,
                0.0,
                seen.recent.updates,
            )


def judges_worse(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if the verifier's last accuracy is below its best beyond both intervals."""
    for prefix in ("", TRAINING):
        series = seen.run.figures.get(FigureName(f"{prefix}accuracy"), {})
        if len(series) < 2:
            continue
        best = max(series, key=lambda step: series[step].value)
        last = max(series)
        if series[last].interval.high < series[best].interval.low:
            yield Finding(
                "became worse/accuracy",
                "critical",
                f"accuracy fell from {figure_text(series[best])} in iteration {best} to "
                f"{figure_text(series[last])}",
                f"take the models of iteration {best}, or learn from all earlier rollouts as well",
                ("finetune.text_rl.fine_tune_on_all_previous_rollouts", "finetune.agents"),
                PAGE,
                series[last].value,
                (best, last),
            )
            return


def _threshold(seen: RunEvidence) -> str:
    """Return the field that says what is good enough to be imitated."""
    if seen.run.setting("finetune", "trainer", str) == "pure_text_malt":
        return "finetune.pure_text_malt.interval_threshold_proportion"
    return "finetune.pure_text_ei.reward_threshold"


def _last(seen: RunEvidence, measure: str) -> tuple[int, Figure] | None:
    """Return the iteration and the figure of a measure's last tests, or of training if there were none."""
    for name in (measure, f"{TRAINING}{measure}"):
        if series := seen.run.figures.get(FigureName(name)):
            return max(series), series[max(series)]
    return None
