"""Adding a provider to `init_chat_model` of LangChain, which has no registry of providers, but a
private list.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERSIONS = "langchain 1.4"


def add_provider(name: str, package: str, class_name: str) -> None:
    """Make ``init_chat_model("NAME:MODEL")`` return an instance of ``class_name`` of ``package``.

    Does nothing if the package ``langchain`` is not installed, or if it has moved its list.
    """
    try:
        providers: Any = import_module("langchain.chat_models.base")._BUILTIN_PROVIDERS
    except (ImportError, AttributeError):
        return
    providers.setdefault(name, (package, class_name, lambda cls, **options: cls(**options)))
