"""mailserver.api.dispatch: texts in, texts out, and every way in which a text can be wrong."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.api import dispatch
from mailserver.api.caller import Call, Caller
from mailserver.api.dispatch import (
    MAX_BATCH,
    MAX_CONTAINERS,
    MAX_NUMBER_CHARS,
    MAX_REQUEST_ID_CHARS,
    MAX_VALUES,
    Dispatcher,
    Method,
    Result,
)
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Fields, Json, list_of, text, whole
from mailserver.errors import MailserverError, StoreError
from tests.loops import ON_UVLOOP


class Strange(MailserverError):
    """An error that no table knows."""


def anything(value: Json) -> Json:
    return value


items = list_of(anything, 10)


class Calls:
    """The methods of these tests; `made` has what was called."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def subtract(self, params: Fields, call: Call) -> Json:
        self.made.append("subtract")
        return params.required("minuend", whole(-100, 100)) - params.required("subtrahend", whole(-100, 100))

    async def echo(self, params: Fields, call: Call) -> Json:
        self.made.append("echo")
        return params.maybe("text", anything) or "nothing"

    async def as_member(self, params: Fields, call: Call) -> Result:
        return {"items": params.required("items", items), "count": 1}

    async def one_by_one(self, params: Fields, call: Call) -> Result:
        return iter(params.required("items", items))

    async def one_by_one_as_member(self, params: Fields, call: Call) -> Result:
        return {"items": iter(params.required("items", items)), "count": 1}

    async def hang(self, params: Fields, call: Call) -> Json:
        await asyncio.Event().wait()
        return None

    async def fail(self, params: Fields, call: Call) -> Json:
        kind = params.required("kind", text(20))
        errors = {
            "store": StoreError("no space"),
            "strange": Strange("secret"),
            "bug": ZeroDivisionError("secret"),
            "timeout": TimeoutError("secret"),
        }
        raise errors[kind]

    async def unspeakable(self, params: Fields, call: Call) -> Json:
        return float("nan")

    def table(self) -> dict[str, Method]:
        return {
            "subtract": Method(self.subtract, ("minuend", "subtrahend")),
            "echo": Method(self.echo, ("text",)),
            "asMember": Method(self.as_member, ("items",)),
            "oneByOne": Method(self.one_by_one, ("items",)),
            "oneByOneAsMember": Method(self.one_by_one_as_member, ("items",)),
            "hang": Method(self.hang, timeout_s=0.001),
            "fail": Method(self.fail, ("kind",)),
            "unspeakable": Method(self.unspeakable),
        }


async def answer_to(text: str | bytes, calls: Calls | None = None) -> Any:
    """What is answered, parsed; None if nothing is."""
    methods = calls or Calls()
    dispatcher = Dispatcher(methods.table(), {StoreError: ErrorCode.STORE_UNAVAILABLE})
    answer = await dispatcher.answer(text, Call(Caller()))
    if answer is None:
        return None
    assert answer.isascii()
    assert "\n" not in answer
    return json.loads(answer)


def request(method: str, params: Json = (), request_id: Json = 1) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": request_id})


def success(result: Json) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": 1, "result": result}


def failure(code: ErrorCode, message: str, request_id: Json = None) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code.value, "message": message}}


# Calls


@pytest.mark.parametrize("params", [[42, 23], {"subtrahend": 23, "minuend": 42}])
async def test_parameters_go_by_position_or_by_name(params: Json) -> None:
    assert await answer_to(request("subtract", params)) == {"jsonrpc": "2.0", "id": 1, "result": 19}


@pytest.mark.parametrize("params", ["", ', "params": null', ', "params": []', ', "params": {}', ', "params": [null]'])
async def test_parameters_may_be_absent_or_null(params: str) -> None:
    answer = await answer_to('{"jsonrpc": "2.0", "method": "echo", "id": 1' + params + "}")

    assert answer == {"jsonrpc": "2.0", "id": 1, "result": "nothing"}


@pytest.mark.parametrize(
    "request_id", [0, -1, 2**64, 1.5, 1e308, "", "a", "1", "\ud800", None, "x" * (MAX_REQUEST_ID_CHARS - 2)]
)
async def test_id_is_repeated(request_id: Json) -> None:
    answer = await answer_to(request("echo", ["it"], request_id))

    assert answer == {"jsonrpc": "2.0", "id": request_id, "result": "it"}


async def test_half_a_surrogate_pair_can_be_sent_back() -> None:
    answer = await answer_to('{"jsonrpc": "2.0", "method": "echo", "params": ["\\ud800"], "id": 1}')

    assert answer["result"] == "\ud800"


@pytest.mark.parametrize("method", ["subtract", "no such method", "fail", "unspeakable", "hang"])
async def test_notification_is_never_answered(method: str) -> None:
    assert await answer_to(json.dumps({"jsonrpc": "2.0", "method": method, "params": []})) is None


async def test_notification_is_carried_out() -> None:
    calls = Calls()

    await answer_to(json.dumps({"jsonrpc": "2.0", "method": "subtract", "params": [1, 2]}), calls)

    assert calls.made == ["subtract"]


async def test_unknown_members_of_a_request_are_passed_over() -> None:
    answer = await answer_to('{"jsonrpc": "2.0", "method": "echo", "id": 1, "more": {"of": [{}]}}')

    assert answer["result"] == "nothing"


# Errors


async def test_unknown_method() -> None:
    assert await answer_to(request("foobar")) == failure(ErrorCode.METHOD_NOT_FOUND, "unknown method 'foobar'", 1)


async def test_what_is_sent_back_of_a_long_name_is_short() -> None:
    answer = await answer_to(request("x" * 1_000_000))

    assert len(answer["error"]["message"]) < 100


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([1], "subtrahend: missing"),
        ([1, None], "subtrahend: missing"),
        ([1, "2"], "subtrahend: not a whole number"),
        ([1, 101], "subtrahend: not between -100 and 100"),
        ([1, 2, 3], "3 parameters, but the method takes at most 2"),
        ({"minuend": 1, "subtrahent": 2}, "'subtrahent': unknown"),
    ],
)
async def test_wrong_parameters(params: Json, message: str) -> None:
    assert await answer_to(request("subtract", params)) == failure(ErrorCode.INVALID_PARAMS, message, 1)


async def test_known_error_has_its_code_and_its_text() -> None:
    answer = await answer_to(request("fail", ["store"]))

    assert answer == failure(ErrorCode.STORE_UNAVAILABLE, "no space", 1)


@pytest.mark.parametrize("kind", ["strange", "bug", "timeout"])
async def test_fault_of_ours_is_logged_and_tells_the_caller_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await answer_to(request("fail", [kind]))

    assert answer == failure(ErrorCode.INTERNAL_ERROR, "internal error", 1)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "internal error method=fail")
    assert record.exc_info


async def test_result_that_is_no_json_is_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    answer = await answer_to(request("unspeakable"))

    assert answer == failure(ErrorCode.INTERNAL_ERROR, "internal error", 1)
    assert len(caplog.records) == 1


async def test_call_that_takes_too_long_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    answer = await answer_to(request("hang"))

    assert answer == failure(ErrorCode.TIMED_OUT, "not finished within 0.001 s", 1)
    assert not caplog.records


# What is no request


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf{}",
        b"\x00",
        "{",
        '{"jsonrpc": "2.0", "method": "echo", "id": 1,}',
        "{} {}",
        "NaN",
        '{"id": Infinity}',
        '{"id": -Infinity}',
        '{"id": 1e400}',
        '{"id": %s}' % ("9" * (MAX_NUMBER_CHARS + 1)),
        '{"id": 0.%s}' % ("9" * MAX_NUMBER_CHARS),
        '{"id": 1, "id": 2}',
        '{"id": 1, "params": {"a": 1, "a": 1}}',
        '"' + "\ud800" + "",
    ],
)
async def test_what_is_no_json_is_a_parse_error(text: str | bytes) -> None:
    answer = await answer_to(text)

    assert (answer["id"], answer["error"]["code"]) == (None, ErrorCode.PARSE_ERROR)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "the request is not an object"),
        ("null", "the request is not an object"),
        ('"echo"', "the request is not an object"),
        ("{}", 'jsonrpc is not "2.0"'),
        ('{"method": "echo"}', 'jsonrpc is not "2.0"'),
        ('{"jsonrpc": 2.0, "method": "echo"}', 'jsonrpc is not "2.0"'),
        ('{"jsonrpc": "2.0"}', "method is not a string"),
        ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', "method is not a string"),
        ('{"jsonrpc": "2.0", "method": null}', "method is not a string"),
        ('{"jsonrpc": "2.0", "method": "echo", "params": "bar"}', "params is neither an array nor an object"),
        ('{"jsonrpc": "2.0", "method": "echo", "params": 0}', "params is neither an array nor an object"),
        ('{"jsonrpc": "2.0", "method": "echo", "id": true}', "id is neither a string nor a number"),
        ('{"jsonrpc": "2.0", "method": "echo", "id": [1]}', "id is neither a string nor a number"),
        ('{"jsonrpc": "2.0", "method": "echo", "id": {}}', "id is neither a string nor a number"),
        ('{"jsonrpc": "2.0", "method": "echo", "id": "%s"}' % ("x" * 255), "id is longer than 256 characters"),
        ('{"jsonrpc": "2.0", "method": "echo", "id": %s}' % ("9" * 257), "id is longer than 256 characters"),
        ("[]", "the batch is empty"),
    ],
)
async def test_what_is_no_request(text: str, message: str) -> None:
    assert await answer_to(text) == failure(ErrorCode.INVALID_REQUEST, message)


async def test_wrong_request_is_answered_with_its_id_where_it_has_one() -> None:
    answer = await answer_to('{"jsonrpc": "1.0", "method": "echo", "id": "mine"}')

    assert answer == failure(ErrorCode.INVALID_REQUEST, 'jsonrpc is not "2.0"', "mine")


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 400_000, "[" + "[]," * 100_000 + "[]]", '["' + "{" * MAX_CONTAINERS + '"]']
)
async def test_too_many_arrays_and_objects_are_not_parsed(text: str) -> None:
    assert await answer_to(text) == failure(ErrorCode.INVALID_REQUEST, "more than 512 arrays and objects")


@pytest.mark.parametrize("text", [f"[{'1e5,' * 500_000}1]", '{"a":1' + ',"b":1' * (MAX_VALUES + 1)])
async def test_too_many_values_are_not_parsed(text: str) -> None:
    assert await answer_to(text) == failure(ErrorCode.INVALID_REQUEST, f"more than {MAX_VALUES} values")


async def test_values_at_the_limit_are_parsed() -> None:
    answer = await answer_to(request("echo", [[0] * (MAX_VALUES - 2)]).replace(", ", ","))

    assert len(answer["result"]) == MAX_VALUES - 2


async def test_nesting_at_the_limit_is_parsed() -> None:
    answer = await answer_to("[" * MAX_CONTAINERS + "]" * MAX_CONTAINERS)

    assert answer == [failure(ErrorCode.INVALID_REQUEST, "the request is not an object")]


@ON_UVLOOP
@given(st.one_of(st.text(), st.binary()))
@example('[{"jsonrpc": "2.0", "method": "echo", "id": 1}]')
async def test_whatever_comes_is_answered(text: str | bytes) -> None:
    await answer_to(text)


# Batches


async def test_batch_is_answered_in_its_order_but_for_notifications() -> None:
    calls = Calls()
    notification = json.dumps({"jsonrpc": "2.0", "method": "echo"})
    batch = f'[{request("subtract", [3, 1], "a")}, {notification}, 1, {request("none", [], "b")}, {{"foo": "boo"}}]'

    answer = await answer_to(batch, calls)

    assert answer == [
        {"jsonrpc": "2.0", "id": "a", "result": 2},
        failure(ErrorCode.INVALID_REQUEST, "the request is not an object"),
        failure(ErrorCode.METHOD_NOT_FOUND, "unknown method 'none'", "b"),
        failure(ErrorCode.INVALID_REQUEST, 'jsonrpc is not "2.0"'),
    ]
    assert calls.made == ["subtract", "echo"]


async def test_batch_of_notifications_is_not_answered() -> None:
    assert await answer_to('[{"jsonrpc": "2.0", "method": "echo"}, {"jsonrpc": "2.0", "method": "none"}]') is None


async def test_batch_at_the_limit_passes_and_beyond_it_nothing_is_called() -> None:
    calls = Calls()
    one = request("echo")

    passed = await answer_to(f"[{','.join([one] * MAX_BATCH)}]")
    refused = await answer_to(f"[{','.join([one] * (MAX_BATCH + 1))}]", calls)

    assert len(passed) == MAX_BATCH
    assert refused == failure(ErrorCode.INVALID_REQUEST, "the batch has 101 requests, but may have at most 100")
    assert calls.made == []


async def test_batch_whose_answers_are_too_long_is_not_worked_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_RESPONSE_CHARS", 1000)
    calls = Calls()

    answers = await answer_to(f"[{','.join([request('echo', ['x' * 600])] * 4)}]", calls)

    assert ["result" in answer for answer in answers] == [True, True, False, False]
    assert answers[3] == failure(ErrorCode.RESPONSE_TOO_LARGE, "the response is full; call again", 1)
    assert calls.made == ["echo", "echo"]


async def test_batch_that_takes_too_long_is_not_worked_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BATCH_TIMEOUT_S", 0.0005)
    calls = Calls()

    answers = await answer_to(f"[{request('hang')}, {request('echo')}, {request('none')}]", calls)

    assert [answer["error"]["code"] for answer in answers] == [
        ErrorCode.TIMED_OUT,
        ErrorCode.TIMED_OUT,
        ErrorCode.METHOD_NOT_FOUND,
    ]
    assert answers[1]["error"]["message"] == "the batch has taken 0.0005 s; call again"
    assert calls.made == []


# The turn of others


async def turns_during(text: str) -> int:
    """How often others have had their turn while a text was answered."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await answer_to(text)
    ticking.cancel()
    return ticks


async def test_others_have_their_turn_between_the_calls_of_a_batch() -> None:
    assert await turns_during(f"[{','.join([request('echo')] * MAX_BATCH)}]") >= MAX_BATCH


@pytest.mark.parametrize("method", ["echo", "asMember", "oneByOne", "oneByOneAsMember"])
async def test_others_have_their_turn_while_a_long_array_is_made_and_encoded(method: str) -> None:
    parts = 5
    texts = ["x" * dispatch.ENCODED_TOGETHER_CHARS] * parts

    assert await turns_during(request(method, [texts])) >= parts


async def test_array_whose_items_are_made_one_by_one_is_one() -> None:
    assert await answer_to(request("oneByOne", [[1, "two", {}]])) == success([1, "two", {}])
    assert await answer_to(request("oneByOneAsMember", [[]])) == success({"items": [], "count": 1})
    assert await answer_to(request("asMember", [[None]])) == success({"items": [None], "count": 1})
