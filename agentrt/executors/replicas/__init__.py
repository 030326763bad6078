"""Several engines behind one `Executor`: calls are routed, and retried when their engine dies."""

from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState
from agentrt.executors.replicas.set import ReplicaSet, RestartedEngine
from agentrt.executors.replicas.supervisor import Health
from agentrt.former import warn_of_former_place

__all__ = ["Backoff", "Health", "Replica", "ReplicaSet", "ReplicaState", "RestartedEngine"]

warn_of_former_place(__name__, "ReplicaSet")
