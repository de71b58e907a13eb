"""Chat templates with the habits of those that models come with. Written for these tests; contents are what counts."""

from __future__ import annotations

# The content is split at the end of thinking, so clients may send it back as it came; only the newest turn keeps it.
SPLITS_THINKING = """\
{{- '<s>' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|User|>' + message.content }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- if '</think>' in content and not loop.last %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|Assistant|>' + content + '<|end|>' }}
{%- elif message.role == 'tool' %}{{ '<|Tool|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}
"""

# The date comes first, tools go into the first user message.
TOOLS_IN_FIRST_USER = """\
{{- '<|start|>system<|sep|>\\n\\nToday: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content.strip() %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- system + '<|stop|>' }}
{%- for message in rest %}
{{- '<|start|>' + ('ipython' if message.role == 'tool' else message.role) + '<|sep|>\\n\\n' }}
{%- if loop.first and tools %}
{{- 'Functions:\\n' }}{% for tool in tools %}{{ (tool | tojson(indent=1)) + '\\n' }}{% endfor %}
{%- endif %}
{{- message.content.strip() + '<|stop|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\\n\\n' }}{% endif %}
"""

# Tools stand before the last user message, wherever that is; the system message goes into it as well.
TOOLS_MOVE = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- '<s>' }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if loop.index0 == ns.last and tools %}{{ '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}{{ message.content + '</s>' }}
{%- elif message.role == 'tool' %}{{ '[RESULT]' + message.content + '[/RESULT]' }}
{%- elif message.role == 'system' %}{{ '[SYS]' + message.content + '[/SYS]' }}
{%- endif %}
{%- endfor %}
"""

# Roles have other names, the system message is the beginning of the first user message, turns are trimmed.
SYSTEM_IN_USER = """\
{{- '<bos>' }}
{%- if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set rest = messages[1:] %}
{%- else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest %}
{%- set role = 'model' if message.role == 'assistant' else 'user' %}
{{- '<turn>' + role + '\\n' + (first if loop.first else '') + (message.content | trim) + '</turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}
"""
