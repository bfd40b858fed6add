#!/usr/bin/env python3
# verify_local.py: hash and load-verify what came home, against the digests taken at the source; write the receipt.
# Generated; do not edit. Source: templates/local/verify_local.py.j2
# To change it, edit the source or profiles/slurm.yaml, then: make profile=slurm
# --- bound values: profiles/slurm.yaml x jobs/demo.yaml ---
# the profile's name
PROFILE = 'slurm'
# the job's name
JOB = 'demo'
# --- end of bound values ---
import argparse
import ast
import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import math
import os
import pickletools
import re
import shlex
import stat
import struct
import subprocess
import sys
import time
import unicodedata
import zipfile
import zlib

USAGE = """usage: verify_local.py DIR... [--run-id ID] [--allow NAME]... [--accept PATH=WHY]... [--json]

Reads every file that DIR/PULL_MANIFEST.json lists, once: its SHA-256 against the one taken on the box, and its inside
(torch zip and older torch files, safetensors, npz, npy, JSON, pickles). No pickle is ever run. When all is ok it writes
DIR/RUN_FACTS.md and the receipt DIR/PULL_VERIFIED.json, and its last line is OK N/N, errors 0
with N the cells; the files are counted in the line above it. What an earlier run wrote is removed first. Nothing else in
DIR is changed. Several DIRs give one table and a receipt each.

  --run-id ID         the manifest must be of this run
  --allow NAME        a class or function, as module.name, that may stand in a pickle; it is not imported
  --accept PATH=WHY   take a file that is suspicious, unproven or needs-allowlist as ok; WHY goes into the receipt
  --json              one JSON object instead of text

verdicts: ok, corrupt, truncated, missing, needs-allowlist NAMES, unproven, suspicious (NaN, infinite, all zero, no tensor)
exit codes: 0 all is ok, 1 a file or cell is not, 64 usage, 65 a digest or the manifest does not match, 69 no such folder,
74 the receipt cannot be written, 130 interrupted"""

# lib/verify_stream.py: one read of a file feeds its digest, its CRCs and its content checks.
CHUNK = 1 << 20
MAX_READ = 64 << 20  # headers, pickles, JSON: the most of one file that is ever held in memory
CORRUPT, TRUNCATED, NEEDS, UNPROVEN, SUSPICIOUS, OK = "corrupt", "truncated", "needs-allowlist", "unproven", "suspicious", "ok"
WORST_FIRST = (CORRUPT, TRUNCATED, NEEDS, UNPROVEN, SUSPICIOUS, OK)


class Finding(Exception):
    """A verdict other than ok, and why."""

    def __init__(self, verdict, text):
        super().__init__(text)
        self.verdict, self.text = verdict, text


class Source(io.FileIO):
    """A file that never hands out more than MAX_READ at once, whatever a header asks for."""

    def __init__(self, fd):
        super().__init__(fd, "rb")
        self.size = os.fstat(fd).st_size

    def read(self, n=-1):
        want = max(0, self.size - self.tell()) if n is None or n < 0 else min(n, max(0, self.size - self.tell()))
        if want > MAX_READ:
            raise Finding(UNPROVEN, "a header of %d bytes is more than is read here" % want)
        return super().read(want)

    def at(self, offset, n):
        """n bytes from offset, fewer at the end."""
        self.seek(offset)
        return self.read(n)


class Plan:
    """What is known of a file before it is read through: how it is proved, its parts in file order, what was found."""

    def __init__(self, how):
        self.how, self.parts, self.findings = how, [], []
        self.tensors, self.names, self.torch, self.json = {}, set(), False, None

    def found(self, verdict, text):
        self.findings.append(Finding(verdict, text))


class Feeder:
    """Hands each part its bytes of a stream. Parts are sorted and do not overlap."""

    def __init__(self, parts, findings):
        self.parts = sorted(parts, key=lambda part: (part.start, part.end))
        self.findings, self.pos, self.next = findings, 0, 0
        for before, after in zip(self.parts, self.parts[1:]):
            if after.start < before.end:
                raise Finding(CORRUPT, "its parts overlap")

    def feed(self, chunk):
        end = self.pos + len(chunk)
        while self.next < len(self.parts) and self.parts[self.next].start < end:
            part = self.parts[self.next]
            a, b = max(0, part.start - self.pos), min(len(chunk), part.end - self.pos)
            part.feed(chunk[a:b])  # a whole slice of bytes is no copy
            if part.end > end:
                break
            self._finish(part)
        self.pos = end

    def _finish(self, part):
        self.next += 1
        try:
            part.finish(self.findings)
        except Finding as found:
            self.findings.append(found)

    def finish(self):
        while self.next < len(self.parts):
            self._finish(self.parts[self.next])


def read_through(src, plan):
    """The one read: SHA-256 of the file in hex; what the parts find goes into plan.findings."""
    feeder, sha = Feeder(plan.parts, plan.findings), hashlib.sha256()
    src.seek(0)
    chunk = src.read(CHUNK)
    while chunk:
        sha.update(chunk)
        feeder.feed(chunk)
        chunk = src.read(CHUNK)
    feeder.finish()
    return sha.hexdigest()


class Whole:
    """A part that is kept and handed on when it is complete (JSON)."""

    def __init__(self, start, end, done):
        self.start, self.end, self.done, self.chunks = start, end, done, []

    def feed(self, data):
        self.chunks.append(data)

    def finish(self, findings):
        self.done(b"".join(self.chunks))


class Member:
    """One member of a zip: its CRC, its length, and the parts inside. A bomb is stopped at the length that it promised."""

    def __init__(self, info, start, inner, findings):
        self.info, self.start, self.end = info, start, start + info.compress_size
        self.crc, self.got, self.bad, self.feeder = 0, 0, "", Feeder(inner, findings)
        self.inflate = zlib.decompressobj(-15) if info.compress_type == zipfile.ZIP_DEFLATED else None

    def feed(self, data):
        if self.inflate is None:
            return self._plain(data)
        while data and not self.bad and not self.inflate.eof:
            try:
                self._plain(self.inflate.decompress(data, CHUNK))
            except zlib.error:
                self.bad = "does not unpack"
            data = self.inflate.unconsumed_tail
        return None

    def _plain(self, data):
        self.got += len(data)
        if self.got > self.info.file_size:
            self.bad = "unpacks to more than it says"
            return
        self.crc = zlib.crc32(data, self.crc)
        self.feeder.feed(data)

    def finish(self, findings):
        if self.inflate is not None and not self.bad:
            self._plain(self.inflate.flush(CHUNK))
        self.feeder.finish()
        if not self.bad and self.got != self.info.file_size:
            self.bad = "unpacks to %d of %d bytes" % (self.got, self.info.file_size)
        if not self.bad and self.crc != self.info.CRC:
            self.bad = "has a wrong CRC"
        if self.bad:
            findings.append(Finding(CORRUPT, "member %s %s" % (show(self.info.filename), self.bad)))


# kind: bytes of an element, its exponent bits. All of them set means NaN or infinite.
FLOATS = {"f2": (2, 0x7C00), "bf2": (2, 0x7F80), "f4": (4, 0x7F800000), "f8": (8, 0x7FF0000000000000)}


@functools.lru_cache(maxsize=32)
def _lanes(size, exponent, count):
    """Exponent mask, its lowest bit, and the sign bit, repeated in one big number."""
    low = exponent & -exponent
    return tuple(int.from_bytes(one.to_bytes(size, "little") * count, "little") for one in (exponent, low, 1 << (8 * size - 1)))


class Floats:
    """Floating numbers of one tensor: any that is not finite, or all of them zero. No NumPy: big numbers do many lanes."""

    def __init__(self, start, end, kind, name, big=False):
        self.start, self.end, self.name, self.big = start, end, name, big
        self.size, self.exponent = FLOATS[kind]
        top = self.exponent >> (8 * self.size - 8)
        self.tops = [bytes([b]) for b in range(256) if b & 0x7F & top == top]
        self.carry, self.bad, self.zero, self.done = b"", "", True, 0

    def feed(self, data):
        if self.carry:
            data = self.carry + data
        cut = len(data) - len(data) % self.size
        self.carry, data = data[cut:], data[:cut]
        if self.zero and data:
            self.zero = data == bytes(len(data)) or not data.strip(b"\0\x80")  # 0x80: -0.0
        if not self.bad and data:
            high = data[0 if self.big else self.size - 1::self.size]
            if any(top in high for top in self.tops):  # rare in honest weights, so the exact look is too
                self._look(data)
        self.done += len(data) // self.size

    def _look(self, data):
        count, bits, order = len(data) // self.size, 8 * self.size, "big" if self.big else "little"
        mask, low, sign = _lanes(self.size, self.exponent, count)
        hits = ((int.from_bytes(data, order) & mask) + low) & sign
        if not hits:
            return
        lane = (hits.bit_length() if self.big else (hits & -hits).bit_length()) - 1
        index = count - 1 - lane // bits if self.big else lane // bits
        value = int.from_bytes(data[index * self.size:(index + 1) * self.size], order)
        finite_part = value & ((self.exponent & -self.exponent) - 1)
        self.bad = "%s at element %d" % ("NaN" if finite_part else "-inf" if value >> (bits - 1) else "inf", self.done + index)

    def finish(self, findings):
        if self.bad:
            findings.append(Finding(SUSPICIOUS, "%s: %s" % (show(self.name), self.bad)))
        elif self.zero and self.end - self.start > self.size:
            findings.append(Finding(SUSPICIOUS, "%s: all zero" % show(self.name)))


def show(text, limit=120):
    """Foreign text made fit for one line of a terminal."""
    text = "".join(c if c.isprintable() else "?" for c in str(text))
    return text if len(text) <= limit else text[:limit - 3] + "..."

# lib/verify_pickle.py: walks a pickle's opcodes on a stack of inert nodes. Nothing is imported, called or built.
MAX_OPCODES = 3000000
SAFE_NAMES = frozenset(
    "collections.OrderedDict collections.Counter _codecs.encode builtins.bytearray builtins.set builtins.complex"
    " __builtin__.set __builtin__.bytearray __builtin__.complex builtins.frozenset"
    " torch.Size torch.device torch.Tensor torch.nn.parameter.Parameter torch.nn.parameter.Buffer torch.serialization._get_layout"
    " torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3 torch._utils._rebuild_parameter"
    " torch._utils._rebuild_parameter_with_state torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor"
    " torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_nested_tensor torch._tensor._rebuild_from_type_v2"
    " torch.per_tensor_affine torch.per_tensor_symmetric torch.per_channel_affine torch.per_channel_symmetric"
    " torch.per_channel_affine_float_qparams torch.storage.UntypedStorage torch.storage.TypedStorage".split())
STORAGES = {  # class in torch: bytes of an element, kind of floating number or ''
    "DoubleStorage": (8, "f8"), "FloatStorage": (4, "f4"), "HalfStorage": (2, "f2"), "BFloat16Storage": (2, "bf2"),
    "LongStorage": (8, ""), "IntStorage": (4, ""), "ShortStorage": (2, ""), "CharStorage": (1, ""), "ByteStorage": (1, ""),
    "BoolStorage": (1, ""), "ComplexDoubleStorage": (16, "f8"), "ComplexFloatStorage": (8, "f4"), "QInt8Storage": (1, ""),
    "QUInt8Storage": (1, ""), "QInt32Storage": (4, ""), "QUInt4x2Storage": (1, ""), "QUInt2x4Storage": (1, ""), "UntypedStorage": (1, "")}
DTYPES = frozenset(
    "float64 double float32 float float16 half bfloat16 complex32 complex64 cfloat complex128 cdouble int64 long int32 int int16 short"
    " int8 uint8 uint16 uint32 uint64 bool quint8 qint8 qint32 quint4x2 quint2x4 float8_e4m3fn float8_e4m3fnuz float8_e5m2"
    " float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2".split())
# Names that start something. No --allow makes a file ok that holds one.
NEVER = re.compile(
    r"(os|posix|nt|subprocess|sys|runpy|pty|shutil|socket|ctypes|importlib|pickle|_pickle|code|webbrowser|commands|marshal|operator"
    r"|multiprocessing|asyncio|threading|pip|timeit|pdb|bdb|cProfile|profile|torch\.hub|torch\.serialization|torch\.jit|torch\.storage"
    r"|numpy\.testing|numpy\.f2py)(\..*)?$|types\.(Function|Code)Type$|(builtins|__builtin__)\.(eval|exec|execfile|compile|open"
    r"|__import__|getattr|setattr|delattr|globals|locals|vars|apply|input|breakpoint|help|map|filter)$|\(")


class Node:
    """Something that the pickle would have built."""

    __slots__ = ("kind", "items", "pairs")

    def __init__(self, kind, items):
        self.kind, self.items, self.pairs = kind, items, []


def safe_name(name):
    """True for a name that plain checkpoints need and that starts nothing."""
    if name in SAFE_NAMES:
        return True
    head, _, tail = name.rpartition(".")
    return head == "torch" and (tail in STORAGES or tail in DTYPES)


class Walk:
    """The outcome for one pickle: root node, names, persistent ids, number of opcodes, unread rest."""

    def __init__(self, stream):
        self.names, self.persistent, self.count = set(), [], 0
        self.stack, self.marks, self.memo = [], [], {}
        start = stream.tell()
        try:
            for op, arg, _ in pickletools.genops(stream):
                self.count += 1
                if self.count > MAX_OPCODES:
                    raise Finding(UNPROVEN, "a pickle of more than %d opcodes is not walked" % MAX_OPCODES)
                self._step(op.name, arg)
            if len(self.stack) != 1 or self.marks:
                raise Finding(CORRUPT, "a pickle leaves %d objects on its stack" % len(self.stack))
        except (IndexError, KeyError, AttributeError, TypeError):
            raise Finding(CORRUPT, "opcode %d of a pickle does not fit its stack" % self.count)
        except (ValueError, UnicodeError, struct.error, OverflowError) as error:
            rest = stream.read(1)
            if start == stream.tell() or (not rest and "unknown" not in str(error)):
                raise Finding(TRUNCATED, "a pickle ends before its STOP")
            raise Finding(CORRUPT, "not a pickle at opcode %d" % (self.count + 1))
        self.root = self.stack.pop()
        self.memo = None

    def _pop_mark(self):
        mark = self.marks.pop()
        if mark > len(self.stack):
            raise IndexError
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _pop(self):
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack.pop()

    def _name(self, name):
        self.names.add(name)
        self.stack.append(Node("name", [name]))

    def _call(self, function, args):
        if not (isinstance(function, Node) and function.kind == "name"):
            self.names.add("(a computed callable)")
        self.stack.append(Node("call", [function] + args))

    def _step(self, op, arg):
        stack = self.stack
        if op in ("PROTO", "FRAME", "READONLY_BUFFER", "STOP"):
            pass
        elif op == "MARK":
            self.marks.append(len(stack))
        elif op in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"):
            stack.append(Node(op[6:].lower(), []))
        elif op in ("LIST", "TUPLE", "FROZENSET"):
            stack.append(Node(op.lower(), self._pop_mark()))
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            items = [self._pop() for _ in range(int(op[5]))]
            stack.append(Node("tuple", items[::-1]))
        elif op == "DICT":
            items = self._pop_mark()
            stack.append(Node("dict", []))
            stack[-1].pairs = list(zip(items[::2], items[1::2]))
        elif op == "APPEND":
            item = self._pop()
            stack[-1].items.append(item)
        elif op in ("APPENDS", "ADDITEMS"):
            items = self._pop_mark()
            stack[-1].items.extend(items)
        elif op == "SETITEM":
            value, key = self._pop(), self._pop()
            stack[-1].pairs.append((key, value))
        elif op == "SETITEMS":
            items = self._pop_mark()
            stack[-1].pairs.extend(zip(items[::2], items[1::2]))
        elif op == "POP":
            if self.marks and self.marks[-1] == len(stack):
                self.marks.pop()
            else:
                stack.pop()
        elif op == "POP_MARK":
            self._pop_mark()
        elif op == "DUP":
            stack.append(stack[-1])
        elif op in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[int(arg)])
        elif op in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(arg)] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        else:
            self._step_name(op, arg)

    def _step_name(self, op, arg):
        """Opcodes that name something or would call it; what is left pushes a plain value."""
        if op == "GLOBAL":
            self._name(".".join(arg.split(" ", 1)))
        elif op == "STACK_GLOBAL":
            name, module = self._pop(), self._pop()
            known = isinstance(name, str) and isinstance(module, str)
            self._name("%s.%s" % (module, name) if known else "(a computed name)")
        elif op == "INST":
            args = self._pop_mark()
            self._name(".".join(arg.split(" ", 1)))
            self._call(self.stack.pop(), args)
        elif op == "OBJ":
            args = self._pop_mark()
            self._call(args[0], args[1:])
        elif op in ("REDUCE", "NEWOBJ"):
            args = self._pop()
            self._call(self._pop(), [args])
        elif op == "NEWOBJ_EX":
            more, args = self._pop(), self._pop()
            self._call(self._pop(), [args, more])
        elif op == "BUILD":
            state = self._pop()
            self.stack[-1].items.append(state)
        elif op in ("EXT1", "EXT2", "EXT4"):
            self._name("(extension code %d)" % arg)
        elif op in ("PERSID", "BINPERSID"):
            node = Node("persistent", [arg if op == "PERSID" else self._pop()])
            self.persistent.append(node)
            self.stack.append(node)
        else:
            self.stack.append(arg)


def judge_names(plan, names, allow):
    """Note the names that neither plain checkpoints need nor a person has allowed."""
    plan.names |= names
    asked = sorted(name for name in names if not safe_name(name) and (name not in allow or NEVER.match(name)))
    if asked:
        plan.found(NEEDS, " ".join(show(name) for name in asked[:20]) + (" and %d more" % (len(asked) - 20) if asked[20:] else ""))


def named_nodes(root):
    """Every node that rebuilds a tensor, with the keys that lead to it. Not recursive: nesting may be hostile."""
    todo, seen = [(root, "")], set()
    while todo:
        node, name = todo.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.kind == "call" and isinstance(node.items[0], Node) and node.items[0].items[:1]:
            function = node.items[0].items[0]
            if function in TENSOR_CALLS and len(node.items) > 1 and isinstance(node.items[1], Node):
                yield name, function, node.items[1].items
                continue
        inner = [(item, name) for item in node.items]
        for key, value in node.pairs:
            part = key if isinstance(key, (str, int)) else "?"
            inner.append((value, ("%s/%s" % (name, part) if name else str(part))[-200:]))
        todo.extend(reversed(inner))


TENSOR_CALLS = frozenset("torch._utils." + one for one in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"))

# lib/verify_torch.py: torch's zip and older stream format, proved from names, storages and sizes; then torch itself, if it is here.
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def storage_table(walk):
    """Storages by key: [bytes of an element, kind, elements, tensors on it]."""
    table = {}
    for node in walk.persistent:
        what = node.items[0]
        parts = what.items if isinstance(what, Node) and what.kind == "tuple" else []
        if len(parts) < 5 or parts[0] != "storage" or not isinstance(parts[1], Node) or not isinstance(parts[4], int) or parts[4] < 0:
            raise Finding(CORRUPT, "a persistent id is not a torch storage")
        head, _, kind = str(parts[1].items[0]).rpartition(".")
        if head not in ("torch", "torch.storage") or kind not in STORAGES:
            raise Finding(UNPROVEN, "a storage of the unknown type %s" % show(parts[1].items[0]))
        row = [STORAGES[kind][0], STORAGES[kind][1], parts[4], []]
        if table.setdefault(str(parts[2]), row)[:3] != row[:3]:
            raise Finding(CORRUPT, "storage %s is named twice with different sizes" % show(parts[2]))
    return table


def place_tensors(plan, walk, table):
    """Put each tensor on its storage, and check that it fits there."""
    for name, function, args in named_nodes(walk.root):
        if len(args) < 4 or not isinstance(args[0], Node) or args[0].kind != "persistent":
            raise Finding(CORRUPT, "tensor %s has no storage" % show(name))
        size, stride = (tuple(one.items) if isinstance(one, Node) else None for one in args[2:4])
        numbers = (args[1],) + (size or ()) + (stride or ())
        if size is None or stride is None or len(size) != len(stride) or any(not isinstance(n, int) or n < 0 for n in numbers):
            raise Finding(CORRUPT, "tensor %s has no proper shape" % show(name))
        element, kind, count, tensors = table[str(args[0].items[0].items[2])]
        total, dense, step = 1, True, 1
        for length, jump in reversed(list(zip(size, stride))):
            dense, total, step = dense and (jump == step or length == 1), total * length, step * length
        last = args[1] + sum((length - 1) * jump for length, jump in zip(size, stride)) + 1 if total else 0
        if last > count and not function.endswith("_v3"):
            raise Finding(CORRUPT, "tensor %s needs %d elements, its storage has %d" % (show(name), last, count))
        plan.tensors[name] = total * element
        if total:
            tensors.append((args[1], args[1] + total, name) if dense else (0, count, name))


def float_parts(row, big):
    """The floating tensors of one storage as parts from its first byte on."""
    element, kind, count, tensors = row
    if not kind or not tensors:
        return []
    spans = sorted({(first, last): name for first, last, name in reversed(tensors)}.items())
    if any(after[0][0] < before[0][1] for before, after in zip(spans, spans[1:])):
        spans = [((0, count), spans[0][1])]
    return [Floats(first * element, last * element, kind, name, big) for (first, last), name in spans]


def plan_torch_zip(src, archive, infos, pickle_name, allow):
    """A checkpoint as torch >= 1.6 writes it."""
    folder = pickle_name[:-len("data.pkl")]
    walk = Walk(io.BytesIO(read_member(archive, infos[pickle_name])))
    plan = Plan("torch zip: %d CRCs, %d opcodes walked, " % (len(infos), walk.count))
    judge_names(plan, walk.names, allow)
    table = storage_table(walk)
    place_tensors(plan, walk, table)
    order = infos.get(folder + "byteorder")
    big = order is not None and read_member(archive, order) == b"big"
    inner = {}
    for key, row in table.items():
        info = infos.get(folder + "data/" + key)
        if info is None:
            raise Finding(CORRUPT, "storage %s is not in the archive" % show(key))
        if info.file_size != row[0] * row[2]:
            raise Finding(CORRUPT, "storage %s has %d of %d bytes" % (show(key), info.file_size, row[0] * row[2]))
        inner[info.filename] = float_parts(row, big)
    plan.how += "%d storages of the right size" % len(table)
    plan.torch = True
    add_members(plan, src, infos, inner)
    if not plan.tensors and not plan.findings:
        plan.found(SUSPICIOUS, "a checkpoint without a tensor")
    return plan


def plan_legacy(src, allow):
    """A checkpoint as torch < 1.6 wrote it: five pickles, then each storage with its length before it."""
    stream = io.BytesIO(src.at(0, min(src.size, MAX_READ)))
    walks = [Walk(stream) for _ in range(5)]
    plan = Plan("older torch stream: %d opcodes walked, " % sum(walk.count for walk in walks))
    judge_names(plan, set().union(*(walk.names for walk in walks)), allow)
    if walks[1].root != 1001:
        plan.found(UNPROVEN, "an unknown version of torch's older format")
        return plan
    info = walks[2].root.pairs if isinstance(walks[2].root, Node) else []
    big = ("little_endian", False) in info
    table = storage_table(walks[3])
    place_tensors(plan, walks[3], table)
    keys = [str(key) for key in walks[4].root.items] if isinstance(walks[4].root, Node) else []
    if sorted(keys) != sorted(table):
        raise Finding(CORRUPT, "its list of storages is not what its tensors need")
    pos = stream.tell()
    for key in keys:
        row = table[key]
        if src.at(pos, 8) != row[2].to_bytes(8, "big" if big else "little"):
            raise Finding(TRUNCATED if pos + 8 > src.size else CORRUPT, "storage %s does not begin where it should" % show(key))
        for part in float_parts(row, big):
            part.start, part.end = part.start + pos + 8, part.end + pos + 8
            plan.parts.append(part)
        pos += 8 + row[0] * row[2]
    check_length(src.size, pos)
    plan.how += "%d storages of the right size" % len(table)
    plan.torch = src.size <= 4 * MAX_READ  # torch cannot map this format; it would take all of it into memory
    if not plan.tensors and not plan.findings:
        plan.found(SUSPICIOUS, "a checkpoint without a tensor")
    return plan


def check_length(size, expected):
    """Exactly as long as its header says."""
    if size < expected:
        raise Finding(TRUNCATED, "truncated by %d bytes" % (expected - size))
    if size > expected:
        raise Finding(CORRUPT, "%d trailing bytes" % (size - expected))


# Runs in a process of its own: it starts while files are hashed, and a crash in there is one finding, not our end.
# Only files come here whose every name is one that plain checkpoints need.
TORCH_CHILD = """
import sys
sys.path[:] = [p for p in sys.path if p not in ("", ".")]
import json, warnings
warnings.simplefilter("ignore")
try:
    import torch
    print(json.dumps(["torch", str(torch.__version__)]), flush=True)
except BaseException:
    sys.exit(0)
for line in sys.stdin:
    path, zipped = json.loads(line)
    try:
        more = {"mmap": True} if zipped and tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 1) else {}
        torch.load(path, map_location="cpu", weights_only=True, **more)
        answer = ""
    except Exception as error:
        answer = type(error).__name__ + ": " + (str(error).strip().splitlines() or ["?"])[0]
    print(json.dumps([path, answer]), flush=True)
"""


class TorchChild:
    """torch.load(weights_only=True) for the files that are already proved; `version` is '' where there is no torch."""

    def __init__(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("TORCH_FORCE_")}
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        self.version, self.process = "", subprocess.Popen(
            [sys.executable, "-c", TORCH_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)

    def ask(self, files):
        """Path -> '' or torch's complaint, for (path, is a zip). A path without an answer is not in it."""
        text = "".join(json.dumps(one) + "\n" for one in files).encode()
        try:
            out = self.process.communicate(text, timeout=120 + 20 * len(files))[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            out = self.process.communicate()[0]
        answers = {}
        for line in out.decode("utf-8", "replace").splitlines():
            try:
                key, value = json.loads(line)
            except ValueError:
                continue
            if not self.version:
                self.version = value if key == "torch" else ""
            else:
                answers[key] = value
        return answers

# lib/verify_formats.py: what a file is, and what must hold for it. Each plan_* gives a Plan before the file is read through.
TORCH_NAMES = (".pt", ".pth", ".ckpt", ".pth.tar", ".pt.tar", ".ckpt.tar")
PICKLE_NAMES = (".pkl", ".pickle", ".joblib")
JSON_NAMES = (".json", ".jsonl", ".ndjson")
OPAQUE_NAMES = (".bin", ".h5", ".hdf5", ".onnx", ".gguf", ".pb", ".tflite", ".msgpack", ".mat", ".parquet", ".pte", ".engine")
LOADED_NAMES = TORCH_NAMES + PICKLE_NAMES + JSON_NAMES + OPAQUE_NAMES + (".safetensors", ".npz", ".npy")
MAX_MEMBERS = 500000
# type in safetensors: bits of an element, kind of floating number or '' (integers, bool and the small floats are not looked into)
ST_TYPES = {"F64": (64, "f8"), "F32": (32, "f4"), "F16": (16, "f2"), "BF16": (16, "bf2"), "C64": (64, "f4"), "I64": (64, ""), "U64": (64, ""),
            "I32": (32, ""), "U32": (32, ""), "I16": (16, ""), "U16": (16, ""), "I8": (8, ""), "U8": (8, ""), "BOOL": (8, ""),
            "F8_E4M3": (8, ""), "F8_E5M2": (8, ""), "F8_E8M0": (8, ""), "F8_E4M3FNUZ": (8, ""), "F8_E5M2FNUZ": (8, ""),
            "F4": (4, ""), "F6_E2M3": (6, ""), "F6_E3M2": (6, "")}


def make_plan(name, src, allow):
    """The plan for a file, by its first bytes and its name."""
    low, head = name.lower(), src.at(0, 512)
    if not head:
        if low.endswith(LOADED_NAMES):
            raise Finding(TRUNCATED, "an empty file")
        return Plan("empty, as at the source")
    if low.endswith(".safetensors"):
        return plan_safetensors(src, head)
    if low.endswith(JSON_NAMES):
        return plan_json(src, low)
    if head[:4] == b"PK\3\4":
        return plan_zip(src, low, allow)
    if head[:6] == b"\x93NUMPY":
        return plan_npy(src, allow)
    if head.startswith(LEGACY_MAGIC):
        return plan_legacy(src, allow)
    if low.endswith(TORCH_NAMES) and (head[257:262] == b"ustar" or head[:8] == b"sys_info"):
        raise Finding(UNPROVEN, "a tar as torch wrote it before 0.1.10: load and save it anew with a current torch")
    if low.endswith(PICKLE_NAMES) or (head[0] == 0x80 and 2 <= head[1:2][0] <= 5 if len(head) > 1 else False):
        return plan_pickle(src, allow)
    if low.endswith(TORCH_NAMES + (".npz", ".npy")):
        raise Finding(CORRUPT, "begins with zeros" if not head.strip(b"\0") else "is in no format of that name")
    if low.endswith(OPAQUE_NAMES):
        raise Finding(UNPROVEN, "nothing here can load this format: only its digest is known to be right")
    if not head.strip(b"\0"):
        raise Finding(SUSPICIOUS, "begins with zeros")
    return Plan("digest: no format that is loaded")


def plan_pickle(src, allow):
    """Pickles, one after the other to the last byte; walked, never loaded."""
    if src.size > MAX_READ:
        raise Finding(UNPROVEN, "a raw pickle of %d bytes is not walked" % src.size)
    stream, names, count = io.BytesIO(src.at(0, src.size)), set(), 0
    while stream.tell() < src.size:
        walk = Walk(stream)
        names |= walk.names
        count += walk.count
        if count > MAX_OPCODES:
            raise Finding(UNPROVEN, "pickles of more than %d opcodes are not walked" % MAX_OPCODES)
    plan = Plan("pickle: %d opcodes walked, not loaded" % count)
    judge_names(plan, names, allow)
    return plan


def read_member(archive, info):
    """A small member of a zip, unpacked."""
    if info.file_size > MAX_READ or info.compress_size > MAX_READ:
        raise Finding(UNPROVEN, "member %s of %d bytes is not read" % (show(info.filename), info.file_size))
    try:
        with archive.open(info) as member:
            data = member.read(info.file_size)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise Finding(CORRUPT, "member %s cannot be read" % show(info.filename))
    if len(data) != info.file_size:
        raise Finding(CORRUPT, "member %s has %d of %d bytes" % (show(info.filename), len(data), info.file_size))
    return data


def open_zip(src):
    """The archive and its members by name; nothing is unpacked."""
    try:
        archive = zipfile.ZipFile(src)
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, UnicodeError, OSError):
        raise Finding(TRUNCATED, "truncated archive: it begins as a zip and has no directory at its end")
    infos = {info.filename: info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()):
        raise Finding(CORRUPT, "a zip with two members of one name")
    if len(infos) > MAX_MEMBERS:
        raise Finding(UNPROVEN, "a zip of %d members" % len(infos))
    for info in infos.values():
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Finding(UNPROVEN, "member %s is encrypted or packed in a way that is not read here" % show(info.filename))
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise Finding(CORRUPT, "member %s has two sizes" % show(info.filename))
    if sum(info.file_size for info in infos.values()) > max(4 << 30, 50 * src.size):
        raise Finding(UNPROVEN, "a zip bomb: it unpacks to %d bytes" % sum(info.file_size for info in infos.values()))
    return archive, infos


def add_members(plan, src, infos, inner):
    """Every member as a part to be checked against its CRC; `inner`: parts within, by member."""
    for info in infos.values():
        local = src.at(info.header_offset, 30)
        if len(local) < 30 or local[:4] != b"PK\3\4":
            raise Finding(CORRUPT, "member %s is not where the directory says" % show(info.filename))
        start = info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))
        if start + info.compress_size > src.size:
            raise Finding(CORRUPT, "member %s reaches behind the end" % show(info.filename))
        plan.parts.append(Member(info, start, inner.get(info.filename, ()), plan.findings))


def plan_zip(src, low, allow):
    """A torch checkpoint, an npz or another zip."""
    archive, infos = open_zip(src)
    pickles = [name for name in infos if name.lower().endswith(PICKLE_NAMES)]
    ours = [name for name in pickles if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(ours) == 1:
        plan = plan_torch_zip(src, archive, infos, ours[0], allow)
    elif low.endswith(TORCH_NAMES) or (low.endswith(".bin") and "pytorch" in low):
        raise Finding(CORRUPT, "a zip, but not as torch writes it")
    else:
        plan = Plan("zip: %d CRCs" % len(infos))
        inner = {}
        for name, info in infos.items():
            if name.endswith(".npy"):
                inner[name] = npy_parts(plan, read_npy_head(archive, info), info.file_size, name, allow,
                                        lambda offset, info=info: read_member(archive, info)[offset:])
        add_members(plan, src, infos, inner)
        if low.endswith(".npz") and not inner:
            plan.found(SUSPICIOUS, "an npz without an array")
    for name in pickles:
        if name not in ours:  # a pickle in there runs as well as one outside
            judge_names(plan, Walk(io.BytesIO(read_member(archive, infos[name]))).names, allow)
    return plan


def read_npy_head(archive, info):
    try:
        with archive.open(info) as member:
            return member.read(min(info.file_size, 1 << 16))
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise Finding(CORRUPT, "member %s cannot be read" % show(info.filename))


def plan_npy(src, allow):
    """One NumPy array."""
    plan = Plan("npy: header and exact length")
    plan.parts = npy_parts(plan, src.at(0, 1 << 16), src.size, "array", allow, lambda offset: src.at(offset, src.size - offset))
    return plan


def npy_parts(plan, head, size, name, allow, rest):
    """Check an npy header against the length; the parts to look into. `rest(offset)`: the bytes from there (object arrays)."""
    if head[:6] != b"\x93NUMPY" or len(head) < 12 or head[6] not in (1, 2, 3):
        raise Finding(TRUNCATED if len(head) < 12 else CORRUPT, "%s is not an npy array" % show(name))
    length, offset = (struct.unpack("<H", head[8:10])[0], 10) if head[6] == 1 else (struct.unpack("<I", head[8:12])[0], 12)
    offset += length
    if length > 10000 or offset > len(head):
        raise Finding(TRUNCATED if offset > size else UNPROVEN, "%s has an npy header of %d bytes" % (show(name), length))
    try:
        header = ast.literal_eval(head[offset - length:offset].decode("latin-1").strip())
        descr, shape = header["descr"], header["shape"]
        count = 1
        for n in shape:
            if not isinstance(n, int) or n < 0:
                raise ValueError
            count *= n
        element, kind, objects = npy_type(descr)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise Finding(CORRUPT, "%s has no proper npy header" % show(name))
    if objects:
        judge_names(plan, Walk(io.BytesIO(rest(offset))).names | {"numpy.object_"}, allow)
        return []
    check_length(size, offset + count * element)
    plan.tensors[name] = count * element
    big = isinstance(descr, str) and descr[:1] == ">"
    return [Floats(offset, offset + count * element, kind, name, big)] if kind and count else []


def npy_type(descr):
    """(bytes of an element, kind of floating number or '', whether it holds objects)."""
    if isinstance(descr, str):
        match = re.match(r"[<>|=]?([?bBiufcmMOSUaV])(\d{0,6})(\[.{1,20}\])?$", descr)
        if not match:
            raise ValueError
        number = int(match.group(2) or 1) * (4 if match.group(1) == "U" else 1)
        kind = {"f2": "f2", "f4": "f4", "f8": "f8", "c8": "f4", "c16": "f8"}.get(match.group(1) + match.group(2), "")
        return number, kind, match.group(1) == "O"
    total, objects = 0, False
    for field in descr:
        one, _, obj = npy_type(field[1])
        for n in field[2] if len(field) > 2 else ():
            one *= n
        total, objects = total + one, objects or obj
    return total, "", objects


def plan_safetensors(src, head):
    """Header, offsets without gap or overlap, and the exact length."""
    if head[:4] in (b"PK\3\4", b"\x80\x02\x8a\n"):
        raise Finding(CORRUPT, "not safetensors: a torch file under that name")
    if len(head) < 8:
        raise Finding(TRUNCATED, "truncated by at least %d bytes" % (8 - len(head)))
    length = int.from_bytes(head[:8], "little")
    if length > 100000000:
        raise Finding(CORRUPT, "not safetensors: a header of %d bytes" % length)
    if 8 + length > src.size:
        raise Finding(TRUNCATED, "truncated: its header has %d bytes, the file %d" % (length, src.size))
    try:
        header = load_json(src.at(8, length))
    except ValueError:
        raise Finding(CORRUPT, "not safetensors: its header is not JSON")
    if not isinstance(header, dict):
        raise Finding(CORRUPT, "not safetensors: its header is no object")
    header.pop("__metadata__", None)
    plan, rows = Plan("safetensors: %d tensors, offsets and exact length" % len(header)), []
    for name, one in header.items():
        try:
            bits, kind = ST_TYPES[one["dtype"]]
            first, last = one["data_offsets"]
            count = 1
            for n in one["shape"]:
                count *= n
            if any(type(n) is not int or n < 0 for n in one["shape"] + [first, last]) or (last - first) * 8 != count * bits:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            known = isinstance(one, dict) and one.get("dtype") in list(ST_TYPES)
            raise Finding(CORRUPT, "tensor %s: type, shape and offsets do not agree" % show(name) if known else "tensor %s has an unknown type" % show(name))
        rows.append((first, last, name, kind))
        plan.tensors[name] = last - first
    end = 0
    for first, last, name, kind in sorted(rows):
        if first != end:
            raise Finding(CORRUPT, "tensor %s %s" % (show(name), "overlaps another" if first < end else "follows a gap"))
        end = last
        if kind and last > first:
            plan.parts.append(Floats(8 + length + first, 8 + length + last, kind, name))
    check_length(src.size, 8 + length + end)
    if not rows:
        plan.found(SUSPICIOUS, "a checkpoint without a tensor")
    return plan


def load_json(data, floats=None):
    """JSON without surprises: a key twice, endless nesting or a huge number is a ValueError. `floats`: receives every float."""
    def pairs(items):
        if len(dict(items)) != len(items):
            raise ValueError("a key twice")
        return dict(items)

    def real(text):
        if floats is not None:
            floats.append(float(text))
        return float(text)

    def whole(text):
        return int(text) if len(text) < 40 else real(text)
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs, parse_float=real, parse_constant=real, parse_int=whole)
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply")


def plan_json(src, low):
    """Metrics: any JSON value, or one a line."""
    if src.size > MAX_READ:
        raise Finding(UNPROVEN, "JSON of %d bytes is not read" % src.size)
    plan = Plan("JSON: parsed")

    def done(data):
        floats = []
        try:
            if low.endswith(".json"):
                plan.json = load_json(data, floats)
            else:
                plan.json = [load_json(line, floats) for line in data.split(b"\n") if line.strip()]
        except ValueError as error:
            text = str(error)
            cut = isinstance(error, json.JSONDecodeError) and not data[error.pos:].strip() or "Unterminated" in text
            raise Finding(TRUNCATED if cut or not data.strip() else CORRUPT, "not JSON: %s" % show(text))
        words = [text for text in plain_values(plan.json) if isinstance(text, str) and text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity")]
        if words or any(not math.isfinite(n) for n in floats):
            plan.found(SUSPICIOUS, "a metric that is NaN or infinite")
        elif floats and not any(floats):
            plan.found(SUSPICIOUS, "every metric is zero")
        elif plan.json in (None, [], {}, ""):
            plan.found(SUSPICIOUS, "JSON that holds nothing")
    plan.parts.append(Whole(0, src.size, done))
    return plan


def plain_values(value):
    """All strings, numbers and constants in a JSON value."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, (dict, list)):
            todo.extend(one.values() if isinstance(one, dict) else one)
        else:
            yield one

# lib/verify_manifest.py: line JSON (docs/contracts.md, section 2), the manifest, and safe ways into the folder.
EX_FAIL, EX_USAGE, EX_INTEGRITY, EX_MISSING, EX_COPY = 1, 64, 65, 69, 74
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\Z")
HEX64 = re.compile(r"[0-9a-f]{64}\Z")
MAX_MANIFEST = 256 << 20
CELL_STATES = ("done", "excepted", "pending", "running", "unsynced", "failed", "preempted", "unknown")
FIELDS = {"schema": str, "run_id": str, "commit": str, "cells_expected": int, "cells_done": int, "files_total": int, "bytes_total": int,
          "cells": list, "files": list, "self_sha256": str}


class Refusal(Exception):
    """Nothing can be verified here: exit code, what, why, what to do."""


def fit(text):
    """Free text made fit for a record."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in str(text).replace('"', "'").replace("\\", "/"))


def line_json(record):
    """A record in the one layout that bash reads too."""
    members = []
    for name, value in record.items():
        if isinstance(value, list):
            rows = ",\n".join("    " + json.dumps(one, ensure_ascii=False) for one in value)
            members.append('  "%s": [\n%s\n  ]' % (name, rows) if value else '  "%s": []' % name)
        else:
            members.append('  "%s": %s' % (name, json.dumps(value, ensure_ascii=False)))
    return "{\n" + ",\n".join(members) + "\n}\n"


def replace_file(path, text):
    """Put `text` at `path` at once and for good; read back."""
    folder, name = os.path.split(path)
    temp = os.path.join(folder, ".%s.%d.tmp" % (name, os.getpid()))
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temp, path)
        flush_folder(folder)
        with open(path, encoding="utf-8", newline="") as back:
            if back.read() != text:
                raise OSError("it reads back differently")
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise Refusal(EX_COPY, "%s cannot be written" % show(path), show(error), "make the folder writable, then verify again")


def flush_folder(folder):
    """Names too must survive a power cut; some file systems cannot do it for a folder."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def void_receipt(folder):
    """What an earlier run said is nothing about what lies here now."""
    for name in ("PULL_VERIFIED.json", "RUN_FACTS.md"):
        try:
            os.unlink(os.path.join(folder, name))
            flush_folder(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Refusal(EX_COPY, "the old %s cannot be removed" % name, show(error), "remove it by hand, then verify again")


def read_small(folder, name, limit=1 << 20):
    """The bytes of a plain file in the folder, or None."""
    try:
        with open_inside(folder, name) as src:
            return src.at(0, src.size) if src.size <= limit else None
    except (OSError, Finding):
        return None


def read_record(folder, name, schema, run_id=None):
    """A record as a dict; {} where it is not there, not of this schema or of another run."""
    try:
        record = load_json(read_small(folder, name) or b"")
    except ValueError:
        return {}
    good = isinstance(record, dict) and record.get("schema") == schema and (run_id is None or record.get("run_id") == run_id)
    return record if good else {}


def open_inside(folder, path):
    """Open a plain file below the folder; no link on the way, never a fifo that would block."""
    here = folder
    for part in path.split("/"):
        here = os.path.join(here, part)
        if os.path.islink(here):
            raise Finding(CORRUPT, "a symbolic link, or behind one")
    fd = os.open(here, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Finding(CORRUPT, "not a plain file")
    return Source(fd)


def dialect(raw):
    """What a manifest is that is not ours, in words."""
    if not raw.strip(b"\0 \t\r\n"):
        return "it is empty"
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw[:3] == b"\xef\xbb\xbf":
        return "it begins with a byte order mark: an editor or a shell wrote it anew"
    if b"\r" in raw:
        return "it has CR at its line ends: something on the way converted it"
    first = raw.split(b"\n", 1)[0]
    if re.match(rb"\\?[0-9a-fA-F]{32,128} [ *]", first):
        return "it is a list of sums, as sha256sum writes it"
    if re.match(rb"[A-Z0-9]+ ?\(.*\) ?= ?[0-9a-f]{32,}", first):
        return "it is a list of sums in the BSD form"
    if first.lstrip()[:1] in (b"{", b"["):
        return "it is JSON, but not a whole pull_manifest/1 in its layout"
    return "it begins with '%s'" % show(first[:60].decode("utf-8", "replace"))


def read_manifest(folder, run_id):
    """The manifest as a dict, with `sha256` of the file; every doubt is a Refusal."""
    again = "pull it again (P5.3 in the runbook), or run aggregate_to_fs.sh anew on the box; 0 files checked"
    if not os.path.isdir(folder):
        raise Refusal(EX_MISSING, "%s is no folder" % show(folder), "nothing to verify", "name the folder that P5.3 in the runbook fills")
    raw = read_small(folder, "PULL_MANIFEST.json", MAX_MANIFEST)
    if raw is None:
        raise Refusal(EX_INTEGRITY, "%s has no PULL_MANIFEST.json that can be read" % show(folder),
                      "it comes last, so the pull is not complete, or this is another folder", again)

    def bad(why):
        return Refusal(EX_INTEGRITY, "%s/PULL_MANIFEST.json is not to be believed" % show(folder), why, again)
    try:
        manifest = load_json(raw)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("schema") != "pull_manifest/1":
        raise bad(dialect(raw))
    if any(type(manifest.get(name)) is not kind for name, kind in FIELDS.items()):
        raise bad("it lacks a member")
    above, mark, _ = raw.partition(b'\n  "self_sha256"')
    if not mark or hashlib.sha256(above + b"\n").hexdigest() != manifest["self_sha256"]:
        raise bad("it was cut or changed: its own digest does not match" if b"\r" not in raw else dialect(raw))
    try:
        same = line_json(manifest).encode() == raw and list(manifest)[-1] == "self_sha256"
    except (TypeError, UnicodeError):
        same = False
    if not same:
        raise bad(dialect(raw))
    why = manifest_problem(manifest)
    if why:
        raise bad(why)
    for known, where in ((run_id, "--run-id"), (read_record(folder, "box.json", "box/1").get("run_id"), "box.json")):
        if known and known != manifest["run_id"]:
            raise Refusal(EX_INTEGRITY, "%s is of another run" % show(folder), "the manifest says %s, %s says %s" % (
                manifest["run_id"], where, show(known)), "name the folder of the run that you mean")
    manifest["sha256"] = hashlib.sha256(raw).hexdigest()
    return manifest


def manifest_problem(manifest):
    """What contradicts itself in a manifest, or is dangerous; '' if nothing."""
    cells, files = manifest["cells"], manifest["files"]
    if not NAME.match(manifest["run_id"]):
        return "its run id is no run id"
    if not re.match(r"([0-9a-f]{40,64}|none)\Z", manifest["commit"]):
        return "its commit is no commit"
    states, seen = {}, set()
    for one in cells:
        if not isinstance(one, dict) or not isinstance(one.get("cell"), str) or not NAME.match(one["cell"]) or one["cell"] in states:
            return "a cell has no proper name, or is there twice"
        if one.get("state") not in CELL_STATES or not isinstance(one.get("why"), str):
            return "cell %s has the state '%s'" % (one["cell"], show(one.get("state")))
        states[one["cell"]] = one["state"]
    for one in files:
        if not isinstance(one, dict) or type(one.get("bytes")) is not int or not 0 <= one["bytes"] < 1 << 62 or not isinstance(one.get("path"), str) \
                or not HEX64.match(str(one.get("sha256"))):
            return "a file has no proper size, digest or path"
        path, parts = one["path"], one["path"].split("/")
        if any(unicodedata.category(c) in ("Cc", "Cs") or c in '"\\' for c in path) or any(part in ("", ".", "..") for part in parts):
            return "the path '%s' is not safe" % show(path)
        if len(parts) < 3 or parts[0] != "final_ckpts" or states.get(parts[1]) != "done":
            return "the path '%s' is not below final_ckpts and a cell that is done" % show(path)
        if path in seen:
            return "the path '%s' is there twice" % show(path)
        seen.add(path)
    if not cells or not files:
        return "it lists no %s" % ("file" if cells else "cell")
    with_files = {path.split("/")[1] for path in seen}
    bare = sorted(cell for cell, state in states.items() if state == "done" and cell not in with_files)
    if bare:
        return "cell %s is done and has no file" % bare[0]
    counts = (len(cells), sum(state == "done" for state in states.values()), len(files), sum(one["bytes"] for one in files))
    said = tuple(manifest[name] for name in ("cells_expected", "cells_done", "files_total", "bytes_total"))
    return "" if counts == said else "its counts %s do not match its lists %s" % (said, counts)

# lib/verify_report.py: the table, the receipt, RUN_FACTS.md.
KNOWN = re.compile(r"(PULL_MANIFEST\.json|PULL_VERIFIED\.json|RUN_FACTS\.md|SHA256SUMS|FORMAL_SUCCESS(\..*)?|FORMAL_FAILURE\.json|run\.json|box\.json"
                   r"|known_hosts(\..*)?|smoke\.json|formal\.(json|log)|formal\.failed\.tar\.gz|patrol\.json|environment\.txt|\.environment\.key|session\.log|teardown\.jsonl|queue\.tsv|events\.tsv"
                   r"|NEGATIVE_RESULTS(\.laptop)?\.tsv)$")
LEFT_OVER = re.compile(r"(\..+\.tmp|\..+\.[A-Za-z0-9]{6}|.+\.(tmp|part|partial)|.+~)$")
SYSTEM = re.compile(r"(\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.directory|\.Spotlight-V100|\.fseventsd|\.Trashes)$", re.I)

# Folders of a run's own on the box; where a whole run folder came home (from a notebook) they came along.
ON_BOX, ON_BOX_FOLDERS = "of the run's folder on the box", ("box", "cells", "claims", "code", "data", "logs", "plans", "quarantine", "state")


def find_strays(folder, listed):
    """What lies in the folder and is neither listed nor ours: (path, what it seems to be)."""
    found = []
    for where, folders, files in os.walk(folder):
        below = os.path.relpath(where, folder).replace(os.sep, "/")
        if below == ".":
            folders[:] = sorted(name for name in folders if name not in ("records", ".partial"))
            files = [name for name in files if not KNOWN.match(name)]
        else:
            folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        for name in sorted(files) + links:
            path = name if below == "." else below + "/" + name
            if path not in listed:
                own = below.partition("/")[0] in ON_BOX_FOLDERS
                kind = ON_BOX if own else "by the system" if SYSTEM.match(name) else "left by an interrupted copy" if LEFT_OVER.match(name) else "not in the manifest"
                found.append((path, kind))
        if len(found) > 100000:
            break
    return found


def stray_lines(strays):
    """One line for each stray, or for a folder with its count where more than two of a kind lie there."""
    groups = collections.OrderedDict()
    for path, kind in strays:
        parts = path.split("/")
        above = "/".join(parts[:2] if parts[0] == "final_ckpts" else parts[:1]) if len(parts) > 1 else ""
        groups.setdefault((above, kind), []).append(path)
    lines = []
    for (above, kind), paths in groups.items():
        if above and (len(paths) > 2 or kind == ON_BOX):
            lines.append("%s/: %d file%s, %s" % (show(above), len(paths), "s" * (len(paths) != 1), kind))
        else:
            lines += ["%s: %s" % (show(path), kind) for path in paths]
    return lines


def metrics_of(results):
    """Up to six numbers of a cell's JSON files, by name: the last row where a file holds a list."""
    numbers = {}
    files = [one for one in results if one.json is not None and not one.path.endswith(".index.json")]
    for one in sorted(files, key=lambda one: ("metric" not in one.path.rsplit("/", 1)[-1], one.path)):
        value = one.json
        while isinstance(value, list) and value:
            value = value[-1]
        flat = {}
        for key, inner in value.items() if isinstance(value, dict) else ():
            flat.update({"%s/%s" % (key, k): v for k, v in inner.items()} if isinstance(inner, dict) else {key: inner})
        for key, number in flat.items():
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                numbers.setdefault(str(key), number if math.isfinite(number) else str(number))
        if numbers:
            break
    return dict(list(numbers.items())[:6])


def cell_rows(bundle):
    """One dict a cell: manifest, record and results together."""
    rows, by_cell = [], {}
    for one in bundle.results:
        by_cell.setdefault(one.path.split("/")[1], []).append(one)
    for cell in bundle.manifest["cells"]:
        name, results = cell["cell"], by_cell.get(cell["cell"], [])
        record = read_record(bundle.folder, "records/%s.json" % name, "cell/1", bundle.manifest["run_id"])
        worst = min((one.verdict for one in results), key=VERDICTS.index, default="-")
        rows.append({"cell": name, "state": cell["state"], "why": cell["why"], "attempts": record.get("attempt"), "files": len(results),
                     "verdict": worst, "metrics": metrics_of(results), "record": record})
    return rows


def number(value):
    return "%.6g" % value if isinstance(value, float) else str(value)[:24]


def print_table(bundles):
    """All cells of all folders in one table."""
    many = len(bundles) > 1
    head = (["folder"] if many else []) + ["cell", "state", "attempts", "files", "verdict", "metrics"]
    lines = [head]
    for bundle in bundles:
        for row in bundle.rows:
            metrics = " ".join("%s=%s" % (show(k, 40), number(v)) for k, v in row["metrics"].items()) or "-"
            cells = [row["cell"], row["state"], str(row["attempts"] or "?"), str(row["files"]), row["verdict"], metrics]
            lines.append(([show(bundle.folder, 40)] if many else []) + cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def remedy(one, bundle):
    """What to do about one file."""
    path, again = one.path, "verify_local.py %s" % shlex.quote(bundle.folder)
    if one.moved:
        there = os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pull.sh"))  # not on every kind of platform
        return "pull that cell again: %s, then %s" % ("pull.sh --only " + path.split("/")[1] if there else "P5.3 in the runbook", again)
    if one.verdict == NEEDS:
        return "if the names are yours: %s" % " ".join("--allow " + shlex.quote(name) for name in one.text.split()[:3] if name[0] != "(")
    if one.verdict in (SUSPICIOUS, UNPROVEN):
        return "if that is as it should be: --accept %s" % shlex.quote(path + "=WHY")
    return "it was so when the box took its digest, pulling again does not help: run the cell again, or except it in aggregate_to_fs.sh"


def print_bundle(bundle):
    """Everything that a person has to know about one folder, after the table."""
    manifest = bundle.manifest
    print("\n%s: run %s, commit %s, manifest %s" % (show(bundle.folder), manifest["run_id"], manifest["commit"][:12], manifest["sha256"][:12]))
    for how, count in sorted(collections.Counter(re.sub(r"\d+", "N", one.how) for one in bundle.results if one.verdict == OK).items()):
        print("  proved: %d by %s" % (count, how))
    for one in bundle.results:
        if one.accepted:
            print("  accepted: %s: %s (%s), because: %s" % (show(one.path), one.accepted, one.text, show(one.why)))
        elif one.verdict != OK:
            print("  BAD %s: %s: %s; %s" % (show(one.path), one.verdict, one.text, remedy(one, bundle)))
    for row in bundle.rows:
        if row["state"] == "excepted":
            print("  excepted: cell %s: %s" % (row["cell"], show(row["why"])))
        elif row["state"] != "done":
            print("  BAD cell %s: it is %s, neither done nor excepted; finish it, aggregate and pull again" % (row["cell"], row["state"]))
    lines = stray_lines(bundle.strays)
    for line in lines[:20]:
        print("  stray: %s; left alone" % line)
    if len(lines) > 20:
        print("  stray: and %d more lines like these" % (len(lines) - 20))
    print("  " + ", ".join("%s %d" % pair for pair in bundle.counts.items()))


def write_receipt(bundle):
    """PULL_VERIFIED.json: the last thing that is written, and only when all is ok."""
    accepted = [{"path": one.path, "verdict": one.accepted, "why": one.why} for one in bundle.results if one.accepted]
    record = {"schema": "pull_verified/1", "run_id": bundle.manifest["run_id"], "manifest_sha256": bundle.manifest["sha256"]}
    record.update(bundle.counts, accepted=accepted, ended=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    replace_file(os.path.join(bundle.folder, "PULL_VERIFIED.json"), line_json(record))


def md(text):
    """Foreign text in a Markdown table or list."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", show(text, 400))


def write_facts(bundle):
    """RUN_FACTS.md: what a paper has to disclose, from the records that came home."""
    manifest, run = bundle.manifest, read_record(bundle.folder, "run.json", "run/1", bundle.manifest["run_id"])
    success = read_record(bundle.folder, "FORMAL_SUCCESS", "formal_success/1", manifest["run_id"])
    formal = "yes" if run.get("formal") is True else "no" if run.get("formal") is False else "not known"
    ended = success.get("ended") if success.get("manifest_sha256") == manifest["sha256"] else None
    if ended and success.get("part_cells") is not None:
        ended = "%s, of a part only: %s cells" % (ended, success["part_cells"])
    lines = ["# Run facts", "", "Written by verify_local.py from the records in this folder. Verified: %s." % bundle.summary, "",
             "- job and profile: %s, %s" % (md(JOB), md(PROFILE)), "- run id: %s" % md(manifest["run_id"]), "- commit: %s" % md(manifest["commit"]),
             "- branch: %s" % md(run.get("branch", "not known")), "- formal: %s" % formal,
             "- ended as a formal success: %s" % md(ended or "no such record for this manifest"),
             "- digest of the scripts (box_digest): %s" % md(run.get("box_digest", "not known")), "- shard: %s" % md(run.get("shard", "not known")),
             "- manifest: %s" % manifest["sha256"], "", "| cell | state | attempts | started | ended | GPU | metrics | command_sha256 | tracker |", "|" + "---|" * 9]
    for row in bundle.rows:
        record = row["record"]
        metrics = ", ".join("%s = %s" % (k, number(v)) for k, v in row["metrics"].items())
        texts = [row["cell"], row["state"], row["attempts"] or "not known", record.get("started") or "", record.get("ended") or "", record.get("gpu") or "",
                 metrics, record.get("command_sha256") or "", record.get("tracker_url") or ""]
        lines.append("| " + " | ".join(md(text) for text in texts) + " |")
    lines += ["", "## Excepted, accepted, overridden", ""]
    lines += ["- cell %s excepted: %s" % (md(row["cell"]), md(row["why"])) for row in bundle.rows if row["state"] == "excepted"]
    lines += ["- %s accepted (%s): %s" % (md(one.path), one.accepted, md(one.why)) for one in bundle.results if one.accepted]
    events = read_small(bundle.folder, "events.tsv", 64 << 20)
    rows = [line.split("\t") for line in (events or b"").decode("utf-8", "replace").splitlines()]
    lines += ["- override: %s" % md(" ".join(row[2:])) for row in rows if row[1:2] == ["override"]]
    lines += ["" if events is not None else "- overrides: events.tsv is not in this folder; it lies in the run's folder on the box"]
    queue = (read_small(bundle.folder, "queue.tsv", 64 << 20) or b"").decode("utf-8", "replace").splitlines()
    if queue:
        lines += ["## Commands", ""] + ["- %s" % md(line.replace("\t", ": ")) for line in queue if line.strip() and line[0] != "#"]
    replace_file(os.path.join(bundle.folder, "RUN_FACTS.md"), "\n".join(lines).rstrip("\n") + "\n")

MISSING = "missing"
VERDICTS = (MISSING,) + WORST_FIRST


class Result:
    """What came out for one file. `moved`: it is not what the box hashed."""

    def __init__(self, entry):
        self.path, self.bytes, self.sha256 = entry["path"], entry["bytes"], entry["sha256"]
        self.verdict, self.text, self.how, self.moved = OK, "", "", False
        self.accepted, self.why = "", ""
        self.tensors, self.json, self.torch = {}, None, ""

    def put(self, verdict, text, moved=False):
        self.verdict, self.text, self.moved = verdict, text, moved


def check_file(folder, entry, allow):
    """One file, read once."""
    one = Result(entry)
    try:
        with open_inside(folder, one.path) as src:
            if src.size != one.bytes:
                kind = TRUNCATED if src.size < one.bytes else CORRUPT
                one.put(kind, "has %d of %d bytes, cut on the way or on this disk" % (src.size, one.bytes) if kind == TRUNCATED
                        else "has %d bytes, at the source it had %d" % (src.size, one.bytes), True)
                return one
            plan = plan_safely(one.path, src, allow)
            if read_through(src, plan) != one.sha256:
                one.put(CORRUPT, "is not what the box hashed at the source: changed on the way or on this disk", True)
                return one
    except FileNotFoundError:
        one.put(MISSING, "is not there", True)
        return one
    except Finding as found:
        one.put(found.verdict, found.text, True)
        return one
    except OSError as error:
        one.put(CORRUPT, "cannot be read: %s" % show(error.strerror or error), True)
        return one
    one.how, one.tensors, one.json = plan.how, plan.tensors, plan.json
    if plan.torch and not any(found.verdict != SUSPICIOUS for found in plan.findings) and all(map(safe_name, plan.names)):
        one.torch = "zip" if plan.how.startswith("torch zip") else "stream"
    if plan.findings:
        worst = min((found.verdict for found in plan.findings), key=WORST_FIRST.index)
        texts = list(dict.fromkeys(found.text for found in plan.findings if found.verdict == worst))
        one.put(worst, "; ".join(texts[:3]) + ("; and %d more" % (len(texts) - 3) if texts[3:] else ""))
    return one


def plan_safely(path, src, allow):
    """The plan; what is wrong inside is noted, and the digest is taken all the same."""
    try:
        plan = make_plan(path.rsplit("/", 1)[-1], src, allow)
        Feeder(plan.parts, [])
        return plan
    except Finding as found:
        plan = Plan("")
        plan.findings.append(found)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError, struct.error,
            zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        plan = Plan("")
        plan.found(UNPROVEN, "cannot be taken apart: %s" % type(error).__name__)
    return plan


def check_index(one, by_path):
    """A sharded checkpoint, both ways: what the index names is there, and what is there is named."""
    table = one.json.get("weight_map") if isinstance(one.json, dict) else None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        return one.put(CORRUPT, "an index without a weight_map")
    base = one.path.rpartition("/")[0] + "/"
    here = {path[len(base):] for path in by_path if path.startswith(base) and "/" not in path[len(base):]}
    named = set(table.values())
    out = sorted(name for name in named if "/" in name or "\\" in name or name in ("", ".", ".."))
    if out:
        return one.put(CORRUPT, "the index points outside of its folder: %s" % show(out[0]))
    shard = re.compile(r".+-\d+-of-(\d+)\.(safetensors|bin)$")
    gone, extra = sorted(named - here), sorted(name for name in here - named if shard.match(name))
    if gone and extra and {shard.match(name).group(1) for name in extra} - {shard.sub(r"\1", name) for name in named}:
        return one.put(CORRUPT, "a stale index: it names %s, the folder holds %s" % (show(gone[0]), show(extra[0])))
    if gone:
        return one.put(CORRUPT, "shard %s is missing (%d of %d are)" % (show(gone[0]), len(gone), len(named)))
    held = {name: by_path[base + name] for name in named}
    if any(other.verdict not in (OK, SUSPICIOUS) for other in held.values()):
        return one.put(UNPROVEN, "a shard of it is not ok")
    wrong = sorted(tensor for tensor, name in table.items() if tensor not in held[name].tensors)
    if wrong:
        return one.put(CORRUPT, "tensor %s is not in shard %s" % (show(wrong[0]), show(table[wrong[0]])))
    loose = sorted(tensor for name in named for tensor in held[name].tensors if table.get(tensor) != name)
    if loose:
        return one.put(CORRUPT, "tensor %s is in a shard and not in the index" % show(loose[0]))
    meta = one.json.get("metadata")
    total, sizes = meta.get("total_size") if isinstance(meta, dict) else None, sum(sum(o.tensors.values()) for o in held.values())
    if total is not None and total != sizes and not any(name.endswith(".bin") for name in named):
        return one.put(CORRUPT, "the index says %s bytes, the shards have %d" % (show(total), sizes))
    if extra:
        return one.put(SUSPICIOUS, "shard %s is extra: the index does not name it" % show(extra[0]))
    one.how = "sharded index: %d tensors in %d shards, both ways" % (len(table), len(named))
    return None


class Bundle:
    """One folder."""

    def __init__(self, folder):
        self.folder, self.manifest, self.results, self.rows, self.strays, self.counts, self.summary = folder, None, [], [], [], {}, ""

    def conclude(self, accept, torch):
        """From the files' verdicts to the folder's: torch, indexes, what a person accepts, counts."""
        by_path = {one.path: one for one in self.results}
        folded = {}
        for one in self.results:
            twin = folded.setdefault(one.path.casefold(), one)
            with contextlib.suppress(OSError):
                if twin is not one and os.path.samefile(os.path.join(self.folder, twin.path), os.path.join(self.folder, one.path)):
                    one.put(CORRUPT, "is one file with %s: this disk does not tell case apart" % show(twin.path), True)
        for one in self.results:
            if one.torch:
                self.ask_torch(one, torch)
        for one in self.results:
            if one.path.endswith(".index.json") and one.verdict == OK:
                check_index(one, by_path)
        for one in self.results:
            if one.path in accept and one.verdict in (SUSPICIOUS, UNPROVEN, NEEDS) and not one.moved:
                one.accepted, one.why, one.verdict = one.verdict, accept[one.path], OK
        verdicts = [one.verdict for one in self.results]
        unproven = sum(verdict in (UNPROVEN, NEEDS) for verdict in verdicts)
        self.counts = {"expected": len(verdicts), "checked": len(verdicts) - verdicts.count(MISSING), "ok": verdicts.count(OK),
                       "bad": len(verdicts) - verdicts.count(OK) - unproven, "unproven": unproven}
        self.rows = cell_rows(self)
        self.strays = find_strays(self.folder, set(by_path))

    def ask_torch(self, one, torch):
        """Add torch's own word to the proof."""
        version, answers = torch
        if not version:
            one.how += ", without torch"
            return
        answer = answers.get(os.path.join(self.folder, one.path))
        if answer is None:
            one.put(UNPROVEN, "torch stopped while it loaded this file")
        elif answer:
            one.put(UNPROVEN if "nsupported" in answer else CORRUPT, "torch %s does not load it: %s" % (show(version, 20), show(answer)))
        else:
            one.how += ", loaded by torch %s (weights_only)" % show(version, 20)

    def errors(self):
        """Files that are not ok, and cells that are neither done nor excepted."""
        return self.counts["expected"] - self.counts["ok"] + sum(row["state"] not in ("done", "excepted") for row in self.rows)

    def code(self):
        return 0 if not self.errors() else EX_INTEGRITY if any(one.moved for one in self.results) else EX_FAIL


def verify(bundles, allow, accept):
    """All files of all folders, the largest first, on every core; then what belongs together."""
    jobs = [(bundle, entry) for bundle in bundles for entry in bundle.manifest["files"]]
    jobs.sort(key=lambda job: -job[1]["bytes"])
    child = TorchChild() if any(job[1]["path"].lower().endswith(TORCH_NAMES + (".bin",)) for job in jobs) else None
    with concurrent.futures.ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        done = list(pool.map(lambda job: check_file(job[0].folder, job[1], allow), jobs))
    for (bundle, _), one in zip(jobs, done):
        bundle.results.append(one)
    files = [(os.path.join(bundle.folder, one.path), one.torch == "zip") for bundle in bundles for one in bundle.results if one.torch]
    torch = ("", {})
    if child:
        answers = child.ask(files)
        torch = (child.version, answers)
    for bundle in bundles:
        bundle.results.sort(key=lambda one: one.path)
        bundle.conclude(accept, torch)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(EX_USAGE, "the command line", message, "see verify_local.py --help")
        sys.exit(EX_USAGE)

    def format_help(self):
        return USAGE + "\n"


def refuse(code, what, why, todo):
    """One line on stderr; gives the code back."""
    print("verify_local.py: refused: %s; %s; %s" % (what, show(why, 300), todo), file=sys.stderr)
    return code


def parse(argv):
    parser = Parser(prog="verify_local.py", allow_abbrev=False)
    parser.add_argument("dirs", nargs="+")
    parser.add_argument("--run-id")
    parser.add_argument("--allow", action="append", default=[])
    parser.add_argument("--accept", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_intermixed_args(argv)
    for name in args.allow:
        if not re.match(r"[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)+\Z", name):
            parser.error("--allow wants module.name, not '%s'" % show(name))
        if NEVER.match(name):
            parser.error("--allow %s: no checkpoint needs it, and it starts other things" % name)
    if args.run_id is not None and not NAME.match(args.run_id):
        parser.error("--run-id '%s' is no run id" % show(args.run_id))
    args.dirs = list(dict.fromkeys(os.path.abspath(one) for one in args.dirs))
    return args


def accepted_paths(args, bundles):
    """PATH -> WHY; a path may hold '=' itself, so the manifest decides where it ends."""
    known, accept = {entry["path"] for bundle in bundles for entry in bundle.manifest["files"]}, {}
    for text in args.accept:
        cuts = [i for i, c in enumerate(text) if c == "=" and text[:i] in known and text[i + 1:].strip()]
        if not cuts:
            raise Refusal(EX_USAGE, "--accept %s" % show(text), "PATH is not in the manifest, or WHY is empty", "write --accept PATH=WHY with a path as in the table of bad files")
        accept[text[:cuts[-1]]] = fit(text[cuts[-1] + 1:].strip())
    return accept


def report(bundles, refused, as_json):
    """Print everything; the last line says OK only when all is."""
    rows = [row for bundle in bundles for row in bundle.rows if row["state"] != "excepted"]
    total, ok = len(rows), sum(row["state"] == "done" and row["verdict"] == OK for row in rows)
    errors = sum(bundle.errors() for bundle in bundles) + refused
    fine = total > 0 and errors == 0
    last = "OK %d/%d, errors 0" % (ok, total) if fine else "NOT OK %d/%d, errors %d" % (ok, total, errors)
    if as_json:
        runs = [dict({"dir": b.folder, "run_id": b.manifest["run_id"], "commit": b.manifest["commit"], "manifest_sha256": b.manifest["sha256"], "exit": b.code()}, **b.counts,
                     cells=[{k: v for k, v in row.items() if k != "record"} for row in b.rows], strays=[path for path, _ in b.strays],
                     files=[{"path": o.path, "verdict": o.verdict, "how": o.how, "text": o.text, "accepted": o.accepted, "why": o.why} for o in b.results]) for b in bundles]
        print(json.dumps({"schema": "verify/1", "runs": runs, "result": last}, ensure_ascii=False, indent=1))
        return
    if bundles:
        print_table(bundles)
    for bundle in bundles:
        print_bundle(bundle)
    print(last)


def main(argv):
    args = parse(argv)
    bundles, codes, refused = [], [], 0
    for folder in args.dirs:
        bundle = Bundle(folder)
        try:
            if os.path.isdir(folder):
                void_receipt(folder)
            bundle.manifest = read_manifest(folder, args.run_id)
            bundles.append(bundle)
        except Refusal as no:
            codes.append(refuse(*no.args))
            refused += 1
    try:
        accept = accepted_paths(args, bundles) if bundles else {}
    except Refusal as no:
        return refuse(*no.args)
    verify(bundles, set(args.allow), accept)
    for bundle in bundles:
        codes.append(bundle.code())
        if codes[-1] == 0:
            bundle.summary = "%d of %d files" % (bundle.counts["ok"], bundle.counts["expected"])
            try:
                write_facts(bundle)
                write_receipt(bundle)
            except Refusal as no:
                codes[-1] = refuse(*no.args)
                refused += 1
    report(bundles, refused, args.json)
    return next((code for code in (EX_MISSING, EX_COPY, EX_INTEGRITY, EX_FAIL) if code in codes), 0)


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        sys.exit(refuse(69, "Python %s" % sys.version.split()[0], "3.9 or newer is needed", "run it with a newer python3"))
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        os._exit(130)  # threads may still read; the receipt is already void
