"""Golden vectors of the topic manifest: reading, normalising, saving, patching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cursus.findings import CATALOGUE, FormatError
from cursus.formats import topic_manifest as tm

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "manifest" / "vectors.json").read_text("utf-8"))
OVERRIDES = {
    item["name"]: item
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "manifest"
}


def named(section: str) -> Any:
    items = VECTORS[section]
    return pytest.mark.parametrize("vector", items, ids=[str(i) for i in range(len(items))])


def policy_of(value: dict[str, Any]) -> tm.Policy:
    lists = {k: tuple(v) for k, v in value.items() if isinstance(v, list)}
    base = {"cleanup_policy": "", "partitioner": "", "auth_policy": ""}
    return tm.Policy(**{**base, **value, **lists})


def definition_of(value: dict[str, Any]) -> tm.TopicDefinition:
    rest = {k: v for k, v in value.items() if k != "policy"}
    return tm.TopicDefinition(**rest, policy=policy_of(value.get("policy") or {}))


def plain(definition: tm.TopicDefinition) -> Any:
    return json.loads(tm.canonical_json.compact(tm._written(definition)))


def code_of(error: pytest.ExceptionInfo[FormatError]) -> str:
    assert error.value.code in CATALOGUE
    return error.value.code


@named("topic_names")
def test_topic_name(vector: dict[str, Any]) -> None:
    if vector["valid"]:
        tm.check_topic_name(vector["name"])
    else:
        with pytest.raises(FormatError) as error:
            tm.check_topic_name(vector["name"])
        assert code_of(error) == vector["code"]


@named("cleanup_policy_normalization")
def test_cleanup_policy(vector: dict[str, Any]) -> None:
    if vector["valid"]:
        assert tm.normalize_cleanup_policy(vector["input"]) == vector["canonical"]
    else:
        with pytest.raises(FormatError) as error:
            tm.normalize_cleanup_policy(vector["input"])
        assert code_of(error) == vector["code"]


@named("policy_normalization")
def test_policy(vector: dict[str, Any]) -> None:
    if vector["valid"]:
        found = tm.normalize_policy(policy_of(vector["input"]))
        assert json.loads(tm.canonical_json.compact(tm.written_policy(found))) == {
            **vector["canonical"]
        }
    else:
        with pytest.raises(FormatError) as error:
            tm.normalize_policy(policy_of(vector["input"]))
        assert code_of(error) == vector["code"]


@named("canonical_saves")
def test_save_is_byte_identical(vector: dict[str, Any]) -> None:
    expected = (GOLDEN / "manifest" / vector["file"]).read_bytes()
    assert tm.encode([definition_of(d) for d in vector["input_definitions"]]) == expected
    decoded = [plain(d) for d in tm.decode(expected).definitions]
    assert decoded == [plain(definition_of(d)) for d in vector["decoded"]]


@named("rejected_saves")
def test_rejected_save(vector: dict[str, Any]) -> None:
    if vector["name"] == "oversize":  # described in words: one ACL entry as long as the limit
        policy = tm.Policy(read_acl=("x" * tm.MAX_BYTES,))
        definitions = [tm.TopicDefinition("a", 1, 1, 1, 1, policy=policy)]
    else:
        definitions = [definition_of(d) for d in vector["input_definitions"]]
    with pytest.raises(FormatError) as error:
        tm.encode(definitions)
    assert code_of(error) == vector["code"]


@pytest.mark.parametrize("vector", VECTORS["manifest_reads"], ids=lambda v: str(v["name"]))
def test_read(vector: dict[str, Any]) -> None:
    override = OVERRIDES.get(vector["name"], {})
    valid, code = vector["valid"], vector.get("code")
    if override:
        valid = False
        code = override["value"] if override["field"] == "code" else override["code"]
    data = vector["text"].encode("utf-8", "surrogatepass")
    if valid:
        found = [plain(d) for d in tm.decode(data).definitions]
        assert found == [plain(definition_of(d)) for d in vector["decoded"]]
    else:
        with pytest.raises(FormatError) as error:
            tm.decode(data)
        assert code_of(error) == code
        loads = vector.get("broker_loader_accepts") and vector.get("broker_load_stage")
        if loads:
            assert tm.decode(data, whole_definition_rules=False)


@named("manifest_reads_generated")
def test_read_at_the_limit(vector: dict[str, Any]) -> None:
    data = vector["text_prefix"].encode().ljust(vector["pad_with_spaces_to_bytes"])
    if vector["valid"]:
        assert tm.decode(data).definitions == ()
    else:
        with pytest.raises(FormatError) as error:
            tm.decode(data)
        assert code_of(error) == vector["code"]


@pytest.mark.parametrize("vector", VECTORS["definition_patches"], ids=lambda v: str(v["name"]))
def test_patch(vector: dict[str, Any]) -> None:
    current = definition_of(vector["current"]) if vector["topic_exists"] else None
    name = vector["current"]["name"]
    if "result" in vector:
        found, _ = tm.patch(current, name, vector["patch"])
        assert plain(found) == plain(definition_of(vector["result"]))
    else:
        with pytest.raises(FormatError) as error:
            tm.patch(current, name, vector["patch"])
        assert code_of(error) == vector["code"]
