"""Random templates: their text is plain Jinja's, and no character of content is part of a control token.

What content becomes is followed by other means than the renderer's: plain Jinja renders the same template
once more with the letters of content in another alphabet. Where that changes nothing else, it tells who wrote
what.
"""

import re

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.render.request.conversation import Conversation
from services.render.template.chat_template import ChatTemplate
from services.render.tokenizer.control_tokens import AddedToken, ControlTokens
from shared.errors import ServiceError
from tests.unit.render.template.conversations import user

TOKENS = ["<a>", "</a>", "<ab>", "<a><", "[b]", "|A|"]
CONTROL_TOKENS = ControlTokens(AddedToken(i, token, True, False, False) for i, token in enumerate(TOKENS))
ANY_TOKEN = re.compile("|".join(map(re.escape, sorted(TOKENS, key=len, reverse=True))))
# The characters of tokens, and others that templates look for.
OTHER_ALPHABET = {ord(char): chr(0xE000 + ord(char)) for char in "<>/[]|abAB"}
BACK = {ord(other): chr(char) for char, other in OTHER_ALPHABET.items()}

PARTS = st.lists(st.sampled_from([*TOKENS, "<", ">", "a>", "/a", "a", "b]", "|", "!", " ", "\n"]), max_size=5)
CONTENT = st.builds(lambda parts, by: by.join(parts), PARTS, st.sampled_from(["", "!"])) | st.builds(
    "!".join, st.sampled_from(TOKENS).map(list)
)
LEAVES = PARTS.map(lambda parts: repr("".join(parts))) | st.sampled_from(
    ["x", "y", "x", "y", "role", "bos_token"]
)
UNARY = st.sampled_from(
    [
        "({})[1:]", "({})[:-1]", "({})[::2]", "({})[::-1]", "({})[1:2]", "({}) * 2", "(({})|trim)",
        "({}).strip('!')", "({}).lstrip('! ')", "({}).rstrip()", "(({})|replace('!', ''))",
        "({}).replace('!', '')", "({}).replace('a', '', 1)", "(({}).split('!')|join)",
        "''.join(({}).split('!'))", "({}).split('!', 1)[0]", "({}).rsplit('!')[-1]",
        "({}).split()|join(' ')", "({}).partition('!')[2]", "({}).rpartition('<')[0]",
        "({}).splitlines()|join('!')", "({}).removeprefix('<')", "({}).removesuffix('>')", "({}).lower()",
        "(({})|upper)", "({}).title()", "(({})|list|join)", "(({})|reverse)", "(({})|string)",
        "({}).center(9, '<')", "({}).ljust(9, x)", "(({})|indent)", "(({})|truncate(9, true, ''))",
        "(({})|tojson)", "(({})|striptags)", "({}).encode().decode()", "({}).translate({33: '<'})",
        "('%s' % ({}))", "('<%s>' % ({}))", "('%s!%s' % (x, ({})))", "'{}!{}'.format(({}), y)",
        "('%3s' % ({}))", "'<{a}>'.format(a=({}))", "('%s'|format(({})))", "([({})]|join(x))",
        "written(({}))", "called(({}))", "(({}) or '<')", "(['<', ({})]|map('replace', '!', '')|join)",
        "({'a': ({})}|dictsort|first|last)", "joiner(({}))()",
    ]
)  # fmt: skip
BINARY = st.sampled_from(
    [
        "(({}) ~ ({}))", "(({}) + ({}))", "('%s%s' % (({}), ({})))", "'{}{}'.format(({}), ({}))",
        "([({}), ({})]|join)", "({}).join(['<', ({}), '>'])", "([x, '!', y]|join(({}) ~ ({})))",
        "(({})|replace('!', ({})))", "({}).replace('!', ({}))", "(({}) ~ '%s') % ({})",
        "(({}) ~ '<{}a>').format(({}))", "({}).strip(({}))",
        "(({}).split(({}) or '!')|join)",
    ]
)  # fmt: skip


def fill(template: str, *expressions: str) -> str:
    for each in expressions:
        template = template.replace("({})", f"({each})", 1)
    return template


EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.builds(fill, UNARY, inner) | st.builds(fill, BINARY, inner, inner),
    max_leaves=6,
)
SOURCE = (
    "{% macro written(v) %}<a>{{ v }}{% endmacro %}"
    "{% macro around() %}<{{ caller() }}>{% endmacro %}"
    "{% macro called(v) %}{% call around() %}{{ v }}{% endcall %}{% endmacro %}"
    "{% set x = messages[0].content %}{% set y = messages[0].name %}{% set role = messages[0].role %}"
    "{% set ns = namespace(v='') %}{% set block %}{{ FIRST }}<a{% endset %}{% set ns.v = ns.v + block ~ x %}"
    "{{ ns.v }}{{ SECOND }}{% filter replace('!', '') %}<{{ y }}a>{{ ns.v }}{% endfilter %}"
)


def render(template: ChatTemplate, x: str, y: str) -> tuple[str, list[slice]]:
    """The text, and where control tokens are more than text."""
    try:
        prompt = template.render(Conversation([user(x, name=y)], [], {}, add_generation_prompt=True))
    except ServiceError as error:
        return f"error: {error.message}", []
    tokens = []
    start = 0
    for piece in prompt.pieces:
        if piece.has_control:
            tokens += [
                slice(start + each.start(), start + each.end()) for each in ANY_TOKEN.finditer(piece.text)
            ]
        start += len(piece.text)
    return prompt.text, tokens


# Worth its seconds: no list of cases covers how operations on strings combine.
@given(first=EXPRESSIONS, second=EXPRESSIONS, x=CONTENT, y=CONTENT)
@settings(max_examples=150, deadline=None)
def test_random_templates_write_plain_jinja_s_text_and_no_token_of_content(
    first: str, second: str, x: str, y: str
) -> None:
    sources = {"default": SOURCE.replace("FIRST", first).replace("SECOND", second)}
    special_tokens = {"bos_token": "<a>"}
    plain = ChatTemplate(sources, special_tokens)
    expected, _ = render(plain, x, y)
    text, tokens = render(ChatTemplate(sources, special_tokens, control_tokens=CONTROL_TOKENS), x, y)
    assert text == expected
    traced, _ = render(plain, x.translate(OTHER_ALPHABET), y.translate(OTHER_ALPHABET))
    assume(traced.translate(BACK) == text)
    assert [traced[token] for token in tokens] == [text[token] for token in tokens]
