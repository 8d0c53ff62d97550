"""Finds many stop strings in one pass over a text: the automaton of Aho and Corasick."""

from collections.abc import Iterable


class StopStrings:
    """States stand for beginnings of stop strings, 0 for the empty one. After any text the state is the
    longest beginning that the text ends with."""

    def __init__(self, stop: Iterable[str]) -> None:
        """None is empty."""
        self._next: list[dict[str, int]] = [{}]
        # The state of the next shorter beginning that the text ends with.
        self._shorter = [0]
        # The longest stop string that a text in this state ends with; empty if there is none.
        self.found = [""]
        # How many characters at the text's end may still become a stop string.
        self.num_open = [0]
        for text in stop:
            self._add(text)
        self._link()
        self._first_chars = frozenset(self._next[0])

    def begin_in(self, text: str) -> bool:
        """Whether the text holds a character that some stop string begins with."""
        return not self._first_chars.isdisjoint(text)

    def advance(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)

    def _add(self, text: str) -> None:
        state = 0
        for length, char in enumerate(text, start=1):
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self.found.append("")
                self.num_open.append(length)
            state = self._next[state][char]
        self.found[state] = text

    def _link(self) -> None:
        """Shorter beginnings first: each is linked before those that it is the shorter one of."""
        states = list(self._next[0].values())
        for state in states:
            shorter = self._shorter[state]
            self.found[state] = self.found[state] or self.found[shorter]
            if not self._next[state]:
                self.num_open[state] = self.num_open[shorter]
            for char, child in self._next[state].items():
                self._shorter[child] = self.advance(shorter, char)
                states.append(child)
