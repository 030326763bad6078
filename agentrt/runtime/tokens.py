"""The tokens of a run, which the engine read and wrote, as sequences for training.

The token ids and log probabilities come from the engine's calls; no text is tokenized again. If the
prompt of a call begins with a whole sequence, the call extends that sequence. Any other call begins
a new sequence, for example the call of a second branch, or a call after the chat was shortened.
Each token that the model wrote is marked in exactly one sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from operator import itemgetter
from typing import Any

from agentrt.request.common import common_length
from agentrt.request.tokens import CallTokens, pack, unpack
from agentrt.request.weights import Versions, version_spans

_ID = "I"
"""Type code of a token id in memory."""
WRITING = ("llm", "generate")
"""Names of the nodes whose calls write tokens. The calls of `score` and `next_tokens` of a context
only read log probabilities.
"""
_CANDIDATES = 8
"""Number of latest sequences with which a new sequence is compared to find a common beginning."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A sequence of tokens. All fields have an entry for each token.

    ``mask`` is 1 for tokens that the model wrote, and 0 for all other tokens: prompts, results of
    tools, and tokens that are marked in another sequence. ``logprobs`` are natural log
    probabilities, 0.0 where the mask is 0. ``versions`` are the versions of the weights that wrote
    the tokens, -1 where the mask is 0.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    mask: Sequence[int]
    versions: Sequence[int]


@dataclass(slots=True)
class _Span:
    """The tokens that one call wrote: their positions in a sequence and their log probabilities."""

    key: str
    start: int
    end: int
    logprobs: bytes
    versions: Versions


@dataclass(slots=True, eq=False)
class _Growing:
    """A sequence that later calls may extend. ``ends`` has the end position and the key of each
    call, including calls whose spans were dropped.
    """

    ids: array[int] = field(default_factory=lambda: array(_ID))
    spans: list[_Span] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)


class TokenLog:
    """The tokens of one run. It must be used on the event loop of the runtime.

    ``complete`` is False if the tokens of some calls are missing, because an earlier process did
    not record them or the engine did not report them. ``rewards`` are the program's rewards
    (`Context.reward`) by their keys. ``streamed`` has, by the place of a streamed call's node, its
    tokens until the program's journal records the call; without a journal, it is empty.

    Without a journal, ``keep`` may record each call; it is awaited before the program gets the
    reply. ``task`` returns the name of the task that runs now. If the process is killed while a
    task runs, the whole task runs again.
    """

    def __init__(self) -> None:
        self.complete = True
        self.keep: Callable[[CallTokens], Coroutine[Any, Any, None]] | None = None
        self.task: Callable[[], str] = lambda: ""
        self._earlier: set[str] = set()
        self.streamed: dict[str, list[CallTokens]] = {}
        self.rewards: dict[str, float] = {}
        self._sequences: list[_Growing] = []
        self._places: dict[str, tuple[_Growing, int]] = {}
        self._unrecorded: set[str] = set()  # places of nodes that the journal has not recorded yet

    # -- calls -------------------------------------------------------------------------

    def begin_task(self) -> str:
        """Return the name of the task that makes a call now. If an earlier process recorded calls
        of the same task, drop the tokens that these calls wrote, because the task runs again.
        """
        task = self.task()
        if task in self._earlier:
            self._earlier.discard(task)
            self._drop_task(task)
        return task

    def restore_tasks(self, calls: Iterable[CallTokens]) -> None:
        """Restore the calls of tasks that earlier processes recorded. ``calls`` must be in the
        order in which the calls ended.
        """
        for call in calls:
            task = task_of_key(call.key)
            if call.key in self._places:  # the task began again in another process
                self._drop_task(task)
            self.restore(call)
            self._earlier.add(task)

    def _drop_task(self, task: str) -> None:
        self._drop([key for key in self._places if task_of_key(key) == task])

    def key(self, at: str) -> str:
        """Return the key of the next call at a place of the program's code."""
        return next(key for number in count() if (key := f"{at}/{number}") not in self._places)

    def add(
        self,
        key: str,
        prompt: Sequence[int],
        written: Sequence[int],
        logprobs: Iterable[float],
        versions: Versions = (),
        *,
        in_journal: bool = False,
    ) -> CallTokens:
        """Add the tokens of a call that has ended, and return them in their recorded form.

        With ``in_journal``, the journal will record the call with its node, and `node_recorded` is
        called then. Until then, no call of another node is recorded as a difference to this call:
        the other node may be recorded first, or the program may be killed before this call is
        recorded.
        """
        ids, node = array(_ID, prompt), node_of_key(key)
        if in_journal:
            self._unrecorded.add(node)
        sequence = self._extended_by(ids)
        shared, base = self._longest_beginning(ids, sequence, node)
        new, output = tuple(ids[shared:]), tuple(written)
        call = CallTokens(key, base, shared, new, output, pack(logprobs), versions)
        self._put(call, ids, sequence)
        return call

    def node_recorded(self, place: str) -> None:
        """Note that the journal has recorded the node at ``place`` with its calls."""
        self._unrecorded.discard(place)

    def restore(self, call: CallTokens) -> None:
        """Add the recorded tokens of a call. Calls are restored in the order of their ends."""
        if not call.base:
            ids = array(_ID, call.prompt)
        elif call.base in self._places:
            base, end = self._places[call.base]
            ids = base.ids[: min(end, call.shared)]
            ids.extend(call.prompt)
        else:
            self.complete = False
            return
        self._put(call, ids, self._extended_by(ids))

    def _put(self, call: CallTokens, ids: array[int], sequence: _Growing | None) -> None:
        if sequence is None:
            sequence = _Growing(ids)
            self._sequences.append(sequence)
        else:
            sequence.ids.extend(ids[len(sequence.ids) :])
        start = len(sequence.ids)
        sequence.ids.extend(call.written)
        end = len(sequence.ids)
        if call.written:  # a call that the engine refused wrote nothing
            sequence.spans.append(_Span(call.key, start, end, call.logprobs, call.versions))
        sequence.ends.append((end, call.key))
        self._places[call.key] = sequence, end

    def _extended_by(self, ids: array[int]) -> _Growing | None:
        """Return the longest sequence with which a prompt begins; None if there is none."""
        longest: _Growing | None = None
        for sequence in self._sequences:
            length = len(sequence.ids)
            if (
                0 < length <= len(ids)
                and (longest is None or length > len(longest.ids))
                and sequence.ids[-1] == ids[length - 1]
                and sequence.ids == ids[:length]
            ):
                longest = sequence
        return longest

    def _longest_beginning(
        self, ids: array[int], extended: _Growing | None, node: str
    ) -> tuple[int, str]:
        """Return the length of the longest beginning that the prompt ``ids`` of a call of ``node``
        shares with an earlier call, and the key of the earlier call; (0, "") if there is none. The
        earlier call is recorded already, or belongs to the same node.

        If the prompt extends a sequence, only the calls of this sequence are considered, otherwise
        the calls of the latest sequences.
        """
        longest = 0, ""
        late = islice(reversed(self._sequences), _CANDIDATES)
        for sequence in late if extended is None else (extended,):
            length = common_length(sequence.ids, ids)
            if length > longest[0]:
                beginning = self._call_with(sequence, length, node)
                longest = max(longest, beginning, key=itemgetter(0))
        return longest

    def _call_with(self, sequence: _Growing, length: int, node: str) -> tuple[int, str]:
        """Return the key of a call whose tokens include the first ``length`` tokens of a sequence,
        or as many of them as possible, after the number of these tokens; (0, "") if there is none.
        """
        best = 0, ""
        for end, key in sequence.ends:  # the ends increase
            own = node_of_key(key)
            is_recorded = own == node or own not in self._unrecorded
            if is_recorded and self._places.get(key) == (sequence, end):  # it was not dropped
                best = min(end, length), key
                if end >= length:
                    break
        return best

    def drop(self, places: Iterable[str]) -> None:
        """Drop the tokens that the model wrote in calls of the nodes at ``places``, and the rewards
        of these nodes, because the resumed code does not reach the recorded nodes any more. If
        tokens of other calls follow the dropped tokens in a sequence, the dropped tokens stay in
        the sequence, but are no longer marked as written by the model.
        """
        gone = set(places)
        self._drop([key for key in self._places if node_of_key(key) in gone])
        for key in gone.intersection(self.rewards):
            del self.rewards[key]

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            sequence, _ = self._places.pop(key)
            sequence.spans = [span for span in sequence.spans if span.key != key]

    def clear(self) -> None:
        """Drop all tokens and rewards, because the program runs again from its beginning."""
        self._sequences.clear()
        self._places.clear()
        self._unrecorded.clear()
        self.streamed.clear()
        self.rewards.clear()
        self.complete = True

    # -- results -----------------------------------------------------------------------

    def sequences(self) -> list[TokenSequence]:
        """Return the sequences, each up to the last token that the model wrote."""
        return [_finished(sequence) for sequence in self._sequences if sequence.spans]


def task_of_key(key: str) -> str:
    """Return the name of the task, or the place in the code, that made the call with this key."""
    return key.rpartition("/")[0]


def node_of_key(key: str) -> str:
    """Return the place of the node to which the call with this key belongs. The calls for the
    ``choices`` of one reply belong to the same node.
    """
    before, mark, number = task_of_key(key).rpartition("#")
    return f"{before}{mark}{number.partition('.')[0]}"


def _finished(sequence: _Growing) -> TokenSequence:
    length = sequence.spans[-1].end
    logprobs, mask = unpack(bytes(4 * length)), bytearray(length)
    versions = array("i", [-1]) * length
    for span in sequence.spans:
        logprobs[span.start : span.end] = unpack(span.logprobs)
        mask[span.start : span.end] = b"\1" * (span.end - span.start)
        for first, end, version in version_spans(span.versions, span.end - span.start):
            at = slice(span.start + first, span.start + end)
            versions[at] = array("i", [version]) * (end - first)
    return TokenSequence(sequence.ids[:length], logprobs, mask, versions)
