"""The pool of a cluster in a league: who plays, and what happens between two updates, once."""

from dataclasses import replace

from pool_requests import PLAY, ask
from sparring.collection.games_in_flight import GameResult
from sparring.collection.pool import PoolService
from sparring.collection.pool_state import LeagueTurn
from sparring.config.league import LeagueSettings
from sparring.core.adapters import AdapterRef, Weights
from sparring.population.evolution import Child, Selection
from sparring.population.league import SNAPSHOT_GAMES, League
from sparring.population.model_pool import ModelPool

PLAYERS = ("default", "attacker")
GAMES = 4 * SNAPSHOT_GAMES
LOCKSTEP = replace(PLAY, games_per_step=GAMES, max_staleness=0)
SETTINGS = LeagueSettings.model_validate(
    {"players": {"default": {"role": "main"}, "attacker": {"role": "main_exploiter"}}}
).seated([{0: "", 1: ""}])
PATHS = {"default": "average/1", "attacker": "attacker/1"}


def build_league(pool: ModelPool) -> League:
    return League(SETTINGS, pool, seed=0)


def open_pool(directory=None) -> PoolService:
    place = None if directory is None else str(directory)
    return PoolService("pfsp", 2, policies=PLAYERS, build_league=build_league, directory=place)


def pool(directory=None) -> PoolService:
    """A pool in which the attacker has won every game of the first update, none of which is rated yet."""
    service = open_pool(directory)
    service.add_checkpoint(None, 0)
    service.register("c", LOCKSTEP)
    for job in ask(service, 1, GAMES).jobs:
        rewards = [1.0 if uid == "attacker" else -1.0 for uid in job.uids]
        service.finish([GameResult(job.name, "finished", 0, rewards, ["[bet]"])])
    return service


def weights(step: int, attacker: str | None) -> Weights:
    paths = {"default": f"default/{step}", "attacker": attacker}
    return Weights(step, {name: AdapterRef(name, step, path) for name, path in paths.items()})


def turn_of(service: PoolService, step: int, paths: dict[str, str | None]) -> LeagueTurn:
    """Freeze the players that are due."""
    due = service.players_due(step)
    return service.freeze_players(step, {player: paths[player] for player in due})


def copies(service: PoolService) -> list[str]:
    return [one.uid for one in service.pool.opponents() if one.kind == "checkpoint"]


def test_an_exploiter_that_beats_its_targets_is_frozen_before_the_next_games_are_drawn():
    service = pool()
    turn = turn_of(service, 1, PATHS)
    assert (turn.step, turn.again) == (1, ["attacker"])
    assert service.pool.ckpt_path("attacker-ckpt-1") == ("attacker/1", "checkpoint")
    assert sum(value for name, value in turn.figures.items() if "/games/" in name) == GAMES
    assert ask(service, 2, 4).jobs == [], "the weights are not published"
    service.publish(weights(1, None), GAMES)
    answer = ask(service, 3, GAMES)
    assert answer.weights.adapters["attacker"] == AdapterRef("attacker", 1, None)
    assert answer.adapters["attacker-ckpt-1"] == AdapterRef("attacker-ckpt-1", 1, "attacker/1")


def test_a_repeated_call_changes_nothing_before_and_after_the_weights_are_published(tmp_path):
    service = pool(tmp_path)
    turn = turn_of(service, 1, PATHS)
    for _ in range(2):
        state = service.state.state_dict()
        assert turn_of(service, 1, {"default": "other", "attacker": None}) == turn
        assert service.state.state_dict() == state
        service = open_pool(tmp_path)
        service.publish(weights(1, None), GAMES)


def test_who_is_replaced_is_written_once_and_rated_as_a_beginner(tmp_path):
    service = pool(tmp_path)
    child = Child("default", ("attacker",), 0.1, 5)
    service.players_due(1)
    turn = service.freeze_players(1, {}, Selection([child], {"default/parents/attacker": 1.0}))
    assert turn.children == [child]
    assert turn.figures["default/parents/attacker"] == 1.0
    (member,) = [one for one in service.pool.opponents() if one.uid == "default"]
    assert member.rating == service.pool.ratings.default
    other = Selection([Child("attacker", ("default",), 0.1, 6)])
    for again in (service, open_pool(tmp_path)):
        assert again.rivals(1, []) == []
        assert again.freeze_players(1, {}, other) == turn


def test_games_of_the_next_update_are_not_rated_by_a_repeated_call(tmp_path):
    service = pool(tmp_path)
    turn_of(service, 1, PATHS)
    service.publish(weights(1, None), GAMES)
    for job in ask(service, 2, GAMES).jobs:
        service.finish([GameResult(job.name, "finished", 0, [1.0, -1.0], ["[bet]"])])
    service = open_pool(tmp_path)
    before = service.pool.state_dict()
    turn_of(service, 1, PATHS)
    assert service.pool.state_dict() == before
    turn_of(service, 2, PATHS)
    assert service.pool.state_dict() != before


def test_an_update_that_is_lost_is_decided_anew():
    service = pool()
    turn_of(service, 1, PATHS)
    assert service.latest_step() == 1
    service.forget_after(0)
    assert copies(service) == ["ckpt-0"]
    assert service.latest_step() == 0
    again = turn_of(service, 1, PATHS)
    assert again.again == [], "its results are forgotten, because it started again"


def test_a_pool_without_a_league_has_none():
    service = PoolService("pfsp", 2)
    assert service.state.league is None
    assert service.state.state_dict()["league"] is None
