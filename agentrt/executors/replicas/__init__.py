"""Many engines behind one `Executor`: each call is routed, and retried when its engine dies."""

from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState
from agentrt.executors.replicas.set import ReplicaSet, RestartedEngine
from agentrt.executors.replicas.supervisor import Health

__all__ = ["Backoff", "Health", "Replica", "ReplicaSet", "ReplicaState", "RestartedEngine"]
