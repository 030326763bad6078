"""The topics of docs/mqtt.md, below a prefix that may differ by tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrt.errors import ConfigError

_TENANT = "{tenant}"
_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
_LONGEST = 65535


@dataclass(frozen=True, slots=True)
class TopicPrefix:
    """The prefix of all topics of the protocol, such as ``agentrt`` or ``plants/{tenant}``."""

    text: str = "agentrt"

    def __post_init__(self) -> None:
        levels = self.text.split("/")
        plain = [level for level in levels if level != _TENANT]
        if not all(plain) or any(set("+#{}\0") & set(level) for level in plain):
            raise ConfigError(
                f"{self.text!r} is not a prefix for MQTT topics; write levels such as "
                "plant/agents, one of which may be {tenant}"
            )
        if len(levels) - len(plain) > 1 or self.text.startswith("$"):
            raise ConfigError(
                f"the prefix {self.text!r} has {{tenant}} twice or begins with $; write {{tenant}} "
                "at most once, and begin with another character"
            )

    @property
    def is_shared(self) -> bool:
        """Whether all tenants share the same topics."""
        return _TENANT not in self.text

    def of(self, tenant: str) -> Topics:
        """Return the topics of a tenant. Raises `ConfigError` for a name that cannot be part of a
        topic.
        """
        if self.is_shared:
            return Topics(self.text)
        if not is_name(tenant):
            raise ConfigError(
                f"tenant {tenant!r} cannot be part of an MQTT topic; use a name of at most 128 "
                "letters, digits, . _ : @ -"
            )
        return Topics(self.text.replace(_TENANT, tenant))

    def common(self) -> Topics:
        """Return the topics of a client, which are the same for all tenants that it serves."""
        return self.of("default")

    def all(self) -> Topics:
        """Return topic filters that match the topics of all tenants."""
        return Topics(self.text.replace(_TENANT, "+"))

    def read(self, topic: str) -> tuple[str, list[str]]:
        """Return the tenant of a topic, and the topic's levels below the prefix."""
        own, levels = self.text.split("/"), topic.split("/")
        tenant = levels[own.index(_TENANT)] if not self.is_shared else "default"
        return tenant, levels[len(own) :]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics below one prefix."""

    prefix: str

    def worker(self, worker: str) -> str:
        """The topic on which a worker announces its tools (retained)."""
        return f"{self.prefix}/workers/{worker}"

    def inbox(self, worker: str) -> str:
        """The topic on which one worker receives calls."""
        return f"{self.prefix}/workers/{worker}/calls"

    def answers_for(self, worker: str) -> str:
        """The topic on which one worker receives answers to its tools' questions."""
        return f"{self.prefix}/workers/{worker}/answers"

    def calls(self, tool: str) -> str:
        """The topic of a tool's calls. Each call goes to one of the workers that offer the tool."""
        return f"{self.prefix}/tools/{tool}/calls"

    def shared_calls(self, tool: str) -> str:
        """The shared subscription by which a worker shares a tool's calls with other workers."""
        return f"$share/workers/{self.calls(tool)}"

    def cancels(self, tool: str) -> str:
        """The topic on which all workers receive the cancellations of a tool's calls."""
        return f"{self.prefix}/tools/{tool}/cancels"

    def client(self, client: str) -> str:
        """The topic on which the broker announces that a client has disconnected."""
        return f"{self.prefix}/clients/{client}"

    def replies(self, client: str) -> str:
        """The topic on which a client receives replies."""
        return f"{self.prefix}/clients/{client}/replies"

    def question(self, question: str) -> str:
        """The topic on which an open question to a human is published (retained)."""
        return f"{self.prefix}/questions/{question}"

    def answers(self, question: str) -> str:
        """The topic on which answers to a question are published."""
        return f"{self.question(question)}/answers"

    @property
    def dead_letters(self) -> str:
        """The topic for messages that started no program, or whose program did not succeed."""
        return f"{self.prefix}/dead-letters"

    @property
    def events(self) -> str:
        """The topic below which a tenant's events are, if each tenant has its own topics."""
        return f"{self.prefix}/events"


def is_name(name: str) -> bool:
    """Return whether a text is a valid name of a tool, a worker or a tenant."""
    return _NAME.fullmatch(name) is not None


def check_filter(topic: str) -> None:
    """Raise `ConfigError` if a text is not a valid MQTT topic filter."""
    levels = topic.split("/")
    wrong = None
    if not topic or len(topic.encode()) > _LONGEST or "\0" in topic:
        wrong = "it is empty, too long, or contains a NUL character"
    elif any(len(level) > 1 and set("+#") & set(level) for level in levels):
        wrong = "+ and # must be whole levels, as in plant/+/alarm and plant/#"
    elif "#" in levels[:-1]:
        wrong = "# must be the last level"
    elif levels[0] == "$share":
        wrong = "programs do not share their events; leave $share/… out"
    if wrong is not None:
        raise ConfigError(f"{topic!r} is not a valid topic filter: {wrong}")
