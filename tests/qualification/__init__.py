"""Are the numbers right? The worker against implementations that share no code with it.

test_attention      mha = mqa = a textbook in fp64, over a grid of sizes and hostile inputs
test_checkpoints    every kind of checkpoint against transformers: logits, greedy continuations; in process
                    and through sessions of a real worker process
test_fp8            FP8 checkpoints against what they mean
test_histories      mixed batches, chunks, block tables, preemption and moves change no token
mutants             deliberate faults in the pass, each of which these tests must catch (`make mutants`)

The parts against references of a few lines in fp64 are beside their units in tests/unit/worker: the router in
backends/reference/test_moe.py, rope in model/test_rope.py, the sampler (with a chi-square test, and bitwise
between batches) in sampling/test_sampler.py, its random numbers in sampling/test_philox.py.
"""
