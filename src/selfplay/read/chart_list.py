"""The one list of charts: everything of a run that is worth plotting, for its page and for the terminal.

A new chart goes into the function of its section, in ``learning_charts``, ``population_charts``,
``league_charts``, ``play_charts`` or ``strength_charts``, or for runs through fine-tuning jobs in
``tuning_charts``.
"""

from selfplay.read.charts import Chart
from selfplay.read.learning_charts import learning_charts, reward_charts
from selfplay.read.play_charts import answer_charts, play_charts, speed_charts
from selfplay.read.population_charts import population_charts
from selfplay.read.run_view import RunView
from selfplay.read.strength_charts import strength_charts
from selfplay.read.tuning_charts import tuning_answer_charts, tuning_reward_charts, tuning_strength_charts


def chart_sections(run: RunView) -> dict[str, list[Chart]]:
    """Return the charts for which the run has data, by section."""
    if run.tuning is not None:
        made = {
            "Strength": tuning_strength_charts(run),
            "Rewards": tuning_reward_charts(run),
            "Answers": tuning_answer_charts(run),
        }
    else:
        made = {
            "Strength": strength_charts(run),
            "Population": population_charts(run),
            "Rewards": reward_charts(run),
            "Learning": learning_charts(run),
            "Play": play_charts(run),
            "Answers": answer_charts(run),
            "Speed": speed_charts(run),
        }
    found = {title: [one for one in charts if one is not None] for title, charts in made.items()}
    return {title: charts for title, charts in found.items() if charts}
