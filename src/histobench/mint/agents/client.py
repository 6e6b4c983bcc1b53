"""A provider behind HTTP: bounded concurrency, retries with a limit, time-outs, a cache, accounts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from histobench.core.http import PASSING, RetryPolicy, retry_after
from histobench.core.redaction import address_identity, redact, redact_speech, without_credentials
from histobench.mint.agents.answer_cache import AnswerCache, request_key
from histobench.mint.agents.completion import (
    FILTERED,
    Completion,
    MalformedAnswerError,
    ProviderError,
    Receipt,
    Sampling,
    Usage,
    whole_characters,
)
from histobench.mint.agents.costs import CostTracker
from histobench.mint.agents.prices import Price
from histobench.mint.agents.providers.provider import (
    Capabilities,
    ProviderAPI,
    Question,
    is_filtered,
    is_too_long,
)
from histobench.mint.agents.rate_limits import RateLimiter
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.envs.turn_loop import LAST_STEP
from histobench.mint.messages.parts import Message, Part, Reasoning, ToolSpec
from histobench.mint.messages.record import part_from_record, part_record

if TYPE_CHECKING:
    import httpx

_COMPLAINT_CHARS = 300
#: Every other episode would end the same way: no money, a wrong key, a wrong address or model.
HOPELESS = frozenset({401, 402, 403, 404, 405})
#: How often an empty text is asked for again before it counts as what the model says.
EMPTY_ATTEMPTS = 2
#: With all of 4xx but 408: the server did not begin to answer.
_REFUSED = frozenset({503, 529})
_READ_CHARS = 16 << 10
#: What a chat template may put around a message.
MESSAGE_TOKENS = 32
#: The most that a provider is known to count for one picture of the size that is sent.
MOST_IMAGE_TOKENS = 40_000
#: The most that is added to the limit of an answer for thinking (Anthropic's budgets).
MOST_THINKING = 16_384
#: Where the formats put the conversation and the tools, which are stored elsewhere.
_CONVERSATION = frozenset({"messages", "input", "contents", "system", "systemInstruction", "tools"})
T = TypeVar("T")


class Endpoint:
    """One model of one provider. Threads call `ask`; the requests share one event loop and one client."""

    def __init__(
        self,
        api: ProviderAPI,
        sampling: Sampling,
        *,
        limits: Mapping[str, float | None] | None = None,
        concurrency: int = 8,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        cache: AnswerCache | None = None,
        price: Price | None = None,
        costs: CostTracker | None = None,
        identity: str | None = None,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        import httpx

        self.api = api
        self.sampling = sampling
        self.price = price
        self.costs = costs or CostTracker()
        self._place = without_credentials(api.base_url)
        self._capabilities = Capabilities()
        self._limiter = RateLimiter(limits or {})
        self._open_at = 0.0  # no request is sent before this moment: the provider asked for a pause
        self._identity = identity or address_identity(api.base_url)  # in the cache
        self._retry = retry
        self._cache = cache
        self._sleep = sleep
        self._loop = EventLoopThread()
        self._slots = asyncio.Semaphore(concurrency)
        connections = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        timeout = httpx.Timeout(retry.answer_timeout, connect=retry.connect_timeout)
        self._client = httpx.AsyncClient(limits=connections, timeout=timeout)

    def ask(
        self,
        messages: Sequence[Message],
        *,
        functions: Sequence[ToolSpec] = (),
        sample: int = 1,
        most_tokens: tuple[int, int] | None = None,
        deadline: float | None = None,
    ) -> Completion:
        """The next message; raises `RequestRefusedError` (too long) or `ProviderError` (given up)."""
        # Stop sequences belong to free text: they would cut the code in a call, or a tag from its end.
        guided = functions or self.sampling.grammar
        sampling = replace(self.sampling, stop=()) if guided else self.sampling
        if sampling.last_grammar and LAST_STEP in messages[-1].content:
            sampling = replace(sampling, grammar=sampling.last_grammar)
        key = request_key(self._identity, self.api.model, messages, sampling, sample, functions)
        known = self._cache.find(key) if self._cache else None
        if known is not None:
            return known
        bound = most_tokens or self.bound(messages, functions)
        worst = self.price.worst(*bound) if self.price else None
        question = Question(messages, sampling, functions, deadline, worst)
        completion = self._loop.run(self._within_time(question))
        if self._cache:
            self._cache.add(key, completion, self.cost(completion))
        return completion

    def bound(
        self,
        messages: Sequence[Message],
        functions: Sequence[ToolSpec] = (),
        *,
        known: tuple[int, int] = (0, 0),
    ) -> tuple[int, int]:
        """The most tokens that a question can take: read and written. No token is shorter than a byte."""
        first, tokens = known
        read = tokens + sum(map(_most_tokens, messages[first:]))
        if not first:
            read += sum(len(json.dumps(asdict(spec))) for spec in functions)
        written = self.sampling.max_tokens
        return read, written + (MOST_THINKING if self.sampling.reasoning_effort else 0)

    def cost(self, completion: Completion) -> float | None:
        return self.price.of(completion.usage + completion.discarded) if self.price else None

    def stop(self) -> None:
        """Break off all requests: those who wait for them get a `ProviderError`."""
        self._loop.cancel_all()

    def close(self) -> None:
        self._loop.run(self._client.aclose())
        self._loop.close()

    async def _within_time(self, question: Question) -> Completion:
        wait = None if question.deadline is None else max(question.deadline - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(wait):
                return await self._ask(question)
        except TimeoutError:
            raise RequestRefusedError("the time of the episode is over", "over_limit") from None

    async def _ask(self, question: Question) -> Completion:
        failures = empty = lessons = 0
        discarded = Usage()
        while True:
            bill = Bill()
            try:
                while (wait := self._open_at - time.monotonic()) > 0 or (
                    wait := self._limiter.wait(question.estimate)
                ) > 0:
                    await self._sleep(wait)
                await self._hold(question)
                try:
                    async with self._slots:
                        completion = await self._attempt(question, bill)
                    bill.answered = True
                finally:  # also when interrupted: what was sent may be billed
                    self._settle(question, bill)
            except _TryDifferentlyError as lesson:
                self._capabilities = lesson.capabilities
                lessons += 1
                continue
            except _PassingFailureError as failure:
                problem, retry_in = str(failure), failure.wait
                discarded += bill.usage if bill.usage.known else Usage()
            else:
                self._limiter.settle(question.estimate, completion.usage.total_tokens)
                if not completion.is_empty or empty >= min(EMPTY_ATTEMPTS, self._retry.attempts - 1):
                    retries = failures + empty + lessons
                    receipt = completion.receipt and replace(completion.receipt, retries=retries)
                    return replace(completion, discarded=discarded, receipt=receipt)
                empty += 1  # an empty answer is not a failure
                discarded += completion.usage
                await self._sleep(self._retry.pause(empty))
                continue
            failures += 1
            if failures >= self._retry.attempts:
                raise ProviderError(f"{self._place}: given up after {failures} attempts: {problem}")
            pause = self._retry.pause(failures)
            if retry_in is not None:
                if retry_in > self._retry.longest_retry_after:
                    raise ProviderError(f"{self._place}: asked to retry after {retry_in:.0f} s: {problem}")
                self._open_at = max(self._open_at, time.monotonic() + retry_in)
            if retry_in is None or retry_in < pause:  # "in 0 seconds" would use up all attempts at once
                await self._sleep(pause)

    async def _hold(self, question: Question) -> None:
        began = time.monotonic()
        while not self.costs.hold(question.worst or 0.0, waited=time.monotonic() - began):
            await asyncio.sleep(random.uniform(0.05, 0.2))

    def _settle(self, question: Question, bill: Bill) -> None:
        """Book the usage that was reported, or all that was held back if none was and it may be billed."""
        cost = self.price.of(bill.usage) if self.price else None
        if self.price and cost is None:
            cost = question.worst if bill.sent and not bill.refused else 0.0
        self.costs.settle(question.worst or 0.0, cost, answered=bill.answered)

    async def _attempt(self, question: Question, bill: Bill) -> Completion:
        import httpx

        capabilities = self._capabilities
        request = self.api.request(question, capabilities)
        headers = {**request.headers, "content-type": "application/json"}
        began = time.monotonic()
        try:
            # httpx limits the silence between two pieces; an answer that drips for ever needs this as well.
            async with asyncio.timeout(self._retry.answer_timeout):
                response = await self._client.post(
                    request.url, content=request.content, headers=headers, extensions={"trace": bill.trace}
                )
        except TimeoutError as error:
            raise _PassingFailureError(f"no answer within {self._retry.answer_timeout:g} s") from error
        except httpx.InvalidURL as error:
            raise ProviderError(f"{self._place}: {redact(str(error))}", hopeless=True) from error
        except httpx.HTTPError as error:
            raise _PassingFailureError(f"{type(error).__name__}: {_shortened(str(error))}") from error
        seconds = time.monotonic() - began
        payload = _payload(response)
        bill.note(self.api, response.status_code, response.text[:_READ_CHARS], payload)
        completion, problem = self._read(response, payload, question.sampling, capabilities)
        usual, asked = asdict(Sampling()), asdict(question.sampling)
        receipt = Receipt(
            format=self.api.format,
            url=without_credentials(request.url),
            asked_model=self.api.model,
            sha256=hashlib.sha256(request.content).hexdigest(),
            sent={name: value for name, value in request.body.items() if name not in _CONVERSATION},
            sampling={name: value for name, value in asked.items() if value != usual[name]},
            without=tuple(sorted(capabilities.without)),
            merge_roles=capabilities.merge_roles,
            model=_text(payload, "model", "modelVersion"),
            id=_text(payload, "id", "responseId"),
            fingerprint=_text(payload, "system_fingerprint"),
            seconds=round(seconds, 3),
            problem=problem,
        )
        return replace(completion, receipt=receipt)

    def _read(
        self,
        response: httpx.Response,
        payload: dict[str, Any] | None,
        sampling: Sampling,
        capabilities: Capabilities,
    ) -> tuple[Completion, str | None]:
        status = _status(response, payload)
        if status == 200:
            if payload is None:
                kind = response.headers.get("content-type", "no content type")
                raise _PassingFailureError(f"not a JSON object but {kind}: {_shortened(response.text)}")
            try:
                return clean_completion(self.api, payload, sampling), None
            except (MalformedAnswerError, RecursionError) as error:  # the latter where it is nested too deep
                raise _PassingFailureError(_shortened(str(error))) from error
        text = response.text[:_READ_CHARS]
        complaint = f"HTTP {status}: {_shortened(text)}"
        if is_too_long(status, text):
            raise RequestRefusedError(complaint)
        if is_filtered(status, text):
            return Completion("", finish=f"{FILTERED}:HTTP {status}"), complaint
        if status in PASSING and "insufficient_quota" not in text:
            raise _PassingFailureError(complaint, retry_after(response.headers))
        lesson = capabilities.learnt(text) if status in (400, 422) else None
        if lesson is not None:
            raise _TryDifferentlyError(lesson)
        hopeless = status in HOPELESS or "insufficient_quota" in text
        raise ProviderError(f"{self._place}: {complaint}", hopeless=hopeless)


def _most_tokens(message: Message) -> int:
    if not message.parts:
        return MESSAGE_TOKENS + len(message.content.encode("utf-8", "surrogatepass"))
    records = sum(len(json.dumps(part_record(part))) for part in message.parts)
    return MESSAGE_TOKENS + records + MOST_IMAGE_TOKENS * len(message.images)


@dataclass
class Bill:
    sent: bool = False
    #: The provider refused the request, which costs nothing unless it reports tokens.
    refused: bool = False
    usage: Usage = field(default_factory=lambda: Usage(known=False))
    answered: bool = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        self.sent = self.sent or event.endswith("send_request_headers.started")

    def note(self, api: ProviderAPI, status: int, text: str, payload: Mapping[str, Any] | None) -> None:
        # A filter that withholds an answer has read the question (Azure bills such a 400).
        filtered = is_filtered(status, text)
        self.refused = (status in _REFUSED or (400 <= status < 500 and status != 408)) and not filtered
        if payload is not None:
            self.usage = api.usage(payload)


class _PassingFailureError(Exception):
    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class _TryDifferentlyError(Exception):
    """Ask again at once, without what the server does not take."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__()
        self.capabilities = capabilities


def clean_completion(api: ProviderAPI, payload: Mapping[str, Any], sampling: Sampling) -> Completion:
    completion = api.completion(payload)
    # Without keys of this process, and without halves of characters that no file can carry.
    records = [_clean_value(part_record(part, inline=True)) for part in completion.parts]
    parts: tuple[Part, ...] = tuple(map(part_from_record, records))
    if not parts and not completion.text and completion.usage.reasoning_tokens:
        parts = (Reasoning(),)  # it thought, and the provider does not show what
    words = redact_speech(whole_characters(sampling.cut(completion.text)))
    return replace(completion, text=words, parts=parts)


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact_speech(whole_characters(value))
    if isinstance(value, Mapping):
        return {_clean_value(name): _clean_value(item) for name, item in value.items()}
    return [_clean_value(item) for item in value] if isinstance(value, list | tuple) else value


def _payload(response: httpx.Response) -> dict[str, Any] | None:
    try:
        payload = response.json(parse_constant=lambda name: None)  # NaN could not be sent back
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _text(payload: dict[str, Any] | None, *names: str) -> str | None:
    found = (payload.get(name) for name in names) if payload else ()
    return next((value for value in found if isinstance(value, str)), None)


def _status(response: httpx.Response, payload: dict[str, Any] | None) -> int:
    """The status; gateways that report an upstream error inside a 200 are taken at their word."""
    error = payload.get("error") if payload else None
    if response.status_code == 200 and error:
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, int) and 400 <= code < 600 else 502
    return 200 if 200 <= response.status_code < 300 else response.status_code


def _shortened(text: str) -> str:
    # Cut before and after: hiding takes time, and a key may be cut in half only where nothing is shown.
    text = " ".join(redact(text[:_READ_CHARS]).split())
    return text if len(text) <= _COMPLAINT_CHARS else f"{text[:_COMPLAINT_CHARS]}..."


class EventLoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise ProviderError("the request was interrupted") from None
        except BaseException:
            future.cancel()
            raise

    def cancel_all(self) -> None:
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(self._loop)])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
