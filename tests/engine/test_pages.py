"""The page pool against a model of it: random lives of sequences, checked after every step."""

from __future__ import annotations

import random

import pytest

from tpuctl.engine.pages import PagePool, next_key, root_key

PAGE = 4


def test_allocate_more_than_there_is_gives_none_and_takes_nothing() -> None:
    pool = PagePool(3)
    assert pool.allocate(4) is None
    assert pool.num_available == 3


def test_sealed_page_released_is_found_again() -> None:
    pool = PagePool(2)
    (page,) = pool.allocate(1) or ()
    pool.seal(page, b"k")
    pool.release([page])
    assert (pool.num_free, pool.num_cached) == (1, 1)
    assert pool.find([b"k"]) == [page]


def test_unsealed_page_is_never_found_and_never_shared() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1) or []
    assert pool.find([b"k"]) == []
    with pytest.raises(AssertionError):
        pool.share(pages)


def test_eviction_takes_the_longest_unused_and_its_end_first() -> None:
    pool = PagePool(4)
    old, new = pool.allocate(2) or [], pool.allocate(2) or []
    for name, pages in (("old", old), ("new", new)):
        for i, page in enumerate(pages):
            pool.seal(page, f"{name}{i}".encode())
        pool.release(pages)
    assert pool.allocate(1) == [old[1]]
    assert pool.find([b"old0", b"old1"]) == [old[0]]
    assert pool.find([b"new0", b"new1"]) == new


def test_keys_differ_by_content_by_what_came_before_and_by_adapter() -> None:
    tokens = [1, 2, 3, 4]
    keys = {
        next_key(root_key(None), tokens),
        next_key(root_key("a"), tokens),
        next_key(next_key(root_key(None), tokens), tokens),
        next_key(root_key(None), [1, 2, 3, 5]),
    }
    assert len(keys) == 4


def test_forget_while_in_use_keeps_the_users_pages() -> None:
    pool = PagePool(3)
    pages = pool.allocate(2) or []
    pool.seal(pages[0], b"k")
    pool.forget()
    assert pool.find([b"k"]) == []
    pool.release(pages)
    assert pool.num_free == 3


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_leak_nothing_and_share_only_what_is_sealed(seed: int) -> None:
    rng = random.Random(seed)
    pool = PagePool(rng.randint(4, 24))
    content: dict[int, bytes] = {}  # what the last writer of a page put there
    live: list[list[int]] = []
    for _ in range(600):
        if live and rng.random() < 0.45:
            pool.release(live.pop(rng.randrange(len(live))))
        else:
            _begin(pool, rng, content, live)
        users = [sum(page in pages for pages in live) for page in range(pool.num_pages)]
        in_use = sum(count > 0 for count in users)
        assert pool.num_free + pool.num_cached + in_use == pool.num_pages
    for pages in live:
        pool.release(pages)
    assert pool.num_available == pool.num_pages


def _begin(pool: PagePool, rng: random.Random, content: dict[int, bytes], live: list[list[int]]) -> None:
    tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 5) * PAGE - rng.randint(0, PAGE - 1))]
    keys = [root_key(None)]
    for start in range(0, len(tokens) // PAGE * PAGE, PAGE):
        keys.append(next_key(keys[-1], tokens[start : start + PAGE]))
    known = pool.find(keys[1:])
    assert [content[page] for page in known] == keys[1 : len(known) + 1], "a found page holds another's tokens"
    missing = -(-len(tokens) // PAGE) - len(known)
    if missing > pool.num_available - pool.num_cached_among(known):
        return
    pool.share(known)
    own = pool.allocate(missing)
    assert own is not None
    assert not set(own) & {page for pages in live for page in pages}, "a page in use was given away"
    for i, page in enumerate(own, start=len(known)):
        is_full = i + 1 < len(keys)
        content[page] = keys[i + 1] if is_full else b"unfinished"
        if is_full:
            pool.seal(page, keys[i + 1])
    live.append(known + own)
