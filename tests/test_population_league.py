"""Who plays whom in a league, and when exploiters are frozen and start again."""

import random
from collections import Counter

import pytest

from sparring.config.league import LeagueSettings
from sparring.population import ModelPool
from sparring.population.league import SNAPSHOT_GAMES, League, forgotten

MAIN = {"default": {"role": "main"}}
ATTACKER = {"attacker": {"role": "main_exploiter"}}
FINDER = {"finder": {"role": "league_exploiter"}}
DRAWS = 4000


def league(*players, copies=(), fixed=(), add_every=10, seats=(0, 1), draws_per_turn=1, **rule):
    """A league with these players and, by policy and update, copies that are not rated."""
    pool = ModelPool("pfsp", max_active_lora=8)
    together = dict(one for player in players for one in player.items())
    for name in together:
        pool.add_policy(name)
    for policy, update in copies:
        pool.add_checkpoint(None, update, policy)
    for name in fixed:
        pool.add_fixed(name)
    settings = LeagueSettings.model_validate({"players": together, **rule})
    return League(settings.seated([dict.fromkeys(seats, "")]), pool, 3, add_every, seats, draws_per_turn)


def opponent(game):
    (uid,) = game.others.values()
    return uid


def rate(league, player, uid, wins, losses):
    """Let a player win and lose so many games against a member, in turn where possible."""
    for number in range(max(wins, losses)):
        for won, games in ((1.0, wins), (-1.0, losses)):
            if number < games:
                league.pool.push_game_outcome(player, uid, won, [], "kuhn_poker")


def drawn(league, of_what, player="default"):
    """How often something was drawn in games in which ``player`` learns."""
    rng = random.Random(5)
    games = [one for one in (league.draw(rng, number) for number in range(DRAWS)) if one.player == player]
    return Counter(of_what(one) for one in games)


def chi_square(counts, shares):
    """The statistic of counts against shares, and its 99.9% quantile by Wilson and Hilferty."""
    assert counts.keys() <= shares.keys()
    total, freedom = counts.total(), len(shares) - 1
    expected = {name: total * share / sum(shares.values()) for name, share in shares.items()}
    statistic = sum((counts[name] - number) ** 2 / number for name, number in expected.items())
    return statistic, freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3


def assert_in_shares(counts, shares):
    statistic, limit = chi_square(counts, shares)
    assert statistic < limit, (counts, shares)


def test_a_main_player_meets_itself_what_it_forgot_and_everyone_in_the_shares_of_alphastar():
    one = league(MAIN, ATTACKER, copies=[("default", 0), ("attacker", 4)])
    rate(one, "default", "attacker-ckpt-4", wins=1, losses=19)
    rate(one, "default", "ckpt-0", wins=19, losses=1)
    shares = {"self_play": 0.35, "forgotten": 0.15, "pfsp": 0.5}
    assert_in_shares(drawn(one, lambda game: game.reason), shares)


def test_the_chi_square_of_other_shares_is_too_large():
    one = league(MAIN, copies=[("default", 0)])
    statistic, limit = chi_square(
        drawn(one, lambda game: game.reason), {"self_play": 0.35, "forgotten": 0.15, "pfsp": 0.5}
    )
    assert statistic > limit, "nothing is forgotten here, so its share is self-play"


def test_a_main_player_meets_most_whom_it_beats_least():
    one = league(
        MAIN, FINDER, copies=[("default", 0), ("default", 5), ("finder", 5)], self_play=0, forgotten=0
    )
    rates = {}
    for uid, wins in (("ckpt-0", 18), ("ckpt-5", 10), ("finder-ckpt-5", 4)):
        rate(one, "default", uid, wins, 20 - wins)
        rates[uid] = one.pool.recent.win_rate(["default"], uid)
    assert rates["ckpt-0"] == pytest.approx(19 / 22, abs=0.03), "smoothed, and old games fade"
    hard = {uid: (1 - x) ** 2 for uid, x in rates.items()}
    assert_in_shares(drawn(one, opponent), hard)


def test_a_league_exploiter_meets_all_frozen_members_that_it_does_not_beat_alike():
    one = league(MAIN, FINDER, copies=[("default", 0), ("default", 5)], fixed=["strong"])
    for uid, wins in (("ckpt-0", 18), ("ckpt-5", 10), ("fixed-strong", 0)):
        rate(one, "finder", uid, wins, 20 - wins)
    rates = {uid: one.pool.recent.win_rate(["finder"], uid) for uid in ("ckpt-0", "ckpt-5", "fixed-strong")}
    linear = {uid: min(0.5, 1 - x) for uid, x in rates.items()}
    assert_in_shares(drawn(one, opponent, "finder"), linear)


def test_a_main_exploiter_turns_to_copies_while_the_main_player_is_too_strong():
    one = league(MAIN, ATTACKER, copies=[("default", 0), ("default", 5)])
    assert set(drawn(one, opponent, "attacker")) == {"default"}, "not rated yet"
    rate(one, "attacker", "default", wins=2, losses=8)
    assert set(drawn(one, opponent, "attacker")) == {"default"}
    rate(one, "attacker", "default", wins=0, losses=60)
    assert one.pool.recent.win_rate(["attacker"], "default") < 0.1
    for uid, wins in (("ckpt-0", 10), ("ckpt-5", 2)):
        rate(one, "attacker", uid, wins, 20 - wins)
    rates = {uid: one.pool.recent.win_rate(["attacker"], uid) for uid in ("ckpt-0", "ckpt-5")}
    variance = {uid: x * (1 - x) for uid, x in rates.items()}
    assert_in_shares(drawn(one, opponent, "attacker"), variance)


def test_players_learn_by_their_shares_in_both_seats_alike():
    heavy = {"default": {"role": "main", "share": 2.0}}
    one = league(heavy, ATTACKER, FINDER, copies=[("default", 0)])
    rng = random.Random(0)
    games = [one.draw(rng, number) for number in range(DRAWS)]
    assert_in_shares(
        Counter(game.player for game in games), {"default": 0.5, "attacker": 0.25, "finder": 0.25}
    )
    assert_in_shares(Counter(game.seat for game in games), {0: 0.5, 1: 0.5})


def test_players_of_one_seat_meet_those_of_the_other():
    first = {"first": {"role": "main", "seats": [0]}}
    second = {"second": {"role": "main", "seats": [1]}}
    attacker = {"attacker": {"role": "main_exploiter", "seats": [1]}}
    one = league(first, second, attacker, copies=[("first", 0), ("second", 0), ("attacker", 3)])
    rng = random.Random(0)
    games = [one.draw(rng, number) for number in range(DRAWS)]
    met = {(game.player, game.seat, opponent(game)) for game in games}
    assert met == {
        ("first", 0, "second"),
        ("first", 0, "second-ckpt-0"),
        ("first", 0, "attacker-ckpt-3"),
        ("second", 1, "first"),
        ("second", 1, "first-ckpt-0"),
        ("attacker", 1, "first"),
    }


def test_each_other_seat_of_a_game_for_three_has_a_draw_of_its_own():
    one = league(MAIN, FINDER, copies=[("default", 0), ("default", 5)], seats=(0, 1, 2))
    pairs = drawn(one, lambda game: tuple(game.others.values()), "finder")
    copies = ("ckpt-0", "ckpt-5")
    assert_in_shares(pairs, {(left, right): 0.25 for left in copies for right in copies})
    assert_in_shares(drawn(one, lambda game: game.seat, "finder"), dict.fromkeys((0, 1, 2), 1 / 3))


def test_the_share_of_a_main_player_is_drawn_once_a_game():
    one = league(MAIN, copies=[("default", 0)], seats=("a", "b", "c"), self_play=0.5, forgotten=0.0)
    games = drawn(one, lambda game: (game.reason, *sorted(game.uids.values())))
    alone = ("self_play", "default", "default", "default")
    assert_in_shares(games, {alone: 0.5, ("pfsp", "ckpt-0", "ckpt-0", "default"): 0.5})


def test_a_player_of_some_seats_is_in_those_alone_and_in_no_game_without_them():
    first = {"first": {"role": "main", "seats": ["Aff", "Neg"]}}
    second = {"second": {"role": "main", "seats": ["Judge"]}}
    seats = ("Aff", "Neg", "Judge")
    one = league(first, second, copies=[("first", 0), ("second", 0)], seats=seats)
    rng = random.Random(0)
    games = [one.draw(rng, number) for number in range(DRAWS)]
    held = {(uid.partition("-ckpt-")[0], seat) for game in games for seat, uid in game.uids.items()}
    assert held == {("first", "Aff"), ("first", "Neg"), ("second", "Judge")}
    assert {one.draw(rng, number, seats[:2]).player for number in range(100)} == {"first"}
    assert one.targets("second") == ["first-ckpt-0"]
    assert one.targets("first") == ["first-ckpt-0"]


def test_a_win_in_a_game_for_three_is_over_each_member_that_earned_less():
    one = league(MAIN, ATTACKER, copies=[("default", 0), ("default", 5)], seats=(0, 1, 2))
    for _ in range(20):
        one.pool.push_result(["attacker", "ckpt-0", "ckpt-5"], [0.0, -1.0, 1.0], "kuhn_poker(players=3)", [])
    assert one.pool.recent.win_rate(["attacker"], "ckpt-0") > 0.9
    assert one.pool.recent.win_rate(["attacker"], "ckpt-5") < 0.1


def test_without_seats_a_player_has_those_whose_policy_has_its_name_or_else_all():
    settings = LeagueSettings.model_validate({"players": MAIN | ATTACKER | FINDER})
    players = settings.seated([{"Aff": "default", "Neg": "attacker"}]).players
    assert {name: one.seats for name, one in players.items()} == {
        "default": ["Aff"],
        "attacker": ["Neg"],
        "finder": ["Aff", "Neg"],
    }


def test_seats_are_in_the_order_of_the_game_so_that_rivals_are_compared_in_the_same():
    players = {"default": {"role": "main", "seats": ["Neg", "Aff"]}, "second": {"role": "main"}}
    seated = LeagueSettings.model_validate({"players": players}).seated(
        [{"Aff": "default", "Neg": "default"}]
    )
    assert [one.seats for one in seated.players.values()] == [["Aff", "Neg"]] * 2


def test_several_main_players_meet_each_other_in_self_play():
    one = league(MAIN, {"second": {"role": "main"}}, copies=[("default", 0)], self_play=1.0, forgotten=0.0)
    assert_in_shares(drawn(one, opponent), {"default": 0.5, "second": 0.5})


def test_an_exploiter_that_beats_a_main_player_comes_first_among_what_is_forgotten():
    past = {"ckpt-0": 0.5, "ckpt-5": 0.6}
    assert forgotten({"a": 0.2, "b": 0.9, "new": None}, past) == {"a": 0.2, "b": 0.9}
    assert forgotten({"a": 0.3}, past) == past


def test_what_is_forgotten_ends_where_older_copies_are_beaten_more():
    past = {"ckpt-0": 0.9, "ckpt-5": 0.4, "ckpt-10": 0.8, "new": None, "ckpt-15": 0.7, "ckpt-20": 0.5}
    assert list(forgotten({}, past)) == ["ckpt-0", "ckpt-5", "ckpt-10"]
    assert forgotten({}, {"ckpt-0": 0.9, "ckpt-5": 0.6, "ckpt-10": 0.5}) == {}, "all as it should be"
    assert forgotten({}, {"ckpt-0": 0.7, "ckpt-5": 0.8}) == {}, "0.7 is enough"
    assert forgotten({}, {}) == {}


def test_an_exploiter_is_frozen_when_it_beats_its_target():
    one = league(MAIN, ATTACKER, copies=[("default", 0)])
    rate(one, "attacker", "default", wins=SNAPSHOT_GAMES - 1, losses=0)
    assert one.due(3) == [], "too few games"
    rate(one, "attacker", "default", wins=1, losses=0)
    assert one.due(3) == ["attacker"]
    rate(one, "attacker", "default", wins=0, losses=60)
    assert one.due(3) == [], "it wins too little now"


def test_a_league_exploiter_must_beat_every_active_copy():
    one = league(MAIN, FINDER, copies=[("default", 0), ("default", 5)])
    rate(one, "finder", "ckpt-0", wins=SNAPSHOT_GAMES, losses=0)
    assert one.due(9) == []
    rate(one, "finder", "ckpt-5", wins=SNAPSHOT_GAMES, losses=0)
    assert one.due(9) == ["finder"]
    one.pool.add_checkpoint(None, 9, "finder")
    assert one.due(9) == one.due(10) == [], "its copy is made, and is a target now"


def test_an_exploiter_is_frozen_after_a_number_of_updates():
    one = league(MAIN, ATTACKER, FINDER, copies=[("default", 0)], snapshot_updates=6)
    assert one.due(5) == []
    assert one.due(6) == ["attacker", "finder"]
    one.pool.add_checkpoint(None, 6, "attacker")
    assert one.due(6) == ["finder"]
    one.pool.add_checkpoint(None, 6, "finder")
    assert one.due(6) == one.due(11) == []
    assert one.due(12) == ["attacker", "finder"]


def test_a_main_player_is_frozen_when_it_beats_every_active_copy_of_itself():
    one = league(MAIN, ATTACKER, copies=[("default", 0), ("default", 3)], main_snapshot_win_rate=0.6)
    rate(one, "default", "ckpt-0", wins=80, losses=20)
    rate(one, "default", "ckpt-3", wins=60, losses=39)
    assert one.due(5) == [], "99 games"
    rate(one, "default", "ckpt-3", wins=8, losses=0)
    assert one.due(5) == ["default"]
    assert not any(one.starts_again("default", update) for update in range(40))
    one.pool.add_checkpoint(None, 5)
    assert one.due(5) == one.due(6) == [], "the new copy is not beaten yet"
    without = league(MAIN, copies=[("default", 0)])
    rate(without, "default", "ckpt-0", wins=100, losses=0)
    assert without.due(5) == [], "no win rate is given"


RARELY = {"main_snapshot_win_rate": 0.6, "add_every": 1000, "snapshot_updates": 4}


def test_a_main_player_of_one_seat_is_frozen_when_it_beats_the_copies_of_the_other_seat():
    first, second = {"first": {"role": "main", "seats": [0]}}, {"second": {"role": "main", "seats": [1]}}
    one = league(first, second, copies=[("first", 0), ("second", 0)], **RARELY)
    assert one.due(2) == []
    rate(one, "first", "second-ckpt-0", wins=90, losses=10)
    assert one.due(1) == []
    assert one.due(2) == ["first"]
    one.pool.add_checkpoint(None, 2, "first")
    assert one.due(2) == one.due(3) == [], "not after every update, though its targets are the same"
    assert one.due(4) == ["first"]


def test_main_exploiters_start_again_and_a_quarter_of_league_exploiters():
    one = league(MAIN, ATTACKER, FINDER)
    updates = range(2000)
    assert all(one.starts_again("attacker", update) for update in updates)
    again = Counter(one.starts_again("finder", update) for update in updates)
    assert_in_shares(again, {True: 0.25, False: 0.75})
    same = league(MAIN, ATTACKER, FINDER)
    assert [one.starts_again("finder", u) for u in updates] == [
        same.starts_again("finder", u) for u in updates
    ]


def test_a_player_that_starts_again_is_unknown_to_all_and_its_copies_keep_their_records():
    one = league(MAIN, ATTACKER, copies=[("default", 0), ("attacker", 3)])
    rate(one, "attacker", "default", wins=20, losses=0)
    rate(one, "default", "attacker-ckpt-3", wins=5, losses=15)
    before = one.pool.recent.win_rate(["default"], "attacker-ckpt-3")
    rated = {member.uid: member.rating for member in one.pool.opponents()}
    one.pool.start_again("attacker")
    assert one.pool.recent.win_rate(["attacker"], "default") is None
    assert one.pool.recent.win_rate(["default"], "attacker") is None
    assert one.pool.recent.win_rate(["default"], "attacker-ckpt-3") == before
    ratings = {member.uid: member.rating for member in one.pool.opponents()}
    assert ratings == rated | {"attacker": (25.0, 25 / 3)} != rated


def test_figures_count_games_and_name_the_win_rates_that_are_known():
    one = league(MAIN, ATTACKER, FINDER, copies=[("default", 0)])
    one.count("default", "self_play")
    one.count("default", "self_play")
    rate(one, "default", "ckpt-0", wins=10, losses=0)
    rate(one, "default", "attacker", wins=10, losses=0)
    rate(one, "default", "finder", wins=5, losses=4)
    again = league(MAIN, ATTACKER)
    again.load_state_dict(one.state_dict())
    assert again.figures() == {"default/games/self_play": 2.0}
    figures = one.figures()
    known = {"default/win_rate/attacker", "attacker/win_rate/default"}
    assert figures.keys() == {"default/games/self_play", *known}
    assert figures["default/win_rate/attacker"] > 0.9
    assert sum(figures[name] for name in known) == pytest.approx(1)


@pytest.mark.parametrize("at_once", [1, 2])
def test_players_take_turns_by_their_shares_with_few_in_an_update(at_once):
    heavy = {"default": {"role": "main", "share": 2.0}}
    one = league(heavy, ATTACKER, FINDER, copies=[("default", 0)], at_once=at_once, draws_per_turn=50)
    rng = random.Random(0)
    updates = [
        Counter(one.draw(rng, number).player for number in range(update * 50, (update + 1) * 50))
        for update in range(80)
    ]
    assert max(len(players) for players in updates) == at_once
    learned = sum(updates, Counter())
    for player, share in {"default": 0.5, "attacker": 0.25, "finder": 0.25}.items():
        assert learned[player] / learned.total() == pytest.approx(share, abs=0.05)


def test_somebody_learns_in_a_game_whose_players_do_not_have_their_turn():
    first = {"first": {"role": "main", "seats": [0, 1]}}
    third = {"third": {"role": "main", "seats": [2]}}
    one = league(first, third, copies=[("first", 0), ("third", 0)], seats=(0, 1, 2), at_once=1)
    rng = random.Random(0)
    assert {one.draw(rng, number, (0, 1)).player for number in range(10)} == {"first"}
    assert {one.draw(rng, number).player for number in range(10)} == {"first", "third"}
