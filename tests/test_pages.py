"""Every page of every fixture answers, and its figures are the known ones.

What is known comes from the ground truth of a fixture (``expected.json``, the
findings and the verdict of ``case.json``), from the files themselves, or from
the judgement of the directory; never from the index that the pages show.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import index_help as help_
import pytest
from browse_help import Site, site

from cursus.findings import CATALOGUE
from cursus.formats.record import Record, decode, encode_frame
from inspect_db import verdict
from inspect_db.datasette import addresses, drawing, pages
from inspect_db.queries_catalogue import named_queries
from inspect_db.record_fields import fields_of
from inspect_db.values import from_name

HEALTHY = ["small-healthy", "shop-healthy", "shop-killed"]
CAPTURES = [name for name in help_.FIXTURES if (help_.ROOT / name / "expected.json").exists()]
GIVEN = {"key": "quote-0001", "group": "billing"}


def truth(name: str) -> dict[str, Any]:
    return json.loads((help_.ROOT / name / "expected.json").read_text("utf-8"))


def case(name: str) -> dict[str, Any]:
    return json.loads((help_.ROOT / name / "case.json").read_text("utf-8"))


def home(name: str) -> str:
    return f"/-/cursus/{name}"


def part(value: str | bytes) -> str:
    return addresses.encode(value)


def own_links(page: str, name: str) -> set[str]:
    """Addresses of pages of ours that a page links to."""
    return {
        link.replace("&amp;", "&")
        for link in re.findall(r'href="([^"#]+)"', page)
        if link.startswith(home(name))
    }


# -- every page of every fixture ------------------------------------------------------------


@pytest.mark.parametrize("name", list(help_.FIXTURES))
def test_every_fixture(name: str) -> None:
    """Every page and query answers; the first page says what the case and the directory say."""
    every_page_answers(name)
    every_query_answers(name)
    the_first_page_says_what_the_case_expects(name)
    verdict_and_counts_are_those_of_the_directory(name)


def every_page_answers(name: str) -> None:
    """From the first page by its links: groups, topics, partitions, the bytes of findings."""
    own = site(name)
    seen: set[str] = set()
    kinds: Counter[str] = Counter()
    waiting = [f"{home(name)}/"]
    while waiting:
        path = waiting.pop(0)
        kind = (path.removeprefix(home(name)) + "/").split("/")[1]
        if path in seen or kinds[kind] >= 6:
            continue
        seen.add(path)
        kinds[kind] += 1
        response = own.get(path, follow_redirects=True)
        if path.endswith("inventory.json") and not has_inventory(name):
            assert response.status_code == 404
            continue
        assert response.status_code == 200, (path, response.text[-500:])
        if path.endswith(".json"):
            json.loads(response.text)
            continue
        waiting += sorted(own_links(response.text, name))
    assert {"", "verdict.json"} <= set(kinds)


def every_query_answers(name: str) -> None:
    own, connection = site(name), sqlite3.connect(help_.built(name))
    for query in named_queries().values():
        given = {p.name: GIVEN[p.name] for p in query.parameters if p.required}
        response = own.get(f"/{name}/query-{query.name}.json", params=given)
        assert response.status_code == 200, (query.name, response.text)
        direct = connection.execute(query.sql, query.bind(given)).fetchmany(1000)
        assert response.json()["rows"] == json.loads(json.dumps(direct, default=as_datasette))
    connection.close()


def as_datasette(value: bytes) -> Any:
    """Bytes in the JSON of Datasette."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        pass
    return {"$base64": True, "encoded": base64.b64encode(value).decode("latin-1")}


def has_inventory(name: str) -> bool:
    connection = sqlite3.connect(help_.built(name))
    found = connection.execute("select inventory is not null from build").fetchone()[0]
    connection.close()
    return bool(found)


def the_first_page_says_what_the_case_expects(name: str) -> None:
    document = site(name).json(f"{home(name)}/overview.json")
    broker = case(name)["broker"]
    word = {"starts": "starts_clean"}.get(broker["effect"], broker["effect"])
    if word == "undetermined" and os.geteuid() == 0:
        return  # this account may read everything
    assert document["build"]["verdict"] == word
    if broker["effect"] == "refuses":
        code = document["first_cause"]["code"]
        assert broker["code"] in {code, *CATALOGUE[code].also_named}
        assert document["first_cause"]["step"] == broker["step"]
        outcomes = {step["step"]: step["outcome"] for step in document["steps"]}
        assert outcomes[broker["step"]] == "refuses"
        assert all(
            outcome == "passed" or step >= broker["step"] for step, outcome in outcomes.items()
        )


def verdict_and_counts_are_those_of_the_directory(name: str) -> None:
    own, plan = site(name), help_.judged(name)
    found = own.get(f"{home(name)}/verdict.json")
    assert found.headers["content-type"] == "application/json; charset=utf-8"
    assert found.text == json.dumps(verdict.verdict_json(plan), indent=2) + "\n"
    document = own.json(f"{home(name)}/overview.json")
    assert document["findings_total"] == len(plan.findings)
    assert [step["outcome"] for step in document["steps"]] == [s.outcome for s in plan.steps]
    assert sum(action["total"] for action in document["actions"]) == len(plan.actions)
    cause = document["first_cause"]
    assert (cause and cause["code"]) == (plan.first_cause and plan.first_cause.code)


@pytest.mark.parametrize("name", CAPTURES)
def test_the_inventory_is_that_of_the_reference_byte_for_byte(name: str) -> None:
    reference = help_.ROOT / name / "inventory.json"
    found = site(name).get(f"{home(name)}/inventory.json")
    if reference.exists():
        assert found.content == reference.read_bytes()
    else:
        assert found.status_code == 404
        assert found.json()["ok"] is False


# -- captures with ground truth ---------------------------------------------------------------


@pytest.mark.parametrize("name", HEALTHY)
def test_groups(name: str) -> None:
    own, expected = site(name), truth(name)["consumer_groups"]
    assert own.json(f"{home(name)}/overview.json")["groups_total"] == len(expected)
    for group, want in expected.items():
        found = own.json(f"{home(name)}/group/{part(group)}.json")
        assert (found["group"], found["state"], found["epoch"]) == (
            group,
            want["state"],
            want["epoch"],
        )
        if want["state"] != "live":
            continue
        assert (found["topic"], found["partition_count"]) == (
            want["topic"],
            want["partition_count"],
        )
        committed: dict[str, dict[str, int]] = {}
        for item in found["committed"]:
            committed.setdefault(item["topic"], {})[str(item["partition"])] = item[
                "committed_offset"
            ]
            assert item["revision"] == want["revisions"][item["topic"]]
        assert committed == {
            topic: offsets for topic, offsets in want["committed"].items() if offsets
        }
        assert found["committed_total"] == sum(map(len, want["committed"].values()))
        (current,) = [r for e in found["epochs"] for r in e["records"] if r["mark"] == "counts"]
        assert current["epoch"] == want["epoch"]
        for epoch in found["epochs"]:
            for item in epoch["revisions"]:
                assert (item["mark"] == "counts") <= (epoch["epoch"] == want["epoch"])


@pytest.mark.parametrize("name", HEALTHY)
def test_topics_and_partitions(name: str) -> None:
    own, known = site(name), truth(name)
    for topic, want in known["topics"].items():
        found = own.json(f"{home(name)}/topic/{part(topic)}.json")
        assert found["parts_total"] == len(want["partitions"])
        if want.get("definition"):
            assert found["definition"]["partitions"] == want["definition"]["partitions"]
            policy = want["definition"]["policy"]["cleanup_policy"]
            assert found["definition"]["cleanup_policy"] == policy
        consumers = [
            g for g, item in known["consumer_groups"].items() if item.get("topic") == topic
        ]
        assert {item["group_name"] for item in found["groups"]} == set(consumers)
        for item in want["partitions"]:
            page = own.json(f"{home(name)}/topic/{part(topic)}/{item['partition']}.json")
            assert page["log_start"] == item["log_start_base"]
            assert page["first_offset"] == item["first_offset"]
            assert page["log_end"] == item["log_end"]
            assert page["record_count"] == item["records"]
            assert page["hwm_checkpoint"] == item["hwm_checkpoint"]
            live = [s for s in page["segments"] if not s["deleted"]]
            assert [(s["base_offset"], s["first_offset"], s["last_offset"]) for s in live] == [
                (s["base_offset"], s["first_offset"], s["last_offset"]) for s in item["segments"]
            ]


def frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each frame of a log that is whole."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield at, data[at:end]
        at = end


@cache
def ids(name: str) -> dict[str, int]:
    paths: Any = help_.rows(help_.built(name), "select path, file_id from files")
    return {from_name(path): number for path, number in paths}


@pytest.mark.parametrize("log", ["orders/partition_1_segment_00000000000000000000.log"])
def test_records_and_their_neighbours(log: str) -> None:
    name = "small-healthy"
    own = site(name)
    known = list(frames(help_.log_dir(name) / log))
    file_id = ids(name)[log]
    for at in (0, 1, len(known) - 1):
        position, data = known[at]
        page = own.json(f"{home(name)}/record/{file_id}/{position}.json")
        record = decode(data[4:])
        assert page["bytes"]["hex"] == data.hex()
        assert (
            page["bytes"]["decoded"]["offset"] == record.offset == page["record"]["record_offset"]
        )
        assert page["bytes"]["decoded"]["payload"].encode() == record.payload
        assert "".join(field["raw"] for field in page["bytes"]["fields"]) == data.hex()
        before, behind = page["neighbours"]["previous"], page["neighbours"]["next"]
        if at:
            assert before == {"file_id": file_id, "position": known[at - 1][0]}
        else:
            assert before is None
        if at + 1 < len(known):
            assert behind == {"file_id": file_id, "position": known[at + 1][0]}


def test_neighbours_go_over_the_border_of_a_segment() -> None:
    name, folder = "small-healthy", help_.log_dir("small-healthy")
    first = "orders/partition_0_segment_00000000000000000000.log"
    second = sorted(folder.glob("orders/partition_0_segment_*.log"))[1]
    last = list(frames(folder / first))[-1][0]
    other = ids(name)[f"orders/{second.name}"]
    page = site(name).json(f"{home(name)}/record/{ids(name)[first]}/{last}.json")
    assert page["neighbours"]["next"] == {"file_id": other, "position": 0}
    back = site(name).json(f"{home(name)}/record/{other}/0.json")
    assert back["neighbours"]["previous"] == {"file_id": ids(name)[first], "position": last}


def test_a_torn_record_is_named_as_far_as_it_goes() -> None:
    fault = truth("shop-killed")["fault"]
    own, file_id = site("shop-killed"), ids("shop-killed")[fault["file"]]
    at = fault["torn_at_byte"]
    page = own.json(f"{home('shop-killed')}/record/{file_id}/{at}.json")
    data = (help_.log_dir("shop-killed") / fault["file"]).read_bytes()
    assert page["bytes"]["state"] == "raw"
    assert page["bytes"]["hex"] == data[at : at + 256].hex()
    assert f"{fault['torn_bytes'] - 4:,} bytes are left" in page["bytes"]["reason"]
    fields = {field["name"]: field for field in page["bytes"]["fields"]}
    assert fields["offset"]["value"] == fault["lost_record"]["offset"]
    assert fields["frame length"]["value"] == fault["lost_record"]["frame_bytes"] - 4
    assert fields["payload, cut off"]["end"] == fault["torn_bytes"]
    assert [item["code"] for item in page["findings"]] == ["torn_record_body"]
    end = own.page(f"{home('shop-killed')}/record/{file_id}/{len(data)}")
    assert "The file ends here." in end


def test_conflicting_and_fenced_records_are_marked() -> None:
    """A record that a broker refuses, and those that another life of the group sets aside."""
    back = site("offset-goes-backwards").json(
        f"{home('offset-goes-backwards')}/group/dispatch.json"
    )
    marks = {r["revision"]: r["mark"] for e in back["epochs"] for r in e["revisions"]}
    assert marks[3] == "refused"
    moved = [
        i for e in back["epochs"] for r in e["revisions"] if r["revision"] == 3 for i in r["items"]
    ]
    assert [(i["item_offset"], i["change"]) for i in moved if i["item_partition"] == 1] == [
        (12, -40)
    ]
    assert [item["code"] for item in back["findings"]] == ["snapshot_offset_regression"]
    killed = site("shop-killed").json(f"{home('shop-killed')}/group/etl-nightly.json")
    fenced = [r for e in killed["epochs"] for r in e["revisions"] if r["mark"] == "fenced"]
    assert fenced
    assert all(r["epoch"] != killed["epoch"] for r in fenced)


# -- addresses and names ------------------------------------------------------------------------


def test_hostile_names_have_pages() -> None:
    """Whatever a name is, its page is found by the link, and says the name."""
    name = "group-names-hostile"
    known = case(name)["inspector"]["facts"]["committed_offset_of_name"]
    own = site(name)
    names = [
        from_name(row[0])
        for row in help_.rows(help_.built(name), "select group_name from replayed_groups")
    ]  # type: ignore[arg-type]
    assert len(names) == case(name)["inspector"]["facts"]["group_count"]
    first = own.page(f"{home(name)}/")
    for group in names:
        link = f"{home(name)}/group/{part(group)}"
        assert f'href="{link}"' in first
        found = own.json(f"{link}.json")
        assert found["group"] == group
        if group in known:
            assert found["committed"][0]["committed_offset"] == known[group]
        page = own.page(link)
        assert "<script" not in page
        assert "\u202e" not in page
        # A named query is asked for the same group through its form.
        typed = addresses.Addresses(own.datasette.urls, name, name).query("lag", group=group)
        if typed is not None:
            assert own.json(typed.replace("query-lag?", "query-lag.json?"))["rows"], group
    assert any(len(group) > 5000 for group in names)


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "",
        "a b",
        "ü",
        "~",
        "~sha256-00",
        "a/b.json",
        b"\xff\x00",
        "x" * 65_535,
        b"\x80" * 65_535,
    ],
    ids=lambda value: repr(value[:8]),
)
def test_an_address_gives_the_name_back(value: str | bytes) -> None:
    connection = sqlite3.connect(":memory:")
    for table, column in (
        ("replayed_groups", "group_name"),
        ("lifecycle_records", "group_name"),
        ("offset_snapshots", "group_name"),
        ("historical_offsets", "group_name"),
    ):
        connection.execute(f"create table {table} ({column} any)")
    connection.execute("insert into offset_snapshots values (?)", (value,))
    text = addresses.encode(value)
    assert re.fullmatch(r"[A-Za-z0-9_~-]{1,600}", text)
    assert addresses.decode(connection, "group", text) == value  # type: ignore[arg-type]
    connection.close()


@pytest.mark.parametrize(
    "value", ["a\\nb", "a\nb", "\x85", b"\x85", b"a\0", "\u202e", "\\x41", "\xad"]
)
def test_a_typed_name_is_the_name(value: str | bytes) -> None:
    assert addresses.typed_name(addresses.as_typed(value)) == value


# -- bytes with names, and drawings --------------------------------------------------------------


def test_fields_cover_every_byte_of_every_record() -> None:
    """Names and values are those of the decoder, and no byte is left without a name."""
    for log in sorted(help_.log_dir("small-healthy").glob("*/*.log")):
        for _, data in list(frames(log))[:20]:
            fields = list(fields_of(data))
            assert fields[0].start == 0
            assert fields[-1].end == len(data)
            assert all(a.end == b.start for a, b in pairwise(fields))
            record = decode(data[4:])
            found = {field.name: field.value for field in fields}
            for field in record.__dataclass_fields__:
                assert found.get(field, b"") == getattr(record, field), field


def a_frame() -> bytes:
    return encode_frame(Record(topic=b"orders", offset=7, payload=b"{}", key=b"k"))


@pytest.mark.parametrize("cut", [0, 3, 4, 7, 9, 30, 60])
def test_fields_of_a_cut_record_end_where_it_ends(cut: int) -> None:
    whole = a_frame()
    fields = list(fields_of(whole[:cut]))
    assert fields[-1].end == cut


def test_a_damaged_length_shows_where_it_goes_wrong() -> None:
    data = encode_frame(
        decode(next(frames(next(help_.log_dir("small-healthy").glob("orders/*.log"))))[1][4:])
    )
    bad = bytearray(data)
    bad[8:10] = b"\xff\xff"
    last = list(fields_of(bytes(bad)))[-1]
    assert (last.name, last.start, last.end) == ("topic, cut off", 10, len(data))


GOLDEN = help_.ROOT / "golden" / "segments"
VECTORS = json.loads((GOLDEN / "vectors.json").read_text("utf-8"))
OTHERS = [item for item in VECTORS["older_records"] + VECTORS["later_records"] if "message" in item]


@pytest.mark.parametrize("vector", OTHERS, ids=lambda item: item["file"])
def test_fields_of_other_generations_are_named_too(vector: dict[str, Any]) -> None:
    data = (GOLDEN / vector["file"]).read_bytes()
    frame = len(data).to_bytes(4, "big") + data
    fields = list(fields_of(frame, unversioned="magic" not in vector))
    assert all(a.end == b.start for a, b in pairwise(fields))
    assert fields[-1].end == len(frame)
    found = {field.name: field.value for field in fields}
    assert "left over" not in found
    message = vector["message"]
    assert found["offset"] == message["offset"]
    assert found["payload"] == bytes.fromhex(message["payload_hex"])
    assert found.get("key", b"") == bytes.fromhex(message["key_hex"])
    assert found.get("event_id", b"") == vector.get("event_id", "").encode()
    if vector.get("magic") == "CDM4":
        assert found["checksum"] == int.from_bytes(data[-4:], "big")


def test_a_record_of_an_older_build_is_decoded_as_evidence() -> None:
    name, log = "legacy-august", "orders/partition_0_segment_00000000000000000000.log"
    file_id = ids(name)[log]
    position, data = next(frames(help_.log_dir(name) / log))
    page = site(name).json(f"{home(name)}/record/{file_id}/{position}.json")
    assert page["bytes"]["generation"] == "unversioned"
    assert page["bytes"]["hex"] == data.hex()
    assert page["bytes"]["decoded"]["topic"] == "orders"
    assert page["record"]["reachable"] == 0
    text = site(name).page(f"{home(name)}/record/{file_id}/{position}")
    assert "of another generation (unversioned)" in text


def segment(base: int, end: int, **more: Any) -> dict[str, Any]:
    return {
        "base_offset": base,
        "expected_next": end,
        "previous_last": None,
        "active": 0,
        "deleted": 0,
        "compacted": 0,
        "ends": "clean",
        "seam": "contiguous",
        **more,
    }


PARTITION = {"log_start": 0, "hwm_effective": 90, "log_end": 100}


def shapes(image: str, kind: str) -> list[tuple[float, float]]:
    """Start and width of the shapes of a class."""
    found = re.findall(rf'<rect class="{kind}" x="([\d.]+)" y="\d+" width="([\d.]+)"', image)
    return [(float(x), float(width)) for x, width in found]


def test_gaps_and_overlaps_are_drawn_where_they_are() -> None:
    image = str(
        drawing.partition(
            PARTITION,
            [
                segment(0, 20),
                segment(40, 60, seam="gap", previous_last=19),
                segment(50, 100, seam="overlap", previous_last=59, active=1),
            ],
        )
    )
    assert shapes(image, "gap") == [(200.0, 200.0)]
    assert shapes(image, "overlap") == [(500.0, 100.0)]
    assert [start for start, _ in shapes(image, "segment plain")] == [0.0, 400.0]
    assert [start for start, _ in shapes(image, "segment active")] == [500.0]
    assert len(set(re.findall(r'class="segment \w+" x="[\d.]+" y="(\d+)"', image))) == 2
    marks = dict(re.findall(r'<line class="mark (\w+)" x1="([\d.]+)"', image))
    assert marks == {"start": "0.00", "hwm": "900.00", "end": "1000.00"}


def test_a_drawing_of_thousands_of_segments_stays_small() -> None:
    many = [segment(at, at + 1) for at in range(5000)]
    image = str(drawing.partition({**PARTITION, "log_end": 5000}, many))
    assert len(image) < 100_000


def test_offsets_at_the_edge_are_drawn() -> None:
    top = 2**64 - 1
    document = {"log_start": top - 5, "hwm_effective": None, "log_end": top}
    image = str(drawing.partition(document, [segment(top - 5, top)]))
    assert "nan" not in image
    assert "inf" not in image


@pytest.mark.parametrize(
    "value", [[], {}, {"a": [1, {"b": None}]}, 2**70, 1.5, "\udcff", {"x": "\udc80"}, "é\u202e\\"]
)
def test_documents_are_written_as_the_commands_write_them(value: Any) -> None:
    assert pages.json_answer(value).body == json.dumps(value, indent=2) + "\n"


# -- twins and limits -----------------------------------------------------------------------------


def test_a_page_links_to_its_twin_and_both_say_the_same() -> None:
    own, name = site("small-healthy"), "small-healthy"
    for path in ("group/billing", "topic/orders", "topic/orders/0", "record/9/0"):
        page = own.page(f"{home(name)}/{path}")
        assert f'href="{home(name)}/{path}.json"' in page
        own.json(f"{home(name)}/{path}.json")


def test_no_list_is_longer_than_needed() -> None:
    name = "manifest-ten-thousand-topics"
    own = site(name)
    document = own.json(f"{home(name)}/overview.json")
    assert document["topics_total"] > 9_000
    page = own.page(f"{home(name)}/")
    assert page.count('data-label="Topic"') <= 60
    assert f"of {document['topics_total']:,} topics are shown" in page
    assert len(page) < 200_000


def test_a_base_url_is_kept_in_every_link() -> None:
    own = Site(
        {"index": help_.built("small-healthy")},
        settings={"base_url": "/cursus/"},
    )
    page = own.page("/-/cursus/index/")
    links = re.findall(r'(?:href|src|action)="([^"#]+)"', page)
    assert links
    assert [link for link in links if not link.startswith("/cursus/")] == []
    for link in ("/-/cursus/index/group/billing", "/-/cursus/index/topic/orders/0"):
        assert f'href="/cursus{link}.json"' in own.page(link)
