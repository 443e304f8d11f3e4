"""Which result was made of which, by the addresses in their manifests."""

from pathlib import Path

import pytest
from hypothesis import strategies as st

from albert_core.stage.errors import IntegrityError
from albert_core.stage.lineage import (
    Lineage,
    Result,
    place_in,
    read_lineage,
    read_made_with,
    read_work,
    write_made_with,
)
from albert_core.stage.manifest import BEGUN, Manifest, StagePlan, read_manifest
from albert_core.stage.provenance import Call, called_as, provenance
from albert_core.stage.results import STAGES
from albert_core.stage.settings import Settings


def place_of(number: int) -> str:
    """Return the place of result ``number``; the stages take turns."""
    return f"{STAGES[number % 4]}/{number:016x}"


def lineage_of(graph: list[set[int]]) -> Lineage:
    """Return results by their numbers, each with the numbers of those that it was made of."""
    results = []
    for number, made_of in enumerate(graph):
        stage, key = place_of(number).split("/")
        manifest = Manifest(
            stage=stage,
            key=key,
            settings={},
            inputs={},
            input_manifests={str(n): f"/w/{place_of(n)}/manifest.json" for n in made_of},
            code="",
            libraries={},
            shards=[],
            accounts=[],
            result={},
            provenance=provenance(),
        )
        results.append(Result(f"/w/{place_of(number)}/manifest.json", manifest))
    return Lineage(reversed(results))


@st.composite
def graphs(draw: st.DrawFn) -> list[set[int]]:
    """Draw for each result the numbers of earlier ones that it was made of."""
    size = draw(st.integers(1, 12))
    return [draw(st.sets(st.integers(0, n - 1))) if n else set() for n in range(size)]


def reached(graph: list[set[int]], number: int) -> set[str]:
    """Return the places of a result and of all that it was made of."""
    return {place_of(number)}.union(*(reached(graph, n) for n in graph[number]))


def test_a_place_is_read_from_any_address_in_it() -> None:
    place = f"zero-shot/{7:016x}"
    for address in (f"s3://bucket/w/{place}/manifest.json", f"/w/{place}", f"{place}/model/x"):
        assert place_in(address) == place
    assert place_in(f"/w/units/{7:016x}") == ""
    assert place_in(f"/w/{place}0/x") == ""
    assert place_in(f"/w/corpus/{1:016x}/{place}") == place


def plan(stage: str, **input_manifests: str) -> StagePlan:
    return StagePlan(stage, {}, input_manifests, "code", {}, input_manifests)


def test_the_settings_and_the_call_that_made_a_result_name_what_it_was_made_of(
    tmp_path: Path,
) -> None:
    work = str(tmp_path)
    known = plan("corpus").write(work, [], [], Settings())
    model = plan("pretraining").write(work, [], [], Settings()).replace("manifest.json", "model")
    call = Call(
        module="albert_core.finetuning.finetune",
        recipe={"training": {"known": [known]}},
        options={"model_folder": model, "task": "cola"},
    )
    with called_as(call):
        made = plan("finetuning").write(work, [], [], Settings())
    [finetuning] = read_work(work).of_stage("finetuning")
    assert finetuning.uri == made
    assert finetuning.inputs == {place_in(known), place_in(model)}


def test_a_work_folder_that_moved_still_leads_from_the_model_to_the_corpus(tmp_path: Path) -> None:
    work = tmp_path / "before"
    corpus = plan("corpus").write(str(work), [], [], Settings())
    vocab = plan("vocab", corpus=corpus).write(str(work), [], [], Settings())
    work.rename(tmp_path / "after")
    lineage = read_lineage(vocab.replace("/before/", "/after/"))
    assert list(lineage.results) == [place_in(corpus), place_in(vocab)]
    assert all("/after/" in each.uri for each in lineage.results.values())
    Path(corpus.replace("/before/", "/after/")).unlink()
    with pytest.raises(IntegrityError, match=r"manifest\.json is missing"):
        read_lineage(vocab.replace("/before/", "/after/"))


def test_a_folder_that_is_begun_says_what_it_will_be_made_of(tmp_path: Path) -> None:
    work = str(tmp_path)
    corpus = plan("corpus").write(work, [], [], Settings())
    vocab = plan("vocab", corpus=corpus)
    assert vocab.find(work) is None
    assert read_work(work).of_stage("vocab") == []
    [begun] = read_work(work, begun=True).of_stage("vocab")
    assert begun.uri.endswith(BEGUN)
    assert begun.inputs == {place_in(corpus)}
    done = vocab.write(work, [], [], Settings())
    [finished] = read_work(work, begun=True).of_stage("vocab")
    assert finished.uri == done
    assert read_manifest(begun.uri).key == finished.manifest.key


def test_a_damaged_manifest_is_passed_over(tmp_path: Path) -> None:
    good = plan("corpus").write(str(tmp_path), [], [], Settings())
    bad = plan("corpus", other="x").write(str(tmp_path), [], [], Settings())
    Path(bad).write_text("{")
    assert list(read_work(str(tmp_path)).results) == [place_in(good)]


def test_what_a_result_was_made_with_is_listed_by_its_name_below_the_work_folder(
    tmp_path: Path,
) -> None:
    assert read_made_with(str(tmp_path)) == set()
    uris = [f"{tmp_path}/units/b", f"{tmp_path}/parts/a.arrow", "/elsewhere/units/c"]
    write_made_with(uris, str(tmp_path), str(tmp_path))
    assert read_made_with(str(tmp_path)) == {"parts/a", "units/b"}
