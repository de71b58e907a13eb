"""The prefix index: which pages and marks exist for which prefix. Finds, links and unlinks; owns no bytes.

    root (fingerprint, salt)
      └─ node  = one full page: 16 token ids, a page id, chained digest
           ├─ node ...
           └─ marks at positions [16 * depth, 16 * depth + 15]: tail token ids, tail page, slot, stamp

A node lives while a mark or a deeper node hangs on it: a page that no mark can use is dead weight for a hybrid model
(there is no state to resume from), so it goes with the last mark below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from statemark.cache.digest import PAGE_TOKENS, Tokens, chain, root_digest
from statemark.errors import IntegrityError


@dataclass(eq=False)
class Node:
    """A full page of some prefix, or the empty prefix (`parent` and `page` None)."""

    digest: bytes
    depth: int
    tokens: bytes
    parent: Node | None
    page: int | None
    children: dict[bytes, Node] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)


@dataclass(eq=False)
class Mark:
    """An immutable recurrent state and exactly the prefix it has consumed: `digest`, `position` tokens, `stamp`."""

    digest: bytes
    position: int
    stamp: int
    slot: int
    node: Node
    tail: bytes
    tail_page: int | None
    kind: str
    pins: int = 0


@dataclass(frozen=True)
class Lookup:
    """What a prompt finds. `page_match`: tokens covered by shared full pages; `mark`: the deepest usable mark.

    `path`: the shared nodes below the root, one a page, as far as the pages match.
    """

    mark: Mark | None
    path: tuple[Node, ...]

    @property
    def page_match(self) -> int:
        return len(self.path) * PAGE_TOKENS

    @property
    def position(self) -> int:
        return self.mark.position if self.mark else 0


class PrefixIndex:
    """All roots of one model. `fingerprint` separates models, quantisations and instruction sets."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        self._roots: dict[bytes, Node] = {}
        self._marks: dict[bytes, Mark] = {}

    def root(self, salt: str) -> bytes:
        return root_digest(self._fingerprint, salt)

    def __len__(self) -> int:
        return len(self._marks)

    def marks(self) -> Iterator[Mark]:
        return iter(self._marks.values())

    def nodes(self) -> Iterator[Node]:
        """Every node that holds a page, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.page is not None:
                yield node
            stack.extend(node.children.values())

    def find(self, digest: bytes) -> Mark | None:
        return self._marks.get(digest)

    def lookup(self, salt: str, tokens: Tokens, limit: int) -> Lookup:
        """The deepest mark at or below `limit` tokens whose prefix equals that of `tokens`.

        Token ids are compared as well as digests, so a collision can't turn into a hit.
        """
        node = self._roots.get(self.root(salt))
        best: Mark | None = None
        path: list[Node] = []
        raw = tokens.tobytes()
        while node is not None:
            start = node.depth * PAGE_TOKENS
            for mark in node.marks:
                if (best is None or mark.position > best.position) and mark.position <= limit:
                    tail = raw[4 * start : 4 * mark.position]
                    if tail == mark.tail:
                        best = mark
            page = raw[4 * start : 4 * (start + PAGE_TOKENS)]
            if len(page) < 4 * PAGE_TOKENS:
                break
            node = node.children.get(chain(node.digest, page))
            if node is not None:
                if node.tokens != page:
                    break
                path.append(node)
        return Lookup(best, tuple(path))

    def digest_at(self, salt: str, tokens: Tokens, position: int) -> bytes:
        """Digest of the first `position` tokens."""
        digest = self.root(salt)
        raw = np.ascontiguousarray(tokens[:position]).tobytes()
        for start in range(0, 4 * position, 4 * PAGE_TOKENS):
            digest = chain(digest, raw[start : start + 4 * PAGE_TOKENS])
        return digest

    def extend(self, salt: str, tokens: Tokens, pages: list[int]) -> tuple[Node, list[Node]]:
        """The node of the full pages `pages` that hold `tokens` (16 ids a page), made where it doesn't exist yet.

        Returns it and the nodes that are new; the caller owns the references that they hold on their pages.
        """
        root = self.root(salt)
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = Node(root, 0, b"", None, None)
        raw = tokens.tobytes()
        if len(raw) != 4 * PAGE_TOKENS * len(pages):
            raise IntegrityError(f"{len(pages)} pages given for {len(tokens)} tokens")
        new = []
        for i, page in enumerate(pages):
            part = raw[4 * PAGE_TOKENS * i : 4 * PAGE_TOKENS * (i + 1)]
            digest = chain(node.digest, part)
            child = node.children.get(digest)
            if child is None:
                child = node.children[digest] = Node(digest, node.depth + 1, part, node, page)
                new.append(child)
            elif child.tokens != part:
                raise IntegrityError(f"digest collision at token {node.depth * PAGE_TOKENS}")
            node = child
        return node, new

    def attach(self, mark: Mark) -> None:
        if mark.digest in self._marks:
            raise IntegrityError(f"a mark at {mark.position} of this prefix exists already")
        self._marks[mark.digest] = mark
        mark.node.marks.append(mark)

    def detach(self, mark: Mark) -> list[Node]:
        """Remove a mark; returns the nodes that nothing needs any more, deepest first, already unlinked."""
        del self._marks[mark.digest]
        mark.node.marks.remove(mark)
        return self.prune(mark.node)

    def prune(self, node: Node) -> list[Node]:
        dead = []
        while not node.marks and not node.children:
            if node.parent is None:
                del self._roots[node.digest]
                break
            dead.append(node)
            del node.parent.children[node.digest]
            node = node.parent
        return dead

    def check(self) -> None:
        """Raise IntegrityError unless links, digests and positions agree with each other."""
        seen = set()
        for root in self._roots.values():
            if not root.children and not root.marks:
                raise IntegrityError("an empty root was kept")
            stack = [root]
            while stack:
                node = stack.pop()
                for mark in node.marks:
                    seen.add(mark.digest)
                    tail = mark.position - node.depth * PAGE_TOKENS
                    if (
                        not 0 <= tail < PAGE_TOKENS
                        or len(mark.tail) != 4 * tail
                        or (mark.tail_page is None) != (tail == 0)
                    ):
                        raise IntegrityError(f"mark at {mark.position} hangs on a page that ends at {node.depth * 16}")
                    if mark.digest != (chain(node.digest, mark.tail) if tail else node.digest):
                        raise IntegrityError(f"mark at {mark.position} carries another prefix's digest")
                    if self._marks.get(mark.digest) is not mark:
                        raise IntegrityError(f"mark at {mark.position} is linked but not listed")
                for digest, child in node.children.items():
                    if child.digest != digest or digest != chain(node.digest, child.tokens):
                        raise IntegrityError(f"page {child.page} carries another prefix's digest")
                    if child.parent is not node or child.depth != node.depth + 1 or child.page is None:
                        raise IntegrityError(f"page {child.page} is linked to the wrong parent")
                    if not child.children and not child.marks:
                        raise IntegrityError(f"page {child.page} is stranded: no mark can use it")
                    stack.append(child)
        if len(seen) != len(self._marks):
            raise IntegrityError(f"{len(self._marks)} marks listed, {len(seen)} linked")
