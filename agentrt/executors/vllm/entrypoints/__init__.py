"""vLLM's own front end on our engines: it renders requests and reads outputs as vLLM does.

`client` stands for the engines before it, `frontend` is one model's, `models` chooses. `parsers`
picks who reads tool calls: vLLM's, by `families`, or `held`, whose form is in `tool_form` and is
read by `partial`. `arranged` makes each prompt of a chat begin with the one before, by `reminders`
and `late_tools`. What vLLM's make of a call that was cut off is mended in ``_compat.cut_off``.
"""
