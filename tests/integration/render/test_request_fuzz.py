"""Whatever is sent, what comes back is documented."""

import pytest

from tests.integration.render.request_fuzz import fuzzed, send


@pytest.mark.parametrize("style", ["kimi_k2", "glm_4_7_flash"])
async def test_mutated_requests_get_documented_answers_only(style: str) -> None:
    async with fuzzed(style) as render:
        outcomes, wrong = await send(str(render.address), 2000, seed=1)
        assert wrong == []
        assert render.process.poll() is None
    assert outcomes["OK"] > 100
    assert len(outcomes) >= 8, "the requests are wrong in many ways"
