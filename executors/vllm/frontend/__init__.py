"""vLLM's own front end on our engines: it renders requests and reads outputs as vLLM does.

`client` stands for the engines before it, `frontend` is one model's, `models` chooses.
"""
