"""What ``agentrt simulate`` studies beside plain grids of runs."""
