"""JSON-RPC 2.0 over any transport: one text in, one text or none out.

Spec: https://www.jsonrpc.org/specification. What it leaves open is decided so:

- An id is a string, a finite number or null.
- The calls of a batch are made in order, one after another.
- Parameters are given by position or by name.
- These are parse errors: NaN, Infinity, a fraction beyond the range of a double, a number longer than
  MAX_NUMBER_CHARS, and an object with the same name twice.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mailserver.api.caller import Call
from mailserver.api.errors import ErrorCode, ErrorCodes, RpcError
from mailserver.api.params import Fields, Json, shown
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES

log = logging.getLogger(__name__)

MAX_TEXT_BYTES = 2 * MAX_ENVELOPE_BYTES + 4096
"""Longest text that a transport accepts: the payload of the longest envelope in hex, and what surrounds it."""

MAX_BATCH = 100
MAX_RESPONSE_CHARS = 4 * 1024 * 1024
"""Once the answers of a batch are longer than this, its remaining calls are not made: a hundred full filters would be
half a gigabyte. A single one takes 4 MB."""

MAX_CONTAINERS = 512
"""Maximum number of `[` and `{` in a text, counted before it is parsed. A batch of MAX_BATCH has four for each call. It
bounds the depth, so that the recursive parser stays far from Python's limit of 1,000 frames, and the memory: 2 MB of
`[],` are 700,000 lists."""

MAX_VALUES = 16_384
"""Maximum number of `,` in a text, counted in the same way. 2 MB of `1e5,` take 140 ms to parse, this many 5."""

MAX_NUMBER_CHARS = 512
"""Longest number. The largest float has 309 digits. The time to parse an integer grows with the square of its
length."""

MAX_REQUEST_ID_CHARS = 256
"""Longest id of a request, as JSON. The answer repeats it. A UUID has 38 characters."""

CALL_TIMEOUT_S = 90.0
"""How long a call may take, unless its method says otherwise. It is longer than a search for proof of work may take,
including the wait for its turn."""

BATCH_TIMEOUT_S = 90.0
"""No call of a batch begins later than this: a hundred proofs of work would occupy one of a few places for hours."""

ENCODED_TOGETHER_CHARS = 128 * 1024
"""How much of a result is made and encoded before others have their turn. It takes some 2 ms."""

Result: TypeAlias = "Json | Iterator[Json] | Mapping[str, Json | Iterator[Json]]"
"""What a method returns. An iterator is an array whose items are made as they are encoded: others have their turn
between these, too, and not all are in memory twice."""

Run = Callable[[Fields, Call], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Method:
    """What to call, the names of its parameters in order, and how long it may take (None: no limit)."""

    run: Run
    params: tuple[str, ...] = ()
    timeout_s: float | None = CALL_TIMEOUT_S


class Dispatcher:
    """Calls methods by name. Knows no transport."""

    def __init__(self, methods: Mapping[str, Method], known: ErrorCodes) -> None:
        self._methods = methods
        self._known = known

    async def answer(self, text: str | bytes, call: Call) -> str | None:
        """Make the calls that a text asks for.

        Args:
            text: at most MAX_TEXT_BYTES; the transport has checked that.
        Returns:
            The answer, one line of ASCII; None if there is nothing to answer.
        """
        try:
            parsed = _parse(text)
            await asyncio.sleep(0)  # 2 MB take 5 ms to parse, and the call may take as long before it first waits
            if isinstance(parsed, list):
                return await self._answer_batch(parsed, call)
        except RpcError as error:
            return _failure("null", error)
        return await self._answer_one(parsed, call)

    async def _answer_batch(self, requests: list[Json], call: Call) -> str | None:
        if not requests:
            raise RpcError(ErrorCode.INVALID_REQUEST, "the batch is empty")
        if len(requests) > MAX_BATCH:
            raise RpcError(
                ErrorCode.INVALID_REQUEST, f"the batch has {len(requests)} requests, but may have at most {MAX_BATCH}"
            )
        answers: list[str] = []
        length = 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BATCH_TIMEOUT_S
        for request in requests:
            refusal = None
            if length > MAX_RESPONSE_CHARS:
                refusal = RpcError(ErrorCode.RESPONSE_TOO_LARGE, "the response is full; call again")
            elif loop.time() > deadline:
                refusal = RpcError(ErrorCode.TIMED_OUT, f"the batch has taken {BATCH_TIMEOUT_S:g} s; call again")
            answer = await self._answer_one(request, call, refusal=refusal)
            if answer is not None:
                answers.append(answer)
                length += len(answer)
            await asyncio.sleep(0)  # most calls never wait, and 100 of them take a while
        return f"[{','.join(answers)}]" if answers else None

    async def _answer_one(self, request: Json, call: Call, *, refusal: RpcError | None = None) -> str | None:
        """Make one call; return its answer.

        Args:
            refusal: why the call is not to be made; None to make it.
        """
        try:
            fields, request_id = _identified(request)
        except RpcError as error:
            return _failure("null", error)
        try:
            name, params = _checked(fields)
            method = self._methods.get(name)
            if method is None:
                raise RpcError(ErrorCode.METHOD_NOT_FOUND, f"unknown method {shown(name)}")
            if refusal is not None:
                raise refusal
            answer = _success(request_id, await self._run(name, method, params, call))
        except RpcError as error:
            answer = _failure(request_id, error)
            if error.code is ErrorCode.INVALID_REQUEST:
                return answer  # even without an id: what is not a request is not a notification either
        return answer if "id" in fields else None

    async def _run(self, name: str, method: Method, params: list[Json] | dict[str, Json], call: Call) -> str:
        """Make a call; return its result, encoded."""
        fields = _named(method, params)
        limit = asyncio.timeout(method.timeout_s)
        try:
            async with limit:
                return await _encode(await method.run(fields, call))
        except RpcError:
            raise
        except Exception as error:
            # Whatever it is, the caller gets an answer. A fault of ours ends neither its connection nor the service.
            if isinstance(error, TimeoutError) and limit.expired():
                raise RpcError(ErrorCode.TIMED_OUT, f"not finished within {method.timeout_s:g} s") from error
            for kind, code in self._known.items():
                if isinstance(error, kind):
                    raise RpcError(code, str(error)) from error
            log.exception("internal error method=%s", name)
            raise RpcError(ErrorCode.INTERNAL_ERROR, "internal error") from error


def _parse(text: str | bytes) -> Json:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if text.count("[") + text.count("{") > MAX_CONTAINERS:
            raise RpcError(ErrorCode.INVALID_REQUEST, f"more than {MAX_CONTAINERS} arrays and objects")
        if text.count(",") > MAX_VALUES:
            raise RpcError(ErrorCode.INVALID_REQUEST, f"more than {MAX_VALUES} values")
        parsed: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite_float,
            parse_int=_short_int,
            parse_constant=_refuse_constant,
        )
    except ValueError as error:  # not UTF-8, not JSON, or refused below
        raise RpcError(ErrorCode.PARSE_ERROR, f"not JSON: {error}") from error
    return parsed


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("an object has the same name twice")
    return values


def _finite_float(digits: str) -> float:
    _check_length(digits)
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _short_int(digits: str) -> int:
    _check_length(digits)
    return int(digits)


def _check_length(digits: str) -> None:
    if len(digits) > MAX_NUMBER_CHARS:
        raise ValueError(f"a number has more than {MAX_NUMBER_CHARS} characters")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _identified(request: Json) -> tuple[dict[str, Json], str]:
    """The members of a request, and its id as JSON for the answer; null if it has none."""
    if not isinstance(request, dict):
        raise RpcError(ErrorCode.INVALID_REQUEST, "the request is not an object")
    value = request.get("id")
    if isinstance(value, bool | list | dict):
        raise RpcError(ErrorCode.INVALID_REQUEST, "id is neither a string nor a number")
    # ASCII, so that even half of a surrogate pair can be sent back.
    request_id = json.dumps(value)
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise RpcError(ErrorCode.INVALID_REQUEST, f"id is longer than {MAX_REQUEST_ID_CHARS} characters")
    return request, request_id


def _checked(request: Mapping[str, Json]) -> tuple[str, list[Json] | dict[str, Json]]:
    """The name of the method, and the parameters."""
    if request.get("jsonrpc") != "2.0":
        raise RpcError(ErrorCode.INVALID_REQUEST, 'jsonrpc is not "2.0"')
    name, params = request.get("method"), request.get("params")
    if not isinstance(name, str):
        raise RpcError(ErrorCode.INVALID_REQUEST, "method is not a string")
    if params is None:
        return name, []
    if not isinstance(params, list | dict):
        raise RpcError(ErrorCode.INVALID_REQUEST, "params is neither an array nor an object")
    return name, params


def _named(method: Method, params: list[Json] | dict[str, Json]) -> Fields:
    """The parameters by name, even if they were given by position."""
    if isinstance(params, dict):
        return Fields(params, method.params)
    if len(params) > len(method.params):
        raise RpcError(
            ErrorCode.INVALID_PARAMS, f"{len(params)} parameters, but the method takes at most {len(method.params)}"
        )
    return Fields(dict(zip(method.params, params, strict=False)), method.params)


async def _encode(result: Result) -> str:
    """A result as JSON. Others have their turn between parts of an array, be it the result or a member of it: a full
    filter takes 4 MB."""
    if isinstance(result, Mapping):
        members = [f"{json.dumps(name)}: {await _encode_value(value)}" for name, value in result.items()]
        return f"{{{', '.join(members)}}}"
    return await _encode_value(result)


async def _encode_value(value: "Json | Iterator[Json]") -> str:
    if not isinstance(value, list | Iterator):
        return json.dumps(value, allow_nan=False)
    parts: list[str] = []
    chars = 0
    for item in value:
        parts.append(json.dumps(item, allow_nan=False))
        chars += len(parts[-1])
        if chars >= ENCODED_TOGETHER_CHARS:
            chars = 0
            await asyncio.sleep(0)
    return f"[{', '.join(parts)}]"


def _success(request_id: str, result: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": {request_id}, "result": {result}}}'


def _failure(request_id: str, error: RpcError) -> str:
    told = json.dumps({"code": error.code, "message": error.message})
    return f'{{"jsonrpc": "2.0", "id": {request_id}, "error": {told}}}'
