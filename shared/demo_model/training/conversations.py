"""Synthetic chats: seeded, endless, and every answer is a fixed function of what was said before.

Training fills its rows from them; the end-to-end tests ask the served model the questions of `held_out.py`,
which is made of the same pieces. Nothing here needs torch or a tokenizer.
"""

from collections.abc import Iterator

from shared.demo_model.training.facts import NAME_ANSWER, Fact, new_fact, unknown_fact
from shared.demo_model.training.tasks import Turn, random_task
from shared.demo_model.training.values import Values

ABOUT = "I am a tiny demo model. I remember what you tell me in this chat."
HELP = "Tell me facts and ask about them later, or ask me to repeat, reverse or count."
UNKNOWN = "I don't know that yet."
ACKNOWLEDGED = "OK, I will remember that."
GREETED = "Hello! How can I help?"

GREETINGS = (
    "Hello",
    "Hi",
    "Hey",
    "Hello!",
    "Hi!",
    "Hi there",
    "Good morning.",
    "Hello there!",
    "Good evening.",
    "Hey there!",
)
SMALL_TALK: dict[str, tuple[str, ...]] = {  # answer: what may be said to get it
    ABOUT: (
        "What are you?",
        "Who are you?",
        "Are you a robot?",
        "What is this?",
        "Are you human?",
        "What's your name?",
        "What is your name?",
        "Tell me about yourself.",
        "Which model are you?",
    ),
    HELP: (
        "What can you do?",
        "Help",
        "Can you help me?",
        "How does this work?",
        "What can I ask?",
        "Help me please.",
    ),
    "I am fine, thank you.": (
        "How are you?",
        "How are you doing?",
        "How is it going?",
        "Are you OK?",
        "How do you do?",
    ),
    "You are welcome.": (
        "Thanks!",
        "Thank you.",
        "Thank you very much!",
        "Great, thanks.",
        "Many thanks.",
    ),
    "Goodbye!": ("Bye!", "Goodbye.", "See you later.", "Good night.", "Bye bye."),
    "Good. What is next?": (
        "OK.",
        "Good.",
        "Nice.",
        "Great!",
        "Cool.",
        "Well done.",
        "Right.",
        "Yes.",
        "Perfect.",
    ),
    f"I am too small for that. {HELP}": (
        "Tell me a joke.",
        "Write a poem.",
        "What is the weather?",
        "What time is it?",
        "Who is the president?",
        "Tell me a story.",
        "What is the meaning of life?",
        "Explain physics.",
        "Write some code.",
        "What is the news?",
        "What is the capital of France?",
        "How far is the moon?",
        "Translate this.",
        "What day is it today?",
    ),
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a tiny demo model.",
    "Be brief.",
    "Answer from the chat.",
    "You are a friendly assistant. Keep answers short.",
)
MAX_FACTS = 12
# How often a turn tells a fact, asks for one told, asks for one never told, sets a task, makes small talk.
MOVES = ("tell", "ask", "ask_unknown", "task", "small_talk")
EARLY_WEIGHTS = (0.30, 0.32, 0.09, 0.24, 0.05)
LATE_WEIGHTS = (0.22, 0.32, 0.19, 0.22, 0.05)  # from three facts on, when "never told" is hard to tell apart


class Conversation:
    """One chat. Iterating yields turns without end, as the caller decides when it has enough."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.told: dict[tuple[str, ...], Fact] = {}

    def __iter__(self) -> Iterator[Turn]:
        while True:
            yield self.next_turn()

    def next_turn(self) -> Turn:
        weights = EARLY_WEIGHTS if len(self.told) < 3 else LATE_WEIGHTS
        move = self.values.random.choices(MOVES, weights)[0]
        if move == "ask" and not self.told:
            move = "tell"
        if move == "tell" and len(self.told) >= MAX_FACTS:
            move = "ask"
        turn: Turn = getattr(self, f"_{move}")()
        return turn

    def _tell(self) -> Turn:
        facts = []
        for _ in range(self.values.random.choice((1, 1, 1, 1, 2, 3))):
            fact = new_fact(self.values, self.told)
            self.told[fact.key] = fact
            facts.append(fact)
        if len(facts) == 1:
            return tell(self.values, facts[0])
        return Turn(" ".join(self.values.one_of(fact.statements) for fact in facts), ACKNOWLEDGED)

    def _ask(self) -> Turn:
        return ask(self.values, self.values.random.choice(list(self.told.values())))

    def _ask_unknown(self) -> Turn:
        return ask(self.values, unknown_fact(self.values, self.told))._replace(assistant=UNKNOWN)

    def _task(self) -> Turn:
        user, assistant = random_task(self.values)
        return Turn(casual(self.values, user), assistant)

    def _small_talk(self) -> Turn:
        if self.values.chance(0.5):
            name = self.told.get(("name",))
            answer = f"Hello, {value_of_name(name)}! How can I help?" if name else GREETED
            return Turn(casual(self.values, self.values.one_of(GREETINGS)), answer)
        return small_talk(self.values)


def tell(values: Values, fact: Fact) -> Turn:
    """The user tells one fact; the answer says it back, or takes note of it if asked to remember."""
    statement = values.one_of(fact.statements)
    starts_with_value = bool(fact.subject) and statement.startswith(fact.subject)
    if values.chance(0.35):
        command = values.one_of(("Remember: ", "Please remember: ", "Remember that "))
        if not starts_with_value and not statement.startswith("I"):
            statement = lower_first(statement)
        return Turn(casual(values, command + statement), ACKNOWLEDGED)
    if fact.key == ("name",):
        return Turn(casual(values, statement), f"Nice to meet you, {value_of_name(fact)}.")
    return Turn(casual(values, statement, starts_with_value), f"Noted: {lower_first(fact.answer)}")


def ask(values: Values, fact: Fact) -> Turn:
    return Turn(casual(values, values.one_of(fact.questions)), fact.answer)


def small_talk(values: Values) -> Turn:
    """Anything but a greeting, whose answer depends on the name told."""
    answer = values.one_of(tuple(SMALL_TALK))
    return Turn(casual(values, values.one_of(SMALL_TALK[answer])), answer)


def casual(values: Values, message: str, starts_with_value: bool = False) -> str:
    """The message as people type it: one in five without its capital, one in five without its last mark."""
    if values.chance(0.2) and not starts_with_value:
        message = lower_first(message)
    if values.chance(0.2) and message[-1] in ".?!":
        message = message[:-1]
    return message


def lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def value_of_name(fact: Fact) -> str:
    prefix, suffix = NAME_ANSWER.split("{}")
    return fact.answer.removeprefix(prefix).removesuffix(suffix)
