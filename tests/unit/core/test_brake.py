"""The brake: pulled when most of the last messages died of permanent errors, and not before."""

from random import Random

import pytest

from consumer.core.brake import Brake


@pytest.mark.parametrize(("of", "deaths"), [(100, 51), (10, 6), (9, 5), (2, 2), (1, 1)])
def test_it_takes_more_than_half_also_when_fewer_have_ended(of: int, deaths: int) -> None:
    brake = Brake(of)
    assert [brake.ended(True) for _ in range(deaths)] == [False] * (deaths - 1) + [True]


def test_half_of_them_is_not_most_of_them() -> None:
    brake = Brake()
    assert not any(brake.ended(number % 2 == 0) for number in range(1000))


def test_deaths_that_are_long_past_do_not_count() -> None:
    brake = Brake()
    for _ in range(10):
        assert not any(brake.ended(True) for _ in range(50))
        assert not any(brake.ended(False) for _ in range(100))


def test_it_stays_pulled_until_enough_others_have_ended_otherwise() -> None:
    brake = Brake()
    for _ in range(100):
        brake.ended(True)
    assert [brake.ended(False) for _ in range(60)] == [True] * 49 + [False] * 11


def test_once_released_it_takes_more_than_half_again() -> None:
    brake = Brake()
    for _ in range(77):
        brake.ended(True)
    brake.release()
    assert not any(brake.ended(True) for _ in range(50))
    assert brake.ended(True)


@pytest.mark.parametrize("of", [1, 2, 7, 100])
def test_it_agrees_with_counting_the_last_ones(of: int) -> None:
    chance = Random(of)
    brake = Brake(of)
    seen: list[bool] = []
    for number in range(5000):
        seen.append(chance.random() < 0.3 + 0.4 * (number // 1000 % 2))
        assert brake.ended(seen[-1]) is (sum(seen[-of:]) * 2 > of)
