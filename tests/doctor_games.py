"""Games for runs that have a fault, or none: each of two players says a word, without hearing the other."""

from sparring.envs.environment import Environment, Situation
from sparring.envs.game import Game

WORDS = ("check", "bet", "fold", "call")


class Words(Game):
    """The later word of ``WORDS`` wins."""

    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.said = []

    @property
    def current_pid(self):
        return len(self.said) % 2

    def rules(self, pid):
        return f"Say one of {', '.join(WORDS)}."

    def observation(self, pid):
        return "Your word:"

    def legal_actions(self):
        return [*WORDS]

    def apply(self, action):
        if action in WORDS:
            self.said.append(action)
        return action in WORDS

    def _finished(self):
        return len(self.said) == 2

    def gain(self, first, second):
        """What the first player earns by the places of the two words."""
        return float((first > second) - (first < second))

    def _own_rewards(self):
        gained = self.gain(*map(WORDS.index, self.said))
        return {0: gained, 1: -gained}


class FirstWins(Words):
    """The first player wins, but for one word in four, at which it loses."""

    def gain(self, first, second):
        return 1.0 if first or second else -1.0


class Circle(Words):
    """Each word beats the one before it, and the first beats the last; others are equal."""

    def gain(self, first, second):
        return {1: 1.0, 3: -1.0}.get((first - second) % 4, 0.0)


class Dear(Words):
    """Who loses pays five, and who makes an invalid move one."""

    def gain(self, first, second):
        return 5 * super().gain(first, second)


class Draw(Words):
    """Nobody wins."""

    def gain(self, first, second):
        return 0.0


class Lowest(Words):
    """The earlier word of ``WORDS`` wins."""

    def gain(self, first, second):
        return -super().gain(first, second)


class Raises(Environment):
    """A step of it fails on every move; it does not list any."""

    async def reset(self, seed):
        return Situation({0: "Your word:"})

    async def step(self, answers):
        raise LookupError(WORDS)

    def rules(self, player):
        return f"Say one of {', '.join(WORDS)}."


class Broken(Raises):
    """Fails on moves that it has listed."""

    lists_moves = True

    async def reset(self, seed):
        return Situation({0: "Your word:"}, {0: WORDS})
