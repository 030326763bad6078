"""Outputs of models of several families, written by us: text with the markup of the family.

Each family has an answer, one call, several calls at once, and a call that is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CITY = {"type": "string"}
WEATHER = {"type": "object", "properties": {"city": CITY, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
]
ANSWER = "It is 3 < 4."
TWO = '{"city": "Malmö", "days": 3}'


@dataclass(frozen=True)
class Outputs:
    """``reasoning`` is how a thought begins and ends, before each of the outputs."""

    parser: str
    one: str
    several: str
    broken: str
    reasoning_parser: str | None = None
    answer: str = ANSWER
    thought: str = ""

    def items(self) -> dict[str, str]:
        kinds = ("answer", "one", "several", "broken")
        return {kind: self.thought + getattr(self, kind) for kind in kinds}


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def _xml(name: str, **values: Any) -> str:
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _glm(name: str, **values: Any) -> str:
    given = [f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in values.items()]
    return f"<tool_call>{name}{''.join(given)}</tool_call>"


def _deepseek(*calls: str) -> str:
    made = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{made}<｜tool▁calls▁end｜>"


def _v3(name: str, arguments: str) -> str:
    return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


def _kimi(*calls: tuple[str, str]) -> str:
    made = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{made}<|tool_calls_section_end|>"


def _dsml(wrapper: str, *calls: str, space: str = "") -> str:
    made = "".join(f"{call}\n" for call in calls)
    return f"<｜DSML｜{space}{wrapper}>\n{made}</｜DSML｜{space}{wrapper}>"


def _dsml_call(name: str, space: str = "", **values: Any) -> str:
    made = "".join(
        f'<｜DSML｜{space}parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{v}'
        f"</｜DSML｜{space}parameter>\n"
        for k, v in values.items()
    )
    return f'<｜DSML｜{space}invoke name="{name}">\n{made}</｜DSML｜{space}invoke>'


def _k3(*calls: tuple[str, dict[str, Any]]) -> str:
    made = ""
    for index, (name, values) in enumerate(calls, 1):
        arguments = "".join(
            f'<|open|>argument key="{k}" type="{"string" if isinstance(v, str) else "number"}"'
            f"<|sep|>{v}<|close|>argument<|sep|>"
            for k, v in values.items()
        )
        made += f'<|open|>call tool="{name}" index="{index}"<|sep|>{arguments}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{made}<|close|>tools<|sep|>"


def _k3_text(text: str) -> str:
    return f"<|open|>response<|sep|>{text}<|close|>response<|sep|>"


def _inkling(kind: str, body: str) -> str:
    return f"<|message_model|><|content_{kind}|>{body}<|end_message|>"


def _inkling_call(arguments: str, name: str = "weather") -> str:
    return _inkling("invoke_tool_json", f'{{"name":"{name}","args":{arguments}}}')


def _gemma(name: str, arguments: str = "") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


NAMESPACE = "]<]minimax[>["
"""What each mark of minimax_m3's begins with."""


def _m3(*calls: str) -> str:
    made = "".join(f"{call}\n" for call in calls)
    return f"{NAMESPACE}<tool_call>\n{made}{NAMESPACE}</tool_call>"


def _m3_call(name: str, **values: Any) -> str:
    made = "".join(f"{NAMESPACE}<{k}>{v}{NAMESPACE}</{k}>\n" for k, v in values.items())
    return f'{NAMESPACE}<invoke name="{name}">\n{made}{NAMESPACE}</invoke>'


def _muse(name: str, **values: Any) -> str:
    made = "".join(f'<atem:parameter name="{k}">{v}</atem:parameter>\n' for k, v in values.items())
    return (
        f"<|start|>assistant to={name}<|message|>\n<atem:function_calls>\n"
        f'<atem:invoke name="{name}">\n{made}</atem:invoke>\n</atem:function_calls><|eom|>'
    )


def _tagged(before: str, between: str, name: str, **values: Any) -> str:
    """Return a call of hy_v3's, hy_v4's or k2_horizon's, whose tags begin with ``before``."""
    pairs = "".join(
        f"<{before}arg_key>{k}</{before}arg_key><{before}arg_value>{v}</{before}arg_value>"
        for k, v in values.items()
    )
    return f"<{before}tool_call>{name}{between}{pairs}</{before}tool_call>"


def _group(before: str, *calls: str) -> str:
    return f"<{before}tool_calls>{''.join(calls)}</{before}tool_calls>"


def _plamo(*calls: tuple[str, str]) -> str:
    def tag(name: str, body: str) -> str:
        return f"<|plamo:begin_{name}:plamo|>{body}<|plamo:end_{name}:plamo|>"

    made = "".join(
        tag(
            "tool_request",
            tag("tool_name", name)
            + tag("tool_arguments", f"<|plamo:constrain|>json<|plamo:msg|>{arguments}"),
        )
        for name, arguments in calls
    )
    return tag("tool_requests", made)


def _step3(*calls: str) -> str:
    made = "".join(f"<｜tool_call_begin｜>{call}<｜tool_call_end｜>" for call in calls)
    return f"<｜tool_calls_begin｜>{made}<｜tool_calls_end｜>"


def _step3_call(name: str, **values: Any) -> str:
    made = "".join(
        f'<steptml:parameter name="{k}">{v}</steptml:parameter>' for k, v in values.items()
    )
    return f'function<｜tool_sep｜><steptml:invoke name="{name}">{made}</steptml:invoke>'


def _invoke(name: str, **values: Any) -> str:
    made = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
    return f'<invoke name="{name}">\n{made}</invoke>'


def _block(tag: str, *bodies: str) -> str:
    return f"<{tag}>\n{''.join(f'{body}{chr(10)}' for body in bodies)}</{tag}>"


def _escaped(name: str, **values: Any) -> str:
    made = ",".join(f"{k}:<escape>{v}<escape>" for k, v in values.items())
    return f"<start_function_call>call:{name}{{{made}}}<end_function_call>"


def _param(name: str, **values: Any) -> str:
    made = "".join(f'<param name="{k}">{v}</param>' for k, v in values.items())
    return f'<function name="{name}">{made}</function>'


ROME = '{"city": "Rome"}'
BROKEN = '{"city": Rome}'


def _json(arguments: str, key: str = "arguments", name: str = "weather") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


FAMILIES = {
    "hermes": Outputs(
        "hermes",
        one="Look:\n" + _hermes(f'{{"name": "weather", "arguments": {TWO}}}'),
        several=_hermes('{"name": "weather", "arguments": {"city": "Rome"}}')
        + "\n"
        + _hermes('{"name": "time", "arguments": {}}'),
        broken=_hermes('{"name": "weather", "arguments": {"city": Rome}}'),
    ),
    "llama": Outputs(
        "llama3_json",
        one=f'{{"name": "weather", "parameters": {TWO}}}',
        several='{"name": "weather", "parameters": {"city": "Rome"}}; '
        '{"name": "time", "parameters": {}}',
        broken='{"name": "weather", "parameters": {"city": Rome}}',
    ),
    "qwen3_coder": Outputs(
        "qwen3_coder",
        one="Look:" + _xml("weather", city="Malmö", days=3),
        several=_xml("weather", city="Rome") + "\n" + _xml("time"),
        broken=_xml("weather", days="three").replace("</function>\n", ""),
        reasoning_parser="qwen3",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "glm": Outputs(
        "glm47",
        one="Look:" + _glm("weather", city="Malmö", days=3),
        several=_glm("weather", city="Rome") + _glm("time"),
        broken=_glm("weather", days="three").replace("</tool_call>", ""),
        reasoning_parser="glm45",
        thought="<think>Hm.</think>",
    ),
    "deepseek_r1": Outputs(
        "deepseek_v3",
        one="Look:" + _deepseek(_v3("weather", TWO)),
        several=_deepseek(_v3("weather", '{"city": "Rome"}'), _v3("time", "{}")),
        broken=_deepseek(_v3("weather", '{"city": Rome}')),
        reasoning_parser="deepseek_r1",
        thought="<think>Hm.</think>",
    ),
    "deepseek_v31": Outputs(
        "deepseek_v31",
        one="Look:" + _deepseek(f"weather<｜tool▁sep｜>{TWO}"),
        several=_deepseek('weather<｜tool▁sep｜>{"city": "Rome"}', "time<｜tool▁sep｜>{}"),
        broken=_deepseek('weather<｜tool▁sep｜>{"city": Rome}'),
        reasoning_parser="deepseek_v3",
    ),
    "kimi": Outputs(
        "kimi_k2",
        one="Look:" + _kimi(("weather", TWO)),
        several=_kimi(("weather", '{"city": "Rome"}'), ("time", "{}")),
        broken=_kimi(("weather", '{"city": Rome}')),
        reasoning_parser="kimi_k2",
        thought="<think>Hm.</think>",
    ),
    "mistral": Outputs(
        "mistral",
        one=f"Look:[TOOL_CALLS]weather[ARGS]{TWO}",
        several='[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]time[ARGS]{}',
        broken='[TOOL_CALLS]weather[ARGS]{"city": Rome}',
        reasoning_parser="mistral",
        thought="[THINK]Hm.[/THINK]",
    ),
    "deepseek_v32": Outputs(
        "deepseek_v32",
        one="Look:\n\n" + _dsml("function_calls", _dsml_call("weather", city="Malmö", days=3)),
        several=_dsml("function_calls", _dsml_call("weather", city="Rome"), _dsml_call("time")),
        broken=_dsml("function_calls", _dsml_call("weather", days="three"))[:-30],
        reasoning_parser="deepseek_v3",
    ),
    "deepseek_v4": Outputs(
        "deepseek_v4",
        one="Look:\n\n" + _dsml("tool_calls", _dsml_call("weather", city="Malmö", days=3)),
        several=_dsml("tool_calls", _dsml_call("weather", city="Rome"), _dsml_call("time")),
        broken=_dsml("tool_calls", _dsml_call("weather", days="three"))[:-30],
        reasoning_parser="deepseek_v4",
        thought="<think>Hm.</think>",
    ),
    "deepseek_v41": Outputs(
        "deepseek_v41",
        one="Look:\n\n"
        + _dsml("calls", _dsml_call("weather", " ", city="Malmö", days=3), space=" "),
        several=_dsml(
            "calls", _dsml_call("weather", " ", city="Rome"), _dsml_call("time", " "), space=" "
        ),
        broken=_dsml("calls", _dsml_call("weather", " ", days="three"), space=" ")[:-30],
        reasoning_parser="deepseek_v41",
        thought="<think>Hm.</think>",
    ),
    "kimi_k3": Outputs(
        "kimi_k3",
        one=_k3_text("Look:") + _k3(("weather", {"city": "Malmö", "days": 3})),
        several=_k3(("weather", {"city": "Rome"}), ("time", {})),
        broken=_k3(("weather", {"city": "Rome"})).replace("<|close|>call<|sep|>", ""),
        reasoning_parser="kimi_k3",
        answer=_k3_text(ANSWER),
        thought="<|open|>think<|sep|>Hm.<|close|>think<|sep|>",
    ),
    "inkling": Outputs(
        "inkling",
        one=_inkling("text", "Look:") + _inkling_call(TWO),
        several=_inkling_call(ROME) + _inkling_call("{}", "time"),
        broken=_inkling_call(BROKEN),
        reasoning_parser="inkling",
        answer=_inkling("text", ANSWER),
        thought=_inkling("thinking", "Hm."),
    ),
    "gemma4": Outputs(
        "gemma4",
        one="Look:" + _gemma("weather", 'city:<|"|>Malmö<|"|>,days:3'),
        several=_gemma("weather", 'city:<|"|>Rome<|"|>') + _gemma("time"),
        broken=_gemma("weather", "city:Rome").removesuffix("}<tool_call|>"),
        reasoning_parser="gemma4",
        thought="<|channel>thought\nHm.<channel|>",
    ),
    "minimax_m3": Outputs(
        "minimax_m3",
        one="Look:\n" + _m3(_m3_call("weather", city="Malmö", days=3)),
        several=_m3(_m3_call("weather", city="Rome"), _m3_call("time")),
        broken=_m3(_m3_call("weather", days="three")).replace(f"{NAMESPACE}</invoke>", ""),
        reasoning_parser="minimax_m3",
        thought="<mm:think>Hm.</mm:think>",
    ),
    "muse_glimmer": Outputs(
        "muse_glimmer",
        one=_muse("weather", city="Malmö", days=3),
        several=_muse("weather", city="Rome") + _muse("time"),
        broken=_muse("weather", days="three").replace("</atem:invoke>", ""),
        reasoning_parser="muse_glimmer",
        answer=f"<|start|>assistant to=user<|message|>{ANSWER}<|eot|>",
        thought=" to=self<|message|>Hm.<|eom|>",
    ),
    "k2_horizon": Outputs(
        "k2_horizon",
        one="Look:" + _group("ifm|", _tagged("ifm|", "", "weather", city="Malmö", days=3)),
        several=_group(
            "ifm|", _tagged("ifm|", "", "weather", city="Rome"), _tagged("ifm|", "", "time")
        ),
        broken=_group("ifm|", _tagged("ifm|", "", "weather", days="three")[:-5]),
        reasoning_parser="k2_horizon",
        thought="<ifm|think>Hm.</ifm|think>",
    ),
    "hy_v3": Outputs(
        "hy_v3",
        one="Look:" + _group("", _tagged("", "<tool_sep>", "weather", city="Malmö", days=3)),
        several=_group(
            "",
            _tagged("", "<tool_sep>", "weather", city="Rome"),
            _tagged("", "<tool_sep>", "time"),
        ),
        broken=_group("", _tagged("", "<tool_sep>", "weather", days="three")[:-12]),
        reasoning_parser="hy_v3",
    ),
    "hy_v4": Outputs(
        "hy_v4",
        one="Look:" + _group("", _tagged("", "", "weather", city="Malmö", days=3)),
        several=_group("", _tagged("", "", "weather", city="Rome"), _tagged("", "", "time")),
        broken=_group("", _tagged("", "", "weather", days="three")[:-12]),
        reasoning_parser="hy_v4",
        thought="Hm.</think>",
    ),
    "plamo3": Outputs(
        "plamo3",
        one="Look:" + _plamo(("weather", TWO)),
        several=_plamo(("weather", ROME), ("time", "{}")),
        broken=_plamo(("weather", BROKEN)),
        reasoning_parser="plamo3",
        thought="<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>",
    ),
    "step3p5": Outputs(
        "step3p5",
        one="Look:" + _xml("weather", city="Malmö", days=3),
        several=_xml("weather", city="Rome") + "\n" + _xml("time"),
        broken=_xml("weather", days="three").replace("</function>\n", ""),
        reasoning_parser="step3p5",
        thought="<think>\nHm.\n</think>\n",
    ),
    "step3": Outputs(
        "step3",
        one="Look:" + _step3(_step3_call("weather", city="Malmö", days=3)),
        several=_step3(_step3_call("weather", city="Rome"), _step3_call("time")),
        broken=_step3(_step3_call("weather", days="three")).replace("</steptml:parameter>", ""),
        reasoning_parser="step3",
        thought="Hm.</think>",
    ),
    "ling3": Outputs(
        "ling3",
        one="Look:" + _glm("weather", city="Malmö", days=3),
        several=_glm("weather", city="Rome") + _glm("time"),
        broken=_glm("weather", days="three").replace("</tool_call>", ""),
        reasoning_parser="ling3",
        thought="<think>Hm.</think>",
    ),
    "poolside_v1": Outputs(
        "poolside_v1",
        one="Look:" + _glm("weather", city="Malmö", days=3),
        several=_glm("weather", city="Rome") + _glm("time"),
        broken=_glm("weather", days="three").replace("</tool_call>", ""),
        reasoning_parser="poolside_v1",
    ),
    "hunyuan_a13b": Outputs(
        "hunyuan_a13b",
        one=f"Look:<tool_calls>[{_json(TWO)}]</tool_calls>",
        several=f"<tool_calls>[{_json(ROME)}, {_json('{}', name='time')}]</tool_calls>",
        broken=f"<tool_calls>[{_json(BROKEN)}]</tool_calls>",
        reasoning_parser="hunyuan_a13b",
        thought="<think>\nHm.\n</think>\n",
    ),
    "mimo": Outputs(
        "mimo",
        one="Look:" + _xml("weather", city="Malmö", days=3),
        several=_xml("weather", city="Rome") + "\n" + _xml("time"),
        broken=_xml("weather", days="three").replace("</function>\n", ""),
        reasoning_parser="mimo",
        thought="<think>Hm.</think>",
    ),
    "ernie45": Outputs(
        "ernie45",
        one="Look:\n" + _hermes(_json(TWO)) + "\n",
        several=_hermes(_json(ROME)) + "\n" + _hermes(_json("{}", name="time")) + "\n",
        broken=_hermes(_json(BROKEN)) + "\n",
        reasoning_parser="ernie45",
        answer=f"<response>\n{ANSWER}\n</response>\n",
        thought="Hm.\n</think>\n\n",
    ),
    "jamba": Outputs(
        "jamba",
        one=f"Look:<tool_calls>[{_json(TWO)}]</tool_calls>",
        several=f"<tool_calls>[{_json(ROME)}, {_json('{}', name='time')}]</tool_calls>",
        broken=f"<tool_calls>[{_json(BROKEN)}]</tool_calls>",
    ),
    "olmo3": Outputs(
        "olmo3",
        one='<function_calls>weather(city="Malmö", days=3)</function_calls>',
        several='<function_calls>weather(city="Rome")\ntime()</function_calls>',
        broken="<function_calls>weather(city=Rome Paris)</function_calls>",
        reasoning_parser="olmo3",
        thought="<think>Hm.</think>",
    ),
    "llama4_json": Outputs(
        "llama4_json",
        one=_json(TWO, "parameters"),
        several=f"{_json(ROME, 'parameters')}; {_json('{}', 'parameters', 'time')}",
        broken=_json(BROKEN, "parameters"),
    ),
    "llama4_pythonic": Outputs(
        "llama4_pythonic",
        one='[weather(city="Malmö", days=3)]',
        several='[weather(city="Rome"), time()]',
        broken="[weather(city=Rome Paris)]",
    ),
    "granite": Outputs(
        "granite",
        one=f"Look:<|tool_call|>[{_json(TWO)}]",
        several=f"<|tool_call|>[{_json(ROME)}, {_json('{}', name='time')}]",
        broken=f"<|tool_call|>[{_json(BROKEN)}]",
        reasoning_parser="granite",
        thought="Here is my thought process: Hm. Here is my response: ",
    ),
    "granite4": Outputs(
        "granite4",
        one="Look:" + _hermes(_json(TWO)),
        several=_hermes(_json(ROME)) + "\n" + _hermes(_json("{}", name="time")),
        broken=_hermes(_json(BROKEN)),
        reasoning_parser="granite_thinking_parser",
        thought="<think>\nHm.\n</think>\n",
    ),
    "nemotron_v3": Outputs(
        "qwen3_coder",
        one="Look:" + _xml("weather", city="Malmö", days=3),
        several=_xml("weather", city="Rome") + "\n" + _xml("time"),
        broken=_xml("weather", days="three").replace("</function>\n", ""),
        reasoning_parser="nemotron_v3",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "distilled": Outputs(
        "held",
        one=f'{{"name":"weather","arguments":{TWO}}}',
        several='{"name":"time","arguments":{}}',
        broken='{"name":"weather","arguments":{"city":Rome}}',
        reasoning_parser="deepseek_r1",
        answer=f'{{"answer":"{ANSWER}"}}',
        thought="<think>Hm.</think>",
    ),
    "qwq": Outputs(
        "hermes",
        one="Look:\n" + _hermes(_json(TWO)),
        several=_hermes(_json(ROME)) + "\n" + _hermes(_json("{}", name="time")),
        broken=_hermes(_json(BROKEN)),
        reasoning_parser="deepseek_r1",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "qwen3": Outputs(
        "hermes",
        one="Look:\n" + _hermes(_json(TWO)),
        several=_hermes(_json(ROME)) + "\n" + _hermes(_json("{}", name="time")),
        broken=_hermes(_json(BROKEN)),
        reasoning_parser="qwen3",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "minimax_m2": Outputs(
        "minimax_m2",
        one="Look:\n" + _block("minimax:tool_call", _invoke("weather", city="Malmö", days=3)),
        several=_block("minimax:tool_call", _invoke("weather", city="Rome"), _invoke("time")),
        broken=_block("minimax:tool_call", _invoke("weather", days="three")[:-20]),
        reasoning_parser="minimax_m2",
        thought="Hm.</think>\n\n",
    ),
    "seed_oss": Outputs(
        "seed_oss",
        one="Look:" + _xml("weather", city="Malmö", days=3).replace("tool_call", "seed:tool_call"),
        several=(_xml("weather", city="Rome") + "\n" + _xml("time")).replace(
            "tool_call", "seed:tool_call"
        ),
        broken=_xml("weather", days="three")
        .replace("</function>\n", "")
        .replace("tool_call", "seed:tool_call"),
        reasoning_parser="seed_oss",
        thought="<seed:think>Hm.</seed:think>",
    ),
    "longcat": Outputs(
        "longcat",
        one="Look:\n" + _block("longcat_tool_call", _json(TWO)),
        several=_block("longcat_tool_call", _json(ROME))
        + "\n"
        + _block("longcat_tool_call", _json("{}", name="time")),
        broken=_block("longcat_tool_call", _json(BROKEN)),
    ),
    "functiongemma": Outputs(
        "functiongemma",
        one=_escaped("weather", city="Malmö", days=3),
        several=_escaped("weather", city="Rome") + _escaped("time"),
        broken=_escaped("weather", city="Rome").replace("<escape>}", "}"),
    ),
    "dots": Outputs(
        "dots",
        one="Look:\n" + _block("dots_function_call", _invoke("weather", city="Malmö", days=3)),
        several=_block("dots_function_call", _invoke("weather", city="Rome"), _invoke("time")),
        broken=_block("dots_function_call", _invoke("weather", days="three")[:-20]),
    ),
    "apertus": Outputs(
        "apertus",
        one=f'Look:<|tools_prefix|>[{{"weather": {TWO}}}]<|tools_suffix|>',
        several=f'<|tools_prefix|>[{{"weather": {ROME}}}, {{"time": {{}}}}]<|tools_suffix|>',
        broken=f'<|tools_prefix|>[{{"weather": {BROKEN}}}]<|tools_suffix|>',
    ),
    "lfm2": Outputs(
        "lfm2",
        one='Look:<|tool_call_start|>[weather(city="Malmö", days=3)]<|tool_call_end|>',
        several='<|tool_call_start|>[weather(city="Rome"), time()]<|tool_call_end|>',
        broken="<|tool_call_start|>[weather(city=Rome Paris)]<|tool_call_end|>",
    ),
    "internlm": Outputs(
        "internlm",
        one=f"Look:<|action_start|><|plugin|>{_json(TWO, 'parameters')}<|action_end|>",
        several=f"<|action_start|><|plugin|>{_json('{}', 'parameters', 'time')}<|action_end|>",
        broken=f"<|action_start|><|plugin|>{_json(BROKEN, 'parameters')}<|action_end|>",
    ),
    "phi4_mini_json": Outputs(
        "phi4_mini_json",
        one=f"functools[{_json(TWO)}]",
        several=f"functools[{_json(ROME)}, {_json('{}', name='time')}]",
        broken=f"functools[{_json(BROKEN)}]",
    ),
    "granite_20b": Outputs(
        "granite-20b-fc",
        one=f"Look:<function_call> {_json(TWO)}",
        several=f"<function_call> {_json(ROME)}<function_call> {_json('{}', name='time')}",
        broken=f"<function_call> {_json(BROKEN)}",
    ),
    "minicpm5": Outputs(
        "minicpm5",
        one=_param("weather", city="Malmö", days=3),
        several=_param("weather", city="Rome") + "\n" + _param("time"),
        broken=_param("weather", days="three").replace("</param>", ""),
        reasoning_parser="qwen3",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "pythonic": Outputs(
        "pythonic",
        one='[weather(city="Malmö", days=3)]',
        several='[weather(city="Rome"), time()]',
        broken="[weather(city=Rome Paris)]",
    ),
    "held": Outputs(
        "held",
        one=f'{{"name":"weather","arguments":{TWO}}}',
        several='{"name":"time","arguments":{}}',  # it has one call in a reply
        broken='{"name":"weather","arguments":{"city":Rome}}',
        answer=f'{{"answer":"{ANSWER}"}}',
    ),
}

MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[THINK]", "[/THINK]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜ calls>", "</｜DSML｜ calls>"),
    *("<|open|>", "<|close|>", "<|sep|>", "<|message_model|>", "<|end_message|>"),
    *("<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"),
    *("<|content_invoke_tool_text|>", "<|content_tool_error|>"),
    *("<|content_model_end_sampling|>", "<|channel>", "<channel|>", "<|tool_call>"),
    *("<tool_call|>", '<|"|>', NAMESPACE, "<mm:think>", "</mm:think>", "<|start|>", "<|message|>"),
    *("<|eom|>", "<|eot|>", "<ifm|tool_calls>", "</ifm|tool_calls>", "<ifm|think>"),
    *("</ifm|think>", "<ifm|think_fast>", "</ifm|think_fast>", "<ifm|think_faster>"),
    *("</ifm|think_faster>", "<ifm|tool_call>", "</ifm|tool_call>"),
    *("<tool_calls>", "</tool_calls>", "<tool_sep>", "<｜tool_calls_begin｜>"),
    *("<｜tool_calls_end｜>", "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"),
    *("<|tool_call|>", "<seed:think>", "</seed:think>", "<seed:tool_call>"),
    *("</seed:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>"),
    *("<|tools_prefix|>", "<|tools_suffix|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|action_start|>", "<|action_end|>", "<|plugin|>", "<response>", "</response>"),
    "<assistant>",
)
"""Of all families: tokens of their own in the tokenizers of their models."""
