"""The exception tree. Every error that a user can cause carries what was wrong, the numbers, and what to change.

StatemarkError
├── UserError               something that the caller can change; `hint` says what
│   ├── ConfigurationError      an option or a budget that can't work
│   ├── CheckpointError         a model folder that can't be loaded
│   ├── InvalidRequestError     one request that can't be served; the engine goes on
│   │   └── PromptTooLongError      its prompt doesn't fit into the context
│   └── ServerError             another server that doesn't answer, or not as an OpenAI-compatible one does
└── IntegrityError          a contract would have been broken; nothing was published
"""

from __future__ import annotations


class StatemarkError(Exception):
    """Base of everything that Statemark raises on purpose."""


class UserError(StatemarkError, ValueError):
    """Something that the caller can change.

    `message` says what was wrong, with the numbers; `hint` says what to change.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(UserError):
    """An option, a budget or a combination of them that can't work."""


class CheckpointError(UserError):
    """A model folder that is missing something, damaged, or of an unsupported kind."""


class InvalidRequestError(UserError):
    """One request that can't be served. `param` names the offending field where there is one.

    `code` is OpenAI's word for what is wrong, where clients act upon it.
    """

    def __init__(self, message: str, *, hint: str = "", param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code


class PromptTooLongError(InvalidRequestError):
    """Agents shorten their conversation when they read this: by its code, or by its words and plain numbers."""

    def __init__(self, tokens: int, max_model_len: int, *, hint: str = "shorten the prompt") -> None:
        super().__init__(
            f"the prompt is too long: {tokens} tokens > {max_model_len - 1} maximum; the maximum context length is "
            f"{max_model_len} tokens, one of them for the answer",
            hint=hint,
            param="prompt",
            code="context_length_exceeded",
        )


class ServerError(UserError):
    """Another server that doesn't answer as it should.

    `kind`: down, timeout, closed (ended early), limited (429 or 503), refused (other 4xx), failed (5xx) or
    protocol (an answer that is not OpenAI's). `wait`: seconds that the server asked for before the next try.
    """

    def __init__(self, kind: str, message: str, *, hint: str = "", wait: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.wait = wait


class IntegrityError(StatemarkError, RuntimeError):
    """A state, page or mark was not what its stamp says. Raised instead of publishing or using it."""
