"""``sparring bench``: the file, the runs of its cells, what is written about them, and going on."""

import hashlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ladders import FILE, played_at_once, write_ladder
from psro_runs import SHORT, configuration, state_of
from run_files import match
from sparring.cli.main import main
from sparring.commands.ladder.file import options_of
from sparring.commands.ladder.ladder import run_ladder
from sparring.commands.ladder.results import RESULTS, LadderResult, differing
from sparring.commands.ladder.standings import standings_of
from sparring.config.loading import load_config
from sparring.config.toml_files import parse_toml
from sparring.core import InputError
from sparring.core.files import is_locked, lock_directory
from sparring.evaluation import aggregates, write_evaluation
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import states_of
from sparring.evaluation.policy_file import write_policy
from sparring.population import meta_strategies
from terminal_sessions import IN_BACKGROUND

FALLING = {0: 1.1, 2: 0.6, 4: 0.3}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory; intervals, which test_evaluation_aggregates tests, are of few resamples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aggregates, "RESAMPLES", 100)


def falling(name, seed):
    return {update: value + seed / 10 for update, value in FALLING.items()}


def test_each_combination_and_seed_is_a_run_whose_command_anybody_can_type(tmp_path):
    played = []
    result = run_ladder(write_ladder(tmp_path), Path("out"), jobs=1, play=played_at_once(falling, played))
    names = [f"kuhn.{recipe}.seed-{seed}" for seed in (0, 1) for recipe in ("magnet", "neurd")]
    assert [cell.name for cell in result.cells] == names
    assert sorted(path.name for path in Path("out").iterdir() if path.is_dir()) == sorted(names)
    words = "train kuhn --name kuhn.neurd.seed-1 --seed 1 --recipe neurd --collection.games_per_step=10"
    fields = "--learning.steps=4 --evaluation.every=2 '--evaluation.opponents=[]'"
    rest = "--learning.algorithm.alpha=0.5 --model.threads=1 --run.directory=out"
    assert result.cells[3].command == f"sparring {words} {fields} {rest}"
    assert len(played) == 4
    assert LadderResult.read(Path("out", RESULTS)) == result


def test_a_cell_has_its_figures_by_games_and_seconds_and_the_hash_of_its_weights(tmp_path):
    cell = run_ladder(write_ladder(tmp_path), Path("out"), jobs=1, play=played_at_once(falling)).cells[2]
    assert [(one.games, one.seconds) for one in cell.points] == [(0, 0.0), (20, 12.0), (40, 24.0)]
    assert [one.value for one in cell.points] == pytest.approx([1.2, 0.7, 0.4])
    assert cell.sha256 == hashlib.sha256(b"kuhn.magnet.seed-1").hexdigest()


def test_the_win_rate_of_a_run_is_a_share_and_said_in_percent_with_the_time_it_took(tmp_path):
    play = played_at_once(falling)

    def with_matches(words, inherited):
        problem = play(words, inherited)
        for update, wins in ((0, 4), (4, 9)):
            results = Path("out", words[4], "evaluation")
            write_evaluation(results, update, "random", match(wins, 20))
        return problem

    said = []

    class Said(Progress):
        def say(self, line):
            said.append(line)

    text = FILE.replace("[0, 1]", '[0]\nmeasure = "win rate against random"')
    text = text.replace("evaluation.opponents = []", 'evaluation.opponents = ["random"]').split(
        "[recipes.neurd]"
    )[0]
    (cell,) = run_ladder(
        write_ladder(tmp_path, text), Path("out"), jobs=1, play=with_matches, progress=Said()
    ).cells
    assert (cell.is_share, [one.value for one in cell.points]) == (True, [0.2, 0.45])
    assert said[-1] == "kuhn.magnet.seed-0: win rate against random 45.0% after 40 games, 24 s"


def test_what_is_complete_is_not_played_again_and_more_may_be_asked_for(tmp_path):
    run_ladder(write_ladder(tmp_path), Path("out"), jobs=1, play=played_at_once(falling))
    more, played = FILE.replace("[0, 1]", "[0, 1, 2]"), []
    result = run_ladder(
        write_ladder(tmp_path, more), Path("out"), jobs=1, play=played_at_once(falling, played)
    )
    assert [words[4] for words in played] == ["kuhn.magnet.seed-2", "kuhn.neurd.seed-2"]
    assert len(result.done) == 6


def test_runs_of_another_file_are_not_taken_for_its_own(tmp_path):
    run_ladder(write_ladder(tmp_path), Path("out"), jobs=1, play=played_at_once(falling))
    changed = write_ladder(tmp_path, FILE.replace("alpha = 0.5", "alpha = 0.6"))
    with pytest.raises(InputError, match=r"differs in learning\.algorithm\.alpha"):
        run_ladder(changed, Path("out"), jobs=1, play=played_at_once(falling))


def test_a_cell_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    play, file = played_at_once(falling), write_ladder(tmp_path)

    def failing(words, inherited):
        if words[4] == "kuhn.magnet.seed-0":
            return "model.name: there is none"
        return play(words, inherited)

    first = run_ladder(file, Path("out"), jobs=1, play=failing)
    assert [cell.problem for cell in first.cells] == ["model.name: there is none", "", "", ""]
    assert len(first.done) == 3
    assert len(run_ladder(file, Path("out"), jobs=1, play=play).done) == 4


def test_cells_that_end_with_other_bytes_are_named(tmp_path):
    result = run_ladder(write_ladder(tmp_path), Path("out"), jobs=1, play=played_at_once(falling))
    other = LadderResult.read(Path("out", RESULTS))
    other.cells[1].sha256 = "0" * 64
    other.cells[2].sha256 = ""
    same, others = differing(result, other)
    assert same == ["kuhn.magnet.seed-0", "kuhn.neurd.seed-1"]
    assert others == ["kuhn.neurd.seed-0"]


def test_the_file_of_another_directory_or_of_another_process_is_left_alone(tmp_path):
    file = write_ladder(tmp_path)
    Path("notes").mkdir()
    Path("notes", "mine.txt").write_text("")
    with pytest.raises(InputError, match="is not a ladder"):
        run_ladder(file, Path("notes"), play=played_at_once(falling))
    Path("out").mkdir()
    lock = lock_directory(Path("out"))
    with pytest.raises(InputError, match="in use by another process"):
        run_ladder(file, Path("out"), play=played_at_once(falling))
    os.close(lock)


def test_later_tables_win_and_a_list_is_replaced_as_a_whole():
    base = {"config": "kuhn", "learning": {"steps": 4}, "envs": {"0": {"explore": 0.1}}}
    game = {"envs": [{"id": "leduc_poker"}]}
    recipe = {"recipe": "magnet", "envs": {"0": {"explore": 0.2}}, "learning": {"steps": 8}}
    source, laid_over, fields = options_of(base, game, recipe)
    assert (source, laid_over) == ("kuhn", "magnet")
    assert list(fields.items()) == [
        ("envs", '[{id = "leduc_poker"}]'),
        ("envs.0.explore", "0.2"),
        ("learning.steps", "8"),
    ]
    config = load_config(source, fields, laid_over)
    assert [(env.id, env.explore) for env in config.envs] == [("leduc_poker", 0.2)]


values = st.recursive(
    st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, min_size=1, max_size=3),
    max_leaves=6,
)


@example(["\x7f"])
@given(st.lists(values, max_size=3) | st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_a_value_of_the_file_is_the_same_on_the_command_line(value):
    (text,) = options_of({"config": "kuhn", "name": value})[2].values()
    try:
        assert parse_toml(f"value = {text}")["value"] == value
    except ValueError:  # what is no TOML is a text
        assert text == value


def real(tmp_path, model, updates=3):
    size = f'model.name = "{model}"\ncollection.games_per_step = 8\nlora.rank = 2\nlearning.steps = {updates}'
    text = FILE.replace("collection.games_per_step = 10\nlearning.steps = 4", size)
    return write_ladder(tmp_path, text.split("[recipes.neurd]")[0])


@pytest.mark.slow  # runs that are repeated are compared by default in test_run_local
def test_the_command_of_a_cell_ends_with_the_same_bytes(tmp_path, capsys, playing):
    file = real(tmp_path, playing)
    write_ladder(tmp_path, file.read_text().replace("[0, 1]", "[1]"))
    assert main(["bench", str(file), "--out", "out"]) == 0
    assert "kuhn.magnet" not in capsys.readouterr().err
    (cell,) = LadderResult.read(Path("out", RESULTS)).cells
    assert [one.games for one in cell.points] == [0, 16, 24]
    words = [*shlex.split(cell.command)[1:-1], "--run.directory=again"]
    assert main(words) == 0
    (weights,) = Path("again", cell.name, "checkpoints", "step-000003").glob("adapter_model.safetensors")
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == cell.sha256


@pytest.mark.slow
def test_a_psro_is_measured_by_the_mixture_of_each_iteration_and_counts_its_payoff_games(tmp_path, playing):
    game = configuration(tmp_path, SHORT, playing)
    text = f'seeds = [1]\n[base]\nconfig = "{game}"\n[games.kuhn]\n[recipes.magnet]\nrecipe = "magnet"\n'
    file = write_ladder(tmp_path, text + "[opponents.psro]\npsro.iterations = 1\n")
    (cell,) = run_ladder(file, Path("out")).cells
    words = f"sparring psro {game} --name kuhn.magnet.psro.seed-1 --seed 1 --recipe magnet"
    assert cell.command.startswith(words)
    first, second = state_of(Path("out", cell.name))["iterations"]
    assert [one.value for one in cell.points] == [first["nash_conv"], second["nash_conv"]]
    assert [one.games for one in cell.points] == [0, 2 * 8 + 20]
    assert len(cell.sha256) == 64
    played = []
    assert run_ladder(file, Path("out"), play=lambda words, inherited: played.append(words) or "").cells == [
        cell
    ]
    assert not played, "it is complete"
    changed = write_ladder(tmp_path, text + "[opponents.psro]\npsro.iterations = 1\npsro.payoff_games = 40\n")
    with pytest.raises(InputError, match=r"differs in psro\.payoff_games"):
        run_ladder(changed, Path("out"))


def test_a_psro_is_compared_by_nash_conv_only(tmp_path):
    text = FILE.replace("[0, 1]", '[0]\nmeasure = "win rate against random"').replace(
        "evaluation.opponents = []", 'evaluation.opponents = ["random"]'
    )
    with pytest.raises(InputError, match=r"kuhn\.magnet\.psro\.seed-0: psro: a PSRO is measured by NashConv"):
        run_ladder(write_ladder(tmp_path, text + "[opponents.psro]\npsro.iterations = 1\n"), Path("out"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_ladder_that_is_stopped_goes_on_to_the_same_end(tmp_path, playing, how):
    file, python = real(tmp_path, playing, updates=12), [sys.executable, "-m", "sparring", "bench"]
    subprocess.run([*python, file, "--out", "whole"], check=True)
    process = subprocess.Popen([*python, file, "--out", "out"])
    while not any(Path("out").glob("*/checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    process.wait()
    subprocess.run([*python, file, "--out", "out", "--against", "whole/ladder.json"], check=True)
    same, others = differing(*(LadderResult.read(Path(one, RESULTS)) for one in ("out", "whole")))
    assert len(same) == 2
    assert not others


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[recipes.magnet]", "[opponents]\n[recipes.magnet]", "opponents: must have at least one entry"),
        ("[games.kuhn]", "[games.-x]", r"games\.-x: is not a plain name"),
        ("[games.kuhn]", f"[games.{'a' * 190}]", "--name: has 20"),
        ("[0, 1]", f"[{2**70}]", r"seeds\.0: must be at most"),
        ('"magnet"', "3", "recipe: 3 is not a text"),
        ("learning.steps", "seed = 3\nlearning.steps", "seed: is given by the ladder"),
        ("[games.kuhn]", "run.directory = 'x'\n[games.kuhn]", r"run\.directory: is given by the ladder"),
        ("[games.kuhn]", "[entries.magnet]\n[games.kuhn]", r"entries\.magnet: is also the name of a recipe"),
    ],
)
def test_a_ladder_that_cannot_be_held_is_refused_in_one_line(tmp_path, old, new, said):
    with pytest.raises(InputError, match=said):
        run_ladder(
            write_ladder(tmp_path, FILE.replace(old, new, 1)), Path("out"), play=played_at_once(falling)
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metrics.jsonl", "lacks update 2"),
        ("evaluation/step-000002-nash-conv.json", "is damaged"),
        ("checkpoints/step-000004/adapter_model.safetensors", "has no adapter"),
    ],
)
def test_a_cell_whose_files_are_damaged_is_told_and_the_others_count(tmp_path, name, said):
    file, play = write_ladder(tmp_path), played_at_once(falling)
    run_ladder(file, Path("out"), jobs=1, play=play)
    path = Path("out", "kuhn.neurd.seed-0", name)
    path.write_text("{") if path.suffix == ".json" else path.unlink()
    result = run_ladder(file, Path("out"), jobs=1, play=lambda words, inherited: "played again")
    assert [one.name for one in result.cells if one.problem] == ["kuhn.neurd.seed-0"]
    assert said in result.cells[1].problem


POLICIES = """
seeds = [0]
[base]
config = "kuhn"
[games.kuhn]
[entries.cfr]
policies = "{game}-{env}-{seed}-{games}.jsonl"
"""


def test_policy_files_of_others_are_measured_by_the_games_in_their_names(tmp_path):
    uniform = {
        one.info_state: dict.fromkeys(one.actions, 1 / len(one.actions)) for one in states_of("kuhn_poker")
    }
    always_first = {one.info_state: {one.actions[0]: 1.0} for one in states_of("kuhn_poker")}
    file = write_ladder(tmp_path, POLICIES)
    assert (
        run_ladder(file, Path("out")).cells[0].problem
        == "there is no file kuhn-kuhn_poker-0-{games}.jsonl yet"
    )
    write_policy(Path("kuhn-kuhn_poker-0-200.jsonl"), uniform)
    write_policy(Path("kuhn-kuhn_poker-0-20.jsonl"), always_first)
    Path("kuhn-kuhn_poker-0-x.jsonl").write_text("")
    (cell,) = run_ladder(file, Path("out")).cells
    assert [one.games for one in cell.points] == [20, 200]
    assert [one.value for one in cell.points] == pytest.approx([2, 11 / 12])
    assert cell.entry == "cfr"


def test_a_game_in_which_uniform_play_is_an_equilibrium_has_scores_too(tmp_path):
    game = "turn_based_simultaneous_game(game=matrix_mp())"
    text = f'seeds = [0]\n[base]\nconfig = "kuhn"\nenvs.0.id = "{game}"\nevaluation.opponents = []\n'
    write_policy(Path("a.jsonl"), {one.info_state: {one.actions[0]: 1.0} for one in states_of(game)})
    file = write_ladder(tmp_path, text + '[games.pennies]\n[entries.first]\npolicies = "a.jsonl"\n')
    result = run_ladder(file, Path("out"))
    assert result.scales == {"pennies": 1.0}
    assert standings_of(result)[0].after_games.mid == 2.0


def test_the_command_of_an_entry_makes_its_policy_files_once(tmp_path):
    line = '{"state": "0", "policy": {"0": 1}}'
    Path("make.py").write_text(f"import sys\nopen(sys.argv[1], 'w').write({line!r})\n")
    text = POLICIES.replace("-{games}", "") + 'command = "python make.py {game}-{env}-{seed}.jsonl"\n'
    file = write_ladder(tmp_path, text)
    (cell,) = run_ladder(file, Path("out")).cells
    assert cell.command == "python make.py kuhn-kuhn_poker-0.jsonl"
    assert "lacks 11 of the 12 information states" in cell.problem, "the file was made, and read"


def test_a_command_that_has_changed_makes_its_files_again(tmp_path):
    text = POLICIES.replace("-{games}", "") + 'command = "python make.py {game}-{env}-{seed}.jsonl"\n'
    for line in ("first", "second"):
        Path("make.py").write_text(f"import sys\nopen(sys.argv[1], 'w').write({line!r})\n")
        run_ladder(
            write_ladder(tmp_path, text.replace('seed}.jsonl"\n', f'seed}}.jsonl {line}"\n')), Path("out")
        )
        assert Path("kuhn-kuhn_poker-0.jsonl").read_text() == line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program {out}", "no-such-program cannot be started"),
        ("python fail.py {out}", "the directory is a b: " + "x" * 900),
    ],
)
def test_a_command_that_fails_is_told_in_one_short_line_and_stops_no_other(tmp_path, command, said):
    Path("fail.py").write_text(
        "import sys\nsys.exit('error: the directory is ' + sys.argv[1] + ': ' + 'x' * 10**7)\n"
    )
    write_policy(
        Path("kuhn.jsonl"), {one.info_state: {one.actions[0]: 1.0} for one in states_of("kuhn_poker")}
    )
    text = POLICIES.replace("{game}-{env}-{seed}-{games}", "other") + f'command = "{command}"\n'
    file = write_ladder(tmp_path, text + '[entries.table]\npolicies = "kuhn.jsonl"\n')
    failed, other = run_ladder(file, Path("a b")).cells
    assert said in failed.problem
    assert len(failed.problem) <= 1000
    assert other.points


def test_a_second_interrupt_ends_a_command_that_ignores_the_first(tmp_path):
    Path("deaf.py").write_text(
        "import os, signal\n"
        "ask = lambda *given: os.kill(os.getppid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, ask)\n"
        "ask()\n"
        "while True:\n    signal.pause()\n"
    )
    file = write_ladder(tmp_path, POLICIES + 'command = "python deaf.py"\n')
    words = [sys.executable, "-m", "sparring", "bench", str(file), "--out", "out"]
    assert subprocess.run(words, timeout=120).returncode == 130


def test_a_command_that_outlives_its_ladder_is_not_run_twice_at_a_time(tmp_path):
    Path("make.py").write_text(
        "import socket\nasks = socket.socket(socket.AF_UNIX)\nasks.connect('asked')\nasks.recv(1)\n"
    )
    file = write_ladder(tmp_path, POLICIES + 'command = "python make.py"\n')
    with socket.socket(socket.AF_UNIX) as asked:
        asked.bind("asked")
        asked.listen()
        asked.settimeout(120)
        ladder = subprocess.Popen([sys.executable, "-m", "sparring", "bench", str(file), "--out", "out"])
        command, _ = asked.accept()
        ladder.kill()
        ladder.wait()
        assert is_locked(Path("out", "kuhn.cfr.seed-0"))
        command.close()
    ran = []
    run_ladder(file, Path("out"), play=lambda words, inherited: ran.append(words) or "")
    assert ran == [["python", "make.py"]], "it began after the first had ended"


@pytest.mark.slow  # an interrupt does above, and test_cli_commands has SIGTERM
def test_sigterm_ends_a_ladder_and_its_commands_also_in_the_background_of_a_script(tmp_path):
    Path("patient.py").write_text(
        "import os, signal\nos.kill(os.getppid(), signal.SIGTERM)\nwhile True:\n    signal.pause()\n"
    )
    file = write_ladder(tmp_path, POLICIES + 'command = "python patient.py"\n')
    words = [sys.executable, "-m", "sparring", "bench", str(file), "--out", "out"]
    ended = subprocess.run([*IN_BACKGROUND, *words], timeout=120, capture_output=True, text=True)
    assert ended.returncode == 130
    assert "stopped; give the same command again, and it goes on" in " ".join(ended.stdout.split())


def test_an_interrupt_does_not_wait_for_a_run_of_an_earlier_ladder(tmp_path):
    Path("out", "kuhn.magnet.seed-0").mkdir(parents=True)
    Path("out", RESULTS).write_text("")
    lock = lock_directory(Path("out", "kuhn.magnet.seed-0"))
    failed = []

    def play(words, inherited):
        failed.append(words)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ladder(write_ladder(tmp_path), Path("out"), jobs=2, play=play)
    os.close(lock)
    assert failed


def test_a_member_of_matches_plays_a_tournament_against_one_opponent(tmp_path, monkeypatch):
    def play(words, inherited):
        return "" if main(words[1:]) == 0 else "the tournament failed"

    monkeypatch.setattr(meta_strategies, "RESAMPLES", 4)
    text = (
        'seeds = [0]\nmeasure = "win rate against random"\n[base]\nconfig = "kuhn"\nevaluation.games = 60\n'
    )
    text += '[games.kuhn]\n[entries.best]\nmember = "optimal"\n'
    (cell,) = run_ladder(write_ladder(tmp_path, text), Path("out"), play=play).cells
    assert cell.command.startswith("sparring tournament optimal random --env kuhn_poker --players 2")
    (point,) = cell.points
    assert 0.4 < point.value < 0.9
    assert cell.is_share
    assert point.games is None
    changed = text.replace("against random", "against optimal").replace(
        'member = "optimal"', 'member = "random"'
    )
    (other,) = run_ladder(write_ladder(tmp_path, changed), Path("out")).cells
    assert "has a tournament of optimal, random, not of random, optimal" in other.problem
    for name in ("games.jsonl", "tournament.json"):
        Path("out", cell.name, name).write_text("{\n")
        (damaged,) = run_ladder(write_ladder(tmp_path, text), Path("out")).cells
        assert "damaged" in damaged.problem


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "needs either policies or a member"),
        ('member = "x"\npolicies = "y"', "needs either policies or a member"),
        ('member = "vendor/model"', "a model behind an API gives no probabilities"),
        ('member = "optimal"\ncommand = "python make.py"', "makes policy files"),
        (f"policies = 'x'\n[entries.{'a' * 190}]\npolicies = 'x'", "--name: has 20"),
        ("policies = 'x'\ncommand = 'python \"make.py'", "is no command"),
        ("policies = '{sed}.jsonl'", "{sed} stands for nothing"),
    ],
)
def test_an_entry_that_cannot_be_measured_is_refused(tmp_path, entry, said):
    text = f'seeds = [0]\n[base]\nconfig = "kuhn"\n[games.kuhn]\n[entries.other]\n{entry}\n'
    with pytest.raises(InputError, match=said):
        run_ladder(write_ladder(tmp_path, text), Path("out"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('envs.0.id = "kuhn_poker(players=3)"\nenvs.0.num_players = 3', "one opponent, but kuhn is for 3"),
        ("evaluation.games = 3", "evaluation.games of kuhn is 3, and a member plays at least 4"),
    ],
)
def test_games_in_which_a_member_cannot_play_are_refused_before_anything_begins(tmp_path, fields, said):
    text = 'seeds = [0]\nmeasure = "mean reward against random"\n[base]\nconfig = "kuhn"\n'
    text += f"[games.kuhn]\n{fields}\n"
    with pytest.raises(InputError, match=f"^entries.first.member: .*{said}"):
        run_ladder(write_ladder(tmp_path, f'{text}[entries.first]\nmember = "always-first"\n'), Path("out"))
    assert not Path("out").exists()


def test_a_result_without_a_cell_of_the_ladder_cannot_be_compared(tmp_path, capsys):
    file = write_ladder(tmp_path, POLICIES)
    write_policy(
        Path("kuhn-kuhn_poker-0-20.jsonl"),
        {one.info_state: {one.actions[0]: 1.0} for one in states_of("kuhn_poker")},
    )
    assert main(["bench", str(file), "--out", "out"]) == 0
    results = Path("out", RESULTS)
    assert main(["bench", str(file), "--out", "out", "--against", str(results)]) == 0
    other = Path("other.json")
    other.write_text(results.read_text().replace('"cfr"', '"other"'))
    capsys.readouterr()
    assert main(["bench", str(file), "--out", "out", "--against", str(other)]) == 2
    assert "--against: other.json has none of the complete cells" in capsys.readouterr().err
