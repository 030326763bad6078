"""Crons: schedules that start runs."""
