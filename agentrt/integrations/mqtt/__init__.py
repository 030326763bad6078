"""Tools, events and questions over MQTT 5: workers on any machine, found and called through a
broker.

`tools` has the transport by which a runtime calls tools, and `worker` the other side, which offers
functions as tools. `events` has the events that programs wait for, and `questions` the questions
that they ask humans. `broker` has the address of a broker, and `connection` keeps a connection to
it open. `topics` and `messages` are the protocol of docs/mqtt.md.
"""

from __future__ import annotations

from agentrt.integrations.mqtt.broker import Broker, read_broker
from agentrt.integrations.mqtt.events import MqttEvents
from agentrt.integrations.mqtt.questions import MqttQuestions
from agentrt.integrations.mqtt.tools import MqttTools
from agentrt.integrations.mqtt.worker import Worker

__all__ = ["Broker", "MqttEvents", "MqttQuestions", "MqttTools", "Worker", "read_broker"]
