"""The first words of an input, in the forms in which inputs come."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from pydantic import BaseModel

from agentrt.runtime.first_words import first_words


class Order(BaseModel):
    cups: int = 2
    drink: str = "tea"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("  a\n b ", "a b"),
        ("x" * 90, "x" * 79 + "…"),
        (None, ""),
        (42, "42"),
        ([1, 2], ""),
        ({"n": 1, "topic": "rain", "style": "short"}, "rain"),
        (Order(), "tea"),
        ({"messages": []}, ""),
        ({"messages": [("system", "be kind"), ("user", "hi")]}, "hi"),
        ({"messages": [SystemMessage("be kind"), HumanMessage("hi")]}, "hi"),
        ([{"role": "developer", "content": "x"}, {"role": "user", "content": "hi"}], "hi"),
        ([{"type": "human", "content": [{"type": "text", "text": "hi"}]}], "hi"),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                        {"type": "image_url", "image_url": {}},
                        {"type": "text", "text": "hi"},
                    ],
                }
            ],
            "hi",
        ),
        ([{"role": "user", "content": None}, {"role": "user"}, 3, "last"], "last"),
    ],
)
def test_the_first_words(value: Any, words: str) -> None:
    assert first_words(value) == words
