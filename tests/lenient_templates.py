"""Templates that find a move in every answer, so that models with random weights play whole games."""

from sparring.envs.templates import BoxedTemplate


class Lenient(BoxedTemplate):
    """Reads an answer as one of a few moves, by its letters."""

    def __init__(self, name, moves):
        super().__init__(name, "{observation}")
        self.moves = moves

    def extract(self, text):
        return self.moves[sum(map(ord, text)) % len(self.moves)], True


throws = Lenient("throws", ["Rock", "Paper", "Scissors"])
cells = Lenient("cells", [str(cell) for cell in range(9)])
