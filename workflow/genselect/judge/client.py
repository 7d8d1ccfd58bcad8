"""Asks the judge over the OpenAI-compatible chat API: many questions at a time, patient with servers, strict with errors.

The transport is aiohttp and not httpx: with 256 requests in flight httpx 0.28 took 10 ms of CPU a request (its pool walks all
connections, again and again), against 0.14 ms here with all else included (docs/benchmarks/labelling_client.md).
Retries are written out here and not left to tenacity: a try also moves the endpoint's window and the breaker, Retry-After
belongs to the endpoint as a whole, and the jitter has a seed of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import gc
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
import orjson

from genselect.config import JudgeClient, Sampling
from genselect.errors import GenselectError
from genselect.judge.endpoints import Endpoint, EndpointPool

#: Environment variable with the bearer token of endpoints that want one. Never in the configuration, never logged.
API_KEY = "GENSELECT_JUDGE_API_KEY"

_CONNECT_S = 10.0
_CHECK_TRIES = 3
_RETRIED = {408, 425, 429}
_SHOWN = 500

Item = TypeVar("Item")
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one question."""

    text: str | None
    """The judge's words; None when no try was answered."""
    finish_reason: str
    """``stop``, ``length`` (cut at both caps) or ``unavailable``."""
    calls: int
    """Answered requests it took: 2 when the first token cap was too low."""


class ChatClient:
    """An asynchronous context manager over a session with one or more endpoints that serve the same model.

    Args:
        model: Name that the servers serve it under.
        endpoints: Base URLs that end in ``/v1``.
        sampling: How the judge generates.
        settings: Concurrency, time-outs, retries, breaker.
        seed: Of the jitter.
    """

    def __init__(
        self, model: str, endpoints: list[str], sampling: Sampling, settings: JudgeClient, *, seed: int = 0
    ) -> None:
        self.model = model
        self.retries = 0
        """Tries that failed and were made again, so far."""
        self._sampling = sampling
        self._settings = settings
        self._random = random.Random(seed)
        self._pool = EndpointPool(
            endpoints,
            most=settings.concurrency,
            rest_s=settings.backoff_max_s,
            breaker_failures=settings.breaker_failures,
        )

    async def __aenter__(self) -> ChatClient:
        headers = {"content-type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["authorization"] = f"Bearer {key}"
        timeout = self._settings.request_timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the pool of endpoints keeps the limit
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(_CONNECT_S, timeout)),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self) -> list[str]:
        """Make sure that the endpoints answer and serve the model; returns warnings about those that do not answer.

        Raises:
            GenselectError: None answers, or one does not serve the model.
        """
        faults = []
        for endpoint in list(self._pool.endpoints):
            try:
                served = await self._served(endpoint)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                faults.append(f"{endpoint.url}: {_words(error)}")
                self._pool.remove(endpoint)
                continue
            if self.model not in served:
                raise GenselectError(
                    f"{endpoint.url} does not serve the model {self.model!r}; it serves {', '.join(served) or 'none'}",
                    "Correct judge.model, or start that server with --served-model-name set to it.",
                )
        if not self._pool.endpoints:
            raise GenselectError(
                f"no judge can be reached: {'; '.join(faults)}",
                "Start the server (or the SSH tunnel to it), or correct judge.endpoints, then start the same command again.",
            )
        return [f"{fault}: not used" for fault in faults]

    async def ask_all(
        self, items: Iterable[Item], messages: Callable[[Item], Messages], on_reply: Callable[[Item, Reply], None]
    ) -> None:
        """Ask about every item, begun in their order; ``on_reply`` is called as replies come in, in any order.

        Raises:
            GenselectError: The server refused a request as wrong, or failed too often in a row. What was answered before has
                been handed to ``on_reply``.
        """
        queue = iter(items)
        workers = [
            asyncio.create_task(self._work(queue, messages, on_reply)) for _ in range(self._settings.concurrency)
        ]
        with _rare_collections():
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _work(
        self, queue: Iterator[Item], messages: Callable[[Item], Messages], on_reply: Callable[[Item, Reply], None]
    ) -> None:
        for item in queue:
            on_reply(item, await self._ask(messages(item)))

    async def _ask(self, messages: Messages) -> Reply:
        """One question, with the second token cap when the first cuts the reply."""
        text, finish = None, "length"
        caps = (self._sampling.first_max_tokens, self._sampling.second_max_tokens)
        for calls, cap in enumerate(caps, start=1):
            answer = await self._patiently(self._body(messages, cap))
            if answer is None:
                return Reply(None, "unavailable", calls - 1)
            text, finish = answer
            if finish != "length":
                break
        return Reply(text, finish, calls)

    async def _patiently(self, body: bytes) -> tuple[str, str] | None:
        """Text and finish reason of one completion; None after the last try of a question that only this one has trouble with."""
        most, answered = self._settings.max_attempts, 0
        for attempt in range(most + 1):
            if attempt == most:
                # Few questions in flight, such as the last ones, never fail often enough for the breaker. They must not end without a
                # verdict because the judge is gone; if it is back they have one more try.
                if self._pool.successes > answered:
                    break
                await self._must_be_there()
            endpoint = await self._pool.take()
            started = time.monotonic()
            try:
                answer = await self._post(endpoint, body)
            except _TryAgain as failure:
                answered = self._pool.successes if attempt == 0 else answered
                in_bursts = failure.kind in {"lost", "pushed back"}
                push_back = failure.kind in {"pushed back", "late"}
                self._pool.failed(endpoint, started, str(failure), push_back=push_back, in_bursts=in_bursts)
                if failure.retry_after:
                    self._pool.rest(endpoint, min(failure.retry_after, self._settings.request_timeout_s))
            else:
                self._pool.succeeded(endpoint)
                return answer
            finally:
                self._pool.give_back(endpoint)
            if attempt + 1 < most:
                self.retries += 1
                await asyncio.sleep(self._pause(attempt))
        return None

    async def _must_be_there(self) -> None:
        faults = []
        for endpoint in self._pool.endpoints:
            try:
                await self._served(endpoint)
            except (aiohttp.ClientError, TimeoutError, OSError, GenselectError) as error:
                faults.append(f"{endpoint.url}: {_words(error)}")
            else:
                return
        raise GenselectError(
            f"the judge does not answer any more: {'; '.join(faults)}",
            "Look at the judge server (or the SSH tunnel to it), then start the same command again: verdicts so far are in the journal.",
        )

    def _pause(self, attempt: int) -> float:
        # "Full jitter": https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
        return self._random.uniform(0, min(self._settings.backoff_max_s, self._settings.backoff_s * 2**attempt))

    async def _post(self, endpoint: Endpoint, body: bytes) -> tuple[str, str]:
        try:
            async with self._session.post(
                f"{endpoint.url}/chat/completions", data=body, allow_redirects=False
            ) as response:
                content = await response.read()
                status, headers = response.status, response.headers
        except TimeoutError as error:
            raise _TryAgain("late", f"no answer within {self._settings.request_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgain("lost", _words(error)) from error
        if status == 200:
            return _completion(content)
        words = f"HTTP {status}: {_server_words(content)}"
        if status in _RETRIED or status >= 500:
            kind = "pushed back" if status in {429, 503} else "failed"
            raise _TryAgain(kind, words, retry_after=_seconds(headers.get("retry-after")))
        raise GenselectError(
            f"{endpoint.url} refused a request with {words}",
            "The request itself is wrong for this server, so asking again cannot help; mend what it names. "
            "Verdicts so far are in the journal.",
        )

    def _body(self, messages: Messages, max_tokens: int) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": self._sampling.temperature,
            "seed": self._sampling.seed,
            "max_tokens": max_tokens,
        }
        if self._sampling.enable_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._sampling.enable_thinking}
        return orjson.dumps(body)

    async def _served(self, endpoint: Endpoint) -> list[str]:
        for attempt in range(_CHECK_TRIES):
            try:
                async with self._session.get(
                    f"{endpoint.url}/models", timeout=aiohttp.ClientTimeout(total=30)
                ) as response:
                    content = await response.read()
                    status = response.status
                break
            except (aiohttp.ClientConnectionError, TimeoutError):
                if attempt + 1 == _CHECK_TRIES:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        try:
            if status == 200:
                return [str(model["id"]) for model in orjson.loads(content)["data"]]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            pass
        raise GenselectError(
            f"{endpoint.url}/models does not list models: HTTP {status}: {_server_words(content)}",
            "An endpoint is the base URL of an OpenAI-compatible server and ends in /v1.",
        )


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Garbage collection less often, and not over what is there already: a sixth of a request's CPU, measured."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _TryAgain(Exception):
    """A try failed in a way that may pass: ``lost``, ``late``, ``pushed back``, ``failed`` or ``garbage``."""

    def __init__(self, kind: str, words: str, retry_after: float | None = None) -> None:
        super().__init__(words)
        self.kind = kind
        self.retry_after = retry_after


def _completion(content: bytes) -> tuple[str, str]:
    try:
        choice = orjson.loads(content)["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        shown = content[:80].decode(errors="replace")
        raise _TryAgain("garbage", f"not a chat completion: {shown!r}" if content else "an empty body") from None
    # Null content is a model that ended its turn at once, or was cut while it thought: an answer, if a poor one.
    return (text if isinstance(text, str) else ""), ("length" if finish == "length" else "stop")


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds from now: a number or an HTTP date (RFC 9110, 10.2.3); None when absent or neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        when = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())


def _server_words(content: bytes) -> str:
    """The message in an OpenAI-style error body, or the body's beginning."""
    try:
        value = orjson.loads(content)
        error = value.get("error", value)
        words = error.get("message") if isinstance(error, dict) else error
    except (orjson.JSONDecodeError, AttributeError):
        words = None
    return str(words or content.decode(errors="replace") or "(no body)")[:_SHOWN]


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # aiohttp's own words speak of ssl even where there is none
    return str(error) or type(error).__name__
