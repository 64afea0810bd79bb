"""Your game: write it, play it without a model, train on it.

pip install "sparring[notebooks]"
marimo edit notebooks/your_game.py
"""

import marimo

app = marimo.App(app_title="Your game")


@app.cell
def _():
    import subprocess
    import sys
    from pathlib import Path

    import marimo as mo

    def sparring(command):
        """Run a command as in a terminal; return what it prints."""
        words = [sys.executable, "-m", "sparring", *command.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return mo.plain_text(done.stdout)

    given = mo.cli_args()
    model, updates = given.get("model") or "smollm2-135m", int(given.get("updates") or 20)
    small = given.get("small") or ""
    return Path, mo, model, small, sparring, updates


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    # Your game

    A game is a class in a file of its own: who moves, what a player reads, which moves are legal, who has won.
    """)
    return


@app.cell
def _(Path):
    text = """from sparring.envs.game import Game


    class Sticks(Game):
        def __init__(self, env_id, num_players, seed):
            super().__init__(env_id, num_players)
            self.left, self.turn = 4 + seed % 4, 0

        @property
        def current_pid(self):
            return self.turn % 2

        def rules(self, pid):
            return "Players take 1 or 2 sticks in turn. Whoever takes the last one wins. Answer with the number."

        def observation(self, pid):
            return f"{self.left} sticks are left."

        def legal_actions(self):
            return ["1", "2"][: self.left]

        def apply(self, action):
            self.left -= int(action)
            self.turn += 1
            return True

        def _finished(self):
            return self.left == 0

        def _own_rewards(self):
            winner = 1 - self.current_pid
            return {winner: 1.0, 1 - winner: -1.0}
    """
    Path("sticks.py").write_text(text)
    game = "sticks.py:Sticks"
    return (game,)


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    The prompt of a first move, which random games have made examples for.
    """)
    return


@app.cell
def _(game, sparring):
    sparring(f"envs {game}")
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    `--validate` says whether a run could start, and `train` starts it. Then the model plays against moves at
    random.
    """)
    return


@app.cell
def _(Path, game, model, small, sparring, updates):
    run = f"""
    [[envs]]
    id = "{game}"

    [inference]
    max_tokens = 4

    [learning]
    steps = {updates}
    max_generation_len = 1
    """
    Path("sticks.toml").write_text(run)
    sparring(f"train sticks.toml --model.name {model} {small} --validate")
    trained = sparring(f"train sticks.toml --model.name {model} {small} --name notebook-sticks")
    trained
    return (trained,)


@app.cell
def _(game, sparring, trained):
    assert trained is not None
    sparring(f"eval notebook-sticks --env {game} --opponent random --games 50")
    return


if __name__ == "__main__":
    app.run()
