"""Asks a mailserver about message ids, over the capability `wakuid/1` (docs/wakuid.md): lists, envelopes by id,
comparisons. What it answers is checked: an id against the bytes that it names.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mailserver.client.mail_client import ANSWER_TIMEOUT_S, MailClient, NoAnswer, OnEnvelopes
from mailserver.client.sealing import REQUEST_TOPIC, REQUEST_TTL_S, seal_envelope
from mailserver.errors import (
    ConnectionLost,
    DecodeError,
    DisconnectReason,
    LocalProtocolError,
    MailserverError,
    Rejection,
    RemoteProtocolError,
)
from mailserver.ids.envelopes import CONTENT, envelope_differences, envelope_muid, meta_of
from mailserver.ids.muid import Muid, NoId, metadata_of, sync_id
from mailserver.net.inbound import Event
from mailserver.net.sessions import random_key
from mailserver.waku.envelope import Envelope
from mailserver.wakuid.access import encode_access
from mailserver.wakuid.answers import Answer, Done, Envelopes, Ids, Reconciled, Refused, Terms, decode_answer
from mailserver.wakuid.packets import MAX_FETCHED_IDS, QUESTIONS, WAKUID
from mailserver.wakuid.peer import IdPacketReceived
from mailserver.wakuid.questions import Fetch, FetchItems, Items, Open, Query, Question, Reconcile

OnIds = Callable[[Sequence[Muid]], None]

_COMPARED_BYTES = 32 * 1024 * 1024  # hashed to say what was changed of an envelope: 30 ms
_FEWER = 4  # if so many ids are too much to look for, this part of them is next
_EMPTY = "a packet with nothing in it"  # with those, an answer need never end


class NoMessageIds(MailserverError):
    """The node does not speak `wakuid/1`."""

    def __str__(self) -> str:
        return "the node does not answer questions about message ids (it lacks the capability wakuid/1)"


class QuestionRefused(MailserverError):
    """The mailserver refused a question about message ids; `refused` says why."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused)
        self.refused = refused

    def __str__(self) -> str:
        return self.refused.text


class WrongAnswer(MailserverError):
    """The mailserver answered something else than what was asked for."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the mailserver's answer is not what was asked for: {self.cause}"


@dataclass(slots=True)
class _Pending:
    """A question under way. `take` is called with each part of its answer, and says whether that was the last."""

    take: Callable[[Answer], bool]
    progressed: asyncio.Event = field(default_factory=asyncio.Event)
    fault: MailserverError | None = None
    is_over: bool = False

    def end(self, fault: MailserverError) -> None:
        """End the question with an error."""
        self.fault, self.is_over = fault, True
        self.progressed.set()


class IdClient:
    """Questions about message ids on one connection. Several tasks may ask at the same time."""

    def __init__(self, client: MailClient) -> None:
        """Ask on the connection of a client. There is one of these for a connection."""
        self._client = client
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._terms: Terms | None = None
        client.attach(self)

    @property
    def terms(self) -> Terms:
        """What the mailserver said when it granted access.

        Raises:
            LocalProtocolError: `open` was not called, or failed.
        """
        if self._terms is None:
            raise LocalProtocolError("asked about message ids before `open`")
        return self._terms

    async def open(self, key: bytes | None, *, min_pow: float = 0.0) -> Terms:
        """Ask for access, which lasts as long as the connection.

        Args:
            key: the mailserver's symmetric key, 32 bytes, or its public key, 64; None to ask in the clear.
            min_pow: the proof of work of the envelope.
        Raises:
            NoMessageIds: the node lacks the capability.
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
            TooMuchWork: the proof of work takes too long.
        """
        if WAKUID not in self._client.capabilities:
            raise NoMessageIds
        envelope = None
        if key is not None:
            envelope = await seal_envelope(
                encode_access(self._client.own_id),
                key,
                REQUEST_TOPIC,
                ttl=REQUEST_TTL_S,
                min_pow=min_pow,
                now=int(time.time()),
                signing_key=random_key(),
            )
        found: list[Terms] = []

        def take(answer: Answer) -> bool:
            if not isinstance(answer, Terms):
                raise WrongAnswer(f"{type(answer).__name__} to Open")
            found.append(answer)
            return True

        await self._ask(Open(0, envelope), take)
        self._terms = found[0]
        return self._terms

    async def list_ids(self, query: Query, on_ids: OnIds) -> Done:
        """Ask for a page of ids; return how it ends.

        Args:
            query: its `request_id` is replaced, and its `network_topic`.
            on_ids: called with the ids of each packet as it arrives.
        Raises:
            WrongAnswer: the answer is longer than the page may be.
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
        """
        left = query.limit or self.terms.max_ids
        ends: list[Done] = []

        def take(answer: Answer) -> bool:
            nonlocal left
            if isinstance(answer, Done):
                ends.append(answer)
                return True
            if not isinstance(answer, Ids):
                raise WrongAnswer(f"{type(answer).__name__} to Query")
            if not answer.muids:
                raise WrongAnswer(_EMPTY)
            left -= len(answer.muids)
            if left < 0:
                raise WrongAnswer("more ids than a page may have")
            on_ids(answer.muids)
            return False

        await self._ask(replace(query, network_topic=self.terms.network_topic), take)
        return ends[0]

    async def query(self, query: Query, on_envelopes: OnEnvelopes) -> Done:
        """Ask for a page of envelopes; return how it ends. The arguments are those of `list_ids`.

        Raises:
            WrongAnswer: an envelope is not one that was asked for, or there are too many.
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
        """
        left = query.limit or self.terms.max_envelopes

        def check(envelopes: Sequence[Envelope]) -> None:
            nonlocal left
            left -= len(envelopes)
            if left < 0:
                raise WrongAnswer("more envelopes than a page may have")
            for envelope in envelopes:
                if not _is_within(query, envelope):
                    raise WrongAnswer(f"envelope {envelope.hash().hex()} is outside of the query")
            on_envelopes(envelopes)

        return await self._ask_for_envelopes(replace(query, network_topic=self.terms.network_topic), check)

    async def fetch(self, muids: Sequence[Muid], on_envelopes: OnEnvelopes) -> None:
        """Ask for the envelopes that have these MUIDs. Those that the mailserver lacks do not come.

        Args:
            muids: MAX_FETCHED_IDS at most.
        Raises:
            WrongAnswer: an envelope has none of these MUIDs. It says which differs in what.
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
        """
        network_topic, wanted = self.terms.network_topic, dict.fromkeys(muids)

        def check(envelopes: Sequence[Envelope]) -> None:
            for envelope in envelopes:
                name = _muid(network_topic, envelope)
                if name not in wanted:
                    raise WrongAnswer(_what_differs(network_topic, envelope, muids))
                del wanted[name]
            on_envelopes(envelopes)

        await self._ask_for_envelopes(Fetch(0, network_topic, muids), check)

    async def fetch_all(self, muids: Sequence[Muid], on_envelopes: OnEnvelopes) -> None:
        """Ask for envelopes by any number of MUIDs, as many at once as the mailserver finds.

        If they lie far apart in its archive, these are fewer than MAX_FETCHED_IDS.

        Raises:
            WrongAnswer, QuestionRefused, NoAnswer, ConnectionLost: as `fetch`.
        """
        at, at_once = 0, MAX_FETCHED_IDS
        while at < len(muids):
            part = muids[at : at + at_once]
            try:
                await self.fetch(part, on_envelopes)
            except QuestionRefused as error:
                if error.refused.rejection is not Rejection.TOO_WIDE or len(part) == 1:
                    raise
                at_once = max(1, len(part) // _FEWER)
            else:
                at += len(part)

    async def fetch_items(self, groups: Sequence[Items], on_envelopes: OnEnvelopes) -> None:
        """Ask for the envelopes that a comparison has found missing. Those that the mailserver lacks do not come.

        Args:
            groups: with MAX_FETCHED_IDS ids at most, all together.
        Raises:
            WrongAnswer: an envelope has none of these ids.
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
        """
        network_topic = self.terms.network_topic
        wanted = {item for group in groups for item in group.ids}

        def check(envelopes: Sequence[Envelope]) -> None:
            for envelope in envelopes:
                item = sync_id(_muid(network_topic, envelope))
                if item not in wanted:
                    raise WrongAnswer(f"envelope {envelope.hash().hex()} was not asked for")
                wanted.remove(item)
            on_envelopes(envelopes)

        await self._ask_for_envelopes(FetchItems(0, network_topic, groups), check)

    async def reconcile(self, question: Reconcile) -> bytes:
        """Have a message of negentropy answered.

        Args:
            question: its `request_id` is replaced, and its `network_topic`.
        Raises:
            QuestionRefused, NoAnswer, ConnectionLost: as for every question.
        """
        messages: list[bytes] = []

        def take(answer: Answer) -> bool:
            if not isinstance(answer, Reconciled):
                raise WrongAnswer(f"{type(answer).__name__} to Reconcile")
            messages.append(answer.message)
            return True

        await self._ask(replace(question, network_topic=self.terms.network_topic), take)
        return messages[0]

    async def _ask_for_envelopes(self, question: Question, check: OnEnvelopes) -> Done:
        ends: list[Done] = []

        def take(answer: Answer) -> bool:
            if isinstance(answer, Done):
                ends.append(answer)
                return True
            if not isinstance(answer, Envelopes):
                raise WrongAnswer(f"{type(answer).__name__} to {type(question).__name__}")
            if not answer.envelopes:
                raise WrongAnswer(_EMPTY)
            check(answer.envelopes)
            return False

        await self._ask(question, take)
        return ends[0]

    async def _ask(self, question: Question, take: Callable[[Answer], bool]) -> None:
        """Send a question, and wait until `take` has had the last part of its answer."""
        request_id = next(self._numbers)
        pending = self._pending[request_id] = _Pending(take)
        try:
            await self._client.send(question.code, replace(question, request_id=request_id).encode())
            while not pending.is_over:
                pending.progressed.clear()
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await pending.progressed.wait()
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
        finally:
            del self._pending[request_id]
        if pending.fault is not None:
            raise pending.fault

    def on_event(self, event: Event) -> None:
        """Take what the node sends.

        Raises:
            RemoteProtocolError: an answer does not decode.
        """
        if not isinstance(event, IdPacketReceived) or event.code in QUESTIONS:
            return
        try:
            answer = decode_answer(event.code, event.payload)
        except DecodeError as error:
            raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"{event.code.name}: {error}") from error
        pending = self._pending.get(answer.request_id)
        if pending is None or pending.is_over:  # of a question that we gave up on
            return
        try:
            if isinstance(answer, Refused):
                raise QuestionRefused(answer)
            pending.is_over = pending.take(answer)
        except (QuestionRefused, WrongAnswer) as error:
            pending.end(error)
        pending.progressed.set()

    def on_lost(self, lost: ConnectionLost) -> None:
        """The connection has ended: tell everybody who waits."""
        for pending in self._pending.values():
            if not pending.is_over:
                pending.end(lost)


def _is_within(query: Query, envelope: Envelope) -> bool:
    """Whether an envelope is one of those that a query asks for."""
    if not query.lower <= envelope.created <= query.upper or not query.interest.wants(envelope.topic):
        return False
    try:
        meta = meta_of(envelope)
    except NoId:
        return False
    return query.low <= meta and (query.high is None or meta < query.high)


def _muid(network_topic: str, envelope: Envelope) -> Muid:
    try:
        return envelope_muid(network_topic, envelope)
    except NoId as error:
        raise WrongAnswer(str(error)) from error


def _what_differs(network_topic: str, envelope: Envelope, asked: Sequence[Muid]) -> str:
    """Say how an envelope differs from the one that was asked for, if it is a changed copy of it, and found soon."""
    meta = meta_of(envelope)
    likely = sorted(asked, key=lambda each: metadata_of(each) != meta)
    for each in likely[: max(1, _COMPARED_BYTES // len(envelope.raw))]:
        changed = envelope_differences(network_topic, each, envelope)
        if not changed:
            return f"envelope {envelope.hash().hex()} was sent twice"
        if metadata_of(each) == meta or CONTENT not in changed:
            return f"of the envelope with MUID {each.hex()} this was changed: {', '.join(changed)}"
    return f"envelope {envelope.hash().hex()} was not asked for"
