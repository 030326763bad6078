"""Records of all formats, and each kind that cannot be used."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import zstandard

from agentrt.batch import Condition, Fields, InputFile
from agentrt.batch.inputs import InputsError
from agentrt.errors import UsageError

RECORDS = [{"id": "a", "q": "one", "level": 1}, {"id": "b", "q": "two,\n2", "level": 5}]


def jsonl(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(each) for each in RECORDS), "utf-8")


def json_list(path: Path) -> None:
    path.write_text(json.dumps(RECORDS, indent=1), "utf-8-sig")


def csv(path: Path) -> None:
    path.write_text('id,q,level\r\na,one,1\r\nb,"two,\n2",5\r\n', "utf-8-sig")


def tsv(path: Path) -> None:
    path.write_text('id\tq\tlevel\na\tone\t1\nb\t"two,\n2"\t5\n', "utf-8")


@pytest.mark.parametrize(
    ("name", "write"), [("x.jsonl", jsonl), ("x.json", json_list), ("x.csv", csv), ("x.tsv", tsv)]
)
def test_each_format_is_read_again_and_again(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / name)
    inputs = InputFile(str(tmp_path / name), Fields("q"), conditions=[Condition.parse("level>=1")])
    for _ in range(2):
        assert [(item.id, item.input) for item in inputs] == [("a", "one"), ("b", "two,\n2")]
    assert inputs.check(lambda raw_value: raw_value) == 2


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("write", [jsonl, csv])
def test_compressed_files(suffix: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    """They are read to their end, and what is cut off is told of."""
    path = tmp_path / f"x.{write.__name__}"
    write(path)
    raw = path.read_bytes()
    packed = gzip.compress(raw) if suffix == ".gz" else zstandard.compress(raw)
    file = path.with_name(path.name + suffix)
    file.write_bytes(packed)
    inputs = InputFile(str(file), Fields("q"))
    for _ in range(2):
        assert [item.input for item in inputs] == ["one", "two,\n2"]
    for broken in (packed[:-9], b"not compressed", b""):
        file.write_bytes(broken)
        with pytest.raises(UsageError):
            InputFile(str(file)).check(lambda raw_value: raw_value)


def test_rows_of_parquet_become_records(tmp_path: Path) -> None:
    """Also of several row groups, and of more rows than are read at a time."""
    path = tmp_path / "x.parquet"
    records = [{**RECORDS[0], "q": f"question {number}"} for number in range(600)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=250)
    assert [item.record for item in InputFile(str(path), Fields("q"))] == records


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["q", "q"]),
            "two columns have the same name",
        ),
        (
            pyarrow.table({"q": pyarrow.array([2**62], pyarrow.timestamp("us"))}),
            "cannot be read as a Parquet file: date value out of range",
        ),
    ],
)
def test_parquet_that_is_no_table_of_records(
    table: pyarrow.Table, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(UsageError, match=says):
        InputFile(str(path)).check(lambda raw_value: raw_value)


@pytest.mark.parametrize(
    ("name", "unknown"), [("x.txt", ".txt"), ("x.txt.gz", ".txt"), ("x.gz", "x.gz"), ("x", "x")]
)
def test_the_ending_that_is_not_known_is_named(name: str, unknown: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(UsageError, match=re.escape(f"unknown kind of file {unknown!r};")):
        InputFile(str(path))


def test_without_pyarrow_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"pip install .*\[parquet\]"):
        InputFile(str(path))


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1}\n{"id": 2}\n',
        '\n[{"id": 1},\n {"id": 2}]',
        "id,q\n1,a\n2,b\n",
        "q\tid\na\t1\nb,c\t2\n",
        '"tea, or"\n"coffee"\n',
    ],
)
def test_the_standard_input_is_of_any_format(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    inputs = InputFile("-")
    assert [item.id for item in inputs] == [item.id for item in inputs] == ["1", "2"]
    inputs.close()


def items(tmp_path: Path, records: list[Any], **options: Any) -> list[tuple[str, Any]]:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
    return [(item.id, item.input) for item in InputFile(str(path), **options)]


def test_what_is_the_id_and_the_input_where_nothing_is_named(tmp_path: Path) -> None:
    assert items(tmp_path, ["tea", "coffee"]) == [("1", "tea"), ("2", "coffee")]
    assert items(tmp_path, [{"x": 1}]) == [("1", {"x": 1})]
    assert items(tmp_path, [{"id": 7, "input": "tea"}]) == [("7", "tea")]
    assert items(tmp_path, [{"id": 7, "name": "n", "q": "tea"}], fields=Fields("q", "name")) == [
        ("n", "tea")
    ]


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("level=5", ["b"]),
        ("level!=5", ["a"]),
        ("level>1", ["b"]),
        ("level<=1", ["a"]),
        ("q<p", ["a"]),
        ("q=one", ["a"]),
        ("q == 'one'", ["a"]),
        ("q=one'", []),
        ("level==5", ["b"]),
        ("q~^t", ["b"]),
        ("level~5", ["b"]),
        ("some", None),
        ("q~(", None),
    ],
)
@pytest.mark.parametrize("write", [jsonl, csv])
def test_conditions(
    condition: str, ids: list[str] | None, write: Callable[[Path], None], tmp_path: Path
) -> None:
    """Of a CSV file, whose values are all text, they hold as of JSON."""
    path = tmp_path / f"x.{write.__name__}"
    write(path)
    if ids is None:
        with pytest.raises(UsageError, match="--where"):
            Condition.parse(condition)
    else:
        inputs = InputFile(str(path), conditions=[Condition.parse(condition)])
        assert [item.id for item in inputs] == ids


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("level>=3", ["a"]),
        ("level<3", ["b"]),
        ("level!=3", ["b", "c", "d", "e"]),
        ("level=n/a", ["c"]),
        ("level>'c'", ["c"]),
    ],
)
def test_a_text_is_neither_less_nor_greater_than_a_number(
    condition: str, ids: list[str], tmp_path: Path
) -> None:
    """A field of a CSV file that is empty, or has a text in place of a number."""
    path = tmp_path / "x.csv"
    path.write_text("id,level\na,3\nb,1\nc,n/a\nd,\ne,NaN\n", "utf-8")
    inputs = InputFile(str(path), conditions=[Condition.parse(condition)])
    assert [item.id for item in inputs] == ids


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("day=2024-05-01", ["a"]),
        ("day!=2024-05-01", ["b"]),
        ("day>2024-05-01", ["b"]),
        ("day~^2024", ["a"]),
        ("at=2024-05-01T08:30:00Z", ["a"]),
        ("at='2024-05-01 08:30:00'", ["a"]),
        ("at<2025-01-01", ["a"]),
        ("at<=next year", []),
        ("clock>=12:00", ["b"]),
        ("price=0.10", ["a"]),
        ("price<1", ["a"]),
    ],
)
def test_conditions_on_dates_and_decimals_of_parquet(
    condition: str, ids: list[str], tmp_path: Path
) -> None:
    path, zone = tmp_path / "x.parquet", datetime.UTC
    moments = [
        datetime.datetime(2024, 5, 1, 8, 30, tzinfo=zone),
        datetime.datetime(2025, 2, 3, 13, 0, tzinfo=zone),
    ]
    table = {
        "id": ["a", "b"],
        "day": [moment.date() for moment in moments],
        "at": moments,
        "clock": [moment.time() for moment in moments],
        "price": [Decimal("0.10"), Decimal("2.50")],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    inputs = InputFile(str(path), conditions=[Condition.parse(condition)])
    assert [item.id for item in inputs] == ids


def test_the_limit_counts_what_the_conditions_leave(tmp_path: Path) -> None:
    records = [{"id": number, "even": number % 2 == 0} for number in range(10)]
    conditions = [Condition.parse("even=true")]
    outcome = items(tmp_path, records, conditions=conditions, limit=2)
    assert [item_id for item_id, _ in outcome] == ["0", "2"]


def test_records_after_the_limit_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n{"id": 2}\n{"id"\n', "utf-8")
    inputs = InputFile(str(tmp_path / "x.jsonl"), limit=2)
    assert inputs.check(lambda raw_value: raw_value) == 2
    assert [item.id for item in inputs] == ["1", "2"]


BROKEN = [
    ("x.jsonl", b'{"id": 1}\n{"id"\n{"id": 2}\n', {"line 2": "not JSON"}),
    ("x.jsonl", b'{"id": 1}\n\xff\n', {"line 2": "not UTF-8"}),
    ("x.jsonl", b'{"id": 1}\n{"id": NaN}\n', {"line 2": "not JSON"}),
    ("x.jsonl", b'{"id": 1}\n' + b"9" * 5000 + b"\n", {"line 2": "more than 4,300 digits"}),
    ("x.jsonl", b'{"id": 1}\n{"x": 1}\n"tea"\n', {"line 2": "no field 'id'", "line 3": "a text"}),
    ("x.jsonl", b'{"id": 1}\n{"id": ""}\n{"id": [1]}\n', {"line 2": "id ''", "line 3": "id [1]"}),
    ("x.jsonl", b'{"id": 1}\n{"id": 2}\n{"id": "1"}\n', {"line 3": "first in line 1"}),
    ("x.jsonl", b'{"id": 1}\n{"id": "\\ud800"}\n', {"line 2": "invalid id"}),
    ("x.jsonl", b'{"id": 1}\n{"id": true}\n{"id": 1.5}\n', {"line 2": "True", "line 3": "1.5"}),
    ("x.jsonl", b'[\n{"id": 1},\n', {"line 1": ".json", "line 2": "not JSON"}),
    ("x.csv", b"id,q\na,b\nc\nd,e,f\n", {"line 3": "1 values", "line 4": "3 values"}),
    ("x.csv", b'id,q\na,b\nc,"d"e\n', {"line 3": "bad CSV"}),
]


@pytest.mark.parametrize(("name", "content", "problems"), BROKEN)
def test_each_record_that_cannot_be_used_is_one_line(
    name: str, content: bytes, problems: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputsError, match="nothing was run") as raised:
        InputFile(str(tmp_path / name)).check(lambda raw_value: raw_value)
    said = raised.value.problems
    assert len(said) == len(problems), said
    for line, (place, reason) in zip(said, problems.items(), strict=True):
        assert f"{name}, {place}: " in line
        assert reason in line
        assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.json", b'{"id": 1}', "give a JSON list"),
        ("x.json", b'{"id": 1}\n{"id": 2}\n', ".jsonl"),
        ("x.json", b"\xff", "UTF-8"),
        ("x.csv", b"", "name the columns"),
        ("x.csv", b"a,a\n1,2\n", "occurs twice"),
        ("x.csv", b"a\n\xff\n", "UTF-8"),
        ("x.csv", b"a;b\n1;2\n", "has ';' between its names"),
        ("x.csv", b"a\tb\n1\t2\n", "rename the file"),
        ("x.jsonl", b"", "x.jsonl: the file has no records"),
        ("x.txt", b"", "must end in .jsonl"),
        ("none.jsonl", None, "no such file"),
        (".", None, "directory"),
    ],
)
def test_files_that_cannot_be_used(
    name: str, content: bytes | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        InputFile(str(path)).check(lambda raw_value: raw_value)
    assert says in str(raised.value)


def test_a_condition_on_a_field_that_no_record_has(tmp_path: Path) -> None:
    jsonl(tmp_path / "x.jsonl")
    inputs = InputFile(str(tmp_path / "x.jsonl"), conditions=[Condition.parse("lvl=5")])
    with pytest.raises(InputsError, match="no record has the field 'lvl'"):
        inputs.check(lambda raw_value: raw_value)


def test_many_broken_records_are_told_of_in_part(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n" * 1000, "utf-8")
    with pytest.raises(InputsError, match="1000 of 1000 records") as raised:
        InputFile(str(tmp_path / "x.jsonl")).check(lambda raw_value: raw_value)
    assert len(raised.value.problems) == 20


def test_many_records_with_the_same_id_do_not_read_the_file_for_each(tmp_path: Path) -> None:
    reads = []

    class Counted(InputFile):
        def _records(self) -> Iterator[tuple[str, Any]]:
            reads.append(self)
            return super()._records()

    (tmp_path / "x.jsonl").write_text('{"id": "same"}\n' * 1000, "utf-8")
    with pytest.raises(InputsError, match="999 of 1000 records") as raised:
        Counted(str(tmp_path / "x.jsonl")).check(lambda raw_value: raw_value)
    assert len(raised.value.problems) == 20
    assert len(reads) <= 21


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_data_without_a_name_that_says_so(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    jsonl(path)
    path.write_bytes(compress(path.read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    for name in (str(path), "-"):
        inputs = InputFile(name)
        assert [[item.id for item in inputs] for _ in range(2)] == [["a", "b"]] * 2
        inputs.close()
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UsageError, match="cannot be read"):
        list(InputFile(str(path)))


def test_zstandard_frames_follow_each_other_and_each_may_be_cut_off(tmp_path: Path) -> None:
    frames = [zstandard.compress(f'{{"id": "{name}"}}\n'.encode()) for name in "ab"]
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(b"".join(frames))
    assert [item.id for item in InputFile(str(path))] == ["a", "b"]
    for cut in (len(frames[0]) - 1, len(frames[0]) + 6, len(frames[0] + frames[1]) - 1):
        path.write_bytes(b"".join(frames)[:cut])
        with pytest.raises(UsageError, match="cannot be read"):
            list(InputFile(str(path)))


def test_a_whole_record_that_is_no_input_is_told_of_its_fields(tmp_path: Path) -> None:
    def accept(raw_value: Any) -> None:
        if not isinstance(raw_value, str):
            raise UsageError("not a text")

    jsonl(tmp_path / "x.jsonl")
    with pytest.raises(InputsError, match="name it with --input-field"):
        InputFile(str(tmp_path / "x.jsonl")).check(accept)
    assert InputFile(str(tmp_path / "x.jsonl"), Fields("q")).check(accept) == 2
