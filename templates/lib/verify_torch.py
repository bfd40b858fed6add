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
