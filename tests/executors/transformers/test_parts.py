"""The prefix cache that calls share, and the text of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.executors.transformers.cache import PrefixCache
from agentrt.executors.transformers.executor import Decoding, OutputText
from agentrt.executors.transformers.model import CausalModel
from agentrt.request import Call, CallSpec, Identity
from tests.executors.transformers.models import config_of, model_of

pytestmark = pytest.mark.engine


def test_a_prefix_cache_keeps_what_was_used_last_within_its_budget(tiny: CausalModel) -> None:
    def text(start: int) -> Any:
        cache = tiny.start()
        tiny.extend(cache, range(start, start + 10))
        return cache

    size = text(0).size
    prefixes = PrefixCache(2 * size)
    for start in (0, 100):
        prefixes.put((None, None), text(start))
    assert prefixes.longest((None, None), range(50), 49) is not None
    prefixes.put((None, None), text(200))
    assert [kept.ids[0] for _, kept in prefixes.entries] == [0, 200]
    found = prefixes.longest((None, None), [0, 1, 2, 300], 3)
    assert found is not None
    assert found.ids == [0, 1, 2]
    PrefixCache(0).put((None, None), found)


class Letters:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    def decode(self, ids: list[int], **options: Any) -> str:
        return bytes(n % 256 for n in ids).decode(errors="replace")


def test_text_is_held_back_while_it_may_become_a_stop_string() -> None:
    said = OutputText(Letters(), ["END"])
    pieces = [said.add(byte) for byte in "aEEN€E".encode()]
    assert pieces == ["a", "", "E", "", "", "", "EN€", ""]
    assert said.end() == "E"
    said = OutputText(Letters(), ["END", "ND"])
    assert "".join(said.add(byte) for byte in b"xEND") == "x"
    assert (said.stopped, said.end()) == (True, "")
    cut = OutputText(Letters(), [])
    assert [cut.add(byte) for byte in "é".encode()[:1]] == [""]
    assert cut.end() == "�"


def test_layers_with_windows_of_their_own_are_not_cut() -> None:
    """The cache of such a model is not used again by another call. Both calls give the same
    tokens.
    """
    model = model_of(config_of("MistralConfig", sliding_window=8), Letters())
    prefixes, prompt = PrefixCache(1 << 30), tuple(range(3, 40))
    spec = CallSpec(prompt_token_ids=prompt, max_tokens=6, ignore_eos=True)
    said = []
    for _ in range(2):
        decoding = Decoding(model, prefixes, Call(Identity("p/0", "p"), spec))
        assert sum(len(step.token_ids) for step in decoding.steps()) == 6
        said.append((decoding.ids, decoding.cached))
    whole = model.extend(model.start(), [*prompt, *said[0][0]], 7).argmax(-1).tolist()
    assert said == [(whole[:6], 0)] * 2
    assert prefixes.entries == []
