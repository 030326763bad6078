"""The topics of docs/mqtt.md, below a prefix that may differ by tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrt.errors import ConfigError

_TENANT = "{tenant}"
_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
_LONGEST = 65535


@dataclass(frozen=True, slots=True)
class Prefix:
    """Where all topics of the protocol begin, such as ``agentrt`` or ``plants/{tenant}``."""

    text: str = "agentrt"

    def __post_init__(self) -> None:
        levels = self.text.split("/")
        plain = [level for level in levels if level != _TENANT]
        if not all(plain) or any(set("+#{}\0") & set(level) for level in plain):
            raise ConfigError(
                f"{self.text!r} is no prefix for MQTT topics: give levels such as plant/agents, "
                "one of which may be {tenant}"
            )
        if len(levels) - len(plain) > 1 or self.text.startswith("$"):
            raise ConfigError(f"the prefix {self.text!r} has {{tenant}} twice, or begins with $")

    @property
    def is_shared(self) -> bool:
        """Whether all tenants have the same topics."""
        return _TENANT not in self.text

    def of(self, tenant: str) -> Topics:
        """The topics of one tenant. Raises `ConfigError` for a name that no topic can have."""
        if self.is_shared:
            return Topics(self.text)
        if not is_name(tenant):
            raise ConfigError(f"tenant {tenant!r} cannot be in an MQTT topic")
        return Topics(self.text.replace(_TENANT, tenant))

    def common(self) -> Topics:
        """The topics that all tenants share: those of one client, whichever tenants it serves."""
        return self.of("default")

    def all(self) -> Topics:
        """The topics of all tenants, to subscribe to."""
        return Topics(self.text.replace(_TENANT, "+"))

    def read(self, topic: str) -> tuple[str, list[str]]:
        """Whose a topic is, and its levels below the prefix."""
        own, levels = self.text.split("/"), topic.split("/")
        tenant = levels[own.index(_TENANT)] if not self.is_shared else "default"
        return tenant, levels[len(own) :]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics below one prefix."""

    prefix: str

    def worker(self, worker: str) -> str:
        """Where a worker says what it offers (retained)."""
        return f"{self.prefix}/workers/{worker}"

    def inbox(self, worker: str) -> str:
        """Where one worker takes calls."""
        return f"{self.prefix}/workers/{worker}/calls"

    def answers_for(self, worker: str) -> str:
        """Where one worker gets answers to what its tools ask."""
        return f"{self.prefix}/workers/{worker}/answers"

    def calls(self, tool: str) -> str:
        """Where any worker that offers the tool takes calls, through a shared subscription."""
        return f"{self.prefix}/tools/{tool}/calls"

    def shared_calls(self, tool: str) -> str:
        """What a worker subscribes to, to share a tool's calls with others."""
        return f"$share/workers/{self.calls(tool)}"

    def cancels(self, tool: str) -> str:
        """Where all workers hear which calls of a tool are cancelled."""
        return f"{self.prefix}/tools/{tool}/cancels"

    def client(self, client: str) -> str:
        """Where it is said that one client is gone, and needs its calls no more."""
        return f"{self.prefix}/clients/{client}"

    def replies(self, client: str) -> str:
        """Where one client gets replies."""
        return f"{self.prefix}/clients/{client}/replies"

    def question(self, question: str) -> str:
        """Where a question to a human is, while it is open (retained)."""
        return f"{self.prefix}/questions/{question}"

    def answers(self, question: str) -> str:
        """Where whoever answers a question says what."""
        return f"{self.question(question)}/answers"

    @property
    def dead_letters(self) -> str:
        """Where messages go that started no program."""
        return f"{self.prefix}/dead-letters"

    @property
    def events(self) -> str:
        """Below this are the events of a tenant that has topics of its own."""
        return f"{self.prefix}/events"


def is_name(name: str) -> bool:
    """Whether a tool, a worker or a tenant may be called so."""
    return _NAME.fullmatch(name) is not None


def check_filter(topic: str) -> None:
    """Raise `ConfigError` for what is no topic filter of MQTT."""
    levels = topic.split("/")
    wrong = None
    if not topic or len(topic.encode()) > _LONGEST or "\0" in topic:
        wrong = "it is empty, too long, or has a NUL in it"
    elif any(len(level) > 1 and set("+#") & set(level) for level in levels):
        wrong = "+ and # stand for whole levels, as in plant/+/alarm and plant/#"
    elif "#" in levels[:-1]:
        wrong = "# can only be the last level"
    elif levels[0] == "$share":
        wrong = "a program's events are its own: leave $share/… out"
    if wrong is not None:
        raise ConfigError(f"{topic!r} is no topic filter: {wrong}")
