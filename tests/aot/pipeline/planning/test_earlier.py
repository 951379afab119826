"""A plan that earlier builds made is found again, as long as what it came from is the same."""

from __future__ import annotations

from pathlib import Path

from aot.cache import recall
from aot.cache.store import Store
from aot.compile.messages import Closure, Options
from aot.files import sha256_of
from aot.pipeline.plan import Plan, read_plan
from aot.pipeline.planning.earlier import keep_plan, outlined


def keep(store: Store, request: recall.Request, plan: Plan, *closures: Closure) -> recall.Outline:
    outline, content = outlined(plan)
    keep_plan(store, request, outline, content, closures)
    return outline


def test_a_plan_is_kept_whole_with_what_it_depends_on(tmp_path: Path) -> None:
    source = tmp_path / "k.py"
    source.write_text("kernel")
    store, plan = Store(tmp_path / "store"), Plan(12, (), {"add": ()})
    closure = Closure({}, {str(source): sha256_of(source)}, {}, {}, {})
    request = recall.Request(str(source), ("sm90",), (), Options())
    outline = keep(store, request, plan, closure)
    assert recall.unchanged(store, request) == outline
    assert store.get("plans", outline.digest, read_plan) == plan
    source.write_text("other")
    assert recall.unchanged(store, request) is None


def test_the_plan_that_a_newer_one_replaces_leaves_the_cache(tmp_path: Path) -> None:
    store, request = Store(tmp_path / "store"), recall.Request("k.py", ("sm90",), (), Options())
    first = keep(store, request, Plan(12, (), {"add": ()}))
    second = keep(store, request, Plan(12, (), {"mul": ()}))
    assert not store.has("plans", first.digest)
    assert keep(store, request, Plan(12, (), {"mul": ()})) == second
    assert store.has("plans", second.digest)
