"""The errors of a malformed step."""

from collections.abc import Sequence
from typing import NoReturn

from shared.errors import Reason, ServiceError


def malformed(field: str, value: object, allowed: str) -> NoReturn:
    """Raises MALFORMED_STEP for a field of the step."""
    raise ServiceError(
        Reason.MALFORMED_STEP,
        f"{field} is {value}; allowed: {allowed}",
        field=field,
        value=value,
        allowed=allowed,
    )


def check_range(field: str, value: float, smallest: float, largest: float) -> None:
    """Both ends are allowed; NaN is not."""
    if not smallest <= value <= largest:
        malformed(field, value, f"{smallest} to {largest}")


def check_ids(field: str, ids: Sequence[int], smallest: int, largest: int) -> None:
    """Every element of a repeated field; the first bad one is named."""
    if not ids or smallest <= min(ids) <= max(ids) <= largest:
        return
    for i, value in enumerate(ids):
        check_range(f"{field}[{i}]", value, smallest, largest)
