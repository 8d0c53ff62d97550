"""What a right model answers, worked out from the chat's text alone, without the generator's state."""

import re
from collections.abc import Sequence

from shared.demo_model.training.conversations import ACKNOWLEDGED, GREETED, GREETINGS, SMALL_TALK, UNKNOWN

_SECRET = r"(?P<secret>code|pin|password|number)"
_REMEMBER = re.compile(r"^(remember: |please remember: |remember that )", re.I)
# Each pattern's groups fill the answer beside it; the groups named in the key say what the fact is about.
_STATEMENTS = (
    (r"(hi, |hello, )?(my name is|i am|i'm|call me) (?P<value>\S+)", "Your name is {value}."),
    (rf"(the )?{_SECRET} for (?P<owner>\S+) is (?P<value>\S+)", "The {secret} for {owner} is {value}."),
    (rf"the (?P<owner>\S+) {_SECRET} is (?P<value>\S+)", "The {secret} for {owner} is {value}."),
    (
        r"the (?P<color>\w+) (?P<holder>\w+) holds (?P<count>\d+) (?P<things>\w+)",
        "The {color} {holder} holds {count} {things}.",
    ),
    (
        r"there are (?P<count>\d+) (?P<things>\w+) in the (?P<color>\w+) (?P<holder>\w+)",
        "The {color} {holder} holds {count} {things}.",
    ),
    (r"my (?P<animal>\w+)('s name is| is called) (?P<value>\S+)", "Your {animal} is called {value}."),
    (r"i have a (?P<animal>\w+) called (?P<value>\S+)", "Your {animal} is called {value}."),
    (r"my favorite (?P<topic>\w+) is (?P<value>\S+)", "Your favorite {topic} is {value}."),
    (r"(i live in|my home is in|i am from) (?P<value>\S+)", "You live in {value}."),
    (r"(my friend )?(?P<friend>\S+) lives in (?P<value>\S+)", "Your friend {friend} lives in {value}."),
    (
        r"(my friend )?(?P<friend>\S+) is (?P<value>\d+) years old",
        "Your friend {friend} is {value} years old.",
    ),
    (
        r"(the meeting with (?P<person>\S+) is|i meet (?P<person2>\S+)) on (?P<day>\w+) at (?P<hour>\d+)",
        "The meeting with {person} is on {day} at {hour}.",
    ),
)
_QUESTIONS = (  # and the words that any answer to it contains
    (
        r"(what is my name|what's my name|who am i|do you know my name|tell me my name"
        r"|do you remember my name)",
        "your name is ",
    ),
    (
        rf"(what is the |what's the |tell me the |do you know the )?{_SECRET} for (?P<owner>\S+)",
        "the {secret} for {owner} is ",
    ),
    (rf"what('s| is) the (?P<owner>\S+) {_SECRET}", "the {secret} for {owner} is "),
    (r"(what|how many \w+) does the (?P<color>\w+) (?P<holder>\w+) hold", "the {color} {holder} holds "),
    (r"(what is|how many \w+ are) in the (?P<color>\w+) (?P<holder>\w+)", "the {color} {holder} holds "),
    (r"what is my (?P<animal>\w+)('s name| called)", "your {animal} is called "),
    (r"what's the name of my (?P<animal>\w+)", "your {animal} is called "),
    (r"(what is|what's|tell me) my favorite (?P<topic>\w+)", "your favorite {topic} is "),
    (r"(where do i live|where is my home|which city do i live in|where am i from)", "you live in "),
    (r"where does (my friend )?(?P<friend>\S+) live", "your friend {friend} lives in "),
    (r"how old is (my friend )?(?P<friend>\S+)", "your friend {friend} is "),
    (r"when (is the meeting with|do i meet) (?P<person>\S+)", "the meeting with {person} is on "),
)
_COPY = re.compile(
    r"(repeat after me: |please repeat: |repeat: |repeat the number (?=\d+$)|repeat |say: |copy: )(.*)", re.I
)
_REVERSE = re.compile(r"(say in reverse: |please reverse: |reverse: |reverse )(.*)", re.I)
_COUNT = re.compile(r"(please )?count (from )?(?P<first>\d+) to (?P<last>\d+)", re.I)
_WORD = re.compile(r"(what is the |tell me the )?(?P<which>first|last) word of: (?P<listed>.*)", re.I)


def answer(history: Sequence[str], message: str) -> str:
    """The right answer to `message` after the user's earlier messages."""
    told = [fact for earlier in history for fact in _facts(earlier)]
    return _small_talk(told, message) or _task(message) or _recalled(told, message) or _noted(message)


def _plain(message: str) -> str:
    return message.rstrip(".?!")


def _small_talk(told: list[str], message: str) -> str | None:
    said = _plain(message).lower()
    if said in {_plain(greeting).lower() for greeting in GREETINGS}:
        name = next((fact.removeprefix("Your name is ")[:-1] for fact in told if "Your name is" in fact), "")
        return f"Hello, {name}! How can I help?" if name else GREETED
    return next(
        (reply for reply, cues in SMALL_TALK.items() if said in {_plain(cue).lower() for cue in cues}), None
    )


def _task(message: str) -> str | None:
    if match := _COPY.fullmatch(message):
        return f"Sure: {match[2]}"
    if match := _REVERSE.fullmatch(message):
        return "Reversed: " + " ".join(reversed(match[2].split()))
    if match := _COUNT.fullmatch(_plain(message)):
        return "Counting: " + " ".join(map(str, range(int(match["first"]), int(match["last"]) + 1)))
    if match := _WORD.fullmatch(message):
        which = match["which"].lower()
        return f"The {which} word is {match['listed'].split()[0 if which == 'first' else -1]}."
    return None


def _recalled(told: list[str], message: str) -> str | None:
    for pattern, start in _QUESTIONS:
        if match := re.fullmatch(pattern, _plain(message), re.I):
            wanted = start.format(**match.groupdict()).lower()
            asks_age = start.startswith("your friend") and start.endswith(" is ")
            facts = [fact for fact in told if fact.lower().startswith(wanted)]
            facts = [fact for fact in facts if not asks_age or fact.endswith("years old.")]
            assert len(facts) <= 1, f"{message!r} has two answers: {facts}"
            return facts[0] if facts else UNKNOWN
    return None


def _noted(message: str) -> str:
    facts = _facts(message)
    assert facts, f"{message!r} is neither question nor statement"
    if _REMEMBER.match(message) or len(facts) > 1:
        return ACKNOWLEDGED
    if facts[0].startswith("Your name is "):
        return "Nice to meet you, " + facts[0].removeprefix("Your name is ")
    return f"Noted: {facts[0][0].lower()}{facts[0][1:]}"


def _facts(message: str) -> list[str]:
    """The facts that a message tells, each in the words in which it is given back."""
    found = []
    for sentence in _REMEMBER.sub("", message).split(". "):
        for pattern, form in _STATEMENTS:
            if match := re.fullmatch(pattern, _plain(sentence), re.I):
                groups = {name.rstrip("2"): value for name, value in match.groupdict().items() if value}
                if "secret" in groups:
                    groups["secret"] = groups["secret"].lower()  # it may begin the sentence
                found.append(form.format(**groups))
                break
    return found
