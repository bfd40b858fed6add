"""Every code with its severity, a title and a word of explanation: docs/rules.md is made from this table.

A code is never used again for something else. P is for profiles, J for jobs; loading and schema have the same numbers in both.
"""

from __future__ import annotations

BOTH = {
    "101": ("error", "file cannot be read", "Name a file that is there and readable."),
    "102": (
        "error",
        "not UTF-8",
        "Byte order mark, UTF-16, a byte that is not UTF-8, or a file above 32 MiB. Save it as UTF-8 without a mark.",
    ),
    "103": (
        "error",
        "invisible character",
        "Carriage returns, no-break and other odd blanks, zero-width, direction and control characters. They look like nothing and change meaning.",
    ),
    "104": ("error", "not a mapping of fields", "The file is empty or holds a list or a text at the top."),
    "105": ("error", "second document", "One file is one document."),
    "106": ("error", "tag, directive or unknown alias", "Plain data only: nothing in a file chooses a type."),
    "107": (
        "error",
        "too deep, or aliases that explode",
        "More than 40 levels, an alias that holds itself, or aliases that stand for more than 10,000 values. A file that is merely long passes.",
    ),
    "108": ("error", "key twice", "In most readers the last one silently wins. Both places are named."),
    "109": ("error", "key is not text", "`on`, `1`, `null` and the like are not text to every YAML reader. Quote the key."),
    "110": (
        "error",
        "spelling that YAML versions read differently",
        "`no`, `on`, `012`, `1_000`, `1e3`, `0x10`, `1:30:00`, `2026-08-01`: text in one reader, a number, a date or a truth value in another. "
        "Quote it where text is meant. In `matrix` and `cells` of a job all values are text as written, so nothing is in doubt there.",
    ),
    "111": ("error", "empty value in a cell", "Write '' for an empty text."),
    "112": ("error", "merge key", "`<<` hides where a value comes from. Write the fields out."),
    "113": ("error", "tab", 'Indent with blanks. In a text write "\\t".'),
    "120": ("error", "not YAML", "The parser's own complaint, with its place."),
    "201": ("error", "unknown field", "Mostly a typing error; the hint names the nearest field."),
    "202": ("error", "missing field", "The hint says what the field is."),
    "203": (
        "error",
        "wrong type",
        'Text where a number is wanted or the reverse. Text that looks like a number is quoted: `cuda: "12.10"`.',
    ),
    "204": ("error", "not one of the values", "The field has a fixed set of values."),
    "205": ("error", "does not fit the pattern", "Names, paths, months and the like have a form."),
    "206": ("error", "out of range", "Too small, too large, too long, too many, twice."),
    "207": (
        "error",
        "not filled in yet",
        "A new file holds `???` where a value is wanted. Nothing else is said before all of them are filled.",
    ),
}

PROFILE = {
    "P301": (
        "error",
        "unknown tier",
        "`storage.data` and `storage.durable` list names of `storage.tiers`; `deletes`, `needs_tier`, `without_tier` and the `tier` of a text name one.",
    ),
    "P302": ("error", "name twice", "Tiers, verbs, gotchas, clocks and cost traps are found by their name."),
    "P303": ("error", "no data tier left", "After `--without` at least one tier of `storage.data` must be there."),
    "P304": (
        "error",
        "--without a tier that one cannot be without",
        "Only a tier with `optional: true` can be left out; others come with the box.",
    ),
    "P305": ("error", "meter_stop names no action", "It is the verb of one of `teardown.actions`."),
    "P306": ("error", "meter_stop does not stop the meter", "The action it names says `stops_meter: false`."),
    "P307": (
        "error",
        "durable tier does not outlive the meter stop",
        "A tier under `storage.durable` survives the matrix column that the meter-stop verb is like. "
        "Else the results are gone the moment the bill stops. Where nothing survives, say pull-only: `durable: []` and `DURABLE_DIR: ''`.",
    ),
    "P308": ("error", "pull-only said by halves", "`DURABLE_DIR` is empty exactly where `storage.durable` is."),
    "P309": (
        "error",
        "checkpoints die with the daemon",
        "What the detached run does not outlive, the data tier must: else a restart takes the run and its checkpoints together. A warning where no other tier would do better.",
    ),
    "P310": ("error", "folder off its tier", "`DATA_DIR` and `DURABLE_DIR` lie on the path of the first tier of their list, and on no other tier that is mounted below it."),
    "P311": (
        "error",
        "unsafe path",
        "A path is absolute or begins with `~/` or `$NAME`, is not `/` or the home folder, holds no `.` or `..`, no `//`, no quote, backslash or "
        "control character, and `$NAME` only as a whole component.",
    ),
    "P312": (
        "error",
        "DETACH disagrees",
        "`overrides.DETACH` is `daemon.primitive`, and the kind has it: tmux, screen or nohup on a box with a shell, sbatch on Slurm, k8s-job on Kubernetes.",
    ),
    "P313": ("error", "SSH disagrees with the kind", "Kinds that are reached by SSH have a flavour, and `flavour: none` cannot copy."),
    "P314": (
        "error",
        "danger clock not shown",
        "Each of `interruption.clocks` stands in `launch.surface.danger_clocks`: nobody knows the clocks by heart.",
    ),
    "P315": ("error", "unknown danger clock", "`danger_clocks` lists ids of `interruption.clocks` and `teardown.cost_traps`."),
    "P316": (
        "error",
        "looks like a secret",
        "Name the environment variable or the file that holds it; profiles, jobs and `out/` are shared and published.",
    ),
    "P317": ("warning", "old fact", "More than 180 days since somebody looked. Look again, then change `as_of`."),
    "P318": ("error", "month in the future", "`as_of` is the month in which somebody looked."),
    "P319": ("error", "substitution in a command", "`{instance}` is the only one. What needs more is written as steps."),
    "P320": (
        "error",
        "command for a shell",
        "A command is a list of words that no shell reads: pipes, `;`, `$(…)` and `sh -c` do nothing there or too much. Write steps.",
    ),
    "P321": (
        "error",
        "proxy hook is neither file nor address",
        "`PROXY_HOOK` is a file to source or `http://host:port`, never a command; and it is there exactly where `network.proxy_hook` says when it is needed.",
    ),
    "P322": (
        "error",
        "credentials on a shared tier",
        "Others read a shared tier, and a durable one outlives the box: `CRED_FILE` lies on neither.",
    ),
    "P323": ("error", "interpreter is not one path or name", "`PY` is a path or a name on PATH, without arguments."),
    "P324": (
        "error",
        "irreversible and reversible at once",
        "An action like destroy or storage is `reversible: true` only where what it deletes is kept for some days. A rented box that one action like stop ends for good was destroyed: `like: destroy`.",
    ),
    "P325": ("error", "reserved variable", "A mirror may not replace a variable that the scripts or the shell live by."),
    "P326": (
        "error",
        "control character in a text",
        'An escape like "\\e" or "\\0" makes one. Line ends are allowed in longer texts only.',
    ),
    "P327": (
        "error",
        "placeholder left",
        "`<your id>` is no value. Commands take `{instance}`; what only the person knows goes into steps.",
    ),
    "P328": (
        "error",
        "name of the file",
        "A profile's file stem becomes a folder: 1 to 128 of A-Z a-z 0-9 _ = , + @ - beginning with a letter or digit. "
        "It holds no dot: `out/<profile>.<job>` and `out/<profile>.no-<tier>` are the folders of a job and of a compile `--without` a tier.",
    ),
    "P329": ("error", "nobody stops the meter", "At least one action says `stops_meter: true`."),
    "P330": ("warning", "odd row of the matrix", "A tier that survives destroy survives stop and restart too, as a rule. Look again."),
    "P331": ("error", "scratch is not apart", "`$SCRATCH/gpu-runbook` is emptied: the data and the durable folder do not lie in it, and neither of them is `SCRATCH` itself."),
    "P332": ("error", "confirm_gone looks for nothing", "The word in `absent` names the instance: `{instance}`."),
    "P333": (
        "error",
        "two tiers at one path",
        "What lies there would have two rows of the survival matrix. Only where one of them is optional is it clear which counts.",
    ),
    "P334": (
        "error",
        "nothing shows that a rented tier is there",
        "A durable tier that one can rent without, or that outlives a rented box, needs `proof: mount` or `marker`: where it was forgotten, its path is a folder of a disk that dies. Where another tier takes its path, `mount-network` and `mount-local` tell them apart.",
    ),
    "P335": (
        "error",
        "a rental ends and nothing is touched",
        "An action that stops the meter of a rented box is like stop, destroy or storage. `like: none` would be a survival proof of nothing.",
    ),
    "P336": ("error", "deletes goes with like storage", "What stop and destroy delete is said once, by the survival matrix."),
    "P337": (
        "error",
        "one command, two meanings",
        "Two verbs with the same command, or a look that is an action: what a person approves would not be what runs.",
    ),
    "P338": (
        "error",
        "depends on a tier that every box has",
        "`needs_tier`, `without_tier` and the `tier` of a text name a tier with `optional: true`: only such a tier can be left out, by `--without`.",
    ),
    "P339": (
        "error",
        "nothing is said of some box",
        "A field that every profile has, or a list that is never empty, says something whichever optional tiers are left out: add `without:` or `with:` to the text, or an item.",
    ),
    "P340": (
        "warning",
        "a sentence names what may be missing",
        "The name or the path of an optional tier stands in a text that a box without it is told too. Let the text or its item depend on the tier.",
    ),
    "P341": ("error", "the run dies with the line", "A run that is detached outlives the connection that started it: `daemon.survives.ssh_drop`."),
    "P342": (
        "error",
        "seconds after no signal",
        "`grace_s` is the time between the platform's signal and its kill. A notice in the metadata, that a program has to ask for, is a clock.",
    ),
    "P343": ("error", "it would end your own machine", "`shutdown` and its kind end the machine on which they run: `where: box`."),
    "P344": (
        "error",
        "which box it ends is not said",
        "A command that is typed on one's own machine and stops a meter has `{instance}` in it: what is approved is this verb on this box.",
    ),
    "P345": (
        "error",
        "memory outlives a restart",
        "A process of tmux, screen or nohup, or a folder such as `/dev/shm`, is gone when the box has started again.",
    ),
    "P346": (
        "error",
        "half a look",
        "A look whether an action took effect has a `command` and the word that must be `absent` from what it prints; `answer` is of use beside these two only.",
    ),
}

JOB = {
    "J301": ("error", "matrix and cells", "A job has one of them, or neither where it is a single cell."),
    "J302": ("error", "cells with different columns", "Each of `cells` has the same columns as the first."),
    "J303": ("error", "unknown column", "`{word}` names no column. Literal braces are written in quotes, a shell variable as `${word}`."),
    "J304": ("warning", "column inside quotes", "`{column}` is replaced outside quotes only, for it is quoted by itself."),
    "J305": (
        "error",
        "not a cell name",
        "1 to 128 of A-Z a-z 0-9 . _ = , + @ - beginning with a letter or digit: it becomes a folder and an argument.",
    ),
    "J306": ("error", "cell name twice", "Also after case folding and Unicode normalisation: a laptop's file system may see one file."),
    "J307": (
        "error",
        "command is not one line",
        "A queue line is one line. Write `>-` in YAML and `&&` between steps, or put it into a script.",
    ),
    "J308": (
        "error",
        "bash cannot read the command",
        "`bash -n` refuses it, mostly for a quote or a bracket that is not closed. Without a bash of version 4 here only the quotes are counted.",
    ),
    "J309": ("warning", "column not in the command", "All its values run the same command; a program that reads CELL_NAME may want that."),
    "J310": ("error", "does not fit the data tier", "Bytes: needs.disk_gb x cells + 10 %. The cap is the profile's."),
    "J311": ("error", "too many files for the tier", "Files: needs.files x cells, against the tier's inode cap."),
    "J312": ("error", "does not fit the durable tier", "As for the data tier; the results are at most as large as the cells."),
    "J313": (
        "warning",
        "data and results together do not fit",
        "One tier holds both, and a finished cell lies there twice until it is pruned.",
    ),
    "J314": (
        "warning",
        "grace shorter than a save",
        "The platform kills before a checkpoint that is begun at its signal is written. Save as you go, or save less.",
    ),
    "J315": (
        "error",
        "limit shorter than the work",
        "`wall_s` is above the expected time of a cell, `stall_s` and `smoke.timeout_s` above the time of a save.",
    ),
    "J316": ("error", "pruned and required at once", "A pattern of `prune` matches a required artifact: the result would go."),
    "J317": ("error", "artifact inside an artifact", "Its files would be listed twice."),
    "J318": ("error", "looks like a secret", "Name the variable under `secrets`; a job is committed and published."),
    "J319": ("warning", "secrets without a file", "The profile has no CRED_FILE, so no secret reaches a cell there."),
    "J320": ("error", "reserved variable", "A secret may not replace a variable that the scripts or the shell live by."),
    "J321": ("error", "too many cells", "More than 1,000,000. Split the job."),
    "J322": ("error", "column in the smoke command", "The smoke trial has no cell: write values."),
    "J323": (
        "error",
        "name of the file",
        "A job's file stem becomes the run's folder: 1 to 128 of A-Z a-z 0-9 . _ = , + @ - beginning with a letter or digit. "
        "No part of it between dots begins with `no-`, in large or small letters: that marks the folder of a compile `--without` a tier.",
    ),
    "J324": (
        "error",
        "control character in a text",
        'An escape like "\\e" or "\\0" makes one. Line ends are allowed nowhere but in longer texts.',
    ),
    "J326": (
        "error",
        "artifact by pattern",
        "`required` and `smoke.artifact` are names, not patterns: `*.pth` would be missing in every cell, after all of them were paid for.",
    ),
    "J327": (
        "warning",
        "longer than a session",
        "All cells, one after the other, take longer than the platform's cap of a session, which ends them: more sessions, or fewer cells.",
    ),
    "J328": (
        "error",
        "digests that cannot be compared",
        "`sha256` is of one file, `manifest` lists the files of a folder: one of them, and the list lies outside of what it lists, in git.",
    ),
    "J329": (
        "warning",
        "silence is short",
        "`stall_s` ends a cell that writes nothing for so long. Below three saves, or a quarter of the cell's time (at most 900 s), a healthy first epoch may be taken for stuck.",
    ),
    "J330": (
        "warning",
        "CELL_DIR is not in the command",
        "What a cell writes elsewhere is not found, not resumed and not brought home.",
    ),
    "J331": ("warning", "python by name", 'On the box `python` may be another interpreter, or none; `"$PY"` is the one that was checked.'),
    "J332": ("error", "pattern that cannot be read", "`expect` is an extended regular expression, as grep -E takes it; `\\(` is a parenthesis."),
    "J325": (
        "error",
        "the run's folder is taken",
        "A run's folder is `$DATA_DIR/<job>`: not the folder in which the profile has its scratch, its cache or its credentials.",
    ),
}

TABLE: dict[str, tuple[str, str, str]] = {**{letter + number: row for letter in "PJ" for number, row in BOTH.items()}, **PROFILE, **JOB}
del TABLE["P111"], TABLE["J204"]  # only a job has cells; no field of a job has a fixed set of values


def severity(code: str) -> str:
    """`error` or `warning`."""
    return TABLE[code][0]
