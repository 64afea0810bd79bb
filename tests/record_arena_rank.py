"""Write tests/arena_rank.json: Bradley-Terry ratings of the package arena-rank, which tests compare with.

Run it in an environment of its own, because arena-rank needs jax and another numpy:
pip install arena-rank==0.1.1 && python tests/record_arena_rank.py
"""

import json
import random
from pathlib import Path

FIGURES = Path(__file__).with_name("arena_rank.json")
OUTCOMES = ("model_a", "model_b", "tie")


def games_of(seed: int) -> list[tuple[str, str, str]]:
    """Return games between members of different strength; each pair meets a different number of times."""
    draw = random.Random(seed)
    members = [f"m{number}" for number in range(draw.randint(2, 8))]
    strength = {member: draw.gauss(0, 0.8) for member in members}
    games = []
    for first in members:
        for second in members:
            for _ in range(draw.randint(8, 40) if first != second else 0):
                edge = strength[first] - strength[second] + 0.2
                weights = (2.718**edge, 1.0, draw.choice([0.0, 1.0]))
                games.append((first, second, draw.choices(OUTCOMES, weights)[0]))
    return games


def main() -> None:
    """Fit every set of games, and write the counts and the ratings."""
    import pandas
    from arena_rank.models.bradley_terry import BradleyTerry
    from arena_rank.utils.data_utils import PairDataset

    recorded = []
    for seed in range(8):
        games = games_of(seed)
        frame = pandas.DataFrame(games, columns=["model_a", "model_b", "winner"])
        dataset = PairDataset.from_pandas(frame)
        model = BradleyTerry(len(dataset.competitors), ftol=1e-15, gtol=1e-12)
        found = model.compute_ratings_and_cis(dataset, significance_level=0.05)
        counts = {key: games.count(key) for key in sorted(set(games))}
        recorded.append(
            {
                "games": [[*key, count] for key, count in counts.items()],
                "members": dataset.competitors,
                "low": [round(float(one), 6) for one in found["rating_lower"]],
                "mid": [round(float(one), 6) for one in found["ratings"]],
                "high": [round(float(one), 6) for one in found["rating_upper"]],
            }
        )
    FIGURES.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
