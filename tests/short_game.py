"""A game of one's own whose prompts are short, in which every answer is a move."""

from sparring.envs.game import Game


class Talk(Game):
    """Two players say something twice each; the letters decide who wins."""

    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.said = []

    @property
    def current_pid(self):
        return len(self.said) % 2

    def rules(self, pid):
        return f"You are player {pid}. Say something."

    def observation(self, pid):
        return "\n".join([*self.said, "You:"])

    def legal_actions(self):
        return None

    def apply(self, action):
        self.said.append(action)
        return True

    def _finished(self):
        return len(self.said) == 4

    def _own_rewards(self):
        gained = float(sum(map(ord, "".join(self.said))) % 3 - 1)
        return {0: gained, 1: -gained}


class Favourites(Talk):
    """Each of these characters is worth a point, and few models say them often."""

    def _own_rewards(self):
        said = [sum(map(text.count, "4D75py&")) for text in self.said]
        gained = float(sum(said[0::2]) - sum(said[1::2]))
        return {0: gained, 1: -gained}
