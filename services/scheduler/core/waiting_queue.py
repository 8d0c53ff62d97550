"""The sequences that wait for a worker, in the order in which they will start."""

from bisect import insort
from collections.abc import Iterator

from services.scheduler.core.request import Sequence


class WaitingQueue:
    """By priority, equal ones by arrival; waiting raises the priority by one per `aging_seconds`.

    All priorities rise alike, so the order of two sequences never changes and their keys are constant.
    """

    def __init__(self, aging_seconds: float) -> None:
        self._aging_seconds = aging_seconds
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=self._key)

    def remove(self, sequence: Sequence) -> None:
        """Does nothing if it is not there: a further output may end before it is queued."""
        if sequence in self._sequences:
            self._sequences.remove(sequence)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def check_integrity(self) -> None:
        assert self._sequences == sorted(self._sequences, key=self._key)
        assert len(self._sequences) == len(set(self._sequences))

    def _key(self, sequence: Sequence) -> tuple[float, int]:
        request = sequence.request
        return (request.arrival_time - request.priority * self._aging_seconds, sequence.output_index)
