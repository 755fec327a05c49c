"""The OpenAI routes of an emulated engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

from runners.engines.emulated.engine import EmulatedEngine
from runners.engines.emulated.http import EventStream, Request, Response
from runners.engines.emulated.scheduler import Sequence

DEFAULT_COMPLETION_TOKENS = 16
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class BadRequestError(Exception):
    """The request cannot be served; the text goes to the client with status 400."""


class Api:
    """Routes over one engine. ``ready`` opens them; before, every route but none answers 503."""

    def __init__(self, engine: EmulatedEngine, served_name: str) -> None:
        self.engine = engine
        self.served_name = served_name
        self.created = int(time.time())
        self.ready = False
        self._numbers = itertools.count(1)

    async def handle(self, request: Request, stream: EventStream) -> Response | None:
        """Answer one request; None when the answer went out as events."""
        if not self.ready:
            return Response.of({"error": "the engine is loading"}, 503)
        vllm = self.engine.spec.acts_as == "vllm"
        match request.method, request.path:
            case "GET", "/health":
                return Response(200, b"")
            case "GET", "/v1/models":
                return Response.of(self._models())
            case "GET", "/version":
                return Response.of({"version": self.engine.spec.version, "emulated": True})
            case "GET", "/metrics" if vllm:
                return Response(200, self.engine.metrics.text(), PROMETHEUS)
            case "GET", "/prometheus/metrics" if not vllm:
                return Response(200, self.engine.metrics.text(), PROMETHEUS)
            case "GET", "/metrics":
                rows = list(self.engine.iterations)
                self.engine.iterations.clear()
                return Response.of(rows)
            case "POST", "/v1/completions" | "/v1/chat/completions" if self.engine.spec.embeds:
                return Response.of({"error": "this engine only embeds"}, 404)
            case "POST", "/tokenize" | "/v1/completions" | "/v1/chat/completions" | "/v1/embeddings":
                return await self._post(request, stream)
        return Response.of({"error": f"no route {request.method} {request.path}"}, 404)

    async def _post(self, request: Request, stream: EventStream) -> Response | None:
        try:
            body = request.json()
            if not isinstance(body, dict):
                raise BadRequestError("the body must be a JSON object")
            if request.path == "/tokenize":
                return self._tokenize(body)
            if request.path == "/v1/embeddings":
                return await self._embed(body)
            return await self._generate(body, stream, chat=request.path == "/v1/chat/completions")
        except (ValueError, BadRequestError) as error:
            detail = {"message": str(error), "type": "BadRequestError", "code": 400}
            return Response.of({"error": detail}, 400)

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self.served_name,
            "object": "model",
            "created": self.created,
            "owned_by": "tonnage-emulator",
            "max_model_len": self.engine.spec.limits.max_model_len,
            "emulated": True,
        }
        return {"object": "list", "data": [model]}

    def _tokenize(self, body: dict[str, Any]) -> Response:
        count = _prompt_tokens(body, chat="messages" in body)
        data = {"count": count, "max_model_len": self.engine.spec.limits.max_model_len, "emulated": True}
        return Response.of(data)

    async def _embed(self, body: dict[str, Any]) -> Response:
        """One prefill; the vector is made of zeros."""
        prompt = max(_prompt_tokens({"prompt": body.get("input")}, chat=False), 1)
        if prompt >= self.engine.spec.limits.max_model_len:
            raise BadRequestError(f"the input of {prompt} tokens is too long")
        done = asyncio.get_running_loop().create_future()
        self.engine.submit(prompt, 1, lambda _last: done.set_result(None))
        await done
        vector = {"object": "embedding", "index": 0, "embedding": [0.0] * 8}
        usage = {"prompt_tokens": prompt, "total_tokens": prompt}
        head = {"object": "list", "model": self.served_name, "emulated": True}
        return Response.of({**head, "data": [vector], "usage": usage})

    async def _generate(self, body: dict[str, Any], stream: EventStream, *, chat: bool) -> Response | None:
        number = next(self._numbers)
        faults = self.engine.spec.faults
        if faults.refuse_generation or (faults.error_share and (number * 0.6180339887) % 1.0 < faults.error_share):
            return Response.of({"error": {"message": "emulated fault", "code": 500}}, 500)
        if body.get("model") not in (None, self.served_name):
            return Response.of({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        prompt = max(_prompt_tokens(body, chat), 1)
        limits = self.engine.spec.limits
        room = limits.max_model_len - prompt
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else None)
        count = DEFAULT_COMPLETION_TOKENS if asked is None else int(asked)
        if count < 1 or count > room:
            raise BadRequestError(
                f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested {count} "
                f"output tokens and your prompt contains {prompt} input tokens"
            )
        if not self.engine.scheduler.fits(prompt, count):
            raise BadRequestError("Impossible to fit in any sequence in kvCache")
        answer = _Answer(self, number, prompt, count, chat, stream if body.get("stream") else None)
        answer.include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await answer.run()


class _Answer:
    """One generation: writes its events as tokens come, or one body at the end."""

    def __init__(self, api: Api, number: int, prompt: int, count: int, chat: bool, stream: EventStream | None) -> None:
        self.api = api
        self.number = number
        self.prompt = prompt
        self.count = count
        self.chat = chat
        self.stream = stream
        self.include_usage = False
        self.sent = 0
        self.done = asyncio.get_running_loop().create_future()
        self.sequence: Sequence | None = None
        self.words: list[str] = []

    async def run(self) -> Response | None:
        """Generate to the end."""
        self.sequence = self.api.engine.submit(self.prompt, self.count, self._on_token)
        await self.done
        if self.stream is not None:
            if self.include_usage:
                self.stream.send(json.dumps({**self._envelope(True), "choices": [], "usage": self._usage()}).encode())
            self.stream.send(b"[DONE]")
            self.stream.end()
            return None
        text = "".join(self.words)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return Response.of({**self._envelope(False), "choices": [choice], "usage": self._usage()})

    def _on_token(self, last: bool) -> None:
        word = f" t{3 + (self.number * 7919 + self.sent * 104729) % (self.api.engine.spec.vocab_size - 3)}"
        self.sent += 1
        if self.stream is None:
            self.words.append(word)
        elif self.stream.closed:
            if self.sequence is not None and not last:
                self.api.engine.abort(self.sequence)
            last = True
        else:
            self._send_word(word, last)
        if last and not self.done.done():
            self.done.set_result(None)

    def _send_word(self, word: str, last: bool) -> None:
        assert self.stream is not None
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None, "logprobs": None}
        if self.chat:
            if self.sent == 1:
                role = {**choice, "finish_reason": None, "delta": {"role": "assistant", "content": ""}}
                self.stream.send(json.dumps({**self._envelope(True), "choices": [role]}).encode())
            choice["delta"] = {"content": word}
        else:
            choice["text"] = word
        self.stream.send(json.dumps({**self._envelope(True), "choices": [choice]}).encode())

    def _envelope(self, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        prefix = "chatcmpl" if self.chat else "cmpl"
        head = {"id": f"{prefix}-{self.number}", "object": kind, "created": self.api.created}
        return {**head, "model": self.api.served_name, "emulated": True}

    def _usage(self) -> dict[str, Any]:
        cached = self.sequence.cached if self.sequence is not None else 0
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.sent,
            "total_tokens": self.prompt + self.sent,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _prompt_tokens(body: dict[str, Any], chat: bool) -> int:
    """Tokens of the prompt: one a word, as the word tokenizer has it, or the token ids given."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequestError("messages must be a list that is not empty")
        return sum(_words(message.get("content")) for message in messages if isinstance(message, dict))
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
        return len(prompt)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return _prompt_tokens({"prompt": prompt[0]}, chat=False)
    raise BadRequestError("prompt must be a string or a list of token ids")


def _words(content: Any) -> int:
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        return sum(_words(part.get("text")) for part in content if isinstance(part, dict))
    return 0
