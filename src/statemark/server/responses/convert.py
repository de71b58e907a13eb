"""The items of a Responses request -> a conversation as chat templates know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statemark.server.conversation import Conversation
from statemark.server.errors import bad_request
from statemark.server.responses.protocol import (
    CallItem,
    CallOutputItem,
    FunctionTool,
    Item,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
    TextPart,
)
from statemark.server.tool_use import NONE, ToolUse, tool_use

_ROLES = ("system", "developer", "user", "assistant")


def conversation(request: ResponsesRequest) -> Conversation:
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
    else:
        for i, item in enumerate(request.input):
            _add(messages, item, f"input[{i}]")
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning is not None and request.reasoning.effort is not None:
        kwargs.setdefault("enable_thinking", request.reasoning.effort != "none")
    tools = None if request.tool_choice == NONE or not request.tools else request.tools
    plain = [named for i, tool in enumerate(tools) for named in _tools(tool, f"tools[{i}]")] if tools else None
    return Conversation(
        messages=messages,
        tools=plain,
        template_kwargs=kwargs or None,
        use=_use(request, plain),
    )


def _use(request: ResponsesRequest, tools: list[dict[str, Any]] | None) -> ToolUse:
    choice, name = request.tool_choice, None
    if isinstance(choice, dict):
        name = choice.get("name")
        if choice.get("type") != "function" or not isinstance(name, str):
            raise bad_request('tool_choice must be {"type": "function", "name": ...} or a word', param="tool_choice")
        choice = None
    return tool_use(choice, name, tools, parallel=request.parallel_tool_calls)


def _add(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    """Reasoning, text and calls that follow each other are one turn of the assistant."""
    match item:
        case MessageItem():
            _add_message(messages, item, where)
        case ReasoningItem():
            text = "\n".join(part.text for part in item.content or item.summary or ())
            if text:
                _assistant(messages, fresh=True)["reasoning_content"] = text
        case CallItem():
            function = {"name": flat_name(item.namespace, item.name), "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case CallOutputItem():
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})


def _add_message(messages: list[dict[str, Any]], item: MessageItem, where: str) -> None:
    if item.role not in _ROLES:
        raise bad_request(f"{where}.role: {item.role!r} is not one of {', '.join(_ROLES)}", param=f"{where}.role")
    if isinstance(item.content, list):
        for i, part in enumerate(item.content):
            if part.type not in ("input_text", "output_text", "text"):
                field = f"{where}.content[{i}].type"
                raise bad_request(f"{field}: {part.type!r} is not supported; only text is", param=field)
    text = _text(item.content)
    if item.role == "assistant":
        last = messages[-1] if messages else {}
        if last.get("role") == "assistant" and last["content"] is None and "tool_calls" not in last:
            last["content"] = text
            return
    messages.append({"role": "system" if item.role == "developer" else item.role, "content": text})


def _assistant(messages: list[dict[str, Any]], fresh: bool = False) -> dict[str, Any]:
    """The assistant's turn that is being put together, or a new one."""
    if not messages or messages[-1]["role"] != "assistant" or fresh:
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def flat_name(namespace: str | None, name: str) -> str:
    """What the model calls a function: templates know no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


def own_names(tools: Sequence[FunctionTool] | None) -> dict[str, dict[str, str]]:
    """By what the model calls them: the names that a client has for the functions of namespaces."""
    return {
        flat_name(group.name, tool.name): {"name": tool.name, "namespace": group.name}
        for group in tools or ()
        for tool in group.tools or ()
        if group.name is not None and tool.name is not None
    }


def _tools(tool: FunctionTool, where: str) -> list[dict[str, Any]]:
    """As the chat API writes them, which is what templates were made for."""
    if tool.type != "namespace":
        return [_tool(tool, where)]
    if tool.name is None:
        raise bad_request(f"missing field: '{where}.name'", param=f"{where}.name", code="missing_field")
    return [_tool(function, f"{where}.tools[{i}]", tool.name) for i, function in enumerate(tool.tools or ())]


def _tool(tool: FunctionTool, where: str, namespace: str | None = None) -> dict[str, Any]:
    if tool.type != "function":
        raise bad_request(
            f"{where}.type: {tool.type!r} is not supported; 'function' and 'namespace' are", param=f"{where}.type"
        )
    if tool.name is None:
        raise bad_request(f"missing field: '{where}.name'", param=f"{where}.name", code="missing_field")
    name = flat_name(namespace, tool.name)
    function = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
