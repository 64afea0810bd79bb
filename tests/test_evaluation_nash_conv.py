import asyncio
import importlib
import math
from contextlib import contextmanager

import pytest
from open_spiel.python.algorithms import exploitability

from evaluation_client import TabularClient, first_move, uniform
from kuhn_policies import PythonPolicy, kuhn_equilibrium, random_policy
from matrices import first_of
from sparring.core import AgentSpec, Arena, InputError, SparringError
from sparring.envs.game_episode import GameEpisode
from sparring.envs.openspiel_game import load_game
from sparring.envs.templates import get_template
from sparring.evaluation import NashConvResult, nash_conv, play_match
from sparring.evaluation.match import Progress

TEMPLATE = get_template("fewshot-chat")
exact = importlib.import_module("sparring.evaluation.nash_conv")  # the package has a function of this name


async def measure(client, env_id="kuhn_poker", **options) -> NashConvResult:
    return await nash_conv(client, env_id, TEMPLATE, model="hero", **options)


async def test_uniform_play_of_kuhn_has_its_known_value():
    result = await measure(TabularClient(uniform))
    assert result.nash_conv == pytest.approx(11 / 12, abs=1e-9)
    assert result.best_response_values == pytest.approx([0.5, 5 / 12], abs=1e-9)
    assert result.values == pytest.approx([0.125, -0.125], abs=1e-9)
    assert result.exploitability == pytest.approx([0.375, 13 / 24], abs=1e-9)
    assert result.legal_mass == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
async def test_equilibria_of_kuhn_cannot_be_exploited(alpha):
    result = await measure(TabularClient(kuhn_equilibrium(alpha)))
    assert result.nash_conv == pytest.approx(0, abs=1e-9)
    assert result.values == pytest.approx([-1 / 18, 1 / 18], abs=1e-9)


@pytest.mark.parametrize("env_id", ["kuhn_poker", "kuhn_poker(players=3)", "leduc_poker", "tiny_hanabi"])
@pytest.mark.parametrize("policy", [first_move, random_policy(1)], ids=["first", "random"])
async def test_values_equal_those_of_openspiels_other_implementation(env_id, policy):
    result = await measure(TabularClient(policy), env_id)
    expected = exploitability.nash_conv(load_game(env_id), PythonPolicy(env_id, policy), False)
    assert result.nash_conv == pytest.approx(expected.nash_conv, abs=1e-9)
    assert result.exploitability == pytest.approx(list(expected.player_improvements), abs=1e-9)


async def test_the_policy_is_reported_by_information_state_and_move():
    result = await measure(TabularClient(kuhn_equilibrium(0.2)))
    assert len(result.policy) == 12
    assert result.policy["2"] == pytest.approx({"check": 0.4, "bet": 0.6})
    assert result.policy["0pb"] == pytest.approx({"fold": 1.0, "call": 0.0})
    assert result.observations["0pb"].startswith("Moves so far: you check, they bet.")
    assert result.observations.keys() == result.policy.keys()


async def test_mass_outside_the_legal_answers_is_reported_and_does_not_change_nash_conv():
    def leaky(observation: str) -> dict[str, float]:
        legal = 0.1 if observation.endswith("K.") else 0.7
        return {**{move: legal * chance for move, chance in uniform(observation).items()}, "dance": 1 - legal}

    result = await measure(TabularClient(leaky))
    assert result.nash_conv == pytest.approx(11 / 12, abs=1e-9)
    assert result.legal_mass == pytest.approx((0.1 + 2 * 0.7) / 3)
    assert result.min_legal_mass == pytest.approx(0.1)


class ScoringClient(TabularClient):
    """Scores every answer by a function of its text."""

    def __init__(self, score_of):
        super().__init__(uniform)
        self.score_of = score_of

    async def score(self, messages, completions, *, model=None):
        return [self.score_of(text) for text in completions]


async def test_answers_too_unlikely_for_a_float_still_compare():
    unlikely = {
        "check": -2000.0,
        "fold": -2000.0,
        "bet": -2000.0 + math.log(3),
        "call": -2000.0 + math.log(3),
    }
    result = await measure(ScoringClient(unlikely.__getitem__))
    assert result.policy["0"] == pytest.approx({"check": 0.25, "bet": 0.75})
    assert result.legal_mass == 0


@pytest.mark.parametrize("score", [math.nan, -math.inf, math.inf])
async def test_scores_that_are_not_probabilities_are_rejected(score):
    with pytest.raises(SparringError, match="no probabilities at '0'"):
        await measure(ScoringClient(lambda text: score))


async def test_the_prompts_scored_are_those_of_play():
    client = TabularClient(uniform)
    await measure(client)
    scored = {str(messages) for _, messages in client.calls}
    assert len(scored) == len(client.calls) == 12
    client.calls.clear()
    villain = AgentSpec("model", "villain")
    episode = GameEpisode("kuhn_poker", 2, TEMPLATE)
    await play_match(Arena(client), episode, model="hero", opponent=villain, games=200, seed=0)
    assert {str(messages) for _, messages in client.calls} == scored


async def test_scored_answers_have_the_form_that_the_template_requests():
    seen = set()

    def record(text: str) -> float:
        seen.add(text)
        return -1.0

    await nash_conv(ScoringClient(record), "kuhn_poker", get_template("qwen3-zs"), model="hero")
    assert seen == {"\\boxed{check}", "\\boxed{bet}", "\\boxed{fold}", "\\boxed{call}"}


async def test_all_positions_are_scored_at_once():
    client = TabularClient(uniform)
    await measure(client)
    assert client.max_in_flight == 12


async def test_a_position_that_cannot_be_scored_cancels_the_others():
    class FailingClient(TabularClient):
        ended = 0

        async def score(self, messages, completions, *, model=None):
            self.calls.append((model, messages))
            if len(self.calls) == 3:
                raise SparringError("the model has no scores")
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1

    client = FailingClient(uniform)
    with pytest.raises(SparringError, match="the model has no scores"):
        await measure(client)
    assert (len(client.calls), client.ended) == (12, 11)


async def test_scoring_has_a_time_limit():
    class SilentClient(TabularClient):
        async def score(self, messages, completions, *, model=None):
            await asyncio.Event().wait()

    with pytest.raises(exact.TooSlow, match=r"scoring the 12 positions of kuhn_poker took over 0\.01 s"):
        await measure(SilentClient(uniform), timeout=0.01)


async def test_a_small_dark_hex_has_the_value_of_openspiels_other_implementation():
    env_id = "dark_hex(board_size=2)"
    result = await measure(TabularClient(uniform), env_id)
    expected = exploitability.nash_conv(load_game(env_id), PythonPolicy(env_id, uniform), False)
    assert len(result.policy) == 134
    assert result.nash_conv == pytest.approx(expected.nash_conv, abs=1e-9)


class Noted(Progress):
    """Notes what it is told."""

    def __init__(self):
        self.said, self.counts = [], []

    def say(self, line):
        self.said.append(line)

    @contextmanager
    def doing(self, text, unit="", total=None):
        self.said.append(text)
        yield lambda *count: self.counts.append(count)


async def test_every_position_is_counted_and_the_rest_is_announced(monkeypatch):
    monkeypatch.setattr(exact, "SCORED_AT_ONCE", 5)
    progress, client = Noted(), TabularClient(uniform)
    result = await measure(client, progress=progress)
    assert progress.counts == [(done, 12) for done in range(1, 13)]
    assert client.max_in_flight == 5
    assert progress.said == [
        "kuhn_poker: NashConv of hero",
        "kuhn_poker: NashConv, 12 positions, about 0 s",
    ]
    assert result.nash_conv == pytest.approx(11 / 12, abs=1e-9)


async def test_a_game_that_would_take_too_long_is_given_up_after_the_first_positions(monkeypatch):
    monkeypatch.setattr(exact, "SCORED_AT_ONCE", 5)
    seconds = iter([0.0, 50.0])
    monkeypatch.setattr(exact, "perf_counter", lambda: next(seconds))
    client = TabularClient(uniform)
    with pytest.raises(exact.TooSlow) as raised:
        await measure(client, timeout=100.0)
    assert raised.value.problem == (
        "scoring the 12 positions of kuhn_poker would take about 120 s, and the limit is 100 s"
    )
    assert len(client.calls) == 5


async def test_the_policy_of_a_large_game_is_left_out_of_the_result(monkeypatch):
    whole = await measure(TabularClient(random_policy(1)))
    monkeypatch.setattr(exact, "MAX_STATES_KEPT", 11)
    result = await measure(TabularClient(random_policy(1)))
    assert (result.policy, result.observations) == ({}, {})
    assert result.nash_conv == whole.nash_conv


async def test_a_game_that_is_too_large_is_rejected_before_anything_is_scored():
    client = TabularClient(uniform)
    with pytest.raises(InputError, match="tic_tac_toe has more than 50,000 information states"):
        await measure(client, "tic_tac_toe")
    assert client.calls == []


@pytest.mark.parametrize(
    "env_id", first_of(["KuhnPoker-v0-train", "catch", "kuhn_pokr", "matrix_rps", "nim"], 4)
)
async def test_games_without_an_exact_measure_are_rejected(env_id):
    with pytest.raises(InputError) as raised:
        await measure(TabularClient(uniform), env_id)
    assert raised.value.field == "env.id"
