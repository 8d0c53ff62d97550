"""One set of processes for the tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import EXACT, Stack, running_stack


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    """Ready; shared, so nothing that a test kills."""
    with running_stack(*EXACT) as stack:
        yield stack
