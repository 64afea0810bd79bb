"""Several answers of a policy at one turn of a game, each followed in a copy of the game."""

import asyncio
import random
import re
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrices import first_of
from sparring.collection import RoleAdvantageFormatter, StepBuffer, WinDrawLossFormatter
from sparring.core import (
    AgentSpec,
    Arena,
    InputError,
    MockInferenceClient,
    PlaySpec,
    Rollout,
    derive_seed,
    trajectories_of,
)
from sparring.core.play import played_steps
from sparring.envs.catalog import make_game
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template
from sparring.view.episodes import game_of, turns_of

POLICY = AgentSpec("policy")
OWN = str(Path(__file__).with_name("own_environments.py"))


def legal_move(messages, seed):
    """One of the moves that the prompt lists, drawn by the seed."""
    text = messages[-1]["content"]
    if "Available Moves: " in text:
        moves = re.findall(r"\[\d+\]", text.split("Available Moves: ")[1])
    elif "Legal moves: " in text:
        moves = text.split("Legal moves: ")[1].split(".")[0].split(", ")
    elif "available actions are: " in text:
        moves = re.findall(r"'(\[\w+\])'", text.split("available actions are: ")[-1])
    else:
        moves = re.findall(r"\d", text.split("\n\n")[-1])
    return random.Random(seed).choice(moves)


def play(env_id, answer=legal_move, agents=(POLICY, POLICY), seed=0, client=None, **options) -> Rollout:
    arena = Arena(client or MockInferenceClient(answer))
    arena.add_episode("game", GameEpisode(env_id, len(agents), get_template("fewshot-chat"), **options))
    spec = PlaySpec(env_id, len(agents), tuple(agents), seed)
    return asyncio.run(arena.run_episode("game", spec, {"seed": seed})).rollout


def groups(rollout):
    """The steps of each turn, in order."""
    return [[*steps] for _, steps in groupby(rollout.steps, key=lambda step: step.info["turn"])]


GAMES = ["kuhn_poker", "TicTacToe-v0-train", "leduc_poker", "KuhnPoker-v0-train"]


@pytest.mark.parametrize("env_id", first_of(GAMES, 2))
@pytest.mark.parametrize("goes_on", ["best", "first"])
def test_every_answer_of_a_turn_is_a_step_and_the_game_goes_on_with_one(env_id, goes_on):
    for seed in range(3):
        rollout = play(env_id, seed=seed, answers_per_turn=3, goes_on=goes_on)
        turns = rollout.extras["turns"]
        assert len(groups(rollout)) == len(turns)
        for steps, turn in zip(groups(rollout), turns, strict=True):
            assert sorted(step.info["answer"] for step in steps) == [0, 1, 2]
            assert all(step.prompt == steps[0].prompt for step in steps)
            assert [step.info["is_played"] for step in steps] == [False, False, True]
            assert (steps[-1].pid, steps[-1].completion_text) == (turn["pid"], turn["text"])
            worth = {step.info["answer"]: step.info["branch_rewards"][turn["pid"]] for step in steps}
            best = min(number for number in worth if worth[number] == max(worth.values()))
            assert steps[-1].info["answer"] == (best if goes_on == "best" else 0)
        shown = [step for _, step in turns_of(rollout, game_of(rollout))]
        assert shown == played_steps(rollout) == [steps[-1] for steps in groups(rollout)]


@pytest.mark.parametrize("env_id", first_of(GAMES, 2))
@pytest.mark.parametrize("agents", [(POLICY, POLICY), (AgentSpec("script", "random"), POLICY)])
def test_a_game_that_goes_on_with_the_first_answer_is_the_one_that_is_played_without_others(env_id, agents):
    for seed in range(4):
        alone = play(env_id, agents=agents, seed=seed)
        rollout = play(env_id, agents=agents, seed=seed, answers_per_turn=3)
        assert rollout.extras == alone.extras
        assert [step.completion for step in played_steps(rollout)] == [
            step.completion for step in alone.steps
        ]
        assert rollout.rewards == alone.rewards
        assert len(rollout.steps) == 3 * len(alone.steps)


def first_cell(moves):
    return min(moves, key=lambda move: int(move.strip("[]")))


@pytest.mark.parametrize("env_id", ["tic_tac_toe", "TicTacToe-v0-train"])
def test_an_answer_is_worth_what_the_game_pays_if_it_goes_on_from_it(env_id):
    """The answers of a turn differ, but afterwards everybody takes the first free cell."""

    def answer(messages, seed):
        text = messages[-1]["content"]
        free = re.findall(r"\[\d+\]", text.split("Available Moves: ")[1]) if "Available" in text else None
        free = free or re.findall(r"\d", text.split("\n\n")[-1])
        is_one_of_several = seed in {
            derive_seed(0, "call", pid, turn, number) for pid in (0, 1) for number in (1, 2)
        }
        return free[seed % len(free)] if is_one_of_several else first_cell(free)

    for turn in range(4):
        rollout = play(env_id, answer, answers_per_turn=3)
        moves = rollout.extras["action_seq"]
        for step in groups(rollout)[turn]:
            game = make_game(env_id, 2, derive_seed(0, "game"))
            for move in [*moves[:turn], step.info["extracted_action"]]:
                assert game.apply(move)
            while not game.done:
                game.apply(first_cell(game.legal_actions()))
            assert step.info["branch_rewards"] == [*game.rewards().values()]


def test_copies_pay_nothing_to_the_turns_of_the_game_itself():
    """In Hanabi for three, cards that fit pay on the way, and the others play on in each copy."""
    small = "players=3,colors=2,ranks=2,hand_size=2,max_life_tokens=3,max_information_tokens=3"

    def plays(messages, seed):
        moves = re.split(", ", re.findall(r"Legal moves: (.*)", messages[-1]["content"])[-1])
        legal = [move.strip(" .") for move in moves]
        return random.Random(seed).choice([move for move in legal if "Play" in move] or legal)

    paid = 0
    for seed in range(4):
        alone, several = (
            play(f"hanabi({small})", plays, (POLICY,) * 3, seed, answers_per_turn=answers)
            for answers in (1, 3)
        )
        rewards, others = ([turn.get("reward") for turn in one.extras["turns"]] for one in (alone, several))
        assert rewards == others
        paid += sum(map(bool, rewards))
    assert paid > 3


def test_only_policies_that_are_trained_draw_several_and_none_in_a_random_opening():
    agents, opening = (POLICY, AgentSpec("model", "base")), 0
    for seed in range(6):
        rollout = play("tic_tac_toe", agents=agents, answers_per_turn=2, random_opening=3, seed=seed)
        turns = rollout.extras["turns"]
        own = [place for place, turn in enumerate(turns) if turn["kind"] == "policy"]
        assert [step.info["turn"] for step in rollout.steps] == [place for place in own for _ in range(2)]
        opening += sum(turn["kind"] == "script" for turn in turns)
    assert opening > 0


class Delayed(MockInferenceClient):
    async def complete(self, messages, *args, **options):
        for _ in range(options["seed"] % 11):
            await asyncio.sleep(0)
        return await super().complete(messages, *args, **options)


@pytest.mark.parametrize("env_id", ["leduc_poker", "TicTacToe-v0-train"])
def test_which_answer_comes_first_changes_nothing(env_id):
    def told(client):
        rollout = play(env_id, client=client, seed=5, answers_per_turn=4, goes_on="best")
        return rollout.extras, [(step.completion_text, step.info) for step in rollout.steps]

    assert told(Delayed(legal_move)) == told(MockInferenceClient(legal_move))


def test_an_answer_that_is_no_move_is_worth_a_lost_game():
    def answer(messages, seed):
        return "nonsense" if seed == derive_seed(0, "call", 0, 0, 1) else legal_move(messages, seed)

    first = groups(play("kuhn_poker", answer, answers_per_turn=2, goes_on="best"))[0]
    worth = {step.info["answer"]: (step.info["branch_rewards"][0], step.info["is_played"]) for step in first}
    assert worth[1] == (-2.0, False)
    assert worth[0][1]
    invalid = {step.info["answer"]: step.info["format_feedback"]["invalid_move"] for step in first}
    assert invalid == {0: False, 1: True}


def test_a_forgiven_answer_is_worth_at_most_a_game_that_it_had_ended():
    def answer(messages, seed):
        nonsense = {derive_seed(0, "call", 0, 0, *number) for number in ((), (1,))}
        return "nonsense" if seed in nonsense else legal_move(messages, seed)

    rollout = play("kuhn_poker", answer, answers_per_turn=2, error_allowance=1)
    assert rollout.extras["invalid_pid"] is None
    rewards = stored(rollout)
    assert rewards[0, 0] == rewards[0, 1] == -2.0


def stored(rollout, transform=None):
    """The reward of each answer in a buffer, by its turn and its number."""
    buffer = StepBuffer(1000, None, transform)
    for trajectory in trajectories_of(rollout):
        buffer.add_player_trajectory(trajectory, "game")
    return {(step.info["turn"], step.info["answer"]): step.reward for step in buffer.draw(None)}


def test_a_buffer_gives_each_answer_the_reward_of_its_copy():
    rollout = play("kuhn_poker", seed=2, answers_per_turn=4)
    worth = {
        (step.info["turn"], step.info["answer"]): step.info["branch_rewards"][step.pid]
        for step in rollout.steps
    }
    assert stored(rollout) == worth
    assert len({*worth.values()}) > 2
    wins = {place: float((reward > 0) - (reward < 0)) for place, reward in worth.items()}
    assert stored(rollout, WinDrawLossFormatter()) == wins


def test_a_moving_average_counts_a_game_once_whatever_its_answers_are_worth():
    rollout = play("kuhn_poker", seed=2, answers_per_turn=4)
    transform = RoleAdvantageFormatter({0: 0.5, 1: -0.5}, tau=0.25)
    rewards = stored(rollout, transform)
    for step in rollout.steps:
        baseline = 0.5 - step.pid
        own = step.info["branch_rewards"][step.pid]
        assert rewards[step.info["turn"], step.info["answer"]] == own - baseline
    final = rollout.extras["final_rewards"]
    assert transform.role_advantage == {pid: 0.75 * (0.5 - pid) + 0.25 * final[pid] for pid in (0, 1)}


@pytest.mark.parametrize("env_id", [f"{OWN}:Walk", f"{Path(__file__).with_name('short_game.py')}:Talk"])
def test_games_that_cannot_be_copied_are_refused(env_id):
    with pytest.raises(InputError, match=r"env\.answers_per_turn: .* cannot be copied, .* Set 1, or choose"):
        GameEpisode(env_id, 1 if "Walk" in env_id else 2, get_template("fewshot-chat"), answers_per_turn=2)


COPIED = {
    "kuhn_poker": 2,
    "leduc_poker": 2,
    "phantom_ttt": 2,
    "hanabi(players=2,colors=2,ranks=2,hand_size=2)": 2,
    "TicTacToe-v0-train": 2,
    "KuhnPoker-v0-train": 2,
    "PigDice-v0-train": 2,
    "Blackjack-v0-train": 1,
    "ThreePlayerTicTacToe-v0-train": 3,
    "IteratedRockPaperScissors-v0-train": 2,
    "ConnectFour-v0-train": 2,
    "Nim-v0-train": 2,
    "Othello-v0-train": 2,
}


def to_the_end(game, rng, most=300):
    """Play random legal moves; return all that players saw, and what was paid."""
    seen = []
    while not game.done and len(seen) < most:
        pid = game.current_pid
        seen.append((pid, game.view(pid), game.observation(pid), game.brief(pid), game.legal_actions()))
        game.apply(rng.choice(game.legal_actions()))
    return [*seen, game.rewards() if game.done else None, game.game_info()]


@pytest.mark.parametrize("env_id", first_of([*COPIED], 7))
@given(seed=st.integers(0, 2**32), moves=st.integers(0, 6))
def test_a_copy_goes_on_as_the_game_would_and_leaves_it_alone(env_id, seed, moves):
    def begun():
        game, rng = make_game(env_id, COPIED[env_id], seed), random.Random(seed)
        for _ in range(moves):
            if not game.done:
                game.observation(game.current_pid)
                game.apply(rng.choice(game.legal_actions()))
        return game

    untouched = to_the_end(begun(), random.Random(1))
    game = begun()
    copy, other = game.copy(), game.copy()
    to_the_end(other, random.Random(2))
    other_forfeits = game.copy()
    other_forfeits.forfeit(0, "nonsense")
    assert to_the_end(copy, random.Random(1)) == untouched
    assert to_the_end(game, random.Random(1)) == untouched
