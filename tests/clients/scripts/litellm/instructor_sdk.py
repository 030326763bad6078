"""Instructor: answers in the form of a class, by a tool and by a schema."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel

from tests.clients.scripts.scenarios import MODEL, URL


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def _ask(mode: instructor.Mode, word: str) -> Any:
    client = instructor.from_openai(
        OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0), mode=mode
    )
    person = client.chat.completions.create(
        model=MODEL,
        response_model=Person,
        max_retries=0,
        messages=[{"role": "user", "content": f"Make up a person, {word}."}],
    )
    return person.model_dump()


def by_tool(word: str) -> Any:
    """The class is a tool that the model has to call."""
    return _ask(instructor.Mode.TOOLS, word)


def by_schema(word: str) -> Any:
    """The class is the answer's schema."""
    return _ask(instructor.Mode.JSON_SCHEMA, word)
