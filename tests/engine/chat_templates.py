"""Small chat templates, each with one habit that makes it hard to say where messages end. Written for these tests."""

from __future__ import annotations

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# Reasoning of answers before the last user message is dropped; the newest answer always has think tags, empty if need
# be; tool results are grouped into one user block; a conversation without a user message is refused; a system message
# is allowed at the beginning only; thinking switched off puts empty think tags into the generation header.
REASONING = """\
{% set ns = namespace(last=-1) %}
{% for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{% if ns.last < 0 %}{{ raise_exception('there is no user message') }}{% endif %}
{% if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{% for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{ raise_exception('the system message must come first') }}{% endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or message.reasoning_content) %}
            {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}{{ '\\n<call>' + (call.function | tojson) + '</call>' }}{% endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<result>\\n' + message.content + '\\n</result>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

# User and assistant must take turns; the system message goes into the first user message; nothing marks the header.
ALTERNATING = """\
{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% if not rest %}{{ raise_exception('there is nothing but a system message') }}{% endif %}
{% for message in rest %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if message.role == 'user' %}
{{- '<|im_start|>[INST] ' }}{% if loop.first and system %}{{ '<<SYS>>' + system + '<</SYS>>' }}{% endif %}
{{- message.content.strip() + ' [/INST]' -}}
{% else %}
{{- ' ' + message.content.strip() + ' <|im_end|>' -}}
{% endif %}
{% endfor %}
"""

# No special tokens at all: boundaries are plain text, and the tokenizer looks across them.
PLAIN = """\
{% for message in messages %}
{{- '### ' + message.role + ':\\n' + message.content + '\\n\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}
"""

# An end mark when nothing is to be generated.
FOOTER = """\
{% for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% else %}{{ '<|endoftext|>' }}{% endif %}
"""

# Builds everything in a variable and prints it at the end, with the tool list and the date in front.
COLLECTED = """\
{% set ns = namespace(text='') %}
{% for message in messages %}
{% set ns.text = ns.text ~ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' %}
{% endfor %}
{{- '<|im_start|>' + strftime_now('%d %B %Y %H:%M:%S') + '<|im_end|>\\n' + ns.text }}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
