"""How far trainings are apart, seed by seed, and the rule by which a norm agrees with torch."""

import random

import pytest

from common.bench.tests.made_up import training
from common.results import seeds

AS_IT_IS = "as it is"


def records(**lasts):
    """Of torch, torch reordered and other norms: the last loss of each seed."""
    names = {"reversed": seeds.REORDERED}
    return [{"training": name, "order": order, "seed": seed, "last": last} for key, own in lasts.items()
            for name, order in [names.get(key, (key, AS_IT_IS))] for seed, last in enumerate(own, 1)]


def test_differences_are_of_the_same_seed_and_have_a_student_s_interval():
    lasts = seeds.last_losses(records(torch=[1, 2, 3], reversed=[1, 2, 3], ours=[2, 4, 6])[::-1])
    found = seeds.difference(lasts, ("ours", AS_IT_IS))
    assert (found.seeds, found.mean, found.most) == ([1, 2, 3], 2, 3)
    assert found.margin == pytest.approx(4.303 / 3**0.5)  # two degrees of freedom, a deviation of 1


def test_many_seeds_have_an_interval_that_is_a_little_too_wide():
    runs = records(torch=[0] * 20, reversed=[0] * 20, ours=[1, -1] * 10)
    found = seeds.difference(seeds.last_losses(runs), ("ours", AS_IT_IS))
    assert 2.093 * (1 / 19) ** 0.5 < found.margin == pytest.approx(2.262 * (1 / 19) ** 0.5)


@pytest.mark.parametrize("ours, agrees", [([1.2, 1.2, 1.2], True), ([1.3, 1.3, 1.3], False), ([0.7, 0.7, 0.7], False),
                                          ([3, -1, 1], True), ([1, 1, None], False)])
def test_a_mean_is_held_against_what_reordering_does_to_one_seed(ours, agrees):
    lasts = seeds.last_losses(records(torch=[1, 1, 1], reversed=[1.1, 0.75, 1], ours=ours))
    assert seeds.agrees(seeds.difference(lasts, ("ours", AS_IT_IS)), seeds.difference(lasts, seeds.REORDERED)) is agrees


def test_without_torch_s_own_losses_nobody_agrees():
    lasts = seeds.last_losses(records(torch=[1, None], reversed=[1, 1], ours=[1, 1]))
    assert not seeds.agrees(*(seeds.difference(lasts, name) for name in (("ours", AS_IT_IS), seeds.REORDERED)))


def test_of_a_run_that_is_cut_short_the_seeds_count_that_all_norms_have():
    runs = training("bf16")  # six trainings a seed
    for length, whole in ((18, [1, 2, 3]), (17, [1, 2]), (12, [1, 2]), (11, [1]), (6, [1]), (0, [])):
        lasts = seeds.last_losses(runs[:length])
        assert {tuple(own) for own in lasts.values()} == ({tuple(whole)} if length else set())
        assert seeds.is_whole(runs[:length]) == (len(whole) > 1)
    assert not seeds.is_whole(training("bf16", norms=()))


def test_of_norms_that_only_round_two_of_a_hundred_fail_with_five_seeds():
    draw, failed = random.Random(1), 0
    for _ in range(5000):
        away = [[draw.gauss(0, 1) for _ in range(5)] for _ in range(2)]
        lasts = seeds.last_losses(records(torch=[0] * 5, reversed=away[0], ours=away[1]))
        failed += not seeds.agrees(*(seeds.difference(lasts, name) for name in (("ours", AS_IT_IS), seeds.REORDERED)))
    assert failed / 5000 == pytest.approx(0.017, abs=0.006)
