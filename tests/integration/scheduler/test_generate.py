"""Generate: which events, in which order, with what in them."""

import hashlib
import struct

import pytest
from triptych.v1 import types_pb2

from tests.integration.scheduler.client import prompt_of, request
from tests.integration.scheduler.conftest import MakeRig, Rig
from tests.support.fake_worker import FakeWorker
from tests.support.fake_worker_model import (
    EOS_TOKEN_IDS,
    kv_chain,
    logprobs_of,
    undisturbed_output,
    undisturbed_prompt_logprobs,
)

STOP, LENGTH = types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_LENGTH


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(FakeWorker())


async def test_events_come_in_order_and_a_limit_keeps_the_last_token(rig: Rig) -> None:
    prompt = prompt_of(40)
    answer = await rig.generate(request(prompt, max_tokens=5))
    assert answer.kinds[:2] == ["admitted", "scheduled"]
    assert answer.kinds[-1] == "finished"
    assert set(answer.kinds[2:-1]) == {"chunk"}
    assert answer.tokens() == undisturbed_output(prompt, 5)
    assert answer.finished().finish_reason == LENGTH
    assert not answer.finished().HasField("stop_token_id")


async def test_admission_says_what_will_be_applied(rig: Rig) -> None:
    answer = await rig.generate(request(prompt_of(40), max_tokens=5, seed=0))
    assert len(answer.admitted.generation_id) == 32
    assert (answer.admitted.max_tokens, answer.admitted.prompt_tokens) == (5, 40)
    assert list(answer.admitted.seeds) == [0]


async def test_usage_and_timings_count_this_request(make_rig: MakeRig) -> None:
    rig = await make_rig(FakeWorker(step_seconds=0.02))
    answer = await rig.generate(request(prompt_of(40), max_tokens=5))
    finished = answer.finished()
    usage, timings = finished.usage, finished.timings
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 0, 5)
    assert 0 <= timings.queue_seconds < timings.ttft_seconds < timings.total_seconds
    assert 5 * 0.02 <= timings.worker_seconds <= timings.total_seconds
    assert (timings.num_preemptions, timings.num_moves) == (0, 0)


async def test_a_stop_token_ends_the_output_counts_and_stays_out_of_the_chunks(rig: Rig) -> None:
    prompt = prompt_of(20)
    tokens = undisturbed_output(prompt, 5)
    answer = await rig.generate(request(prompt, max_tokens=9, stop_token_ids=[tokens[4]], logprobs=1))
    finished = answer.finished()
    assert answer.tokens() == tokens[:4]
    assert (finished.finish_reason, finished.stop_token_id) == (STOP, tokens[4])
    assert finished.usage.completion_tokens == 5
    assert finished.stop_token_logprobs.token.token_id == tokens[4]


async def test_a_stop_token_that_comes_first_leaves_no_chunk(rig: Rig) -> None:
    prompt = prompt_of(20)
    answer = await rig.generate(request(prompt, stop_token_ids=undisturbed_output(prompt, 1)))
    assert answer.kinds == ["admitted", "scheduled", "finished"]
    assert answer.finished().usage.completion_tokens == 1


async def test_every_end_of_sequence_token_of_the_model_ends_an_output(rig: Rig) -> None:
    for token_id in EOS_TOKEN_IDS:
        answer = await rig.generate(request(prompt_of(5), max_tokens=9, logit_bias={token_id: 100}))
        assert (answer.finished().finish_reason, answer.finished().stop_token_id) == (STOP, token_id)


async def test_ignore_eos_goes_on_but_stop_tokens_still_apply(rig: Rig) -> None:
    eos = EOS_TOKEN_IDS[0]
    bias = {eos: 100}
    answer = await rig.generate(request(prompt_of(5), max_tokens=4, logit_bias=bias, ignore_eos=True))
    assert answer.tokens() == [eos] * 4
    assert answer.finished().finish_reason == LENGTH
    stopped = await rig.generate(
        request(prompt_of(5), max_tokens=4, logit_bias=bias, ignore_eos=True, stop_token_ids=[eos])
    )
    assert stopped.finished().finish_reason == STOP


async def test_nothing_ends_an_output_before_min_tokens(rig: Rig) -> None:
    prompt, eos = prompt_of(5), EOS_TOKEN_IDS[1]
    answer = await rig.generate(request(prompt, max_tokens=9, min_tokens=3, logit_bias={eos: 100}))
    assert answer.tokens() == undisturbed_output(prompt, 3)
    assert answer.finished().stop_token_id == eos
    assert answer.finished().usage.completion_tokens == 4


async def test_logprobs_are_the_workers_one_per_token(rig: Rig) -> None:
    prompt = prompt_of(20)
    answer = await rig.generate(request(prompt, max_tokens=4, logprobs=3))
    tokens = answer.tokens()
    kv = kv_chain([*prompt, *tokens])
    expected = [logprobs_of(kv[19 + index], token, 3) for index, token in enumerate(tokens)]
    assert [each for chunk in answer.of_kind("chunk") for each in chunk.logprobs] == expected


async def test_logprobs_zero_is_not_unset(rig: Rig) -> None:
    zero = await rig.generate(request(prompt_of(20), max_tokens=2, logprobs=0))
    unset = await rig.generate(request(prompt_of(20), max_tokens=2))
    assert [len(each.top) for chunk in zero.of_kind("chunk") for each in chunk.logprobs] == [0, 0]
    assert [each for chunk in unset.of_kind("chunk") for each in chunk.logprobs] == []


@pytest.mark.parametrize("max_num_batched_tokens", [1, 7, 16, 2048])
async def test_prompt_logprobs_report_each_position_once_before_the_first_chunk(
    make_rig: MakeRig, max_num_batched_tokens: int
) -> None:
    rig = await make_rig(FakeWorker(), max_num_batched_tokens=max_num_batched_tokens)
    prompt = prompt_of(50)
    await rig.generate(request(prompt, max_tokens=1))  # would be found in the cache
    answer = await rig.generate(request(prompt, max_tokens=3, prompt_logprobs=2))
    parts = answer.of_kind("prompt_logprobs")
    assert [part.first_position for part in parts] == [
        1 + sum(len(each.positions) for each in parts[:index]) for index in range(len(parts))
    ]
    assert [each for part in parts for each in part.positions] == undisturbed_prompt_logprobs(prompt, 2)
    assert "prompt_logprobs" not in answer.kinds[answer.kinds.index("chunk") :]
    assert answer.finished().usage.cached_tokens == 0
    assert answer.tokens() == undisturbed_output(prompt, 3)


async def test_prompt_logprobs_of_one_token_are_none(rig: Rig) -> None:
    answer = await rig.generate(request([5], max_tokens=2, prompt_logprobs=2))
    assert answer.of_kind("prompt_logprobs") == []
    assert answer.tokens() == undisturbed_output([5], 2)


async def test_each_of_n_outputs_has_its_own_seed_tokens_and_one_end(rig: Rig) -> None:
    prompt = prompt_of(40)
    answer = await rig.generate(request(prompt, max_tokens=6, temperature=1, seed=7, n=4))
    seeds = [7] + [
        int.from_bytes(hashlib.sha256(struct.pack("<QQ", 7, index)).digest()[:8], "little")
        for index in (1, 2, 3)
    ]
    assert list(answer.admitted.seeds) == seeds
    for index, seed in enumerate(seeds):
        assert answer.tokens(index) == undisturbed_output(prompt, 6, seed)
        assert answer.finished(index).finish_reason == LENGTH
    usage = answer.events[-1].finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (40, 24)


async def test_outputs_that_end_in_one_step_all_have_their_end(rig: Rig) -> None:
    """Output 0 is ahead by its prefill; the others run together and end together."""
    answer = await rig.generate(request(prompt_of(40), max_tokens=1, n=5))
    assert [answer.finished(index).finish_reason for index in range(5)] == [LENGTH] * 5


async def test_an_unset_seed_is_drawn_anew_and_reported(rig: Rig) -> None:
    prompt = prompt_of(20)
    answers = [await rig.generate(request(prompt, max_tokens=4, temperature=1)) for _ in range(2)]
    seeds = [answer.admitted.seeds[0] for answer in answers]
    assert seeds[0] != seeds[1]
    for seed, answer in zip(seeds, answers, strict=True):
        assert answer.tokens() == undisturbed_output(prompt, 4, seed)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
async def test_the_same_prompt_twice_gives_the_same_tokens_from_the_cache(rig: Rig, length: int) -> None:
    prompt = prompt_of(length)
    first, second = [await rig.generate(request(prompt, max_tokens=20)) for _ in range(2)]
    assert first.tokens() == second.tokens() == undisturbed_output(prompt, 20)
    # At least the last token is computed.
    assert second.finished().usage.cached_tokens == (length - 1) // 16 * 16
    assert second.of_kind("scheduled")[0].cached_tokens == second.finished().usage.cached_tokens


async def test_another_salt_shares_no_prefix(rig: Rig) -> None:
    prompt = prompt_of(40)
    cached = [
        (await rig.generate(request(prompt, max_tokens=1, cache_salt=salt))).finished().usage.cached_tokens
        for salt in ("a", "b", "a", "")
    ]
    assert cached == [0, 0, 32, 0]


async def test_requests_with_one_client_id_are_two_requests(rig: Rig) -> None:
    message = request(prompt_of(20), max_tokens=3, request_id="same")
    answers = [await rig.generate(message), await rig.generate(message)]
    assert answers[0].admitted.generation_id != answers[1].admitted.generation_id
