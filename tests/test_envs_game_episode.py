"""GameEpisode: games of one, two and three players against a mock model."""

import asyncio
import json
import math
import re
from collections import Counter

import pytest
import torch

from engine_requests import make_engine
from matrices import first_of
from sparring.core import (
    AgentSpec,
    Arena,
    CallSettings,
    EpisodeError,
    InferenceClient,
    InputError,
    MockInferenceClient,
    PlaySpec,
    Role,
    trajectories_of,
)
from sparring.envs import catalog, game_episode
from sparring.envs.game_episode import GameEpisode
from sparring.envs.openspiel_game import OpenSpielGame
from sparring.envs.scripted import ScriptedPlayer
from sparring.envs.templates import get_template
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import perturb_adapter, roomy_model

POLICY = AgentSpec("policy")


def legal_answer(messages, seed):
    """Answer as the prompt requests: with one of its legal moves, boxed if it mentions a box."""
    text = messages[-1]["content"]
    if "Legal moves: " in text:
        moves = text.split("Legal moves: ")[1].split(".")[0].split(", ")
    elif "Available Moves: " in text:
        moves = re.findall(r"\[\d+\]", text.split("Available Moves: ")[1])
    else:
        moves = ["[stand]", "[hit]"]
    move = moves[seed % len(moves)]
    return f"\\boxed{{{move}}}" if "\\boxed" in text else move


def legal_cells(turn):
    return re.findall(r"\d", turn["observation"])


def first_free_cell(messages, seed):
    """Answer with the first free cell of a board of tic_tac_toe."""
    return min(re.findall(r"\d", messages[-1]["content"].split("\n\n")[-1]))


async def play(env_id, agents, answer=legal_answer, template="fewshot-chat", seed=0, **options):
    client = answer if isinstance(answer, MockInferenceClient) else MockInferenceClient(answer)
    arena = Arena(client)
    arena.add_episode(env_id, GameEpisode(env_id, len(agents), get_template(template), **options))
    return (await arena.run_episode(env_id, PlaySpec(env_id, len(agents), tuple(agents), seed))).rollout


async def test_an_answer_ends_at_a_stop_text():
    def goes_on(messages, seed):
        return f"{legal_answer(messages, seed)}\nbecause I win. </move>"

    agents = [POLICY, AgentSpec("model", "base")]
    lost = await play("kuhn_poker", agents, goes_on)
    assert lost.extras["invalid_pid"] is not None
    for stop in (["\n"], ["</move>", "\nb"], [" </move>", "\n"]):
        rollout = await play("kuhn_poker", agents, goes_on, calls=CallSettings(stop=tuple(stop)))
        assert rollout.extras["invalid_pid"] is None
        assert all("\n" not in turn["text"] for turn in rollout.extras["turns"])


async def test_a_game_whose_answers_end_at_texts_trains_on_the_tokens_that_were_drawn():
    policy = PolicyModel(str(roomy_model()), LoraSettings(2, 2.0))
    arena = Arena(make_engine(policy, max_tokens=30))
    stop = tuple("abcdefghijklm")
    arena.add_episode(
        "game", GameEpisode("kuhn_poker", 2, get_template("default"), calls=CallSettings(stop=stop))
    )
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}"))
    ended = 0
    for seed in range(10):
        spec = PlaySpec("game", 2, (POLICY, POLICY), seed)
        for step in (await arena.run_episode("game", spec)).rollout.steps:
            assert not set(stop) & set(step.completion_text)
            drawn = policy.tokens.decode(step.completion_token_ids)
            ended += drawn != step.completion_text
            assert drawn.startswith(step.completion_text)
            assert set(drawn.removeprefix(step.completion_text)) <= set(stop)
            assert len(step.completion_logprobs) == len(step.completion_token_ids)
    assert ended > 3


@pytest.mark.parametrize("template", ["fewshot-chat", "qwen3-zs"])
@pytest.mark.parametrize(
    ("env_id", "players"),
    [
        ("Blackjack-v0-train", 1),
        ("kuhn_poker", 2),
        ("leduc_poker", 2),
        ("TicTacToe-v0-train", 2),
        ("kuhn_poker(players=3)", 3),
        ("ThreePlayerTicTacToe-v0-train", 3),
    ],
)
async def test_games_of_any_number_of_players_are_played_to_their_end(env_id, players, template):
    for seed in range(5):
        rollout = await play(env_id, [POLICY] * players, template=template, seed=seed)
        extras = rollout.extras
        assert extras["invalid_pid"] is None
        assert not extras["truncated"]
        assert extras["num_turns"] == len(extras["turns"]) == len(rollout.steps) > 0
        assert rollout.rewards == {f"player_{pid}": extras["final_rewards"][pid] for pid in range(players)}
        assert all(step.info["format_feedback"]["correct_answer_format"] for step in rollout.steps)
        for trajectory in trajectories_of(rollout):
            assert trajectory.final_reward == extras["final_rewards"][trajectory.pid]
        json.dumps(extras)


def kuhn_answer(messages, seed):
    """Answer TextArena's Kuhn poker, whose prompt names the available actions last."""
    moves = re.findall(r"\[\w+\]", messages[-1]["content"].splitlines()[-1])
    return moves[seed % len(moves)]


@pytest.mark.parametrize(
    ("env_id", "answer"), [("kuhn_poker", legal_answer), ("KuhnPoker-v0-train", kuhn_answer)]
)
async def test_the_same_seed_gives_the_same_game_among_concurrent_games(env_id, answer):
    def trace(rollout):
        return rollout.extras["turns"], rollout.rewards

    alone = [trace(await play(env_id, [POLICY, POLICY], answer, seed=seed)) for seed in range(30)]
    together = await asyncio.gather(
        *(play(env_id, [POLICY, POLICY], answer, seed=seed) for seed in reversed(range(30)))
    )
    assert [trace(rollout) for rollout in reversed(together)] == alone
    assert len({str(game) for game in alone}) > 5


async def test_only_policy_seats_leave_steps_and_all_seats_leave_turns():
    agents = [POLICY, AgentSpec("model", "frozen"), AgentSpec("script", "random")]
    rollout = await play("ThreePlayerTicTacToe-v0-train", agents)
    assert {step.pid for step in rollout.steps} == {0}
    assert [(turn["pid"], turn["kind"], turn["model"]) for turn in rollout.extras["turns"][:3]] == [
        (0, "policy", "default"),
        (1, "model", "frozen"),
        (2, "script", "random"),
    ]
    assert set(rollout.rewards) == {"player_0"}
    assert set(rollout.extras["final_rewards"]) == {0, 1, 2}


async def test_seats_are_called_with_their_model_settings_and_seed():
    calls = []

    class Client(MockInferenceClient):
        async def complete(self, messages, temperature=1.0, max_tokens=None, return_tokens=True, **kwargs):
            calls.append((temperature, max_tokens, return_tokens, kwargs["model"], kwargs["seed"]))
            return await super().complete(messages, temperature, max_tokens, return_tokens, **kwargs)

    agents = [AgentSpec("policy", "mine", 0.7, 5), AgentSpec("model", "theirs", 0.2, 9)]
    await play("kuhn_poker", agents, Client(legal_answer))
    assert calls[0][:4] == (0.7, 5, True, "mine")
    assert calls[1][:4] == (0.2, 9, False, "theirs")
    assert calls[0][4] != calls[1][4]


async def test_an_agents_settings_win_over_its_roles():
    arena = Arena(MockInferenceClient(legal_answer))
    arena.add_role(Role("player_0", policy="other"))
    arena.add_episode("kuhn_poker", GameEpisode("kuhn_poker", 2, get_template("fewshot-chat")))
    spec = PlaySpec("kuhn_poker", 2, (POLICY, AgentSpec("script", "random")), 0)
    rollout = (await arena.run_episode("kuhn_poker", spec)).rollout
    assert all(step.completion_token_ids for step in rollout.steps)


@pytest.mark.parametrize(
    ("answer", "well_formed", "template"),
    [
        ("raise", True, "fewshot-chat"),
        ("I bet,\nof course", False, "fewshot-chat"),
        ("\\boxed{raise}", True, "qwen3-zs"),
        ("no idea", False, "qwen3-zs"),
    ],
)
async def test_the_first_invalid_answer_ends_the_game(answer, well_formed, template):
    rollout = await play("kuhn_poker", [POLICY, POLICY], [answer], template)
    assert rollout.extras["invalid_pid"] == 0
    assert rollout.extras["final_rewards"] == {0: -2.0, 1: 2.0}
    assert rollout.extras["game_info"][0]["invalid_move"]
    assert rollout.steps[-1].info["format_feedback"] == {
        "correct_answer_format": well_formed,
        "invalid_move": True,
    }


async def test_a_move_is_recorded_as_the_game_spells_it():
    rollout = await play(
        "TicTacToe-v0-train", [POLICY, POLICY], MockInferenceClient(["4", "[0]", "nonsense"])
    )
    turns = [(turn["action"], turn["invalid"]) for turn in rollout.extras["turns"]]
    assert turns[:2] == [("[4]", False), ("[0]", False)]


async def test_the_allowance_counts_invalid_answers_in_a_row():
    answers = MockInferenceClient(["nonsense", "check", "nonsense", "check"])
    rollout = await play("kuhn_poker", [POLICY, POLICY], answers, error_allowance=1)
    assert [turn["invalid"] for turn in rollout.extras["turns"]] == [True, False, True, False]
    assert [turn["pid"] for turn in rollout.extras["turns"]] == [0, 0, 1, 1]
    assert rollout.extras["invalid_pid"] is None

    rollout = await play("kuhn_poker", [POLICY, POLICY], ["nonsense"], error_allowance=1)
    assert rollout.extras["num_turns"] == 2
    assert rollout.extras["invalid_pid"] == 0


@pytest.mark.parametrize(("env_id", "reward"), [("kuhn_poker", -2.0), ("TicTacToe-v0-train", -1.0)])
async def test_a_forgiven_move_records_the_reward_it_would_have_had(env_id, reward):
    turns = iter(range(99))

    def answer(messages, seed):
        return "nonsense" if next(turns) == 0 else legal_answer(messages, seed)

    rollout = await play(env_id, [POLICY, POLICY], answer, error_allowance=1)
    assert rollout.extras["invalid_pid"] is None
    of_others = [None] * (len(rollout.steps) - 1)
    assert [step.info.get("invalid_rewards") for step in rollout.steps] == [[reward, -reward], *of_others]
    lost = await play(env_id, [POLICY, POLICY], ["nonsense"], error_allowance=1)
    assert [step.info.get("invalid_rewards") for step in lost.steps] == [[reward, -reward], None]
    assert lost.extras["final_rewards"][0] == reward


RAISES = f"[bid: {'9' * 5000}, 2]"
"""A bid on which TextArena's LiarsDice raises, because Python does not parse a number this long."""


async def test_a_move_on_which_the_game_raises_is_its_players_invalid_move():
    rollout = await play("LiarsDice-v0-train", [POLICY, POLICY], ["[bid: 1, 2]", RAISES], error_allowance=3)
    extras = rollout.extras
    assert (extras["num_turns"], extras["invalid_pid"], extras["raised"]) == (2, 1, "ValueError")
    assert rollout.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert [step.info["format_feedback"]["invalid_move"] for step in rollout.steps] == [False, True]
    info = extras["game_info"][1]
    assert (info["invalid_move"], info["raised"]) == (True, "ValueError")
    assert "failed inside TextArena: ValueError" in info["reason"]
    json.dumps(extras)
    frozen = await play("LiarsDice-v0-train", [AgentSpec("model", "frozen"), POLICY], [RAISES])
    assert frozen.extras["final_rewards"] == {0: -1.0, 1: 1.0}


async def test_a_script_that_makes_the_game_raise_has_failed_the_game(monkeypatch):
    class Clumsy(ScriptedPlayer):
        def chances(self, game):
            return {RAISES: 1.0}

    monkeypatch.setattr(game_episode, "make_player", lambda name, env_id, seed: Clumsy(seed))
    with pytest.raises(EpisodeError, match="failed inside TextArena: ValueError"):
        await play("LiarsDice-v0-train", [AgentSpec("script", "clumsy"), POLICY])


class Unreadable(OpenSpielGame):
    """Kuhn poker that raises in one of its methods once a number of moves has been made."""

    def __init__(self, method, moves):
        super().__init__("kuhn_poker", 0)
        self.method, self.moves = method, moves

    def fail_in(self, method):
        if method == self.method and self.moves <= 0:
            raise LookupError(f"{method} has failed")

    def apply(self, action):
        self.moves -= 1
        return super().apply(action)

    def legal_actions(self):
        self.fail_in("legal_actions")
        return super().legal_actions()

    def view(self, pid):
        self.fail_in("view")
        return super().view(pid)

    def observation(self, pid):
        self.fail_in("observation")
        return super().observation(pid)

    def _own_rewards(self):
        self.fail_in("rewards")
        return super()._own_rewards() | ({0: math.nan} if self.method == "nan" else {})

    def _own_info(self):
        self.fail_in("info")
        return super()._own_info()


def deal_unreadable(monkeypatch, method, moves):
    monkeypatch.setattr(catalog, "make_game", lambda *_, **__: Unreadable(method, moves))


@pytest.mark.parametrize(
    ("method", "moves", "loser", "kind"),
    [
        ("legal_actions", 1, 0, "LookupError"),
        ("view", 1, 0, "LookupError"),
        ("observation", 1, 0, "LookupError"),
        ("rewards", 2, 1, "LookupError"),
        ("info", 2, 1, "LookupError"),
        ("nan", 2, 1, "EpisodeError"),
    ],
)
async def test_a_move_after_which_the_game_cannot_be_read_is_its_players_invalid_move(
    method, moves, loser, kind, monkeypatch
):
    deal_unreadable(monkeypatch, method, moves)
    rollout = await play("kuhn_poker", [POLICY, POLICY], ["check"], error_allowance=3)
    extras = rollout.extras
    assert (extras["num_turns"], extras["invalid_pid"], extras["raised"]) == (moves, loser, kind)
    assert extras["final_rewards"] == {loser: -2.0, 1 - loser: 2.0}
    assert [turn["invalid"] for turn in extras["turns"]] == [False] * (moves - 1) + [True]
    assert rollout.steps[-1].info["format_feedback"]["invalid_move"]
    assert extras["game_info"][loser]["raised"] == kind


async def test_a_game_that_cannot_be_read_after_a_scripts_move_has_failed(monkeypatch):
    deal_unreadable(monkeypatch, "view", 1)
    with pytest.raises(LookupError, match="view has failed"):
        await play("kuhn_poker", [AgentSpec("script", "random"), POLICY], ["check"])


async def test_the_turn_cap_makes_a_draw():
    rollout = await play("PigDice-v0-train", [POLICY, POLICY], ["[hold]"], max_turns=10)
    assert rollout.extras["truncated"]
    assert rollout.extras["num_turns"] == 10
    assert rollout.rewards == {"player_0": 0.0, "player_1": 0.0}


def test_an_episode_of_an_unplayable_game_is_rejected_at_once():
    with pytest.raises(InputError, match="cannot be played here"):
        GameEpisode("Countdown-v0-train", 1, get_template("default"))


async def test_games_of_training_begin_with_random_moves_that_nobody_learns_from():
    started = set()
    for seed in range(60):
        rollout = await play("tic_tac_toe", [POLICY] * 2, answer=first_free_cell, seed=seed, random_opening=2)
        turns, actions = rollout.extras["turns"], rollout.extras["action_seq"]
        random_moves = [turn for turn in turns if turn["kind"] == "script"]
        assert random_moves == turns[: len(random_moves)]
        assert len(rollout.steps) == len(turns) - len(random_moves)
        assert all(turn["text"] == min(legal_cells(turn)) for turn in turns[len(random_moves) :])
        started.add(tuple(actions[: len(random_moves)]))
    assert {len(one) for one in started} == {0, 1, 2}
    assert len({one[0] for one in started if one}) == 9
    agents = [AgentSpec("model", "default")] * 2
    for seed in range(5):
        rollout = await play("tic_tac_toe", agents, answer=first_free_cell, seed=seed, random_opening=2)
        assert rollout.extras["action_seq"][:2] == ["0", "1"], "nobody learns from this game"


def test_a_game_that_does_not_list_its_moves_has_no_random_opening():
    with pytest.raises(InputError, match=r"env.random_opening: .* does not list its legal moves"):
        GameEpisode("LiarsDice-v0-train", 2, get_template("default"), random_opening=2)


def explored_of(rollouts):
    return [step for rollout in rollouts for step in rollout.steps if step.info["explored"]]


async def test_a_trained_policy_explores_with_uniformly_random_legal_moves():
    games = [
        await play("tic_tac_toe", [POLICY] * 2, answer=first_free_cell, seed=seed, explore=0.3)
        for seed in range(300)
    ]
    decisions, explored = [step for game in games for step in game.steps], explored_of(games)
    assert {step.info["explore"] for step in decisions} == {0.3}
    assert abs(len(explored) - 0.3 * len(decisions)) < 2.6 * math.sqrt(0.21 * len(decisions))
    for step in decisions:
        assert step.completion_text in step.info["legal_answers"]
        if not step.info["explored"]:
            assert step.completion_text == min(step.info["legal_answers"]), "the policy's own answer"
    first = Counter(game.steps[0].completion_text for game in games if game.steps[0].info["explored"])
    expected = first.total() / 9
    assert sum((first[str(cell)] - expected) ** 2 / expected for cell in range(9)) < 22  # 99.5% of chi-square
    turns = [turn for game in games for turn in game.extras["turns"]]
    assert len(turns) == len(decisions), "each is a step that is learned from"


async def test_the_same_seed_explores_the_same_and_leaves_the_draws_of_the_policy_as_they_are():
    def alike(seed, explore):
        return play("tic_tac_toe", [POLICY] * 2, seed=seed, explore=explore)

    for seed in range(20):
        one, other, never = await alike(seed, 0.2), await alike(seed, 0.2), await alike(seed, 0.0)
        assert one.extras == other.extras
        began = next((place for place, step in enumerate(one.steps) if step.info["explored"]), len(one.steps))
        assert one.extras["turns"][:began] == never.extras["turns"][:began]
        assert all("explore" not in step.info for step in never.steps)


async def test_only_seats_that_are_trained_explore():
    fixed, script = AgentSpec("model", "default"), AgentSpec("script", "random")
    played = await play("tic_tac_toe", [POLICY, fixed], answer=first_free_cell, explore=1.0)
    assert len(explored_of([played])) == len(played.steps) > 0
    assert all(
        turn["text"] == min(legal_cells(turn)) for turn in played.extras["turns"] if turn["kind"] == "model"
    )
    alone = await play("tic_tac_toe", [script, POLICY], answer=first_free_cell, explore=0.0, seed=1)
    beside = await play("tic_tac_toe", [script, POLICY], answer=first_free_cell, explore=1e-9, seed=1)
    assert beside.extras == alone.extras
    evaluated = await play("tic_tac_toe", [fixed, fixed], answer=first_free_cell, explore=1.0)
    assert evaluated.extras["action_seq"][:2] == ["0", "1"]


async def test_a_step_says_whether_others_than_its_policy_play():
    one, two = AgentSpec("policy", "one"), AgentSpec("policy", "two")
    hot = AgentSpec("policy", "one", temperature=2.0)
    cases = {
        (one, one): False,
        (one, hot): False,
        (one, two): True,
        (one, AgentSpec("script", "random")): True,
        (AgentSpec("model", "one"), one): True,
    }
    for agents, others in cases.items():
        rollouts = [await play("kuhn_poker", agents, seed=seed) for seed in range(4)]
        assert {step.info["others"] for rollout in rollouts for step in rollout.steps} == {others}


async def test_exploration_begins_after_a_random_opening():
    for seed in range(10):
        game = await play("tic_tac_toe", [POLICY] * 2, seed=seed, explore=1.0, random_opening=2)
        kinds = [turn["kind"] for turn in game.extras["turns"]]
        assert kinds == sorted(kinds, reverse=True)
        assert len(explored_of([game])) == len(game.steps) == kinds.count("policy")


@pytest.mark.parametrize("template", first_of(["fewshot-chat", "fewshot-text", "default"], 2))
async def test_an_explored_step_has_the_ids_of_its_answer_and_the_models_log_probabilities(template):
    policy = PolicyModel(str(roomy_model()), LoraSettings(2, 2.0))
    perturb_adapter(policy)
    arena = Arena(make_engine(policy, max_tokens=20))
    calls = CallSettings(temperature=1.3)
    game = GameEpisode("kuhn_poker", 2, get_template(template), explore=0.7, calls=calls)
    arena.add_episode("game", game)
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}"))
    games = []
    for seed in range(12):
        spec = PlaySpec("game", 2, (POLICY, POLICY), seed)
        games.append((await arena.run_episode("game", spec)).rollout)
    explored = explored_of(games)
    assert len(explored) > 8
    for step in explored:
        given = f"{step.completion_text}{get_template(template).stop}"
        assert given in step.info["legal_answers"]
        assert step.completion_token_ids == policy.encode_answer(step.prompt, given)
        assert step.info["format_feedback"] == {"correct_answer_format": True, "invalid_move": False}
        assert step.info["finish_reason"] == "stop"
        assert (step.policy, step.temperature) == ("default", 1.3)
    plan = build_plan(
        [step.prompt_token_ids for step in explored], [step.completion_token_ids for step in explored]
    )
    with torch.no_grad(), policy.adapter(TRAINED):
        expected = plan_logprobs(policy, plan, 1.3)[torch.from_numpy(plan.prediction_S)]
    found = [logprob for step in explored for logprob in step.completion_logprobs]
    assert found == pytest.approx(expected.tolist(), abs=2e-5)


def test_a_game_that_does_not_list_its_moves_has_no_exploration():
    with pytest.raises(InputError, match=r"env.explore: .* does not list its legal moves"):
        GameEpisode("LiarsDice-v0-train", 2, get_template("default"), explore=0.2)


async def test_a_client_that_only_draws_says_so_in_one_line():
    class Draws(InferenceClient):
        async def complete(self, *args, **options):
            return await MockInferenceClient(["0"]).complete(*args, **options)

    arena = Arena(Draws())
    arena.add_episode("game", GameEpisode("tic_tac_toe", 2, get_template("fewshot-chat"), explore=1.0))
    with pytest.raises(
        InputError, match=r"^client: Draws has no log-probabilities for an answer that it did"
    ):
        await arena.run_episode("game", PlaySpec("game", 2, (POLICY, POLICY), 0))


async def test_a_spec_with_too_few_seats_is_an_episode_error():
    arena = Arena(MockInferenceClient(["check"]))
    arena.add_episode("kuhn_poker", GameEpisode("kuhn_poker", 2, get_template("fewshot-chat")))
    with pytest.raises(EpisodeError, match="2 seats but 1 agents"):
        await arena.run_episode("kuhn_poker", PlaySpec("kuhn_poker", 1, (POLICY,), 0))


async def test_boxed_templates_word_legal_answers_and_pass_ill_formed_text_on_where_none_are_told():
    kuhn = await play("kuhn_poker", [POLICY, POLICY], template="qwen3-zs")
    assert kuhn.steps[0].info["legal_answers"] == ["\\boxed{check}", "\\boxed{bet}"]
    dice = await play("LiarsDice-v0-train", [POLICY, POLICY], ["[bid: 1, 2]", "[call]"], "qwen3-zs")
    feedback = {"correct_answer_format": False, "invalid_move": False}
    assert dice.steps[0].info["format_feedback"] == feedback
