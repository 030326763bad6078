"""Ordinary clients in a closed loop, who never say that a conversation is over."""
