"""Small games with OpenSpiel's rules in which players know their own tries and nothing else.

``python_own_tries(rules=RULES,start=ACTIONS)`` has the rules of a game in ``RULES`` and starts after
``ACTIONS``, such as ``a4a4a0``. Its information states are OpenSpiel's without the number of tries that
``dark_hex`` tells, with the seat before them, because both seats may have the same.
"""

import re

import pyspiel

RULES = {
    "phantom": "phantom_ttt",
    "hex2x2": "dark_hex(num_rows=2,num_cols=2)",
    "hex2x3": "dark_hex(num_rows=2,num_cols=3)",
}
NAME = "python_own_tries"
_TYPE = pyspiel.GameType(
    short_name=NAME,
    long_name="Own tries",
    dynamics=pyspiel.GameType.Dynamics.SEQUENTIAL,
    chance_mode=pyspiel.GameType.ChanceMode.DETERMINISTIC,
    information=pyspiel.GameType.Information.IMPERFECT_INFORMATION,
    utility=pyspiel.GameType.Utility.ZERO_SUM,
    reward_model=pyspiel.GameType.RewardModel.TERMINAL,
    max_num_players=2,
    min_num_players=2,
    provides_information_state_string=True,
    provides_information_state_tensor=False,
    provides_observation_string=False,
    provides_observation_tensor=False,
    default_loadable=False,
    parameter_specification={"rules": "hex2x2", "start": ""},
)


class OwnTriesGame(pyspiel.Game):
    def __init__(self, params=None):
        given = params or {}
        self.rules = pyspiel.load_game(RULES[given["rules"]])
        self.start = [int(action) for action in re.findall(r"a(\d+)", given.get("start", ""))]
        info = pyspiel.GameInfo(
            num_distinct_actions=self.rules.num_distinct_actions(),
            max_chance_outcomes=0,
            num_players=2,
            min_utility=-1.0,
            max_utility=1.0,
            utility_sum=0.0,
            max_game_length=self.rules.max_game_length(),
        )
        super().__init__(_TYPE, info, given)

    def new_initial_state(self):
        return OwnTriesState(self)

    def make_py_observer(self, iig_obs_type=None, params=None):
        return OwnTriesObserver()


class OwnTriesObserver:
    """Tells what a player knows, as OpenSpiel asks for it."""

    tensor, dict = None, {}

    def set_from(self, state, player):
        pass

    def string_from(self, state, player):
        return f"P{player} " + re.sub(r"\n\d+\n", "\n", state.inner.information_state_string(player))


class OwnTriesState(pyspiel.State):
    def __init__(self, game):
        super().__init__(game)
        self.inner = game.rules.new_initial_state()
        for action in game.start:
            self.inner.apply_action(action)

    def current_player(self):
        return self.inner.current_player()

    def _legal_actions(self, player):
        return self.inner.legal_actions(player)

    def _apply_action(self, action):
        self.inner.apply_action(action)

    def _action_to_string(self, player, action):
        return self.inner.action_to_string(player, action)

    def is_terminal(self):
        return self.inner.is_terminal()

    def returns(self):
        return self.inner.returns()

    def __str__(self):
        return str(self.inner)


pyspiel.register_game(_TYPE, OwnTriesGame)
