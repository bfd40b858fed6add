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
