from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.request import Request, Sequence
from services.scheduler.core.waiting_queue import WaitingQueue

AGING_SECONDS = 10.0


def make_sequences(arrival_time: float, priority: int = 0, n: int = 1) -> list[Sequence]:
    return Request("", "", [1], 1, tuple(range(n)), arrival_time, priority=priority).sequences


def order(*sequences: Sequence) -> list[Sequence]:
    queue = WaitingQueue(AGING_SECONDS)
    for sequence in sequences:
        queue.add(sequence)
        queue.check_integrity()
    return list(queue)


def test_equal_priorities_start_in_order_of_arrival_and_of_output() -> None:
    first, second, third = *make_sequences(0, n=2), *make_sequences(1)
    assert order(third, second, first) == [first, second, third]


def test_a_higher_priority_starts_first() -> None:
    (low,), (high,) = make_sequences(0), make_sequences(9, priority=1)
    assert order(low, high) == [high, low]


def test_waiting_as_long_as_the_aging_time_is_worth_one_priority() -> None:
    (low,), (high,) = make_sequences(0), make_sequences(11, priority=1)
    assert order(high, low) == [low, high]


def test_removing_what_is_not_there_does_nothing() -> None:
    queue = WaitingQueue(AGING_SECONDS)
    (sequence,) = make_sequences(0)
    queue.remove(sequence)
    queue.add(sequence)
    queue.remove(sequence)
    queue.remove(sequence)
    assert len(queue) == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-3, 3)), min_size=1), st.integers(100, 200))
def test_the_next_one_has_the_highest_priority_that_waiting_gave_it(
    requests: list[tuple[int, int]], now: int
) -> None:
    sequences = [sequence for each in requests for sequence in make_sequences(*each)]
    aged = [each.request.priority + (now - each.request.arrival_time) / AGING_SECONDS for each in sequences]
    first = order(*sequences)[0]
    assert aged[sequences.index(first)] >= max(aged) - 1e-9
