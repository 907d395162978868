"""The iteration order of Java's hash maps (and one of Scala's): Kafka writes checkpoints and snapshots in it.

A HashMap iterates over its buckets in order, and within a bucket in the order of insertion. The number of buckets grows
with the map and never shrinks, so the order depends on how large the map once was; `JavaHashMap` keeps that history.

If more than eight keys collide, Java turns a bucket's chain into a red-black tree, inserts a new entry after its parent
in the chain and moves the root to the front. `_Bin` follows that for insertions, because the bytes of a snapshot show
it. Removals from such a bucket keep the order of the others. When the tree becomes a chain again is decided by its
length alone; Java decides by the shape of its tree, which no file depends on.

Compiled, though no loop is hot: a producer is added to the map in the middle of an append, where no signal handler may
run between two steps.
"""

import codecs
from collections.abc import Mapping

# Looked up here: if a signal interrupts the first use of a codec, Python may remember it as unknown.
_UTF_16 = codecs.lookup("utf-16-le")
DEFAULT_CAPACITY = 16
_TREEIFY_AT = 8
_MIN_TREEIFY_CAPACITY = 64
_UNTREEIFY_AT = 6
_MAX_CAPACITY = 1 << 30
_ANY_REF_TABLE = 16


def _int32(value):
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def utf_16(text):
    """Returns the UTF-16 units of a Java String, two bytes each."""
    return _UTF_16.encode(text, "surrogatepass")[0]


def string_hash(text):
    """String.hashCode, over UTF-16 units."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        data = utf_16(text)
        for position in range(0, len(data), 2):
            value = (value * 31 + (data[position] | data[position + 1] << 8)) & 0xFFFFFFFF
    return _int32(value)


def long_hash(value):
    """Long.hashCode."""
    value &= 0xFFFFFFFFFFFFFFFF
    return _int32(value ^ (value >> 32))


def topic_partition_hash(key):
    """TopicPartition.hashCode."""
    return _int32(31 * (31 + key[1]) + string_hash(key[0]))


def spread(value):
    """HashMap.hash: mixes in the high bits; returns 32 unsigned bits."""
    value &= 0xFFFFFFFF
    return value ^ (value >> 16)


def table_size_for(capacity):
    """Returns the power of two that holds `capacity` buckets."""
    return 1 if capacity <= 1 else min(1 << (capacity - 1).bit_length(), _MAX_CAPACITY)


class _InItsOwnOrder(dict):
    """A dict whose keys(), values() and items() follow its `__iter__`."""

    __slots__ = ()

    def keys(self):
        return list(self)

    def values(self):
        return [self[key] for key in self]

    def items(self):
        return [(key, self[key]) for key in self]


class JavaHashMap(_InItsOwnOrder):
    """A dict that iterates as java.util.HashMap does. Look-ups, and updates of known keys, cost what a dict's cost.

    `hash_of` returns the key's hashCode. `initial_capacity` is that of Java's constructor; `copy_of` is its copy
    constructor. Not thread-safe.
    """

    __slots__ = ("_bins", "_capacity", "_hash_of")

    def __init__(self, hash_of, initial_capacity=DEFAULT_CAPACITY):
        super().__init__()
        self._hash_of = hash_of
        self._capacity = table_size_for(initial_capacity)
        self._bins = {}

    @classmethod
    def copy_of(cls, source, hash_of):
        """new HashMap<>(source)."""
        copy = cls(hash_of, int(len(source) / 0.75 + 1.0) if source else DEFAULT_CAPACITY)
        copy.update(source)
        return copy

    @property
    def capacity(self):
        """The number of buckets."""
        return self._capacity

    def __setitem__(self, key, value):
        if key not in self:
            self._arrive(key)
        super().__setitem__(key, value)

    def __delitem__(self, key):
        super().__delitem__(key)
        self._leave(key)

    def pop(self, key, *default):
        there = key in self
        value = super().pop(key, *default)
        if there:
            self._leave(key)
        return value

    def setdefault(self, key, default):
        if key not in self:
            self[key] = default
        return self[key]

    def compute_if_absent(self, key, make):
        """computeIfAbsent: a new entry goes to the front of its bucket, and the table grows one entry later."""
        if len(self) > self._capacity * 3 // 4:
            self._grow()
        if key in self:
            return self[key]
        value = make()
        hashed = spread(self._hash_of(key))
        index = hashed & (self._capacity - 1)
        found = self._bins.get(index)
        if found is None:
            self._bins[index] = _Bin([(hashed, key)])
        elif found.is_tree:
            found.add(hashed, key)
        else:
            found.nodes.insert(0, (hashed, key))
            if len(found.nodes) >= _TREEIFY_AT:
                if self._capacity < _MIN_TREEIFY_CAPACITY:
                    self._grow()
                else:
                    found.treeify()
        super().__setitem__(key, value)
        return value

    def update(self, *others, **named):
        for key, value in dict(*others, **named).items() if not isinstance(others[0], Mapping) else others[0].items():
            self[key] = value

    def clear(self):
        """Removes all entries; the number of buckets stays the same."""
        super().clear()
        self._bins.clear()

    def _arrive(self, key):
        hashed = spread(self._hash_of(key))
        index = hashed & (self._capacity - 1)
        found = self._bins.get(index)
        if found is None:
            self._bins[index] = _Bin([(hashed, key)])
        elif found.add(hashed, key):
            # The ninth entry of a chain makes a small table grow before anything is turned into a tree.
            if self._capacity < _MIN_TREEIFY_CAPACITY:
                self._grow()
            else:
                found.treeify()
        if len(self) + 1 > self._capacity * 3 // 4:
            self._grow()

    def _leave(self, key):
        index = spread(self._hash_of(key)) & (self._capacity - 1)
        found = self._bins[index]
        found.remove(key)
        if not found.nodes:
            del self._bins[index]

    def _grow(self):
        if self._capacity >= _MAX_CAPACITY:
            return
        bit = self._capacity
        self._capacity *= 2
        bins = {}
        for index, old in self._bins.items():
            low = [node for node in old.nodes if not node[0] & bit]
            high = [node for node in old.nodes if node[0] & bit]
            for place, nodes, other in ((index, low, high), (index + bit, high, low)):
                if nodes:
                    bins[place] = _Bin(nodes) if other or not old.is_tree else old
                    if old.is_tree and other and len(nodes) > _UNTREEIFY_AT:
                        bins[place].treeify()
        self._bins = bins

    def __iter__(self):
        for index in sorted(self._bins):
            for _, key in self._bins[index].nodes:
                yield key


class JavaConcurrentHashMap(JavaHashMap):
    """A dict that iterates as java.util.concurrent.ConcurrentHashMap does, if one thread uses it.

    It grows one entry sooner than a HashMap, and growing reverses parts of a chain. A chain that has become a tree gets
    new entries at its front, regardless of the tree's shape.
    """

    __slots__ = ()

    def __setitem__(self, key, value):
        if key in self:
            self._replaced(key)
            dict.__setitem__(self, key, value)
        else:
            self._arrive(key)
            dict.__setitem__(self, key, value)

    def _replaced(self, key):
        """Replacing the value of a chain's eighth entry counts as the arrival of a ninth."""
        found = self._bins[spread(self._hash_of(key)) & (self._capacity - 1)]
        if not found.is_tree and len(found.nodes) >= _TREEIFY_AT:
            if [node[1] for node in found.nodes].index(key) >= _TREEIFY_AT - 1:
                self._too_long(found)

    def _arrive(self, key):
        hashed = spread(self._hash_of(key))
        index = hashed & (self._capacity - 1)
        found = self._bins.get(index)
        if found is None:
            self._bins[index] = _Bin([(hashed, key)])
        elif found.is_tree:
            found.nodes.insert(0, (hashed, key))
        else:
            found.nodes.append((hashed, key))
            if len(found.nodes) > _TREEIFY_AT:
                self._too_long(found)
        while len(self) + 1 >= self._capacity - self._capacity // 4:
            self._grow()

    def _too_long(self, found):
        """Makes a small table grow instead of creating a tree, and by more than one step."""
        if self._capacity >= _MIN_TREEIFY_CAPACITY:
            found.is_tree = True
            return
        wanted = table_size_for(self._capacity * 3 + 1)
        while self._capacity - self._capacity // 4 < wanted:
            self._grow()

    def _grow(self):
        bit = self._capacity
        self._capacity *= 2
        bins = {}
        for index, old in self._bins.items():
            if old.is_tree:
                sides = tuple([node for node in old.nodes if bool(node[0] & bit) == high] for high in (False, True))
            else:
                sides = self._turned(old.nodes, bit)
            for place, side in zip((index, index + bit), sides):
                if side:
                    bins[place] = _Bin(side)
                    bins[place].is_tree = old.is_tree and len(side) > _UNTREEIFY_AT
        self._bins = bins

    def _turned(self, nodes, bit):
        run = len(nodes) - 1  # from here on all entries go to the same side, and keep their order
        while run > 0 and nodes[run - 1][0] & bit == nodes[run][0] & bit:
            run -= 1
        sides = ([], [])
        sides[1 if nodes[run][0] & bit else 0].extend(nodes[run:])
        for node in nodes[:run]:
            sides[1 if node[0] & bit else 0].insert(0, node)
        return sides


class AnyRefMap(_InItsOwnOrder):
    """A dict that iterates as scala.collection.mutable.AnyRefMap (2.13) does; entries are never removed.

    Kafka's ReplicaManager writes high watermarks in this order. The map is one table with open addressing: an entry
    whose slot is occupied probes on in growing steps, so the order depends on the order of arrival.
    """

    __slots__ = ("_hash_of",)

    def __init__(self, hash_of):
        super().__init__()
        self._hash_of = hash_of

    def __iter__(self):
        table = [None] * _ANY_REF_TABLE
        for size, key in enumerate(dict.keys(self), 1):
            _place(table, (self._finished(key), key))
            if 2 * size > len(table) - 1:
                moved = [None] * (2 * len(table))
                for entry in table:
                    if entry is not None:
                        _place(moved, entry)
                table = moved
        for entry in table:
            if entry is not None:
                yield entry[1]

    def _finished(self, key):
        """The first half of MurmurHash3's finalizer; 0 is reserved for an empty slot."""
        value = spread(self._hash_of(key)) * 0x85EBCA6B & 0xFFFFFFFF
        return ((value ^ value >> 13) & 0x7FFFFFFF) or 0x41081989


def _place(table, entry):
    mask = len(table) - 1
    at = entry[0] & mask
    step = 0
    while table[at] is not None:
        step += 1
        at = at + 2 * (step + 1) * step - 3 & mask
    table[at] = entry


class _Bin:
    """One bucket: (hash, key) in Java's chain order. A HashMap's bucket that has become a tree has the tree's shape,
    too, and links between neighbours: clients choose names, so many of them may have one hash."""

    __slots__ = ("_after", "_before", "_chain", "_first", "is_tree", "tree")

    def __init__(self, nodes):
        self._chain = nodes  # unless there are links
        self._first = self._after = self._before = None
        self.is_tree = False
        self.tree = None

    @property
    def nodes(self):
        """The entries in order; only a bucket without links may be changed by it."""
        if self._after is None:
            return self._chain
        found = []
        node = self._first
        while node is not None:
            found.append(node)
            node = self._after[node]
        return found

    def add(self, hashed, key):
        """Adds an entry; returns True if the chain has become too long."""
        node = (hashed, key)
        if not self.is_tree:
            self._chain.append(node)
            return len(self._chain) > _TREEIFY_AT
        self._link(self.tree.insert(node), node)
        self._root_to_front()
        return False

    def treeify(self):
        self.is_tree = True
        self._grow_tree()
        self._root_to_front()

    def _grow_tree(self):
        nodes = self.nodes
        self.tree = _Tree()
        for node in nodes:
            self.tree.insert(node)
        self._chain, self._first = None, nodes[0]
        self._after = dict(zip(nodes, nodes[1:] + [None]))
        self._before = dict(zip(nodes, [None] + nodes[:-1]))

    def _link(self, place, node):
        """Links a node behind another; at the front for None."""
        after = self._first if place is None else self._after[place]
        self._after[node], self._before[node] = after, place
        if after is not None:
            self._before[after] = node
        if place is None:
            self._first = node
        else:
            self._after[place] = node

    def _root_to_front(self):
        root = self.tree.root_node
        if root is self._first:
            return
        before, after = self._before[root], self._after[root]
        self._after[before] = after
        if after is not None:
            self._before[after] = before
        self._link(None, root)

    def remove(self, key):
        nodes = [node for node in self.nodes if node[1] != key]
        was_linked = self._after is not None
        self._chain, self._first, self._after, self._before = nodes, None, None, None
        if self.is_tree and len(nodes) <= _UNTREEIFY_AT:
            self.is_tree, self.tree = False, None
        elif was_linked:  # as good as Java's rebalancing for what follows; the chain does not change
            self._grow_tree()


class _Tree:
    """A red-black tree by (hash as a signed int, key), with the shape of HashMap.TreeNode."""

    __slots__ = ("left", "node", "parent", "red", "right", "root")

    def __init__(self):
        self.node = []
        self.left = []
        self.right = []
        self.parent = []
        self.red = []
        self.root = -1

    @property
    def root_node(self):
        return self.node[self.root]

    def insert(self, node):
        """Inserts a node and returns its parent there (itself, if it is the first)."""
        new = len(self.node)
        self.node.append(node)
        self.left.append(-1)
        self.right.append(-1)
        self.parent.append(-1)
        self.red.append(True)
        if self.root < 0:
            self.root = new
            self.red[new] = False
            return node
        at = self.root
        rank = (_int32(node[0]), node[1])
        while True:
            is_left = rank <= (_int32(self.node[at][0]), self.node[at][1])
            below = self.left[at] if is_left else self.right[at]
            if below < 0:
                break
            at = below
        self.parent[new] = at
        if is_left:
            self.left[at] = new
        else:
            self.right[at] = new
        self._balance(new)
        return self.node[at]

    def _balance(self, new):
        while True:
            up = self.parent[new]
            if up < 0:
                self.red[new] = False
                return
            top = self.parent[up]
            if not self.red[up] or top < 0:
                return
            up_is_left = self.left[top] == up
            uncle = self.right[top] if up_is_left else self.left[top]
            if uncle >= 0 and self.red[uncle]:
                self.red[uncle] = self.red[up] = False
                self.red[top] = True
                new = top
                continue
            if new == (self.right[up] if up_is_left else self.left[up]):
                new = up
                self._rotate(new, left=up_is_left)
                up = self.parent[new]
                top = self.parent[up]
            self.red[up] = False
            if top >= 0:
                self.red[top] = True
                self._rotate(top, left=not up_is_left)

    def _rotate(self, at, *, left):
        down, side = (self.right, self.left) if left else (self.left, self.right)
        child = down[at]
        inner = side[child]
        down[at] = inner
        if inner >= 0:
            self.parent[inner] = at
        up = self.parent[at]
        self.parent[child] = up
        if up < 0:
            self.root = child
            self.red[child] = False
        elif self.left[up] == at:
            self.left[up] = child
        else:
            self.right[up] = child
        side[child] = at
        self.parent[at] = child


def hash_map_order(keys, hash_of, *, initial_capacity=DEFAULT_CAPACITY):
    """Returns the keys in the order of a HashMap into which they were inserted one after the other."""
    rows = list(dict.fromkeys(keys))
    capacity = table_size_for(initial_capacity)
    hashes = [spread(hash_of(key)) for key in rows]
    counts = {}
    for hashed in hashes:
        index = hashed & (capacity - 1)
        counts[index] = counts.get(index, 0) + 1
    if max(counts.values(), default=0) < _TREEIFY_AT:
        # No bucket ever has enough entries to become a tree, and growing keeps the order within a chain.
        while len(rows) > capacity * 3 // 4:
            capacity *= 2
        buckets = [hashed & (capacity - 1) for hashed in hashes]
        return [rows[number] for number in sorted(range(len(rows)), key=buckets.__getitem__)]
    found = JavaHashMap(hash_of, initial_capacity)
    for key in rows:
        found[key] = None
    return list(found)
