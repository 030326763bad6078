"""Engines as actors of a Ray cluster. Ray is an optional extra, and imported when an engine
starts.
"""

from agentrt.executors.ray.cluster import Cluster, ClusterNode, Demand
from agentrt.executors.ray.engine import RayEngine

__all__ = ["Cluster", "ClusterNode", "Demand", "RayEngine"]
