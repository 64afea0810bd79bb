"""What one game records: the whole rollout, how the game ended and why, and the seeds of its draws."""

import pytest

from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeError,
    MockInferenceClient,
    PlaySpec,
    derive_seed,
)
from sparring.envs.catalog import make_game
from sparring.envs.game import Game
from sparring.envs.game_episode import GameEpisode
from sparring.envs.scripted import make_player
from sparring.envs.templates import get_template

POLICY = AgentSpec("policy")
RANDOM = AgentSpec("script", "random")


class RecordingClient(MockInferenceClient):
    """A client that keeps the seed and the token limit of every call."""

    def __init__(self, responses):
        super().__init__(responses)
        self.seeds, self.limits = [], []

    async def complete(self, messages, temperature=1.0, max_tokens=None, return_tokens=True, **options):
        self.seeds.append(options["seed"])
        self.limits.append(max_tokens)
        return await super().complete(messages, temperature, max_tokens, return_tokens, **options)


async def play(env_id, agents, answers, template="fewshot-chat", seed=0, roles=(), **options):
    client = answers if isinstance(answers, MockInferenceClient) else MockInferenceClient(answers)
    arena = Arena(client)
    for role in roles:
        arena.add_role(role)
    arena.add_episode(env_id, GameEpisode(env_id, len(agents), get_template(template), **options))
    return (await arena.run_episode(env_id, PlaySpec(env_id, len(agents), tuple(agents), seed))).rollout


async def test_the_record_of_a_game_is_exactly_this():
    agents = [POLICY, AgentSpec("model", "frozen"), POLICY]
    rollout = await play("kuhn_poker(players=3)", agents, ["check", " bet ", "fold", "call"], seed=1)
    cards = {pid: rollout.extras["turns"][pid]["observation"][-2] for pid in range(3)}
    winner = max((0, 1), key=lambda pid: "TJQK".index(cards[pid]))
    facing_bet = "Legal moves: fold, call. Your card:"

    def turn(pid, kind, model, observation, text):
        observation = f"Moves so far: {observation} {cards[pid]}."
        record = {"pid": pid, "kind": kind, "model": model, "observation": observation, "text": text}
        return {**record, "action": text.strip(), "well_formed": True, "invalid": False}

    own = {"invalid_move": False, "truncated": False}
    assert rollout.extras == {
        "final_rewards": {0: 3.0, 1: -2.0, 2: -1.0} if winner == 0 else {0: -2.0, 1: 3.0, 2: -1.0},
        "game_info": {0: own, 1: own, 2: own},
        "num_turns": 4,
        "invalid_pid": None,
        "raised": None,
        "truncated": False,
        "action_seq": ["check", "bet", "fold", "call"],
        "turns": [
            turn(0, "policy", "default", "none. Legal moves: check, bet. Your card:", "check"),
            turn(1, "model", "frozen", "player 0 check. Legal moves: check, bet. Your card:", " bet "),
            turn(2, "policy", "default", f"player 0 check, player 1 bet. {facing_bet}", "fold"),
            turn(0, "policy", "default", f"you check, player 1 bet, player 2 fold. {facing_bet}", "call"),
        ],
    }


@pytest.mark.parametrize(
    ("answer", "well_formed", "reason"),
    [
        ("[9]", True, "illegal move '[9]'"),
        ("[4]", True, "illegal move '[4]'"),
        ("I go first", False, "the answer was not a move"),
        ("[4]\n[5]", False, "the answer was not a move"),
    ],
)
async def test_an_answer_is_well_formed_if_it_has_the_form_of_a_legal_move(answer, well_formed, reason):
    rollout = await play("TicTacToe-v0-train", [POLICY, POLICY], ["[4]", answer])
    assert rollout.extras["turns"][1]["well_formed"] is well_formed
    assert rollout.steps[1].info["format_feedback"]["correct_answer_format"] is well_formed
    assert [info["reason"] for info in rollout.extras["game_info"].values()] == [reason] * 2
    assert rollout.extras["final_rewards"] == {0: 1.0, 1: -1.0}


async def test_a_game_that_eliminates_a_player_gives_the_next_one_the_whole_allowance():
    rollout = await play("LiarsDice-v0-train", [POLICY] * 3, ["nonsense"], error_allowance=1)
    extras = rollout.extras
    assert [turn["pid"] for turn in extras["turns"]] == [0, 0, 1, 1]
    assert extras["final_rewards"] == {0: -1.0, 1: 0.0, 2: 1.0}
    reason = "Player 2 wins! Final ranking: [0, 1, 2]"
    assert extras["game_info"] == {
        pid: {
            "role": f"Player {pid}",
            "invalid_move": pid != 2,
            "truncated": False,
            "turn_count": 0,
            "reason": reason,
        }
        for pid in range(3)
    }


async def test_every_call_has_the_seed_of_its_game_seat_and_turn():
    client = RecordingClient(["check", "bet", "call"])
    await play("kuhn_poker", [POLICY, POLICY], client, seed=11)
    assert client.seeds == [derive_seed(11, "call", pid, turn) for turn, pid in enumerate((0, 1, 0))]


@pytest.mark.parametrize("env_id", ["leduc_poker", "KuhnPoker-v0-train"])
async def test_a_game_is_that_of_its_seed_and_scripts_move_by_theirs(env_id):
    for seed in range(5):
        rollout = await play(env_id, [RANDOM, RANDOM], [], seed=seed)
        game = make_game(env_id, 2, derive_seed(seed, "game"))
        players = [make_player("random", env_id, derive_seed(seed, "script", pid)) for pid in range(2)]
        for turn, record in enumerate(rollout.extras["turns"]):
            pid = game.current_pid
            action = players[pid].act(game, derive_seed(seed, "script", pid, turn))
            played = {"pid": pid, "observation": game.view(pid), "text": action, "action": action}
            assert {key: record[key] for key in played} == played
            game.apply(action)
        assert game.done


class Unscored(Game):
    """A game of two that is over from the start, forgets a reward, and cannot be queried after a failure."""

    current_pid = 0

    def rules(self, pid):
        return ""

    def observation(self, pid):
        return "Nothing."

    def legal_actions(self):
        return None

    def apply(self, action):
        raise ValueError("no")

    def _finished(self):
        return True

    def _own_rewards(self):
        return {0: 1.0}

    def _own_info(self):
        raise KeyError("the state is partly changed")


def test_a_game_that_gives_a_player_no_reward_is_an_episode_error():
    with pytest.raises(EpisodeError) as caught:
        Unscored("unscored", 2).rewards()
    assert str(caught.value) == "unscored gave no reward to player 1"
