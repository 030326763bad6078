"""Many engines behind one `Executor`: each call is routed, and run again when its engine dies."""

from agentrt.executors.replicas.health import Health
from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState
from agentrt.executors.replicas.set import ReplicaSet

__all__ = ["Backoff", "Health", "Replica", "ReplicaSet", "ReplicaState"]
