"""The embedded model's accuracy per task, asked through three processes: `python -m tests.bench.accuracy`."""

import asyncio
from time import perf_counter

from shared.demo_model.training.held_out import held_out_questions
from tests.e2e.stack import ask_all, running_stack

TASKS = (
    *(f"recall_{size}" for size in (1, 2, 4, 6, 8, 10, 12)),
    *(f"recall_{size}_long" for size in (1, 4, 8, 12)),
    *(f"copy_{size}" for size in (5, 8, 10, 12)),
    *(f"copy_{size}_repeats" for size in (5, 8, 12)),
    *(f"copy_{size}_digits" for size in (4, 8, 12)),
    *(f"number_{size}" for size in (4, 8, 10)),
    *(f"reverse_{size}" for size in (2, 4, 6)),
    "count",
    "first_word",
    "last_word",
    *(f"unknown_{size}" for size in (0, 1, 2, 4, 8)),
)
PER_TASK = 50
AT_ONCE = 32


async def main() -> None:
    """Prints a Markdown table."""
    print(f"{PER_TASK} held-out questions per task, greedy, {AT_ONCE} at a time, whole answers compared\n")
    print("| task | right |\n| --- | --- |")
    started = perf_counter()
    with running_stack() as stack:
        for task in TASKS:
            questions = held_out_questions(31337, task, PER_TASK)
            answers = await ask_all(stack, [question.messages for question in questions], AT_ONCE)
            num_right = sum(a.text == q.answer for a, q in zip(answers, questions, strict=True))
            print(f"| {task} | {num_right / PER_TASK:.0%} |", flush=True)
    print(f"\n{perf_counter() - started:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
