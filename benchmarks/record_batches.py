"""Record the self-play batches that other benchmarks use, once, with the real model.

This script compares nothing. The untrained SmolLM2-135M plays OpenSpiel's kuhn_poker and TextArena's
TicTacToe-v0-train against itself with the embedded engine and the few-shot template, as a run does, until
there are enough actions. They become training records through the replay buffer. A third batch is synthetic:
random token sequences that share nothing, so that prefix trees do not help.

Command:  python benchmarks/record_batches.py       (other benchmarks record missing batches by themselves)
Needs:    this package; the model is downloaded and converted at its first use. Half a minute on one core.
Writes:   JSON lines, one record each, to batches/ in this package's cache directory.
"""

import argparse
import asyncio
import dataclasses
import json
import random
from pathlib import Path

import torch

from sparring.collection.buffers import StepBuffer
from sparring.collection.transforms import SamePromptBaseline
from sparring.core import AgentSpec, Arena, PlaySpec, Role, Step, TrainingRecord, derive_seed, trajectories_of
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.files import cache_directory
from sparring.core.records import records_from_steps
from sparring.engine.engine import EmbeddedEngine
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel

MAX_TOKENS = 8
ENV_IDS = {"kuhn": "kuhn_poker", "tictactoe": "TicTacToe-v0-train"}
ACTIONS = {"kuhn": 128, "tictactoe": 64}
UNSHARED = "unshared"
BATCHES = [*ENV_IDS, UNSHARED]


def auto_dtype() -> torch.dtype:
    """Return the base model's type as a run chooses it: bfloat16 if the processor has instructions for it."""
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def load_policy(dtype: torch.dtype) -> PolicyModel:
    """Return SmolLM2-135M with an untrained adapter of rank 16 on all linear layers."""
    return PolicyModel(resolve_model(BUNDLED_MODEL, print), LoraSettings(), dtype=dtype)


def disturb_adapter(policy: PolicyModel) -> None:
    """Make the adapter's B matrices, which start at zero, random, so that all its weights have gradients."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        if f"lora_B.{TRAINED}" in name:
            parameter.data.normal_(std=0.01, generator=generator)


def make_arena(engine: EmbeddedEngine, env_id: str) -> Arena:
    """Return an arena in which ``engine`` plays both seats of ``env_id``."""
    engine.publish(TRAINED, TRAINED, 0)
    arena = Arena(engine)
    arena.add_episode(env_id, GameEpisode(env_id, 2, get_template("fewshot-chat")))
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}", max_tokens=MAX_TOKENS))
    return arena


async def play_games(arena: Arena, env_id: str, seeds: list[int]) -> list[Step]:
    """Play mirror self-play with all games in flight at once; returns the steps of all seats, by game."""
    agents = (AgentSpec("policy", max_tokens=MAX_TOKENS),) * 2
    games = [arena.run_episode(env_id, PlaySpec(env_id, 2, agents, seed), {"seed": seed}) for seed in seeds]
    buffer = StepBuffer(1_000_000, sampling_reward_transformation=SamePromptBaseline())
    for result in await asyncio.gather(*games):
        for trajectory in trajectories_of(result.rollout):
            buffer.add_player_trajectory(trajectory, env_id)
    return buffer.get_batch(buffer.size())


def record(policy: PolicyModel, batch: str, actions: int) -> list[TrainingRecord]:
    """Play until there are ``actions`` records; advantages are centred over equal prompts."""
    env_id = ENV_IDS[batch]
    arena = make_arena(EmbeddedEngine(policy), env_id)
    # Steps are drawn at random from somewhat more games than needed, so all turns of a game are represented.
    games = actions if batch == "kuhn" else actions // 2
    steps = asyncio.run(play_games(arena, env_id, [derive_seed(0, batch, index) for index in range(games)]))
    return records_from_steps(steps[:actions])


def unshared(vocabulary: int, sequences: int, low: int, high: int) -> list[TrainingRecord]:
    """Return sequences of random tokens that share nothing; the last quarter of each is the completion."""
    draw = random.Random(0)
    records = []
    for index in range(sequences):
        length = draw.randint(low, high)
        ids = [draw.randrange(vocabulary) for _ in range(length)]
        prompt, completion = ids[: length - length // 4], ids[length - length // 4 :]
        logprobs = [0.0] * len(completion)
        advantage = draw.uniform(-1, 1)
        records.append(
            TrainingRecord(
                role_id="nobody",
                rollout_id=str(index),
                prompt_token_ids=prompt,
                completion_token_ids=completion,
                logprobs=logprobs,
                reward=advantage,
                advantage=advantage,
            )
        )
    return records


def load_batch(batch: str) -> list[TrainingRecord]:
    """Read a recorded batch; record it first if it does not exist."""
    path = _path(batch)
    if not path.is_file():
        _write(batch)
    with path.open() as lines:
        return [TrainingRecord(**json.loads(line)) for line in lines]


def _path(batch: str) -> Path:
    return cache_directory() / "batches" / f"{batch}.jsonl"


def _write(batch: str) -> None:
    policy = load_policy(auto_dtype())
    if batch == UNSHARED:
        records = unshared(policy.tokenizer.vocab_size, sequences=8, low=256, high=512)
    else:
        records = record(policy, batch, ACTIONS[batch])
    _path(batch).parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(dataclasses.asdict(one)) + "\n" for one in records)
    _path(batch).write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    torch.set_num_threads(1)
    for batch in BATCHES:
        _write(batch)
        records = load_batch(batch)
        tokens = sum(len(one.input_ids) for one in records)
        answers = sum(len(one.completion_token_ids) for one in records)
        print(f"{batch}: {len(records)} records, {tokens} tokens, {answers} of them sampled: {_path(batch)}")


if __name__ == "__main__":
    main()
