"""The prefix index: which pages and marks exist for which prefix. Finds, links and unlinks; owns no bytes.

    root (fingerprint, salt, adapter)
      └─ node  = one full page: 16 token ids, a page id, chained digest
           ├─ node ...
           └─ marks at positions [16 * depth, 16 * depth + 15]: tail token ids, tail page, slot, stamp

A node lives while a mark or a deeper node hangs on it: a page that no mark can use is dead weight for a hybrid model
(there is no state to resume from), so it goes with the last mark below it. Marks are linked to each other as well:
`parent` is the deepest other mark on the same path, which is where a request would resume if this one went.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from statemark.cache.digest import PAGE_TOKENS, PrefixChain, Tokens, chain, root_digest
from statemark.errors import IntegrityError

_RAW = 4 * PAGE_TOKENS
_BUSH = 16  # branches that are followed side by side


@dataclass(eq=False, slots=True)
class Node:
    """A full page of some prefix, or the empty prefix (`parent` and `page` None).

    `marks` are filed by their tails; `onward`: the token ids of all children and the tails of all marks, sorted, so
    that the one which agrees longest with a prompt is found by halving, however many conversations part here.

    `missing`: why a mark that hung here or should is not there (a name of `explain.WHY`); says why tokens are lost.
    """

    digest: bytes
    depth: int
    tokens: bytes
    parent: Node | None
    page: int | None
    children: dict[bytes, Node] = field(default_factory=dict)
    marks: dict[bytes, Mark] = field(default_factory=dict)
    onward: list[bytes] = field(default_factory=list)
    missing: str | None = None


@dataclass(eq=False, slots=True)
class Head:
    """The marks that one request made. `superseded` once a later request of its conversation has gone further."""

    prompt_tokens: int = 0
    superseded: bool = False
    marks: list[Mark] = field(default_factory=list)


@dataclass(eq=False, slots=True)
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
    parent: Mark | None = None
    children: dict[Mark, None] = field(default_factory=dict)
    head: Head = field(default_factory=Head)
    hits: int = 0  # uses by requests that branch off here; going on with a conversation isn't counted
    clock: float = 0.0  # the eviction order's time of the last use
    entry: int = 0  # the eviction order's number of the valid entry; 0: none
    likely: bool = False  # counted by the eviction order among the pinned ones

    @property
    def gain(self) -> int:
        """Tokens that a hit here saves over a hit on the nearest mark before it."""
        return self.position - (self.parent.position if self.parent is not None else 0)


@dataclass(frozen=True)
class Lookup:
    """What a prompt finds. `mark`: the deepest usable mark; `shared`: tokens that cached pages have in common with it.

    `path`: the shared nodes below the root, one a page, as far as full pages match.
    """

    mark: Mark | None
    path: tuple[Node, ...]
    shared: int = 0

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
        self._nodes: dict[bytes, Node] = {}  # roots too
        self._marks: dict[bytes, Mark] = {}

    def root(self, salt: str, adapter: str = "") -> bytes:
        return root_digest(self._fingerprint, salt, adapter)

    def chain(self, salt: str, adapter: str = "") -> PrefixChain:
        return PrefixChain(self.root(salt, adapter))

    def __len__(self) -> int:
        return len(self._marks)

    def marks(self) -> Iterator[Mark]:
        return iter(self._marks.values())

    def nodes(self) -> Iterator[Node]:
        """Every node that holds a page."""
        return (node for node in self._nodes.values() if node.page is not None)

    def find(self, digest: bytes) -> Mark | None:
        return self._marks.get(digest)

    # --- lookup ---------------------------------------------------------------------------------------------

    def lookup(self, prefix: PrefixChain, tokens: Tokens, limit: int) -> Lookup:
        """The deepest mark at or below `limit` tokens whose prefix equals that of `tokens`.

        Token ids are compared as well as digests, so a collision can't turn into a hit.
        """
        root = self._nodes.get(prefix.root)
        if root is None:
            return Lookup(None, ())
        raw = tokens.tobytes()
        path = self._matched(prefix, tokens, raw)
        last = path[-1] if path else root
        rest = raw[_RAW * last.depth : _RAW * (last.depth + 1)]
        at = bisect_left(last.onward, rest)  # whoever agrees longest with it is its neighbour
        near = (_common(rest, end) for end in last.onward[max(0, at - 1) : at + 1])
        shared = last.depth * PAGE_TOKENS + max(near, default=0)
        best: Mark | None = None
        node: Node | None = last
        while best is None and node is not None:
            start = _RAW * node.depth
            if start <= 4 * limit:
                best = _longest(node, raw[start : min(start + _RAW - 4, 4 * limit)])
            node = node.parent
        return Lookup(best, tuple(path), shared)

    def _matched(self, prefix: PrefixChain, tokens: Tokens, raw: bytes) -> list[Node]:
        """The nodes of the longest cached path, shallow first. A node's ancestors exist, so halving finds its end."""
        low, high = 0, len(tokens) // PAGE_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if prefix.page(tokens, middle) in self._nodes:
                low = middle
            else:
                high = middle - 1
        path: list[Node] = []
        node: Node | None = self._nodes[prefix.page(tokens, low)]
        while node is not None and node.page is not None:
            path.append(node)
            node = node.parent
        path.reverse()
        if b"".join([node.tokens for node in path]) != raw[: _RAW * low]:
            different = (i for i, node in enumerate(path) if node.tokens != raw[_RAW * i : _RAW * (i + 1)])
            del path[next(different) :]
        return path

    @staticmethod
    def marks_below(node: Node, pages: int) -> Iterator[Mark]:
        """Marks at `node` and up to `pages` pages further on; of a bush of many branches only the first ones."""
        level = [node]
        for _ in range(pages + 1):
            for here in level:
                yield from here.marks.values()
            level = [child for here in level for child in here.children.values()][:_BUSH]
            if not level:
                return

    # --- change ---------------------------------------------------------------------------------------------

    def extend(self, prefix: PrefixChain, tokens: Tokens, pages: list[int]) -> tuple[Node, list[Node]]:
        """The node of the full pages `pages` that hold the first of `tokens`, made where it doesn't exist yet.

        Returns it and the nodes that are new; the caller owns the references that they hold on their pages.
        """
        known = len(pages)
        digest = prefix.page(tokens, known)
        while digest not in self._nodes and known:
            known -= 1
            digest = prefix.page(tokens, known)
        node = self._nodes.get(digest)
        if node is None:
            node = self._nodes[digest] = Node(digest, 0, b"", None, None)
        elif known and node.tokens != tokens[(known - 1) * PAGE_TOKENS : known * PAGE_TOKENS].tobytes():
            raise IntegrityError(f"digest collision at token {known * PAGE_TOKENS}")
        raw = tokens[known * PAGE_TOKENS : len(pages) * PAGE_TOKENS].tobytes()
        new = []
        for i in range(known, len(pages)):
            digest = prefix.page(tokens, i + 1)
            part = raw[_RAW * (i - known) : _RAW * (i - known + 1)]
            child = Node(digest, i + 1, part, node, pages[i])
            self._nodes[digest] = node.children[digest] = child
            insort(node.onward, part)
            new.append(child)
            node = child
        return node, new

    def attach(self, mark: Mark) -> None:
        if mark.digest in self._marks:
            raise IntegrityError(f"a mark at {mark.position} of this prefix exists already")
        parent = _above(mark)
        below = list(_below(mark, parent))
        self._marks[mark.digest] = mark
        mark.node.marks[mark.tail] = mark
        insort(mark.node.onward, mark.tail)
        mark.parent = parent
        if parent is not None:
            parent.children[mark] = None
        for child in below:
            if parent is not None:
                del parent.children[child]
            child.parent = mark
            mark.children[child] = None

    def detach(self, mark: Mark) -> list[Node]:
        """Remove a mark; returns the nodes that nothing needs any more, deepest first, already unlinked."""
        del self._marks[mark.digest]
        del mark.node.marks[mark.tail]
        _drop(mark.node.onward, mark.tail)
        parent = mark.parent
        if parent is not None:
            del parent.children[mark]
        for child in mark.children:
            child.parent = parent
            if parent is not None:
                parent.children[child] = None
        return self.prune(mark.node)

    def prune(self, node: Node) -> list[Node]:
        dead = []
        while not node.marks and not node.children:
            del self._nodes[node.digest]
            if node.parent is None:
                break
            dead.append(node)
            del node.parent.children[node.digest]
            _drop(node.parent.onward, node.tokens)
            node = node.parent
        return dead

    # --- check ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise IntegrityError unless links, digests and positions agree with each other."""
        seen = 0
        for digest, node in self._nodes.items():
            if node.digest != digest:
                raise IntegrityError(f"page {node.page} is listed under another digest")
            if not node.children and not node.marks:
                raise IntegrityError(f"page {node.page} is stranded: no mark can use it")
            if (node.parent is None) != (node.page is None) or (node.parent is None) != (node.depth == 0):
                raise IntegrityError(f"page {node.page} at depth {node.depth} has lost its place")
            if node.parent is not None:
                if node.parent.children.get(digest) is not node or node.depth != node.parent.depth + 1:
                    raise IntegrityError(f"page {node.page} is linked to the wrong parent")
                if self._nodes.get(node.parent.digest) is not node.parent:
                    raise IntegrityError(f"page {node.page} hangs on a node that is gone")
                if digest != chain(node.parent.digest, node.tokens):
                    raise IntegrityError(f"page {node.page} carries another prefix's digest")
            ends = [*(child.tokens for child in node.children.values()), *node.marks]
            if node.onward != sorted(ends):
                raise IntegrityError(f"page {node.page} lists other ways on than it has")
            for tail, mark in node.marks.items():
                seen += 1
                if mark.tail != tail:
                    raise IntegrityError(f"mark at {mark.position} is filed under another tail")
                self._check_mark(mark, node)
        if seen != len(self._marks):
            raise IntegrityError(f"{len(self._marks)} marks listed, {seen} linked")

    def _check_mark(self, mark: Mark, node: Node) -> None:
        tail = mark.position - node.depth * PAGE_TOKENS
        if not 0 <= tail < PAGE_TOKENS or len(mark.tail) != 4 * tail or (mark.tail_page is None) != (tail == 0):
            raise IntegrityError(f"mark at {mark.position} hangs on a page that ends at {node.depth * PAGE_TOKENS}")
        if mark.node is not node or mark.digest != (chain(node.digest, mark.tail) if tail else node.digest):
            raise IntegrityError(f"mark at {mark.position} carries another prefix's digest")
        if self._marks.get(mark.digest) is not mark:
            raise IntegrityError(f"mark at {mark.position} is linked but not listed")
        if mark.parent is not _above(mark) or any(child.parent is not mark for child in mark.children):
            raise IntegrityError(f"mark at {mark.position} is linked to the wrong mark before it")
        if mark.parent is not None and mark not in mark.parent.children:
            raise IntegrityError(f"mark at {mark.position} is missing among those after {mark.parent.position}")


def _common(a: bytes, b: bytes) -> int:
    """How many token ids (4 bytes each) two pages begin with alike."""
    if a[:4] != b[:4]:
        return 0
    count = min(len(a), len(b)) // 4
    if a[: 4 * count] == b[: 4 * count]:
        return count
    return next(i for i in range(count) if a[4 * i : 4 * i + 4] != b[4 * i : 4 * i + 4])


def _drop(ends: list[bytes], end: bytes) -> None:
    del ends[bisect_left(ends, end)]


def _longest(node: Node, onward: bytes) -> Mark | None:
    """The mark of `node` with the longest tail that `onward` begins with."""
    if node.marks:
        for length in range(len(onward), -1, -4):
            mark = node.marks.get(onward[:length])
            if mark is not None:
                return mark
    return None


def _above(mark: Mark) -> Mark | None:
    """The deepest other mark on the path to this one."""
    node = mark.node
    found = _longest(node, mark.tail[:-4]) if mark.tail else None
    while found is None and node.parent is not None:
        found = _longest(node.parent, node.tokens[:-4])
        node = node.parent
    return found


def _below(mark: Mark, parent: Mark | None) -> Iterator[Mark]:
    """The nearest marks after this new one on every path through it: so far, `parent` was the one before them."""
    for other in mark.node.marks.values():
        if other.parent is parent and len(other.tail) > len(mark.tail) and other.tail.startswith(mark.tail):
            yield other
    nodes = [child for child in mark.node.children.values() if child.tokens.startswith(mark.tail)]
    nodes = [child for child in nodes if not _passed(mark.node, child, len(mark.tail))]
    while nodes:
        node = nodes.pop()
        yield from (other for other in node.marks.values() if other.parent is parent)
        nodes += (child for child in node.children.values() if not _passed(node, child, -1))


def _passed(node: Node, child: Node, after: int) -> bool:
    """Whether a mark of `node` with a tail of more than `after` bytes lies on the path to `child`."""
    found = _longest(node, child.tokens[:-4])
    return found is not None and len(found.tail) > after
