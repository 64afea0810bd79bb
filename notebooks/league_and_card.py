"""A league and its card: who beats whom, and what an answer to the best one gains.

pip install "sparring[notebooks]"
marimo edit notebooks/league_and_card.py
"""

import marimo

app = marimo.App(app_title="A league and its card")


@app.cell
def _():
    import json
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
    model, updates = given.get("model") or "smollm2-135m", int(given.get("updates") or 30)
    small = given.get("small") or ""
    return Path, json, mo, model, small, sparring, updates


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    # A league and its card

    In a league, exploiters look for the weaknesses of a main player, which learns to mend them. The game here is
    rock, paper, scissors, where whoever has a favourite can be beaten.
    """)
    return


@app.cell
def _(model, small, sparring, updates):
    trained = sparring(
        f"train league --model.name {model} --learning.steps {updates} {small} --name notebook-league"
    )
    trained
    return (trained,)


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    A tournament of the main player, the untrained model and random moves, with what beats whom.
    """)
    return


@app.cell
def _(model, sparring, trained):
    assert trained is not None
    held = sparring(f"tournament notebook-league {model} random --games 20 --out notebook-tournament")
    held
    return (held,)


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    The card: what a best response gains that was trained against the main player for a few updates, with its
    interval and its budget.
    """)
    return


@app.cell
def _(held, sparring):
    assert held is not None
    found = sparring("exploit notebook-league --updates 3 --games 200 --games-per-step 32")
    found
    return (found,)


@app.cell
def _(Path, found, json, mo):
    assert found is not None
    cards = sorted(Path("runs").glob("exploit-*/exploitability.json"))
    mo.tree(json.loads(cards[-1].read_text()))
    return


if __name__ == "__main__":
    app.run()
