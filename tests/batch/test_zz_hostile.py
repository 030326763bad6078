from __future__ import annotations
import gzip, json, os
from pathlib import Path
import pytest
from tests.batch.conftest import Records, lines
from tests.cli.conftest import Run, Write

STR = """
from agentrt import score
@program
async def ask(ctx, question: str):
    return (await ctx.llm(question)).text
"""


def prog(body, top=""):
    return f"from agentrt import score\n{top}\n@program\nasync def ask(ctx, q):\n" + "".join(
        f"    {l}\n" for l in body.split("\n")
    )


ONE = b'{"id": 1, "input": "tea"}\n'
CASES = [
    ("empty file", "x.jsonl", b"", []),
    ("blank lines", "x.jsonl", b"\n\n  \n", []),
    ("nul bytes", "x.jsonl", b"\0\0\0\n", []),
    ("bom utf16", "x.jsonl", '{"input": "a"}\n'.encode("utf-16"), []),
    ("list in jsonl", "x.jsonl", b'["a", "b"]\n', []),
    ("number record", "x.jsonl", b"5\n", []),
    ("null record", "x.jsonl", b"null\n", []),
    ("true id", "x.jsonl", b'{"id": true, "input": "a"}\n', []),
    ("float id", "x.jsonl", b'{"id": 1.5, "input": "a"}\n', []),
    ("same id other type", "x.jsonl", b'{"id": 1, "input": "a"}\n{"id": "1", "input": "b"}\n', []),
    ("empty id", "x.jsonl", b'{"id": "", "input": "a"}\n', []),
    ("newline id", "x.jsonl", b'{"id": "a\\nb", "input": "a"}\n', []),
    ("escape id", "x.jsonl", b'{"id": "\\u001b[31mred", "input": "a"}\n', []),
    ("nan", "x.jsonl", b'{"id": 1, "input": NaN}\n', []),
    ("deep", "x.jsonl", b"[" * 100000 + b"]" * 100000 + b"\n", []),
    ("input null", "x.jsonl", b'{"id": 1, "input": null}\n', []),
    ("input missing second", "x.jsonl", ONE + b'{"id": 2, "question": "b"}\n', []),
    ("dup keys", "x.jsonl", b'{"id": 1, "id": 2, "input": "a", "input": "b"}\n', []),
    ("crlf", "x.jsonl", b'{"id": 1, "input": "a"}\r\n{"id": 2, "input": "b"}\r\n', []),
    ("json object", "x.json", b'{"data": [{"input": "a"}]}', []),
    ("json empty list", "x.json", b"[]", []),
    ("csv header only", "x.csv", b"id,input\n", []),
    ("csv ragged", "x.csv", b"id,input\n1,a,b\n", []),
    ("csv quote", "x.csv", b'id,input\n1,"a\n', []),
    ("csv nul", "x.csv", b"id,input\n1,a\0b\n", []),
    ("csv semicolon", "x.csv", b"id;input\n1;a\n", []),
    ("parquet not", "x.parquet", b"hello", []),
    ("gz not", "x.jsonl.gz", b"hello", []),
    ("gz cut", "x.jsonl.gz", gzip.compress(ONE * 1000)[:-20], []),
    ("zst not", "x.jsonl.zst", b"hello", []),
    ("unknown suffix", "x.txt", ONE, []),
    ("folder", None, None, []),
    ("missing", "MISSING", None, []),
    ("limit 0", "x.jsonl", ONE, ["--limit", "0"]),
    ("limit neg", "x.jsonl", ONE, ["--limit", "-3"]),
    ("limit huge", "x.jsonl", ONE, ["--limit", "1e9"]),
    ("samples 0", "x.jsonl", ONE, ["--samples", "0"]),
    ("samples huge", "x.jsonl", ONE, ["--samples", "99999999"]),
    ("max-live 0", "x.jsonl", ONE, ["--max-live", "0"]),
    ("timeout 0", "x.jsonl", ONE, ["--timeout", "0"]),
    ("timeout nan", "x.jsonl", ONE, ["--timeout", "nan"]),
    ("timeout inf", "x.jsonl", ONE, ["--timeout", "inf"]),
    ("stop 0", "x.jsonl", ONE, ["--stop-when", "0%"]),
    ("stop 101", "x.jsonl", ONE, ["--stop-when", "101%"]),
    ("stop 99", "x.jsonl", ONE, ["--stop-when", "99"]),
    ("stop neg", "x.jsonl", ONE, ["--stop-when=-5%"]),
    ("stop 1", "x.jsonl", ONE, ["--stop-when", "1"]),
    ("where regex", "x.jsonl", ONE, ["--where", "input~["]),
    ("where ok regex", "x.jsonl", ONE, ["--where", "input~(a+)+$"]),
    ("where none", "x.jsonl", ONE, ["--where", "id=7"]),
    ("retry first", "x.jsonl", ONE, ["--retry", "failed"]),
    ("retry bad", "x.jsonl", ONE, ["--retry", "everything"]),
    ("tokens same", "x.jsonl", ONE, ["--tokens", "{out}"]),
    ("tokens=inputs", "x.jsonl", ONE, ["--tokens", "{inputs}"]),
    ("out=program", "x.jsonl", ONE, ["--out", "{program}"]),
    ("out=dev/full", "x.jsonl", ONE, ["--out", "/dev/full"]),
    ("out=dev/null", "x.jsonl", ONE, ["--out", "/dev/null"]),
    ("out=symlink to folder", "x.jsonl", ONE, ["--out", "{link}"]),
    ("out dangling", "x.jsonl", ONE, ["--out", "{dangling}"]),
    ("out long name", "x.jsonl", ONE, ["--out", "{tmp}/" + "r" * 250]),
    ("out name max", "x.jsonl", ONE, ["--out", "{tmp}/" + "r" * 300]),
    ("inputs twice", "x.jsonl", ONE, ["--inputs", "{inputs}"]),
    ("field both", "x.jsonl", ONE, ["--input-field", "id"]),
    ("field nested", "x.jsonl", b'{"id": 1, "a": {"b": "c"}}\n', ["--input-field", "a.b"]),
    ("score missing", "x.jsonl", ONE, ["--score", "nothing.py"]),
    ("score cmd missing", "x.jsonl", ONE, ["--score", "cmd:/no/such/cmd"]),
    ("score cmd text", "x.jsonl", ONE, ["--score", "cmd:echo hello"]),
    ("score cmd nan", "x.jsonl", ONE, ["--score", "cmd:echo NaN"]),
    ("score cmd nothing", "x.jsonl", ONE, ["--score", "cmd:true"]),
    ("score cmd huge", "x.jsonl", ONE, ["--score", "cmd:head -c 50000000 /dev/zero"]),
    ("price words", "x.jsonl", ONE, ["--price", "a,b"]),
    ("price inf", "x.jsonl", ONE, ["--price", "inf,1"]),
]


@pytest.mark.parametrize("case", CASES, ids=[c[0].replace(" ", "_") for c in CASES])
def test_inputs(case, write, command, tmp_path):
    name, file, data, opts = case
    program = write(STR)
    (tmp_path / "dir").mkdir()
    os.symlink(tmp_path / "dir", tmp_path / "link")
    os.symlink(tmp_path / "nowhere.jsonl", tmp_path / "dangling")
    inputs = tmp_path / (file or "dir")
    if data is not None:
        inputs.write_bytes(data)
    places = dict(
        tmp=tmp_path,
        out=tmp_path / "r.jsonl",
        inputs=inputs,
        program=program,
        link=tmp_path / "link",
        dangling=tmp_path / "dangling",
    )
    opts = [o.format(**places) for o in opts]
    if "--out" not in opts:
        opts += ["--out", str(places["out"])]
    ran = command("run", program, "--inputs", inputs, *opts)
    left = sorted(
        p.name[:40]
        for p in tmp_path.iterdir()
        if p.name not in ("dir", "link", "dangling", "__pycache__", program.name, inputs.name)
    )
    with open("/tmp/b48/hostile.out", "a") as f:
        err = ran.err.replace(str(tmp_path), "T")
        if ran.code == 0:
            err = err[-300:]
        f.write(f"--- {name}: rc={ran.code} left={left}\n{err[:900]}\n")
    assert "Traceback" not in ran.err


PROGS = [
    ("reward nan", prog("ctx.reward(float('nan'))\nreturn 1")),
    ("reward inf", prog("ctx.reward(float('inf'))")),
    ("reward text", prog("ctx.reward('1')")),
    ("reward none", prog("ctx.reward(None)")),
    ("reward bool", prog("ctx.reward(True)\nreturn 1")),
    ("reward huge", prog("ctx.reward(10**400)")),
    (
        "reward numpy",
        prog("import numpy\nctx.reward(numpy.float32(0.5))\nctx.reward(numpy.array([1.0]))"),
    ),
    ("reward two args", prog("ctx.reward(1, 2)")),
    (
        "reward decimal",
        prog(
            "from decimal import Decimal\nfrom fractions import Fraction\nctx.reward(Decimal('0.5'))\nctx.reward(Fraction(1,3))"
        ),
    ),
    ("result nan", prog("return float('nan')")),
    ("result object", prog("return object()")),
    ("result surrogate", prog("return '\\ud800'")),
    ("result cycle", prog("a=[]\na.append(a)\nreturn a")),
    ("result huge int", prog("return 10**5000")),
    ("result bytes keys", prog("return {b'a': 1, (1,2): 2}")),
    ("raises SystemExit", prog("raise SystemExit(3)")),
    ("raises KeyboardInterrupt", prog("raise KeyboardInterrupt")),
    (
        "raises weird str",
        prog("class E(Exception):\n    def __str__(self): raise ValueError('x')\nraise E()"),
    ),
    ("raises huge", prog("raise ValueError('x'*10**6)")),
    ("recursion", prog("def f(): return f()\nreturn f()")),
    (
        "score raises SystemExit",
        prog("return 1") + "\n@score\ndef s(record, result): raise SystemExit(1)\n",
    ),
    ("score nan", prog("return 1") + "\n@score\ndef s(record, result): return float('nan')\n"),
    ("score text", prog("return 1") + "\n@score\ndef s(record, result): return 'good'\n"),
    (
        "score dict nested",
        prog("return 1") + "\n@score\ndef s(record, result): return {'a': {'b': 1}}\n",
    ),
    (
        "score dict keys",
        prog("return 1") + "\n@score\ndef s(record, result): return {1: 1, '': 2}\n",
    ),
    ("score generator", prog("return 1") + "\n@score\ndef s(record, result):\n    yield 1\n"),
    ("score huge", prog("return 1") + "\n@score\ndef s(record, result): return 10**400\n"),
    (
        "score mutates",
        prog("return {'a': 1}")
        + "\n@score\ndef s(record, result):\n    result.clear()\n    record.clear()\n    return 1\n",
    ),
    ("two programs", prog("return 1") + "\n@program\nasync def other(ctx, q): return 2\n"),
    ("no input", "@program\nasync def ask(ctx):\n    return 1\n"),
]


@pytest.mark.parametrize("case", PROGS, ids=[c[0].replace(" ", "_") for c in PROGS])
def test_progs(case, write, command, tmp_path, records):
    name, text = case
    program = write(text)
    out = tmp_path / "r.jsonl"
    ran = command("run", program, "--inputs", records([{"id": 1, "input": "tea"}]), "--out", out)
    with open("/tmp/b48/hostile.out", "a") as f:
        line = out.read_bytes()[:600].decode("utf-8", "replace") if out.exists() else "no file"
        f.write(
            f"--- {name}: rc={ran.code}\n{ran.err.replace(str(tmp_path), 'T')[-500:]}\nLINE {line}\n"
        )
    assert "Traceback" not in ran.err


DIFFS = [
    ("missing", None, b""),
    ("empty both", b"", b""),
    ("not results", b'{"a":1}\n', b'{"a":1}\n'),
    ("nan", b"NaN\n", b"NaN\n"),
    ("binary", bytes(range(256)), b""),
    ("state", b'{"id":"1","sample":0,"state":"odd"}\n', b""),
    (
        "types",
        b'{"id":"1","sample":0,"state":"done","seconds":"x","scores":5}\n',
        b'{"id":"1","sample":0,"state":"done","seconds":"x","scores":5}\n',
    ),
    (
        "scores text",
        b'{"id":"1","sample":0,"state":"done","scores":{"a":"x"}}\n',
        b'{"id":"1","sample":0,"state":"done","scores":{"a":1}}\n',
    ),
    (
        "tokens null",
        b'{"id":"1","sample":0,"state":"done","calls":null,"prompt_tokens":"many"}\n',
        b'{"id":"1","sample":0,"state":"done","calls":null}\n',
    ),
    (
        "scores null",
        b'{"id":"1","sample":0,"state":"done","scores":null,"score_errors":null}\n',
        b'{"id":"1","sample":0,"state":"done","scores":null}\n',
    ),
    (
        "neg sample",
        b'{"id":"1","sample":-1,"state":"done","attempt":"x"}\n',
        b'{"id":"1","sample":true,"state":"done","over":5,"digest":7}\n',
    ),
    (
        "id null",
        b'{"id":null,"sample":0,"state":"done","error":5}\n',
        b'{"id":null,"sample":0,"state":"failed","error":{"a":1}}\n',
    ),
    (
        "no newline",
        b'{"id":"1","sample":0,"state":"done"}',
        b'{"id":"1","sample":0,"state":"done"}\n',
    ),
]


@pytest.mark.parametrize("case", DIFFS, ids=[c[0].replace(" ", "_") for c in DIFFS])
def test_diffs(case, command, tmp_path):
    name, a, b = case
    for n, d in (("a", a), ("b", b)):
        if d is not None:
            (tmp_path / f"{n}.jsonl").write_bytes(d)
    with open("/tmp/b48/hostile.out", "a") as f:
        for args in (
            ("results", "diff", tmp_path / "a.jsonl", tmp_path / "b.jsonl"),
            ("results", "show", tmp_path / "a.jsonl"),
            ("results", "diff", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--id", "1"),
        ):
            try:
                ran = command(*args)
                f.write(
                    f"--- diff {name} {args[1]} {args[2:][-1] if '--id' in args else ''}: rc={ran.code}\n{ran.said.replace(str(tmp_path), 'T')[:600]}\n"
                )
                assert "Traceback" not in ran.said
            except Exception as e:
                f.write(f"--- diff {name} {args[1]}: RAISED {type(e)} {e}\n")
