"""Studies of policies without a model: the step simulator."""
