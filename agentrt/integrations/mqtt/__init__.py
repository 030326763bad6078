"""Tools and events over MQTT 5: workers on any machine, found and called through a broker.

`tools` has the transport that a runtime calls tools with, `worker` the other side, which offers
functions as tools; `calls` and `replies` are what each side keeps of a call. `events` has what
programs wait for, `questions` what they ask humans. `broker` says how a broker is reached,
`connection` keeps the connection up. `topics` and `messages` are the protocol of
docs/mqtt.md.
"""

from __future__ import annotations

from agentrt.integrations.mqtt.broker import Broker, read_broker
from agentrt.integrations.mqtt.events import MqttEvents
from agentrt.integrations.mqtt.questions import MqttQuestions
from agentrt.integrations.mqtt.tools import MqttTools
from agentrt.integrations.mqtt.worker import Worker

__all__ = ["Broker", "MqttEvents", "MqttQuestions", "MqttTools", "Worker", "read_broker"]
