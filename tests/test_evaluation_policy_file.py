"""Policy files: what other frameworks write, and NashConv of it."""

import json

import pytest

from sparring.core import InputError
from sparring.evaluation.nash_conv import nash_conv_of_table, states_of
from sparring.evaluation.policy_file import read_policy, write_policy

KUHN = "kuhn_poker"
BET = 1


def uniform():
    return {one.info_state: dict.fromkeys(one.actions, 1 / len(one.actions)) for one in states_of(KUHN)}


def test_a_policy_that_is_written_is_read_back_and_measured(tmp_path):
    write_policy(tmp_path / "a.jsonl", uniform())
    read = read_policy(tmp_path / "a.jsonl", KUHN)
    assert read == [[0.5, 0.5]] * 12
    assert nash_conv_of_table(KUHN, read) == nash_conv_of_table(KUHN) == pytest.approx(11 / 12)


def test_a_policy_of_open_spiels_own_is_measured_as_open_spiel_measures_it(tmp_path):
    from open_spiel.python.algorithms.cfr import CFRSolver
    from open_spiel.python.algorithms.exploitability import nash_conv
    from pyspiel import load_game

    game = load_game(KUHN)
    solver = CFRSolver(game)
    for _ in range(20):
        solver.evaluate_and_update_policy()
    policy = solver.average_policy()
    rows = zip(policy.states, policy.action_probability_array, strict=True)
    table = {
        state.information_state_string(): {action: row[action] for action in state.legal_actions()}
        for state, row in rows
    }
    write_policy(tmp_path / "cfr.jsonl", table)
    measured = nash_conv_of_table(KUHN, read_policy(tmp_path / "cfr.jsonl", KUHN))
    assert measured == pytest.approx(nash_conv(game, policy), abs=1e-9)
    assert measured < 0.1


def test_an_action_that_is_left_out_has_no_probability_and_other_states_do_not_matter(tmp_path):
    always = {state: {BET: 1.0} for state in uniform()} | {"of another game": {7: 1.0}}
    write_policy(tmp_path / "a.jsonl", always)
    assert read_policy(tmp_path / "a.jsonl", KUHN) == [[0.0, 1.0]] * 12


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 13: is no line of a policy"),
        ('{"state": "0", "policy": {"check": 1}}', "line 13: is no line of a policy"),
        (
            '{"state": "0", "policy": {"0": 0.5, "2": 0.5}}',
            "action 2 is not legal there. Legal actions: 0, 1",
        ),
        ('{"state": "0", "policy": {"0": 0.5}}', "the probabilities have the sum 0.5"),
        ('{"state": "0", "policy": {"0": 1.5, "1": -0.5}}', "the probabilities have the sum 1"),
        ('{"state": "0", "policy": {}}', "the probabilities have the sum 0"),
        ('{"state": "0", "policy": {"0": NaN, "1": 1}}', "line 13: is no line of a policy"),
        ('{"state": "0", "policy": {"0": 1e400, "1": 1}}', "line 13: "),
        ('{"state": "0pb", "policy": {"0": 1}}', r"line 13: is about the same state as line \d+\. Keep one"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, said):
    write_policy(tmp_path / "a.jsonl", {**dict([*uniform().items()][1:]), "of another game": {7: 1.0}})
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=said):
        read_policy(tmp_path / "a.jsonl", KUHN)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    file = tmp_path / "policy.jsonl"
    for share in (0.25, 0.125):
        write_policy(file, {one.info_state: {0: share, 1: 1 - share} for one in states_of(KUHN)})
        assert read_policy(file, KUHN)[0] == [share, 1 - share]


def test_a_state_that_is_missing_is_named(tmp_path):
    lines = [json.dumps({"state": state, "policy": policy}) for state, policy in uniform().items()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[1:]))
    with pytest.raises(
        InputError, match=r"lacks 1 of the 12 information states of kuhn_poker\. The first is '0'"
    ):
        read_policy(tmp_path / "a.jsonl", KUHN)
    with pytest.raises(InputError, match="cannot be read"):
        read_policy(tmp_path / "b.jsonl", KUHN)
