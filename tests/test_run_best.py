"""The best adapter of a run: which one is kept, how long, and how commands name it."""

import asyncio
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from game_runs import configure, cut_back, run
from program_runs import configure as configure_program
from run_files import match, nash, write_run
from sparring.commands.model_source import find_model
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.evaluation import write_evaluation
from sparring.evaluation.figures import read_figures
from sparring.evaluation.results import MeasureResult
from sparring.run.best import keep_if_best
from sparring.run.checks import check_config
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import resume

WINS = "win rate against random"
MASS = "mass on legal moves"


@pytest.fixture
def directory(tmp_path):
    """A run that this process may write."""
    run = RunDirectory.create(tmp_path / "run")
    yield run
    run.unlock()


def evaluated(run, keep_best, results):
    """Evaluate some updates one after another; return which are kept as the best so far at the end."""
    for step, result in results.items():
        write_evaluation(run.evaluation, step, "evaluation", result)
        asyncio.run(keep_if_best(run, keep_best, step, lambda folder, step=step: adapter_of(folder, step)))
    return run.best_steps()


async def adapter_of(folder, step):
    (folder / "adapter_config.json").write_text(str(step))


@pytest.mark.parametrize(
    ("keep_best", "results", "best"),
    [
        (WINS, {2: match(5, 10), 4: match(7, 10), 6: match(6, 10)}, 4),
        ("loss rate against random", {2: match(5, 10), 4: match(7, 10), 6: match(6, 10)}, 4),
        ("invalid moves against random in kuhn_poker", {2: match(5, 10), 4: match(7, 10)}, 4),
        ("NashConv", {2: nash(0.5), 4: nash(0.1), 6: nash(0.9)}, 4),
        ("NashConv in kuhn_poker", {2: nash(0.1), 4: nash(0.01, mass=0.05)}, 2),
        ("mass on legal moves", {2: nash(0.5, mass=0.6), 4: nash(0.5, mass=0.5)}, 2),
        ("letters", {2: MeasureResult("letters", [3.0]), 4: MeasureResult("letters", [2.0])}, 2),
        ("smallest letters", {2: MeasureResult("letters", [3.0]), 4: MeasureResult("letters", [2.0])}, 4),
        ("smallest letters", {2: MeasureResult("letters", [2.0]), 4: MeasureResult("letters", [3.0])}, 2),
        (WINS, {2: match(5, 10), 4: match(5, 10)}, 4),
        ("NashConv", {2: nash(0.5), 4: nash(0.5)}, 4),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_best_is_the_largest_or_smallest_as_the_figure_asks_and_of_equals_the_newest(
    directory, keep_best, results, best
):
    assert evaluated(directory, keep_best, results)[-1] == best
    assert (directory.best(best) / "adapter_config.json").read_text() == str(best)


def test_nothing_is_kept_without_a_figure_and_never_the_untrained_model(directory):
    assert evaluated(directory, None, {2: match(5, 10)}) == []
    assert evaluated(directory, WINS, {0: match(9, 10)}) == []
    assert evaluated(directory, WINS, {4: match(1, 10)}) == [4], (
        "worse than untrained, but the best trained one"
    )


def test_an_evaluation_without_the_figure_changes_nothing(directory):
    assert evaluated(directory, "NashConv", {2: nash(0.5), 4: match(5, 10), 6: nash(0.6)}) == [2]


@pytest.mark.parametrize(
    ("keep_best", "said"),
    [
        ("win rate against rndom", 'measures .* Did you mean "win rate against random"'),
        ("strength", 'no evaluation measures \'strength\'. Use one of "win rate against random", "draw rate'),
        ("smallest strength", "no evaluation measures 'strength'"),
    ],
)
def test_the_first_evaluation_rejects_a_figure_that_it_does_not_have(directory, keep_best, said):
    with pytest.raises(InputError, match=f"run.keep_best: .*{said}"):
        evaluated(directory, keep_best, {0: match(5, 10)})


def test_a_figure_of_several_environments_needs_the_environment(directory):
    for env_id in ("kuhn_poker", "leduc_poker"):
        write_evaluation(directory.evaluation, 0, env_id, nash(0.5, env_id=env_id))
    asyncio.run(keep_if_best(directory, "NashConv in leduc_poker", 0, adapter_of))
    said = 'may mean several figures. Use one of "NashConv in kuhn_poker", "NashConv in leduc_poker"'
    with pytest.raises(InputError, match=said):
        asyncio.run(keep_if_best(directory, "NashConv", 0, adapter_of))


def test_an_earlier_best_stays_while_the_run_may_be_resumed_from_before_the_new_one(directory):
    directory.checkpoint(3).mkdir()
    assert evaluated(directory, WINS, {1: match(1, 10), 2: match(2, 10), 4: match(4, 10)}) == [2, 4]
    directory.truncate_after(3)
    assert directory.best_steps() == [2], "the run continues from update 3, whose best so far is that of 2"
    assert evaluated(directory, WINS, {4: match(1, 10)}) == [2], "played again, it may end otherwise"


def test_a_repeated_evaluation_and_one_by_another_figure_are_judged_anew(directory):
    assert evaluated(directory, WINS, {2: match(5, 10), 4: match(7, 10)}) == [2, 4]
    assert evaluated(directory, WINS, {4: match(7, 10)}) == [2, 4]
    assert evaluated(directory, WINS, {4: match(3, 10)}) == [2], "of an evaluation that was interrupted"
    assert evaluated(directory, "mean reward against random", {6: match(1, 10)})[-1] == 6


def test_a_process_whose_run_was_resumed_elsewhere_keeps_nothing(directory):
    Epoch.begin(directory.path)
    with pytest.raises(SparringError, match="resumed by another process"):
        evaluated(directory, WINS, {2: match(5, 10)})
    assert directory.best_steps() == []
    shutil.rmtree(directory.path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keep_best": "NashConv"}, None),
        ({"keep_best": "win rate against optimal in kuhn_poker"}, None),
        ({"keep_best": "mass on legal moves"}, None),
        ({"keep_best": "win rate against base"}, 'Did you mean "win rate against'),
        ({"keep_best": "NashConv in leduc_poker"}, "no evaluation measures 'NashConv in leduc_poker'"),
        (
            {"keep_best": "NashConv", "every": "0"},
            "nothing is measured between the first update and the last",
        ),
    ],
)
def test_a_figure_that_a_run_on_games_will_not_have_is_rejected_before_it_starts(model, changes, said):
    overrides = {"run.keep_best": changes["keep_best"], "evaluation.every": changes.get("every", "2")}
    config = load_config("quickstart", {"model.name": str(model), **overrides})
    if said is None:
        check_config(config)
    else:
        with pytest.raises(InputError, match=f"run.keep_best: .*{said}"):
            check_config(config)


def weights(folder: Path) -> dict:
    return load_file(folder / "adapter_model.safetensors")


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    """A finished run that keeps its best adapter, an average, and all of its checkpoints."""
    path = tmp_path_factory.mktemp("kept") / "run"
    changes = {"run__keep_best": f"smallest {MASS}", "run__save_every": "1", "evaluation__every": "1"}
    changes["evaluation__nash_conv"] = "true"
    run(
        configure(model, learning__average_decay="0.5", learning__learning_rate="0.01", **changes),
        path,
    )
    return path


def test_a_run_keeps_the_adapter_whose_evaluation_was_the_best(kept):
    figures = {step: read_figures(kept / "evaluation", step) for step in (1, 2, 3, 4)}
    values = {step: one.value for step in figures for one in figures[step] if one.name.name == MASS}
    best = max(step for step in values if values[step] == min(values.values()))
    assert best < 4, "or this test cannot tell the best from the last"
    directory = RunDirectory.open(kept)
    assert directory.best_steps()[-1] == best
    assert same(weights(directory.best(best)), weights(directory.checkpoint(best)))


def test_a_resumed_run_keeps_the_same_best(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "run")
    cut_back(tmp_path / "run", to=1)
    resume(tmp_path / "run", Console(file=io.StringIO()))
    once, again = (RunDirectory.open(path) for path in (kept, tmp_path / "run"))
    assert again.best_steps() == once.best_steps()
    best = once.best_steps()[-1]
    assert same(weights(again.best(best)), weights(once.best(best)))


def test_a_program_keeps_the_best_of_all_its_policies(model, tmp_path):
    config = configure_program(model, tmp_path, run__keep_best="smallest odd letters", learning__steps="2")
    run(config, tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.best_steps() == [2]
    for policy in ("hider", "seeker"):
        assert same(weights(directory.best(2) / policy), weights(directory.checkpoint(2) / policy))


def test_an_unknown_measure_of_a_program_ends_the_run_at_its_first_evaluation(model, tmp_path):
    config = configure_program(model, tmp_path, run__keep_best="even letters")
    with pytest.raises(
        InputError, match=r'no evaluation measures .even letters.. Did you mean "odd letters"'
    ):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_a_run_have_names(kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(kept)
    directory = RunDirectory(Path("runs/mine"))
    best = directory.best(directory.best_steps()[-1])
    for name, found in {
        "mine": directory.checkpoint(4),
        "mine@last": directory.checkpoint(4),
        "mine@2": directory.checkpoint(2),
        "mine@000002": directory.checkpoint(2),
        "mine@best": best,
    }.items():
        assert find_model(name).adapter == found
    assert find_model(f"{kept}@best").adapter == kept / "best" / best.name
    for name, said in {
        "mine@7": "mine@7: this run has no checkpoint of update 7. There are: 0, 1, 2, 3, 4",
        "mine@newest": "mine@newest: 'newest' is no checkpoint. Give a number of updates, best or last",
        "yours@best": "MODEL_OR_RUN: 'yours@best' is neither a run",
    }.items():
        with pytest.raises(InputError, match=said):
            find_model(name)


def test_a_best_adapter_has_a_name_by_its_update_after_its_checkpoint_is_gone(kept, tmp_path):
    shutil.copytree(kept, tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    best = directory.best_steps()[-1]
    shutil.rmtree(directory.checkpoint(best))
    assert find_model(f"{tmp_path / 'run'}@{best}").adapter == directory.best(best)


def test_a_run_without_a_best_adapter_says_so(tmp_path):
    path = write_run(tmp_path / "run", {})
    with pytest.raises(InputError, match=r"this run has no best adapter. It is kept with run.keep_best"):
        find_model(f"{path}@best")


def test_a_directory_with_an_at_sign_in_its_name_is_itself(tmp_path):
    path = write_run(tmp_path / "run@2", {})
    assert find_model(str(path)).adapter == path / "checkpoints" / "step-000004"
    assert find_model(f"{path}@4").adapter == path / "checkpoints" / "step-000004"


def test_a_kill_while_the_best_is_replaced_leaves_one(directory):
    evaluated(directory, WINS, {2: match(5, 10)})
    shutil.copytree(directory.best(2), directory.bests / ".step-000002.replaced")
    shutil.rmtree(directory.best(2))
    directory.unlock()
    directory.lock()
    assert directory.best_steps() == [2]
