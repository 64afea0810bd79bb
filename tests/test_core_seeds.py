"""Seeds: each path has its own seed, which depends only on the path."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sparring.core import derive_seed

PATHS = st.lists(st.integers(-5, 50) | st.text("/ab1,\"'[] \\\ud800", max_size=4), max_size=4)


def test_a_path_has_the_same_seed_on_every_machine():
    assert derive_seed(0, "step", 1, 11) == 3963798510028339986
    assert 0 <= derive_seed(0) < 2**63


def test_seeds_of_steps_and_requests_do_not_collide():
    places = list(product(range(20), range(20)))
    assert len({derive_seed(0, "step", step, request) for step, request in places}) == len(places)
    assert derive_seed(0, "step", 1, 11) != derive_seed(0, "step", 11, 1)


def test_a_name_that_spells_another_path_has_its_own_seed():
    assert derive_seed(0, "a", "b") != derive_seed(0, "a/b")
    assert derive_seed(1, 2) != derive_seed(1, "2")


@given(PATHS, PATHS)
def test_different_paths_have_different_seeds(first, second):
    assert (derive_seed(0, *first) == derive_seed(0, *second)) == (first == second)
