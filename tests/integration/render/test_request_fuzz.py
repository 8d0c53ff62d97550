"""Whatever is sent, what comes back is documented."""

from pathlib import Path

import pytest

from tests.integration.render.request_fuzz import fuzz_folder, send
from tests.support.processes import started


@pytest.mark.parametrize("style", ["kimi_k2", "glm_4_7_flash"])
async def test_mutated_requests_get_documented_answers_only(style: str, tmp_path: Path) -> None:
    with started("render", "--model", fuzz_folder(str(tmp_path), style)) as render:
        render.wait_until_ready()
        outcomes, wrong = await send(str(render.address), 2000, seed=1)
        assert wrong == []
        assert render.process.poll() is None
    assert outcomes["OK"] > 100
    assert len(outcomes) >= 8, "the requests are wrong in many ways"
