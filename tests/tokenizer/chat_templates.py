"""Chat templates in the manner of the usual models, and conversations for them."""

from typing import Any

TEMPLATES = {
    "instructions": """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\\n' + messages[0].content.strip() + '\\n<</SYS>>\\n\\n' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- for m in turns %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if m.role == 'user' %}
        {{- bos_token ~ '[INST] ' ~ (system if loop.first else '') ~ m.content | trim ~ ' [/INST]' }}
    {%- else %}
        {%- generation %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}""",
    "headers with tools": """{{ bos_token }}
{%- if not date is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}
{{- '<header>system</header>\\n\\nDate: ' + date }}
{%- if tools is not none %}
{{ '\\nTools:' }}
{%- for tool in tools %}
{{ tool | tojson(indent=4) }}
{%- endfor %}
{%- endif %}
{%- for m in messages if m.role != 'system' %}
{%- if m.tool_calls is defined %}
{%- for call in m.tool_calls %}
{{- '\\n' }}<call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</call>
{%- endfor %}
{%- elif m.role == 'tool' %}
{{- '\\n<result>' ~ (m.content if m.content is string else m.content | tojson) ~ '</result>' }}
{%- else %}
{{- '\\n<header>' + m.role + '</header>\\n\\n' + m.content | trim }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '\\n<header>assistant</header>\\n\\n' }}
{%- endif %}""",
    "thoughts of the last turn": """
{%- set ns = namespace(last=-1, seen={}) %}
{%- for m in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.last < 0 and m.role == 'user' %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and m.content and '</think>' in m.content %}
        {%- set thought = m.content.split('</think>')[0].lstrip('\\n').split('<think>')[-1] %}
        {%- if loop.index0 > ns.last %}
            {{- '<think>' + thought + '</think>' }}
        {%- endif %}
        {{- m.content.split('</think>')[-1].lstrip('\\n') }}
    {%- elif m.content is defined %}
        {{- m.content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "macros": """
{%- macro part(value, depth=0) -%}
    {%- if value is mapping -%}
        { {%- for key, item in value | dictsort %}{{ key }}: {{ part(item, depth + 1) }}
        {{- ', ' if not loop.last }}{% endfor -%} }
    {%- elif value is sequence and value is not string -%}
        [{% for item in value %}{{ part(item, depth + 1) }}{{ ',' if not loop.last }}{% endfor %}]
    {%- elif value is boolean -%}{{ 'yes' if value else 'no' }}
    {%- else -%}{{ value | string | upper if depth > 1 else value }}
    {%- endif -%}
{%- endmacro -%}
{% for m in messages %}{{ m.role }}: {{ part(m.content | default('-')) }}
{% endfor %}
{% for document in documents or [] %}
{{ loop.index }}. {{ document.title }}: {{ document['text'] | truncate(12) }}
{% endfor %}
{% for tool in tools or [] %}{{ part(tool) }}{% endfor %}""",
    "turns of parts": """{{ bos_token }}
{%- for m in messages -%}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if m['content'] is string -%}
        {{ m['content'] | trim }}
    {%- elif m['content'] is iterable -%}
        {%- for item in m['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
            {%- else -%}{% break %}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}""",
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": " What is <b> & 'é'? \n"}],
    "several turns": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n2"},
        {"role": "user", "content": "And\n\n3 + 3?"},
        {"role": "assistant", "content": "<think>Hm.</think>6"},
        {"role": "user", "content": ""},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Zürich?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "n": 1}}}
            ],
        },
        {"role": "tool", "content": {"temperature": 21.5, "rain": False, "note": None}},
        {"role": "tool", "content": "sunny"},
    ],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "text", "text": " What is this? "},
                {"type": "audio"},
                {"type": "text"},
            ],
        },
    ],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'It\'s the "weather" <now>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
DOCUMENTS = [{"title": "Ä", "text": "a long text that is cut somewhere"}, {"title": "B", "text": "short"}]
