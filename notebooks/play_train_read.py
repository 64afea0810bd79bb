"""Play, train and read: one run, from the first prompt to the last figure.

pip install "sparring[notebooks]"
marimo edit notebooks/play_train_read.py
"""

import marimo

app = marimo.App(app_title="Play, train and read")


@app.cell
def _():
    import json
    import subprocess
    import sys
    from pathlib import Path

    import marimo as mo
    import plotly.graph_objects as go

    def sparring(command):
        """Run a command as in a terminal; return what it prints."""
        words = [sys.executable, "-m", "sparring", *command.split()]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return mo.plain_text(done.stdout)

    given = mo.cli_args()
    model, updates = given.get("model") or "smollm2-135m", int(given.get("updates") or 40)
    small = given.get("small") or ""
    return Path, go, json, mo, model, small, sparring, updates


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    # Play, train and read

    A game first: what a model reads at its first move in Kuhn poker.
    """)
    return


@app.cell
def _(sparring):
    sparring("envs kuhn_poker")
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    Now a run: the model plays against itself, and an adapter learns from every answer. Before and after, the
    run measures what the best possible opponent gains. This takes some minutes; the first time, it also
    downloads 93 MB.
    """)
    return


@app.cell
def _(model, small, sparring, updates):
    trained = sparring(
        f"train kuhn --model.name {model} --learning.steps {updates} {small} --name notebook-kuhn"
    )
    trained
    return (trained,)


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    A run is a directory of plain files. `metrics.jsonl` has one line for each update.
    """)
    return


@app.cell
def _(Path, go, json, trained):
    assert trained is not None
    run = Path("runs/notebook-kuhn")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = {line["step"]: line["collection-kuhn_poker/Invalid Move Rate"] for line in lines if line["step"]}
    go.Figure(
        go.Scatter(x=[*curve], y=[*curve.values()], mode="lines+markers"),
        {"title": {"text": "Share of invalid moves"}, "xaxis": {"title": {"text": "update"}}},
    )
    return (run,)


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    The evaluations have a file each. NashConv is 0 at an equilibrium, and 0.917 for random play.
    """)
    return


@app.cell
def _(json, mo, run):
    files = sorted((run / "evaluation").glob("*-nash-conv.json"))
    measured = [json.loads(file.read_text()) for file in files]
    mo.ui.table(
        [
            {"update": one["step"], "NashConv": one["nash_conv"], "legal": one["legal_mass"]}
            for one in measured
        ]
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md("""
    `runs/notebook-kuhn/report.html` has all curves, and games to read. In a terminal,
    `sparring play notebook-kuhn --env kuhn_poker` lets you play against the model.
    """)
    return


if __name__ == "__main__":
    app.run()
