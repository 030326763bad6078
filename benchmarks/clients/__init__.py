"""Ordinary clients in a closed loop, which never report the end of a conversation."""
