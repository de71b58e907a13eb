"""A served model without arithmetic: letters are tokens, the answer is the prompt's letters over again.

It keeps the engine's contract as far as the server can see it, and can be told to fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from statemark.cache import MarkOutline
from statemark.engine.chat import ChatPrompt, plain_messages
from statemark.engine.outputs import TextDelta
from statemark.engine.params import Structure
from statemark.engine.request import EngineRequest, TokenLogprobs
from statemark.engine.structured import Constraint, Grammars
from statemark.errors import InvalidRequestError, PromptTooLongError
from statemark.parsing import ChatFormat

END = 0  # the end-of-text token; others are Unicode code points below VOCAB
VOCAB = 0x2000


def _letters() -> str:
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


GRAMMARS = Grammars(_letters, VOCAB, [END])  # compiles, so that bad grammars are found; answers don't follow them


class FakeModel:
    """Prompt "abc" is answered "abcabc..." until max_tokens or END. Prompts with "!boom" break their step."""

    name = "fake"
    fingerprint = "statemark-test"
    created = 1
    max_model_len = 4096
    vocab_size = VOCAB
    max_num_seqs = 32
    precision = "float32"
    isa = "none"
    threads = 1
    notices = ("a notice",)
    eos_token_ids = frozenset({END})
    chat_format = ChatFormat()
    special_markers = False

    def __init__(self) -> None:
        self.sampling_defaults: Mapping[str, Any] = {"temperature": 0.0}
        self.requests: dict[str, EngineRequest] = {}
        self.written: dict[tuple[str, int], list[int]] = {}
        self.seen: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.gate = threading.Event()  # cleared: steps give nothing, as in a long prefill
        self.gate.set()
        self.steps = 0
        self.known: list[tuple[int, ...]] = []

    # --- the backend: engine thread only ---

    def add(self, request: EngineRequest) -> None:
        if len(request.prompt_token_ids) >= self.max_model_len:
            raise PromptTooLongError(len(request.prompt_token_ids), self.max_model_len)
        if max(request.prompt_token_ids, default=-1) >= VOCAB or not request.prompt_token_ids:
            raise InvalidRequestError("token id outside the vocabulary, or no token at all", param="prompt")
        if request.request_id in self.requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", param="request_id")
        if "!refuse" in self.decode(request.prompt_token_ids):
            raise RuntimeError("adding failed")
        self.requests[request.request_id] = request
        self.seen.append(request)
        for index in range(request.params.n):
            self.written[request.request_id, index] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._forget(request_id)

    def stats(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "requests_running": len(self.requests),
            "requests_waiting": 0,
            "cache_bytes": 1000,
            "cache_used_bytes": 250,
            "marks": 4,
            "tokens_lost_unmarked": 6,
        }

    def marks(self, limit: int) -> list[MarkOutline]:
        """One path of three and a way that parts from its first."""
        found = [("system", 16, 2, -1), ("turn", 40, 0, 0), ("end", 64, 0, 1), ("end", 90, 0, 0)]
        return [MarkOutline(p, kind, hits, False, kind == "turn", parent) for kind, p, hits, parent in found][:limit]

    def reset_prefix_cache(self) -> int:
        dropped, self.known = len(self.known), []
        return dropped

    def close(self) -> None:
        self.closed = True

    def has_work(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[TextDelta]:
        self.steps += 1
        if not self.gate.is_set():
            time.sleep(0.001)
            return []
        if self.max_model_len >= 10**8:
            time.sleep(0.002)  # endless answers come no faster than clients read, or last frames wait behind thousands
        deltas = []
        for request in list(self.requests.values()):
            if "!boom" in self.decode(request.prompt_token_ids):
                raise RuntimeError("a planted fault")
            if "!fail" in self.decode(request.prompt_token_ids):
                deltas.append(
                    TextDelta(request_id=request.request_id, index=0, finish_reason="error", error="a planted failure")
                )
                self._forget(request.request_id)
                continue
            deltas.extend(self._advance(request))
        return deltas

    def _advance(self, request: EngineRequest) -> list[TextDelta]:
        deltas = []
        prompt, params = request.prompt_token_ids, request.params
        cached = max((self._common(prompt, old) for old in self.known), default=0)
        for index in range(params.n):
            written = self.written.get((request.request_id, index))
            if written is None:
                continue
            token = prompt[len(written) % len(prompt)]
            written.append(token)
            first = len(written) == 1
            text = self.decode(written)
            stopped = [s for s in params.stop if text.endswith(s)]
            ended = token in params.stop_token_ids or (token == END and not params.ignore_eos)
            full = params.max_tokens is not None and len(written) >= params.max_tokens
            full = full or len(prompt) + len(written) >= self.max_model_len
            reason = "stop" if stopped or ended else "length" if full else None
            deltas.append(
                TextDelta(
                    request_id=request.request_id,
                    index=index,
                    text="" if stopped or ended else self.decode([token]),
                    token_ids=[token],
                    logprobs=None if params.logprobs is None else [row(token, params.logprobs)],
                    prompt_logprobs=self._prompt_rows(request) if first and index == 0 else None,
                    num_cached_tokens=cached if request.use_cache else 0,
                    finish_reason=reason,
                    stop_reason=stopped[0] if stopped else token if token in params.stop_token_ids else None,
                )
            )
            if reason is not None:
                del self.written[request.request_id, index]
        if not any(key[0] == request.request_id for key in self.written):
            self.known.append(prompt)
            self.requests.pop(request.request_id, None)
        return deltas

    def _prompt_rows(self, request: EngineRequest) -> list[TokenLogprobs | None] | None:
        count = request.params.prompt_logprobs
        if count is None:
            return None
        return [None, *(row(token, count) for token in request.prompt_token_ids[1:])]

    def _forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        for key in [key for key in self.written if key[0] == request_id]:
            del self.written[key]

    @staticmethod
    def _common(prompt: Sequence[int], old: Sequence[int]) -> int:
        same = 0
        for a, b in zip(prompt[:-1], old, strict=False):
            if a != b:
                break
            same += 1
        return same

    def report(self) -> list[str]:
        return ["model fake"]

    # --- text ---

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def token_id(self, token: str) -> int | None:
        return ord(token) if len(token) == 1 else None

    def constraint(self, structure: Structure) -> Constraint:
        return GRAMMARS.compile(structure)

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **options: Any
    ) -> ChatPrompt:
        messages = plain_messages(messages)
        self.rendered = (messages, options.get("tools"), options.get("template_kwargs"))
        text, turns = "", []
        for message in messages:
            text += f"{message['role'][0]}:{message['content']}\n"
            turns.append(len(text))
        if add_generation_prompt:
            text += "a:"
        if options.get("continue_final_message"):
            text = text.removesuffix("\n")
        return ChatPrompt(text, self.encode(text), tuple(t for t in turns if t < len(text)))


def row(token: int, count: int) -> TokenLogprobs:
    """The token itself is the likeliest, its successors follow."""
    ids = tuple(token + i for i in range(count))
    return TokenLogprobs(token, -0.25, 1, ids, tuple(-0.25 - i for i in range(count)))
