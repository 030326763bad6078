"""Engines as actors of a Ray cluster. Ray is an optional extra, and imported when an engine
starts.
"""

from agentrt.executors.ray.cluster import Cluster, Demand, Node
from agentrt.executors.ray.engine import RayEngine

__all__ = ["Cluster", "Demand", "Node", "RayEngine"]
