"""Every mutation still applies; that each is caught, `make mutants` shows."""

from collections import Counter
from pathlib import Path

import pytest

from tests.qualification.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.fault)
def test_a_mutation_changes_exactly_one_place(mutation: Mutation) -> None:
    content = (ROOT / mutation.path).read_text()
    assert content.count(mutation.old) == 1
    assert mutation.new != mutation.old
    compile(content.replace(mutation.old, mutation.new), mutation.file, "exec")


def test_no_two_mutations_are_one() -> None:
    assert len(MUTATIONS) >= 20
    assert max(Counter((m.file, m.old, m.new) for m in MUTATIONS).values()) == 1
