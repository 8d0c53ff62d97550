"""The embedded demo model: 2.8 million parameters in DeepSeek-V3's architecture and Hugging Face's layout.

It remembers what a chat tells it, answers from that, and repeats, reverses and counts. Every answer is a
fixed function of the conversation, so a wrong one can show that a service lost or mixed up the history.
README.md says what it can and cannot do; `train.py` is the script that made it.
"""

from pathlib import Path

PATH: Path = Path(__file__).parent  # the checkpoint folder: config, weights, tokenizer, chat template
