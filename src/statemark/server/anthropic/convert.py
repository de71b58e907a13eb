"""Anthropic's messages, system prompt and tools -> a conversation as chat templates know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statemark.server.anthropic.protocol import (
    Block,
    CountRequest,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from statemark.server.conversation import Conversation
from statemark.server.errors import bad_request
from statemark.server.tool_use import REQUIRED, ToolUse, tool_use

_ROLES = ("user", "assistant", "system")


def conversation(request: CountRequest) -> Conversation:
    """InvalidRequest for what can't be put to a chat template."""
    _refuse_edits(request.context_management)
    messages: list[dict[str, Any]] = []
    system = _joined(request.system)
    if system:
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(request.messages):
        messages.extend(_turn(message, f"messages[{i}]"))
    kwargs = dict(request.chat_template_kwargs or {})
    if request.thinking is not None:
        kwargs.setdefault("enable_thinking", _thinks(request.thinking.type))
    continues = bool(messages) and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    none = request.tool_choice is not None and request.tool_choice.type == "none"
    tools = None if none or not request.tools else [_tool(t, f"tools[{i}]") for i, t in enumerate(request.tools)]
    return Conversation(
        messages=messages,
        tools=tools,
        add_generation_prompt=not continues,
        continues=continues,
        template_kwargs=kwargs or None,
        use=_use(request.tool_choice, tools),
    )


def _use(choice: ToolChoice | None, tools: list[dict[str, Any]] | None) -> ToolUse:
    """`any` and `tool` are what OpenAI calls required and named."""
    if choice is None:
        return tool_use(None, None, tools, parallel=True)
    kind = {"any": REQUIRED, "tool": None}.get(choice.type, choice.type)
    if kind is None and choice.name is None:
        raise bad_request("tool_choice.name is missing", param="tool_choice.name", code="missing_field")
    name = choice.name if kind is None else None
    return tool_use(kind, name, tools, parallel=not choice.disable_parallel_tool_use)


def _thinks(kind: str) -> bool:
    if kind not in ("enabled", "adaptive", "disabled"):
        raise bad_request(f"thinking.type: {kind!r} is not one of enabled, adaptive, disabled", param="thinking.type")
    return kind != "disabled"


def _refuse_edits(management: dict[str, Any] | None) -> None:
    """An edit that keeps everything is what happens anyway; others would change the prompt."""
    edits = (management or {}).get("edits") or []
    if not isinstance(edits, list) or any(not isinstance(edit, dict) or edit.get("keep") != "all" for edit in edits):
        raise bad_request('context_management is not supported; edits with "keep": "all" are', "context_management")


def _joined(text: str | Sequence[TextBlock] | None) -> str:
    if text is None or isinstance(text, str):
        return text or ""
    return "\n".join(block.text for block in text)


def _turn(message: InputMessage, where: str) -> list[dict[str, Any]]:
    if message.role not in _ROLES:
        raise bad_request(f"{where}.role: {message.role!r} is not one of {', '.join(_ROLES)}", param=f"{where}.role")
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if not message.content:
        raise bad_request(f"{where}.content is empty", param=f"{where}.content")
    if message.role == "assistant":
        return [_assistant(message.content, where)]
    return _others(message.role, message.content, where)


def _assistant(content: Sequence[Block], where: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant"}
    turn["content"] = "".join(block.text for block in content if isinstance(block, TextBlock))
    thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock)]
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in content
        if isinstance(block, ToolUseBlock)
    ]
    if any(isinstance(block, ToolResultBlock) for block in content):
        raise bad_request(f"{where}: a tool_result belongs to the user's turn", param=f"{where}.content")
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _others(role: str, content: Sequence[Block], where: str) -> list[dict[str, Any]]:
    """A user's turn: each tool result is a message of its own, the texts between them are one."""
    turns: list[dict[str, Any]] = []
    for i, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            text = _joined(block.content)
            turns.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        elif isinstance(block, TextBlock):
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n{block.text}"
            else:
                turns.append({"role": role, "content": block.text})
        else:
            field = f"{where}.content[{i}]"
            raise bad_request(f"{field}: this block belongs to the assistant's turn", param=field)
    return turns


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    """As OpenAI writes it, which is what templates were made for."""
    if tool.type not in (None, "custom"):
        raise bad_request(f"{where}.type: {tool.type!r} is not supported; 'custom' is", param=f"{where}.type")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}
