"""The comparison that somebody makes who has vLLM already: it alone, and with our policies.

`plan` says what runs, `equal` finds the throughput at equal latency, `tables` writes it
down; `replay` and `real` take a real engine, where virtual time needs none.
"""
