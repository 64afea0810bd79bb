"""Tasks in a run: at their own pace, the same questions, on the page and in watch, and after a resume."""

import io
import json
import shutil

import pytest
from rich.console import Console

from game_runs import configure, cut_back, metrics_of, quiet, resumed, run
from program_runs import configure as configure_program
from sparring.cli.main import main
from sparring.commands.compare import read_entries
from sparring.commands.compare_page import comparison_text
from sparring.config import load_config
from sparring.core import InputError
from sparring.evaluation.figures import ACCURACY, CHANGE, FigureName, read_figures
from sparring.evaluation.results import read_evaluation
from sparring.run.checks import check_config
from sparring.run.single_process import train
from sparring.view.report.page import report_html
from sparring.view.source import RunDirectorySource, read_to_end
from sparring.view.tables import before_and_after
from sparring.view.watch.panels import evaluation_panel, run_panel
from sparring.view.whole_run import load_run

SHORT = {"collection__games_per_step": "4", "evaluation__games": "2", "evaluation__games_during": "2"}
OWN = "own, with a space.jsonl"


def write_own(directory, questions=12):
    """Write questions that a model which answers with random bytes has about as often right as wrong."""
    rows = [{"question": f"Is {one} prime?", "answer": str(one % 3)} for one in range(questions)]
    path = directory / OWN
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def tasks_of(directory):
    own = f'{{name = "{write_own(directory)}", questions = 6, max_tokens = 8}}'
    return f'[{{name = "arithmetic", questions = 5, max_tokens = 4, every = 3}}, {own}]'


@pytest.fixture(scope="module")
def asked(model, tmp_path_factory):
    """A run of four updates with two tasks, and what it printed."""
    directory = tmp_path_factory.mktemp("tasks")
    config = configure(model, evaluation__tasks=tasks_of(directory), **SHORT)
    return directory / "run", run(config, directory / "run")


def names(path):
    return sorted(one.name for one in (path / "tasks").iterdir())


def test_each_task_is_asked_at_its_own_pace_and_before_and_after_training(asked):
    path, printed = asked
    stems = {0: ("arithmetic", "own"), 2: ("own",), 3: ("arithmetic",), 4: ("arithmetic", "own")}
    found = {(name[:11], name[12:].split(",")[0].split("-")[0].split(".")[0]) for name in names(path)}
    assert found == {(f"step-{step:06d}", task) for step, tasks in stems.items() for task in tasks}
    for step in (0, 3, 4):
        assert f"update    {step}: accuracy in arithmetic" in printed
    spent = {int(line["step"]): line.get("time/task_seconds", 0) for line in metrics_of(path)}
    assert {step for step, seconds in spent.items() if seconds} == {1, 2, 3, 4}  # of step 0 in the first line
    assert not any(line.get("answers/tasks") for line in metrics_of(path))


def test_the_same_questions_are_asked_every_time(asked):
    path, _ = asked
    prompts = []
    for file in sorted((path / "tasks").glob("*own*.jsonl")):
        rollouts = [json.loads(line)["rollout"] for line in file.read_text().splitlines()]
        prompts.append([one["steps"][0]["prompt"] for one in rollouts])
    assert len(prompts) == 3
    assert prompts[0] == prompts[1] == prompts[2]
    assert len(prompts[0]) == 6
    for file in (path / "tasks").glob("*.json"):
        step, result = read_evaluation(file)
        assert result.compared == (len(result.answered) if step else 0)
        assert result.max_tokens == (4 if result.task == "arithmetic" else 8)
        assert all(len(result.scores) == count for count in [5 if result.task == "arithmetic" else 6])


def test_page_and_watch_show_accuracies_with_intervals(asked):
    path, printed = asked
    view = read_to_end(RunDirectorySource(path))
    series = view.figures[FigureName(ACCURACY, "arithmetic")]
    assert [*series] == [0, 3, 4]
    assert series[4].interval.low <= series[4].value <= series[4].interval.high
    assert FigureName(CHANGE, OWN) in view.figures
    assert view.plays() == ["kuhn_poker"]
    assert view.asks() == ["arithmetic", OWN]
    console = Console(file=io.StringIO(), width=150, record=True)
    console.print(run_panel(view), evaluation_panel(view))
    watched, page = console.export_text(), report_html(load_run(path))
    for text in (watched, page, printed):
        assert "arithmetic, never trained on" in text
        assert "5 questions, updates 0 → 4" in text
        assert f"{OWN}, never trained on" in text
        assert "on the same questions" in text
    assert "Accuracy in tasks" in page
    assert "Questions of tasks, first and last" in page
    assert "What is 3 + 4?" in page or "The answer is: ..." in page
    assert "of tasks" in watched  # the time that they cost


def asked_again(capsys, path, *options):
    """Return the results that ``sparring eval`` prints, by task; its table names each."""
    capsys.readouterr()
    assert main(["eval", str(path), *options, "--json"]) == 0
    out, table = capsys.readouterr()
    printed = json.loads(out)
    lines = table.splitlines()
    assert all(any(line.startswith(one["task"]) for line in lines) for one in printed["tasks"])
    assert (printed["kind"], printed["model"]) == ("tasks", str(path))
    return {one["task"]: one for one in printed["tasks"]}


def test_eval_asks_a_checkpoint_as_the_run_does(asked, capsys):
    path, _ = asked
    own = str(path.parent / OWN)
    for run_or_checkpoint, step in ((path, 4), (f"{path}@2", 2)):
        found = asked_again(capsys, run_or_checkpoint, "--task", "arithmetic", "--task", own)
        assert [*found] == ["arithmetic", OWN]
        for file in (path / "tasks").glob(f"step-{step:06d}-*.json"):
            _, result = read_evaluation(file)
            same = ("scores", "unread", "cut", "tokens", "seed", "temperature", "max_tokens")
            assert {name: found[result.task][name] for name in same} == {
                name: getattr(result, name) for name in same
            }


def test_eval_asks_as_it_is_told(asked, model, tmp_path, capsys):
    path, _ = asked
    own = str(path.parent / OWN)
    found = asked_again(capsys, path, "--task", own, "--questions", "9", "--temperature", "0", "--seed", "5")
    assert (found[OWN]["questions"], found[OWN]["temperature"], found[OWN]["max_tokens"]) == (9, 0.0, 8)
    few = write_own(tmp_path, questions=2)  # of long answers
    drawn = asked_again(capsys, f"{model},top_k=3", "--task", str(few))[OWN]
    assert (drawn["questions"], drawn["sampling"]["top_k"], drawn["max_tokens"]) == (2, 3, 512)


def test_a_task_between_two_evaluations_does_not_hide_the_matches(asked, tmp_path):
    path = shutil.copytree(asked[0], tmp_path / "run")
    for folder in ("evaluation", "tasks"):
        for file in (path / folder).glob("step-000004-*"):
            file.unlink()
    table = before_and_after(read_to_end(RunDirectorySource(path)))
    rows = {title: rows for title, _, rows in table.groups}
    for title in ("kuhn_poker against random", "arithmetic, never trained on"):
        assert all(cell.text for cell in rows[title][0][1:3]), title


def test_compare_lists_the_accuracies(asked, tmp_path):
    other = shutil.copytree(asked[0], tmp_path / "other")
    console = Console(file=io.StringIO(), width=150, record=True)
    console.print(comparison_text(read_entries([str(asked[0]), str(other)])))
    assert "accuracy in arithmetic" in console.export_text()


def test_a_resumed_run_asks_again_and_ends_with_the_same_answers(asked, tmp_path):
    path = shutil.copytree(asked[0], tmp_path / "run")
    older = path / "tasks" / "step-000000-as-an-older-version-called-it.json"
    (path / "tasks" / "step-000000-arithmetic.json").rename(older)
    before = {name: (path / "tasks" / name).read_bytes() for name in names(path) if name.endswith(".json")}
    later = path / "tasks" / "step-000009-arithmetic.json"
    shutil.copy(path / "tasks" / "step-000004-arithmetic.json", later)
    cut_back(path, to=2)
    resumed(path)
    assert {name: (path / "tasks" / name).read_bytes() for name in before} == before
    assert not later.exists()


def test_a_task_may_be_added_to_a_run_that_has_begun(model, tmp_path):
    run(configure(model, **SHORT), tmp_path / "run")
    cut_back(tmp_path / "run", to=2)
    file = tmp_path / "run" / "config.toml"
    table = '[[evaluation.tasks]]\nname = "arithmetic"\nquestions = 2\nmax_tokens = 2\n'
    file.write_text(file.read_text().replace("tasks = []\n", "") + table)
    resumed(tmp_path / "run")
    assert "step-000004-arithmetic.json" in names(tmp_path / "run")


def test_tasks_change_nothing_about_training(asked, model, tmp_path):
    run(configure(model, **SHORT), tmp_path / "plain")
    for step in (2, 4):
        adapter = f"checkpoints/step-{step:06d}/adapter_model.safetensors"
        assert (tmp_path / "plain" / adapter).read_bytes() == (asked[0] / adapter).read_bytes()
    played = [read_figures(path / "evaluation", 4) for path in (asked[0], tmp_path / "plain")]
    assert played[0] == played[1]


def test_every_policy_of_a_program_is_asked(model, tmp_path):
    tasks = '[{name = "arithmetic", questions = 2, max_tokens = 2}]'
    config = configure_program(
        model, tmp_path, evaluation__tasks=tasks, evaluation__temperature="0.0", learning__steps="1"
    )
    run(config, tmp_path / "run")
    results = [read_evaluation(path)[1] for path in sorted((tmp_path / "run" / "tasks").glob("*.json"))]
    assert {one.temperature for one in results} == {0.0}
    labels = sorted({one.task for one in results})
    assert len(labels) == 2
    assert all(label.startswith("arithmetic, ") for label in labels)
    assert FigureName(ACCURACY, labels[0]) in read_to_end(RunDirectorySource(tmp_path / "run")).figures


def test_a_run_in_which_no_question_can_be_asked_ends_in_one_line(model, tmp_path):
    rows = [{"question": "Why? " * 4000, "answer": "so"}] * 2
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = configure(model, evaluation__tasks=f'["{tmp_path / "long.jsonl"}"]', **SHORT)
    with pytest.raises(InputError, match=r"no question of long\.jsonl could be asked") as refused:
        train(config, tmp_path / "run", quiet())
    assert "\n" not in str(refused.value)


def test_a_dry_run_reads_the_questions(model, tmp_path):
    config = configure(model, evaluation__tasks=tasks_of(tmp_path))
    assert {"task arithmetic: 5 questions", f"task {OWN}: 6 questions"} <= {*check_config(config)}
    (tmp_path / OWN).unlink()
    with pytest.raises(InputError, match=r"evaluation\.tasks\.1\.name: .* cannot be read"):
        check_config(config)


def test_the_file_of_a_task_is_relative_to_the_configuration(tmp_path):
    write_own(tmp_path)
    file = tmp_path / "run.toml"
    file.write_text(
        '[[envs]]\nid = "kuhn_poker"\n[evaluation]\n'
        f'tasks = ["{OWN}", "arithmetic", {{name = "./other.jsonl"}}]\n'
    )
    tasks = load_config(str(file), {}).evaluation.tasks
    assert [one.name for one in tasks] == [str(tmp_path / OWN), "arithmetic", str(tmp_path / "other.jsonl")]
