"""Measure a checkpoint with transformers: greedy exact match on held-out questions, as a Markdown table.

python -m tests.unit.shared.demo_model.evaluate [FOLDER] [--count 100] [--tasks recall_4 copy_10]
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, DeepseekV3ForCausalLM

from shared.demo_model import PATH
from shared.demo_model.training.conversations import GREETED, GREETINGS, SMALL_TALK
from shared.demo_model.training.held_out import Question, held_out_questions

TASKS = (
    *(f"recall_{size}" for size in (1, 2, 4, 6, 8, 10, 12)),
    *(f"recall_{size}_long" for size in (1, 4, 8, 12)),
    *(f"unknown_{size}" for size in (0, 1, 2, 4, 8)),
    *(f"copy_{size}" for size in (1, 5, 8, 10, 12)),
    *(f"copy_{size}_repeats" for size in (3, 5, 8, 10, 12)),
    *(f"copy_{size}_digits" for size in (4, 8, 10, 12)),
    *(f"number_{size}" for size in (4, 8, 10)),
    *(f"reverse_{size}" for size in (2, 3, 4, 5, 6)),
    *("count", "first_word", "last_word", "small_talk"),
)
BATCH_SIZE = 25


def small_talk() -> Iterator[Question]:
    """Greetings and small talk as a chat's first message, in the words of training."""
    for answer, cues in {**SMALL_TALK, GREETED: GREETINGS}.items():
        for cue in cues:
            yield Question("small_talk", ({"role": "user", "content": cue},), answer)


@torch.no_grad()
def answers(model, tokenizer, prompts: Sequence[list[int]]) -> list[tuple[str, list[float]]]:
    """Each prompt's greedy answer, and of each of its tokens how far the best logit is above the second."""
    length = max(map(len, prompts))
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    input_ids = torch.tensor([[pad] * (length - len(prompt)) + prompt for prompt in prompts])
    output = model.generate(
        input_ids,
        attention_mask=(input_ids != pad).long(),
        max_new_tokens=100,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(output.logits, 1).float().topk(2, -1).values  # [prompts, new tokens, 2]
    results = []
    for row, gaps in zip(
        output.sequences[:, length:].tolist(), (best[..., 0] - best[..., 1]).tolist(), strict=True
    ):
        end = row.index(eos) + 1 if eos in row else len(row)
        results.append((tokenizer.decode(row[:end], skip_special_tokens=True), gaps[:end]))
    return results


def measure(model, tokenizer, questions: list[Question], num_misses: int) -> str:
    prompts = [
        tokenizer.apply_chat_template(list(question.messages), add_generation_prompt=True, return_dict=False)
        for question in questions
    ]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    right, gaps, misses = 0, [], []
    for start in range(0, len(order), BATCH_SIZE):
        batch = order[start : start + BATCH_SIZE]
        for index, (text, text_gaps) in zip(
            batch, answers(model, tokenizer, [prompts[i] for i in batch]), strict=True
        ):
            gaps += text_gaps
            right += text == questions[index].answer
            if text != questions[index].answer:
                misses.append(f"    wanted {questions[index].answer!r}, got {text!r}")
    low, median = torch.tensor(gaps).quantile(torch.tensor([0.01, 0.5])).tolist()
    row = (
        f"| {questions[0].task} | {100 * right / len(prompts):.0f} % of {len(prompts)} "
        f"| {len(prompts[order[0]])} to {len(prompts[order[-1]])} | {low:.1f} | {median:.1f} |"
    )
    return "\n".join([row, *misses[:num_misses]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=PATH)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=987654)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--misses", type=int, default=0, help="how many wrong answers to print below a row")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
    model = DeepseekV3ForCausalLM.from_pretrained(
        arguments.folder, dtype=getattr(torch, arguments.dtype)
    ).eval()
    print("| task | exact | prompt tokens | top-2 logit gap, 1st percentile | median |")
    print("| --- | --- | --- | --- | --- |")
    for task in arguments.tasks:
        is_small_talk = task == "small_talk"
        questions = (
            list(small_talk()) if is_small_talk else held_out_questions(arguments.seed, task, arguments.count)
        )
        print(measure(model, tokenizer, questions, arguments.misses), flush=True)


if __name__ == "__main__":
    main()
