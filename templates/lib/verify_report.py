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
