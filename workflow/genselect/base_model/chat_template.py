"""The miniature's chat template: Qwen3.5's format, with one departure and one addition.

Turns, tool calls and tool responses read as the real family writes them. The departure: tools are rendered by name only, so
that a prompt stays at about 40 tokens. The addition: the arguments of an assistant's tool call may be a JSON object as text
(how OpenAI's API and verl carry them) as well as a mapping; chat templates cannot parse JSON, so a macro reads the object.
"""

from __future__ import annotations

# In a text read from JSON, an escape such as \u00e9 comes as four hex digits, and a sign beyond the first 65,536 as two escapes.
_JSON_PARAMETERS = r"""
{%- macro parameter(name, value) -%}
  {{- '<parameter=' + name + '>\n' + value + '\n</parameter>\n' -}}
{%- endmacro -%}
{%- macro json_parameters(text) -%}
  {%- set escapes = {'n': '\n', 't': '\t', 'r': '\r', 'b': '\x08', 'f': '\x0c'} -%}
  {%- set at = namespace(depth=0, quoted=false, escaped=false, hex=none, high=0, name=none, text='') -%}
  {%- for sign in (text | trim)[1:-1] -%}
    {%- if at.hex is not none -%}
      {%- set at.hex = at.hex + sign -%}
      {%- if at.hex | length == 4 -%}
        {%- set code = at.hex | int(0, 16) -%}
        {%- set at.hex = none -%}
        {%- if 55296 <= code < 56320 -%}
          {%- set at.high = code -%}
        {%- elif at.high -%}
          {%- set at.text = at.text + '%c' | format(65536 + (at.high - 55296) * 1024 + code - 56320) -%}
          {%- set at.high = 0 -%}
        {%- else -%}
          {%- set at.text = at.text + '%c' | format(code) -%}
        {%- endif -%}
      {%- endif -%}
    {%- elif at.escaped -%}
      {%- set at.escaped = false -%}
      {%- if at.depth -%}
        {%- set at.text = at.text + '\\' + sign -%}
      {%- elif sign == 'u' -%}
        {%- set at.hex = '' -%}
      {%- else -%}
        {%- set at.text = at.text + escapes.get(sign, sign) -%}
      {%- endif -%}
    {%- elif at.quoted and sign == '\\' -%}
      {%- set at.escaped = true -%}
    {%- elif sign == '"' -%}
      {%- set at.quoted = not at.quoted -%}
      {%- if at.depth -%}
        {%- set at.text = at.text + sign -%}
      {%- endif -%}
    {%- elif at.quoted -%}
      {%- set at.text = at.text + sign -%}
    {%- elif sign == ':' and not at.depth -%}
      {%- set at.name = at.text -%}
      {%- set at.text = '' -%}
    {%- elif sign == ',' and not at.depth -%}
      {{- parameter(at.name, at.text) -}}
      {%- set at.name = none -%}
      {%- set at.text = '' -%}
    {%- elif at.depth or sign not in ' \t\r\n' -%}
      {%- set at.depth = at.depth + (1 if sign in '[{' else -1 if sign in ']}' else 0) -%}
      {%- set at.text = at.text + sign -%}
    {%- endif -%}
  {%- endfor -%}
  {%- if at.name is not none -%}
    {{- parameter(at.name, at.text) -}}
  {%- endif -%}
{%- endmacro -%}
"""

_CONTENT = r"""
{%- macro content_of(message) -%}
  {%- if message.content is string -%}
    {{- message.content -}}
  {%- elif message.content -%}
    {%- for part in message.content -%}
      {%- if part.type in ('image', 'video') -%}
        {{- '<|vision_start|><|' + part.type + '_pad|><|vision_end|>' -}}
      {%- else -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro call_of(tool_call) -%}
  {%- set call = tool_call.function if tool_call.function is defined else tool_call -%}
  {{- '<tool_call>\n<function=' + call.name + '>\n' -}}
  {%- if call.arguments is string -%}
    {{- json_parameters(call.arguments) -}}
  {%- elif call.arguments -%}
    {%- for name, value in call.arguments | items -%}
      {{- parameter(name, value if value is string else value | tojson) -}}
    {%- endfor -%}
  {%- endif -%}
  {{- '</function>\n</tool_call>' -}}
{%- endmacro -%}
"""

_CONVERSATION = r"""
{%- set has_system = messages and messages[0].role == 'system' -%}
{%- if tools or has_system -%}
  {{- '<|im_start|>system\n' -}}
  {%- if tools -%}
    {{- 'tools:' -}}
    {%- for tool in tools -%}
      {{- ' ' + (tool.function if tool.function is defined else tool).name -}}
    {%- endfor -%}
    {{- '\n\n' if has_system else '' -}}
  {%- endif -%}
  {{- content_of(messages[0]) if has_system else '' -}}
  {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {%- set content = content_of(message) -%}
    {{- '<|im_start|>assistant\n' + content -}}
    {%- for tool_call in message.tool_calls or [] -%}
      {{- ('\n' if not loop.first else '\n\n' if content else '') + call_of(tool_call) -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'tool' -%}
    {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' -}}
    {{- '\n<tool_response>\n' + content_of(message) + '\n</tool_response>' -}}
    {{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' else '' -}}
  {%- elif not (loop.first and has_system) -%}
    {{- '<|im_start|>' + message.role + '\n' + content_of(message) + '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\n\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
"""

#: Jinja, as ``tokenizer.chat_template`` holds it.
CHAT_TEMPLATE = "".join(part.strip() for part in (_JSON_PARAMETERS, _CONTENT, _CONVERSATION))
