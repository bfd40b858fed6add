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
