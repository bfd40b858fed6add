((lambda code='''# SyntaxError at this line? Then the paste was cut off: copy ALL of install_cell.py again, into an empty cell.
# install_cell.py: put the scripts of this run in place on a notebook's machine, whole or not at all.
# Generated; do not edit. Source: templates/notebook/install.py and the scripts in box/.
# The cell has checked its own digest before this text runs. It may be run again at any time.
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time

USAGE = """usage: install_cell.py [--print]    or pasted, all of it, into one empty cell of a notebook

Puts the scripts that it carries into DATA_DIR/<run>/box/<digest> and lets box/current lead there. Each file is read
back and compared with its digest; a folder appears under its name when all of it is right. What is there already is
only looked at. DATA_DIR and RUN come from the environment (in a notebook: %env RUN=name, before this cell).

--print  say what would be installed, and write nothing

exit codes: 0 in place, 64 usage, 65 something is not what was compiled, 73 no room, 74 not written, 75 busy,
78 configuration"""


class Refused(Exception):
    """What, why and what to do; with the exit code in front."""


def sha(data):
    return hashlib.sha256(data).hexdigest()


def unpack(spec, text):
    """{name: bytes}: every paragraph stands once in the text, and each file is a list of their numbers."""
    paragraphs = text.split("\\n\\n")
    files = {}
    for one in spec["files"]:
        numbers = [int(word) for word in one["paragraphs"].split()]
        data = ("\\n\\n".join(paragraphs[number] for number in numbers) + "\\n").encode()
        if sha(data) != one["sha256"]:
            raise Refused(65, "the cell", "%s does not come out with its digest" % one["name"], "copy the whole file again, as plain text, into an empty cell")
        files[one["name"]] = data
    return files


def folder_digest(folder):
    """The digest of the files in a folder, as push and the scripts themselves take it; None where it holds other things."""
    lines = b""
    for name in sorted(os.listdir(folder), key=os.fsencode):
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            lines += b"%s  %s\\n" % (sha(file.read()).encode(), os.fsencode(name))
    return sha(lines)


def run_folder(spec):
    """DATA_DIR/<run>, from the environment or as compiled."""
    run, data = os.environ.get("RUN", spec["run"]), os.environ.get("DATA_DIR", spec["data_dir"])
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}\\Z", run):
        raise Refused(78, "RUN %r" % run, "a name is 1 to 128 of A-Z a-z 0-9 . _ = , + @ - and begins with a letter or digit", "rename it")
    place = os.path.expanduser(os.path.expandvars(data))
    if "$" in place or not os.path.isabs(place) or os.path.normpath(place) == "/":
        raise Refused(78, "DATA_DIR=%r" % data, "it gives no absolute folder here", "set DATA_DIR to one, such as %s" % spec["data_dir"])
    return os.path.join(os.path.normpath(place), run)


def flush(path):
    """To the disk; some mounts cannot flush a folder, and that alone is no failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not os.path.isdir(path):
            raise
    finally:
        os.close(handle)


def alone(box):
    """Wait until no other run of this cell is at work: (handle, whether this disk knows locks, so that what lies about is left over)."""
    handle = os.open(box, os.O_RDONLY)  # stays open, and so locked, until this process or this call ends
    for _ in range(300):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle, True
        except BlockingIOError:
            time.sleep(0.2)
        except OSError:
            return handle, False
    os.close(handle)
    raise Refused(75, box, "another run of this cell has been at work there for a minute", "wait for it, or end it")


def sweep(box):
    """Take away what a killed run of this cell left."""
    for name in os.listdir(box):
        if re.match(r"\\.(new|current)\\.[0-9]+\\Z", name):
            path = os.path.join(box, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def put(spec, files, folder):
    """The files into a folder beside, flushed and read back, then one rename."""
    new = os.path.join(os.path.dirname(folder), ".new.%d" % os.getpid())
    os.mkdir(new)
    try:
        for one in spec["files"]:
            path = os.path.join(new, one["name"])
            with open(path, "wb") as file:
                file.write(files[one["name"]])
            flush(path)
        if folder_digest(new) != spec["box_digest"]:
            raise Refused(74, new, "the files do not read back as they were written", "look at the disk, and run this cell again")
        flush(new)
        try:
            os.rename(new, folder)
        except OSError:
            if not os.path.isdir(folder):  # else another run was quicker, on a disk without locks; its folder is looked at next
                raise
        flush(os.path.dirname(folder))
    finally:
        shutil.rmtree(new, ignore_errors=True)


def point(box, name):
    """box/current leads to the folder: the old one or the new one, never none."""
    current, link = os.path.join(box, "current"), os.path.join(box, ".current.%d" % os.getpid())
    if os.path.isdir(current) and not os.path.islink(current):
        raise Refused(65, current, "it is a folder, and not a link of ours", "move it aside (mv), then run this cell again")
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(name, link)
    os.replace(link, current)
    if os.readlink(current) != name:
        raise Refused(74, current, "it does not read back", "look at the disk: can it hold links?")


def install(spec, text, dry):
    """All of it; gives the sentence to print."""
    files = unpack(spec, text)
    box = os.path.join(run_folder(spec), "box")
    name = spec["box_digest"][:12]
    folder = os.path.join(box, name)
    scripts = sum(one["mode"] == "0700" for one in spec["files"])
    if dry:
        return "whole; would install %d scripts and the queue, digest %s, in %s" % (scripts, name, folder)
    os.makedirs(box, exist_ok=True)
    handle, locked = alone(box)
    try:
        if locked:
            sweep(box)
        there = os.path.isdir(folder)
        if not there:
            put(spec, files, folder)
        if folder_digest(folder) != spec["box_digest"]:
            raise Refused(65, folder, "its files are not what its name says: somebody changed them", "move it aside (mv), then run this cell again")
        for one in spec["files"]:
            if os.stat(os.path.join(folder, one["name"])).st_mode & 0o777 != int(one["mode"], 8):
                os.chmod(os.path.join(folder, one["name"]), int(one["mode"], 8))
        point(box, name)
    finally:
        os.close(handle)
    return "%s %d scripts and the queue, digest %s, in %s; %s leads there" % (
        "there already, unchanged:" if there else "installed", scripts, name, folder, os.path.join(box, "current"))


def reason(error):
    """A refusal for what the system said."""
    what = error.filename or "the run's folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(73, what, "no room (%s)" % error.strerror, "free some, and run this cell again; nothing that was installed before has changed")
    return Refused(74, what, "it cannot be written (%s)" % error.strerror, "set DATA_DIR to a folder that you may write to, and run this cell again")


def main(spec, text, words):
    """The exit code."""
    if words not in ([], ["--print"]):
        print(USAGE, file=sys.stdout if words in (["-h"], ["--help"]) else sys.stderr)
        return 0 if words in (["-h"], ["--help"]) else 64
    old = os.umask(0o077)
    try:
        print("install_cell.py: " + install(spec, text, bool(words)), flush=True)
        return 0
    except OSError as error:
        no = reason(error)
    except Refused as error:
        no = error
    finally:
        os.umask(old)
    print("install_cell.py: refused: %s; %s; %s" % no.args[1:], file=sys.stderr, flush=True)
    return no.args[0]


CODE = main(json.loads(INDEX), TEXT, sys.argv[1:] if os.path.basename(sys.argv[0]) == "install_cell.py" else [])  # noqa: F821 (the cell gives them)
if CODE or sys.argv[0].endswith("install_cell.py"):
    raise SystemExit(CODE)
''', index='''# SyntaxError at this line? Then the paste was cut off: copy ALL of install_cell.py again, into an empty cell.
{
 "profile": "kaggle",
 "run": "demo",
 "data_dir": "/kaggle/working",
 "box_digest": "f720d54e949bb499ce82ee0ca148850378368ccd40bdb3885f074e1a9e5a547e",
 "files": [
  {
   "name": "aggregate_to_fs.sh",
   "mode": "0700",
   "sha256": "17e266df346d22987e3ff793e086da1cb840c1a5bb80bb39ac6cdb9ff1fa8945",
   "paragraphs": "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122"
  },
  {
   "name": "formal_run.sh",
   "mode": "0700",
   "sha256": "04eb34b5eb87e6289c6d8a0550964f2e0dc980cf589f80d446f72d1ed7363441",
   "paragraphs": "123 124 2 3 4 5 6 7 8 9 10 11 12 13 14 15 17 18 20 21 22 125 24 25 26 27 28 29 30 31 32 33 34 35 42 43 44 46 47 48 49 50 51 52 53 54 55 56 57 58 59 126 127 128 129 130 60 61 131 132 133 134 62 63 64 65 66 67 68 135 136 137 138 139 140 141 142 143 144 145 146 147 148 149 150 151 152 153 154 155 156 157 158 159 160 161 162 163 164 165 166 167 168 169 170 171 172 173 174 175 176 177 178 179 180 181 182 183 184 185 186 187 188 189 190 191 192 193 194 36 37 39 40 41 195 196 197 198 199 200 201 202 203 204 205 206 207 208 209 210 211 212 213 214 215 216 217 218 219 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 96 97 238 239 240 241 242 243 244 245 246 247 248 249 250 251 252 253 254 255 256 257 258 259 260 261 262 263 264 265 266 267 268 269 270 271 122"
  },
  {
   "name": "preflight.sh",
   "mode": "0700",
   "sha256": "2e428b40e6efd773761c9e7b9a4a3ec61636c457e61c68f0f4967aab3639a48a",
   "paragraphs": "272 273 2 3 4 5 6 8 9 10 12 13 21 22 23 27 274 30 31 32 34 35 36 37 39 40 41 42 43 44 46 47 49 50 53 54 56 57 58 127 128 170 275 276 277 278 279 280 281 171 282 172 173 162 163 283 164 165 284 205 206 207 285 208 209 210 211 212 213 214 215 217 286 287 288 289 290 291 292 293 294 295 296 297 298 299 300 301 302 303 304 305 306 307 195 196 308 309 310 311 312 313 314 315 316 317 318 319 320 321 322 323 324 325 326 327 328 329 330 331 122"
  },
  {
   "name": "queue.tsv",
   "mode": "0600",
   "sha256": "f904dac417a7100b4a04fc94902cc44517342a1c9b37deaf2a99e78cc7d1bb47",
   "paragraphs": "332"
  },
  {
   "name": "run_one.sh",
   "mode": "0700",
   "sha256": "366f4bd6e192466a554670b2ea65f060919143454f99f4f6db94802fbddf7ba4",
   "paragraphs": "333 334 2 3 4 5 335 336 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 125 24 25 26 27 28 29 30 31 32 33 34 35 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 126 127 128 129 130 60 61 131 132 133 134 62 63 64 65 66 337 36 37 38 39 40 41 195 196 338 339 340 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 170 275 276 277 278 341 171 282 67 68 342 343 344 345 69 308 309 310 311 312 346 347 313 348 314 349 315 316 350 205 206 207 208 209 210 211 212 213 214 215 351 352 353 354 355 356 357 358 359 360 361 140 141 362 363 364 365 366 367 368 369 370 371 372 373 374 375 376 377 378 379 380 381 382 383 384 385 386 387 388 389 390 391 392 393 394 395 396 397 398 399 400 401 402 403 404 405 406 407 408 409 410 411 412 413 414 415 416 417 418 419 420 421 422 423 424 425 426 427 428 122"
  },
  {
   "name": "run_queue.sh",
   "mode": "0700",
   "sha256": "94603f96ad8efb3591cf7661e6ce71ab668bd6aa7170e59b56d8e0fe7d3df99c",
   "paragraphs": "429 430 2 3 4 5 335 336 6 7 8 9 10 11 12 13 14 15 16 17 18 20 21 22 431 24 25 26 27 28 29 30 31 32 34 35 42 43 48 49 50 51 52 53 54 55 56 57 58 59 126 127 128 129 130 60 61 131 132 133 134 62 63 64 65 66 36 37 39 40 41 195 196 338 339 340 140 141 142 143 144 145 146 67 68 345 69 135 136 137 138 432 433 434 435 436 437 438 439 440 441 442 443 444 445 446 447 448 449 450 451 452 453 454 455 456 457 458 459 170 275 276 277 278 341 171 205 206 208 209 210 211 212 213 214 215 460 461 462 463 464 465 466 467 468 469 470 471 472 473 122"
  },
  {
   "name": "session.sh",
   "mode": "0700",
   "sha256": "96e17246f5c4faa5d6cb160a472956492a8ff59d263d1c0a0fea7c76441883c1",
   "paragraphs": "474 475 2 3 4 5 6 8 9 10 12 13 14 17 21 24 26 27 476 42 49 50 30 53 54 56 57 58 59 140 141 477 478 479 480 481 482 483 484 485 486 487 488 489 490 491 492 493 494 495 122"
  },
  {
   "name": "smoke.sh",
   "mode": "0700",
   "sha256": "6b1dcbfa4494d2548d84963eb9d1404591d1da9233a6dbb3d3db4eb32226ad83",
   "paragraphs": "496 497 2 3 4 5 6 7 8 9 10 12 13 14 16 17 18 21 22 23 27 498 29 30 31 32 33 34 35 36 499 42 43 48 53 54 55 56 57 58 59 126 147 148 149 150 151 152 153 154 195 196 338 339 340 500 501 502 503 504 505 506 507 508 509 510 511 512 513 514 515 238 239 516 517 518 519 520 521 522 523 524 525 526 527 528 529 530 531 532 533 534 535 536 537 538 539 540 541 542 543 544 545 546 547 548 170 275 276 277 278 341 171 308 309 310 311 312 346 313 348 314 315 316 549 550 551 552 553 554 555 122"
  },
  {
   "name": "status.sh",
   "mode": "0700",
   "sha256": "c5bb01a6c27d9751b57d9e98113c9fdf1c9d0af0e62d5a31b0826de8c357ba02",
   "paragraphs": "556 557 2 3 4 5 6 7 8 9 10 12 13 15 17 21 22 558 25 26 27 28 29 30 31 32 33 42 43 44 46 47 53 54 56 57 58 59 62 63 64 65 66 67 68 135 136 137 138 139 174 176 177 178 179 559 560 561 562 563 564 565 566 567 568 569 570 122"
  }
 ]
}
''', text='''# SyntaxError at this line? Then the paste was cut off: copy ALL of install_cell.py again, into an empty cell.
#!/usr/bin/env bash
# aggregate_to_fs.sh: make the bundle whole: repeat missing syncs, look at every file, write SHA256SUMS and the manifest.
# Generated; do not edit. Source: templates/box/aggregate_to_fs.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=aggregate_to_fs.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
# --- end of bound values ---

# lib/exit.bash: exit codes by name, the same in every script.
# needs:
# shellcheck disable=SC2034 # the whole table is here; a script uses the codes that it needs
{
  readonly EX_FAIL=1       # the work itself failed: a cell, a verification
  readonly EX_USAGE=64     # wrong call
  readonly EX_INTEGRITY=65 # a digest, manifest or record does not match
  readonly EX_MISSING=69   # something needed is missing or cannot be reached
  readonly EX_NOROOM=73    # no room: bytes or inodes
  readonly EX_COPY=74      # a copy is incomplete or could not be read back
  readonly EX_BUSY=75      # another runner holds it
  readonly EX_GATE=77      # refused: a precondition is not met
  readonly EX_CONFIG=78    # configuration is wrong
  readonly EX_AGAIN=79     # of run_one to run_queue alone: nothing was said nor begun, begin another
}

# lib/log.bash: one line per event on stderr, so that stdout stays data.
# needs: exit    reads: PROG

# The current UTC time into REPLY, without a fork where bash can format it.
utc_now() {
  if ! TZ=UTC0 printf -v REPLY '%(%Y-%m-%dT%H:%M:%SZ)T' -1 2>/dev/null; then
    REPLY=$(date -u +%Y-%m-%dT%H:%M:%SZ) || REPLY=
  fi
}

log() { # <words...>
  local REPLY
  utc_now
  # shellcheck disable=SC2034 # run_one asks whether anything was said
  LOGGED=1
  # Talk stops nothing: whoever listened may be gone, and the disk with the log full.
  printf '%s %s: %s\\n' "$REPLY" "$PROG" "$*" >&2 || :
}

# The only way out of a precondition that is not met: one line, then the code.
refuse() { # <exit code> <what> <why> <what to do>
  printf '%s: refused: %s; %s; %s\\n' "$PROG" "$2" "$3" "$4" >&2 || :
  exit "$1"
}

# The only place where a success word is printed. Without a receipt that can be read it is not.
claim() { # <word> <what> <receipt file>
  if [[ ! -f $3 || ! -s $3 ]]; then
    printf '%s: refused: saying %s of %s; no receipt at %s; look there, then run this again\\n' \\
      "$PROG" "$1" "$2" "$3" >&2 || :
    return "$EX_INTEGRITY"
  fi
  printf '%s: %s (receipt %s)\\n' "$2" "$1" "$3" || :
}

# lib/path.bash: names and paths that are safe to build upon.
# needs: exit log

# A run, profile, job or cell name: it becomes a folder and an argument.
check_name() { # <value> <what it is>    returns: 0, or refuses 78
  local LC_ALL=C
  if [[ ! $1 =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ ]]; then
    refuse "$EX_CONFIG" "$2 '${1//[[:cntrl:]]/?}'" "a name is 1 to 128 of A-Z a-z 0-9 . _ = , + @ - and begins with a letter or digit" "rename it"
  fi
}

# Expand a leading ~ or $NAME, and $NAME as a whole later component, in the variable NAME itself.
# Not by eval: a path is data. An unset or empty $NAME is a refusal, for "$X/" would be the root.
expand_path() { # <variable name>
  local var=$1 value=${!1} head rest part out='' name
  [[ $value == *[\\~\\$]* ]] || return 0
  case $value in
    \\~ | \\~/*) value=\\$HOME${value#\\~} ;;
  esac
  rest=$value
  while [[ -n $rest ]]; do
    part=${rest%%/*}
    head=''
    if [[ $part =~ ^\\$([A-Za-z_][A-Za-z0-9_]*)$ ]]; then
      name=${BASH_REMATCH[1]}
      head=${!name-}
      [[ -n $head ]] || refuse "$EX_CONFIG" "$var=$value" "\\$$name is not set or empty here" "set $name, or set $var to a full path"
      part=${head%/}
      # At the front the name gives the whole beginning of a path, later one component of it.
      [[ -z $out || $part != /* ]] || part=${part#/}
    fi
    out+=$part
    [[ $rest == */* ]] || break
    rest=${rest#*/}
    out+=/
  done
  printf -v "$var" '%s' "$out"
}

# The first $NAME in a path that has no value here, which expand_path would refuse, into REPLY.
unset_name() { # <path>    returns: 0, or 1 where each has one
  local rest=$1/
  case $rest in \\~/*) rest=\\$HOME${rest#\\~} ;; esac
  while [[ $rest =~ (^|/)\\$([A-Za-z_][A-Za-z0-9_]*)(/.*) ]]; do
    REPLY=${BASH_REMATCH[2]} rest=${BASH_REMATCH[3]}
    [[ -n ${!REPLY-} ]] || return 0
  done
  return 1
}

# Expand, then insist: absolute, not /, not $HOME alone, no .. and no control character.
require_path() { # <variable name>
  expand_path "$1"
  local var=$1 value=${!1} why=''
  while [[ $value == *//* ]]; do value=${value//\\/\\//\\/}; done
  [[ $value == / ]] || value=${value%/}
  case $value in
    '') why="it is empty" ;;
    *[[:cntrl:]]*) why="it holds a control character" ;;
    *[\\"\\\\]*) why="it holds a quote or a backslash" ;;
    /) why="it is the root folder" ;;
    */../* | */.. | */./* | */.) why="it holds a . or .. component" ;;
    /*) ;;
    *) why="it is not absolute" ;;
  esac
  [[ -n $why || $value != "${HOME-}" ]] || why="it is the home folder itself"
  [[ -z $why ]] || refuse "$EX_CONFIG" "$var='${value//[[:cntrl:]]/?}'" "$why" "set $var to an absolute folder of its own"
  printf -v "$var" '%s' "$value"
}

# lib/file.bash: small files that are whole or not there, also after a power cut.
# needs: exit log

# Flush files and folders to their disks. An old sync takes no names and flushes everything: slower, as safe. But where it
# takes names, a file that it cannot flush is not on the disk (a quota on NFS says so here first, and says it once only),
# and a sync of everything would hide that. Some mounts cannot flush a folder; that alone is no failure.
flush() { # <path...>    returns: 0 or 74
  local path said folders=()
  # A command line has room for so many.
  while (($# > 500)); do
    flush "${@:1:500}" || return
    shift 500
  done
  said=$(LC_ALL=C exec sync -- "$@" 2>&1) && return 0
  if sync -- "$BASH" 2>/dev/null; then
    for path in "$@"; do
      if [[ -d $path ]]; then
        folders+=("$path")
      # Beside a folder that fails too it is told apart by its name: nobody names it a second time.
      elif [[ $said == *"$path"[\\'\\":]* ]]; then
        return 74
      fi
    done
    ((${#folders[@]} == $#)) || { ((${#folders[@]} > 0)) && ! sync -- "${folders[@]}" 2>/dev/null; } || return 74
  fi
  sync
}

# What lies at PATH and is no file that we may read, in words, into REPLY. None of it is ever opened: a FIFO would wait for ever.
no_file() { # <path>    returns: 0, or 1 where it is a file, or nothing lies there
  REPLY=''
  if [[ -f $1 ]]; then
    [[ -r $1 ]] || REPLY='a file that we may not read'
  elif [[ -d $1 ]]; then
    REPLY='a folder'
  elif [[ -p $1 ]]; then
    REPLY='a FIFO'
  elif [[ -S $1 ]]; then
    REPLY='a socket'
  elif [[ -b $1 || -c $1 ]]; then
    REPLY='a device'
  elif [[ -L $1 ]]; then
    REPLY='a link that leads nowhere'
  fi
  [[ -n $REPLY ]]
}

# TEXT into a small file that we can do without: it is silent where that fails, and leaves alone what is no file, for to open a
# FIFO for writing waits too.
put_text() { # <file> <text>    returns: 0, or 1
  [[ ! -e $1 || -f $1 ]] && { printf '%s' "$2" >"$1"; } 2>/dev/null
}

# A whole small file into REPLY, without a process. A file that holds a NUL is no text.
read_text() { # <file>    returns: 0, or 1 where it cannot be read or is no text
  REPLY=''
  [[ -f $1 ]] || return 1
  ! { IFS= read -r -d '' REPLY <"$1"; } 2>/dev/null || return 1
  # Where it could not be opened nothing was read either.
  [[ -n $REPLY || -r $1 ]]
}

# Put TEXT into FILE: temporary name beside it, flushed, renamed, read back.
# With "soon" nothing is flushed: for what may be lost in a power cut, because its loss is seen and costs little.
# With "behind" the paths that follow are flushed with the text in one call, before the rename: the name speaks of them.
# The rename itself may be lost; the old text is then still true.
replace_file() { # <file> <text> [soon | behind <paths...>]    returns: 0, or 74 with nothing changed under the name
  local REPLY file=$1 text=$2 dir=${1%/*} tmp how=${3-}
  shift $(($# < 3 ? $# : 3))
  [[ $dir != "$file" ]] || dir=.
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || { [[ $how != soon ]] && ! flush "$tmp" "$@"; } || ! mv -f -- "$tmp" "$file"; then
    rm -f -- "$tmp" 2>/dev/null || :
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  [[ -n $how ]] || flush "$dir"
  read_text "$file" && [[ $REPLY == "$text" ]] || {
    log "$file does not read back as it was written"
    return "$EX_COPY"
  }
}

# Put TEXT over the shorter one that FILE holds, in place and without a process: for records whose loss is seen and costs little.
# Bash writes line by line, so until all is there the first character says that it is no record.
overwrite_file() { # <file> <text>    returns: 0, or 1: it has to be written in another way
  local REPLY LC_ALL=C
  [[ -f $1 && ! -L $1 ]] && read_text "$1" && ((${#REPLY} > 0 && ${#REPLY} <= ${#2})) || return 1
  { printf '#' 1<>"$1" && printf '#%s' "${2:1}" 1<>"$1" && printf '%s' "${2:0:1}" 1<>"$1"; } 2>/dev/null || return 1
  read_text "$1" && [[ $REPLY == "$2" ]]
}

# Put TEXT into FILE only if no FILE is there yet, in one step that cannot be raced.
create_once() { # <file> <text>    returns: 0 made, 1 it was there already, 74
  local file=$1 text=$2 dir=${1%/*} tmp rc=0
  [[ $dir != "$file" ]] || dir=.
  [[ ! -e $file ]] || return 1
  tmp=$dir/.${file##*/}.$$.tmp
  if ! { printf '%s' "$text" >"$tmp"; } 2>/dev/null || ! flush "$tmp"; then
    rm -f -- "$tmp"
    log "could not write $file: no room, no right, or its disk is gone"
    return "$EX_COPY"
  fi
  if ! ln -- "$tmp" "$file" 2>/dev/null; then
    rc=1
    # No hard links here (some FUSE mounts): noclobber is as atomic, for a whole text is one write.
    if [[ ! -e $file ]] && (
      set -C
      printf '%s' "$text" >"$file"
    ) 2>/dev/null; then rc=0; fi
    [[ -e $file ]] || rc=$EX_COPY
  fi
  rm -f -- "$tmp"
  flush "$dir"
  return "$rc"
}

# lib/record.bash: line JSON that bash writes and reads without help (docs/contracts.md, section 2).
# needs: exit log file

# Free text made fit for a record: no quote, no backslash, no control character. Into REPLY.
record_fit() { # <text>
  REPLY=${1//\\"/\\'}
  REPLY=${REPLY//\\\\//}
  REPLY=${REPLY//[[:cntrl:]]/ }
}

record_open() { # <schema>
  RECORD='{'$'\\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\\"\\\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\\n''  "'$1'": '$2
}
# An integer, or null where the value is empty (not known).
record_int() { # <name> <digits or empty>
  if [[ -z $2 ]]; then
    record_raw "$1" null
  elif [[ $2 =~ ^-?[0-9]+$ ]]; then
    record_raw "$1" "$2"
  else
    log "a bug here: member $1 of a record is to be an integer and is '$2'"
    return "$EX_INTEGRITY"
  fi
}
record_close() {
  RECORD+=$'\\n''}'$'\\n'
}

# Read FILE into R_<member>. Lists are skipped. Only a whole record of the expected schema (and run) counts.
read_record() { # <file> <schema> [run id]    returns: 0 read, 1 not there, 2 unknown
  local REPLY file=$1 schema=$2 run_id=${3-} name names=" ${!R_*}"
  # Ours are in small letters: R_HOME and R_LIBS are the cell's affair.
  if [[ $names != *' R_'[!a-z]* ]]; then
    # shellcheck disable=SC2086 # names
    unset $names
  else
    for name in "${!R_@}"; do [[ $name != R_[a-z]* ]] || unset "$name"; done
  fi
  [[ -e $file || -L $file ]] || return 1
  read_text "$file" || return 2
  parse_record || return 2
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}

# Why FILE is no record, into REPLY.
record_fault() { # <file that read_record found unknown>
  if no_file "$1"; then
    REPLY="it is $REPLY, not a record"
  elif [[ ! -s $1 ]]; then
    REPLY='it is empty, not a whole record'
  else
    REPLY='it is not a whole record'
  fi
}

# The members of the text in REPLY into R_<member>. By patterns, not by regular expressions: bash compiles those anew each time.
parse_record() { # returns: 0, or 2 where it is not a whole record
  local IFS=$'\\n' line member value in_list=0
  local -a lines=()
  [[ $REPLY == '{'$'\\n'*$'\\n''}'$'\\n' && $REPLY != *$'\\n\\n'* ]] || return 2
  REPLY=${REPLY#'{'$'\\n'}
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${REPLY%$'\\n''}'$'\\n'})
  set +f
  for line in ${lines[@]+"${lines[@]}"}; do
    case $line in
      '  "'[a-z]*'": "'*'"' | '  "'[a-z]*'": "'*'",')
        member=${line:3} value=${line#*'": "'}
        member=${member%%\\"*} value=${value%\\"*}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        printf -v "R_$member" '%s' "$value"
        ;;
      '  "'[a-z]*'": '*)
        member=${line:3} value=${line#*'": '}
        member=${member%%\\"*} value=${value%,}
        [[ $in_list == 0 && $member != *[!a-z0-9_]* ]] || return 2
        case $value in
          null) value='' ;;
          true | false) ;;
          '[') in_list=1 && continue ;;
          '[]') continue ;;
          *) [[ $value == [0-9-]* && ${value#-} != *[!0-9]* && $value != - ]] || return 2 ;;
        esac
        printf -v "R_$member" '%s' "$value"
        ;;
      '    '*) ((in_list)) || return 2 ;;
      '  ]' | '  ],') in_list=0 ;;
      *) return 2 ;;
    esac
  done
}

# lib/proc.bash: who a process is. A number alone is recycled; with its start and this boot it is one process.
# needs:

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
this_boot_id() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/random/boot_id"; } 2>/dev/null || REPLY=unknown
}
# Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), into REPLY.
start_ticks() { # <pid>    returns: 1 where there is no such process, or only its zombie
  local stat fields
  REPLY=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The name in parentheses may hold blanks and parentheses itself: cut behind the last one.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]-} != [ZX] ]] || return 1
  REPLY=${fields[19]-}
  [[ -n $REPLY ]]
}
same_process() { # <pid> <start ticks>
  local REPLY
  start_ticks "$1" && [[ $REPLY == "$2" ]]
}

# No dead mount, driver or server makes us wait for ever: WORDS, ended after SECONDS where a `timeout` works here, killed where they
# do not heed that.
within() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 rc=0 begin=$SECONDS
  shift
  if ! command -v timeout >/dev/null 2>&1; then
    "$@"
  elif timeout -k 5 5 true 2>/dev/null; then
    timeout -k 5 "$limit" "$@" || rc=$?
  elif timeout 5 true 2>/dev/null; then
    timeout "$limit" "$@" || rc=$?
  else
    "$@"
  fi || return
  # Ended at the limit: by TERM under busybox (143), by KILL where TERM was not heeded (137). Before it, that is the words' own status.
  case $rc in 137 | 143) ((SECONDS - begin < limit)) || rc=124 ;; esac
  return "$rc"
}

# lib/hash.bash: SHA-256 by the quickest tool of the box.
# needs: exit log

# openssl uses the processor's SHA instructions; older sha256sum does not. Chosen once.
hash_tool() {
  case ${HASH_TOOL-} in openssl | sha256sum | shasum) return 0 ;; esac
  if command -v openssl >/dev/null 2>&1 && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1; then
    HASH_TOOL=openssl
  elif command -v sha256sum >/dev/null 2>&1; then
    HASH_TOOL=sha256sum
  elif command -v shasum >/dev/null 2>&1; then
    HASH_TOOL=shasum
  else
    refuse "$EX_MISSING" "hashing" "no openssl, sha256sum or shasum on PATH" "install one of them"
  fi
}

# Become the tool: over the files named, or over standard input. To be called in a subshell only. It prints 64 digits, two
# characters, the name.
# shellcheck disable=SC2120 # without a word it reads standard input
exec_hash_tool() { # [files...]
  case $HASH_TOOL in
    openssl) exec openssl dgst -sha256 -r "$@" ;;
    sha256sum) exec sha256sum "$@" ;;
    shasum) exec shasum -a 256 "$@" ;;
  esac
}

hash_file() { # <file>    sets REPLY to 64 hex digits; returns 1 where it cannot be read
  REPLY=''
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $1 ]] || return 1
  hash_tool
  REPLY=$({ exec_hash_tool <"$1"; } 2>/dev/null) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# For little: openssl hashes quicker, but starts three times as slowly.
hash_tool_small() {
  if command -v sha256sum >/dev/null 2>&1; then HASH_TOOL=sha256sum; else hash_tool; fi
}

hash_text() { # <text>    sets REPLY
  local HASH_TOOL=${HASH_TOOL-}
  hash_tool_small
  REPLY=$(exec_hash_tool < <(printf '%s' "$1")) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# lib/hashes.bash: many files at once: their digests by all cores, their sizes and times in one look.
# needs: exit log hash

# What `stat` says of each path, links followed, into STAT_OF[path]: "size|inode|mtime|ctime". Not there: no entry.
stat_many() { # <path...>
  begin_stat "$@"
  end_stat
}
# The two halves of it: stat runs beside us, while something else is done.
begin_stat() { # <path...>    sets STAT_FD for end_stat
  exec {STAT_FD}< <(
    while (($# > 500)); do
      TZ=UTC0 stat -L -c '%s|%i|%y|%z|%n' -- "${@:1:500}" 2>/dev/null
      shift 500
    done
    (($# == 0)) || TZ=UTC0 exec stat -L -c '%s|%i|%y|%z|%n' -- "$@" 2>/dev/null
  )
}
end_stat() {
  local line rest
  declare -gA STAT_OF
  STAT_OF=()
  while IFS= read -r line; do
    rest=${line#*|*|*|*|}
    STAT_OF[$rest]=${line%"|$rest"}
  done <&"$STAT_FD"
  exec {STAT_FD}<&-
}

# Let the kernel forget what it keeps of these files, so that reading them asks the storage. Best effort, GNU dd only.
forget_cached() { # <path...>
  local path
  # Where one call fails dd does not know the flag, or the file is not there, which its digest will tell.
  for path in "$@"; do dd if="$path" of=/dev/null iflag=nocache count=0 2>/dev/null || return 0; done
}

# One worker: the tool over its share, some hundred names a call; the last call becomes the tool.
hash_share() { # <path...>    prints lines of the tool
  while (($# > 200)); do
    (exec_hash_tool "${@:1:200}") 2>/dev/null || :
    shift 200
  done
  (($# == 0)) || exec_hash_tool "$@" 2>/dev/null
}

# How many workers: the cores that we may use, and not more than there are files.
hash_workers() { # <files>    into REPLY
  REPLY=$(nproc 2>/dev/null) || REPLY=1
  [[ $REPLY =~ ^[1-9][0-9]*$ ]] || REPLY=1
  ((REPLY <= 16)) || REPLY=16
  ((REPLY <= $1)) || REPLY=$1
}

# Digests of absolute paths, into SUM_OF[path]. The names hold no control character and no backslash.
# Work is shared out by the sizes in STAT_OF, biggest burden never on the worker that has most already.
hash_many() { # <path...>    returns: 0, or 1 where a file could not be read (it has no entry)
  begin_hash "$@"
  end_hash
}
# The two halves of it: little is read beside us, while something else is done. No other digests are taken in between.
begin_hash() { # <path...>    sets HASH_FD and HASH_N for end_hash
  local REPLY path line all=0
  declare -gA SUM_OF
  SUM_OF=() HASH_FD='' HASH_N=$#
  (($# > 0)) || return 0
  for path in "$@"; do
    line=${STAT_OF[$path]-4194304}
    all=$((all + ${line%%|*}))
  done
  local HASH_TOOL=${HASH_TOOL-}
  if ((all < 4194304)); then
    # Little work is done sooner by one than shared out.
    hash_tool_small
    exec {HASH_FD}< <(hash_share "$@")
  else
    hash_tool
    hash_workers $#
    share_out "$REPLY" "$@"
  fi
}
end_hash() { # returns: 0, or 1 where a file could not be read
  if [[ -n $HASH_FD ]]; then
    read_sums <&"$HASH_FD"
    exec {HASH_FD}<&-
    HASH_FD=''
  fi
  ((${#SUM_OF[@]} >= HASH_N))
}
read_sums() { # the tool's lines from standard input into SUM_OF
  local line
  while IFS= read -r line; do
    [[ ! ${line:0:64} =~ ^[0-9a-f]{64}$ ]] || SUM_OF[${line:66}]=${line:0:64}
  done
}
share_out() { # <workers> <path...>
  local path line n=$1 best i share fd
  local -a load=() fds=()
  local -A burden=()
  shift
  for ((i = 0; i < n; i++)); do load[i]=0; done
  for path in "$@"; do
    best=0
    for ((i = 1; i < n; i++)); do ((load[i] >= load[best])) || best=$i; done
    line=${STAT_OF[$path]-1}
    load[best]=$((load[best] + ${line%%|*} + 4096))
    burden[$best]+=$path$'\\n'
  done
  for ((i = 0; i < n; i++)); do
    IFS=$'\\n' read -r -d '' -a share <<<"${burden[$i]-}" || :
    exec {fd}< <(hash_share ${share[@]+"${share[@]}"})
    fds+=("$fd")
  done
  for fd in "${fds[@]}"; do
    read_sums <&"$fd"
    exec {fd}<&-
  done
}

# lib/room.bash: bytes and inodes that are free, and whether a tier is really there.
# needs: exit log path proc

# The nearest folder above PATH (or PATH itself) that exists, into REPLY.
existing_parent() { # <path>
  REPLY=$1
  while [[ -n $REPLY && ! -e $REPLY ]]; do REPLY=${REPLY%/*}; done
  REPLY=${REPLY:-/}
}

# One df, bounded: a dead network mount must not hang us. Prints the last line.
df_line() { # <-k or -i> <path>
  local text
  text=$(within 20 df -P "$1" -- "$2" 2>/dev/null) || return "$EX_MISSING"
  printf '%s\\n' "${text##*$'\\n'}"
}

# Bytes and inodes that are free at each of the folders, in one look: ROOM_BYTES and ROOM_INODES, parallel to the words. An entry is
# empty where it is not known: no such call, or a file system that does not count inodes.
look_room() { # <folders that exist...>
  begin_look_room "$@"
  end_look_room "$@"
}
# The two halves of it: the look runs beside us, while something else is done.
begin_look_room() { # <folders...>    sets ROOM_FD for end_look_room
  exec {ROOM_FD}< <(exec stat -f -c '%a %S %d %c' -- "$@" 2>/dev/null)
}
end_look_room() { # <the same folders...>
  local blocks size left all i
  ROOM_BYTES=() ROOM_INODES=()
  while read -r blocks size left all; do
    [[ $blocks$size$left$all =~ ^[0-9]+$ ]] || break
    ROOM_BYTES+=($((blocks * size)))
    if ((all > 0)); then ROOM_INODES+=("$left"); else ROOM_INODES+=(''); fi
  done <&"$ROOM_FD"
  exec {ROOM_FD}<&-
  # No such stat: two calls of df for each.
  for ((i = ${#ROOM_BYTES[@]} + 1; i <= $#; i++)); do
    free_bytes "${!i}" || :
    ROOM_BYTES+=("$REPLY")
    free_inodes "${!i}" || :
    ROOM_INODES+=("$REPLY")
  done
}

# Free bytes of the file system that holds PATH, into REPLY; empty and 69 where it cannot be told.
free_bytes() { # <path>
  local line
  existing_parent "$1"
  line=$(df_line -k "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \\ ([0-9]+)\\ +([0-9]+)\\ +(-?[0-9]+)\\ +([0-9]+|-)%?\\ + ]] || return "$EX_MISSING"
  REPLY=$((BASH_REMATCH[3] * 1024))
}

# Free inodes, into REPLY; empty where the file system does not count them (btrfs, some FUSE): 0 of 0 is not full.
free_inodes() { # <path>    returns: 0, also where REPLY is empty; 69 where df failed
  local line
  existing_parent "$1"
  line=$(df_line -i "$REPLY") || { REPLY= && return "$EX_MISSING"; }
  REPLY=
  [[ $line =~ \\ ([0-9]+)\\ +([0-9]+)\\ +([0-9]+)\\ +([0-9]+|-)%?\\ + ]] || return 0
  ((BASH_REMATCH[1] > 0)) || return 0
  REPLY=${BASH_REMATCH[3]}
}

# Why nothing can be written in FOLDER, or where it would be made, in words, into REPLY. To be asked where writing has failed: on
# some mounts the rights say no, and writing works.
write_fault() { # <folder>    returns: 0, or 1 where nothing speaks against it
  local dir line fields best=''
  existing_parent "$1"
  dir=$REPLY REPLY=''
  [[ ! -w $dir ]] || return 1
  REPLY="we have no right to write in $dir"
  dir=$(cd -P -- "$dir" 2>/dev/null && pwd) || return 0
  while read -ra fields; do
    line=${fields[4]-} line=${line//\\\\040/ }
    [[ ${dir%/}/ == "${line%/}"/* && ${#line} -ge ${#best} ]] || continue
    best=$line
    # The options of the mount, and in the last field those of its file system.
    if [[ ,${fields[5]-}, == *,ro,* || ,${fields[${#fields[@]} - 1]}, == *,ro,* ]]; then REPLY="$best is mounted read-only"; else REPLY="we have no right to write in $dir"; fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  return 0
}
# The words for a refusal: FAULT_WHY and FAULT_DO.
write_words() { # <folder> <what could not be done there> <tier>
  if write_fault "$1"; then
    FAULT_WHY="$2: $REPLY" FAULT_DO="mount the $3 tier for writing again (dmesg says why it is not), or mend its rights; then the same call"
  else
    FAULT_WHY=$2 FAULT_DO="look at the $3 tier: room, rights"
  fi
}

# The type of the file system that is mounted at PATH itself, into REPLY; 1 where PATH is no mount point. By the kernel's list,
# which costs no look at a dead mount; the last of several mounts at one place hides the others.
mount_type() { # <path>
  local line fields
  REPLY=''
  while IFS= read -r line; do
    read -ra fields <<<"$line"
    # The kernel writes a blank as \\040.
    [[ ${fields[4]-} == "${1// /\\\\040}" && $line == *' - '* ]] || continue
    line=${line#* - }
    REPLY=${line%% *}
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
  [[ -n $REPLY ]]
}
# What a type of file system is made of, into REPLY: network, local, or unknown (virtiofs, 9p: what the host has).
mount_kind() { # <type>
  case $1 in
    fuseblk | fuse.fuse-overlayfs | ext[234] | xfs | btrfs | bcachefs | zfs | f2fs | overlay | tmpfs | ramfs | vfat | ntfs3) REPLY=local ;;
    nfs | nfs4 | cifs | smb3 | ceph | lustre | gpfs | beegfs | glusterfs | moosefs | wekafs | panfs | afs | fuse | fuse.*) REPLY=network ;;
    *) REPLY=unknown ;;
  esac
}

# Is the tier at PATH there, by its profile's proof? Says why not into REPLY.
prove_tier() { # <path of the tier> <the profile's proof>    returns: 0 or 74
  local type
  REPLY=
  case $2 in
    mount | mount-network | mount-local)
      if ! mount_type "$1"; then
        REPLY="$1 is not a mount point: the storage is not attached, and files there would go to another disk"
      else
        type=$REPLY
        mount_kind "$type"
        case $2,$REPLY in
          mount-network,local) REPLY="$1 is a local disk ($type), not the storage of the network that is meant: it does not survive as that does" ;;
          mount-local,network) REPLY="$1 is storage of the network ($type), not the box's own disk that is meant" ;;
          *) REPLY= ;;
        esac
      fi
      ;;
    mount-parent) # a folder that a mount one above it brings along
      if ! mount_type "${1%/*}"; then
        REPLY="${1%/*} is not a mount point: the storage is not attached, and files in $1 would go to another disk"
      elif [[ ! -d $1 ]]; then
        REPLY="${1%/*} is mounted, and $1 is not in it"
      else REPLY=; fi
      ;;
    marker) [[ -s $1/.gpu-runbook-tier ]] || REPLY="$1/.gpu-runbook-tier is missing: the storage is not attached, or nobody has marked it yet" ;;
    none) [[ -d $1 ]] || mkdir -p -- "$1" 2>/dev/null || REPLY="$1 is not there and cannot be made" ;;
    *) REPLY="the proof '$2' is not known" ;;
  esac
  [[ -z $REPLY ]] || return "$EX_COPY"
}

# Is the durable tier there? If not, what is wrong, why and what to do are in TIER_SAID, three entries.
# shellcheck disable=SC2154 # bound in each script that calls it; others take this library for its other functions
durable_there() { # reads: DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF    returns: 0 or 74
  local REPLY tier=$DURABLE_TIER_PATH
  TIER_SAID=()
  [[ -n $DURABLE_DIR ]] || return 0
  # Then the tier is nowhere, and a folder that a person has named cannot lie in it.
  if unset_name "$tier"; then tier="its \\$$REPLY is not set"; else expand_path tier; fi
  if [[ $DURABLE_DIR/ == "${tier%/}"/* ]]; then
    prove_tier "${tier%/}" "$DURABLE_PROOF" ||
      TIER_SAID=("the durable tier" "$REPLY" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only")
  elif [[ ! -d $DURABLE_DIR ]]; then
    # Not the profile's place: then nothing proves it but that a person made the folder.
    TIER_SAID=("DURABLE_DIR=$DURABLE_DIR" "it is not the profile's tier ($tier) and is no folder" "make the folder on storage that survives, or unset DURABLE_DIR")
  fi
  ((${#TIER_SAID[@]} == 0)) || return "$EX_COPY"
}

# The durable tier, proven before the first byte goes to it. Refuses 74.
prove_durable() {
  durable_there || refuse "$EX_COPY" "${TIER_SAID[@]}"
}

# lib/run.bash: the run: its folders, its record, its events (docs/contracts.md, sections 1 and 3).
# needs: exit log path file record proc hash room

# One line for people and watchers; nothing decides by it, so a full disk here stops nothing.
event() { # <event> <cell or -> <attempt or -> <text>
  local REPLY
  utc_now
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $D/events.tsv || ! -e $D/events.tsv ]] || return 0
  printf '%s\\t%s\\t%s\\t%s\\t%s\\n' "$REPLY" "$1" "$2" "$3" "${4//[[:cntrl:]]/ }" 2>/dev/null >>"$D/events.tsv" || :
}

refuse_write() { # <exit code> <path> <what could not be done> <tier>
  local REPLY
  write_words "$2" "$3" "$4"
  refuse "$1" "$2" "$FAULT_WHY" "$FAULT_DO"
}

# The run's folders from the bound values and the environment: D, B, S. Makes nothing.
run_places() { # [asked: refuse where one of them does not answer]
  check_name "$RUN" RUN
  require_path DATA_DIR
  [[ -z $DURABLE_DIR ]] || require_path DURABLE_DIR
  require_path SCRATCH
  D=$DATA_DIR/$RUN
  # shellcheck disable=SC2034 # not every script has to do with the bundle and with scratch
  B=${DURABLE_DIR:-$DATA_DIR}/$RUN S=$SCRATCH/gpu-runbook/$RUN
  CODE_DIR=${CODE_DIR:-$D/code}
  expand_path CODE_DIR
  [[ ${1-} != asked ]] || places_answer
  scratch_apart
}
# A look at a folder on a dead mount never returns: a process of its own looks, and is ended (case 84).
places_answer() {
  local name rc
  for name in DATA_DIR DURABLE_DIR SCRATCH CODE_DIR; do
    [[ -n ${!name} ]] || continue
    rc=0
    within 20 test -e "${!name}" || rc=$?
    ((rc != 124)) || refuse "$EX_MISSING" "$name=${!name}" "its disk or mount did not answer in 20 s" "find it in /proc/mounts and attach it again, or set $name to another folder"
  done
}

# S is emptied when the disk is full: nothing of the run may lie in it, by name or by a link.
scratch_apart() {
  local place
  for place in "$D" "$B"; do
    [[ $place/ != "$S"/* && ! $place -ef $S ]] ||
      refuse "$EX_CONFIG" "SCRATCH=$SCRATCH" "$place lies in $S, which is emptied when room is short" "set SCRATCH to another folder"
  done
}

# The real path of a folder, into REPLY, without a process: there and back again.
resolve_folder() { # <folder>    returns: 0, or 1 where it cannot be entered
  local before=$PWD
  REPLY=''
  cd -P -- "$1" 2>/dev/null || return 1
  REPLY=$PWD
  # The folder that we stood in may be gone by now; nothing that follows needs it.
  cd -- "$before" 2>/dev/null || :
}

# The real folder of this script, into SELF_DIR: its siblings lie there, and a moved link changes nothing.
self_dir() {
  local REPLY dir=${BASH_SOURCE[0]-}
  [[ $dir == */* ]] || dir=./$dir
  # shellcheck disable=SC2034 # not every script that comes here asks for it
  resolve_folder "${dir%/*}" && SELF_DIR=$REPLY
}

# Read D's record into R_*, taking B's where D has none yet (a new box on the same durable tier).
find_run() { # returns: 0 found, 1 there is none; refuses 65 where one is unreadable
  local REPLY rc=0
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 2)) || { record_fault "$D/run.json" && refuse "$EX_INTEGRITY" "$D/run.json" "$REPLY" "compare it with $B/run.json and copy the whole one over it"; }
  ((rc == 1)) || return 0
  [[ $B != "$D" && (-e $B/run.json || -L $B/run.json) ]] || return 1
  read_record "$B/run.json" run/1 || {
    record_fault "$B/run.json"
    refuse "$EX_INTEGRITY" "$B/run.json" "$REPLY" "look at it; begin anew with RUN=$JOB.2 if it is lost"
  }
  read_text "$B/run.json"
  create_once "$D/run.json" "$REPLY" || [[ $? -eq 1 ]] || return "$EX_COPY"
  read_record "$D/run.json" run/1
}

# The durable copy: made where it is missing, refused where it is another run's.
mirror_run() {
  [[ $B != "$D" ]] || return 0
  local REPLY id=$R_run_id text rc=0
  read_text "$D/run.json" || refuse "$EX_INTEGRITY" "$D/run.json" "it cannot be read" "look at the data tier"
  text=$REPLY
  # The very same text is the very same run.
  ! read_text "$B/run.json" || [[ $REPLY != "$text" ]] || return 0
  [[ -d $B ]] || mkdir -p -- "$B" 2>/dev/null || refuse_write "$EX_COPY" "$B" "the folder cannot be made" durable
  create_once "$B/run.json" "$text" || [[ $? -eq 1 ]] ||
    refuse_write "$EX_COPY" "$B/run.json" "it cannot be written" durable
  read_record "$B/run.json" run/1 "$id" || rc=$?
  ((rc == 0)) || refuse "$EX_INTEGRITY" "$B/run.json" "it is another run's record, or not whole; ours is $id" "begin anew with RUN=$JOB.2, or put the right storage in place"
  read_record "$D/run.json" run/1
}

# lib/queue.bash: the one reader of queue files. Whoever counts cells counts them with this.
# needs: exit log path file

# What an environment may have put there is none of ours.
QUEUE_TEXT=''

# Read FILE into QUEUE_NAMES and QUEUE_COMMANDS. A line is name<TAB>command; blank lines and # do not count.
# What was read last is not taken apart again: the same text, whichever file it stands in, has the same cells.
read_queue() { # <file>    returns: 0, or refuses 69 (not there) or 78 (not a queue), naming file and line
  # Set once: to switch the locale for each line costs more than all the rest.
  local LC_ALL=C file=$1 line n=0 name command text
  local -a lines
  local -A seen=()
  [[ -r $file && -f $file ]] || refuse "$EX_MISSING" "queue $file" "it cannot be read$(no_file "$file" && printf ': it is %s' "$REPLY")" "give --queue FILE, or put queue.tsv there"
  ! IFS= read -r -d '' text <"$file" || refuse "$EX_CONFIG" "queue $file" "it holds a NUL: it is no text" "write it anew"
  [[ -z ${QUEUE_TEXT-} || $text != "$QUEUE_TEXT" ]] || return 0
  QUEUE_NAMES=() QUEUE_COMMANDS=() QUEUE_TEXT=''
  ! take_plain "$text" || { QUEUE_TEXT=$text && return 0; }
  # The last line counts also without its newline.
  mapfile -t lines <"$file" || refuse "$EX_MISSING" "queue $file" "it cannot be read" "look at its rights and its disk"
  for line in ${lines[@]+"${lines[@]}"}; do
    n=$((n + 1))
    ((n > 1)) || line=${line#$'\\xef\\xbb\\xbf'}
    line=${line%$'\\r'}
    case $line in
      '#'*) continue ;;
      *[![:space:]]*) ;;
      *) continue ;;
    esac
    name=${line%%$'\\t'*}
    command=${line#*$'\\t'}
    # By patterns, not by a regular expression: bash would compile it anew for each line.
    if [[ $name == *[!A-Za-z0-9._=,+@-]* || $name != [A-Za-z0-9]* || ${#name} -gt 128 || $command == "$line" || ${command//$'\\t'/} == *[[:cntrl:]]* || $command != *[![:space:]]* ||
      -n ${seen[${name,,}]-} ]]; then
      refuse_line "$file:$n" "$line" "$name" "$command" "${name:+${seen[${name,,}]-}}"
    fi
    seen[${name,,}]=$n
    QUEUE_NAMES+=("$name")
    QUEUE_COMMANDS+=("$command")
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "queue $file" "it holds no cell" "write a line name<TAB>command for each cell"
  QUEUE_TEXT=$text
}

# A text in which each line is a cell, looked at as a whole: line by line costs ten times as much. Whatever is unusual in it is for
# the slow way, which names it.
take_plain() { # <text>    returns: 0, or 1 with nothing set
  local IFS=$'\\n' all name
  local -a lines names commands odd
  local -A seen=()
  [[ $1 == *[!$'\\n']$'\\n' && $1 != $'\\n'* && $1 != *$'\\n\\n'* && $1 != *[$'\\001'-$'\\010'$'\\013'-$'\\037'$'\\177']* ]] || return 1
  set -f
  # shellcheck disable=SC2206 # split at line ends
  lines=(${1%$'\\n'})
  set +f
  # Whatever has a tab and a word behind it falls away, and nothing must be left.
  odd=("${lines[@]/#*$'\\t'*[![:space:]]*/}")
  all=${odd[*]}
  [[ -z ${all//$'\\n'/} ]] || return 1
  names=("${lines[@]%%$'\\t'*}") commands=("${lines[@]#*$'\\t'}")
  all=$'\\n'${names[*]}$'\\n'
  [[ ${all//$'\\n'/} != *[!A-Za-z0-9._=,+@-]* && $all != *$'\\n'[!A-Za-z0-9]* ]] || return 1
  # A name that is too long would leave nothing here.
  printf -v all '%129s' ''
  odd=("${names[@]##${all// /?}*}")
  all=$'\\n'${odd[*]}$'\\n'
  [[ $all != *$'\\n\\n'* ]] || return 1
  for name in "${names[@]}"; do seen[${name,,}]=1; done
  ((${#seen[@]} == ${#lines[@]})) || return 1
  QUEUE_NAMES=("${names[@]}") QUEUE_COMMANDS=("${commands[@]}")
}

# What is wrong with one line.
refuse_line() { # <where> <line> <name> <command> <line that has the name too, or empty>
  [[ $2 == *$'\\t'* ]] || refuse "$EX_CONFIG" "$1" "no tab between name and command" "write name<TAB>command"
  [[ ${4//$'\\t'/} != *[[:cntrl:]]* ]] || refuse "$EX_CONFIG" "$1" "a control character in the command" "take it out"
  [[ $4 == *[![:space:]]* ]] || refuse "$EX_CONFIG" "$1" "cell '${3//[[:cntrl:]]/?}' has no command" "write name<TAB>command"
  check_name "$3" "$1: cell"
  refuse "$EX_CONFIG" "$1" "cell '$3' stands in line $5 too (upper and lower case count as one)" "give each cell a name of its own"
}

# lib/claim.bash: who may run a cell: one numbered file for each attempt, created once, never removed once the cell has begun.
# needs: exit log file proc run
# reads: D B

# The highest claim on a cell. Sets CLAIM_N (0: none), CLAIM_STATE (live, foreign, dead, none, unread), CLAIM_HOST, CLAIM_PID.
# Unread: what lies there is no file that can be read (CLAIM_SAID tells what), so nobody knows whether its runner lives.
last_claim() { # <cell>
  local path n boot='' ticks='' REPLY
  CLAIM_N=0 CLAIM_STATE=none CLAIM_HOST='' CLAIM_PID=''
  for path in "$D/claims/$1"/[0-9]*; do
    n=${path##*/}
    [[ $n =~ ^[0-9]+$ ]] || continue
    ((10#$n <= CLAIM_N)) || CLAIM_N=$((10#$n))
  done
  ((CLAIM_N > 0)) || return 0
  printf -v path '%s/claims/%s/%03d' "$D" "$1" "$CLAIM_N"
  if no_file "$path"; then
    # shellcheck disable=SC2034 # who only asks for the state needs no words
    CLAIM_STATE=unread CLAIM_SAID="$path is $REPLY"
    return 0
  fi
  { read -r CLAIM_HOST boot CLAIM_PID ticks <"$path"; } 2>/dev/null || :
  CLAIM_STATE=dead
  this_host
  if [[ -z $ticks ]]; then
    # Somebody is writing it right now, or died at it: a minute tells.
    [[ -z $(find "$path" -mmin -1 2>/dev/null) ]] || CLAIM_STATE=live
  elif [[ $CLAIM_HOST != "$REPLY" ]]; then
    [[ -e $D/claims/.gone/${CLAIM_HOST//\\//_} ]] || CLAIM_STATE=foreign
  else
    this_boot_id
    if [[ $boot == "$REPLY" ]] && same_process "$CLAIM_PID" "$ticks"; then CLAIM_STATE=live; fi
  fi
}

# Can a line be written there at all?
can_write() { # <folder>
  local rc=0
  { printf 'probe\\n' >"$1/.probe.$$"; } 2>/dev/null || rc=1
  rm -f -- "$1/.probe.$$" 2>/dev/null
  return "$rc"
}

# lib/results.bash: a cell's result files: which they are, what they weigh, their digests.
# needs: exit log file hash hashes
# reads: D REQUIRED

# Results below this in all are small: hashed and copied in a moment. Looks that cost a process and would see what happens in
# that moment (free room, a second stat, having the kernel forget what it keeps) are for more; the digests are for all.
readonly SMALL_BYTES=1048576

# Is this the name of a file that some transfer or writer left half done?
is_leftover() { # <path below the cell>
  local base=${1##*/} tail
  case $1 in
    .~tmp~/* | */.~tmp~/* | .rsync-partial/* | */.rsync-partial/* | .partial/* | */.partial/*) return 0 ;;
  esac
  case $base in
    *.tmp | *.temp | *.part | *.partial | *.crdownload | .nfs* | .fuse_hidden* | *.sw[op]) return 0 ;;
    .?*.??????)
      # rsync's temporary name: six random characters, of which one at least is no small letter.
      tail=${base##*.}
      [[ $tail =~ ^[A-Za-z0-9]{6}$ && $tail =~ [A-Z0-9] ]] && return 0
      ;;
  esac
  return 1
}

# Files below a required folder, links followed, into LIST_PATHS; what is not a result is named and left out.
list_folder() { # <cell folder> <item>
  local dir=$1 item=$2 path ended=0 found=0
  while IFS= read -r -d '' path; do
    path=${path#"$dir"/}
    path=${path#./}
    if [[ $path == '== end' ]]; then
      ended=1
    elif [[ -L $dir/$path && ! -e $dir/$path ]]; then
      log "$dir/$path is a link that leads nowhere"
      return "$EX_COPY"
    elif is_leftover "$path"; then
      log "left out: $path (its name says that it is unfinished)"
    elif [[ ! -f $dir/$path ]]; then
      # Never opened: reading a fifo would wait for ever.
      log "left out: $path (a socket, fifo or device)"
    else
      LIST_PATHS+=("$path")
      found=1
    fi
  done < <(find -L "$dir/$item" ! -type d -print0 2>/dev/null && printf '== end\\0')
  ((ended)) || { log "$dir/$item cannot be read whole: a folder without rights, or a link that leads into itself" && return "$EX_COPY"; }
  ((found)) || { log "$dir/$item holds no file" && return "$EX_COPY"; }
}

# All result files of a cell, as paths below its folder, in C order without repeats: LIST_PATHS.
list_paths() { # <cell folder>    returns: 0, 65 a name that no list can hold, 74 not there or not readable
  local dir=$1 item path text
  LIST_PATHS=()
  for item in ${REQUIRED[@]+"${REQUIRED[@]}"}; do
    item=${item%/}
    if [[ -L $dir/$item && ! -e $dir/$item ]]; then
      log "$dir/$item is a link that leads nowhere"
      return "$EX_COPY"
    elif [[ -f $dir/$item ]]; then
      LIST_PATHS+=("$item")
    elif [[ -d $dir/$item ]]; then
      list_folder "$dir" "$item" || return
    elif [[ -e $dir/$item ]]; then
      log "$dir/$item is a socket, fifo or device, not a result"
      return "$EX_COPY"
    else
      log "$dir/$item is not there"
      return "$EX_COPY"
    fi
  done
  for path in ${LIST_PATHS[@]+"${LIST_PATHS[@]}"}; do
    [[ $path != *[[:cntrl:]\\"\\\\]* ]] && continue
    log "$dir/${path//[[:cntrl:]]/?} has a quote, a backslash or a control character in its name: rename it"
    return "$EX_INTEGRITY"
  done
  ((${#LIST_PATHS[@]} > 0)) || { log "$dir has no result file" && return "$EX_COPY"; }
  ((${#LIST_PATHS[@]} > 1)) || return 0
  if ((${#LIST_PATHS[@]} <= 16)); then
    sort_paths
    return
  fi
  text=$(printf '%s\\n' "${LIST_PATHS[@]}" | LC_ALL=C sort -u) || return "$EX_COPY"
  LIST_PATHS=()
  while IFS= read -r path; do LIST_PATHS+=("$path"); done <<<"$text"
}

# LIST_PATHS in C order without repeats, without a process: for few.
sort_paths() {
  local LC_ALL=C path i
  local -a sorted=()
  for path in "${LIST_PATHS[@]}"; do
    for ((i = ${#sorted[@]}; i > 0; i--)); do
      [[ $path < ${sorted[i - 1]} ]] || break
      sorted[i]=${sorted[i - 1]}
    done
    sorted[i]=$path
  done
  LIST_PATHS=()
  for path in "${sorted[@]}"; do
    [[ ${#LIST_PATHS[@]} -gt 0 && ${LIST_PATHS[${#LIST_PATHS[@]} - 1]} == "$path" ]] || LIST_PATHS+=("$path")
  done
}

# A cell's results and their sizes in one look, into LIST_PATHS LIST_FULL LIST_SEEN LIST_SIZES LIST_BYTES; LOOKED_AT names the cell.
look_cell() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  begin_look "$1" && end_look "$1"
}
begin_look() { # <cell>
  local path
  LOOKED_AT='' LIST_FULL=()
  list_paths "$D/cells/$1" || return
  for path in "${LIST_PATHS[@]}"; do LIST_FULL+=("$D/cells/$1/$path"); done
  begin_stat "${LIST_FULL[@]}"
}
end_look() { # <cell>
  local path line
  LIST_SEEN=() LIST_SIZES=() LIST_BYTES=0
  end_stat
  for path in "${LIST_FULL[@]}"; do
    line=${STAT_OF[$path]-}
    [[ -n $line ]] || { log "$path went away" && return "$EX_COPY"; }
    LIST_SEEN+=("$line")
    LIST_SIZES+=("${line%%|*}")
    LIST_BYTES=$((LIST_BYTES + ${line%%|*}))
  done
  LOOKED_AT=$1
}

# Digests of a cell's results, taken at the source, into D/state/<cell>.sha256 and LIST_TEXT LIST_SUMS, beside what look_cell sets.
# LIST_DIGEST is the list's own, empty until somebody needs it (list_digest) or it comes with the read-back.
# In two halves: the tool runs beside us, while something else is done.
begin_list() { # <cell>    returns: 0, 65, or 74 (missing, unreadable)
  [[ ${LOOKED_AT-} == "$1" ]] || look_cell "$1" || return
  # A look serves once: the next one is to see what has come since.
  LOOKED_AT=''
  begin_hash "${LIST_FULL[@]}"
}
end_list() { # <cell>    returns: 0, or 74 (unreadable, or still being written)
  local cell=$1 path i
  LIST_SUMS=() LIST_TEXT='' LIST_DIGEST=''
  # What is wrong from here on lies in what this cell has left; no other cell's copy has to do with it.
  OWN_FAULT=1
  end_hash || { log "a result of cell $cell cannot be read" && return "$EX_COPY"; }
  ((LIST_BYTES < SMALL_BYTES)) || stat_many "${LIST_FULL[@]}"
  for ((i = 0; i < ${#LIST_FULL[@]}; i++)); do
    path=${LIST_FULL[i]}
    [[ ${STAT_OF[$path]-} == "${LIST_SEEN[i]}" ]] || { log "$path is still being written" && return "$EX_COPY"; }
    LIST_SUMS+=("${SUM_OF[$path]}")
    LIST_TEXT+="${SUM_OF[$path]}  ${LIST_PATHS[i]}"$'\\n'
  done
  # shellcheck disable=SC2034 # of sync_cell
  OWN_FAULT=''
  # The commit takes the list from here and a repeated sync takes new digests: from the file only its own digest is taken.
  put_text "$D/state/$cell.sha256" "$LIST_TEXT" || { log "could not write $D/state/$cell.sha256" && return "$EX_COPY"; }
}
list_digest() { # into LIST_DIGEST
  local REPLY
  [[ -z $LIST_DIGEST ]] || return 0
  hash_text "$LIST_TEXT" || return "$EX_COPY"
  LIST_DIGEST=$REPLY
}

# lib/bundle.bash: a cell's results on their way into the bundle: copied, read back, committed.
# needs: exit log path file record proc hash hashes room run results
# reads: D B RUN_ID DURABLE_DIR DURABLE_TIER_PATH DURABLE_PROOF
#
# Who runs a cell writes D/state/<cell>.json with state "unsynced" (exit 0, evidence there), then calls sync_cell:
# on 0 both that record and B/records/<cell>.json say done; on 73, 74 or 65 nothing in B was replaced by worse,
# and the record is as it was; OWN_FAULT is not empty where the cell's own files are at fault, not the way into the bundle.
# A crash in between leaves "unsynced", which aggregate repeats.

# Is a cell committed: does B's record say done in this run, over the digest list that lies beside it?
check_bundled() { # <cell>    returns: 0 yes, 1 no record, 2 a record or list that does not hold; leaves R_*
  local REPLY rc=0 HASH_TOOL=${HASH_TOOL-}
  read_record "$B/records/$1.json" cell/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return "$rc"
  [[ ${R_cell-} == "$1" && ${R_state-} == "done" && -n ${R_files_sha256-} ]] || return 2
  hash_tool_small
  hash_file "$B/records/$1.sha256" || return 2
  [[ $REPLY == "$R_files_sha256" ]] || return 2
}

# The record in R_* once more, with STATE, WHY and the digest list, into RECORD.
cell_record() { # <state> <why> <files digest>
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$R_cell"
  record_text state "$1"
  record_text class ''
  record_text why "$2"
  record_int attempt "${R_attempt-}" || return
  record_int exit "${R_exit-}" || return
  record_raw signal "${R_signal:-null}"
  record_text started "${R_started-}"
  record_text ended "${R_ended-}"
  record_int peak_memory_bytes "${R_peak_memory_bytes-}" || return
  record_text gpu "${R_gpu-}"
  record_text command_sha256 "${R_command_sha256-}"
  record_text files_sha256 "$3"
  record_text tracker_url "${R_tracker_url-}"
  record_close
}

# Remove what an earlier sync of this cell, killed half-way, left in the bundle: our own names and nothing else.
drop_own_leftovers() { # <cell>
  local path
  for path in "$B/.syncing/$1".[0-9]*; do
    if [[ ! -d $path || ! ${path##*.} =~ ^[0-9]+$ || $path != "$B/.syncing/$1.${path##*.}" ]]; then continue; fi
    [[ $path != "${STAGE-}" ]] || continue
    # One of our own number is a dead one's too: numbers come again, in a container soon.
    [[ ${path##*.} == "$$" ]] || ! start_ticks "${path##*.}" || continue
    rm -rf -- "${path:?}" || return "$EX_COPY"
  done
}

# Which files of the list are not in TARGET as they should be: indices into TODO, their bytes into TODO_BYTES.
sync_todo() { # <target folder>
  local i path
  local -a same=()
  TODO=() TODO_BYTES=0
  for path in "${LIST_PATHS[@]}"; do
    path=$1/$path
    [[ ! -f $path || -L $path ]] || same+=("$path")
  done
  SUM_OF=()
  if ((${#same[@]} > 0)); then
    stat_many "${same[@]}"
    hash_many "${same[@]}" || :
  fi
  for ((i = 0; i < ${#LIST_PATHS[@]}; i++)); do
    path=$1/${LIST_PATHS[i]}
    [[ ${SUM_OF[$path]-} != "${LIST_SUMS[i]}" ]] || continue
    TODO+=("$i")
    TODO_BYTES=$((TODO_BYTES + LIST_SIZES[i]))
  done
}

# Room for the whole copy, before its first byte: the old files stay until the new ones are proven. Where it is
# little cp says the same, and as early.
sync_room() { # <target folder>    returns: 0 or 73
  ((TODO_BYTES >= SMALL_BYTES || ${#TODO[@]} > 64)) || return 0
  look_room "$1"
  if [[ -n ${ROOM_BYTES[0]} ]] && ((TODO_BYTES + 65536 > ROOM_BYTES[0])); then
    log "no room for the copy: it needs $TODO_BYTES bytes, $1 has ${ROOM_BYTES[0]}"
    return "$EX_NOROOM"
  fi
  if [[ -n ${ROOM_INODES[0]} ]] && ((${#TODO[@]} + 8 > ROOM_INODES[0])); then
    log "no room for the copy: it needs ${#TODO[@]} files, $1 has inodes for ${ROOM_INODES[0]}"
    return "$EX_NOROOM"
  fi
}

# TODO in runs of files that lie in one folder: RUN_FOLDER (below the cell's, empty for itself) and RUN_FIRST, where in TODO it
# begins. A call of cp or mv takes a run whole.
split_runs() {
  local i folder last='' n=0
  RUN_FOLDER=() RUN_FIRST=()
  for ((i = 0; i < ${#TODO[@]}; i++)); do
    folder=${LIST_PATHS[TODO[i]]}
    if [[ $folder == */* ]]; then folder=${folder%/*}; else folder=''; fi
    n=$((n + 1))
    if ((i == 0 || n > 200)) || [[ $folder != "$last" ]]; then
      RUN_FOLDER+=("$folder") RUN_FIRST+=("$i")
      last=$folder n=1
    fi
  done
  RUN_FIRST+=("${#TODO[@]}")
}

# The files of run N below FOLDER, into RUN_FILES.
run_files() { # <n> <folder>
  local i
  RUN_FILES=()
  for ((i = RUN_FIRST[$1]; i < RUN_FIRST[$1 + 1]; i++)); do RUN_FILES+=("$2/${LIST_PATHS[TODO[i]]}"); done
}

# The folders of the copy below ROOT, all in one call; none of them may be a link.
make_folders_below() { # <root> [further folders...]
  local n folder root=$1
  local -a folders=("$@")
  for folder in ${RUN_FOLDER[@]+"${RUN_FOLDER[@]}"}; do
    [[ -z $folder ]] || folders+=("$root/$folder")
  done
  for ((n = 0; n < ${#folders[@]}; n += 500)); do
    mkdir -p -- "${folders[@]:n:500}" 2>/dev/null || { log "$root cannot be made" && return "$EX_COPY"; }
  done
  for folder in "${folders[@]}"; do
    [[ ! -L $folder ]] || { log "$folder is a link, not a folder of the bundle" && return "$EX_COPY"; }
  done
}

# Files into a folder, under their names. Says 73 where the disk is full.
copy_files() { # <folder> <files...>
  local said to=$1
  shift
  # In English: what it says decides.
  said=$(LC_ALL=C exec cp -L -- "$@" "$to/" 2>&1) && return 0
  said=${said//[[:cntrl:]]/ }
  case $said in
    *'No space left'* | *'quota exceeded'*) log "no room for the copy of ${1%/*}: $said" && return "$EX_NOROOM" ;;
  esac
  log "copying from ${1%/*} failed: $said"
  return "$EX_COPY"
}

# The copies in TMP, flushed and read back, the list with them: each digest must be its source's.
prove_copies() { # <temporary folder> <target folder> <the list's file>
  local i tmp rc=0 read_back=0
  local -a tmps=()
  for i in "${TODO[@]}"; do tmps+=("$1/${LIST_PATHS[i]}"); done
  declare -gA STAT_OF=()
  # For sharing out the reading.
  # shellcheck disable=SC2004 # STAT_OF is associative; its declaration is in lib hashes too
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    STAT_OF[$tmp]=${LIST_SIZES[i]}
  done
  STAT_OF[$3]=${#LIST_TEXT}
  # Little comes from memory anyway: it is read while it is flushed.
  ((TODO_BYTES >= SMALL_BYTES)) || begin_hash "${tmps[@]}" "$3"
  flush "${tmps[@]}" || rc=$?
  if ((TODO_BYTES >= SMALL_BYTES && rc == 0)); then
    forget_cached "${tmps[@]}"
    begin_hash "${tmps[@]}" "$3"
  fi
  end_hash || read_back=1
  ((rc == 0)) || { log "the copy to $2 cannot be flushed: no room, a quota, or its disk is failing" && return "$EX_COPY"; }
  ((read_back == 0)) || { log "the copy to $2 cannot be read back" && return "$EX_COPY"; }
  for i in "${TODO[@]}"; do
    tmp=$1/${LIST_PATHS[i]}
    if [[ ${SUM_OF[$tmp]-} != "${LIST_SUMS[i]}" ]]; then
      log "the copy of ${LIST_PATHS[i]} on $2 reads back as ${SUM_OF[$tmp]-nothing}, its source was ${LIST_SUMS[i]}: a bad disk, or the source is still being written"
      return "$EX_COPY"
    fi
  done
  LIST_DIGEST=${SUM_OF[$3]}
}

# What TODO names is copied, flushed and read back, and only then renamed: the whole folder where the bundle has none of the cell
# yet, else file by file. The last good copy stays until the new one is proven. First into a temporary folder:
stage_files() { # <cell> <temporary folder>
  local n
  split_runs
  [[ $2 == "${STAGE-}" && -d $2 && ${RUN_FOLDER[*]} == '' && ! -L $2 && ! -L $B/.syncing && ! -L $B/final_ckpts && ! -L $B/records ]] ||
    make_folders_below "$2" "$B/.syncing" "$B/final_ckpts" "$B/records" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$D/cells/$1"
    copy_files "$2/${RUN_FOLDER[n]}" "${RUN_FILES[@]}" || return
  done
}
# Then proven, and under their names.
readonly OTHERS=3
place_files() { # <temporary folder> <target folder> <the list's file>    returns: 0, 74, or OTHERS: another has just put its copy there
  local tmp=$1 target=$2
  prove_copies "$tmp" "$target" "$3" || return
  # Some mounts cannot rename a folder.
  if [[ ! -e $target ]] && mv -- "$tmp" "$target" 2>/dev/null; then
    # Had another made the target in that moment, ours would lie inside it: then we compare with what lies there.
    [[ ! -e $target/${tmp##*/} ]] || { rm -rf -- "${target:?}/${tmp##*/}" && return "$OTHERS"; }
    [[ -e $target/${LIST_PATHS[TODO[0]]} ]] || { log "$target is not what was moved there: look at the durable tier" && return "$EX_COPY"; }
    return 0
  fi
  move_files "$tmp" "$target"
}
move_files() { # <temporary folder> <target folder>
  local n file
  make_folders_below "$2" || return
  for ((n = 0; n < ${#RUN_FOLDER[@]}; n++)); do
    run_files "$n" "$2"
    for file in "${RUN_FILES[@]}"; do
      [[ ! -d $file ]] || { log "$file is a folder where a file is to be" && return "$EX_COPY"; }
    done
    run_files "$n" "$1"
    mv -f -- "${RUN_FILES[@]}" "$2/${RUN_FOLDER[n]}" || return "$EX_COPY"
  done
}

# A cell's results into the bundle, then its list, last its record: whoever sees the record may count on the rest.
sync_cell() { # <cell>    returns: 0 committed, 65, 73 or 74 with the reason said; see the top of this file
  local cell=$1 target=$B/final_ckpts/$1 tmp=$B/.syncing/$1.$$ rc=0 bundled=''
  OWN_FAULT=''
  # The tier is proven before any byte.
  # The refusal is this function's status, not the end of the script.
  durable_there || { (refuse "$EX_COPY" "${TIER_SAID[@]}") || return; }
  ! check_bundled "$cell" || bundled=$R_files_sha256
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || { log "cell $cell has no whole record of this run" && return "$EX_INTEGRITY"; }
  [[ ${R_state-} == unsynced || ${R_state-} == "done" ]] || { log "cell $cell is ${R_state-}: nothing to sync" && return "$EX_INTEGRITY"; }
  still_flushed "${R_why-}" || { log "cell $cell finished in an earlier boot, before its files were flushed: unknown, so it is to run again" && return "$EX_INTEGRITY"; }
  [[ ! -L $target ]] || { log "$target is a link, not a folder of the bundle" && return "$EX_COPY"; }
  drop_own_leftovers "$cell" || return
  # shellcheck disable=SC2034 # lib/cell asks for it; aggregate has no use for it
  begin_list "$cell" || { rc=$? OWN_FAULT=1 && return "$rc"; }
  if [[ -z $bundled && ! -e $target ]] && ((LIST_BYTES < SMALL_BYTES && ${#LIST_PATHS[@]} <= 64)); then
    sync_new "$cell" "$tmp" || rc=$?
  else
    sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  if ((rc == OTHERS)); then
    rc=0
    begin_list "$cell" && sync_known "$cell" "$tmp" "$bundled" || rc=$?
  fi
  [[ ! -e $tmp ]] || rm -rf -- "${tmp:?}" || rc=$EX_COPY
  ((rc == 0)) || return "$rc"
  commit_cell "$cell"
}
# The usual case, little and all of it new, is copied while its digests are taken.
sync_new() { # <cell> <temporary folder>
  local rc=0
  TODO=("${!LIST_PATHS[@]}") TODO_BYTES=$LIST_BYTES
  stage_files "$1" "$2" || rc=$?
  end_list "$1" || return
  ((rc == 0)) || return "$rc"
  place_files "$2" "$B/final_ckpts/$1" "$D/state/$1.sha256"
}
sync_known() { # <cell> <temporary folder> <digest of the list in the bundle, or empty>
  local target=$B/final_ckpts/$1
  end_list "$1" || return
  if [[ -n $3 ]]; then
    list_digest || return
    if [[ $3 != "$LIST_DIGEST" ]]; then
      log "cell $1 is in the bundle, and its files in $D/cells/$1 were changed since: the bundle keeps the first ones"
      return "$EX_INTEGRITY"
    fi
  fi
  sync_todo "$target"
  sync_room "$B" || return
  ((${#TODO[@]} > 0)) || return 0
  stage_files "$1" "$2" && place_files "$2" "$target" "$D/state/$1.sha256"
}

# What a record of a finished cell says whose few files are not flushed yet, for they are copied at once: true in the boot that it
# names. After a power cut nobody knows what the files hold.
readonly UNFLUSHED='not flushed, boot '
still_flushed() { # <the record's why>    returns: 1 where that boot is over
  local REPLY
  [[ $1 == "$UNFLUSHED"* ]] || return 0
  this_boot_id
  # One that cannot be told could be any.
  [[ $1 == "$UNFLUSHED$REPLY" && $REPLY != unknown ]]
}

# The list and the record into B, then our own record. All is flushed in one call behind the renames, the folders first: what
# a power cut tears is seen, for the list must have the digest that the record says, and our own record still says unsynced.
commit_cell() { # <cell>    reads: R_*, of the cell's record on the data tier
  local cell=$1 back=$B/records/$1
  list_digest || return
  cell_record 'done' '' "$LIST_DIGEST" || return
  write_list "$back.sha256" || return
  replace_file "$back.json" "$RECORD" soon || return
  target_folders "$cell"
  flush "${TARGET_FOLDERS[@]}" "$back.sha256" "$back.json" "$B/records" || { log "the record of cell $cell cannot be flushed to $B" && return "$EX_COPY"; }
  overwrite_file "$D/state/$cell.json" "$RECORD" || replace_file "$D/state/$cell.json" "$RECORD" soon || return
  say_bundled "$cell"
}

# The list under its name at once: nobody looks at one that has no record of its digest beside it.
write_list() { # <file>
  local REPLY
  ! read_text "$1" || [[ $REPLY != "$LIST_TEXT" ]] || return 0
  put_text "$1" "$LIST_TEXT" && read_text "$1" && [[ $REPLY == "$LIST_TEXT" ]] || {
    log "could not write $1: no room, no right, or its disk is gone"
    return "$EX_COPY"
  }
}

# The folders in the bundle whose names a commit speaks of, into TARGET_FOLDERS.
target_folders() { # <cell>
  local path folder=$B/final_ckpts/$1
  local -A seen=([$folder]=1)
  TARGET_FOLDERS=("$B/final_ckpts" "$folder")
  for path in "${LIST_PATHS[@]}"; do
    path=$folder/$path
    while [[ ${path%/*} != "$folder" && -z ${seen[${path%/*}]-} ]]; do
      path=${path%/*}
      seen[$path]=1
      TARGET_FOLDERS+=("$path")
    done
  done
}

# The words for a committed cell. Without a durable tier it is exported, and nothing more is said.
say_bundled() { # <cell>
  if [[ -n $DURABLE_DIR ]]; then
    claim synced "cell $1" "$B/records/$1.json"
  else
    claim 'exported, on this box only' "cell $1" "$B/records/$1.json"
  fi
}

# lib/carry.bash: small files of the run that have to come home beside the bundle.
# needs: exit log file
# reads: D B

# What RUN_FACTS.md tells besides the records (S92): the events with their overrides, the roster, what failed (X4). Only what
# lies in B comes home, so they are copied there, once more each time. Lines that another box left there stay.
carry_logs() {
  local REPLY name text
  [[ $B != "$D" ]] || return 0
  for name in events.tsv queue.tsv NEGATIVE_RESULTS.tsv; do
    if no_file "$D/$name"; then
      log "$D/$name is $REPLY: it does not come home with the results"
      continue
    fi
    [[ -s $D/$name ]] || continue
    text=$(cat -- "$D/$name") || return
    if [[ -s $B/$name ]]; then text=$(awk '!seen[$0]++' "$B/$name" "$D/$name") || return; fi
    [[ -s $B/$name && $(<"$B/$name") == "$text" ]] || replace_file "$B/$name" "$text"$'\\n' || return
  done
}

# lib/manifest.bash: the bundle as a whole: every file of every record looked at, SHA256SUMS, PULL_MANIFEST.json.
# needs: exit log file record hash hashes bundle carry
# reads: D B RUN_ID RUN_COMMIT; works on CELL_NAMES, CELL_STATE[cell], CELL_WHY[cell] and the parallel FILE_SUMS FILE_PATHS

# A cell as it is to be listed. Its why becomes fit for a record.
set_cell() { # <cell> <state> <why>
  local REPLY
  record_fit "$3"
  CELL_STATE[$1]=$2
  CELL_WHY[$1]=$REPLY
}

# What the manifest that stands there says of cells and files, into OLD_CELLS and OLD_FILES ("bytes sha256 path").
# A cell that was once listed is never forgotten, also where its record is gone.
read_old_manifest() {
  local line item='^ {4}\\{"(cell|bytes)": (.*)\\},?$'
  OLD_CELLS=() OLD_FILES=()
  read_record "$B/PULL_MANIFEST.json" pull_manifest/1 "$RUN_ID" || return 0
  while IFS= read -r line; do
    [[ $line =~ $item ]] || continue
    line=${BASH_REMATCH[2]}
    if [[ ${BASH_REMATCH[1]} == cell && $line =~ ^\\"([^\\"]+)\\",\\ \\"state\\":\\ \\"([a-z]+)\\" ]]; then
      OLD_CELLS+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ ^([0-9]+),\\ \\"sha256\\":\\ \\"([0-9a-f]{64})\\",\\ \\"path\\":\\ \\"([^\\"]+)\\"$ ]]; then
      OLD_FILES+=("${BASH_REMATCH[1]} ${BASH_REMATCH[2]} ${BASH_REMATCH[3]}")
    fi
  done <"$B/PULL_MANIFEST.json"
}

# One record's digest list into FILE_SUMS and FILE_PATHS.
take_list() { # <cell>    returns: 1 where a line is not one that we write
  local line
  while IFS= read -r line; do
    [[ $line =~ ^([0-9a-f]{64})\\ \\ ([^/].*)$ && /$line/ != *'/../'* && ! ${line:66} =~ ^\\.\\.(/|$) ]] || return 1
    FILE_SUMS+=("${line:0:64}")
    FILE_PATHS+=("final_ckpts/$1/${line:66}")
  done <"$B/records/$1.sha256"
}

# The lists of all records that hold, in C order of the cells; and what an earlier manifest has of cells without one.
take_lists() {
  local cell sorted old path
  FILE_SUMS=() FILE_PATHS=() FILE_BYTES=()
  sorted=$(printf '%s\\n' "${CELL_NAMES[@]}" | LC_ALL=C sort) || return "$EX_COPY"
  while IFS= read -r cell; do
    if [[ -e $B/records/$cell.json && -s $B/records/$cell.sha256 ]]; then
      take_list "$cell" || { log "$B/records/$cell.sha256 is not a digest list" && return "$EX_INTEGRITY"; }
    else
      for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
        path=${old#* * }
        [[ $path == "final_ckpts/$cell/"* ]] || continue
        FILE_SUMS+=("${old:$((${#old} - ${#path} - 65)):64}")
        FILE_PATHS+=("$path")
      done
    fi
  done <<<"$sorted"
}

# Digests that were taken before and still hold, by size, inode and both times, into CACHE["path|stat"].
read_cache() { # <file>
  local line
  declare -gA CACHE
  CACHE=()
  [[ -f $1 ]] || return 0
  while IFS= read -r line; do
    if [[ $line =~ ^[0-9a-f]{64}\\  ]]; then CACHE[${line:65}]=${line:0:64}; fi
  done <"$1"
}

# Look at every file of FILE_PATHS: what is unchanged since its last digest is not read again, unless REHASH is true.
# Sets FILE_BYTES, and BAD[path] for each that is not what its record says.
verify_files() { # <cache file> <rehash: true or false>
  local i path key stat text=''
  local -a full=() miss=()
  local -A held=()
  declare -gA BAD
  BAD=() FILE_BYTES=()
  if [[ $2 == true ]]; then rm -f -- "$1"; fi
  read_cache "$1"
  for path in ${FILE_PATHS[@]+"${FILE_PATHS[@]}"}; do full+=("$B/$path"); done
  stat_many ${full[@]+"${full[@]}"}
  for path in ${full[@]+"${full[@]}"}; do
    key="$path|${STAT_OF[$path]-}"
    if [[ -z ${STAT_OF[$path]-} || ! -f $path || -L $path ]]; then
      BAD[$path]="it is not there"
    elif [[ -n ${CACHE[$key]-} ]]; then
      held[$path]=${CACHE[$key]}
    else
      miss+=("$path")
    fi
  done
  if [[ $2 == true ]]; then forget_cached ${miss[@]+"${miss[@]}"}; fi
  hash_many ${miss[@]+"${miss[@]}"} || :
  for ((i = 0; i < ${#full[@]}; i++)); do
    path=${full[i]}
    key=${held[$path]-${SUM_OF[$path]-}}
    stat=${STAT_OF[$path]-}
    FILE_BYTES+=("${stat%%|*}")
    [[ -n ${BAD[$path]-} || $key == "${FILE_SUMS[i]}" ]] || BAD[$path]="its digest is ${key:-not to be had}"
    if [[ -z ${BAD[$path]-} ]]; then text+="$key $path|$stat"$'\\n'; fi
  done
  replace_file "$1" "$text" || :
}

# Bytes that an earlier manifest gave for a file that is not there now.
old_bytes() { # <path>    into REPLY
  local old
  for old in ${OLD_FILES[@]+"${OLD_FILES[@]}"}; do
    if [[ ${old#* * } == "$1" ]]; then REPLY=${old%% *} && return 0; fi
  done
  REPLY=0
}

write_sums() {
  local i text=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do text+="${FILE_SUMS[i]}  ${FILE_PATHS[i]}"$'\\n'; done
  replace_file "$B/SHA256SUMS" "$text"
}

# A list in a record's shape: the members are whole lines.
record_list() { # <name> <lines with their commas>
  RECORD+=,$'\\n''  "'$1'": ['$'\\n'"$2"'  ]'
}

# The manifest, its own digest last, written and read back.
write_manifest() { # <cells expected> <cells done>
  local REPLY i cell cells='' files='' bytes=0 comma body
  record_open pull_manifest/1
  record_text run_id "$RUN_ID"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$1" || return
  record_int cells_done "$2" || return
  comma=''
  for cell in "${CELL_NAMES[@]}"; do
    cells+="$comma    {\\"cell\\": \\"$cell\\", \\"state\\": \\"${CELL_STATE[$cell]}\\", \\"why\\": \\"${CELL_WHY[$cell]}\\"}"
    comma=,$'\\n'
  done
  comma=''
  for ((i = 0; i < ${#FILE_PATHS[@]}; i++)); do
    REPLY=${FILE_BYTES[i]}
    [[ -n $REPLY ]] || old_bytes "${FILE_PATHS[i]}"
    files+="$comma    {\\"bytes\\": $REPLY, \\"sha256\\": \\"${FILE_SUMS[i]}\\", \\"path\\": \\"${FILE_PATHS[i]}\\"}"
    comma=,$'\\n'
    bytes=$((bytes + REPLY))
  done
  record_int files_total "${#FILE_PATHS[@]}" || return
  record_int bytes_total "$bytes" || return
  record_list cells "$cells"$'\\n'
  record_list files "${files:+$files$'\\n'}"
  body=$RECORD,$'\\n'
  hash_text "$body" || return "$EX_COPY"
  RECORD=$body'  "self_sha256": "'$REPLY'"'
  record_close
  replace_file "$B/PULL_MANIFEST.json" "$RECORD" || return
  hash_text "$RECORD" || return "$EX_COPY"
  body=$REPLY
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$body" ]] || { log "$B/PULL_MANIFEST.json does not read back" && return "$EX_COPY"; }
  MANIFEST_DIGEST=$body
}

usage() {
  cat <<'USAGE'
usage: aggregate_to_fs.sh [--rehash] [--except CELL=WHY]... [--only CELL,...]

Makes the bundle on the durable tier whole and says what is in it. For each cell of the run's queue: one that is done is
looked at again, one that finished but was not copied is copied now (the run itself is not repeated). Then SHA256SUMS and,
last, PULL_MANIFEST.json are written anew from the records there; both are read back. Nothing is ever deleted.

--rehash           read every file again; without it a file whose size, inode and times are unchanged is believed
--except CELL=WHY  this cell need not be done; the reason goes into the manifest
--only CELL,...    judge by these cells alone: 0 where each of them is done or excepted; the manifest still tells of all

exit codes: 0 every cell is done or excepted, and every file is what its record says; 1 some cell is not (the manifest
names it and holds the finished ones); 64 usage, 65 a file or record of the bundle does not match, 69 no run here, 73 no room,
74 the durable tier is not there or a copy failed, 75 another box has this run, 78 configuration
USAGE
}

parse_words() { # <words...>    sets REHASH EXCEPT_CELLS
  REHASH=false EXCEPT_CELLS=() ONLY=''
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --rehash) REHASH=true ;;
      --except)
        shift
        [[ ${1-} == ?*=*[![:space:]]* ]] || bad_usage "--except wants CELL=WHY"
        # A cell's name may hold '=': the longest name of the queue that fits is taken later.
        EXCEPT_CELLS+=("$1")
        ;;
      --only)
        shift
        [[ -n ${1-} ]] || bad_usage "--only wants CELL,..."
        ONLY=$1
        ;;
      *) bad_usage "'$1' is not known" ;;
    esac
    shift
  done
}
bad_usage() { # <why>
  printf '%s: %s\\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}

# The run that lies here. Aggregating begins none: without a run there is nothing to bundle.
find_this_run() {
  local REPLY
  [[ -d $D || -d $B ]] || refuse "$EX_MISSING" "run $RUN" "there is no $D" "start the run first, or set RUN and DATA_DIR to it"
  [[ -d $D/state ]] || mkdir -p -- "$D/state" 2>/dev/null || refuse_write "$EX_NOROOM" "$D/state" "the folder cannot be made" data
  find_run || refuse "$EX_MISSING" "run $RUN" "$D/run.json is not there" "start the run first, or set RUN and DATA_DIR to it"
  mirror_run
  [[ -w $B ]] || can_write "$B" || refuse_write "$EX_COPY" "$B" "nothing can be written there" durable
  # shellcheck disable=SC2154 # read_record sets R_<member>
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  this_host
  # shellcheck disable=SC2154 # as above
  [[ $R_host == "$REPLY" ]] ||
    refuse "$EX_BUSY" "run $RUN_ID" "box $R_host has it, and this is $REPLY" "if that box is gone, take it over first: run_queue.sh --adopt"
}

# Every cell that is to be in the manifest: the roster, then records and earlier manifest, so that nothing is shortened.
gather_cells() {
  local cell file
  declare -gA CELL_STATE CELL_WHY
  read_queue "$D/queue.tsv"
  CELL_NAMES=("${QUEUE_NAMES[@]}")
  read_old_manifest
  for cell in "${CELL_NAMES[@]}"; do set_cell "$cell" pending ''; done
  for file in "$B"/records/*.json; do
    cell=${file##*/}
    add_cell "${cell%.json}" 'has a record here, and is not in the queue'
  done
  for cell in ${OLD_CELLS[@]+"${OLD_CELLS[@]}"}; do
    add_cell "$cell" 'an earlier manifest has it; it is not in the queue and has no record'
  done
}
add_cell() { # <cell> <why>
  [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ && -z ${CELL_STATE[$1]-} ]] || return 0
  CELL_NAMES+=("$1")
  set_cell "$1" unknown "$2"
}

# Is some run_one at this cell right now, here or on another box? Then its copy is its own affair.
cell_is_live() { # <cell>
  last_claim "$1"
  [[ $CLAIM_STATE == live || $CLAIM_STATE == foreign || $CLAIM_STATE == unread ]]
}

# State of a cell from the records, and the missing sync done where there is one.
settle_cell() { # <cell>
  local REPLY cell=$1 rc=0 said=0
  check_bundled "$cell" || rc=$?
  ((rc != 0)) || { set_cell "$cell" 'done' '' && return 0; }
  read_record "$D/state/$cell.json" cell/1 "$RUN_ID" || said=$?
  case $said:${R_state-} in
    1:*)
      if ((rc != 1)); then
        set_cell "$cell" unknown "its record in $B/records does not hold"
      elif [[ -d $D/claims/$cell ]]; then
        set_cell "$cell" unknown 'it was begun, and has no record'
      fi
      return 0
      ;;
    2:*)
      record_fault "$D/state/$cell.json"
      set_cell "$cell" unknown "its record in $D/state: $REPLY" && return 0
      ;;
    0:unsynced | 0:done) ;;
    0:running)
      if ! cell_is_live "$cell"; then
        set_cell "$cell" unknown 'it was running, and its process is gone'
      elif [[ $CLAIM_STATE == unread ]]; then
        set_cell "$cell" unknown "$CLAIM_SAID, not a claim"
      else
        set_cell "$cell" running ''
      fi
      return 0
      ;;
    *) set_cell "$cell" "$R_state" "${R_why-}" && return 0 ;;
  esac
  if cell_is_live "$cell"; then
    set_cell "$cell" unsynced 'its runner is copying it now'
    return 0
  fi
  sync_again "$cell"
}
sync_again() { # <cell>
  local rc=0
  log "cell $1 is not in the bundle: copying it"
  sync_cell "$1" >&2 || rc=$?
  if ((rc == 0)); then
    set_cell "$1" 'done' ''
    event 'done' "$1" - 'copied by aggregate'
  else
    set_cell "$1" unsynced "the copy failed with $rc"
  fi
}

# A file that is not as its record says is copied again from the source, if that still is what was recorded.
mend_cells() {
  local path cell
  local -A tried=()
  for path in "${!BAD[@]}"; do
    log "on the durable tier $path is not what its record says: ${BAD[$path]}"
    cell=${path#"$B/final_ckpts/"}
    cell=${cell%%/*}
    [[ -z ${tried[$cell]-} && ${CELL_STATE[$cell]} == 'done' ]] || continue
    tried[$cell]=1
    if [[ -d $D/cells/$cell ]] && ! cell_is_live "$cell" && sync_cell "$cell" >&2; then
      log "cell $cell: mended from $D/cells/$cell"
    else
      set_cell "$cell" unknown "a file in the bundle is not what its record says: ${path##*/}"
    fi
  done
}

apply_exceptions() {
  local word cell best
  for word in ${EXCEPT_CELLS[@]+"${EXCEPT_CELLS[@]}"}; do
    best=''
    for cell in "${CELL_NAMES[@]}"; do
      if [[ $word == "$cell="* ]] && ((${#cell} > ${#best})); then best=$cell; fi
    done
    [[ -n $best ]] || refuse "$EX_CONFIG" "--except ${word//[[:cntrl:]]/?}" "no cell of the queue has that name" "look at $D/queue.tsv"
    if [[ ${CELL_STATE[$best]} == 'done' ]]; then
      log "cell $best is done: the exception is not needed"
    else
      set_cell "$best" excepted "${word#"$best="}"
      event override "$best" - "excepted: ${word#"$best="}"
    fi
  done
}

# Count, name what is missing, and only with nothing missing say that it is whole.
report() { # <expected> <done> <excepted>    returns: 0, 1 or 65
  local cell n=0
  if ((${#BAD[@]} > 0)); then
    log "${#BAD[@]} files of the bundle are not what their records say; $B/PULL_MANIFEST.json still lists them"
    return "$EX_INTEGRITY"
  fi
  for cell in "${CELL_NAMES[@]}"; do
    [[ ${CELL_STATE[$cell]} != 'done' && ${CELL_STATE[$cell]} != excepted ]] || continue
    # Of a part only its own cells are asked for; the others stand in the manifest with their states.
    [[ -z $ONLY || ,$ONLY, == *",$cell,"* ]] || continue
    ((n++ > 0)) || log "$2 of $1 cells are done, $3 excepted; the others${ONLY:+ of --only}:"
    ((n <= 20)) || { log "... and more; see $B/PULL_MANIFEST.json" && break; }
    log "  $cell: ${CELL_STATE[$cell]} ${CELL_WHY[$cell]}"
  done
  ((n == 0)) || return "$EX_FAIL"
  if (($2 == 0)); then
    log "no cell is done, so there is nothing to bundle"
    return "$EX_COPY"
  fi
  claim "$2 of $1 cells done, $3 excepted, ${#FILE_PATHS[@]} files checked${ON_THIS_BOX}${ONLY:+, a part: $ONLY}, digest ${MANIFEST_DIGEST:0:12}" "bundle of run $RUN" "$B/PULL_MANIFEST.json"
}

main() {
  local cell done=0 excepted=0
  parse_words "$@"
  ON_THIS_BOX=''
  self_dir
  run_places
  [[ -n $DURABLE_DIR ]] || ON_THIS_BOX=', exported, on this box only'
  prove_durable
  find_this_run
  gather_cells
  for cell in "${CELL_NAMES[@]}"; do settle_cell "$cell"; done
  take_lists || refuse "$?" "the bundle" "a digest list cannot be read" "look at $B/records; a good copy may lie in $D/state"
  verify_files "$D/state/.aggregate" "$REHASH"
  if ((${#BAD[@]} > 0)); then
    mend_cells
    verify_files "$D/state/.aggregate" false
  fi
  apply_exceptions
  for cell in ${ONLY//,/ }; do
    [[ -n ${CELL_STATE[$cell]-} ]] || refuse "$EX_CONFIG" "--only ${cell//[[:cntrl:]]/?}" "no cell of the queue has that name" "look at $D/queue.tsv"
  done
  for cell in "${CELL_NAMES[@]}"; do
    case ${CELL_STATE[$cell]} in
      'done') done=$((done + 1)) ;;
      excepted) excepted=$((excepted + 1)) ;;
    esac
  done
  carry_logs || refuse "$EX_COPY" "$B" "events.tsv, queue.tsv or NEGATIVE_RESULTS.tsv cannot be copied there" "look at the durable tier: room, rights"
  write_sums || refuse "$EX_COPY" "$B/SHA256SUMS" "it cannot be written" "look at the durable tier: room, rights"
  write_manifest "${#CELL_NAMES[@]}" "$done" || refuse "$EX_COPY" "$B/PULL_MANIFEST.json" "it cannot be written" "look at the durable tier: room, rights"
  report "${#CELL_NAMES[@]}" "$done" "$excepted"
}

if ! (return 0 2>/dev/null); then
  main "$@"
  exit
fi

#!/usr/bin/env bash
# formal_run.sh: the one way to start evidence: gates, a detached queue, and success only with proof.
# Generated; do not edit. Source: templates/box/formal_run.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=formal_run.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the branch that a formal run is at
readonly BRANCH=main
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/kaggle/temp/hf}
# what a detached run is started with
DETACH=${DETACH-commit}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# its size in bytes; empty: not known
readonly DATA_CAP_BYTES=20000000000
# its limit of files; empty: not known
readonly DATA_CAP_INODES=''
# its size in bytes; empty: not known
readonly DURABLE_CAP_BYTES=''
# its limit of files; empty: not known
readonly DURABLE_CAP_INODES=''
# seconds between our signal and the kill: save_s + 10
readonly GRACE_S=12
# seconds that one checkpoint takes
readonly SAVE_S=2
# the short trial
readonly SMOKE_COMMAND="\\"\\$PY\\" train.py --epochs 1 --batches 2 --batch-size 8 --no-log --out \\"\\$CELL_DIR\\""
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# host memory for one cell
readonly NEED_RAM_BYTES=1000000000
# expected seconds for one cell
readonly NEED_S=6
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# and how many bytes; empty: not said
readonly -a DATA_SIZES=()
# and its digest, where it is one file
readonly -a DATA_SUMS=()
# and the list of its digests, relative to the code
readonly -a DATA_LISTS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# switches the box off from inside; empty: the profile does not say that this stops the meter
readonly -a POWER_OFF_COMMAND=()
# --- end of bound values ---

record_open() { # <schema>
  RECORD='{'$'\\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\\"\\\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\\n''  "'$1'": '$2
}
# An integer, or null where the value is empty (not known).
record_int() { # <name> <digits or empty>
  if [[ -z $2 ]]; then
    record_raw "$1" null
  elif [[ $2 =~ ^-?[0-9]+$ ]]; then
    record_raw "$1" "$2"
  else
    log "a bug here: member $1 of a record is to be an integer and is '$2'"
    return "$EX_INTEGRITY"
  fi
}
record_bool() { # <name> <true or false>
  case $2 in
    true | false) record_raw "$1" "$2" ;;
    *)
      log "a bug here: member $1 of a record is to be true or false and is '$2'"
      return "$EX_INTEGRITY"
      ;;
  esac
}
record_close() {
  RECORD+=$'\\n''}'$'\\n'
}

# Digest of the folder that this script lies in, into REPLY: which scripts these are.
box_digest() { # <folder box/>
  local HASH_TOOL=${HASH_TOOL-} file said='' text=''
  local -a files=()
  for file in "$1"/*; do
    [[ ! -f $file ]] || files+=("$file")
  done
  hash_tool_small
  ((${#files[@]} == 0)) || said=$(exec_hash_tool "${files[@]}" 2>/dev/null) || return "$EX_INTEGRITY"
  while IFS= read -r file; do
    [[ -z $file ]] || text+="${file:0:64}  ${file##*/}"$'\\n'
  done <<<"$said"
  hash_text "$text"
}

# Is there anything at FOLDER or above it that git would take for a repository? Where there is not, it need not be asked.
may_be_repository() { # <folder>
  local REPLY dir
  [[ -z ${GIT_DIR-} ]] || return 0
  resolve_folder "$1" || return 0
  dir=$REPLY
  while :; do
    [[ ! -e $dir/.git && ! -e $dir/HEAD ]] || return 0
    [[ -n $dir ]] || return 1
    dir=${dir%/*}
  done
}

# The commit of the code, into CODE_COMMIT (40 digits or none).
code_commit() {
  CODE_COMMIT=none
  command -v git >/dev/null 2>&1 && [[ -d $CODE_DIR ]] && may_be_repository "$CODE_DIR" || return 0
  CODE_COMMIT=$(git -C "$CODE_DIR" rev-parse --verify -q HEAD 2>/dev/null) || CODE_COMMIT=none
  [[ $CODE_COMMIT =~ ^[0-9a-f]{40}$ ]] || CODE_COMMIT=none
}

# The text of this run's record with HOST and BOOT_ID of now, into RECORD.
run_record() { # <run id> <formal> <commit> <branch> <shard> <box digest>
  local REPLY
  record_open run/1
  record_text run_id "$1"
  record_text job "$JOB"
  record_text profile "$PROFILE"
  record_bool formal "$2" || return
  record_text commit "$3"
  record_text branch "$4"
  record_text shard "$5"
  this_host
  record_text host "$REPLY"
  this_boot_id
  record_text boot_id "$REPLY"
  record_text box_digest "$6"
  record_close
}

new_run() { # <formal> <shard>: create the record, or find that another start was quicker
  local REPLY id uuid digest branch=''
  IFS= read -r uuid </proc/sys/kernel/random/uuid || return "$EX_MISSING"
  utc_now
  id=${REPLY//[-:]/}-${uuid:0:8}
  box_digest "$SELF_DIR" || return
  digest=$REPLY
  [[ $CODE_COMMIT == none ]] || branch=$(git -C "$CODE_DIR" symbolic-ref -q --short HEAD 2>/dev/null) || branch=''
  run_record "$id" "$1" "$CODE_COMMIT" "$branch" "$2" "$digest" || return
  create_once "$D/run.json" "$RECORD" || [[ $? -eq 1 ]]
}

# Take the run over: write our host into both copies.
adopt_run() { # <host that had it>
  event adopt - - "from $1"
  run_record "$R_run_id" "${R_formal-}" "${R_commit-}" "${R_branch-}" "${R_shard-}" "${R_box_digest-}" || return
  replace_file "$D/run.json" "$RECORD" || return
  [[ $B == "$D" ]] || replace_file "$B/run.json" "$RECORD" || return
  read_record "$D/run.json" run/1
}

# What an existing run insists on: its commit, its shard, its formality, its host.
check_run() { # <formal wanted> <shard or empty> <adopt>
  local REPLY anew="begin anew with RUN=$JOB.2"
  [[ ${R_commit-} == "$CODE_COMMIT" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of commit ${R_commit-}, and the code at $CODE_DIR is at $CODE_COMMIT" "check out ${R_commit-} there, or $anew"
  [[ -z $2 || ${R_shard-} == "$2" ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it is of shard ${R_shard-}, not $2" "give --shard ${R_shard-}, or a RUN of its own to each box"
  [[ $1 != true || ${R_formal-} == true ]] ||
    refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "$anew"
  this_host
  if [[ ${R_host-} != "$REPLY" ]]; then
    [[ $3 == true ]] ||
      refuse "$EX_BUSY" "run $R_run_id" "box ${R_host-} has it, and this is $REPLY" "if that box is gone for good, say --adopt; else give this box its own RUN"
    adopt_run "${R_host-}" || return
  fi
}

# What a person set in place of the bound values, by this process's own environment: printed and logged.
log_overrides() {
  local pair name value
  # Run_queue has said it for all its cells.
  [[ -z ${OVERRIDES_SAID-} && -r /proc/$$/environ ]] || return 0
  while IFS= read -r -d '' pair; do
    name=${pair%%=*} value=${pair#*=}
    case $name in
      DATA_DIR | DURABLE_DIR | SCRATCH | HF_HOME | PROXY_HOOK | CRED_FILE | DETACH | PY) ;;
      *) continue ;;
    esac
    # A proxy's address may carry a password.
    [[ $value != *://*@* ]] || value="${value%%://*}://...@${value##*@}"
    log "override: $name=$value"
    event override - - "$name=$value"
  done <"/proc/$$/environ"
}

# Begin or continue the run. Sets D B S CODE_DIR RUN_ID RUN_COMMIT RUN_FORMAL RUN_SHARD RUN_HOST RUN_BOX_DIGEST.
open_run() { # <formal wanted: true or false> <shard I/N or empty> <adopt: true or false>
  local formal=$1 shard=$2 adopt=$3 pid='' rest
  # It tells which processes live; that of another PID namespace shows other processes under our numbers.
  { read -r pid rest </proc/self/stat; } 2>/dev/null && [[ $pid == "$BASHPID" ]] ||
    refuse "$EX_MISSING" "/proc" "it does not show this process: not mounted, or of another PID namespace" "mount it: mount -t proc proc /proc, or unshare with --mount-proc"
  self_dir
  run_places
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  code_commit
  [[ $formal != true || $CODE_COMMIT != none ]] ||
    refuse "$EX_GATE" "a formal run" "the code at $CODE_DIR has no commit" "put a git work tree there, or set CODE_DIR"
  if ! find_run; then
    new_run "$formal" "${shard:-1/1}" || refuse_write "$EX_COPY" "$D/run.json" "it cannot be written" data
    find_run || refuse "$EX_COPY" "$D/run.json" "it does not read back" "look at the data tier"
  fi
  mirror_run
  check_run "$formal" "$shard" "$adopt" || refuse "$EX_COPY" "run $RUN" "its record cannot be rewritten" "look at the tiers: room, rights"
  # shellcheck disable=SC2034 # a script uses the ones that it needs
  RUN_ID=$R_run_id RUN_COMMIT=${R_commit-} RUN_FORMAL=${R_formal-} RUN_SHARD=${R_shard-} RUN_HOST=${R_host-} RUN_BOX_DIGEST=${R_box_digest-}
  log_overrides
}

# lib/states.bash: the state of every cell at once: a few processes for all of them, none for a cell.
# needs: exit log file proc claim
# reads: D B RUN_ID

# Every cell that has a record on either tier, into RECORD_OF[cell]: in the bundle (1 yes, 0 no, 2 damaged there), then state class
# attempt started ended exit why of its record, US (31) between. In the bundle is a cell whose record there says done over the very
# list beside it; of such a one the record on the data tier is not even opened. What is not a whole record of this run is unknown.
read_states() {
  begin_states
  end_states
}
# The two halves of it: awk reads beside us, while something else is done.
begin_states() { # [the records to read: all]    sets STATES_FD
  local REPLY file
  local -a odd=()
  (($# > 0)) || set -- "$B/records"/*.json "$D/state"/*.json
  # Texts may hold any bytes, and some awks warn of them elsewhere than in the C locale.
  exec {STATES_FD}< <({
    for file; do [[ -f $file && -r $file ]] || odd+=("$file"); done
    # What is no file is named here and opened by nobody: a FIFO would wait for ever.
    for file in ${odd[@]+"${odd[@]}"}; do
      if no_file "$file"; then printf '\\037%s\\037%s\\n' "$REPLY" "$file"; fi
    done
    if ((${#odd[@]} == 0)); then printf '%s\\n' "$@"; else
      for file; do [[ ! -f $file || ! -r $file ]] || printf '%s\\n' "$file"; done
    fi
  } 2>/dev/null | LC_ALL=C awk -v run="$RUN_ID" -v b="$B/records/" -v d="$D/state/" '
    # A record is read whole, for no text holds a 1.
    function read_whole(file,   got) {
      RS = "\\001"; text = ""
      got = (getline text < file)
      close(file)
      RS = "\\n"
      return got
    }
    function member(key,   at, rest) {
      at = index(text, "\\n  \\"" key "\\": ")
      if (!at) return ""
      rest = substr(text, at + length(key) + 7)
      rest = substr(rest, 1, index(rest, "\\n") - 1)
      sub(/,$/, "", rest)
      if (substr(rest, 1, 1) == "\\"") return substr(rest, 2, length(rest) - 2)
      return rest == "null" ? "" : rest
    }
    function unknown(why) { return s "unknown" s s s s s s why }
    function fields(name, file) {
      if (substr(text, 1, 4) != "{\\n  " || substr(text, length(text) - 2) != "\\n}\\n" || member("schema") != "cell/1" || member("run_id") != run || member("cell") != name || member("state") == "")
        return unknown(file (text == "" ? " is empty, or cannot be read" : " is not a whole record of this run"))
      return s member("state") s member("class") s member("attempt") s member("started") s member("ended") s member("exit") s member("why")
    }
    function name_of(path, folder) { return substr(path, length(folder) + 1, length(path) - length(folder) - 5) }
    BEGIN { s = "\\037" }
    index($0, s) == 1 {
      split($0, part, s)
      why = unknown(part[3] " is " part[2] ", not a record")
      if (index(part[3], b) == 1) { n = name_of(part[3], b); in_b[++nb] = n; of_b[n] = why }
      else { n = name_of(part[3], d); in_d[++nd] = n; odd[n] = why }
      next
    }
    index($0, b) == 1 {
      n = name_of($0, b)
      read_whole($0)
      in_b[++nb] = n
      of_b[n] = fields(n, $0)
      list[n] = member("files_sha256")
      next
    }
    index($0, d) == 1 { in_d[++nd] = name_of($0, d); next }
    { n = $0; sub(/.*\\//, "", n); sub(/\\.sha256$/, "", n); digest[n] = substr($0, 1, 64) }
    END {
      for (i = 1; i <= nb; i++) {
        n = in_b[i]
        has[n] = (index(of_b[n], s "done" s) == 1 && list[n] != "" && digest[n] == list[n]) ? 1 : 2
        if (has[n] == 1) print n s 1 of_b[n]
      }
      for (i = 1; i <= nd; i++) {
        n = in_d[i]
        if ((n in has) && has[n] == 1) continue
        if (n in odd) line = odd[n]
        else { read_whole(d n ".json"); line = fields(n, d n ".json") }
        # Damaged there, and what is here may well be whole: both are to be told.
        why = ""
        if (n in has && index(of_b[n], s "unknown" s) == 1) { why = of_b[n]; sub(/.*\\037/, "", why) }
        if (why != "" && substr(line, length(line)) != s) why = "; " why
        print n s ((n in has) ? has[n] : 0) line why
        delete of_b[n]
      }
      for (n in of_b) if (has[n] == 2) print n s 2 of_b[n]
      print "."
    }' - <([[ ! -d $B/records ]] || find "$B/records" -maxdepth 1 -type f -name '*.sha256' ! -name '.*' -exec sha256sum {} + 2>/dev/null) 2>/dev/null)
}
end_states() {
  declare -gA RECORD_OF=()
  take_states || read_sound || log "the records in $D/state and $B/records cannot all be read: some states are not known; look at those disks, then ask again"
}
take_states() { # returns: 1 where awk has not come to its end
  local line text IFS=$'\\n'
  # By the thousand characters: from a pipe bash takes lines one character at a time.
  read -r -N 1000000000 -u "$STATES_FD" text || :
  exec {STATES_FD}<&-
  [[ $text == .$'\\n' || $text == *$'\\n.\\n' ]] || return 1
  text=${text%.$'\\n'}
  set -f
  for line in $text; do RECORD_OF[${line%%$'\\037'*}]=${line#*$'\\037'}; done
  set +f
}
# Some awks give up at a record that cannot be read (a folder in its place, a fault of the disk): the others once more without it.
read_sound() { # returns: 1 where that fails too
  local file name
  local -a sound=() unread=()
  for file in "$B/records"/*.json "$D/state"/*.json; do
    if [[ ! -f $file ]] || { read -r -n 1 name <"$file"; } 2>/dev/null; then sound+=("$file"); elif [[ -e $file || -L $file ]]; then unread+=("$file"); fi
  done
  RECORD_OF=()
  begin_states "${sound[@]-$D/state/*.json}"
  take_states || return
  for file in ${unread[@]+"${unread[@]}"}; do
    log "$file cannot be read: unknown; look at its rights and its disk"
    name=${file##*/} && name=${name%.json}
    if [[ ${file%/*} == "$B/records" ]]; then
      [[ -z ${RECORD_OF[$name]-} ]] || RECORD_OF[$name]=2${RECORD_OF[$name]:1}
      RECORD_OF[$name]=${RECORD_OF[$name]-2$'\\037unknown\\037\\037\\037\\037\\037\\037'}
    else
      RECORD_OF[$name]=${RECORD_OF[$name]-0$'\\037unknown\\037\\037\\037\\037\\037\\037'}
    fi
  done
}

# One cell's record as it was read, into C_BUNDLE C_STATE C_CLASS C_ATTEMPT C_STARTED C_ENDED C_EXIT C_WHY.
# shellcheck disable=SC2034 # a row is whole; a script reads the columns that it needs
cell_record_of() { # <cell>
  C_BUNDLE=0 C_STATE='' C_CLASS='' C_ATTEMPT='' C_STARTED='' C_ENDED='' C_EXIT='' C_WHY=''
  [[ -n ${RECORD_OF[$1]-} ]] || return 0
  local IFS=$'\\037' fields
  set -f
  # shellcheck disable=SC2206 # split at US, which no field holds
  fields=(${RECORD_OF[$1]})
  set +f
  C_BUNDLE=${fields[0]-} C_STATE=${fields[1]-} C_CLASS=${fields[2]-} C_ATTEMPT=${fields[3]-} C_STARTED=${fields[4]-}
  C_ENDED=${fields[5]-} C_EXIT=${fields[6]-} C_WHY=${fields[7]-}
}

# What a cell is in now, from what was read: pending running done unsynced failed preempted unknown. Into REPLY, and C_WHY.
# shellcheck disable=SC2034 # a script reads C_WHY or not
state_now() { # <cell>
  local line=${RECORD_OF[$1]-} next
  C_WHY=''
  case $line in
    1*) REPLY='done' && return 0 ;;
    '')
      REPLY=pending
      [[ ! -d $D/claims/$1 ]] || claim_says "$1"
      return 0
      ;;
  esac
  cell_record_of "$1"
  REPLY=$C_STATE
  case $REPLY in
    'done') REPLY=unsynced ;;
    failed | preempted | unsynced)
      # A claim newer than the record is an attempt that has just begun, or died before its record.
      printf -v next '%s/claims/%s/%03d' "$D" "$1" $((${C_ATTEMPT:-0} + 1))
      [[ ! -e $next ]] || claim_says "$1"
      ;;
    running | unknown) claim_says "$1" ;;
    *) REPLY=unknown ;;
  esac
}
# shellcheck disable=SC2034 # as above
claim_says() { # <cell>    running where somebody lives behind the last claim, else unknown
  last_claim "$1"
  case $CLAIM_STATE in
    live | foreign) REPLY=running ;;
    # A folder alone is no claim: the cell was refused before it.
    none) [[ -z ${RECORD_OF[$1]-} ]] && REPLY=pending || REPLY=unknown ;;
    unread) REPLY=unknown C_WHY=$CLAIM_SAID ;;
    *) REPLY=unknown ;;
  esac
}

# What the cells took that are done, by their own records: DONE_S seconds, all DONE_N of them together.
cells_took() { # reads: RECORD_OF
  read -r DONE_S DONE_N < <(printf '%s\\n' ${RECORD_OF[@]+"${RECORD_OF[@]}"} | awk -F$'\\037' '
    # Days since 1970 of a civil date: no date tool for each line.
    function at(t,   y, m, d, era, yoe, doy) {
      y = substr(t, 1, 4) + 0; m = substr(t, 6, 2) + 0; d = substr(t, 9, 2) + 0
      if (m <= 2) y--
      era = int(y / 400); yoe = y - era * 400; doy = int((153 * (m + (m > 2 ? -3 : 9)) + 2) / 5) + d - 1
      return (era * 146097 + yoe * 365 + int(yoe / 4) - int(yoe / 100) + doy - 719468) * 86400 + substr(t, 12, 2) * 3600 + substr(t, 15, 2) * 60 + substr(t, 18, 2)
    }
    $2 == "done" && $5 ~ /^[0-9]/ && $6 ~ /^[0-9]/ { sum += at($6) - at($5); n++ }
    END { print sum + 0, n + 0 }') || :
  DONE_S=${DONE_S:-0} DONE_N=${DONE_N:-0}
}

# lib/idle.bash: waiting that costs no process and leaves none behind.
# needs:

# Wait without a process: a read that nobody answers. Opens its descriptor at first use.
idle() { # <seconds, also a fraction>
  [[ -n ${IDLE_FD-} ]] || exec {IDLE_FD}<> <(:)
  # Its status is always that of a time-out.
  read -r -t "$1" -u "$IDLE_FD" || :
}

# lib/roster.bash: the run's own queue: what its source has new is appended, nothing leaves, no command changes.
# needs: exit log path file proc queue run idle
# reads: D SELF_DIR QUEUE_FILE JOB RUN_SHARD

# A shard goes by places in the source: with a line gone, or one put in before the end, it would get cells of other shards,
# which run on other boxes.
check_places() { # reads merge_queue's own: source names known mine of n
  local i at=-1 moved=''
  for ((i = 0; i < ${#names[@]}; i++)); do
    if ((i % of != mine)); then
      [[ -z ${known[${names[i]}]-} ]] || moved=${names[i]}
      continue
    fi
    # From the first cell that we have, ours follow one another there as here.
    if ((at < 0)) && [[ -n ${known[${names[i]}]-} ]]; then
      for ((at = 0; at < n; at++)); do [[ ${QUEUE_NAMES[at]} != "${names[i]}" ]] || break; done
    fi
    ((at >= 0 && at < n)) || continue
    [[ ${QUEUE_NAMES[at]} == "${names[i]}" ]] || moved=${names[i]}
    at=$((at + 1))
  done
  [[ -z $moved ]] ||
    refuse "$EX_GATE" "queue $source" "its lines have moved (cell $moved), and shard $RUN_SHARD goes by their places: it would run cells of other shards" "put the lines back as they were; new ones belong at the end"
}

# One merges at a time: a roster written by another in between would lose its names to ours, or ours to its. A dead one's lock is
# nobody's, and nobody waits for ever.
lock_roster() { # returns: 1 where it could not be had
  local REPLY here host boot pid ticks n
  this_host
  here=$REPLY
  this_boot_id
  here+=" $REPLY"
  start_ticks $$ || return 1
  if [[ -e $D/.queue.lock && ! -f $D/.queue.lock ]]; then
    log "$D/.queue.lock is no file, so no lock: going on without it; move it away"
    return 1
  fi
  for ((n = 0; n < 200; n++)); do
    set -C
    if { printf '%s %s %s\\n' "$here" $$ "$REPLY" >"$D/.queue.lock"; } 2>/dev/null; then set +C && return 0; fi
    set +C
    [[ -e $D/.queue.lock ]] || continue
    if { read -r host boot pid ticks <"$D/.queue.lock"; } 2>/dev/null && { [[ "$host $boot" != "$here" || $pid == "$$" ]] || ! same_process "$pid" "$ticks"; }; then
      unlock_roster
    else
      idle 0.1
    fi
  done
  [[ ! -e $D/.queue.lock ]] ||
    log "$D/.queue.lock could not be had in 20 s: going on without it; if no other run_queue is at work on this run, remove it"
  return 1
}
unlock_roster() {
  rm -f -- "$D/.queue.lock"
}

# Merge the source into D/queue.tsv and leave the roster in QUEUE_NAMES QUEUE_COMMANDS. Refuses 69, 73, 77, 78.
merge_queue() { # returns: 0; ADDED says how many cells are new
  local REPLY source=${QUEUE_FILE:-$SELF_DIR/queue.tsv} i n mine=$((${RUN_SHARD%/*} - 1)) of=${RUN_SHARD#*/} text
  local -a names commands lines=()
  local -A known=() folded=()
  ADDED=0 MERGED_TEXT=''
  read_queue "$source"
  text=$QUEUE_TEXT
  # The usual case: the run has all of it, and nothing else.
  if [[ $of == 1 && -f $D/queue.tsv ]] && read_text "$D/queue.tsv" && [[ $REPLY == "$text" ]]; then
    MERGED_TEXT=$text
    return 0
  fi
  names=("${QUEUE_NAMES[@]}") commands=("${QUEUE_COMMANDS[@]}")
  if [[ -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
  else
    QUEUE_NAMES=() QUEUE_COMMANDS=()
  fi
  n=${#QUEUE_NAMES[@]}
  for ((i = 0; i < n; i++)); do
    known[${QUEUE_NAMES[i]}]=${QUEUE_COMMANDS[i]}
  done
  ((of == 1 || n == 0)) || check_places
  for ((i = mine; i < ${#names[@]}; i += of)); do
    if [[ ${known[${names[i]}]-} == "${commands[i]}" ]]; then continue; fi
    [[ -z ${known[${names[i]}]-} ]] ||
      refuse "$EX_GATE" "cell ${names[i]}" "its command in $source differs from the run's own in $D/queue.tsv" "undo the change and continue, or begin anew with RUN=$JOB.2"
    QUEUE_NAMES+=("${names[i]}") QUEUE_COMMANDS+=("${commands[i]}")
    ADDED=$((ADDED + 1))
  done
  ((${#QUEUE_NAMES[@]} > 0)) || refuse "$EX_CONFIG" "shard $RUN_SHARD" "it owns no cell of $source" "give fewer shards"
  ((ADDED == 0)) || QUEUE_TEXT=''
  # shellcheck disable=SC2034 # for source_changed, which only run_queue asks
  MERGED_TEXT=$text
  [[ -z ${DRY_QUEUE-} ]] && ((ADDED > 0)) || return 0
  if [[ -z ${ROSTER_LOCKED-} ]]; then
    local ROSTER_LOCKED=1
    if lock_roster; then
      merge_queue
      unlock_roster
    else
      merge_queue
    fi
    return
  fi
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    if [[ -n ${folded[${QUEUE_NAMES[i],,}]-} ]]; then
      refuse "$EX_CONFIG" "cell ${QUEUE_NAMES[i]}" "the run has a cell whose name differs in upper and lower case only" "give it a name of its own"
    fi
    folded[${QUEUE_NAMES[i],,}]=1
    lines+=("${QUEUE_NAMES[i]}"$'\\t'"${QUEUE_COMMANDS[i]}")
  done
  printf -v text '%s\\n' "${lines[@]}"
  replace_file "$D/queue.tsv" "$text" || refuse_write "$EX_NOROOM" "$D/queue.tsv" "it cannot be written" data
  QUEUE_TEXT=$text
}

# Has the source, or the run's own queue, another text than at the last merge?
source_changed() {
  local REPLY LC_ALL=C
  ! read_text "${QUEUE_FILE:-$SELF_DIR/queue.tsv}" || [[ $REPLY != "$MERGED_TEXT" ]] || ! read_text "$D/queue.tsv" || [[ $REPLY != "$QUEUE_TEXT" ]]
}

# lib/git.bash: is the code one recorded, pushed, clean commit? The gate of a formal run.
# needs: exit log path proc

# No call of git waits for ever for a dead mount, a filter, a helper or a server: a question, a look at all files, the network.
readonly GIT_ASK_S=60 GIT_LOOK_S=300 GIT_NET_S=180

# In the work tree GIT_TOP, with no prompt, no hook and no pager, in English; by the commit itself, not by what "git replace" put in
# its place here.
git_with() { # <seconds> <git's words...>    returns: git's, or 124
  local limit=$1 asked=(env GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1 LANGUAGE=en)
  shift
  # A repository's own way to its origin (a key of its own) wins over ours.
  [[ -n ${GIT_OWN_SSH-} ]] || asked+=(GIT_SSH_COMMAND="ssh -oBatchMode=yes -oConnectTimeout=20")
  within "$limit" "${asked[@]}" git -C "$GIT_TOP" -c core.hooksPath=/dev/null -c core.fsmonitor=false --no-pager "$@" </dev/null
}
# A short question; its answer into REPLY.
git_ask() { # <git's words...>    returns: git's
  local rc=0
  REPLY=$(git_with "$GIT_ASK_S" "$@" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_ASK_S" "$@"
}
# Refuses where git was ended by its limit: an empty answer would be taken for a "no".
git_in_time() { # <status> <seconds> <git's words...>    returns: the status
  local rc=$1 limit=$2 do="find what it waits for: a disk or mount that does not answer, a filter or a helper in 'git config --list'"
  shift 2
  ((rc == 124)) || return "$rc"
  [[ $limit != "$GIT_NET_S" ]] || do="look at the network, at a credential helper and at ssh: run it by hand there"
  refuse "$EX_MISSING" "git -C $GIT_TOP $*" "it did not end in $limit s, so nothing is known" "$do"
}
git_refuse() { # <what> <why> <what to do>
  refuse "$EX_GATE" "$1" "$2" "$3"
}

# Git and a work tree with a commit. The reasons are told apart: each has another remedy. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
git_open() { # reads: CODE_DIR
  local REPLY said rc=0
  git_alone
  command -v git >/dev/null 2>&1 || refuse "$EX_MISSING" "the code" "git is not on PATH" "install git on this machine"
  within "$GIT_ASK_S" test -d "$CODE_DIR" || rc=$?
  ((rc != 124)) || refuse "$EX_MISSING" "cd $CODE_DIR" "its disk or mount did not answer in $GIT_ASK_S s" "find it in /proc/mounts and attach it again"
  ((rc == 0)) || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  GIT_TOP=$CODE_DIR GIT_OWN_SSH=${GIT_SSH_COMMAND-}${GIT_SSH-}
  [[ -n $GIT_OWN_SSH ]] || if git_ask config --get core.sshCommand; then GIT_OWN_SSH=$REPLY; fi
  if ! git_ask rev-parse --show-toplevel; then
    said=$(git_with "$GIT_ASK_S" rev-parse --show-toplevel 2>&1) || :
    case $said in
      *'dubious ownership'*)
        # The folder that git wants to be named is the top of the work tree.
        REPLY=$CODE_DIR
        [[ ! $said =~ \\ repository\\ at\\ \\'([^\\']+)\\' ]] || REPLY=${BASH_REMATCH[1]}
        git_refuse "git -C $CODE_DIR" "another user owns $REPLY (dubious ownership)" "git config --global --add safe.directory $REPLY"
        ;;
      *'not a git repository'*) git_refuse "git -C $CODE_DIR" "it is not a git repository" "clone the code there, or set CODE_DIR to its work tree" ;;
      *) git_refuse "git -C $CODE_DIR rev-parse" "${said//[[:cntrl:]]/ }" "make git work there first" ;;
    esac
  fi
  GIT_TOP=$REPLY
  git_ask rev-parse --verify -q HEAD || REPLY=''
  GIT_HEAD=$REPLY
  [[ $GIT_HEAD =~ ^[0-9a-f]{40,64}$ ]] || git_refuse "$GIT_TOP" "it has no commit yet" "commit the code and push it"
  git_ask symbolic-ref -q --short HEAD || REPLY=''
  # shellcheck disable=SC2034 # for the gate of a formal run
  GIT_BRANCH=$REPLY
  # A folder that some repository around it ignores is clean there, and recorded nowhere.
  said=$GIT_TOP GIT_TOP=$CODE_DIR
  git_ask ls-files -- . || :
  GIT_TOP=$said
  [[ -n $REPLY ]] || git_refuse "$CODE_DIR" "the repository $GIT_TOP around it tracks no file in it" "set CODE_DIR to the work tree of the code"
}
# What a caller's git has in its environment leads elsewhere, and is not this tree's.
git_alone() {
  unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_NAMESPACE
}

# Prefixes under GIT_TOP that hold the run's own output: what the run itself makes is no dirt. Sets GIT_EXEMPT.
git_exempt() { # <folder...>
  local dir top real code
  GIT_EXEMPT=()
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return
  code=$(cd -P -- "$CODE_DIR" && pwd -P) || return
  for dir in "$@"; do
    real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || continue
    # A run folder that holds the code exempts nothing: the code is what we look at.
    [[ $real/ == "$top"/?* && $code/ != "$real"/* ]] || continue
    GIT_EXEMPT+=("${real#"$top"/}/")
  done
}
git_is_exempt() { # <path of an untracked file>
  local prefix
  # Python loads nothing from __pycache__ that its source does not vouch for.
  [[ /$1 != */__pycache__/* ]] || return 0
  for prefix in ${GIT_EXEMPT[@]+"${GIT_EXEMPT[@]}"}; do
    [[ $1 != "$prefix"* ]] || return 0
  done
  return 1
}

# Modes count, whatever the repository's setting says, where the file system can hold them.
git_modes() { # prints true or false
  local REPLY probe
  { git_ask rev-parse --absolute-git-dir && probe=$(mktemp "$REPLY/mode.XXXXXX" 2>/dev/null); } || { echo true && return 0; }
  chmod 600 "$probe"
  if [[ -x $probe ]]; then echo false; else
    chmod 700 "$probe"
    if [[ -x $probe ]]; then echo true; else echo false; fi
  fi
  rm -f -- "$probe"
}

# All that differs from the commit: GIT_DIRTY (state and path) and GIT_UNTRACKED (paths). Names may hold anything.
git_look() { # returns: 0 looked, 1 git failed; refuses where it does not end
  local entry='' ended=1 modes hidden_words=(ls-files -v -z)
  GIT_DIRTY=() GIT_UNTRACKED=()
  modes=$(git_modes) || exit
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      '?? '*) git_is_exempt "${entry:3}" || GIT_UNTRACKED+=("${entry:3}") ;;
      [RC]*)
        GIT_DIRTY+=("$entry")
        IFS= read -r -d '' entry || break
        ;;
      *) GIT_DIRTY+=("$entry") ;;
    esac
  done < <(git_list_all -c core.fileMode="$modes" -c core.untrackedCache=false -c core.trustctime=true -c core.checkStat=default -c status.renames=false status --porcelain=v1 -z \\
    --untracked-files=all --ignore-submodules=none)
  git_in_time "$ended" "$GIT_LOOK_S" status || return 1
  # Files that a person told git not to look at are hidden edits waiting to happen, in a repository inside this one too.
  [[ ! -f $GIT_TOP/.gitmodules ]] || hidden_words+=(--recurse-submodules)
  ended=1
  while IFS= read -r -d '' entry; do
    case $entry in
      '== end '*) ended=${entry##* } ;;
      [a-z]\\ *) GIT_DIRTY+=("hidden (assume-unchanged) ${entry:2}") ;;
      # A sparse checkout leaves such files out; one that is there is not compared.
      S\\ *) [[ ! -e $GIT_TOP/${entry:2} && ! -L $GIT_TOP/${entry:2} ]] || GIT_DIRTY+=("hidden (skip-worktree) ${entry:2}") ;;
    esac
  done < <(git_list_all "${hidden_words[@]}")
  git_in_time "$ended" "$GIT_LOOK_S" ls-files -v
}
# What git lists with -z, and behind it how git ended: a list that breaks off is none.
git_list_all() { # <git's words...>    prints
  local rc=0
  git_with "$GIT_LOOK_S" "$@" 2>/dev/null || rc=$?
  printf '== end %s\\0' "$rc"
}

# Lines for people: the first 20, control characters made visible.
git_list() { # prints
  local entry n=0 total=$((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]}))
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    ((n++ < 20)) || break
    printf '  %s\\n' "${entry//[[:cntrl:]]/?}"
  done
  ((total <= 20)) || printf '  \u2026 and %d more\\n' $((total - 20))
}

# Would a stash take declared data or a run's folder? Says what into REPLY.
git_stash_takes() { # <protected folder...>    returns: 0 it would
  local path dir real top
  REPLY=''
  top=$(cd -P -- "$GIT_TOP" && pwd -P) || return 0
  for path in ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]}"}; do
    for dir in "$@"; do
      real=$(cd -P -- "$dir" 2>/dev/null && pwd -P) || real=$dir
      [[ $top/$path != "$real"/* && $top/$path != "$real" ]] || { REPLY=$path && return 0; }
    done
  done
  # The exempt files (this run's own output) would be swept along.
  ((${#GIT_EXEMPT[@]} == 0)) || REPLY="${GIT_EXEMPT[0]} (this run's own output)"
  [[ -n $REPLY ]]
}

# A git that was killed leaves its lock behind, at which every later one stops.
git_lock_remedy() { # <what git said> <what else to do>    prints
  local REPLY
  if [[ $1 =~ \\'([^\\']+\\.lock)\\':\\ File\\ exists ]]; then REPLY=${BASH_REMATCH[1]}; else
    # git stash does not name the lock.
    git_ask rev-parse --git-path index.lock || REPLY=''
    [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  fi
  if [[ -f $REPLY ]]; then printf 'if no git is at work there: rm %q' "$REPLY"; else printf '%s' "$2"; fi
}

# Put uncommitted work aside under a dated name. Nothing is dropped; data is never taken.
git_stash() { # <protected folder...>
  local REPLY name said entry links rc=0
  # What git would leave where it is, and say yes: a repository inside this one.
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  links=$(grep '^160000 ' <<<"$REPLY") || links=''
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"} ${GIT_UNTRACKED[@]+"${GIT_UNTRACKED[@]/#/?? }"}; do
    [[ $entry == '?? '*/ || $links$'\\n' == *$'\\t'"${entry:3}"$'\\n'* ]] || continue
    git_refuse "git stash in $GIT_TOP" "it does not take what is in ${entry:3}, a repository of its own" "commit and push it there, and its new commit here"
  done
  for entry in ${GIT_DIRTY[@]+"${GIT_DIRTY[@]}"}; do
    case $entry in
      hidden*) git_refuse "git stash in $GIT_TOP" "it does not take ${entry#hidden }" "git update-index --no-assume-unchanged --no-skip-worktree FILE, then commit it" ;;
      UU* | AA* | DD* | AU* | UA* | DU* | UD*) git_refuse "git stash in $GIT_TOP" "a merge is unfinished: $entry" "finish or abort the merge" ;;
    esac
  done
  if git_stash_takes "$@"; then
    git_refuse "git stash in $GIT_TOP" "it would take data or output away: $REPLY" "add it to .gitignore, or commit the other files by hand"
  fi
  utc_now
  name="before formal run $REPLY"
  said=$(git_with "$GIT_LOOK_S" stash push --include-untracked -m "$name" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" stash push ||
    git_refuse "git stash in $GIT_TOP" "git could not stash${said:+: ${said//[[:cntrl:]]/ }}" "$(git_lock_remedy "$said" "commit the files by hand")"
  log "uncommitted work is in the stash '$name'; bring it back with: git -C $GIT_TOP stash pop"
}

git_clean() { # <stash: true or false> <protected folder...>
  local REPLY stash=$1 remedy
  shift
  git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
  ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  if [[ $stash == true ]]; then
    git_stash "$@"
    git_look || git_refuse "git status in $GIT_TOP" "git failed" "run it by hand and see"
    ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)) || return 0
  fi
  git_list >&2
  remedy="commit and push them, or put them aside with: start --stash"
  [[ $stash != true ]] || remedy="commit them by hand: the stash did not take them"
  if git_stash_takes "$@"; then remedy="commit them, or name them in .gitignore; a stash would take $REPLY"; fi
  git_refuse "git status in $GIT_TOP" "$((${#GIT_DIRTY[@]})) changed and ${#GIT_UNTRACKED[@]} untracked files (listed above) are in no commit" "$remedy"
}

# Each repository inside the commit is there and at the commit that the parent names (status has said so); its commit is kept
# for the plan. One that .gitmodules does not name comes along with no clone.
git_submodules() { # sets GIT_SUBMODULES
  local REPLY line said rc=0
  GIT_SUBMODULES=()
  git_ask ls-files -s || git_refuse "git ls-files in $GIT_TOP" "git failed" "run it by hand and see"
  [[ $'\\n'$REPLY == *$'\\n160000 '* ]] || return 0
  said=$(git_with "$GIT_LOOK_S" submodule status --recursive 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_LOOK_S" submodule status ||
    git_refuse "git submodule status in $GIT_TOP" "${said##*$'\\n'}" "name it in .gitmodules (git submodule add), or take it out: git rm --cached"
  while IFS= read -r line; do
    case $line in
      -*) git_refuse "git submodule in $GIT_TOP" "not initialised: ${line#-}" "git -C $GIT_TOP submodule update --init --recursive" ;;
      +* | U*) git_refuse "git submodule in $GIT_TOP" "not at the recorded commit: ${line#?}" "git -C $GIT_TOP submodule update, or commit the new one" ;;
      '') ;;
      *) GIT_SUBMODULES+=("${line# }") && log "submodule ${line# }" ;;
    esac
  done <<<"$said"
}

# The branch is the job's, and its head is what the origin has. A run goes on at its own commit without a new look:
# it was pushed when the run began, and the network may be gone now.
git_pushed() { # <branch> <commit of the run, or empty> <pull: true or false>
  local REPLY branch=$1 there before=$GIT_HEAD
  if [[ -n $2 && $2 == "$GIT_HEAD" ]]; then return 0; fi
  [[ $GIT_BRANCH == "$branch" ]] ||
    git_refuse "the branch of $GIT_TOP" "it is '${GIT_BRANCH:-no branch}', the job says '$branch'" "git -C $GIT_TOP switch $branch"
  git_ask config --get remote.origin.url && [[ -n $REPLY ]] ||
    git_refuse "git push" "$GIT_TOP has no remote 'origin', so the commit is nowhere else" "git -C $GIT_TOP remote add origin URL, then push"
  ! git_is_itself "${REPLY#file://}" ||
    git_refuse "git push" "the remote 'origin' of $GIT_TOP is this very repository, so the commit is nowhere else" "git -C $GIT_TOP remote set-url origin URL, then push"
  if git_origin "$branch"; then there=$REPLY; else
    [[ $3 == true ]] || git_refuse "git -C $GIT_TOP ls-remote origin" "origin cannot be reached" "look at the network and at the rights on this machine"
    there=''
  fi
  if [[ $3 == true && $there != "$GIT_HEAD" ]]; then
    # Only where origin is elsewhere: of two starts at one moment git would fail both pulls.
    git_pull "$branch"
    there=$REPLY
  fi
  git_ask rev-parse --verify -q HEAD || REPLY=none
  GIT_HEAD=$REPLY
  [[ $before == "$GIT_HEAD" ]] || log "the pull moved $GIT_TOP from $before to $GIT_HEAD"
  [[ $there == "$GIT_HEAD" ]] ||
    git_refuse "HEAD of $GIT_TOP" "$GIT_HEAD is not what origin has on $branch (${there:-nothing})" "git -C $GIT_TOP push origin $branch"
}
git_is_itself() { # <url>    returns: 0 where it is a folder, and that of this repository
  local REPLY url=$1
  [[ $url == /* ]] || url=$GIT_TOP/$url
  git_ask rev-parse --git-common-dir || return
  [[ $REPLY == /* ]] || REPLY=$GIT_TOP/$REPLY
  [[ $url -ef $REPLY || $url/.git -ef $REPLY ]]
}
# What origin has on the branch, into REPLY.
git_origin() { # <branch>    returns: 1 it cannot be reached
  local rc=0
  REPLY=$(git_with "$GIT_NET_S" ls-remote origin "refs/heads/$1" 2>/dev/null) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" ls-remote origin || return 1
  REPLY=${REPLY%%[[:space:]]*}
}
git_pull() { # <branch>    sets REPLY: what origin has
  local said rc=0
  # By its full name: a tag of the same name would come first.
  said=$(git_with "$GIT_NET_S" pull -q --ff-only origin "refs/heads/$1" 2>&1) || rc=$?
  git_in_time "$rc" "$GIT_NET_S" pull --ff-only origin "$1" ||
    git_refuse "git -C $GIT_TOP pull --ff-only origin $1" "it failed: ${said//[[:cntrl:]]/ }" "$(git_lock_remedy "$said" "bring $1 in line with origin by hand"); nothing was changed"
  git_ask rev-parse -q --verify FETCH_HEAD || REPLY=''
}

# The whole gate, in order. Sets GIT_TOP GIT_HEAD GIT_BRANCH.
# shellcheck disable=SC2154 # D B S are those of the one script that calls it; others take this library for its other functions
git_gate() { # <branch> <run's commit or empty> <pull> <stash> <protected folder...>
  local branch=$1 commit=$2 pull=$3 stash=$4 before
  shift 4
  git_open
  git_exempt "$D" "$B" "$S"
  git_clean "$stash" "$@"
  git_submodules
  before=$GIT_HEAD
  git_pushed "$branch" "$commit" "$pull"
  if [[ $before != "$GIT_HEAD" ]]; then
    # A pull moves no submodule. That has a remedy of its own, so it comes before "uncommitted".
    git_submodules
    git_clean false "$@"
  fi
}

# lib/detach.bash: sessions that outlive the shell that starts them, each with a socket folder of its own.
# needs: exit log proc
# One session a folder: no name can hit another run's session, and no server lends us its environment.

# A private folder under /tmp, for sockets fail on network mounts and on long paths. Sets DETACH_DIR.
detach_dir() { # <start id>    returns: 0, or 74 where it cannot be made
  local dir=/tmp/gr-${EUID:-$(id -u)}-$1
  # mkdir fails where the name exists, also as somebody's link: nobody else's folder is ever used or changed.
  mkdir -m 700 -- "$dir" 2>/dev/null || return "$EX_COPY"
  DETACH_DIR=$dir
}

# The multiplexer with its own server and no start-up file; never inside the one that we may be typed in. Its client waits for
# a server that is stopped or sick as long as that is: not for ever. Status 124: no answer.
detach_tmux() { # <socket> <words...>
  local socket=$1
  shift
  within 15 env -u TMUX -u TMUX_PANE SHELL=/bin/sh TERM="${TERM:-dumb}" tmux -S "$socket" -f /dev/null "$@"
}
detach_screen() { # <socket folder> <words...>
  local socket=$1
  shift
  within 15 env -u STY SCREENDIR="$socket" SHELL=/bin/sh TERM="${TERM:-dumb}" screen -c /dev/null "$@"
}

# Start WORDS detached. A status of 0 says that the tool took them, not that they run: await a heartbeat. nohup: DETACH_PID.
detach_start() { # <primitive> <socket> <session name> <log> <words...>
  local primitive=$1 socket=$2 name=$3 log=$4 line='' word end="'\\\\''"
  shift 4
  case $primitive in
    tmux)
      # The server joins the words and hands them to sh: quote them once for it. Not by %q, whose $'\u2026' is bash's alone.
      for word in "$@"; do
        word=${word//\\'/$end}
        line+="'$word' "
      done
      detach_tmux "$socket" new-session -d -s "$name" "exec $line" </dev/null >>"$log" 2>&1
      ;;
    screen)
      [[ -d $socket ]] || mkdir -m 700 -- "$socket" || return
      detach_screen "$socket" -dmS "$name" "$@" </dev/null >>"$log" 2>&1
      ;;
    nohup)
      (
        trap '' HUP
        exec setsid "$@"
      ) </dev/null >>"$log" 2>&1 &
      # Neither the subshell nor setsid forks again: this number is the session's own.
      # shellcheck disable=SC2034 # for who starts a run; a trial session does not ask
      DETACH_PID=$!
      ;;
    *) return "$EX_MISSING" ;;
  esac
}

# Is exactly this session there?
detach_alive() { # <primitive> <socket> <session name>    returns: 0 alive, 1 gone, 2 cannot be told
  local list='' line rc=0 said=$2.$$.said
  case $1 in
    tmux) [[ -S $2 ]] || return 1 ;;
    screen) [[ -d $2 ]] || return 1 ;;
    *) return 2 ;;
  esac
  command -v "$1" >/dev/null 2>&1 && { : >"$said"; } 2>/dev/null || return 2
  # Into a file: a client hands what it writes to over to its server, and a pipe would not end before a server that is stopped.
  case $1 in
    tmux) detach_tmux "$2" list-sessions -F '#{session_name}' ;;
    screen) detach_screen "$2" -ls ;;
  esac </dev/null 2>/dev/null >"$said" || rc=$?
  list=$(<"$said") || rc=124
  rm -f -- "$said"
  ((rc != 124)) || return 2
  while read -r line; do
    # Screen's status says nothing here; a line of it is PID.NAME, tab, state.
    if [[ $1 == screen ]]; then
      [[ $line =~ ^[0-9]+\\.([^[:space:]]+)[[:space:]] && ${BASH_REMATCH[1]} == "$3" && $line != *'(Dead'* ]] && return 0
    else
      [[ $line != "$3" ]] || return 0
    fi
  done <<<"$list"
  return 1
}

# Are we inside the session that was started with these values? A second lock beside the environment file.
detach_inside() { # <primitive> <socket> <session name>
  local stat fields
  case $1 in
    tmux) [[ ${TMUX-} == "$2",* ]] ;;
    screen) [[ ${STY-} =~ ^[0-9]+\\.(.*)$ && ${BASH_REMATCH[1]} == "$3" ]] ;;
    nohup)
      # Leader of its own kernel session: field 6 of stat.
      IFS= read -r stat <"/proc/$$/stat" || return 1
      read -ra fields <<<"${stat##*) }"
      [[ ${fields[3]-} == "$$" ]]
      ;;
    *) return 1 ;;
  esac
}

# The environment of now into FILE, NUL-separated: no server's, and no argument list shows it.
detach_save_env() { # <file>
  (
    set -C
    env -0 >"$1"
  ) 2>/dev/null || return "$EX_COPY"
  [[ -s $1 ]]
}

# Replace our environment by the one in FILE, and remove FILE. Names that no shell variable can have are left out.
detach_load_env() { # <file>
  local name entry
  local -a entries=()
  while IFS= read -r -d '' entry; do entries+=("$entry"); done <"$1" || return
  rm -f -- "$1"
  ((${#entries[@]} > 0)) || return "$EX_MISSING"
  for name in $(compgen -e); do unset -v "$name" 2>/dev/null || :; done
  for entry in "${entries[@]}"; do
    [[ ${entry%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
    export "${entry?}" 2>/dev/null || :
  done
}

# lib/probe.bash: what this machine lets us use. Never one number alone: the smallest of all that can be read.
# needs: room proc

# Up to so many MiB in use a GPU counts as free: driver and display take some (X8).
# shellcheck disable=SC2034 # a script reads what it needs
readonly GPU_FREE_MIB=500

# Workers and threads for one cell of SLOTS side by side: THREADS and WORKERS. Fewer is the safe side.
recommend() { # <slots> <bytes that a cell needs>
  local share spare
  share=$((CPUS / $1))
  ((share > 0)) || share=1
  # One CPU for the training loop itself; a loader worker costs memory of its own: count half a GB for each.
  WORKERS=$((share - 1))
  ((WORKERS <= 8)) || WORKERS=8
  if [[ -n $RAM_FREE ]]; then
    spare=$(((RAM_FREE / $1 - $2) / 500000000))
    ((spare >= 0)) || spare=0
    ((WORKERS <= spare)) || WORKERS=$spare
  fi
  THREADS=$((share - WORKERS))
  ((THREADS > 0)) || THREADS=1
}

# Bytes for people, into REPLY.
human() { # <bytes or empty>
  if [[ -z $1 ]]; then REPLY="not known"; elif (($1 >= 10000000000)); then REPLY="$(($1 / 1000000000)) GB"; elif (($1 >= 10000000)); then
    REPLY="$(($1 / 1000000)) MB"
  else REPLY="$1 bytes"; fi
}

# lib/formal.bash: the records of a formal run, and what is judged from them (docs/contracts.md, section 7).
# needs: exit log file record proc hash
# reads: D B RUN_ID, and F_START F_SESSION F_NAME F_SOCKET F_PID F_TICKS F_DIGEST F_POWER of this start

write_formal() { # <state> <why>
  local REPLY host boot
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  record_open formal/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text state "$1"
  record_text why "$2"
  utc_now
  record_text since "$REPLY"
  record_text session "$F_SESSION"
  record_text session_name "$F_NAME"
  record_text socket "$F_SOCKET"
  record_text host "$host"
  record_text boot_id "$boot"
  record_int pid "$F_PID" || return
  record_int start_ticks "$F_TICKS" || return
  record_text box_digest "$F_DIGEST"
  record_bool power_off "$F_POWER" || return
  record_close
  replace_file "$D/formal.json" "$RECORD"
}

# The record's members into F_*, so that a rewrite keeps them.
take_formal() {
  F_START=${R_start_id-} F_SESSION=${R_session-} F_NAME=${R_session_name-} F_SOCKET=${R_socket-}
  F_PID=${R_pid-} F_TICKS=${R_start_ticks-} F_DIGEST=${R_box_digest-} F_POWER=${R_power_off-} F_SINCE=${R_since-} F_STATE=${R_state-}
}

# Is FORMAL_SUCCESS there for this run and start, over the manifest that lies in B now? A proof of a part says so.
success_holds() { # <start id>    returns: 0 with PART_SAID, or 1 with the reason in REPLY
  local start=$1 rc=0 said
  PART_SAID=''
  read_record "$B/FORMAL_SUCCESS" formal_success/1 "$RUN_ID" || rc=$?
  case $rc in
    1) REPLY="there is no $B/FORMAL_SUCCESS" && return 1 ;;
    2) REPLY="$B/FORMAL_SUCCESS is not a whole record of this run" && return 1 ;;
  esac
  [[ ${R_start_id-} == "$start" ]] || { REPLY="$B/FORMAL_SUCCESS is of another start (${R_start_id-})" && return 1; }
  said=${R_manifest_sha256-}
  hash_file "$B/PULL_MANIFEST.json" && [[ $REPLY == "$said" ]] || { REPLY="$B/FORMAL_SUCCESS was said over another PULL_MANIFEST.json" && return 1; }
  [[ -z ${R_part_cells-} ]] || PART_SAID="a part only: $R_part_cells cells, named in plans/$start.tsv; ${R_cells_done-} of the ${R_cells_expected-} cells of the run are done"
  REPLY=''
}

# What the formal run is in now, into FORMAL_STATE and FORMAL_WHY; leaves the record in R_* and F_*.
judge_formal() {
  local rc=0 REPLY host boot
  FORMAL_STATE=unknown FORMAL_WHY=''
  # shellcheck disable=SC2034 # not every script that judges prints all of them
  F_START='' F_SESSION='' F_NAME='' F_SOCKET='' F_PID='' F_TICKS='' F_DIGEST='' F_POWER=false F_SINCE='' F_STATE=''
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  case $rc in
    1) FORMAL_STATE=none FORMAL_WHY="no formal run was started here" && return 0 ;;
    2) FORMAL_WHY="$D/formal.json is not a whole record of this run" && return 0 ;;
  esac
  take_formal
  FORMAL_WHY=${R_why-}
  this_host
  host=$REPLY
  this_boot_id
  boot=$REPLY
  case ${R_state-} in
    success)
      FORMAL_STATE=success
      if success_holds "$F_START"; then
        [[ -z $PART_SAID ]] || FORMAL_WHY="$PART_SAID${FORMAL_WHY:+; $FORMAL_WHY}"
      else
        FORMAL_STATE=unknown FORMAL_WHY="the record says success, but ${REPLY-}"
      fi
      ;;
    failed | stopped) FORMAL_STATE=$R_state ;;
    starting | running | aggregating)
      if [[ ${R_host-} != "$host" ]]; then
        FORMAL_WHY="it was $R_state on $R_host, and this is $host: look there"
      elif [[ ${R_boot_id-} != "$boot" ]]; then
        FORMAL_STATE=lost FORMAL_WHY="boot id changed while it was $R_state, no exit record: the box was restarted under it"
      elif same_process "$F_PID" "$F_TICKS"; then
        FORMAL_STATE=$R_state
      else
        # The last act may have been written while we looked.
        FORMAL_STATE=lost FORMAL_WHY="its process is gone while it was $R_state, no exit record: killed, or ended at logout"
        lost_after_all
      fi
      ;;
    *) FORMAL_WHY="$D/formal.json says state '${R_state-}', which nobody writes" ;;
  esac
}

# A run that died between its success record and its last state is a success: the proof is complete.
lost_after_all() {
  local REPLY rc=0
  read_record "$D/formal.json" formal/1 "$RUN_ID" || rc=$?
  ((rc == 0)) || return 0
  case ${R_state-} in
    failed | stopped | success) FORMAL_STATE=$R_state FORMAL_WHY=${R_why-} ;;
  esac
  if [[ $FORMAL_STATE != failed && $FORMAL_STATE != stopped ]] && success_holds "$F_START"; then
    FORMAL_STATE=success FORMAL_WHY="${PART_SAID:+$PART_SAID; }its process ended right after it had written FORMAL_SUCCESS"
  fi
}

# A process of this run's detached part that is at work, whatever the records say: it stands in D and runs our own words.
# Where the part itself was killed, what it had started goes on.
live_detached() { # returns: 0 with its number in REPLY, 1 there is none
  local dir word found='' oldest=''
  local -a words
  for dir in /proc/[0-9]*; do
    [[ $dir/cwd -ef $D ]] || continue
    words=()
    { while IFS= read -r -d '' word; do words+=("$word"); done <"$dir/cmdline"; } 2>/dev/null || continue
    case ${words[1]-},${words[2]-} in
      */"$PROG",_run | */"$PROG",_enter) ;;
      */run_queue.sh,--dry-run | */aggregate_to_fs.sh,--help) continue ;;
      */run_queue.sh,* | */aggregate_to_fs.sh,*) ;;
      # A cell outlives a queue that was killed.
      */run_one.sh,--queue) [[ ${words[3]-} == "$D/queue.tsv" ]] || continue ;;
      *) continue ;;
    esac
    start_ticks "${dir#/proc/}" || continue
    # Of several the oldest: it began the others, and ends them when it is told to.
    if [[ -z $found ]] || ((REPLY < oldest)); then found=${dir#/proc/} oldest=$REPLY; fi
  done
  REPLY=$found
  [[ -n $found ]]
}

# Of a start and its detached part one takes the mark in the private folder, in one step: whoever has it decides whether the
# part begins. Where the folder is gone it cannot begin either.
bar_detached() { # <start id>    returns: 0 it will never begin, 1 it has begun
  local dir=/tmp/gr-$EUID-$1
  mkdir -- "$dir/taken" 2>/dev/null || [[ ! -d $dir ]]
}
# It has begun: wait until its own record says so.    sets R_pid
await_begun() { # returns: 0, or 1 it died before
  local n
  for ((n = 0; n < 50; n++)); do
    if read_record "$D/formal.json" formal/1 "$RUN_ID" && [[ ${R_start_id-} == "$F_START" && ${R_state-} != starting ]]; then return 0; fi
    sleep 0.1 2>/dev/null || sleep 1
  done
  return 1
}

# Take the next start number, which only one start can have; refuses while an earlier start is still at work. Its last word is
# the id, and so the private folder, of a start that may be killed before its record names it.
take_start() {
  local REPLY uuid dir=$D/starts n=0 file host boot pid ticks id mine
  mkdir -p -- "$dir" || refuse "$EX_NOROOM" "$dir" "the folder cannot be made" "look at the data tier: room, rights"
  IFS= read -r uuid </proc/sys/kernel/random/uuid || refuse "$EX_MISSING" "/proc" "it cannot be read" "mount /proc"
  NEW_START=${uuid:0:8} EARLIER_START=''
  for file in "$dir"/[0-9][0-9][0-9]*; do
    [[ -e $file ]] || continue
    ((10#${file##*/} <= n)) || n=$((10#${file##*/}))
  done
  this_host
  mine=$REPLY
  this_boot_id
  mine+=" $REPLY"
  if ((n > 0)); then
    printf -v file '%s/%03d' "$dir" "$n"
    [[ ! -f $file ]] || read -r host boot pid ticks id <"$file" || :
    if [[ "${host-} ${boot-}" == "$mine" ]] && same_process "${pid:-0}" "${ticks:-0}"; then
      refuse "$EX_BUSY" "start" "another start is at work (process $pid)" "wait for it, then: bash $SELF_DIR/$PROG status"
    fi
    EARLIER_START=${id-}
  fi
  start_ticks $$
  printf -v file '%s/%03d' "$dir" $((n + 1))
  create_once "$file" "$mine $$ $REPLY $NEW_START"$'\\n' ||
    refuse "$EX_BUSY" "start" "another start was quicker, or $file cannot be written" "bash $SELF_DIR/$PROG status"
}

# What stands there from an earlier start, aside under its own id: nobody can take it for this start's.
move_old_aside() {
  local file to id
  for file in "$B/FORMAL_SUCCESS" "$D/FORMAL_FAILURE.json" "$D/READY_TO_STOP"; do
    [[ -e $file ]] || continue
    id=''
    if read_record "$file" formal_success/1 || read_record "$file" formal_failure/1 || read_record "$file" ready_to_stop/1; then id=${R_start_id-}; fi
    to=$file.${id:-unreadable-before-$F_START}
    if ! mv -f -- "$file" "$to" || [[ -e $file ]]; then
      refuse "$EX_COPY" "mv $file $to" "the old record cannot be moved aside" "look at the tier: rights, room"
    fi
    log "moved aside: $to"
    [[ $file == */FORMAL_FAILURE.json ]] || continue
    for to in "" .sha256; do
      [[ ! -e $D/formal.failed.tar.gz$to ]] || mv -f -- "$D/formal.failed.tar.gz$to" "$D/formal.failed.${id:-before-$F_START}.tar.gz$to"
    done
  done
}

# The bundle's manifest says that every cell of the roster is done, or where --only named a part, every cell of the plan.
# Sets M_EXPECTED M_DONE M_DIGEST, and M_PART: how many cells the part has, empty where the whole roster is proven.
check_manifest() { # <cells in the roster> <plan>    returns: 0 or 65 with the reason in REPLY
  local file=$B/PULL_MANIFEST.json body said
  read_record "$file" pull_manifest/1 "$RUN_ID" || { REPLY="$file is not a whole manifest of this run" && return "$EX_INTEGRITY"; }
  M_EXPECTED=${R_cells_expected-} M_DONE=${R_cells_done-} M_PART='' said=${R_self_sha256-}
  body=$(sed -n '/^  "self_sha256": /q;p' "$file")
  hash_text "$body"$'\\n'
  [[ $REPLY == "$said" ]] || { REPLY="$file does not match its own digest" && return "$EX_INTEGRITY"; }
  [[ ${R_commit-} == "$RUN_COMMIT" ]] || { REPLY="$file is of commit ${R_commit-}, the run of $RUN_COMMIT" && return "$EX_INTEGRITY"; }
  [[ $M_EXPECTED == "$1" ]] || { REPLY="$file knows ${M_EXPECTED:-?} cells, the roster has $1" && return "$EX_INTEGRITY"; }
  if [[ -n $ONLY && $M_DONE != "$1" ]]; then
    part_is_done "$file" "$2" || return
  elif [[ $M_DONE != "$1" ]]; then
    REPLY="$file has ${M_DONE:-?} of ${M_EXPECTED:-?} cells done, the roster has $1" && return "$EX_INTEGRITY"
  fi
  hash_file "$file" || { REPLY="$file cannot be read" && return "$EX_INTEGRITY"; }
  M_DIGEST=$REPLY
}
# Each cell of the plan, which are those that --only named, is done by the manifest. Sets M_PART.
part_is_done() { # <manifest> <plan>    returns: 0 or 65 with the reason in REPLY
  local name rest n=0
  local -A well=()
  while IFS= read -r name; do well[$name]=1; done < <(awk -F'"' '/^    \\{"cell": / && $8 == "done" {print $4}' "$1")
  while IFS=$'\\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${well[$name]-} ]] || { REPLY="cell $name of the part is not done by $1" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$2"
  ((n > 0)) || { REPLY="the plan $2 names no cell" && return "$EX_INTEGRITY"; }
  M_PART=$n
}

write_success() { # returns: 0 written and read back
  local REPLY
  record_open formal_success/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text commit "$RUN_COMMIT"
  record_int cells_expected "$M_EXPECTED" || return
  record_int cells_done "$M_DONE" || return
  record_int part_cells "$M_PART" || return
  record_text manifest_sha256 "$M_DIGEST"
  record_bool power_off "$F_POWER" || return
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$B/FORMAL_SUCCESS" "$RECORD" || return
  success_holds "$F_START" || { log "$REPLY" && return "$EX_INTEGRITY"; }
}

write_failure() { # <stage> <command> <exit> <remedy>
  local REPLY
  record_open formal_failure/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text stage "$1"
  record_text command "$2"
  record_int exit "$3" || return
  record_text log "$D/formal.log"
  record_text remedy "$4"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/FORMAL_FAILURE.json" "$RECORD"
}

# The last word of a start: its proof, or the evidence of its failure, is written, and nothing of it is at work (X11).
# It says nothing about results being at home: a teardown has its own gate.
write_ready() { # <success or failed>
  local REPLY
  record_open ready_to_stop/1
  record_text run_id "$RUN_ID"
  record_text start_id "$F_START"
  record_text outcome "$1"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "$D/READY_TO_STOP" "$RECORD"
}

# What is needed to say why a run failed, in one file of bounded size with its digest: records, plan, the run's log, and of
# every cell that is not done its record and its logs.
pack_failure() { # writes: D/formal.failed.tar.gz and .sha256    returns: 0 packed, 1 not
  local REPLY stage=$D/.evidence.$$ file cell rc=0
  LEFT_TO_PACK=$((64 * 1024 * 1024))
  rm -rf -- "$D"/.evidence.* "$D"/.formal.failed.*.tmp
  mkdir -p -- "$stage" || return
  for file in run.json formal.json FORMAL_FAILURE.json queue.tsv events.tsv smoke.json NEGATIVE_RESULTS.tsv environment.txt formal.log; do
    pack_end "$D/$file" "$stage/$file"
  done
  pack_end "$D/plans/$F_START.tsv" "$stage/$F_START.tsv"
  while IFS= read -r cell; do
    cell=${cell##*/} cell=${cell%.json}
    ((LEFT_TO_PACK > 0)) || break
    pack_end "$D/state/$cell.json" "$stage/state/$cell.json"
    for file in "$D/logs/$cell"/attempt-*.log; do pack_end "$file" "$stage/logs/$cell/${file##*/}"; done
  done < <(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec grep -L '^  "state": "done"' {} + 2>/dev/null | LC_ALL=C sort)
  if tar -czf "$D/.formal.failed.$$.tmp" -C "$stage" . && flush "$D/.formal.failed.$$.tmp" && mv -f -- "$D/.formal.failed.$$.tmp" "$D/formal.failed.tar.gz" &&
    tar -tzf "$D/formal.failed.tar.gz" >/dev/null && hash_file "$D/formal.failed.tar.gz"; then
    replace_file "$D/formal.failed.tar.gz.sha256" "$REPLY  formal.failed.tar.gz"$'\\n' && log "evidence of the failure: $D/formal.failed.tar.gz ($REPLY)" || rc=1
  else
    log "the evidence could not be packed; it lies in $D as it is"
    rc=1
  fi
  rm -rf -- "${stage:?}" "$D/.formal.failed.$$.tmp"
  return "$rc"
}
# The last megabyte of a file, as long as there is room for it. Reads and lowers LEFT_TO_PACK.
pack_end() { # <file> <copy>
  local size
  [[ -f $1 ]] && ((LEFT_TO_PACK > 0)) || return 0
  mkdir -p -- "${2%/*}" && tail -c $((1024 * 1024)) -- "$1" >"$2" || return 0
  size=$(wc -c <"$2") || size=$((1024 * 1024))
  LEFT_TO_PACK=$((LEFT_TO_PACK - size))
}

# lib/syntax.bash: does what is going to run parse at all? Asked before anything is paid for (F3), on the laptop too (bash 3.2).
# needs: exit log git
# reads: CODE_DIR PY SMOKE_COMMAND QUEUE_COMMANDS

# Does a command of the queue name this file, by its path or as a Python module?
named_in_queue() { # <path in the code directory>
  local all="${SMOKE_COMMAND-} ${QUEUE_COMMANDS[*]-}" module=${1%.py}
  [[ $all =~ (^|[^A-Za-z0-9_.-])"$1"([^A-Za-z0-9_.-]|$) ]] && return 0
  [[ $1 == *.py && $all =~ -m\\ +"${module//\\//.}"([^A-Za-z0-9_.-]|$) ]]
}

# Files of the code directory by their ending, each with NUL behind it: those that git has or would take, all without git.
code_files() { # <ending>    prints
  local file
  (
    cd -- "$CODE_DIR" || exit
    git_alone
    within "$GIT_LOOK_S" git -c core.fsmonitor=false ls-files -z --cached --others --exclude-standard -- "*.$1" 2>/dev/null && exit
    while IFS= read -r -d '' file; do printf '%s\\0' "${file#./}"; done < <(find . -name '.?*' -prune -o -type f -name "*.$1" -print0)
  )
}

# Python files that PY cannot compile: "path<TAB>why", NUL behind each. Compiles in memory, leaves no file.
python_faults() { # prints
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  code_files py | (cd -- "$CODE_DIR" && "$PY" -I -W ignore -c '
import os, sys
for name in sys.stdin.buffer.read().split(b"\\0"):
    try:
        if name and os.path.isfile(name):
            compile(open(name, "rb").read(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as why:
        sys.stdout.buffer.write(name + b"\\t" + str(why).encode("utf-8", "replace") + b"\\0")
    except OSError:
        pass
') 2>/dev/null
}

# Shell files that do not parse, in the same form. Files of another shell are none of bash's business.
shell_faults() { # prints
  local file first said
  while IFS= read -r -d '' file; do
    [[ -f $CODE_DIR/$file ]] || continue
    { IFS= read -r first <"$CODE_DIR/$file" || :; } 2>/dev/null
    [[ $first != '#!'* || $first =~ [/\\ ](ba)?sh([[:space:]]|$) ]] || continue
    said=$("$BASH" -n -- "$CODE_DIR/$file" 2>&1) || printf '%s\\t%s\\0' "$file" "${said%%$'\\n'*}"
  done < <(code_files sh)
}

# Our own scripts must parse, and each file of the code that a command of the queue names. Another one that does not is
# only named: a repository may hold templates and examples that are no programs. Sets SYNTAX_SAID.
gate_syntax() { # <folders of ours...>
  local dir file why said others=0
  for dir in "$@"; do
    for file in "$dir"/*.sh; do
      [[ -f $file ]] || continue
      said=$("$BASH" -n -- "$file" 2>&1) || refuse "$EX_GATE" "bash -n $file" "${said%%$'\\n'*}" "copy the whole folder ${dir##*/}/ again"
    done
  done
  while IFS=$'\\t' read -r -d '' file why; do
    why=${why//[[:cntrl:]]/ }
    ! named_in_queue "$file" || refuse "$EX_GATE" "the syntax of $CODE_DIR/$file" "$why" "mend it, commit and push it, and run the smoke again"
    others=$((others + 1))
    ((others > 5)) || log "warning: $CODE_DIR/${file//[[:cntrl:]]/?} does not parse: $why"
  done < <(shell_faults && python_faults)
  SYNTAX_SAID="our scripts and the files that the queue names parse; others that do not: $others"
}

# lib/envspec.bash: which environment a cell ran in, as eight digits that differ when it differs (X9).
# needs: exit log file hash hashes run
# reads: PY D

# A sorted description: the interpreter, its version, each installed package with its version, and the GPU driver. Into REPLY;
# into ENV_FOLDERS where the interpreter looks for packages. What cannot be asked is said so; a hanging interpreter is left
# after 60 s.
describe_environment() {
  local said=''
  [[ -n ${DESCRIBE_FD-} ]] || begin_describing
  IFS= read -r -d '' said <&"$DESCRIBE_FD" || :
  exec {DESCRIBE_FD}<&-
  DESCRIBE_FD=''
  [[ $said == *$'\\n' ]] || said="no answer from PY=$PY"
  said=${said%$'\\n'}
  ENV_FOLDERS=''
  # shellcheck disable=SC2034 # preflight has no use for them
  [[ $said != *$'\\n'* ]] || ENV_FOLDERS=${said#*$'\\n'}
  gpu_driver
  REPLY="${said%%$'\\n'*}"$'\\n'"driver $REPLY"$'\\n'
}
# The interpreter is asked beside us, while something else is done.
begin_describing() { # sets DESCRIBE_FD
  local run=()
  if command -v timeout >/dev/null 2>&1; then run=(timeout 60); fi
  # By the names of the folders that installers write: to read every package's metadata takes seconds on a network disk.
  exec {DESCRIBE_FD}< <(said=$(${run[@]+"${run[@]}"} "$PY" -c 'import json, os, sys
paths = [p for p in sys.path if p.startswith("/")]
found = {e.rpartition(".")[0] for p in paths if os.path.isdir(p) for e in os.listdir(p) if e.endswith((".dist-info", ".egg-info"))}
version = "%d.%d.%d" % sys.version_info[:3]
print(json.dumps({"packages": sorted(found), "python": version, "where": sys.prefix}, sort_keys=True))
print("\\n".join(paths))' </dev/null 2>/dev/null) && printf '%s\\n' "$said")
}
gpu_driver() { # into REPLY
  REPLY=none
  { IFS= read -r REPLY </proc/driver/nvidia/version; } 2>/dev/null || :
}

# lib/smoked.bash: what a formal run believes of the smoke and of the drill, and the measures that it takes from them.
# needs: exit log file record proc hash hashes run envspec states
# reads: D SELF_DIR CODE_DIR PY GIT_HEAD BOX_DIGEST

# What was measured, empty where it was not: of the trial M_SECONDS M_STEPS M_STEP_MS; of one checkpoint M_CKPT (bytes) and
# M_SAVE (seconds); of a cell M_BYTES M_FILES M_PEAK, and M_CELL_S with where that comes from in M_CELL_FROM.
forget_measures() {
  M_SECONDS='' M_STEPS='' M_STEP_MS='' M_CKPT='' M_SAVE='' M_BYTES='' M_FILES='' M_PEAK='' M_CELL_S='' M_CELL_FROM=''
}

# A figure that is none, or that no machine has, counts as not measured.
check_measures() {
  local name
  for name in M_SECONDS M_STEPS M_STEP_MS M_CKPT M_SAVE M_BYTES M_FILES M_PEAK; do
    [[ ${!name} =~ ^(0|[1-9][0-9]{0,14})$ ]] || printf -v "$name" ''
  done
}

# Was it made here: on this machine, with this code directory, this interpreter and its packages?
smoke_here() { # reads: R_* of the smoke's record    refuses 77
  local REPLY py
  this_host
  [[ ${R_host-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made on ${R_host:-another machine}, this is $REPLY" "$again"
  record_fit "$CODE_DIR"
  [[ ${R_code_dir-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file is of the code in ${R_code_dir:-another folder}, CODE_DIR is $CODE_DIR" "$again"
  py=$(type -P "$PY") || py=''
  record_fit "$py"
  [[ ${R_py-} == "$REPLY" ]] || refuse "$EX_GATE" "smoke" "$file was made with ${R_py:-another interpreter}, PY is $py" "$again"
  describe_environment
  hash_text "$REPLY" || return
  [[ ${R_env_spec-} == "${REPLY:0:8}" ]] || refuse "$EX_GATE" "smoke" "packages, interpreter or driver of $py changed after it ($file: ${R_env_spec:-none}, now ${REPLY:0:8})" "$again"
}

# Is the text still the one over which its last line has the digest?
whole_record() { # <file>
  local REPLY text sum=${R_self_sha256-}
  read_text "$1" || return 1
  text=${REPLY%,$'\\n''  "self_sha256": "'*}
  [[ $REPLY == "$text,"$'\\n''  "self_sha256": "'"$sum"'"'$'\\n''}'$'\\n' ]] && hash_text "$text" && [[ $REPLY == "$sum" ]]
}

# The smoke of this box, of this commit and these scripts: passed with proof, or waived by somebody for a reason.
gate_smoke() {
  local rc=0 file=$D/smoke.json again="bash $SELF_DIR/smoke.sh"
  forget_measures
  read_record "$file" smoke/1 || rc=$?
  ((rc != 1)) || refuse "$EX_GATE" "smoke" "there is no $file" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
  ((rc == 0)) || refuse "$EX_GATE" "smoke" "$file is not a whole record" "$again"
  [[ ${R_where-} == box ]] || refuse "$EX_GATE" "smoke" "$file is of '${R_where-}', not of this box" "$again"
  [[ ${R_commit-} == "$GIT_HEAD" ]] || refuse "$EX_GATE" "smoke" "$file is of commit ${R_commit:-none}, the code is at $GIT_HEAD" "$again"
  [[ ${R_box_digest-} == "$BOX_DIGEST" ]] || refuse "$EX_GATE" "smoke" "$file is of other scripts (queue.tsv is one) than those in $SELF_DIR" "$again"
  case ${R_result-} in
    passed)
      [[ ${R_exit-} == 0 && ${R_artifact_sha256-} =~ ^[0-9a-f]{64}$ ]] ||
        refuse "$EX_GATE" "smoke" "$file says passed without an artifact" "$again"
      smoke_here
      SMOKE_SAID="passed at ${R_ended-}"
      M_SECONDS=${R_seconds_s-} M_STEPS=${R_steps-} M_STEP_MS=${R_step_ms-} M_SAVE=${R_save_s-} M_PEAK=${R_peak_memory_bytes-}
      M_CKPT=${R_ckpt_bytes-} M_BYTES=${R_cell_bytes:-${R_ckpt_bytes-}} M_FILES=${R_cell_files-}
      check_measures
      ;;
    waived)
      [[ ${R_who-} == *[![:space:]]* && ${R_why-} == *[![:space:]]* && -n ${R_ended-} ]] || refuse "$EX_GATE" "smoke" "$file is a waiver without who and why, or when" "smoke.sh --waive WHO=WHY"
      SMOKE_SAID="WAIVED by $R_who at ${R_ended-}: $R_why"
      ;;
    *) refuse "$EX_GATE" "smoke" "$file says '${R_result-}': ${R_why-}" "mend it, then $again" ;;
  esac
  whole_record "$file" || refuse "$EX_GATE" "smoke" "$file was changed after it was written" "$again; or a waiver in writing: smoke.sh --waive WHO=WHY"
}

# The resume drill opens and shuts nothing: one that failed has left a smoke that failed. Its word is shown, and where it was
# made with a cell, that cell's steps tell how long one takes. Sets DRILL_SAID.
read_drill() {
  local rc=0
  read_record "$D/drill.json" drill/1 || rc=$?
  if ((rc != 0)); then
    DRILL_SAID="none was made here: smoke.sh --resume shows that a killed cell goes on"
    return 0
  fi
  DRILL_SAID="${R_result-} at ${R_ended-} with ${R_cell-}: killed at ${R_killed-}, went on at ${R_resumed-}"
  if [[ ${R_commit-} != "$GIT_HEAD" || ${R_box_digest-} != "$BOX_DIGEST" || ${R_where-} != box ]]; then
    DRILL_SAID="of another commit or other scripts ($DRILL_SAID)"
  elif [[ ${R_cell-} != smoke && ${R_step_ms-} =~ ^[1-9][0-9]{0,8}$ && ${R_steps_total-} =~ ^[1-9][0-9]{0,8}$ ]]; then
    M_CELL_S=$((R_step_ms * R_steps_total / 1000 + 1)) M_CELL_FROM="$R_steps_total steps of $R_step_ms ms, as the drill saw cell $R_cell"
  fi
}

# What cells of this run took that are done says more than any trial.
read_done() {
  local peak
  cells_took
  ((DONE_N > 0)) || return 0
  M_CELL_S=$(((DONE_S + DONE_N - 1) / DONE_N)) M_CELL_FROM="the mean of $DONE_N cells of this run that are done"
  peak=$(find "$D/state" -maxdepth 1 -name '*.json' ! -name '.*' -exec sed -n 's/^  "peak_memory_bytes": \\([0-9]*\\),$/\\1/p' {} + 2>/dev/null | sort -n | tail -n 1) || peak=''
  [[ -z $peak || (-n $M_PEAK && $M_PEAK -ge $peak) ]] || M_PEAK=$peak
}

# lib/data.bash: declared data: counted, weighed, compared with declared digests (X7); and whether two paths share a disk.
# needs: exit log room proc hash hashes
# reads: D CODE_DIR HF_HOME DATA_PATHS DATA_FILES DATA_SIZES DATA_SUMS DATA_LISTS DATA_UNDER MIRRORS

# Where declared data lie, into REPLY.
data_place() { # <index>
  local base=$CODE_DIR path=${DATA_PATHS[$1]%/}
  if [[ ${DATA_UNDER[$1]-} == hf_home ]]; then
    [[ -n ${HF_HOME-} ]] || refuse "$EX_CONFIG" "data $path" "it is declared under HF_HOME, which is empty here" "set HF_HOME to the folder that the hub's library uses"
    base=$HF_HOME
  fi
  REPLY=$base/$path
  [[ $path != /* ]] || REPLY=$path
}

# How to get them again, into REPLY. What came through a mirror may be another revision.
data_remedy() { # <index>
  if [[ ${DATA_UNDER[$1]-} != hf_home ]]; then
    REPLY='send it again (P1.5 in the runbook; push.sh --data where there is ssh), or correct the job'
  elif [[ -n ${MIRRORS[*]-} ]]; then
    REPLY="remove it and fetch the revision again, without the mirror (${MIRRORS[*]}) where that goes on, or correct the job"
  else
    REPLY='remove it and fetch the revision again, or correct the job'
  fi
}

# Compare declared data with its declared size and digests. The digests are read once: a receipt with size, inode and times of
# each file stands for them until one of these changes, then for the others; and another box reads all. HOW is now; look,
# which leaves no receipt; or known: then files that no receipt stands for are not read. Sets PROOF_SAID; where it does not hold
# PROOF_WHAT and PROOF_WHY.
prove_data() { # <index> <now|look|known>    returns: 0, 1 it does not hold, 2 not compared yet (known only)
  local REPLY place head list=''
  PROOF_SAID='' PROOF_WHAT='' PROOF_WHY=''
  data_place "$1"
  place=$REPLY
  PROOF_WHAT="data $place" PROOF_PATHS=() PROOF_SUMS=() PROOF_AT=() PROOF_TODO=()
  if [[ -n ${DATA_LISTS[$1]} ]]; then
    list=$CODE_DIR/${DATA_LISTS[$1]}
    [[ ${DATA_UNDER[$1]-} != hf_home || -e $list ]] || list=$HF_HOME/${DATA_LISTS[$1]}
  elif [[ -z ${DATA_SUMS[$1]} ]]; then
    prove_size "$1" "$place"
    return
  fi
  this_host
  head="data/2|$REPLY|${DATA_FILES[$1]}|${DATA_SIZES[$1]}|${DATA_SUMS[$1]}|$list|$place"
  read_receipt "$D/data/$1.proof" "$head"
  if ((${#KNOWN_PATHS[@]} > 0)) && still_known; then
    PROOF_SAID="digests as compared before"
    return 0
  fi
  prove_slowly "$1" "$place" "$list" "$2" || return
  PROOF_SAID="${#PROOF_TODO[@]} of ${#PROOF_PATHS[@]} digests compared, the others as before"
  [[ $2 == now ]] || return 0
  # Without it the next one reads them again.
  write_receipt "$D/data/$1.proof" "$head" "$list" || log "could not write $D/data/$1.proof"
}

# File by file: what is wrong is to be named, and only what no receipt stands for is read.
prove_slowly() { # <index> <place> <list or empty> <how>    returns: as prove_data
  local i known
  local -A before=()
  if [[ -n $3 ]]; then
    read_data_list "$1" "$2" "$3" || return 1
  else
    [[ -f $2 ]] || { PROOF_WHY='it is not there, or no file' && return 1; }
    PROOF_PATHS=("$2") PROOF_SUMS=("${DATA_SUMS[$1]}") PROOF_AT=("the job's sha256")
  fi
  stat_data "$1" "$2" "$3" || return 1
  for ((i = 0; i < ${#KNOWN_PATHS[@]}; i++)); do before[${KNOWN_PATHS[i]}]="${KNOWN_SUMS[i]} ${KNOWN_STATS[i]}"; done
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    known=${before[${PROOF_PATHS[i]}]-}
    [[ $known == "${PROOF_SUMS[i]} ${STAT_OF[${PROOF_PATHS[i]}]}" ]] || PROOF_TODO+=("$i")
  done
  ((${#PROOF_TODO[@]} > 0)) || return 0
  [[ $4 != known ]] || return 2
  hash_data
}

# A receipt: the head, how many files, their names, what stat said of each, their digests, "end". The list is one of the files.
# One that is not whole, of other words or of another box, is none.
read_receipt() { # <file> <head>    sets KNOWN_PATHS KNOWN_STATS KNOWN_SUMS
  local -a lines=()
  local n
  KNOWN_PATHS=() KNOWN_STATS=() KNOWN_SUMS=()
  [[ -f $1 ]] && { mapfile -t lines <"$1"; } 2>/dev/null || return 0
  n=${lines[1]-}
  [[ ${lines[0]-} == "$2" && $n =~ ^[0-9]+$ ]] && ((${#lines[@]} == 3 * n + 3)) && [[ ${lines[3 * n + 2]} == end ]] || return 0
  KNOWN_PATHS=("${lines[@]:2:n}") KNOWN_STATS=("${lines[@]:2+n:n}") KNOWN_SUMS=("${lines[@]:2+2*n:n}")
}
write_receipt() { # <file> <head> <list or empty>    reads: PROOF_\u2026 STAT_OF
  local i
  local -a stats=()
  [[ -z $3 ]] || PROOF_PATHS+=("$3") PROOF_SUMS+=('-')
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do stats+=("${STAT_OF[${PROOF_PATHS[i]}]-}"); done
  [[ -f $1 || ! -e $1 ]] && { mkdir -p -- "${1%/*}" && printf '%s\\n' "$2" "${#PROOF_PATHS[@]}" "${PROOF_PATHS[@]}" "${stats[@]}" "${PROOF_SUMS[@]}" end >"$1"; } 2>/dev/null
}

# Does stat say of all of them what it said then? One text against another, for there may be a hundred thousand.
still_known() {
  local i now='' once
  printf -v once '%s\\n' "${KNOWN_STATS[@]}"
  for ((i = 0; i < ${#KNOWN_PATHS[@]}; i += 500)); do
    now+=$(TZ=UTC0 exec stat -L -c '%s|%i|%y|%z' -- "${KNOWN_PATHS[@]:i:500}" 2>/dev/null)$'\\n' || return 1
  done
  [[ $now == "$once" ]]
}

# The manifest's lines. A line that is none, a name twice, or one that leads outside makes the whole list worth nothing.
read_data_list() { # <index> <place> <list>
  local list=$3 line name n=0
  local -A seen=()
  PROOF_WHAT="manifest $list"
  [[ -f $list && -r $list ]] || { PROOF_WHY='it is not there, or cannot be read' && return 1; }
  while IFS= read -r line || [[ -n $line ]]; do
    n=$((n + 1)) line=${line%$'\\r'}
    [[ -n $line && $line != '#'* ]] || continue
    PROOF_WHY="line $n is not 64 hex digits, two characters and a name below ${DATA_PATHS[$1]}"
    [[ $line =~ ^[0-9a-f]{64}\\ [\\ *](.+)$ ]] || return 1
    name=${BASH_REMATCH[1]#./}
    case /$name/ in *[[:cntrl:]\\\\]* | */../* | */./* | *//*) return 1 ;; esac
    [[ -z ${seen[$name]-} ]] || { PROOF_WHY="line $n names $name, as line ${seen[$name]} does" && return 1; }
    seen[$name]=$n
    PROOF_PATHS+=("$2/$name") PROOF_SUMS+=("${line:0:64}") PROOF_AT+=("$list:$n")
  done <"$list"
  PROOF_WHY="it lists ${#PROOF_PATHS[@]} files, the job says ${DATA_FILES[$1]}"
  [[ ${#PROOF_PATHS[@]} == "${DATA_FILES[$1]}" ]] || return 1
  PROOF_WHY=''
}

# Are all there, and as heavy as the job says? Sets STAT_OF, of the list too.
stat_data() { # <index> <place> <list or empty>
  local path i bytes=0
  stat_many ${3:+"$3"} "${PROOF_PATHS[@]}"
  for ((i = 0; i < ${#PROOF_PATHS[@]}; i++)); do
    path=${PROOF_PATHS[i]}
    [[ -n ${STAT_OF[$path]-} ]] || { PROOF_WHAT="data $path" PROOF_WHY="it is not there, and ${PROOF_AT[i]} names it" && return 1; }
    bytes=$((bytes + ${STAT_OF[$path]%%|*}))
  done
  # shellcheck disable=SC2034 # only preflight asks how much it is
  PROOF_BYTES=$bytes
  PROOF_WHAT="data $2"
  PROOF_WHY="it has $bytes bytes, the job expects ${DATA_SIZES[$1]}"
  [[ -z ${DATA_SIZES[$1]} || ${DATA_SIZES[$1]} == "$bytes" ]] || return 1
  PROOF_WHY=''
}

# Read those of PROOF_TODO and compare.
hash_data() {
  local i found bad=0
  local -a paths=()
  for i in "${PROOF_TODO[@]}"; do paths+=("${PROOF_PATHS[i]}"); done
  hash_many "${paths[@]}" || :
  for i in "${PROOF_TODO[@]}"; do
    found=${SUM_OF[${PROOF_PATHS[i]}]-}
    [[ $found != "${PROOF_SUMS[i]}" ]] || continue
    bad=$((bad + 1))
    ((bad == 1)) || continue
    PROOF_WHAT="data ${PROOF_PATHS[i]}"
    PROOF_WHY="${PROOF_AT[i]} expects ${PROOF_SUMS[i]}, found ${found:-nothing: it cannot be read}"
  done
  ((bad == 0)) || PROOF_WHY+=" ($bad of ${#PROOF_PATHS[@]} files differ)"
  ((bad == 0))
}

# Size alone: of all files below, links followed.
prove_size() { # <index> <place>
  local sum
  [[ -n ${DATA_SIZES[$1]} ]] || return 0
  sum=$(find -L "$2" -type f -exec stat -L -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || sum='an unknown number of'
  PROOF_WHY="it has $sum bytes, the job expects ${DATA_SIZES[$1]}"
  [[ $sum == "${DATA_SIZES[$1]}" ]] || return 1
  # shellcheck disable=SC2034 # run_one does not say what holds
  PROOF_WHY='' PROOF_SAID="$sum bytes"
}

gate_proof() { # <index>    refuses 77
  local REPLY
  prove_data "$1" now && return 0
  data_remedy "$1"
  refuse "$EX_GATE" "$PROOF_WHAT" "$PROOF_WHY" "$REPLY"
}

# Do two paths lie on one file system? Where that cannot be told, yes: the careful answer for room.
same_disk() { # <path> <path>
  local one two
  existing_parent "$1"
  one=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  existing_parent "$2"
  two=$(stat -c %d -- "$REPLY" 2>/dev/null) || return 0
  [[ $one == "$two" ]]
}

# lib/gates.bash: what must hold before evidence is started; the first gate that does not hold ends it.
# needs: exit log path record hash room run queue roster states git data syntax smoked probe

# Setup, preflight, code, syntax, smoke, data, room: in this order, for a later gate means nothing on a broken base.
all_gates() { # <start: true or false>
  gate_setup
  gate_preflight
  gate_code "$1"
  gate_queue
  gate_syntax "$SELF_DIR"
  gate_smoke
  read_drill
  read_done
  gate_data
  gate_room
}

gate_setup() {
  local name
  for name in preflight.sh run_queue.sh aggregate_to_fs.sh; do
    [[ -f $SELF_DIR/$name ]] || refuse "$EX_MISSING" "$SELF_DIR/$name" "it is not beside $PROG" "copy the whole folder box/ again"
  done
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  box_digest "$SELF_DIR" || refuse "$EX_MISSING" "$SELF_DIR" "its files cannot be read" "copy the whole folder box/ again"
  BOX_DIGEST=$REPLY
}

# All that preflight.sh looks at, by itself: its first FAIL shuts the gate with its own code, command and remedy, its warnings
# are passed on, and its figures are the plan's. Sets CPUS RAM_FREE GPU_COUNT DETACH_WORKS and SAID_OF[check].
gate_preflight() {
  local said line rc=0 again="bash $SELF_DIR/preflight.sh"
  local row='^    \\{"verdict": "([A-Za-z]+)", "check": "([^"]*)", "value": "([^"]*)"(, "command": "([^"]*)", "remedy": "([^"]*)")?\\},?$'
  declare -gA SAID_OF=()
  CPUS=1 RAM_FREE='' GPU_COUNT='' DETACH_WORKS=''
  said=$(bash "$SELF_DIR/preflight.sh" --json) || rc=$?
  [[ $said == '{'$'\\n''  "schema": "preflight/1"'*$'\\n''}' ]] ||
    refuse "$((rc > 0 ? rc : EX_GATE))" "$again --json" "it ended with $rc and without its table" "$again, and see what it says"
  while IFS= read -r line; do
    if [[ $line =~ $row ]]; then
      SAID_OF[${BASH_REMATCH[2]}]+=${SAID_OF[${BASH_REMATCH[2]}]:+$'\\n'}${BASH_REMATCH[3]}
      case ${BASH_REMATCH[1]} in
        FAIL) refuse "$((rc > 0 ? rc : EX_GATE))" "preflight, ${BASH_REMATCH[2]}${BASH_REMATCH[5]:+: ${BASH_REMATCH[5]}}" "${BASH_REMATCH[3]}" "${BASH_REMATCH[6]:-mend that, then: $again}" ;;
        warn | unknown) log "preflight: ${BASH_REMATCH[1]}: ${BASH_REMATCH[2]}: ${BASH_REMATCH[3]}" ;;
      esac
    elif [[ $line =~ ^\\ \\ \\"(cpus|ram_free_bytes|gpus|detach)\\":\\ \\"?([a-z0-9]*)\\"?,$ ]]; then
      line=${BASH_REMATCH[2]#null}
      case ${BASH_REMATCH[1]} in
        cpus) CPUS=$line ;;
        ram_free_bytes) RAM_FREE=$line ;;
        gpus) GPU_COUNT=$line ;;
        detach) DETACH_WORKS=$line ;;
      esac
    fi
  done <<<"$said"
  ((rc == 0)) || refuse "$rc" "$again --json" "it ended with $rc" "$again, and see what it says"
}

gate_code() { # <start: true or false>
  local commit='' path protected=("$D" "$B" "$S")
  for path in ${DATA_PATHS[@]+"${DATA_PATHS[@]}"}; do protected+=("$CODE_DIR/$path"); done
  if find_run; then
    commit=$R_commit
    if [[ $R_formal != true ]]; then
      refuse "$EX_GATE" "run $R_run_id" "it was not begun by formal_run, so it is never evidence" "begin anew with RUN=$JOB.2"
    fi
  fi
  git_gate "$BRANCH" "$commit" "$1" "$([[ $1 == true ]] && printf '%s' "$STASH" || printf false)" "${protected[@]}"
  if [[ -n $commit && $commit != "$GIT_HEAD" ]]; then
    refuse "$EX_GATE" "run $R_run_id" "it is of commit $commit, and $GIT_TOP is at $GIT_HEAD" "check out $commit there, or begin anew with RUN=$JOB.2"
  fi
  CODE_COMMIT=$GIT_HEAD
}

# How many files there are preflight has counted; digests are compared once, against a receipt that stands until a file changes.
gate_data() { # reads: SAID_OF    sets DATA_SAID
  local i
  local -a rows=()
  DATA_SAID=()
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  [[ -z ${SAID_OF[data]-} ]] || mapfile -t rows <<<"${SAID_OF[data]}"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    gate_proof "$i"
    DATA_SAID+=("${rows[i]-}${PROOF_SAID:+; $PROOF_SAID}")
  done
}

# The cells of this start, and how many of them are still to be done.
# As run_queue will see them: the run's roster and what the source has new, of this run's shard; --only names a part.
gate_queue() { # sets ROSTER_N CELL_NAMES CELL_STATES CELLS_DONE CELLS_LEFT, and QUEUE_NAMES QUEUE_COMMANDS
  local REPLY name DRY_QUEUE=1
  RUN_SHARD=${SHARD:-1/1} RUN_ID='' CELL_NAMES=() CELL_STATES=() CELLS_DONE=0
  declare -gA RECORD_OF=()
  if find_run; then
    RUN_ID=$R_run_id RUN_SHARD=$R_shard
    [[ -z $SHARD || $SHARD == "$RUN_SHARD" ]] ||
      refuse "$EX_GATE" "run $RUN_ID" "it is of shard $RUN_SHARD, not $SHARD" "give --shard $RUN_SHARD, or a RUN of its own to each box"
    read_states
  fi
  merge_queue
  ROSTER_N=${#QUEUE_NAMES[@]}
  for name in "${QUEUE_NAMES[@]}"; do
    in_part "$name" || continue
    state_now "$name"
    CELL_NAMES+=("$name") CELL_STATES+=("$REPLY")
    [[ $REPLY != 'done' ]] || CELLS_DONE=$((CELLS_DONE + 1))
  done
  CELLS_LEFT=$((${#CELL_NAMES[@]} - CELLS_DONE))
  for name in ${ONLY//,/ }; do
    [[ " ${CELL_NAMES[*]-} " == *" $name "* ]] ||
      refuse "$EX_CONFIG" "--only $name" "no cell of the queue has this name" "names: ${QUEUE_NAMES[*]:0:5} \u2026"
  done
}
in_part() { # <cell>    returns: 0 where this start is about it
  [[ -z $ONLY || ,$ONLY, == *",$1,"* ]]
}

# Room for the cells that are left, with a tenth more, on each tier; once for both where they share a disk. A checkpoint
# that the smoke found larger than what the job says for a whole cell counts instead.
gate_room() {
  local REPLY bytes=$NEED_DISK_BYTES files both=1
  [[ -z $M_BYTES || $M_BYTES -le $bytes ]] || bytes=$M_BYTES
  bytes=$((bytes * CELLS_LEFT * 11 / 10)) files=$NEED_FILES
  [[ -z $M_FILES || $M_FILES -le $files ]] || files=$M_FILES
  files=$((files * CELLS_LEFT))
  ROOM_SAID=()
  if [[ $B != "$D" ]]; then
    if same_disk "$D" "$B"; then both=2; else gate_tier "$B" "$bytes" "$files" "$DURABLE_CAP_BYTES" "$DURABLE_CAP_INODES"; fi
  fi
  gate_tier "$D" $((bytes * both)) $((files * both)) "$DATA_CAP_BYTES" "$DATA_CAP_INODES"
}
gate_tier() { # <path> <bytes> <files> <cap bytes> <cap inodes>
  local have inodes need REPLY
  human "$2"
  need=$REPLY
  [[ -z $4 || $2 -le $4 ]] || refuse "$EX_NOROOM" "$1" "the cells need $need, and the tier's cap is $4 bytes" "take a larger tier, or fewer cells"
  [[ -z $5 || $3 -le $5 ]] || refuse "$EX_NOROOM" "$1" "the cells need $3 files, and the tier's cap is $5" "pack the output into fewer files"
  free_bytes "$1" || :
  have=$REPLY
  free_inodes "$1" || :
  inodes=$REPLY
  [[ -z $have || $have -ge $2 ]] || refuse "$EX_NOROOM" "df $1" "$have bytes are free, the cells that are left need $2" "free room there, or set needs.disk_gb in the job to what the smoke measured"
  [[ -z $inodes || $inodes -ge $3 ]] || refuse "$EX_NOROOM" "df -i $1" "$inodes inodes are free, the cells that are left need $3" "remove small files there, or set needs.files in the job"
  human "$have"
  ROOM_SAID+=("$1: needs $need in $3 files, free $REPLY and ${inodes:-an unknown number of} inodes")
}

# lib/plan.bash: the plan that a formal run prints before it starts, from what the gates have read.
# needs: exit log file hash probe git

print_plan() { # reads what gates.bash has set
  local REPLY slots=${SLOTS:-1} line name n=0 ids
  if [[ -n ${GPUS-} ]]; then
    IFS=, read -ra ids <<<"$GPUS"
    # As run_queue counts: a cell takes as many entries as it needs GPUs.
    slots=$((${#ids[@]} / (NEED_GPUS > 0 ? NEED_GPUS : 1)))
    ((slots > 0)) || slots=1
  fi
  printf 'plan for run %s (%s x %s)\\n' "$RUN" "$PROFILE" "$JOB"
  printf '  code      %s at %s, branch %s\\n' "$GIT_TOP" "$GIT_HEAD" "${GIT_BRANCH:-none}"
  ! git_ask log -1 --format='  commit    %h %ci %s' || printf '%s\\n' "$REPLY"
  printf '  syntax    %s\\n' "$SYNTAX_SAID"
  printf '  smoke     %s\\n' "$SMOKE_SAID"
  printf '  drill     %s\\n' "$DRILL_SAID"
  plan_measured
  printf '  cells     %s, of which done %s, to do %s\\n' "${#CELL_NAMES[@]}" "$CELLS_DONE" "$CELLS_LEFT"
  [[ -z $ONLY ]] || printf '            a part only: %s of the %s cells of the roster; the proof will be of these and will say so\\n' "${#CELL_NAMES[@]}" "$ROSTER_N"
  for name in "${CELL_NAMES[@]}"; do
    ((n++ < 10)) || break
    printf '              %s\\n' "$name"
  done
  ((${#CELL_NAMES[@]} <= 10)) || printf '              \u2026 and %s more\\n' $((${#CELL_NAMES[@]} - 10))
  printf '  outputs   %s/cells/<cell>, results in %s/final_ckpts/<cell>\\n' "$D" "$B"
  [[ -n $DURABLE_DIR ]] || printf '            pull-only: nothing here outlives the box; results must be pulled first\\n'
  for line in "${ROOM_SAID[@]}"; do printf '  disk      %s\\n' "$line"; done
  for line in ${DATA_SAID[@]+"${DATA_SAID[@]}"}; do printf '  data      %s\\n' "$line"; done
  ((${#DATA_PATHS[@]} > 0)) || printf '  data      the job declares none\\n'
  plan_resources "$slots"
  plan_time "$slots"
  [[ ${F_POWER-} != true ]] || printf '  power     off after success: %s\\n' "${POWER_OFF_COMMAND[*]}"
}

# The time of what is left and its cost, from what a cell was measured to take; without that from the job's own word.
plan_time() { # <slots>    reads: M_CELL_S NEED_S CELLS_LEFT
  local REPLY rounds=$(((CELLS_LEFT + $1 - 1) / $1)) said=measured
  [[ -n $M_CELL_S ]] || said='declared, not measured'
  span_of $((rounds * ${M_CELL_S:-$NEED_S}))
  printf '  time      about %s for what is left, %s at a time (%s)\\n' "$REPLY" "$1" "$said"
  [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]] || return 0
  awk -v s="$((rounds * ${M_CELL_S:-$NEED_S}))" -v p="$PRICE_PER_HOUR" -v said="$said" \\
    'BEGIN {printf "  cost      about %.2f at %s per hour (%s)\\n", s / 3600 * p, p, said}'
}
span_of() { # <seconds>    into REPLY
  if (($1 >= 7200)); then REPLY="$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; elif (($1 >= 120)); then REPLY="$((($1 + 30) / 60)) min"; else REPLY="$1 s"; fi
}
bytes_of() { # <bytes>    into REPLY
  human "$1"
}

# One figure of a cell: what was measured, with what the job says beside it; a warning where they are more than twice apart.
plan_figure() { # <what> <measured or empty> <declared> <function that names it> <name in the job> <how it was measured>
  local REPLY declared apart=''
  "$4" "$3"
  declared=$REPLY
  if [[ -z $2 ]]; then
    printf '    %-8s %s, declared, not measured%s\\n' "$1" "$declared" "${6:+ ($6)}"
    return 0
  fi
  "$4" "$2"
  if (($2 > 2 * $3)); then apart='more than twice what'; elif (($3 > 2 * $2)); then apart='less than half of what'; fi
  printf '    %-8s %s, measured (%s); the job: %s\\n' "$1" "$REPLY" "$6" "$declared"
  [[ -z $apart ]] || log "warning: $1 of a cell: $REPLY was measured, $apart $5 in the job says ($declared); correct it there, or leave it if other cells need it"
}

# What was measured beside what the job says.
plan_measured() {
  local trial=''
  [[ -z $M_SECONDS ]] || trial="the smoke: $M_SECONDS s${M_STEPS:+ for $M_STEPS step(s)}${M_STEP_MS:+, $M_STEP_MS ms a step}"
  printf '  one cell\\n'
  plan_figure time "$M_CELL_S" "$NEED_S" span_of needs.minutes "${M_CELL_FROM:-$trial}"
  plan_figure disk "$M_BYTES" "$NEED_DISK_BYTES" bytes_of needs.disk_gb "${M_CKPT:+the smoke, with a checkpoint of $M_CKPT bytes}"
  plan_figure memory "$M_PEAK" "$NEED_RAM_BYTES" bytes_of needs.ram_gb "${M_PEAK:+the most that the smoke or a cell held}"
  plan_figure saving "$M_SAVE" "$SAVE_S" span_of save_s "${M_SAVE:+one checkpoint to the data tier}"
  [[ -z $M_SAVE || $M_SAVE -le $SAVE_S ]] || log "warning: saving took $M_SAVE s, save_s says $SAVE_S: a stopped cell may be killed while it saves"
}

# What this start will produce, written down before it runs: a line a cell, with its output and what must lie there. The
# proof at the end is held to it (F5 F6).
write_plan() { # reads what gates.bash has set, F_START    writes: D/plans/<start id>.tsv
  local REPLY file=$D/plans/$F_START.tsv text name state i n=0
  text="# run $RUN_ID start $F_START commit $RUN_COMMIT cells ${#CELL_NAMES[@]} done $CELLS_DONE to do $CELLS_LEFT"
  [[ -z $ONLY ]] || text+=", a part: the roster has $ROSTER_N"
  text+=$'\\n'
  for name in ${GIT_SUBMODULES[@]+"${GIT_SUBMODULES[@]}"}; do text+="# submodule $name"$'\\n'; done
  text+="# smoke ${SMOKE_SAID//[[:cntrl:]]/ }"$'\\n'
  for ((i = 0; i < ${#CELL_NAMES[@]}; i++)); do
    name=${CELL_NAMES[i]} state='to do'
    [[ ${CELL_STATES[i]} != 'done' ]] || state='done'
    text+="$name"$'\\t'"$state"$'\\t'"$B/final_ckpts/$name"$'\\t'"${REQUIRED[*]-}"$'\\n'
  done
  if ! mkdir -p -- "$D/plans" || ! replace_file "$file" "$text"; then
    refuse "$EX_NOROOM" "$file" "the plan cannot be written" "look at the data tier: room, rights"
  fi
  while IFS= read -r name; do
    [[ $name == '#'* ]] || n=$((n + 1))
  done <"$file"
  ((n == ${#CELL_NAMES[@]})) || refuse "$EX_COPY" "$file" "it holds $n cells, the queue ${#CELL_NAMES[@]}" "look at the data tier"
  hash_file "$file" || refuse "$EX_COPY" "$file" "it cannot be read back" "look at the data tier"
  [[ $SMOKE_SAID != WAIVED* ]] || event waiver - - "smoke $SMOKE_SAID"
  event plan - - "$n cells, $CELLS_DONE done, $CELLS_LEFT to do, sha256 $REPLY"
  log "plan of $n cells: $file ($REPLY)"
}

# Is each cell of the plan in the roster that the manifest was held to?    reads: QUEUE_NAMES
plan_in_roster() { # <plan>    returns: 0, or 65 with the reason in REPLY
  local name rest n=0
  local -A have=()
  for name in "${QUEUE_NAMES[@]}"; do have[$name]=1; done
  [[ -s $1 ]] || { REPLY="the plan $1 is gone" && return "$EX_INTEGRITY"; }
  while IFS=$'\\t' read -r name rest; do
    [[ $name != '#'* ]] || continue
    [[ -n ${have[$name]-} ]] || { REPLY="cell $name of the plan $1 is not in the roster" && return "$EX_INTEGRITY"; }
    n=$((n + 1))
  done <"$1"
  ((n > 0)) || { REPLY="the plan $1 names no cell" && return "$EX_INTEGRITY"; }
}

# What preflight has read, and what so many cells side by side want of it.
plan_resources() { # <slots>    reads: CPUS RAM_FREE GPU_COUNT SAID_OF
  local REPLY need=$NEED_RAM_BYTES
  [[ -z $M_PEAK || $M_PEAK -le $need ]] || need=$M_PEAK
  recommend "$1" "$need"
  printf '  cpu       %s\\n' "${SAID_OF[cpu]-}"
  human $((need * $1))
  printf '  ram       %s; %s at a time: %s\\n' "${SAID_OF[ram]-}" "$1" "$REPLY"
  [[ -z $RAM_FREE || $RAM_FREE -ge $((need * $1)) ]] || log "warning: $RAM_FREE bytes of memory are free, $1 cell(s) at a time need $REPLY"
  printf '  gpu       %s\\n' "${SAID_OF[gpus]-}"
  [[ -n ${GPUS-} || -z $GPU_COUNT || $GPU_COUNT -ge $((NEED_GPUS * $1)) ]] || log "warning: $GPU_COUNT GPUs here, $1 cell(s) at a time need $((NEED_GPUS * $1))"
  printf '  threads   recommended for each cell: %s loader worker(s), %s thread(s)\\n' "$WORKERS" "$THREADS"
}

# lib/tree.bash: a process and all that came from it, by identity: number and start time.
# needs: proc

# TREE_IDS ("pid ticks", parents first) and TREE_LINES for people, from ROOT down. Empty where ROOT is gone.
process_tree() { # <root pid>
  local dir pid stat fields next=("$1") more
  local -A kids=() ticks=() comm=()
  TREE_IDS=() TREE_LINES=()
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    { IFS= read -r stat <"$dir/stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]-} != [ZX] ]] || continue
    kids[${fields[1]}]+=" $pid"
    ticks[$pid]=${fields[19]-0}
    stat=${stat#*(}
    comm[$pid]="parent ${fields[1]}, ${stat%)*}"
  done
  while ((${#next[@]} > 0)); do
    more=()
    for pid in "${next[@]}"; do
      [[ -n ${ticks[$pid]-} ]] || continue
      TREE_IDS+=("$pid ${ticks[$pid]}")
      TREE_LINES+=("process $pid, ${comm[$pid]}")
      # shellcheck disable=SC2206 # numbers with blanks between
      more+=(${kids[$pid]-})
    done
    next=(${more[@]+"${more[@]}"})
  done
}

# Those of the tree that stand still (SIGSTOP, Ctrl-Z), into TREE_STILL: they act on no signal until they are told to go on.
find_still() {
  local id stat
  TREE_STILL=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    { IFS= read -r stat <"/proc/${id% *}/stat"; } 2>/dev/null || continue
    if [[ ${stat##*) } == T\\ * ]] && same_process "${id% *}" "${id#* }"; then TREE_STILL+=("${id% *}"); fi
  done
}
wake_tree() {
  find_still
  ((${#TREE_STILL[@]} == 0)) || kill -CONT "${TREE_STILL[@]}" 2>/dev/null || :
}

# Is any process of the tree still there? TREE_LEFT holds those that are.
tree_alive() {
  local id
  TREE_LEFT=()
  for id in ${TREE_IDS[@]+"${TREE_IDS[@]}"}; do
    ! same_process "${id% *}" "${id#* }" || TREE_LEFT+=("$id")
  done
  ((${#TREE_LEFT[@]} > 0))
}

# lib/negative.bash: what failed is a result too: a line that stays, so that nobody pays for it twice without knowing (X4).
# needs: log

# One more line; it decides nothing, so a full disk here stops nothing.
negative_line() { # <file> <where> <commit> <exit> <seconds> <why> <command>
  local REPLY
  utc_now
  [[ -s $1 ]] || printf '# time\\twhere\\tcommit\\texit\\tseconds\\twhy\\tcommand\\n' 2>/dev/null >"$1" || return 0
  printf '%s\\t%s\\t%s\\t%s\\t%s\\t%s\\t%s\\n' "$REPLY" "$2" "$3" "$4" "$5" "${6//[[:cntrl:]]/ }" "${7//[[:cntrl:]]/ }" 2>/dev/null >>"$1" || :
}

# lib/detached.bash: the part of a formal run that goes on without the shell that started it.
# needs: exit log file record proc run queue git detach formal plan carry negative

# First half: the session's environment goes, the person's comes, and the log is ours from the first line.
do_enter() { # <private folder> <start id>
  local dir=$1 start=$2 d session socket name
  { [[ -f $dir/env && -O $dir/env && ! -L $dir ]] && {
    IFS= read -r d && IFS= read -r session && IFS= read -r socket && IFS= read -r name
  } <"$dir/where"; } 2>/dev/null ||
    refuse "$EX_GATE" "the detached part" "no start has made this session" "use: $PROG start"
  detach_inside "$session" "$socket" "$name" ||
    refuse "$EX_GATE" "the detached part" "this is not the session $name that start made" "use: $PROG start"
  # A multiplexer that is killed must not take the run with it; the run has its own record of who it is.
  trap '' HUP
  # Standard input stays the session's terminal: a multiplexer ends a session that nobody holds open.
  exec >>"$d/formal.log" 2>&1
  cd -- "$d" || return
  detach_load_env "$dir/env" || refuse "$EX_GATE" "the detached part" "its environment cannot be read" "use: $PROG start"
  exec "$BASH" "${BASH_SOURCE[0]}" _run "$dir" "$start"
}

do_run() { # <private folder> <start id>
  local REPLY dir=$1 start=$2 taken=$1/taken word
  local -a words=()
  # Consumed by mkdir: the second half runs once, and only behind the first.
  if [[ ! -d $dir || ! -O $dir || -e $dir/env ]] || ! mkdir -- "$taken" 2>/dev/null; then
    refuse "$EX_GATE" "the detached part" "no start has made this session" "use: $PROG start"
  fi
  while IFS= read -r -d '' word; do words+=("$word"); done <"$dir/flags" || :
  if [[ ${words[*]: -1} != end ]] || ! parse_flags "${words[@]:0:${#words[@]}-1}"; then
    refuse "$EX_GATE" "the detached part" "the words of its start cannot be read" "use: $PROG start"
  fi
  self_dir
  run_places
  find_run || refuse "$EX_INTEGRITY" "$D/run.json" "it is gone" "use: $PROG start"
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  judge_formal
  [[ $F_START == "$start" && $F_STATE == starting ]] ||
    refuse "$EX_GATE" "the detached part" "start ${F_START:-none} has taken over from $start" "use: $PROG status"
  start_ticks $$
  F_PID=$$ F_TICKS=$REPLY
  STAGE=heartbeat STEP="$PROG start" SUCCEEDED=0 STOP_SIGNAL='' SIGNALS=0 CHILD=''
  trap 'at_exit $?' EXIT
  trap 'on_signal TERM' TERM
  trap 'on_signal INT' INT
  trap 'on_signal USR1' USR1
  write_formal running '' || return
  event running - - "formal start $F_START commit $RUN_COMMIT"
  utc_now
  log "START $REPLY run $RUN_ID start $F_START commit $RUN_COMMIT in $F_SESSION"
  formal_body
}

# The frame that no edit can reorder: the queue, the code as it was, the aggregation, the proof, the record.
formal_body() {
  local REPLY cells
  run_step queue bash "$SELF_DIR/run_queue.sh" ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} || return
  STAGE=code STEP="git status in $CODE_DIR"
  code_unchanged || return
  write_formal aggregating '' || return
  event aggregating - - ''
  run_step aggregate bash "$SELF_DIR/aggregate_to_fs.sh" ${ONLY:+--only "$ONLY"} || return
  STAGE=proof STEP="PULL_MANIFEST.json"
  cells=$(
    read_queue "$D/queue.tsv"
    plan_in_roster "$D/plans/$F_START.tsv" || { log "$REPLY" && exit "$EX_INTEGRITY"; }
    printf '%s' "${#QUEUE_NAMES[@]}"
  ) || return
  check_manifest "$cells" "$D/plans/$F_START.tsv" || { log "$REPLY" && return "$EX_INTEGRITY"; }
  write_success || return
  SUCCEEDED=1
  utc_now
  printf 'FORMAL_SUCCESS%s %s run %s start %s cells %s/%s manifest %s\\n' "${M_PART:+ of a part ($M_PART cells)}" "$REPLY" "$RUN_ID" "$F_START" "$M_DONE" "$M_EXPECTED" "$M_DIGEST"
  write_formal success '' || return
  event success - - "$M_DONE of $M_EXPECTED cells${M_PART:+, the proof is of a part: $M_PART cells}"
  write_ready success || log "READY_TO_STOP cannot be written"
  [[ $F_POWER != true ]] || power_off
}

# A step as a child that we wait for: a trap in bash runs during wait, not during a foreground command.
run_step() { # <stage> <words...>
  local rc=0 seen
  STAGE=$1
  shift
  STEP=$*
  log "step $STAGE: $STEP"
  [[ -z $STOP_SIGNAL ]] || return 143
  "$@" </dev/null &
  CHILD=$!
  # A signal that came between the fork and this line has not reached it.
  [[ -z $STOP_SIGNAL ]] || kill -TERM "$CHILD" 2>/dev/null || :
  while :; do
    seen=$SIGNALS rc=0
    wait "$CHILD" || rc=$?
    # A signal ends the wait, also the second of its name: the cells may still be saving.
    [[ $seen == "$SIGNALS" ]] || continue
    break
  done
  CHILD=''
  log "step $STAGE ended with $rc"
  [[ -z $STOP_SIGNAL ]] || ((rc != 0)) || rc=143
  return "$rc"
}

on_signal() { # <signal>
  STOP_SIGNAL=$1 SIGNALS=$((SIGNALS + 1))
  log "signal $1: the cells may save, then the run ends"
  [[ -z $CHILD ]] || kill -TERM "$CHILD" 2>/dev/null || :
}

# The commit is still what it was and no tracked file was edited meanwhile.
code_unchanged() {
  local REPLY
  git_open
  git_exempt "$D" "$B" "$S"
  git_look || { log "git status failed in $GIT_TOP" && return "$EX_MISSING"; }
  if [[ $GIT_HEAD != "$RUN_COMMIT" || ${#GIT_DIRTY[@]} -gt 0 ]]; then
    git_list
    log "the code in $GIT_TOP was changed while the run was on (commit $GIT_HEAD, the run's is $RUN_COMMIT)"
    return "$EX_GATE"
  fi
  ((${#GIT_UNTRACKED[@]} == 0)) || { log "files appeared in $GIT_TOP during the run:" && git_list; }
}

# Whatever ends the detached part, its record says how. The machine stays on.
at_exit() { # <status>
  local rc=$1 why remedy
  trap - EXIT TERM INT USR1
  set +e
  rm -rf -- "/tmp/gr-${EUID}-$F_START"
  ((SUCCEEDED == 0)) || exit "$rc"
  ((rc != 0)) || rc=$EX_FAIL
  why="stage $STAGE ended with $rc"
  [[ -z $STOP_SIGNAL ]] || why="stopped by signal $STOP_SIGNAL in stage $STAGE"
  case $STAGE,$rc in
    "queue,$EX_BUSY") remedy="wait until the cells that other processes run are done (bash $SELF_DIR/status.sh), then: bash $SELF_DIR/$PROG start" ;;
    queue,*) remedy="bash $SELF_DIR/status.sh names the cells; mend them, then: bash $SELF_DIR/$PROG start" ;;
    "code,$EX_MISSING") remedy="whether the code is still the same could not be seen: make git work in $CODE_DIR; then: bash $SELF_DIR/$PROG start" ;;
    code,*) remedy="commit or undo the edit; results of this run are of mixed code: begin anew with RUN=$JOB.2" ;;
    aggregate,* | proof,*) remedy="bash $SELF_DIR/aggregate_to_fs.sh says what is missing; then: bash $SELF_DIR/$PROG start" ;;
    *) remedy="see $D/formal.log; then: bash $SELF_DIR/$PROG start" ;;
  esac
  [[ -z $STOP_SIGNAL ]] || remedy="bash $SELF_DIR/$PROG start continues it"
  # A proof that could be written and not be read back is none: start has moved every older one aside.
  [[ ! -e $B/FORMAL_SUCCESS ]] || mv -f -- "$B/FORMAL_SUCCESS" "$B/FORMAL_SUCCESS.$F_START.failed"
  log "FORMAL_FAILURE: $why; this machine is kept on; $remedy"
  write_failure "$STAGE" "$STEP" "$rc" "$remedy"
  write_formal failed "$why"
  event failed - - "$why"
  # Somebody's stop is no result, nor is a cell that another process has.
  [[ -n $STOP_SIGNAL || $rc == "$EX_BUSY" ]] || negative_line "$D/NEGATIVE_RESULTS.tsv" formal "$RUN_COMMIT" "$rc" "$SECONDS" "$why, start $F_START" "$STEP"
  carry_logs || log "the events could not be copied to $B"
  ! pack_failure || write_ready failed || :
  exit "$rc"
}

# Only behind FORMAL_SUCCESS. Being alive a minute later is a failure of its own, and is recorded: the meter runs.
power_off() {
  local REPLY rc=0 n=0
  success_holds "$F_START" || { log "no power-off: $REPLY" && return 0; }
  event power_off - - "${POWER_OFF_COMMAND[*]}"
  log "power-off: ${POWER_OFF_COMMAND[*]}"
  flush "$D/formal.log" "$B/FORMAL_SUCCESS"
  "${POWER_OFF_COMMAND[@]}" || rc=$?
  log "power-off: the command ended with $rc"
  ((rc != 0)) || while ((n++ < ${POWER_OFF_WAIT_S:-60})); do
    sleep 1 || :
    # A machine that goes down tells its processes first; how long that takes is its own affair.
    [[ -z $STOP_SIGNAL ]] || { log "power-off: the machine is going down" && return 0; }
  done
  write_failure power-off "${POWER_OFF_COMMAND[*]}" "$rc" "the machine is still alive and its meter runs: use teardown.sh from the laptop" || :
  write_formal success "power-off failed: the command ended with $rc and the machine is still alive" || :
}

readonly HEARTBEAT_S=60 # a detached run that has said nothing by then has failed

usage() {
  cat <<'USAGE'
usage: formal_run.sh plan   [--stash] [run_queue's flags]
       formal_run.sh start  [--power-off] [--stash] [run_queue's flags]
       formal_run.sh status | attach | stop

plan    looks at everything that start insists on, prints cells, outputs, resources, disk, data; starts nothing.
start   the same gates, then starts the queue detached from this shell (tmux, screen, or setsid), waits for its first
        heartbeat and returns. Gates: code clean, committed, on its branch and pushed; smoke passed here for this very
        commit and these scripts; data present; room on disk.
status  says running, aggregating, success, failed, stopped, lost or unknown, and why.
attach  shows the log of the run and follows it; leaving it with Ctrl-C stops nothing.
stop    shows the run's processes, ends them (checkpoints first), and records that it was stopped.

--power-off  after FORMAL_SUCCESS, and only then, switch this machine off; only where the profile knows a command
             that stops the meter. A failed run always keeps the machine.
--stash      put uncommitted work into a dated git stash first; refused where that would take data.
run_queue's flags: --queue FILE, --slots N, --gpus LIST, --shard I/N, --only CELL,\u2026, --skip-failed, --adopt
With --only the proof is of these cells alone: it says that it is of a part, and so does status.

exit codes: 0 done (start: it runs, detached), 1 the run failed or was stopped, 64 usage, 65 a record does not match,
69 something is missing or not known, 73 no room, 74 the durable tier, 75 busy, 77 a gate refused, 78 configuration
USAGE
}

# --- the command line ---

# Flags into QUEUE_FLAGS and the few that matter here too.
parse_flags() {
  QUEUE_FLAGS=() F_POWER=false STASH=false SHARD='' ONLY='' ADOPT=false QUEUE_FILE='' SLOTS='' GPUS=''
  while (($#)); do
    case $1 in
      --power-off) F_POWER=true ;;
      --stash) STASH=true ;;
      --skip-failed) QUEUE_FLAGS+=("$1") ;;
      --adopt) ADOPT=true QUEUE_FLAGS+=("$1") ;;
      --queue | --slots | --gpus | --shard | --only)
        (($# > 1)) && [[ -n $2 ]] || return "$EX_USAGE"
        case $1 in
          --queue) QUEUE_FILE=$2 ;;
          --slots) SLOTS=$2 ;;
          --gpus) GPUS=$2 ;;
          --shard) SHARD=$2 ;;
          --only) ONLY=$2 ;;
        esac
        QUEUE_FLAGS+=("$1" "$2")
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
  [[ -z $SHARD ]] || { [[ $SHARD =~ ^([1-9][0-9]{0,5})/([1-9][0-9]{0,5})$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])); } || return "$EX_USAGE"
  [[ -z $SLOTS || (-z $GPUS && $SLOTS =~ ^[1-9][0-9]{0,3}$) ]] || return "$EX_USAGE"
  [[ -z $GPUS || $GPUS =~ ^[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*$ ]] || return "$EX_USAGE"
}

# The queue will run from another folder than the one this was typed in.
absolute_queue() {
  local i
  [[ -n $QUEUE_FILE && $QUEUE_FILE != /* ]] || return 0
  QUEUE_FILE=$PWD/$QUEUE_FILE
  for ((i = 0; i < ${#QUEUE_FLAGS[@]}; i++)); do
    [[ ${QUEUE_FLAGS[i]} != --queue ]] || QUEUE_FLAGS[i + 1]=$QUEUE_FILE
  done
}

main() {
  local verb=${1-}
  (($# == 0)) || shift
  case $verb in
    -h | --help) usage && return 0 ;;
    plan | start)
      parse_flags "$@" || { usage >&2 && return "$EX_USAGE"; }
      absolute_queue
      ;;
    status | attach | stop) (($# == 0)) || { usage >&2 && return "$EX_USAGE"; } ;;
    _enter | _run) (($# == 2)) || { usage >&2 && return "$EX_USAGE"; } ;;
    *) usage >&2 && return "$EX_USAGE" ;;
  esac
  [[ -z ${FAKE_ROOT-} ]] || refuse "$EX_CONFIG" "FAKE_ROOT=$FAKE_ROOT" "a formal run looks at the real machine" "unset FAKE_ROOT"
  case $verb in
    plan) do_plan ;;
    start) do_start ;;
    status) do_status ;;
    attach) do_attach ;;
    stop) do_stop ;;
    _enter) do_enter "$@" ;;
    _run) do_run "$@" ;;
  esac
}

# --- plan and start ---

do_plan() {
  self_dir
  run_places asked
  all_gates false
  print_plan
  dry_run_queue
  printf 'plan: every gate is open; nothing was started\\n'
}

do_start() {
  local REPLY
  self_dir
  detach_wanted
  [[ $F_POWER != true || ${#POWER_OFF_COMMAND[@]} -gt 0 ]] ||
    refuse "$EX_GATE" "--power-off" "the profile knows no command on this machine that stops the meter" "leave --power-off out, and use teardown.sh from the laptop afterwards"
  run_places asked
  prove_durable
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  ! no_file "$D/formal.log" || refuse "$EX_INTEGRITY" "$D/formal.log" "it is $REPLY, and a file of ours is to be there" "look at what made it, and move it away"
  { : >>"$D/formal.log"; } 2>/dev/null || refuse_write "$EX_NOROOM" "$D/formal.log" "it cannot be written" data
  all_gates true
  F_SESSION=$DETACH_WORKS
  [[ $F_SESSION == "$DETACH" ]] || log "falling back from $DETACH to $F_SESSION"
  open_run true "$SHARD" "$ADOPT"
  take_start
  refuse_live
  print_plan
  dry_run_queue
  launch
}

# Nothing of this run may be at work: not as recorded, not as a session that has no heartbeat yet.
refuse_live() {
  local session=$F_SESSION power=$F_POWER n=0 id REPLY # judging takes the earlier start's values
  judge_formal
  case $FORMAL_STATE in
    running | aggregating) refuse "$EX_BUSY" "start" "the formal run is $FORMAL_STATE (process $F_PID)" "bash $SELF_DIR/$PROG status, or stop" ;;
    unknown)
      [[ $ADOPT == true || ! -e $D/formal.json || $FORMAL_WHY != *'look there' ]] ||
        refuse "$EX_BUSY" "start" "$FORMAL_WHY" "if that box is gone for good, say --adopt"
      log "the earlier start is unknown: $FORMAL_WHY"
      ;;
  esac
  if [[ -n $F_SOCKET && $FORMAL_STATE != success ]] && detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME"; then
    refuse "$EX_BUSY" "start" "session $F_NAME ($F_SESSION) of the earlier start is still there" "bash $SELF_DIR/$PROG status looks, stop ends it"
  fi
  # A record may be unreadable, or say that all is over while its writer still packs the evidence.
  while live_detached; do
    ((n++ < 50)) || refuse "$EX_BUSY" "start" "something of this run is still at work (process $REPLY), and the record says $FORMAL_STATE" "wait for it, or look at it (ps -fp $REPLY) and end it: kill -TERM $REPLY"
    sleep 0.2 2>/dev/null || sleep 1
  done
  # What a killed start left behind goes, so that its detached part, should it come late, finds no environment.
  for id in "$F_START" "$EARLIER_START"; do
    if [[ $id =~ ^[0-9a-f]{8}$ && -O /tmp/gr-$EUID-$id ]]; then rm -rf -- "/tmp/gr-$EUID-$id"; fi
  done
  F_SESSION=$session F_POWER=$power
}

# What formal_run can start a run under, before anything is looked at; preflight then says what of it works here.
detach_wanted() {
  case $DETACH in
    tmux | screen | nohup) ;;
    *) refuse "$EX_MISSING" "DETACH=$DETACH" "formal_run does not start runs under $DETACH yet" "submit this line through it yourself: bash $SELF_DIR/run_queue.sh; or set DETACH=tmux, screen or nohup where this machine allows it" ;;
  esac
}

dry_run_queue() {
  local said
  said=$(bash "$SELF_DIR/run_queue.sh" --dry-run ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} 2>&1) ||
    refuse "$EX_GATE" "run_queue.sh --dry-run" "it failed: ${said##*$'\\n'}" "bash $SELF_DIR/run_queue.sh --dry-run ${QUEUE_FLAGS[*]-}"
  printf '%s\\n' "$said"
}

# Start the detached part and wait until it has spoken.
launch() {
  local word REPLY
  F_START=$NEW_START F_NAME=gr_$NEW_START F_DIGEST=$BOX_DIGEST
  start_ticks $$
  F_PID=$$ F_TICKS=$REPLY
  detach_dir "$F_START" || refuse "$EX_COPY" "a private folder under /tmp" "it cannot be made" "look at /tmp: room, rights"
  F_SOCKET=''
  [[ $F_SESSION == nohup ]] || F_SOCKET=$DETACH_DIR/s
  move_old_aside
  write_plan
  write_formal starting '' || refuse "$EX_COPY" "$D/formal.json" "it cannot be written" "look at the data tier: room, rights"
  detach_save_env "$DETACH_DIR/env" || fail_launch "the environment file cannot be written" "look at /tmp: room, rights"
  # By file, for a multiplexer takes no long command line.
  { printf '%s\\n' "$D" "$F_SESSION" "$F_SOCKET" "$F_NAME" >"$DETACH_DIR/where" &&
    for word in ${QUEUE_FLAGS[@]+"${QUEUE_FLAGS[@]}"} end; do printf '%s\\0' "$word"; done >"$DETACH_DIR/flags"; } ||
    fail_launch "its words cannot be written" "look at /tmp: room, rights"
  detach_start "$F_SESSION" "$F_SOCKET" "$F_NAME" "$D/formal.log" \\
    "$BASH" "$SELF_DIR/$PROG" _enter "$DETACH_DIR" "$F_START" ||
    fail_launch "$F_SESSION refused the session" "look at the end of $D/formal.log"
  await_heartbeat
  log "formal start $F_START asked for: job $JOB, ${#CELL_NAMES[@]} cells, commit $RUN_COMMIT, output in $D, results in $B"
  printf 'started: run %s, start %s, job %s at commit %s, %s cells\\noutput: %s, results: %s\\n%s session %s, process %s\\nlog: %s\\nlook: bash %s status\\n' \\
    "$RUN_ID" "$F_START" "$JOB" "$RUN_COMMIT" "${#CELL_NAMES[@]}" "$D" "$B" "$F_SESSION" "$F_NAME" "$F_PID" "$D/formal.log" "$SELF_DIR/$PROG"
}

# The detached part writes its own process into formal.json first thing. Silence, or a session that is gone, is a failure.
await_heartbeat() {
  local until=$((SECONDS + HEARTBEAT_S)) gone=0
  while ((SECONDS < until)); do
    if read_record "$D/formal.json" formal/1 "$RUN_ID" && [[ $R_start_id == "$F_START" && $R_state != starting ]]; then
      case $R_state in
        failed | stopped)
          tail -n 20 -- "$D/formal.log" >&2
          refuse "$EX_FAIL" "the detached run" "it $R_state at once: $R_why" "see $D/formal.log and $D/FORMAL_FAILURE.json"
          ;;
      esac
      F_PID=$R_pid
      return 0
    fi
    if [[ $F_SESSION == nohup ]]; then
      kill -0 "$DETACH_PID" 2>/dev/null || gone=$((gone + 1))
    else
      detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME" || [[ $? -eq 2 ]] || gone=$((gone + 1))
    fi
    ((gone < 20)) || { fail_launch "no heartbeat: the session is gone, and nothing had run in it" "look at the end of $D/formal.log, shown above" && return; }
    sleep 0.1 2>/dev/null || sleep 1
  done
  fail_launch "no heartbeat in $HEARTBEAT_S s: the session started and nothing ran in it" "look at the end of $D/formal.log, shown above"
}

fail_launch() { # <why> <what to do>
  # At the last moment it may have begun after all: then there is nothing to be sorry for.
  if ! bar_detached "$F_START" && await_begun; then
    log "it was late, and has begun now"
    F_PID=$R_pid
    return 0
  fi
  tail -n 20 -- "$D/formal.log" >&2
  rm -rf -- "${DETACH_DIR:?}"
  write_formal failed "$1" || :
  write_failure start "$F_SESSION" "$EX_FAIL" "$2" || :
  refuse "$EX_FAIL" "start by $F_SESSION" "$1" "$2"
}

# --- status, attach, stop ---

open_records() {
  self_dir
  run_places asked
  find_run || refuse "$EX_MISSING" "run $RUN" "there is no $D/run.json: nothing was started here" "bash $SELF_DIR/$PROG start"
  RUN_ID=$R_run_id RUN_COMMIT=$R_commit
  judge_formal
}

do_status() {
  local session="no session" file evidence=''
  open_records
  if [[ -n $F_SESSION ]]; then
    session="$F_SESSION session $F_NAME"
    if detach_alive "$F_SESSION" "$F_SOCKET" "$F_NAME"; then session+=" alive"; elif [[ $? -eq 1 ]]; then session+=" gone"; fi
  fi
  printf '%s: %s; run %s start %s; %s; process %s; since %s\\n' "$FORMAL_STATE" "${FORMAL_WHY:-as recorded}" \\
    "$RUN_ID" "${F_START:-none}" "$session" "${F_PID:-none}" "${F_SINCE:-not known}"
  case $FORMAL_STATE in
    starting | running | aggregating)
      process_tree "$F_PID"
      find_still
      ((${#TREE_STILL[@]} == 0)) || printf 'it stands still (SIGSTOP or Ctrl-Z): processes %s; to go on: kill -CONT %s\\n' "${TREE_STILL[*]}" "${TREE_STILL[*]}"
      return 0
      ;;
    success) claim success "formal run $RUN_ID" "$B/FORMAL_SUCCESS" ;;
    failed | stopped | lost)
      tail -n 20 -- "$D/formal.log" 2>/dev/null || :
      for file in FORMAL_FAILURE.json formal.failed.tar.gz formal.log; do [[ ! -s $D/$file ]] || evidence+=" $D/$file"; done
      printf 'this machine is kept; evidence:%s\\n' "${evidence:- none was written}"
      return "$EX_FAIL"
      ;;
    *) return "$EX_MISSING" ;;
  esac
}

do_attach() {
  local follow=''
  open_records
  [[ -f $D/formal.log ]] || refuse "$EX_MISSING" "$D/formal.log" "there is no log: nothing was started here" "bash $SELF_DIR/$PROG start"
  # Without a terminal nobody could leave an endless look.
  case $FORMAL_STATE in
    starting | running | aggregating) [[ ! -t 1 ]] || follow=-f ;;
  esac
  printf '%s: %s (%s)%s\\n' "$FORMAL_STATE" "$D/formal.log" "${F_NAME:-no session}" "${follow:+; Ctrl-C leaves, the run goes on}"
  exec tail -n 80 ${follow:+"$follow"} -- "$D/formal.log"
}

do_stop() {
  local REPLY n=0 limit=$((GRACE_S * 2 + 30)) id
  open_records
  case $FORMAL_STATE in
    starting | running | aggregating) ;;
    unknown) refuse "$EX_MISSING" "stop" "the state is not known: $FORMAL_WHY" "look at $D/formal.json by hand; nothing was ended" ;;
    *)
      printf 'nothing to stop: %s; %s\\n' "$FORMAL_STATE" "${FORMAL_WHY:-as recorded}"
      if live_detached; then
        printf 'process %s is still at work on this run and is not the recorded one: look with ps -fp %s, end it with kill -TERM %s\\n' "$REPLY" "$REPLY" "$REPLY"
        return "$EX_FAIL"
      fi
      return 0
      ;;
  esac
  process_tree "$F_PID"
  ((${#TREE_IDS[@]} > 0)) || { printf 'nothing to stop: process %s has just ended\\n' "$F_PID" && return 0; }
  printf 'ending process %s, which ends its children after they have saved:\\n' "$F_PID"
  printf '  %s\\n' "${TREE_LINES[@]}"
  if ! same_process "$F_PID" "$F_TICKS" || ! kill -TERM "$F_PID"; then
    refuse "$EX_MISSING" "kill -TERM $F_PID" "the process is not the recorded one any more" "bash $SELF_DIR/$PROG status"
  fi
  while ((n++ < limit * 5)); do
    tree_alive || break
    wake_tree
    sleep 0.2 2>/dev/null || sleep 1
  done
  if tree_alive; then
    printf 'still there after %s s, and left alone:\\n' "$limit"
    for id in "${TREE_LEFT[@]}"; do printf '  process %s\\n' "${id% *}"; done
    return "$EX_FAIL"
  fi
  read_record "$D/formal.json" formal/1 "$RUN_ID" || :
  # What we ended may have been the start alone: its detached part comes no more, or has just begun and is ended too.
  if [[ ${R_start_id-} == "$F_START" && ${R_state-} == starting ]] && ! bar_detached "$F_START"; then await_begun || :; fi
  if [[ ${R_start_id-} == "$F_START" && ${R_pid-} != "$F_PID" ]]; then
    do_stop
    return
  fi
  [[ ${R_state-} != success ]] || { printf 'it ended with success before the signal came\\n' && return 0; }
  write_formal stopped "by $PROG stop" || refuse "$EX_COPY" "$D/formal.json" "it cannot be written" "the processes are gone; look at the data tier"
  event stopped - - "$F_START"
  printf 'stopped: the same start continues it\\n'
}

#!/usr/bin/env bash
# preflight.sh: look at this box before anything is started: room, tiers, memory, GPUs, tools, sessions.
# Generated; do not edit. Source: templates/box/preflight.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=preflight.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the platform's name
readonly TITLE="Kaggle notebook, run as a saved version"
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/kaggle/temp/hf}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# what a detached run is started with
DETACH=${DETACH-commit}
# the interpreter
PY=${PY-python3}
# used where that is missing
readonly DETACH_FALLBACK=none
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# cells in the compiled queue
readonly CELLS=4
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# host memory for one cell
readonly NEED_RAM_BYTES=1000000000
# expected seconds for one cell
readonly NEED_S=6
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# and how many bytes; empty: not said
readonly -a DATA_SIZES=()
# and its digest, where it is one file
readonly -a DATA_SUMS=()
# and the list of its digests, relative to the code
readonly -a DATA_LISTS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# modules that PY must import
readonly -a ENV_IMPORTS=()
# what shows that the environment works: a kernel that runs, documentation that holds
readonly -a ENV_TIERS=()
# the commands
readonly -a ENV_COMMANDS=()
# and what a line of their answers matches
readonly -a ENV_EXPECTS=()
# mirrors, exported to every cell
readonly -a MIRRORS=()
# tiers that only boxes of one region, zone or host can reach
readonly -a REGION_LOCKED=()
# what this box has to show: name, proof, role, path
readonly -a TIERS_IN=()
# what was left out, and may not show: name, proof, role, path
readonly -a TIERS_OUT=()
# what strikes by itself
readonly -a CLOCKS=(
  "A run is ended at the cap: sources say 9 or 12 hours with a GPU. Plan for 9, and end by yourself before it."
  "About 30 GPU hours a week, changing; kaggle quota tells what is left."
  "An interactive session stops after about an hour without activity; a pushed run has no such clock."
  "The run is killed at the -t SECONDS that the push named, whatever session.sh planned: name the cap, 32400."
  "An open interactive session with a GPU uses up the week's hours, computing or not."
  "A run that is killed at the cap has spent its hours and may leave no output."
)
# --- end of bound values ---

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
# No dead mount, driver or server makes us wait for ever: WORDS, ended after SECONDS where a `timeout` works here, killed where they
# do not heed that.
within() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 rc=0 begin=$SECONDS
  shift
  if ! command -v timeout >/dev/null 2>&1; then
    "$@"
  elif timeout -k 5 5 true 2>/dev/null; then
    timeout -k 5 "$limit" "$@" || rc=$?
  elif timeout 5 true 2>/dev/null; then
    timeout "$limit" "$@" || rc=$?
  else
    "$@"
  fi || return
  # Ended at the limit: by TERM under busybox (143), by KILL where TERM was not heeded (137). Before it, that is the words' own status.
  case $rc in 137 | 143) ((SECONDS - begin < limit)) || rc=124 ;; esac
  return "$rc"
}

# CPUs in a list like 0-3,8 (affinity), into REPLY.
count_list() { # <list>
  local part parts n=0
  IFS=, read -ra parts <<<"$1"
  for part in ${parts[@]+"${parts[@]}"}; do
    if [[ $part =~ ^([0-9]+)-([0-9]+)$ ]]; then
      n=$((n + BASH_REMATCH[2] - BASH_REMATCH[1] + 1))
    elif [[ $part =~ ^[0-9]+$ ]]; then
      n=$((n + 1))
    fi
  done
  REPLY=$n
}

# Our cgroup's folder for a controller (v1), or the unified one for an empty name, into REPLY; 1 where there is none.
cgroup_path() { # <controller or empty>
  local n list path
  REPLY=
  while IFS=: read -r n list path; do
    if [[ -z $1 && $n == 0 && -z $list ]] || [[ -n $1 && ,$list, == *",$1,"* ]]; then
      REPLY=$path
      return 0
    fi
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/cgroup"
  return 1
}

# The smallest of a limit file from our cgroup up to the root: a parent's limit binds as well.
# In a container the path may be the host's and lead nowhere; then the mount's own root is ours.
cgroup_walk() { # <mount> <path> <reader function>    calls the reader with each folder that exists
  local dir=$2
  dir=${dir%/}
  while :; do
    [[ ! -d $1$dir ]] || "$3" "$1$dir"
    [[ -n $dir ]] || return 0
    dir=${dir%/*}
  done
}

first_line() { # <file>    into REPLY; 1 where it cannot be read
  REPLY=
  { IFS= read -r REPLY <"$1" || [[ -n $REPLY ]]; } 2>/dev/null
}

read_cpu_v2() { # <folder>
  local quota period
  first_line "$1/cpu.max" || return 0
  read -r quota period <<<"$REPLY"
  [[ $quota =~ ^[0-9]+$ && ${period:-0} -gt 0 ]] || return 0
  keep_quota "$quota" "$period"
}
read_cpu_v1() { # <folder>
  local quota
  first_line "$1/cpu.cfs_quota_us" || return 0
  quota=$REPLY
  first_line "$1/cpu.cfs_period_us" || return 0
  [[ $quota =~ ^[1-9][0-9]*$ && $REPLY =~ ^[1-9][0-9]*$ ]] || return 0
  keep_quota "$quota" "$REPLY"
}
keep_quota() { # <quota> <period>    the smallest, in hundredths of a CPU
  local hundredths=$(($1 * 100 / $2))
  [[ -n $CPU_QUOTA && $CPU_QUOTA -le $hundredths ]] || CPU_QUOTA=$hundredths
}
read_mem() { # <folder>
  local file limit used
  for file in memory.max memory.high memory.limit_in_bytes; do
    first_line "$1/$file" || continue
    limit=$REPLY
    # Version 1 writes "no limit" as a number near 2^63.
    if [[ ! $limit =~ ^[0-9]{1,18}$ ]] || ((limit >= 1 << 60)); then continue; fi
    [[ -z $RAM_LIMIT || $limit -lt $RAM_LIMIT ]] || continue
    RAM_LIMIT=$limit RAM_USED=''
    for used in memory.current memory.usage_in_bytes; do
      if first_line "$1/$used" && [[ $REPLY =~ ^[0-9]{1,18}$ ]]; then RAM_USED=$REPLY; fi
    done
  done
}

# CPU_NPROC CPU_AFFINITY CPU_QUOTA (hundredths) and the smallest of them, CPUS; empty = cannot be read.
probe_cpus() {
  local line path root=${FAKE_ROOT-}/sys/fs/cgroup
  CPU_NPROC='' CPU_AFFINITY='' CPU_QUOTA='' CPUS=''
  # nproc believes OMP_NUM_THREADS; this is about the machine.
  CPU_NPROC=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && exec nproc 2>/dev/null) || CPU_NPROC=''
  [[ $CPU_NPROC =~ ^[0-9]+$ ]] || CPU_NPROC=''
  while IFS= read -r line; do
    [[ $line == Cpus_allowed_list:* ]] || continue
    count_list "${line##*[[:space:]]}"
    CPU_AFFINITY=$REPLY
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/status"
  if cgroup_path ''; then cgroup_walk "$root" "$REPLY" read_cpu_v2; fi
  if cgroup_path cpu; then
    path=$REPLY
    for line in cpu cpu,cpuacct; do cgroup_walk "$root/$line" "$path" read_cpu_v1; done
  fi
  for line in "$CPU_NPROC" "$CPU_AFFINITY" "${CPU_QUOTA:+$((CPU_QUOTA / 100))}"; do
    [[ -z $line || (-n $CPUS && $CPUS -le $line) ]] || CPUS=$line
  done
  CPUS=${CPUS:-1}
  ((CPUS > 0)) || CPUS=1
}

# RAM_TOTAL RAM_AVAILABLE RAM_LIMIT RAM_USED (the limit's own use) and what is free for us, RAM_FREE, in bytes.
probe_ram() {
  local name value rest root=${FAKE_ROOT-}/sys/fs/cgroup
  RAM_TOTAL='' RAM_AVAILABLE='' RAM_LIMIT='' RAM_USED='' RAM_FREE=''
  while read -r name value rest; do
    case $name in
      MemTotal:) RAM_TOTAL=$((value * 1024)) ;;
      MemAvailable:) RAM_AVAILABLE=$((value * 1024)) ;;
    esac
  done 2>/dev/null <"${FAKE_ROOT-}/proc/meminfo"
  if cgroup_path ''; then cgroup_walk "$root" "$REPLY" read_mem; fi
  if cgroup_path memory; then cgroup_walk "$root/memory" "$REPLY" read_mem; fi
  RAM_FREE=${RAM_AVAILABLE:-$RAM_TOTAL}
  if [[ -n $RAM_LIMIT ]]; then
    value=$((RAM_LIMIT - ${RAM_USED:-0}))
    ((value >= 0)) || value=0
    [[ -n $RAM_FREE && $RAM_FREE -le $value ]] || RAM_FREE=$value
  fi
}

# The GPUs by the driver's own word: GPU_STATE ok, none, unknown; GPU_COUNT; GPU_LINES; GPU_WHY. Bounded: a sick driver hangs.
# shellcheck disable=SC2034 # a script reads what it needs
probe_gpus() {
  local said='' rc=0 line fd
  GPU_STATE=unknown GPU_COUNT='' GPU_LINES=() GPU_WHY=''
  command -v nvidia-smi >/dev/null 2>&1 || { GPU_STATE=none GPU_COUNT=0 GPU_WHY="no nvidia-smi on PATH" && return 0; }
  # Through a pipe, which we can leave: no signal ends a query that hangs in the kernel, and whoever waits for it hangs too (case 80).
  exec {fd}< <(
    exec 2>&1 </dev/null
    within 20 nvidia-smi --query-gpu=index,name,driver_version,memory.total,memory.used --format=csv,noheader,nounits || rc=$?
    printf '\\nrc %s' "$rc"
  )
  # At the end of the pipe read has 1, for no NUL comes; above 128 its time is over.
  IFS= read -r -d '' -t 30 -u "$fd" said || { (($? <= 128)) || rc=124; }
  exec {fd}<&-
  ((rc == 124)) || rc=${said##*$'\\nrc '}
  # Killed before it could print its status.
  [[ $rc =~ ^[0-9]+$ ]] || rc=1
  said=${said%$'\\nrc '*}
  ((rc != 124)) || { GPU_WHY="nvidia-smi did not answer in 20 s" && return 0; }
  # "No devices were found" comes with status 0, and so may a driver mismatch.
  while IFS= read -r line; do
    [[ $line =~ ^[0-9]+,\\ [^,]+,\\ [0-9.]+, ]] && GPU_LINES+=("$line")
  done <<<"$said"
  GPU_COUNT=${#GPU_LINES[@]}
  if ((GPU_COUNT > 0 && rc == 0)); then
    GPU_STATE=ok
  elif [[ $said == *'No devices'* ]]; then
    GPU_STATE=none GPU_WHY="nvidia-smi: No devices were found"
  else
    GPU_COUNT='' GPU_WHY="nvidia-smi (status $rc): ${said%%$'\\n'*}"
    GPU_WHY=${GPU_WHY//[[:cntrl:]]/ }
  fi
}

detach_have() { # <primitive>    returns: 0 where its tool is on PATH
  case $1 in
    tmux | screen) command -v "$1" >/dev/null 2>&1 ;;
    nohup) command -v setsid >/dev/null 2>&1 ;;
    *) return 1 ;;
  esac
}

# Does the primitive really work here? A trial session that leaves a file. Says why not into REPLY.
detach_trial() { # <primitive>    returns: 0 or 1
  local dir=${DETACH_DIR-} tries=0 rc=0 took=0
  REPLY=''
  detach_have "$1" || {
    REPLY="not installed"
    return 1
  }
  detach_dir "try$$$RANDOM" || {
    REPLY="no private folder can be made under /tmp"
    return 1
  }
  # shellcheck disable=SC2016 # for the bash that is started
  detach_start "$1" "$DETACH_DIR/s" gr_try "$DETACH_DIR/log" "$BASH" -c 'printf ok >"$1"' try "$DETACH_DIR/ok" || took=$?
  if ((took == 0)); then
    while [[ ! -s $DETACH_DIR/ok ]] && ((tries++ < 100)); do sleep 0.05 2>/dev/null || sleep 1; done
    [[ -s $DETACH_DIR/ok ]] || { REPLY="a trial session was accepted, but did not run" && rc=1; }
  elif ((took == 124)); then
    REPLY="a trial session was asked for, and $1 did not answer in 15 s" rc=1
  else
    rc=1
    IFS= read -r REPLY <"$DETACH_DIR/log" || :
    REPLY=${REPLY:-"a trial session was not accepted"}
  fi
  # Our own folder: mkdir made it a moment ago.
  rm -rf -- "${DETACH_DIR:?}"
  DETACH_DIR=$dir
  return "$rc"
}

# Files, bytes and empty files of a data path, following links. DATA_N DATA_BYTES DATA_EMPTY.
count_data() { # <path>
  local said
  DATA_N='' DATA_BYTES='' DATA_EMPTY=''
  # One line a file, whatever its name holds.
  said=$(find -L "$1" -type f -exec sh -c 'for f; do [ -s "$f" ] && echo 1 || echo 0; done' sh {} + 2>/dev/null |
    awk '{n++; if ($1 == 0) e++} END {printf "%d %d", n, e}') || return 1
  DATA_N=${said% *} DATA_EMPTY=${said#* }
  said=$(du -skL -- "$1" 2>/dev/null) || return 1
  DATA_BYTES=$((${said%%[[:space:]]*} * 1024))
}

# lib/checks.bash: what preflight looks at. Each check adds lines to the table; none of them changes anything.
# needs: exit log path room run probe detach data

# One line of the table. A verdict is ok, note, warn, unknown or FAIL; a FAIL carries the exit code of its kind, and where
# the value does not say it, the command that failed and the smallest remedy (X3).
row() { # <verdict> <check> <value> [exit code for FAIL] [command] [what to do]
  ROWS_VERDICT+=("$1") ROWS_CHECK+=("$2") ROWS_VALUE+=("${3//[[:cntrl:]]/ }")
  ROWS_COMMAND+=("${5-}") ROWS_REMEDY+=("${6-}")
  [[ $1 != FAIL || $VERDICT_CODE -ne 0 ]] || VERDICT_CODE=${4:-$EX_GATE}
}

check_tools() {
  local tool missing='' said
  for tool in awk cat cp date df dirname du env find grep head ln mkdir mktemp mv rm sed sleep sort stat sync tail tar tr wc; do
    command -v "$tool" >/dev/null 2>&1 || missing+=" $tool"
  done
  if [[ -n $missing ]]; then row FAIL tools "missing:$missing" "$EX_MISSING" "command -v$missing" "install them, or put their folder on PATH"; else row ok tools "bash $BASH_VERSION and all that is needed"; fi
  if said=$(git --version 2>/dev/null); then row ok git "$said"; else row FAIL git "not on PATH: a formal run needs it" "$EX_MISSING" "git --version" "install git on this machine"; fi
  hash_tool
  row ok sha256 "$HASH_TOOL"
  for tool in rsync timeout setsid; do
    command -v "$tool" >/dev/null 2>&1 || row warn "$tool" "not on PATH: slower or less sure without it"
  done
  if ! command -v "$PY" >/dev/null 2>&1; then
    row FAIL python "PY=$PY is not there" "$EX_MISSING" "command -v $PY" "set PY to the python of the environment, by its path"
  else
    said=$(within 60 "$PY" --version 2>&1 </dev/null | head -n 1) || said='it does not say its version'
    row ok python "$(command -v "$PY"), $said"
  fi
}

check_cpu_ram() {
  local quota=none limit=none free said
  probe_cpus
  probe_ram
  [[ -z $CPU_QUOTA ]] || printf -v quota '%d.%02d' $((CPU_QUOTA / 100)) $((CPU_QUOTA % 100))
  row ok cpu "$CPUS usable (nproc ${CPU_NPROC:-not known}, affinity ${CPU_AFFINITY:-not known}, cgroup quota $quota)"
  if [[ -n $RAM_LIMIT ]]; then human "$RAM_LIMIT" && limit=$REPLY; fi
  human "$RAM_FREE" && free=$REPLY
  human "$RAM_TOTAL"
  said="$free free for us (machine $REPLY, cgroup limit $limit)"
  human "$NEED_RAM_BYTES"
  if [[ -z $RAM_FREE ]]; then
    row unknown ram "$said"
  elif ((${RAM_LIMIT:-$RAM_TOTAL} < NEED_RAM_BYTES)); then
    row FAIL ram "$said; one cell needs $REPLY" "$EX_GATE" "cat /proc/meminfo /sys/fs/cgroup/memory.max" "take a larger machine, or correct needs.ram_gb in the job"
  elif ((RAM_FREE < NEED_RAM_BYTES)); then
    row warn ram "$said; one cell needs $REPLY: something else is using it now"
  else row ok ram "$said; one cell needs $REPLY"; fi
  recommend 1 "$NEED_RAM_BYTES"
  row note workers "one cell at a time: $WORKERS loader worker(s), $THREADS thread(s); fewer is the safe side"
}

check_gpus() {
  local line index name driver total used
  probe_gpus
  for line in ${GPU_LINES[@]+"${GPU_LINES[@]}"}; do
    IFS=, read -r index name driver total used <<<"$line"
    if [[ ${used# } =~ ^[0-9]+$ ]] && ((${used# } <= GPU_FREE_MIB)); then
      row ok "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB"
    elif [[ ${used# } =~ ^[0-9]+$ ]]; then
      row warn "gpu $index" "${name# }, driver${driver}, $total MiB, in use$used MiB: somebody is on it"
    else row unknown "gpu $index" "${name# }, driver${driver}, in use:${used:- not said}"; fi
  done
  if ((NEED_GPUS == 0)); then
    row ok gpus "none needed; here ${GPU_COUNT:-not known}${GPU_WHY:+ ($GPU_WHY)}"
  elif [[ $GPU_WHY == 'no nvidia-smi'* && (-e /dev/kfd || -e /dev/accel) ]]; then
    row unknown gpus "a cell needs $NEED_GPUS; here is another maker's device, which nothing of ours can count"
  elif [[ $GPU_STATE == unknown ]]; then
    row FAIL gpus "a cell needs $NEED_GPUS, and it cannot be told what is here: $GPU_WHY" "$EX_MISSING" nvidia-smi "make nvidia-smi answer: restart the box, or take another one"
  elif ((GPU_COUNT < NEED_GPUS)); then
    row FAIL gpus "a cell needs $NEED_GPUS, here are $GPU_COUNT${GPU_WHY:+ ($GPU_WHY)}" "$EX_GATE" nvidia-smi "take a machine with enough of them, or correct needs.gpus in the job"
  else row ok gpus "$GPU_COUNT here, a cell needs $NEED_GPUS"; fi
}

# Bytes and inodes of one folder's disk. What cannot be asked is unknown, and only that.
check_disk() { # <name> <path> <bytes for one cell or 0> <files for one cell>
  local said verdict=ok code=$EX_NOROOM free inodes
  free_bytes "$2" || :
  free=$REPLY
  free_inodes "$2" || :
  inodes=$REPLY
  human "$free"
  said="$2: $REPLY free, ${inodes:-n/a} inodes free"
  if [[ -z $free ]]; then
    row unknown "$1" "$2: df gave no answer in 20 s"
    return 0
  fi
  if (($3 > 0)); then
    if ((free < $3)) || [[ -n $inodes && $inodes -lt $4 ]]; then
      verdict=FAIL said+="; one cell needs $3 bytes and $4 files"
    elif ((free / CELLS_LEFT < $3)) || [[ -n $inodes && $((inodes / CELLS_LEFT)) -lt $4 ]]; then
      verdict=warn said+="; not enough for all $CELLS_LEFT cells with $3 bytes and $4 files each"
    fi
  fi
  if [[ $verdict == ok ]] && { ((free < 2000000000)) || [[ -n $inodes && $inodes -lt 20000 ]]; }; then
    verdict=warn said+=": less than 2 GB or 20000 inodes"
  fi
  row "$verdict" "$1" "$said" "$code" "df $2" "free room there, or take a larger one"
}

check_disks() {
  local REPLY bytes
  cells_left
  # A run that is done needs no room for another cell.
  bytes=$((CELLS_LEFT > 0 ? NEED_DISK_BYTES : 0))
  check_disk "data tier" "$DATA_DIR" "$bytes" "$NEED_FILES"
  check_disk scratch "$SCRATCH" 0 0
  [[ -z $HF_HOME ]] || check_disk HF_HOME "$HF_HOME" 0 0
  [[ -z ${HOME-} ]] || check_disk home "$HOME" 0 0
  if [[ -n $HF_HOME ]] && same_disk "$HF_HOME" / && ! same_disk "$DATA_DIR" /; then
    row warn caches "HF_HOME=$HF_HOME lies on the system disk, and the data tier does not: hub downloads may fill it"
  fi
  if [[ -z $DURABLE_DIR ]]; then
    row note "durable tier" "none: nothing here outlives the box; pull results before it ends"
  else
    check_durable "$bytes"
  fi
}
# How many cells of the queue have no record in the bundle yet, into CELLS_LEFT: an estimate, for room and time alone.
cells_left() {
  local file
  CELLS_LEFT=$CELLS
  for file in "$B"/records/*.json; do
    [[ ! -s $file ]] || CELLS_LEFT=$((CELLS_LEFT - 1))
  done
  ((CELLS_LEFT >= 0)) || CELLS_LEFT=0
}

# Is the storage that is to survive really there, and not just a folder of its name?
check_durable() { # <bytes for one cell or 0>
  local REPLY tier=$DURABLE_TIER_PATH
  expand_path tier
  tier=${tier%/}
  if [[ $DURABLE_DIR/ != "$tier"/* ]]; then
    if [[ -d $DURABLE_DIR ]]; then
      row warn "durable proof" "$DURABLE_DIR is not the profile's tier ($tier): that it survives is your word"
    else
      row FAIL "durable proof" "$DURABLE_DIR is not the profile's tier ($tier), and no folder" "$EX_COPY" "cd $DURABLE_DIR" "make the folder on storage that survives, or unset DURABLE_DIR"
      return 0
    fi
  elif prove_tier "$tier" "$DURABLE_PROOF"; then
    if same_disk "$DURABLE_DIR" /; then
      row "$([[ $DURABLE_PROOF == none ]] && echo ok || echo warn)" "durable proof" "$tier ($DURABLE_PROOF); on the same disk as /"
    else row ok "durable proof" "$tier ($DURABLE_PROOF), a disk of its own"; fi
  else
    row FAIL "durable proof" "$REPLY" "$EX_COPY" "df $tier" "attach the storage, or set DURABLE_DIR= (empty) to run pull-only"
    return 0
  fi
  check_disk "durable tier" "$DURABLE_DIR" "$1" "$NEED_FILES"
}

# Where the box lies cannot be asked here, but which storage would be out of reach from another place is known.
check_region() {
  ((${#REGION_LOCKED[@]} == 0)) || row note region "only from where it lies: ${REGION_LOCKED[*]}; a box elsewhere does not see it, so take the next one in the same place"
}

check_detach() {
  local REPLY one
  DETACH_WORKS=''
  case $DETACH in
    tmux | screen | nohup) ;;
    *) row note detach "$DETACH: submitted through the platform, not started by formal_run" && return 0 ;;
  esac
  # The profile says what may take the place of the first: where a platform kills it, nohup may not.
  for one in "$DETACH" "$DETACH_FALLBACK"; do
    case $one in tmux | screen | nohup) ;; *) continue ;; esac
    if detach_trial "$one"; then
      DETACH_WORKS=$one
      break
    fi
    row warn detach "$one: $REPLY"
  done
  if [[ -z $DETACH_WORKS ]]; then
    row FAIL detach "nothing works here to start a run that outlives this shell" "$EX_MISSING" "a trial session by $DETACH" "install tmux or screen"
  else row ok detach "$DETACH_WORKS: a trial session ran$([[ $DETACH_WORKS == "$DETACH" ]] || echo " (falling back from $DETACH)")"; fi
}

# Where systemd ends a user's processes at logout, a detached run dies with the last session.
check_linger() {
  local said linger kill_setting
  [[ -d ${FAKE_ROOT-}/run/systemd/system ]] && command -v loginctl >/dev/null 2>&1 || return 0
  linger=$(within 60 loginctl show-user "$(id -un)" -p Linger 2>/dev/null) || linger=''
  said=$(within 60 systemd-analyze cat-config systemd/logind.conf 2>/dev/null) || said=''
  kill_setting=$(sed -n 's/^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*//p' <<<"$said" | tail -n 1)
  case ${linger#Linger=},${kill_setting:-not set} in
    yes,*) row ok linger "lingering is on: sessions outlive a logout" ;;
    *,yes | *,true | *,1 | *,on) row warn linger "KillUserProcesses=$kill_setting and no lingering: a logout ends the run; loginctl enable-linger, or start under systemd-run --scope --user" ;;
    *) row note linger "lingering is off, KillUserProcesses is ${kill_setting:-not set}: usually fine; loginctl enable-linger makes sure" ;;
  esac
}

check_data() {
  local REPLY i path
  if [[ ! -d $CODE_DIR ]]; then
    row warn code "$CODE_DIR is not there yet"
    return 0
  fi
  code_commit
  row "$([[ $CODE_COMMIT == none ]] && echo warn || echo ok)" code "$CODE_DIR at commit $CODE_COMMIT"
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    path=$REPLY
    data_remedy "$i"
    if ! count_data "$path"; then
      row FAIL data "$path: not there, or not readable" "$EX_GATE" "find -L $path -type f" "$REPLY, or link it there"
    elif [[ $DATA_N != "${DATA_FILES[i]}" || $DATA_EMPTY == "$DATA_N" ]]; then
      row FAIL data "$path: $DATA_N files, $DATA_EMPTY of them empty; the job expects ${DATA_FILES[i]}" "$EX_GATE" "find -L $path -type f" "$REPLY"
    else
      human "$DATA_BYTES"
      check_digests "$i" "$path: $DATA_N files as expected, $REPLY on disk, $DATA_EMPTY empty"
    fi
  done
}

# Digests of little data are compared at once; of more, with --deep, for it takes its time.
check_digests() { # <index> <what is known of it>    reads: DEEP
  local REPLY rc=0
  prove_data "$1" known || rc=$?
  if ((rc == 2)) && ((DEEP == 1 || PROOF_BYTES < 2000000000)); then
    rc=0
    prove_data "$1" look || rc=$?
  fi
  case $rc in
    0) row ok data "$2${PROOF_SAID:+; $PROOF_SAID}" ;;
    2) row unknown data "$2; digests not compared yet: preflight.sh --deep, or the start does" ;;
    *)
      data_remedy "$1"
      row FAIL data "$PROOF_WHAT: $PROOF_WHY" "$EX_GATE" "sha256sum" "$REPLY"
      ;;
  esac
}

check_budget() {
  local minutes=$(((CELLS_LEFT * NEED_S + 59) / 60)) cost=''
  if [[ ${PRICE_PER_HOUR-} =~ ^[0-9]+([.][0-9]+)?$ ]]; then
    cost=$(awk -v m="$minutes" -v p="$PRICE_PER_HOUR" 'BEGIN {printf ", about %.2f at %s per hour", m / 60 * p, p}')
  fi
  row note budget "$CELLS_LEFT cells to do, about $minutes minutes one at a time$cost"
}

# The largest folders, through the links that caches often are. Bounded, for it may take long.
check_hogs() {
  local root child said
  for root in "$DATA_DIR" "$HF_HOME" "${HOME-}" "${HOME:+$HOME/.cache}" "$SCRATCH"; do
    [[ -n $root && -d $root && $root != / ]] || continue
    while IFS= read -r child; do
      [[ -n $child ]] && row note "du $root" "$child"
    done < <(for said in "$root"/* "$root"/.[!.]*; do
      [[ ! -d $said ]] || within 60 du -sk -- "$said/" 2>/dev/null || :
    done | sort -rn | head -n 3 | awk '{kb = $1; sub(/^[0-9]+[ \\t]*/, ""); printf "%.2f GB  %s\\n", kb / 1e6, $0}')
  done
}

# lib/variant.bash: is this box the one that was compiled for? What was left out may not be here, what was not must be.
# needs: exit path room checks
# reads: PROFILE JOB TIERS_IN TIERS_OUT DATA_DIR DURABLE_DIR SCRATCH HF_HOME

# Does one of our folders lie on this path?
path_is_used() { # <path>
  local one
  for one in "$DATA_DIR" "$DURABLE_DIR" "$SCRATCH" "$HF_HOME"; do
    [[ -z $one || $one/ != "${1%/}"/* ]] || return 0
  done
  return 1
}

# The command that compiles for the box as it is, into REPLY.
compile_words() { # <tier to leave out or empty> <tier to take in or empty>
  local entry name left=$1
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    name=${entry%% *}
    [[ $name == "$2" ]] || left+=${left:+,}$name
  done
  REPLY="make profile=$PROFILE job=$JOB${left:+ without=$left}"
}

# A tier of this variant: there, or a refusal where a folder of ours lies on it.
check_tier_in() { # <name> <proof> <role> <path>
  local REPLY why path=$4
  # The name of a storage that the person may not have: no refusal of ours, only a line.
  if ! (expand_path path) 2>/dev/null; then
    row FAIL "tier $1" "$4: a name in this path is not set" "$EX_CONFIG" "echo $4" "export it, then look again"
    return 0
  fi
  expand_path path
  path=${path%/}
  if prove_tier "$path" "$2"; then
    row ok "tier $1" "$path is there, by its proof ($2)"
  elif ! path_is_used "$path"; then
    row note "tier $1" "$REPLY; nothing of this run lies there"
  else
    why=$REPLY
    if [[ $3 == optional ]]; then
      compile_words "$1" ''
      row FAIL "tier $1" "$why; this box has not what it was compiled for" "$EX_COPY" "grep $path /proc/self/mountinfo" "attach it, or compile for a box without it: $REPLY"
    else row FAIL "tier $1" "$why; every box of this platform has it" "$EX_COPY" "grep $path /proc/self/mountinfo" "look at the console, and do not begin"; fi
  fi
}

# Where a tier shows that was left out, into REPLY; 1 where it does not, 2 where it cannot be told.
find_tier_out() { # <proof> <path>
  local line fields folder path=$2
  if [[ $path =~ ^(/.+)/\\$[A-Za-z_][A-Za-z0-9_]*$ ]]; then
    folder=${BASH_REMATCH[1]}
    # Under a name that only a person with such a storage knows: any mount in that folder.
    while IFS= read -r line; do
      read -ra fields <<<"$line"
      [[ ${fields[4]-} == "$folder"/* && ${fields[4]#"$folder"/} != */* ]] || continue
      REPLY=${fields[4]}
      return 0
    done 2>/dev/null <"${FAKE_ROOT-}/proc/self/mountinfo"
    return 1
  fi
  (expand_path path) 2>/dev/null || return 1
  expand_path path
  path=${path%/}
  [[ $1 != mount-parent ]] || path=${path%/*}
  if mount_type "$path"; then
    mount_kind "$REPLY"
    case $1,$REPLY in
      mount-network,local | mount-local,network) return 1 ;;
      mount-network,unknown | mount-local,unknown) REPLY=$path && return 2 ;;
    esac
  elif [[ $1 != marker || ! -s $path/.gpu-runbook-tier ]]; then
    return 1
  fi
  REPLY=$path
}

# A tier that was left out: the survival proof was done for a box without it, and the runbook says nothing of it.
check_tier_out() { # <name> <proof> <role> <path>
  local REPLY='' rc=0 found
  find_tier_out "$2" "$4" || rc=$?
  found=$REPLY
  case $rc,$3 in
    0,kept)
      compile_words '' "$1"
      row FAIL "tier $1" "$found is mounted, but this was compiled for a box without it: what it keeps and costs is not in this runbook" "$EX_GATE" "grep $found /proc/self/mountinfo" "compile with it: $REPLY; or take it off the box"
      ;;
    0,*) row note "tier $1" "$found is mounted; it was left out, and nothing of this run lies there" ;;
    2,*) row unknown "tier $1" "$found is mounted, and its file system does not tell whether it is the storage that was left out: look at the console" ;;
    *) row ok "tier $1" "left out, and not here" ;;
  esac
}

check_variant() {
  local entry name proof role path
  for entry in ${TIERS_IN[@]+"${TIERS_IN[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_in "$name" "$proof" "$role" "$path"
  done
  for entry in ${TIERS_OUT[@]+"${TIERS_OUT[@]}"}; do
    read -r name proof role path <<<"$entry"
    check_tier_out "$name" "$proof" "$role" "$path"
  done
}

# lib/checkpoint.bash: the newest complete checkpoint of a cell that is resumed (case 35), where the job says what complete means.
# needs:
# reads: CELL_DIR CKPT_PATTERN CKPT_FILES CKPT_MARKER CKPT_BYTES

# Its path into CELL_CHECKPOINT, empty where none is complete. What is not complete is named and left alone: nothing is moved
# or removed, for a trainer may know better. Newest is by the numbers in the name, 10 behind 9; without any, by time.
choose_checkpoint() { # prints
  local REPLY path key best='' IFS=
  CELL_CHECKPOINT=''
  # shellcheck disable=SC2231 # the pattern is to expand; IFS is empty, so a blank in it does not split
  for path in "$CELL_DIR"/$CKPT_PATTERN; do
    [[ -e $path && ! -L $path ]] || continue
    case $path in *.tmp | *.part | *.partial) continue ;; esac
    [[ -z $CKPT_MARKER || $path != *"$CKPT_MARKER" ]] || continue
    if ! is_complete "$path"; then
      printf 'gpu-runbook: checkpoint %s is not complete: %s; left alone\\n' "${path#"$CELL_DIR"/}" "$REPLY"
      continue
    fi
    number_key "${path#"$CELL_DIR"/}"
    key=$REPLY
    if [[ -z $CELL_CHECKPOINT || $key > $best ]] || [[ $key == "$best" && $path -nt $CELL_CHECKPOINT ]]; then
      CELL_CHECKPOINT=$path best=$key
    fi
  done
  [[ -z $CELL_CHECKPOINT ]] || printf 'gpu-runbook: newest complete checkpoint: %s\\n' "${CELL_CHECKPOINT#"$CELL_DIR"/}"
}

# All that the job says of a complete one holds; else the reason is in REPLY.
is_complete() { # <path>
  local name
  REPLY=''
  if [[ ! -d $1 ]]; then
    [[ -s $1 ]] || { REPLY='it is empty' && return 1; }
  fi
  [[ -z $CKPT_MARKER || -e $1$CKPT_MARKER || -d $1 && -e $1/$CKPT_MARKER ]] || { REPLY="there is no $CKPT_MARKER" && return 1; }
  for name in ${CKPT_FILES[@]+"${CKPT_FILES[@]}"}; do
    [[ -s $1/$name ]] || { REPLY="$name is missing or empty" && return 1; }
  done
  if ((CKPT_BYTES > 0)); then
    REPLY=$(find "$1" -type f -exec stat -c %s {} + 2>/dev/null | awk '{s += $1} END {printf "%.0f", s}') || REPLY=0
    ((REPLY >= CKPT_BYTES)) || { REPLY="$REPLY bytes, less than $CKPT_BYTES" && return 1; }
  fi
}

# The numbers in a name, each with leading zeros, so that text compares as numbers do. Into REPLY.
number_key() { # <name>
  local rest=$1 digits
  REPLY=''
  while [[ $rest =~ [0-9]+ ]]; do
    rest=${rest#*"${BASH_REMATCH[0]}"} digits=${BASH_REMATCH[0]}
    while [[ $digits == 0?* ]]; do digits=${digits#0}; done
    ((${#digits} >= 20)) || printf -v digits '%*s' 20 "$digits"
    REPLY+=${digits// /0}.
  done
}

# lib/cellenv.bash: what a cell finds in its environment, and what it must not find there.
# needs: exit log file room probe checkpoint
# reads: S HF_HOME PY MIRRORS SECRETS CRED_FILE PROXY_HOOK RUN_ID CELL CELL_INDEX ATTEMPT CELL_RESUME

# The proxy: an address is exported, a file is sourced. Strict mode is lifted around the file only, for it is not ours;
# then its effect is looked at. To be called in the shell that becomes the cell.
load_proxy() { # returns: 0, or 77 with the reason in REPLY
  REPLY=''
  case $PROXY_HOOK in
    '') return 0 ;;
    http://* | https://*)
      export http_proxy=$PROXY_HOOK https_proxy=$PROXY_HOOK HTTP_PROXY=$PROXY_HOOK HTTPS_PROXY=$PROXY_HOOK
      export no_proxy=${no_proxy:-localhost,127.0.0.1} NO_PROXY=${NO_PROXY:-localhost,127.0.0.1}
      return 0
      ;;
  esac
  local file=$PROXY_HOOK flags=$- rc=0
  expand_path file
  [[ -f $file && -r $file ]] || { REPLY="$file is not there" && return "$EX_GATE"; }
  set +euo pipefail
  # shellcheck source=/dev/null # the platform's own file
  source "$file" >/dev/null 2>&1 </dev/null
  rc=$?
  set -uo pipefail
  [[ $flags != *e* ]] || set -e
  IFS=$' \\t\\n'
  if [[ -z ${http_proxy-}${https_proxy-}${HTTP_PROXY-}${HTTPS_PROXY-}${all_proxy-}${ALL_PROXY-} ]]; then
    REPLY="$file ended with $rc and set no proxy variable"
    return "$EX_GATE"
  fi
  # Set is not exported: what the file only assigned is to reach the cell too.
  for REPLY in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY; do
    [[ -z ${!REPLY-} ]] || export "${REPLY?}"
  done
  REPLY=''
}

# Caches and temporary files on this run's scratch, so that nothing fills the small system disk. What a person set stays.
cache_env() {
  local c=$S/cache
  export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$c} TORCH_HOME=${TORCH_HOME:-$c/torch} TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$c/torch_extensions}
  export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$c/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$c/triton}
  export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$c/cuda} NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$c/numba} MPLCONFIGDIR=${MPLCONFIGDIR:-$c/matplotlib}
  export WANDB_DIR=${WANDB_DIR:-$CELL_DIR} WANDB_CACHE_DIR=${WANDB_CACHE_DIR:-$c/wandb} WANDB_DATA_DIR=${WANDB_DATA_DIR:-$c/wandb-data}
  export WANDB_ARTIFACT_DIR=${WANDB_ARTIFACT_DIR:-$c/wandb-artifacts} WANDB_CONFIG_DIR=${WANDB_CONFIG_DIR:-$c/wandb-config}
  export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$c/pip} KERAS_HOME=${KERAS_HOME:-$c/keras} TFHUB_CACHE_DIR=${TFHUB_CACHE_DIR:-$c/tfhub}
  # Byte code beside the sources would be an output that cells share.
  export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$c/pycache}
  if [[ -n $HF_HOME ]]; then
    export HF_HOME
    export HF_HUB_CACHE=${HF_HUB_CACHE:-$HF_HOME/hub} HF_DATASETS_CACHE=${HF_DATASETS_CACHE:-$HF_HOME/datasets}
  else
    # None: the library's own default, which is below XDG_CACHE_HOME and so on scratch, not in the home folder.
    unset HF_HOME
  fi
  # Short on purpose: sockets of worker processes lie in it, and their whole path has about 100 characters.
  export TMPDIR=$S/t/$CELL_INDEX
  export TMP=$TMPDIR TEMP=$TMPDIR
  export SCRATCH=$S
}

# How many threads numeric libraries may start, where nobody has said it: what this box lets us use, never all it has.
thread_env() {
  if [[ -z ${OMP_NUM_THREADS-} ]]; then
    probe_cpus
    export OMP_NUM_THREADS=$CPUS
  fi
  export OMP_NUM_THREADS MKL_NUM_THREADS=${MKL_NUM_THREADS:-$OMP_NUM_THREADS} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-$OMP_NUM_THREADS}
  export NUMEXPR_NUM_THREADS=${NUMEXPR_NUM_THREADS:-$OMP_NUM_THREADS} NUMEXPR_MAX_THREADS=${NUMEXPR_MAX_THREADS:-$OMP_NUM_THREADS}
}

# All of it. To be called in the shell that becomes the cell.
cell_env() { # returns: 0, or 77 with the reason in REPLY
  local one i
  unset OVERRIDES_SAID HASH_TOOL ENV_SPEC QUEUE_AT QUEUE_CELL QUEUE_COMMAND QUEUE_SHA QUEUE_PID
  export CELL_NAME=$CELL CELL_INDEX CELL_DIR CELL_ATTEMPT=$ATTEMPT CELL_RESUME RUN_ID PY
  export PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1}
  unset CELL_CHECKPOINT
  # Only where the job says what a complete one is; else the trainer loads the latest that it can read.
  if [[ -n ${CKPT_PATTERN-} && $CELL_RESUME == 1 ]]; then
    choose_checkpoint
    export CELL_CHECKPOINT
  fi
  # By this mark the cell's processes are found again, wherever they went.
  export GPU_RUNBOOK_CELL=$RUN_ID/$CELL/$ATTEMPT
  for one in ${MIRRORS[@]+"${MIRRORS[@]}"}; do
    # Where a person set the variable, theirs counts.
    i=${one%%=*}
    [[ -n ${!i-} ]] || export "${one?}"
  done
  cache_env
  thread_env
  # The monitor's numbering for CUDA too. A value that a scheduler or a person gave stays, with its own order.
  [[ -n ${CUDA_VISIBLE_DEVICES-} ]] || export CUDA_DEVICE_ORDER=PCI_BUS_ID
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do export "${SECRET_NAMES[i]}=${SECRET_VALUES[i]}"; done
  load_proxy
}

# lib/envcheck.bash: is the environment the one that the job means? (X9) For preflight: once for each start, not for each cell.
# needs: exit log envspec cellenv probe
# Three tiers: it imports; its kernels run and say what is expected; what the documentation says to type works.
# reads: CODE_DIR PY S ENV_IMPORTS ENV_TIERS ENV_COMMANDS ENV_EXPECTS ENV_TIMEOUT_S, and the function row of lib checks

readonly ENV_TIMEOUT_S=300 # the first import from a network disk may take minutes

check_environment() {
  local REPLY i
  ((${#ENV_IMPORTS[@]} + ${#ENV_COMMANDS[@]} > 0)) || return 0
  if [[ ! -d $CODE_DIR ]]; then
    row unknown environment "not looked at: $CODE_DIR is not there yet"
    return 0
  fi
  # Preflight's end takes it along, however that comes.
  ENV_WORK=$(mktemp -d /tmp/gpu-runbook.XXXXXX) || ENV_WORK=''
  if [[ -z $ENV_WORK ]] || ! mkdir -p "$ENV_WORK/t/0"; then
    row FAIL environment "no folder for trials can be made in /tmp" "$EX_NOROOM" "mktemp -d /tmp/gpu-runbook.XXXXXX" "look at its room and rights"
    return 0
  fi
  check_imports "$ENV_WORK"
  for ((i = 0; i < ${#ENV_COMMANDS[@]}; i++)); do
    check_witness "$ENV_WORK" "$i"
  done
  rm -rf -- "${ENV_WORK:?}"
  # Eight digits in each cell's log name what was looked at here.
  describe_environment
  hash_text "$REPLY" && row note environment "spec ${REPLY:0:8}, as the cells' logs will name it"
}

# The words as a cell would run them: code directory, proxy, mirrors, interpreter; caches and temporary files in a folder that
# goes. All they print is the answer.
as_a_cell() { # <folder> <words...>    prints; returns: their status, 124 over time
  local CELL=preflight CELL_INDEX=0 ATTEMPT=1 CELL_RESUME=0 RUN_ID=none CELL_DIR=$1 S=$1 run=()
  local CKPT_PATTERN='' CKPT_MARKER='' CKPT_BYTES=0
  local -a SECRET_NAMES=() SECRET_VALUES=() CKPT_FILES=()
  shift
  if command -v timeout >/dev/null 2>&1; then run=(timeout "$ENV_TIMEOUT_S"); fi
  (
    cell_env || { printf '%s\\n' "$REPLY" && exit "$EX_GATE"; }
    unset GPU_RUNBOOK_CELL
    cd -- "$CODE_DIR" || exit
    exec ${run[@]+"${run[@]}"} "$@"
  ) </dev/null 2>&1
}

# Tier 1: each package that the job names is imported, by the job's interpreter, all in one process.
check_imports() { # <folder>
  local said rc=0
  ((${#ENV_IMPORTS[@]} > 0)) || return 0
  said=$(as_a_cell "$1" "$PY" -c 'import importlib, sys
bad = []
said = []
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        said.append((name + " " + str(getattr(module, "__version__", ""))).strip())
    except BaseException as why:
        bad.append("%s: %s: %s" % (name, type(why).__name__, str(why).split("\\n")[0]))
print("\\n" + ("missing " + "; ".join(bad) if bad else "imports " + ", ".join(said)))' "${ENV_IMPORTS[@]}") || rc=$?
  said=${said##*$'\\n'}
  if ((rc == 0)) && [[ $said == 'imports '* ]]; then
    row ok 'env imports' "${said#imports }"
  else
    row FAIL 'env imports' "${said#missing } (status $rc)" "$EX_GATE" "$PY -c 'import \u2026'" "install it into the environment of PY=$PY, or set PY to the right one"
  fi
}

# Tiers 2 and 3: the command ends with 0, and a line of what it prints matches. A check that cannot be made has failed.
check_witness() { # <folder> <index>
  local said rc=0 match='' last=nothing what=${ENV_TIERS[$2]} command=${ENV_COMMANDS[$2]} expect=${ENV_EXPECTS[$2]} line
  said=$(as_a_cell "$1" "$BASH" -c "$command" | tail -c 65536 | tr -d '\\000') || rc=$?
  while IFS= read -r line; do
    line=${line%$'\\r'}
    [[ -z $line ]] || last=$line
    if [[ -z $match && $line =~ $expect ]] 2>/dev/null; then match="said: $line"; fi
  done <<<"$said"
  if ((rc == 0)) && [[ -n $match ]]; then
    row ok "env $what" "$match"
    return 0
  fi
  case $rc in
    0) said="no line of its answer matches $expect; the last one: $last" ;;
    124) said="no end after $ENV_TIMEOUT_S s" ;;
    *) said="status $rc; its last line: $last" ;;
  esac
  line='mend the environment, or the documentation where it is wrong'
  [[ $what != kernel ]] || line='device, driver and packages do not fit: compare their versions, or take an image that fits'
  row FAIL "env $what" "$said" "$EX_GATE" "$command" "$line"
}

usage() {
  cat <<'USAGE'
usage: preflight.sh [--deep] [--json]

Looks at this box and prints one table and one verdict. It changes nothing but for small trial files in /tmp. Looked at:
tools and their versions, the interpreter, CPUs (nproc, affinity, cgroup quota), memory (machine and cgroup), GPUs,
bytes and inodes of each tier, whether the durable tier is really attached and the box has the storage that it was
compiled for (and none that was left out), declared data, and whether a detached session really runs here. What cannot be looked at is 'unknown', never 'ok'.

--deep  also the largest folders, through symbolic links (du), and digests of declared data above 2 GB: may take minutes
--json  the same table as JSON

What the job declares under environment (imports, a kernel that runs, documentation that holds) is run as a cell would be, with
caches in a folder in /tmp that goes again.

PRICE_PER_HOUR=\u2026 adds the cost to the budget line.
exit codes: 0 nothing failed (warnings may stand there), else of the first FAIL: 69 missing, 73 no room, 74 the durable
tier, 77 not met; 64 usage, 78 configuration
USAGE
}

print_table() {
  local i
  printf 'preflight: %s, job %s\\n' "$TITLE" "$JOB"
  for ((i = 0; i < ${#ROWS_CHECK[@]}; i++)); do
    printf '  %-8s %-14s %s\\n' "${ROWS_VERDICT[i]}" "${ROWS_CHECK[i]}" "${ROWS_VALUE[i]}"
    [[ ${ROWS_VERDICT[i]} != FAIL || -z ${ROWS_REMEDY[i]} ]] || printf '  %-8s %-14s %s\\n' '' 'what to do' "${ROWS_REMEDY[i]} (looked by: ${ROWS_COMMAND[i]})"
  done
  for ((i = 0; i < ${#CLOCKS[@]}; i++)); do
    printf '  %-8s %-14s %s\\n' clock "$((i + 1))" "${CLOCKS[i]}"
  done
}

print_json() { # <verdict> <failed> <warned> <unknown>
  local REPLY i comma=,
  record_open preflight/1
  record_text profile "$PROFILE"
  record_text job "$JOB"
  record_text verdict "$1"
  record_int failed "$2"
  record_int warned "$3"
  record_int unknown "$4"
  record_int cpus "$CPUS"
  record_int ram_free_bytes "$RAM_FREE"
  record_int gpus "$GPU_COUNT"
  record_int workers "$WORKERS"
  record_int threads "$THREADS"
  record_text detach "$DETACH_WORKS"
  RECORD+=$',\\n  "checks": [\\n'
  for ((i = 0; i < ${#ROWS_CHECK[@]}; i++)); do
    ((i + 1 < ${#ROWS_CHECK[@]})) || comma=''
    RECORD+='    {"verdict": "'${ROWS_VERDICT[i]}'", "check": "'
    record_fit "${ROWS_CHECK[i]}"
    RECORD+=$REPLY'", "value": "'
    record_fit "${ROWS_VALUE[i]}"
    RECORD+=$REPLY'"'
    if [[ ${ROWS_VERDICT[i]} == FAIL ]]; then
      record_fit "${ROWS_COMMAND[i]}"
      RECORD+=', "command": "'$REPLY
      record_fit "${ROWS_REMEDY[i]}"
      RECORD+='", "remedy": "'$REPLY'"'
    fi
    RECORD+='}'$comma$'\\n'
  done
  RECORD+='  ]'
  record_close
  printf '%s' "$RECORD"
}

# The trials' folders in /tmp, where we are ended in the midst of one.
clean_trials() { # <status>
  local dir
  for dir in "$DETACH_DIR" "$ENV_WORK"; do [[ -z $dir ]] || rm -rf -- "$dir"; done
  exit "$1"
}

main() {
  local json=0 i failed=0 warned=0 unknown=0 verdict=ok
  DEEP=0
  while (($#)); do
    case $1 in
      -h | --help) usage && return 0 ;;
      --deep) DEEP=1 ;;
      --json) json=1 ;;
      *) usage >&2 && return "$EX_USAGE" ;;
    esac
    shift
  done
  ROWS_VERDICT=() ROWS_CHECK=() ROWS_VALUE=() ROWS_COMMAND=() ROWS_REMEDY=() VERDICT_CODE=0 DETACH_DIR='' ENV_WORK=''
  trap 'clean_trials $?' EXIT
  run_places asked
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  check_tools
  check_cpu_ram
  check_gpus
  check_disks
  check_variant
  check_region
  check_data
  check_environment
  check_detach
  check_linger
  check_budget
  ((DEEP == 0)) || check_hogs
  for ((i = 0; i < ${#ROWS_VERDICT[@]}; i++)); do
    case ${ROWS_VERDICT[i]} in
      FAIL) failed=$((failed + 1)) ;;
      warn) warned=$((warned + 1)) ;;
      unknown) unknown=$((unknown + 1)) ;;
    esac
  done
  ((failed == 0)) || verdict=FAIL
  if ((json)); then print_json "$verdict" "$failed" "$warned" "$unknown"; else
    print_table
    printf 'verdict: %s (%s failed, %s warnings, %s unknown)\\n' "$verdict" "$failed" "$warned" "$unknown"
  fi
  return "$VERDICT_CODE"
}

lr0.1_w32\t"$PY" train.py --lr 0.1 --width 32 --epochs 12 --pace 0.25 --out "$CELL_DIR"
lr0.1_w64\t"$PY" train.py --lr 0.1 --width 64 --epochs 12 --pace 0.25 --out "$CELL_DIR"
lr0.01_w32\t"$PY" train.py --lr 0.01 --width 32 --epochs 12 --pace 0.25 --out "$CELL_DIR"
lr0.01_w64\t"$PY" train.py --lr 0.01 --width 64 --epochs 12 --pace 0.25 --out "$CELL_DIR"

#!/usr/bin/env bash
# run_one.sh: run one cell to a checked result; resume it if an earlier attempt left a checkpoint.
# Generated; do not edit. Source: templates/box/run_one.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=run_one.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/kaggle/temp/hf}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# seconds between our signal and the kill: save_s + 10
readonly GRACE_S=12
# the platform's warning signal
readonly SIGNAL=none
# the same behind the platform's own signal: save_s + 10
readonly SIGNAL_GRACE_S=12
# seconds for one attempt; 0: no limit
readonly WALL_S=600
# seconds without a sign of life; 0: no limit
readonly STALL_S=120
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# what a finished cell has, relative to CELL_DIR
readonly -a REQUIRED=(
  best.pth
  best_metrics.json
)
# what may go once a cell is synced
readonly -a PRUNE=(
  latest.pth
)
# names of variables, never values
readonly -a SECRETS=()
# mirrors, exported to every cell
readonly -a MIRRORS=()
# checkpoints, relative to CELL_DIR; empty: not said
readonly CKPT_PATTERN=''
# what a complete one holds
readonly -a CKPT_FILES=()
# what is written last, in it or behind its name
readonly CKPT_MARKER=''
# the least that it holds
readonly CKPT_BYTES=0
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# and how many bytes; empty: not said
readonly -a DATA_SIZES=()
# and its digest, where it is one file
readonly -a DATA_SUMS=()
# and the list of its digests, relative to the code
readonly -a DATA_LISTS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# --- end of bound values ---

# An output that is closed is none, and a reader that went away ends nobody. What is started has the usual PIPE.
open_outputs() {
  : 9>&2 || exec 2>/dev/null
  : 2>/dev/null 9>&1 || exec >/dev/null
  trap : PIPE
}

# What a trap has to say: the wait that it came into has its stderr turned away, so it is said behind that.
say_late() { # reads: LATE
  [[ -z ${LATE-} ]] || log "$LATE"
  LATE=''
}

# The place of a cell in QUEUE_NAMES, into REPLY.
queue_index() { # <cell>    returns: 1 where it is not there
  for ((REPLY = 0; REPLY < ${#QUEUE_NAMES[@]}; REPLY++)); do
    [[ ${QUEUE_NAMES[REPLY]} != "$1" ]] || return 0
  done
  REPLY=''
  return 1
}

# By what an environment that was described before is known again, without its interpreter: the driver, what decides where
# packages are looked for, and how the interpreter and those folders lie there (a package that comes or goes changes its
# folder). Into REPLY; empty where it cannot be told: a script in the interpreter's place may start another one each time.
environment_key() { # <folders, a line each>
  begin_key "$1"
  end_key
}
# The two halves of it: the look runs beside us, while something else is done.
begin_key() { # <folders>    sets KEY_FD KEY_HEAD KEY_PATHS for end_key
  local REPLY path head=''
  KEY_FD=''
  path=$(type -P "$PY") && [[ -n $1 ]] || return 0
  { IFS= read -r -n 2 head <"$path"; } 2>/dev/null || :
  [[ $head != '#!' ]] || return 0
  gpu_driver
  KEY_HEAD="$REPLY|$PY|${PYTHONPATH-}|${PYTHONHOME-}|${PYTHONUSERBASE-}|${PYTHONNOUSERSITE-}"
  KEY_PATHS=("$path" "${path%/*}/../pyvenv.cfg")
  while IFS= read -r path; do KEY_PATHS+=("$path"); done <<<"$1"
  begin_stat "${KEY_PATHS[@]}"
  KEY_FD=$STAT_FD
}
end_key() { # into REPLY
  local path
  REPLY=''
  [[ -n $KEY_FD ]] || return 0
  STAT_FD=$KEY_FD KEY_FD=''
  end_stat
  REPLY=$KEY_HEAD
  for path in "${KEY_PATHS[@]}"; do REPLY+=$'\\n'"$path"$'\\t'"${STAT_OF[$path]-}"; done
}

# The digest of the description that the run has, if that is still true of this environment. Into REPLY.
known_environment() { # returns: 0, or 1: ask the interpreter
  [[ -n ${KNOWN_SPEC-} ]] || begin_known || return 1
  end_key
  [[ -n $REPLY && $REPLY == "$KNOWN_KEY" ]] && REPLY=$KNOWN_SPEC
}
begin_known() { # sets KNOWN_SPEC KNOWN_KEY    returns: 1 where the run has none
  local REPLY path where=''
  read_text "$D/.environment.key" && [[ $REPLY =~ ^[0-9a-f]{8}$'\\n' && -s $D/environment.txt ]] || return 1
  KNOWN_SPEC=${REPLY%%$'\\n'*} KNOWN_KEY=${REPLY#*$'\\n'}
  # The folders are its lines behind the first three: the settings, the interpreter, its pyvenv.cfg.
  while IFS= read -r path; do where+=${path%$'\\t'*}$'\\n'; done <<<"$KNOWN_KEY"
  where=${where#*$'\\n'*$'\\n'*$'\\n'}
  begin_key "${where%$'\\n'}"
}

# The digest into ENV_SPEC, the description into D/environment.txt. A run that goes on in another environment says so.
env_spec() {
  local REPLY text key='' before=''
  [[ ! ${ENV_SPEC-} =~ ^[0-9a-f]{8}$ ]] || return 0
  if known_environment; then
    ENV_SPEC=$REPLY
    return 0
  fi
  # Wherever this is cut off, no key stands beside a text that is not its own: none first, the new one last.
  put_text "$D/.environment.key" '' || :
  describe_environment
  text=$REPLY
  environment_key "$ENV_FOLDERS"
  key=$REPLY
  ENV_SPEC=unknown
  hash_text "$text" && ENV_SPEC=${REPLY:0:8}
  ! read_text "$D/environment.txt" || before=$REPLY
  if [[ $before != "$text" ]]; then
    [[ -z $before ]] || log "the environment is another one than this run began in: now $ENV_SPEC, see $D/environment.txt and events.tsv"
    event environment - - "$ENV_SPEC"
    put_text "$D/environment.txt" "$text" || { log "could not write $D/environment.txt" && return 0; }
  fi
  [[ -z $key || $ENV_SPEC == unknown ]] || put_text "$D/.environment.key" "$ENV_SPEC"$'\\n'"$key" || :
}

read_cpu_v2() { # <folder>
  local quota period
  first_line "$1/cpu.max" || return 0
  read -r quota period <<<"$REPLY"
  [[ $quota =~ ^[0-9]+$ && ${period:-0} -gt 0 ]] || return 0
  keep_quota "$quota" "$period"
}
read_cpu_v1() { # <folder>
  local quota
  first_line "$1/cpu.cfs_quota_us" || return 0
  quota=$REPLY
  first_line "$1/cpu.cfs_period_us" || return 0
  [[ $quota =~ ^[1-9][0-9]*$ && $REPLY =~ ^[1-9][0-9]*$ ]] || return 0
  keep_quota "$quota" "$REPLY"
}
keep_quota() { # <quota> <period>    the smallest, in hundredths of a CPU
  local hundredths=$(($1 * 100 / $2))
  [[ -n $CPU_QUOTA && $CPU_QUOTA -le $hundredths ]] || CPU_QUOTA=$hundredths
}
# CPU_NPROC CPU_AFFINITY CPU_QUOTA (hundredths) and the smallest of them, CPUS; empty = cannot be read.
probe_cpus() {
  local line path root=${FAKE_ROOT-}/sys/fs/cgroup
  CPU_NPROC='' CPU_AFFINITY='' CPU_QUOTA='' CPUS=''
  # nproc believes OMP_NUM_THREADS; this is about the machine.
  CPU_NPROC=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && exec nproc 2>/dev/null) || CPU_NPROC=''
  [[ $CPU_NPROC =~ ^[0-9]+$ ]] || CPU_NPROC=''
  while IFS= read -r line; do
    [[ $line == Cpus_allowed_list:* ]] || continue
    count_list "${line##*[[:space:]]}"
    CPU_AFFINITY=$REPLY
  done 2>/dev/null <"${FAKE_ROOT-}/proc/self/status"
  if cgroup_path ''; then cgroup_walk "$root" "$REPLY" read_cpu_v2; fi
  if cgroup_path cpu; then
    path=$REPLY
    for line in cpu cpu,cpuacct; do cgroup_walk "$root/$line" "$path" read_cpu_v1; done
  fi
  for line in "$CPU_NPROC" "$CPU_AFFINITY" "${CPU_QUOTA:+$((CPU_QUOTA / 100))}"; do
    [[ -z $line || (-n $CPUS && $CPUS -le $line) ]] || CPUS=$line
  done
  CPUS=${CPUS:-1}
  ((CPUS > 0)) || CPUS=1
}

# A person says that HOST is gone: its claims are dead from now on, also for calls without --adopt.
bury_host() { # <host>
  mkdir -p -- "$D/claims/.gone" && : >"$D/claims/.gone/${1//\\//_}" || return "$EX_COPY"
  event adopt - - "claims of $1 are dead"
}

# Take the next attempt after CLAIM_N; what else must be on its disk before the cell begins is flushed with it. Sets ATTEMPT,
# CLAIM_FILE and MY_TICKS.
take_claim() { # <cell> [paths...]    returns: 0, 75 somebody was quicker, 73 it cannot be written, 74 it cannot be flushed
  local REPLY dir=$D/claims/$1 file line back=''
  shift
  [[ -d $dir ]] || mkdir -p -- "$dir" 2>/dev/null || return "$EX_NOROOM"
  ATTEMPT=$((CLAIM_N + 1))
  printf -v file '%s/%03d' "$dir" "$ATTEMPT"
  start_ticks $$ || return "$EX_MISSING"
  MY_TICKS=$REPLY
  this_host
  line=$REPLY
  this_boot_id
  line+=" $REPLY $$ $MY_TICKS"
  set -C
  { printf '%s\\n' "$line" >"$file"; } 2>/dev/null || :
  set +C
  { IFS= read -r back <"$file"; } 2>/dev/null || :
  if [[ $back != "$line" ]]; then
    # Not there: no room or no right. There and empty: somebody is just writing it, or our own write found no room.
    [[ -s $file ]] || { [[ -e $file ]] && can_write "$dir"; } || return "$EX_NOROOM"
    return "$EX_BUSY"
  fi
  CLAIM_FILE=$file
  flush "$@" "$file" "$dir" || { withdraw_claim && return "$EX_COPY"; }
}

# A claim under which nothing was begun yet is as if it had never been.
withdraw_claim() {
  rm -f -- "$CLAIM_FILE"
}

# A tier that was mounted read-only, or became it, is no cell's affair: refused by its name, before anything is begun.
gate_write() { # reads: D B    refuses 73, 74
  [[ -w $D ]] || can_write "$D" || refuse_write "$EX_NOROOM" "$D" "nothing can be written there" data
  [[ $B == "$D" || -w $B ]] || can_write "$B" || refuse_write "$EX_COPY" "$B" "nothing can be written there" durable
}

# Secrets into SECRET_NAMES and SECRET_VALUES: from the file's NAME=value lines, for the job's names only.
# The file is read, never sourced; a value is printed nowhere.
read_secrets() { # returns: 0, or refuses 77, 78
  local line name mode file=$CRED_FILE
  SECRET_NAMES=() SECRET_VALUES=()
  ((${#SECRETS[@]} > 0)) || return 0
  expand_path file
  if [[ -n $file && -e $file ]]; then
    [[ -f $file && -r $file ]] || refuse "$EX_GATE" "CRED_FILE=$file" "it cannot be read" "make it a file of yours with mode 600"
    mode=$(stat -L -c %a -- "$file" 2>/dev/null) || mode=unknown
    [[ $mode =~ 00$ ]] || refuse "$EX_GATE" "CRED_FILE=$file" "others may read it (mode $mode)" "chmod 600 $file"
    while IFS= read -r line || [[ -n $line ]]; do
      line=${line%$'\\r'}
      [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] || continue
      take_secret "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
    done <"$file"
  fi
  for name in "${SECRETS[@]}"; do
    [[ " ${SECRET_NAMES[*]-} " != *" $name "* ]] || continue
    if [[ -n ${!name-} ]]; then
      SECRET_NAMES+=("$name") SECRET_VALUES+=("${!name}")
    elif [[ -n $file ]]; then
      refuse "$EX_GATE" "secret $name" "it stands neither in CRED_FILE=$file nor in the environment" "bring it (P1.6 in the runbook; push.sh --secrets where there is ssh), or set CRED_FILE= (empty) to go without"
    else
      log "warning: secret $name is not set, and CRED_FILE is empty"
    fi
  done
}
take_secret() { # <name> <value>
  local name value=$2
  for name in "${SECRETS[@]}"; do
    [[ $name == "$1" ]] || continue
    case $value in
      \\"*\\" | \\'*\\') value=${value:1:${#value}-2} ;;
    esac
    SECRET_NAMES+=("$name") SECRET_VALUES+=("$value")
  done
}

# Does a log hold the value of a secret? Names it, never the value; the value is on no command line either.
find_leaks() { # <file>    into LEAKS
  local i
  LEAKS=''
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    # A very short value would be found everywhere.
    ((${#SECRET_VALUES[i]} >= 6)) || continue
    if printf '%s\\n' "${SECRET_VALUES[i]}" | grep -qFf - -- "$1" 2>/dev/null; then LEAKS+=" ${SECRET_NAMES[i]}"; fi
  done
  LEAKS=${LEAKS# }
}

# The hook is tried before anything is claimed: what it does to a shell, it does to one that is thrown away.
prove_proxy() { # refuses 77
  local why rc=0
  [[ -n $PROXY_HOOK && $PROXY_HOOK != http://* && $PROXY_HOOK != https://* ]] || return 0
  why=$(
    set +e
    trap 'printf "%s" "${REPLY:-the file ended the shell that sourced it}"' EXIT
    load_proxy
    rc=$?
    ((rc != 0)) || { trap - EXIT && printf ok; }
    exit "$rc"
  ) || rc=$?
  [[ $why == ok ]] || refuse "$EX_GATE" "PROXY_HOOK=$PROXY_HOOK" "${why:-status $rc}" "mend it, or set PROXY_HOOK= (empty) to go without"
}

# By this mark we know scratch as this run's own, and only then is it ever emptied.
mark_scratch() {
  [[ -s $S/.gpu-runbook-scratch ]] || put_text "$S/.gpu-runbook-scratch" "$RUN_ID"$'\\n'
}

# No descriptor of ours goes to the cell: not a lock, not a pipe.
close_descriptors() {
  local fd path
  for path in "/proc/$BASHPID/fd"/*; do
    fd=${path##*/}
    [[ $fd =~ ^[0-9]+$ ]] || continue
    ((fd <= 2)) || { exec {fd}>&-; } 2>/dev/null || :
  done
}

# Declared data is there, before each cell: how many files it holds the formal gates count once. What has no digest costs no
# process where it is a file.
gate_inputs() {
  local REPLY i place
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    data_place "$i"
    place=$REPLY
    data_remedy "$i"
    [[ -e $place ]] || refuse "$EX_GATE" "data $place" "it is not there" "$REPLY, or link it there"
    [[ ! -d $place || -n $(find -L "$place" -mindepth 1 -print 2>/dev/null | head -n 1) ]] || refuse "$EX_GATE" "data $place" "the folder is empty" "$REPLY"
    gate_proof "$i"
  done
}
gate_proof() { # <index>    refuses 77
  local REPLY
  prove_data "$1" now && return 0
  data_remedy "$1"
  refuse "$EX_GATE" "$PROOF_WHAT" "$PROOF_WHY" "$REPLY"
}

# lib/limits.bash: what a box refuses a cell: memory kills, room, GPUs.
# needs: exit log file room probe

# How often the kernel has killed in our cgroup for want of memory, into REPLY; empty = cannot be told.
oom_count() {
  local root=${FAKE_ROOT-}/sys/fs/cgroup path='' file name value rest
  REPLY=''
  if cgroup_path memory; then
    # Version 1. In a container the path may be the host's: then the mount's own root is ours.
    for path in "$REPLY" ''; do
      file=$root/memory${path%/}/memory.oom_control
      [[ ! -r $file ]] || break
    done
  elif cgroup_path ''; then
    for path in "$REPLY" ''; do
      file=$root${path%/}/memory.events
      [[ ! -r $file ]] || break
    done
  fi
  REPLY=''
  [[ -n ${file-} && -r $file ]] || return 0
  while read -r name value rest; do
    [[ $name != oom_kill || ! $value =~ ^[0-9]+$ ]] || REPLY=$value
  done <"$file"
}

# The look at the room of both tiers, which gate_cell_room takes up.
begin_room() { # reads: D B    sets ROOM_TIERS
  ROOM_TIERS=("$D")
  [[ $B == "$D" ]] || ROOM_TIERS+=("$B")
  begin_look_room "${ROOM_TIERS[@]}"
}

# The room that one cell needs must be there before it starts, and a tier that cannot be written and flushed is no room either:
# df says nothing of quotas and dead mounts. What is written is room kept for the cell's records (keep_room). The flush is the
# claim's own. Refuses 73; sets PROBES.
gate_cell_room() { # reads: D B NEED_DISK_BYTES NEED_FILES
  local i
  end_look_room "${ROOM_TIERS[@]}"
  for ((i = 0; i < ${#ROOM_TIERS[@]}; i++)); do
    [[ -z ${ROOM_BYTES[i]} || ${ROOM_BYTES[i]} -ge $NEED_DISK_BYTES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_BYTES[i]} bytes are free, one cell needs $NEED_DISK_BYTES" "free room there or expand the disk; nothing is shrunk or removed for it"
    [[ -z ${ROOM_INODES[i]} || ${ROOM_INODES[i]} -ge $NEED_FILES ]] ||
      refuse "$EX_NOROOM" "${ROOM_TIERS[i]}" "${ROOM_INODES[i]} inodes are free, one cell needs $NEED_FILES" "remove small files there, or take a disk with more inodes"
  done
  write_probes
}

PROBES=() PROBED=0
# A probe for each tier. Each lies where the cell's record will be written next.
write_probes() {
  local file
  PROBED=0 PROBES=("$D/state/.$CELL.json.$$.tmp")
  [[ $B == "$D" ]] || PROBES+=("$B/records/.$CELL.json.$$.tmp")
  printf -v PROBE_TEXT '%0*d' "$PROBE_BYTES" 0
  for file in "${PROBES[@]}"; do
    { printf '%s' "$PROBE_TEXT" >"$file"; } 2>/dev/null || refuse_probe "$file"
  done
}
# More than a record has, and two blocks of most disks.
readonly PROBE_BYTES=8192

# Behind the flush: do they read back?
read_probes() { # returns: 0, or 1 with the probe's name in REPLY
  local file
  for file in "${PROBES[@]}"; do
    read_text "$file" && [[ $REPLY == "$PROBE_TEXT" ]] || { REPLY=$file && return 1; }
  done
}
refuse_probe() { # <probe>
  drop_room
  refuse "$EX_NOROOM" "${1%/*}" "a probe file cannot be written, flushed and read back" "look at the disk: full, read-only, or gone"
}

# What was made for a cell that does not begin, or that needs it no more.
drop_room() {
  ((${#PROBES[@]} == 0)) || rm -f -- "${PROBES[@]}" 2>/dev/null || :
  [[ ! -d ${STAGE:-/dev/null} ]] || rmdir -- "$STAGE" 2>/dev/null || :
}

# Room for the next record, under the very name that it will be written by: a disk that the cell fills has none left else.
keep_room() { # reads: D CELL
  [[ ! -s $D/state/.$CELL.json.$$.tmp ]] || return 0
  printf '%0*d' "$PROBE_BYTES" 0 2>/dev/null >"$D/state/.$CELL.json.$$.tmp" || :
}

# The GPUs that the job needs are there. Sets GPU_SAID ("name, driver") for the record.
gate_gpus() { # reads: NEED_GPUS
  local line fields visible
  GPU_SAID=''
  ((NEED_GPUS > 0)) || return 0
  probe_gpus
  if [[ $GPU_STATE != ok ]]; then
    [[ -e /dev/kfd || -e /dev/accel ]] && return 0 # another maker's: no nvidia-smi to ask
    refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS and none is seen here: $GPU_WHY" "look with nvidia-smi; restart the box, or rent one with GPUs"
  fi
  ((GPU_COUNT >= NEED_GPUS)) || refuse "$EX_GATE" "GPUs" "a cell needs $NEED_GPUS, here are $GPU_COUNT" "rent a box with enough of them"
  if [[ -n ${CUDA_VISIBLE_DEVICES-} ]]; then
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    ((${#visible[@]} >= NEED_GPUS)) || refuse "$EX_GATE" "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "a cell needs $NEED_GPUS GPUs" "name as many, or unset it"
  fi
  line=${GPU_LINES[0]}
  if [[ ${visible[0]-} =~ ^[0-9]+$ && -n ${GPU_LINES[${visible[0]}]-} ]]; then line=${GPU_LINES[${visible[0]}]}; fi
  IFS=, read -ra fields <<<"$line"
  GPU_SAID="${fields[1]# },${fields[2]}"
  note_busy_gpus ${visible[@]+"${visible[@]}"}
}

# A GPU that is not free has another cell on it, or somebody else. It is said, not refused: two cells may share one.
note_busy_gpus() { # <numbers or UUIDs of the cell's GPUs; none: all are its own>
  local line fields
  for line in "${GPU_LINES[@]}"; do
    IFS=, read -ra fields <<<"${line// /}"
    (($# == 0)) || [[ " $* " == *" ${fields[0]} "* ]] || continue
    [[ ! ${fields[4]-} =~ ^[0-9]+$ || ${fields[4]} -le $GPU_FREE_MIB ]] || log "GPU ${fields[0]} is not free: ${fields[4]} MiB are in use before cell $CELL begins"
  done
}

# lib/group.bash: a cell's processes as one thing: started in a group of their own, told once, killed after the grace, none left.
# needs: exit log file proc idle
# reads: GRACE_S SIGNAL SIGNAL_GRACE_S WALL_S STALL_S D CELL CELL_DIR CELL_LOG RUN_ID MY_TICKS BEGAN

# Run the words as a new process group (a session of its own where setsid is there). Sets CELL_PID. FUNCTION prepares
# the child's environment; its status other than 0 is the child's.
start_group() { # <log> <function> <words...>
  local log=$1 prepare=$2 own=1
  shift 2
  command -v setsid >/dev/null 2>&1 || own=0
  # Begun under job control too, for SHELLOPTS hands it on: then setsid would fork, and what we wait for would end at once.
  if ((own)); then set +m; else set -m; fi
  (
    # Without job control bash has a background child ignore INT, and the cell would inherit that.
    trap - INT QUIT TERM HUP USR1 USR2 EXIT
    "$prepare" || exit
    close_descriptors
    if ((own)); then exec setsid "$@"; else exec "$@"; fi
  ) </dev/null >>"$log" 2>&1 &
  CELL_PID=$!
  ((own)) || set +m
}

signal_group() { # <signal>
  kill "-$1" -- "-$CELL_PID" 2>/dev/null || kill "-$1" "$CELL_PID" 2>/dev/null || :
}

# How long the cell may save, into STOP_GRACE. Only the platform's warning has its short limit, and that signal reaches us
# itself. What comes by way of run_queue is the queue's stop; nobody kills sooner than we do then.
choose_grace() { # <signal>
  STOP_GRACE=$GRACE_S
  [[ $1 != "$SIGNAL" || ${QUEUE_PID-} == "$PPID" ]] || STOP_GRACE=$SIGNAL_GRACE_S
}

# A second signal is no platform's, which tells once and kills: the time to save becomes ours. The cell is not told again.
lengthen_grace() {
  [[ -n ${KILLER_PID-} && ${STOP_GRACE:-$GRACE_S} -lt $GRACE_S ]] || return 0
  kill -KILL "$KILLER_PID" 2>/dev/null || :
  STOP_GRACE=$GRACE_S
  LATE="a second signal: cell $CELL has $GRACE_S s from now to save"
  start_killer
}

# Tell the cell once, and see to it that it is gone after the grace.
end_group() { # <signal>
  [[ -z ${KILLER_PID-} ]] || return 0
  signal_group "$1"
  # A stopped process (SIGSTOP) acts on no signal until it is continued.
  signal_group CONT
  start_killer
}
start_killer() { # sets KILLER_PID
  (
    trap - TERM INT HUP USR1 USR2 EXIT
    idle "${STOP_GRACE:-$GRACE_S}"
    signal_group KILL
  ) </dev/null >/dev/null 2>&1 &
  KILLER_PID=$!
}

# Wait for the cell whatever signals come in between. Each trap counts WAKES up. Sets CELL_RC, below 0 where bash has lost it.
wait_group() {
  local seen
  while :; do
    seen=$WAKES CELL_RC=0
    { wait "$CELL_PID"; } 2>/dev/null || CELL_RC=$?
    say_late
    [[ $WAKES != "$seen" ]] || break
    # A signal that comes in the very moment in which the cell ends may cost bash that end, and then its wait lasts as long as
    # there is another child: for the whole grace.
    [[ -d /proc/$CELL_PID ]] || stop_watchers
  done
}

# The cell, watched from beside: its limits, of which it tells run_one, which decides; its memory; and run_one itself, whose
# death ends the cell. Ends with the cell, or when run_one is gone.
watch_cell() { # <run_one's pid>
  local main=$1 tick=$((STALL_S / 8)) ran=0 life=0 last=$SECONDS step stamp=$D/logs/$CELL/.alive pause=1 PEAK=0
  trap - TERM INT HUP USR1 USR2 EXIT
  ((tick > 0 && tick <= 20)) || tick=20
  if ((STALL_S > 0 && STALL_S < 8)); then tick=1; fi
  if ((WALL_S > 0 && WALL_S < tick)); then tick=1; fi
  ((STALL_S == 0)) || put_text "$stamp" x || :
  while :; do
    # Short at first, so that short cells have a figure for their memory too.
    idle "$pause"
    step=$((SECONDS - last)) last=$SECONDS
    if ((step < 0 || step > pause + 60)); then
      # The clock was set, or the box slept: no time that the cell had, and no stamp to compare with.
      step=$pause life=$((ran + pause))
      ((STALL_S == 0)) || put_text "$stamp" x || :
    fi
    ran=$((ran + step))
    pause=$((pause * 2 < tick ? pause * 2 : tick))
    if ! same_process "$main" "$MY_TICKS"; then
      # Run_one was killed. Nobody would record how the cell ends, and a second attempt may come at any time.
      end_group TERM
      wait "$KILLER_PID" || :
      return 0
    fi
    # Its end is run_one's affair. Should a trap have come in just then, bash may have missed it, and waits while we live.
    [[ -d /proc/$CELL_PID ]] || return 0
    look_memory
    if ((STALL_S > 0)) && shows_life "$stamp"; then
      life=$ran
      put_text "$stamp" x || :
    fi
    if ((WALL_S > 0 && ran >= WALL_S)) || ((STALL_S > 0 && ran - life >= STALL_S)); then
      kill -USR2 "$main" 2>/dev/null || :
      return 0
    fi
  done
}

# The memory of the cell's group and session, by the kernel's own figures: the largest sum of what its processes held when we
# looked, or the highest mark of one of them. Kept in PEAK and beside the log.
look_memory() {
  local file stat fields name value rest sum=0 high=0
  for file in /proc/[0-9]*/stat; do
    { IFS= read -r stat <"$file"; } 2>/dev/null && [[ $stat == *" $CELL_PID "* ]] || continue
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[2]-} == "$CELL_PID" || ${fields[3]-} == "$CELL_PID" ]] || continue
    while read -r name value rest; do
      case $name in
        VmHWM:) ((value * 1024 <= high)) || high=$((value * 1024)) ;;
        VmRSS:) sum=$((sum + value * 1024)) ;;
      esac
    done 2>/dev/null <"${file%stat}status" || :
  done
  ((sum >= high)) || sum=$high
  ((sum > PEAK)) || return 0
  PEAK=$sum
  put_text "$D/logs/$CELL/.peak" "$PEAK"$'\\n' || :
}

# A sign of life: the log grew, or anything in the cell's folder was written. Both, for many trainers print nothing.
shows_life() { # <stamp>
  [[ ! $CELL_LOG -nt $1 ]] || return 0
  [[ -n $(find "$CELL_DIR" -newer "$1" -print 2>/dev/null | head -n 1) ]]
}

# Where to look for processes of the cell, into PROCESS_FILES: of this attempt (TICKS is not 0) or of any. Numbers are given in
# order: in the cell's first seconds those above its own are the only ones, where the newest is not far above and so has not come
# round.
process_files() { # <ticks>
  local pid newest=''
  if (($1 > 0 && SECONDS - BEGAN <= 5)); then
    { read -r pid pid pid pid newest pid <"/proc/loadavg"; } 2>/dev/null || newest=''
  fi
  if [[ $newest =~ ^[0-9]+$ && -n ${CELL_PID-} ]] && ((newest >= CELL_PID && newest - CELL_PID <= 500)); then
    PROCESS_FILES=()
    for ((pid = CELL_PID; pid <= newest; pid++)); do
      [[ ! -d /proc/$pid ]] || PROCESS_FILES+=("/proc/$pid/stat")
    done
  else
    PROCESS_FILES=(/proc/[0-9]*/stat)
  fi
}

# A line of /proc/PID/stat the slow way: cut behind the last parenthesis. Into find_cell_processes' own variables.
read_stat() { # <file>
  local line
  { IFS= read -r line <"$1"; } 2>/dev/null || return 1
  # shellcheck disable=SC2034 # of the caller
  read -r state parent group session rest rest rest rest rest rest rest rest rest rest rest rest rest rest rest begun rest <<<"${line##*) }"
}

# Living processes of this cell, of any attempt or of ours alone, into LEFT ("pid ticks"): by the mark in their
# environment, and by the session or group that we gave them. Never ourselves. What is older than TICKS is none of them, and is
# not asked: on a quiet box nothing is left to ask.
find_cell_processes() { # <mark> <group or empty> <ticks>
  local file pid name state parent group session begun rest
  local -a ask=() ticks=() PROCESS_FILES=()
  LEFT=()
  process_files "$3"
  for file in ${PROCESS_FILES[@]+"${PROCESS_FILES[@]}"}; do
    # Fields 3 5 6 22; the twelve between mean nothing here.
    { read -r pid name state parent group session rest rest rest rest rest rest rest rest rest rest rest rest rest rest rest begun rest <"$file"; } 2>/dev/null || continue
    # A name with a blank in it moves all that follows, so that no number stands where the parent's is to be.
    [[ $name == *\\) && $parent != *[!0-9]* ]] || { read_stat "$file" || continue; }
    ((begun >= $3)) || continue
    [[ $state != [ZX] && $pid != "$$" && $pid != "$PPID" && $pid != "${BASHPID-}" ]] || continue
    if [[ -n $2 ]] && [[ $group == "$2" || $session == "$2" ]]; then
      LEFT+=("$pid $begun")
    else
      ask+=("/proc/$pid/environ")
      ticks[pid]=$begun
    fi
  done
  if ((${#ask[@]} <= 3)); then
    for file in ${ask[@]+"${ask[@]}"}; do
      pid=${file//[!0-9]/}
      ! holds_mark "$file" "$1" || LEFT+=("$pid ${ticks[pid]}")
    done
    return 0
  fi
  while IFS= read -r file; do
    pid=${file//[!0-9]/}
    LEFT+=("$pid ${ticks[pid]}")
  done < <(exec grep -lsF -- "GPU_RUNBOOK_CELL=$1" "${ask[@]}" /dev/null)
}
# Does an environment carry the mark? Without a process: for few.
holds_mark() { # <file> <mark>
  local entry
  while IFS= read -r -d '' entry || [[ -n $entry ]]; do
    [[ $entry != "GPU_RUNBOOK_CELL=$2"* ]] || return 0
  done 2>/dev/null <"$1"
  return 1
}

# End what is left of the cell: told, a few seconds, killed; only processes that are still the ones that we saw.
sweep_cell() { # <mark> <group or empty> <seconds> <ticks: older ones are none of it>
  local one round=0
  find_cell_processes "$1" "$2" "$4"
  ((${#LEFT[@]} > 0)) || return 0
  # What it writes until it is gone belongs to what the cell has left.
  # shellcheck disable=SC2034 # of run_one
  LOOKING=0
  for one in "${LEFT[@]}"; do
    log "cell $CELL left process ${one% *} behind ($(tr '\\0' ' ' <"/proc/${one% *}/cmdline" 2>/dev/null | cut -c 1-120)): ending it"
    ! same_process "${one% *}" "${one#* }" || { kill -TERM "${one% *}" && kill -CONT "${one% *}"; } 2>/dev/null || :
  done
  # By rounds, for a clock may be set meanwhile.
  while ((round < $3 * 20)); do
    idle 0.05
    round=$((round + 1))
    find_cell_processes "$1" "$2" "$4"
    ((${#LEFT[@]} > 0)) || return 0
  done
  for round in 1 2 3 4 5 6 7 8 9 10; do
    for one in "${LEFT[@]}"; do
      ! same_process "${one% *}" "${one#* }" || kill -KILL "${one% *}" 2>/dev/null || :
    done
    idle 0.05
    find_cell_processes "$1" "$2" "$4"
    ((${#LEFT[@]} > 0)) || return 0
  done
  log "cell $CELL: process ${LEFT[0]% *} cannot be killed (it hangs in the kernel); the box may need a restart"
}

# Watchers go when the cell has ended; their numbers are our own children's.
stop_watchers() {
  local pid
  # All are told before one is waited for: of a child that ends while a trap comes in, bash may miss the end, and then its wait
  # lasts as long as there is another child.
  for pid in ${WATCH_PID-} ${KILLER_PID-}; do kill -KILL "$pid" 2>/dev/null || :; done
  for pid in ${WATCH_PID-} ${KILLER_PID-}; do { wait "$pid"; } 2>/dev/null || :; done
  WATCH_PID='' KILLER_PID=''
}

# lib/evidence.bash: has a cell really left what it was to leave? Exit 0 alone proves nothing.
# needs: exit log
# reads: CELL_DIR REQUIRED

# Is everything required there, non-empty, inside the cell's own folder, and does no result say {"ok": false}?
# The folder began empty with this run, so what lies in it was written by this attempt or by the one that it resumed.
has_evidence() { # returns: 0, or 1 with the reason in REPLY
  local item path real home
  local -a results=()
  REPLY=''
  for item in "${REQUIRED[@]}"; do
    path=$CELL_DIR/${item%/}
    if [[ -L $path ]]; then
      # A link may lead inside the folder (best -> epoch 7), not to somebody else's file.
      home=$(readlink -f -- "$CELL_DIR") && real=$(readlink -f -- "$path") || real=''
      [[ -n $real && $real == "$home"/* ]] || { REPLY="$item is a link that leads out of the cell's folder" && return 1; }
    fi
    if [[ -d $path ]]; then
      [[ -n $(find -L "$path" -type f -size +0 -print 2>/dev/null | head -n 1) ]] || { REPLY="$item holds no file that is not empty" && return 1; }
    elif [[ ! -e $path ]]; then
      REPLY="$item is not there" && return 1
    elif [[ ! -f $path ]]; then
      REPLY="$item is not a file" && return 1
    elif [[ ! -s $path ]]; then
      REPLY="$item is empty" && return 1
    fi
    [[ $path != *.json || ! -f $path ]] || results+=("$path")
  done
  for path in ${results[@]+"${results[@]}"}; do
    # Small files without a process; a result is rarely large.
    real=''
    IFS= read -r -d '' -n 200000 real <"$path" || :
    if [[ ${#real} -lt 200000 ]]; then
      [[ $real =~ \\"ok\\"[[:space:]]*:[[:space:]]*false ]] || continue
    else
      grep -qE '"ok"[[:space:]]*:[[:space:]]*false' -- "$path" || continue
    fi
    REPLY="${path##*/} says 'ok': false"
    return 1
  done
}

# What is there of the evidence, without a word: a cell that has it all and does not end is stuck, not slow.
looks_complete() {
  local REPLY
  ((${#REQUIRED[@]} > 0)) && has_evidence
}

# Is no required item a folder?
names_files() {
  local item
  for item in "${REQUIRED[@]}"; do [[ ! -d $CELL_DIR/$item ]] || return 1; done
}

# lib/classify.bash: why did a cell end? A class with its evidence, for what to do next hangs on it.
# needs: exit log room evidence
# Never a guess: without evidence a death by signal is "killed", and an error is a "bug".
# reads: SECRET_NAMES SECRET_VALUES STOP_SIGNAL LIMIT_HIT CELL_RC CELL_LOG CELL_DIR D OOM_BEFORE OOM_AFTER

# A signal's name, into REPLY.
signal_name() { # <number>
  REPLY=$(kill -l "$1" 2>/dev/null) || REPLY=$1
  REPLY=SIG${REPLY#SIG}
}

# What a line says, in awk: the class, or nothing. By what a message is about (a word for the memory and one for the device, a
# word for the connection and one for its end), for each library says it in its own way. No {n,m}: not every awk knows it.
readonly CLASS_OF_LINE='
function class_of(l) {
  if (l ~ /No usable temporary directory found/) return "disk_full"
  if (l ~ /^AssertionError.*([Nn]a[Nn]|[Nn]on-?finite|not finite)([^a-z]|$)/) return "non_finite"
  # These name a mistake in the code, whatever words they quote.
  if (l ~ /^([A-Za-z_]+\\.)*(TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NotImplementedError|ZeroDivisionError|FileNotFoundError|AssertionError)(:|$)/) return ""
  if (is_oom_shared(l)) return "oom_host"
  if (is_disk_full(l)) return "disk_full"
  if (is_oom_gpu(l)) return "oom_gpu"
  if (is_oom_host(l)) return "oom_host"
  if (is_killed(l)) return "killed"
  if (is_transient(l)) return "transient"
  if (is_non_finite(l)) return "non_finite"
  return ""
}
# Files of shared memory by their names: a disk that is full is another thing.
function is_oom_shared(l) {
  return l ~ /insufficient shared memory|out of shared memory|unable to (mmap|write to file|open shared memory).*\\/(torch_|dev\\/shm)/
}
function is_disk_full(l) {
  return l ~ /[Nn]o space left on (the )?d|[Dd]isk quota exceeded|[Ee]rrno ?=? ?28[^0-9]|ENOSPC|[Ee]rrno ?=? ?122[^0-9]|EDQUOT|StorageFull|DiskFull/ || l ~ /iostream error|PytorchStreamWriter failed|inline_container.*(unexpected pos|write)|unexpected pos [0-9]+ vs|[Ww]rite incomplete|fwrite.*(== size|[Ff]ailed)/ || l ~ /(disk|file ?system|volume|device) (or disk )?(is )?full|[Nn]ot enough (free )?(disk )?space|[Ii]nsufficient disk space/
}
function is_oom_gpu(l) {
  if (l ~ /CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|_ALLOC_FAILED|OOM when allocating tensor/) return 1
  if (l ~ /(RESOURCE_EXHAUSTED|[Rr]esource exhausted).*([Oo]ut of memory|OOM|allocat)|ResourceExhaustedError|gpu_memory_utilization|GPU memory utilization|memory for the cache blocks/) return 1
  if (l ~ /([Oo]ut of (the )?memory|[Ff]ailed to allocate|[Cc]annot allocate|memory allocation)/ && l ~ /CUDA|[Cc]uda|HIP|hip[A-Z]|GPU|MPS|XPU|NPU|device|BFC|bfc_|torch\\.OutOf|cupy|cuMem/) return 1
  return l ~ /(^|[^a-z])OutOfMemoryError/ && !(l ~ /java\\.|ray\\./)
}
function is_oom_host(l) {
  if (l ~ /^([A-Za-z_.]*\\.)?(_ArrayMemoryError|ArrowMemoryError|MemoryError)|std::bad_alloc|[Cc](annot|ould not|an.t) allocate (memory|vector|[0-9])|DefaultCPUAllocator: (can.t|not enough)|[Uu]nable to allocate [0-9.]+ [KMGT]iB/) return 1
  if (l ~ /memory allocation of [0-9]+ bytes failed|malloc of size [0-9]+ failed|[Oo]ut of memory allocating|(java|ray)\\.[a-z.]*OutOfMemoryError|[Hh]eap out of memory|(runtime|fatal error): out of memory/) return 1
  return l ~ /[Oo][Oo][Mm][-_ ]?[Kk]ill|[Oo]ut of memory: Kill|[Ee]xceeded (job |step |its )?memory limit|low on memory|: Out Of Memory$|memory cgroup out of memory/
}
function is_killed(l) {
  return l ~ /(worker|[Pp]rocess) .*killed by signal: Killed|: line [0-9]+: +[0-9]+ Killed|task [0-9-]+: Killed/ || l ~ /(exit ?code|return ?code|returncode|status|code)[ :=]*-9([^0-9]|$)|(Signals\\.|\\()SIGKILL|(on|by|with) signal 9/
}
function is_transient(l) {
  # An answer that a repetition does not change.
  if (l ~ /40[1346] (Client Error|Unauthorized|Forbidden|Not Found)|[Ee]rror 40[134]|[Pp]ermission|Unauthorized|Forbidden|Access ?Denied|[Ii]nvalid (API|api|usage|credentials)|ncclInvalid/) return 0
  if (l ~ /(Temporary failure|failure) in name resolution|Name or service not known|getaddrinfo failed|([Cc]ould not|[Uu]nable to|[Cc]annot|[Ff]ailed to) (resolve|look ?up) |nodename nor servname|no such host/) return 1
  if (l ~ /[Cc]onnection (was |has been |is )?([a-z]+ )?(reset|refused|aborted|timed out|broken|closed|lost|terminated|dropped)|(ConnectionReset|ConnectionRefused|ConnectionAborted|Connection|Network|DistNetwork|DistStore|Protocol|Disconnected?)Error|ConnectionLost|RemoteDisconnected|[Ss]erver ?[Dd]isconnected|ConnectTimeout|ClientConnector|(Network|Host) is unreachable|No route to host|hung up unexpectedly|unexpected disconnect|early EOF|(send|sending|write|socket|connection|disconnect)[^a-z].*[Bb]roken pipe|got 0 bytes|network (error|issue|failure)|remote process exited/) return 1
  if (l ~ /([Rr]ead|[Rr]eceive|recv|[Cc]onnect|[Ss]ocket|[Hh]andshake|[Rr]equest|[Rr]esponse|[Oo]peration|initialization|[Dd]ownload|urlopen error|[Ww]aiting .*) ?(has |was )?[Tt]imed? ?out|(i\\/o|I\\/O|gateway|socket\\.) ?timeout|(Read|Connect|Write|Pool|Request|Socket|Gateway|Net)[a-z]*Timeout(Error|Exception)?|^([a-z]+\\.)*(timeout|TimeoutError): timed out|urlopen error .*timed out|Timed out (after|waiting)|[Tt]imed out after [0-9]+ ?(m?s|milli|seconds).*(wait|connect|receiv|download)/) return 1
  if (l ~ /Max retries exceeded|retries exhausted|ChunkedEncodingError|IncompleteRead|TLS handshake|SSLEOFError|SSLZeroReturn|SSL_ERROR_SYSCALL|(SSL|TLS)[^a-z].*([Ee][Oo][Ff]|closed|reset)/) return 1
  if (l ~ /(HTTP|status|code|Error|error)[^0-9a-z][^0-9a-z]?[^0-9a-z]?[^0-9a-z]?(429|500|502|503|504)([^0-9]|$)|(^|[^0-9])(429|500|502|503|504) (Client|Server|Too|Bad|Service|Gateway|Internal|GET|PUT|POST|HEAD)|Too Many Requests|Bad Gateway|Service ?Unavailable|Gateway Time-?out|too many (429|50[0-9])|StatusCode\\.(UNAVAILABLE|DEADLINE)|SlowDown|reduce your request rate|Throttling|RequestTimeout|\\(InternalError\\)|[Rr]ate limit(ed)? exceeded/) return 1
  if (l ~ /^curl: \\((5|6|7|16|18|28|35|52|55|56|92)\\)|^wget: unable to|^Giving up\\.|rsync error: (error in socket|timeout|.*\\(code (10|12|30|35)\\))|^ssh: connect to host|kex_exchange_identification/) return 1
  if (l ~ /wandb.*(CommError|run initialization has timed out|init.*timed out|ServiceStartTimeout)|CommError|[Ee]rrno (104|110|111|101|113)[^0-9]|Address already in use|EADDRINUSE/) return 1
  return l ~ /NCCL.*(unhandled system error|Timeout at)|nccl(Remote|System)Error|collective operation timeout|LocalEntryNotFoundError|[Cc]heck your internet connection|[Cc]ouldn.t (connect to (.http|server)|reach )|[Cc]ould not connect to|Failed to (connect to .* port|establish a new connection)|RendezvousConnectionError|[Ss]tale (NFS )?file handle|file should be of size/
}
function is_non_finite(l) {
  if (l ~ /[Ll]oss returned .* is (nan|NaN|inf)|[Ll]oss (is|was|became|has become|=+|:) *([Nn]a[Nn]|-?[Ii]nf)([^a-z]|$)|([Nn]a[Nn]|[Ii]nf|[Nn]on-?finite)( (or|and) [A-Za-z]+)? (loss|gradient|grad|values? (in|for)|encountered|found|detected|weights|metric)|[Nn]on-finite|not finite|contains? (NaN|nan|Inf|infinity|.inf|.nan)/) return 1
  if (l ~ /FloatingPointError|returned nan values|contains either .inf., .nan.|Expected parameter .* but found invalid values|(gradient|grad)s? (norm )?(is|contains?|are) (bad: )?(nan|NaN|inf|non)|diverged/) return 1
  return l ~ /(found|had|has|have|got|value|not contain) (any )?([Nn]a[Nn]s?|[Ii]nfs?|infinite)([^a-z]|$)|[Ll]oss scale.*(minimum|cannot decrease)|[Ii]nvalid loss|CheckNumerics/
}
'

# The class that the end of a log speaks for, and the line: "class<TAB>line", or nothing. Walks back from the end through
# the last traceback: the line nearest the end that says something counts, and an exception that says nothing
# ends the walk (a bug), unless another one caused it. Warnings long before the end do not count.
classify_log() { # <log>    prints
  tail -c 65536 -- "$1" 2>/dev/null | tr -d '\\000\\r' | LC_ALL=C awk "$CLASS_OF_LINE"'
    # The last line of a traceback, or what a shell, a C++ library or a launcher prints in its place.
    function ends_it(l) {
      return l ~ /^([A-Za-z_][A-Za-z0-9_]*\\.)*[A-Z][A-Za-z0-9_]*(Error|Exception|Timeout|Interrupt|Exit|Exhausted|Disconnected|Incomplete|Failure|Expired|Refused)(:|$)/ || l ~ /^ *what\\(\\):|^(Segmentation fault|Aborted|terminate called|Fatal Python error|AssertionError|Error executing job|Usage:|usage: )/
    }
    # What launchers and loggers put before a line: colours, the rank or actor, the time, words in brackets.
    {
      gsub(/\\033\\[[0-9;]*m/, "")
      while (sub(/^\\[?rank ?[0-9]+\\]?:? ?/, "") || sub(/^\\([A-Za-z0-9_.]+ (\\([^)]*\\) )?pid=[0-9]+[^)]*\\) ?/, "") || sub(/^[0-9][0-9][0-9][0-9][-\\/][0-9][0-9][-\\/][0-9][0-9][T ][0-9:.,]+Z? ?/, "") || sub(/^\\[[^]]*\\]:? ?/, "")) continue
      sub(/[ \\t]+$/, "")
    }
    /^gpu-runbook: / || /^$/ { next }
    { line[++n] = $0 }
    END {
      chained = 0; weak = ""; broken = ""
      for (i = n; i > 0 && i > n - 120; i--) {
        l = line[i]
        # A launcher only reports that a child has failed.
        if (l ~ /^([a-z_]+\\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)(:|$)|DataLoader worker .*exited unexpectedly|^Aborted/) continue
        if (l ~ /^(During handling of the above exception|The above exception was the direct cause)/) { chained = 1; continue }
        # Lines of code in a traceback are quotations, not events.
        if (l ~ /^ +(File "|raise |return |[\\^~]+$)/) continue
        if (broken == "" && is_broken(l)) broken = "bug\\tthe machine, not the code: " l
        c = (l ~ /^    / && !(l ~ /[Ee]rror|WARNING|FATAL/)) ? "" : class_of(l)
        # A milder sign counts only where it stands at the very end or is the error itself.
        if ((c == "transient" || c == "non_finite") && !ends_it(l) && !(l ~ /(Error|error|ERROR|fatal|FATAL|Fatal|failed|Failed|abort|Abort|stopping|Stopping|diverged|giving up|[Ee]nding|[Tt]erminat|killed)/) && i < n - 2) c = ""
        # The other ranks, the workers and the helping threads of a process that dies complain too, and trackers still talk: what it
        # died of stands before. Only where nothing stands there it is this.
        if (c == "transient" && weak == "" && (is_complaint(l) || (ends_it(l) && in_thread(i)))) weak = c "\\t" l
        if (c != "" && !(weak != "" && c == "transient")) { print c "\\t" l; exit }
        if (c == "" && ends_it(l) && !in_thread(i) && !(weak != "" && l ~ /^terminate called/)) {
          if (!chained && !followed_up(i)) { weak = ""; break }
          chained = 0
        }
      }
      # Still a bug, for nothing is gained by running it again here; but another one has to look for it.
      if (broken != "") print broken; else if (weak != "") print weak
    }
    function is_broken(l) {
      return l ~ /ECC_UNCORRECTABLE|[Uu]ncorrectable ECC|fallen off the bus|GPU is lost|NVRM: Xid|Unable to determine the device handle|[Dd]river version is insufficient|[Dd]river\\/library version mismatch|Found no NVIDIA driver|SYSTEM_DRIVER_MISMATCH|SystemNotReady|system not yet initialized|no kernel image is available|[Ee]rrno 5[^0-9]|Input\\/output error|[Ee]rrno 30[^0-9]|Read-only file system/
    }
    function is_complaint(l) {
      return l ~ /NCCL|nccl|collective operation|gloo|TCPStore|c10d|Dist(Network|Store|Backend)Error|(reset|closed) by peer|[Bb]roken pipe|remote process|got 0 bytes|^wandb: |retry loop|[Rr]etry(ing)? /
    }
    # Is the exception at i one of a thread beside the main one?
    function in_thread(i,   j) {
      for (j = i - 1; j > 0 && j > i - 40; j--) if (line[j] ~ /^Traceback /) return j > 1 && line[j - 1] ~ /^Exception (in thread|ignored in)/
      return 0
    }
    # Is the exception at i itself the follower of an earlier one? Then the walk goes on to that.
    function followed_up(i,   j) {
      for (j = i - 1; j > 0 && j > i - 60; j--) {
        if (line[j] ~ /^(During handling of the above exception|The above exception was the direct cause)/) return 1
        if (ends_it(line[j])) return 0
      }
      return 0
    }'
}

# The last line of a log that is the program's own and says something, into REPLY; empty where there is none.
last_words() { # <log>
  REPLY=$(tail -c 65536 -- "$1" 2>/dev/null | LC_ALL=C tr -d '\\000-\\010\\013-\\037\\177' | grep -a '[[:alnum:]]' | grep -av '^gpu-runbook: ' | tail -n 1) || :
  mask_secrets "$REPLY"
  REPLY=${REPLY:0:200}
}
# What a record quotes from a log travels home and is read by others: the value of a secret does not. Before any cut.
mask_secrets() { # <text>    into REPLY
  local i
  REPLY=$1
  [[ -n ${SECRET_NAMES[0]+x} ]] || return 0
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    ((${#SECRET_VALUES[i]} < 6)) || REPLY=${REPLY//"${SECRET_VALUES[i]}"/[${SECRET_NAMES[i]}]}
  done
}

# Class and why of an attempt that is not a success, into CLASS and WHY. Order: what we know, what the kernel says,
# what the exit status says, what the log says.
classify_end() { # <evidence missing: text or empty>
  local REPLY said class=''
  CLASS=bug WHY=''
  if [[ -n $STOP_SIGNAL ]]; then
    CLASS=preempted WHY="stopped from outside by SIG$STOP_SIGNAL"
    return 0
  elif [[ -n $LIMIT_HIT ]]; then
    classify_limit
    return 0
  elif ((CELL_RC > 128 && CELL_RC < 193)); then
    classify_signal $((CELL_RC - 128))
    [[ $CLASS == bug ]] || return 0
  elif ((CELL_RC == 0)); then
    CLASS=no_evidence WHY="it ended with 0, but $1"
    return 0
  fi
  said=$(classify_log "$CELL_LOG") || said=''
  if [[ -n $said ]]; then
    class=${said%%$'\\t'*} said=${said#*$'\\t'}
    CLASS=$class
    mask_secrets "$said"
    WHY="exit $CELL_RC; log: ${REPLY:0:300}"
  fi
  if [[ -z $WHY ]]; then
    last_words "$CELL_LOG"
    WHY="exit $CELL_RC; ${REPLY:+its last words: $REPLY; }nothing in the log speaks for another cause"
  fi
  classify_disk
  if [[ $CLASS == bug || $CLASS == killed ]]; then oom_was_here && CLASS=oom_host WHY="exit $CELL_RC; the kernel killed $((OOM_AFTER - OOM_BEFORE)) process(es) of this cgroup for want of memory"; fi
  return 0
}

oom_was_here() { [[ -n $OOM_BEFORE && -n $OOM_AFTER ]] && ((OOM_AFTER > OOM_BEFORE)); }

classify_limit() {
  if looks_complete; then
    CLASS=stuck WHY="everything required is there, but it does not end: $LIMIT_HIT"
  elif [[ $LIMIT_HIT == stall* && $CELL_RESUME == 0 ]] && [[ -z $(find "$CELL_DIR" -type f -print 2>/dev/null | head -n 1) ]]; then
    # It never began: a start-up blip, worth the identical command once more.
    CLASS=transient WHY="$LIMIT_HIT, before it wrote its first file"
  else
    CLASS=timeout WHY=$LIMIT_HIT
  fi
}

classify_signal() { # <number>
  local REPLY name
  signal_name "$1"
  name=$REPLY
  case $name in
    SIGTERM | SIGINT | SIGHUP | SIGUSR1) CLASS=preempted WHY="$name from outside reached it, and not through us" ;;
    SIGKILL)
      if oom_was_here; then
        CLASS=oom_host WHY="SIGKILL, and the kernel's oom_kill counter of this cgroup rose from $OOM_BEFORE to $OOM_AFTER"
      elif [[ -n $OOM_BEFORE ]]; then
        CLASS=killed WHY="SIGKILL, cause unknown: the oom_kill counter of this cgroup did not move"
      else
        CLASS=killed WHY="SIGKILL, cause unknown: this box shows no oom_kill counter"
      fi
      ;;
    SIGSEGV | SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSYS | SIGTRAP) WHY="$name: it crashed" ;;
    SIGXFSZ) CLASS=killed WHY="$name: a file met the limit of a file's size (ulimit -f)" ;;
    SIGXCPU) CLASS=killed WHY="$name: the limit of CPU time was met (ulimit -t)" ;;
    *) CLASS=killed WHY="$name, cause unknown" ;;
  esac
}

# A full disk names its mount, free bytes and inodes. A log that blames a disk with room keeps the class and says so.
classify_disk() {
  local REPLY bytes
  [[ $CLASS == disk_full ]] || return 0
  free_bytes "$D" || :
  bytes=$REPLY
  free_inodes "$D" || :
  WHY="$D has ${bytes:-an unknown number of} bytes and ${REPLY:-an unknown number of} inodes free; $WHY"
}

# lib/cell.bash: one attempt of one cell, from its line in the queue to its record.
# needs: exit log path file record proc hash room run queue results bundle claim cellenv limits group evidence classify
# reads: CELL QUEUE_FILE ADOPT SELF_DIR and what open_run sets

# The cell's command and index, from the one reader of queues. Sets COMMAND COMMAND_SHA CELL_INDEX.
find_cell() {
  local REPLY file=${QUEUE_FILE:-$D/queue.tsv} i known=''
  [[ -n $QUEUE_FILE || -e $file ]] || file=$SELF_DIR/queue.tsv
  COMMAND_SHA=''
  # Run_queue, and only the one that is our parent, hands over what it has read of the run's own queue.
  if [[ $file == "$D/queue.tsv" && ${QUEUE_PID-} == "$PPID" && ${QUEUE_CELL-} == "$CELL" && ${QUEUE_AT-} =~ ^[0-9]{1,8}$ && ${QUEUE_SHA-} =~ ^([0-9a-f]{64})?$ ]]; then
    # shellcheck disable=SC2153,SC2154 # from run_queue's environment
    COMMAND=$QUEUE_COMMAND COMMAND_SHA=$QUEUE_SHA CELL_INDEX=$QUEUE_AT
    index_and_digest
    return
  fi
  if [[ $file != "$D/queue.tsv" && -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
    queue_index "$CELL" && known=${QUEUE_COMMANDS[REPLY]}
  fi
  read_queue "$file"
  queue_index "$CELL" || refuse "$EX_CONFIG" "cell $CELL" "it is not in $file" "names there: ${QUEUE_NAMES[*]:0:5} \u2026"
  i=$REPLY
  COMMAND=${QUEUE_COMMANDS[i]} CELL_INDEX=$i
  [[ -z $known || $known == "$COMMAND" ]] || refuse_command "the run's own queue $D/queue.tsv has another"
  index_and_digest "$file"
}
# The run's own queue holds one shard: its k-th cell is the source's k*N + I-1.
index_and_digest() { # [source of the command, where it is not the run's own queue]
  local REPLY
  [[ -n ${1-} && $1 != "$D/queue.tsv" ]] || CELL_INDEX=$((CELL_INDEX * ${RUN_SHARD#*/} + ${RUN_SHARD%/*} - 1))
  [[ -z $COMMAND_SHA ]] || return 0
  hash_text "$COMMAND" || refuse "$EX_MISSING" "hashing" "the command's digest cannot be made" "look at openssl and sha256sum"
  COMMAND_SHA=$REPLY
}
refuse_command() { # <why>
  refuse "$EX_GATE" "cell $CELL" "its command was changed: $1" "undo the change and continue, or begin anew with RUN=$JOB.2"
}

# What this call is to do, into CELL_NEXT: nothing, sync or run. Refuses 75, 77.
judge_cell() {
  local REPLY rc=0 path
  CELL_NEXT=run
  # A folder there would swallow what is renamed onto it.
  for path in "$D/state/$CELL.json" "$D/state/$CELL.sha256" "$B/records/$CELL.json" "$B/records/$CELL.sha256"; do
    [[ ! -d $path ]] || refuse "$EX_INTEGRITY" "$path" "it is a folder, and a file of ours is to be there" "look at what made it, and move it away"
  done
  check_bundled "$CELL" || rc=$?
  if ((rc == 0)); then
    [[ $R_command_sha256 == "$COMMAND_SHA" ]] || refuse_command "$B/records/$CELL.json is of another"
    CELL_NEXT=nothing
    return 0
  fi
  rc=0
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || rc=$?
  ((rc != 2)) || { record_fault "$D/state/$CELL.json" && log "cell $CELL: $D/state/$CELL.json: $REPLY of this run: unknown, so it is run again"; }
  if ((rc == 0)); then
    [[ $R_command_sha256 == "$COMMAND_SHA" ]] || refuse_command "$D/state/$CELL.json is of another"
    case $R_state in
      unsynced | done) judge_finished ;;
    esac
  fi
  judge_claim
}
# Its record says finished: then only the copy is left to do, if what it left is still there. A hard stop may have cut it.
judge_finished() {
  local REPLY
  if ! still_flushed "${R_why-}"; then
    log "cell $CELL: it finished in an earlier boot, before its files were flushed: unknown, so it is run again"
  elif has_evidence; then
    CELL_NEXT=sync
  else
    log "cell $CELL: its record says $R_state, but $REPLY: unknown, so it is run again"
  fi
}
judge_claim() {
  last_claim "$CELL"
  case $CLAIM_STATE in
    live) refuse "$EX_BUSY" "cell $CELL" "process ${CLAIM_PID:-not known yet} runs it (claim $CLAIM_N)" "wait for it, or stop it: kill -TERM ${CLAIM_PID:-PID}" ;;
    foreign)
      [[ $ADOPT == true ]] || refuse "$EX_BUSY" "cell $CELL" "box $CLAIM_HOST has claim $CLAIM_N" "if that box is gone for good, say --adopt"
      bury_host "$CLAIM_HOST" || refuse "$EX_COPY" "$D/claims" "it cannot be written" "look at the data tier: room, rights"
      ;;
    unread) refuse "$EX_INTEGRITY" "cell $CELL" "$CLAIM_SAID, not a claim: nobody knows whether it is being run" "where no run_one.sh of it is at work, move that away" ;;
    dead) log "cell $CELL: attempt $CLAIM_N is over (claim $CLAIM_N is stale); this is attempt $((CLAIM_N + 1))" ;;
  esac
}

# Everything that can refuse comes before the claim, and leaves the record as it was.
gate_cell() {
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  case $COMMAND in
    *"\\$PY"* | *"\\${PY"*)
      command -v "$PY" >/dev/null 2>&1 || refuse "$EX_MISSING" "PY=$PY" "the interpreter is not there" "set PY to the python of the environment, by its path"
      ;;
  esac
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  gate_inputs
  env_spec
  gate_gpus
  read_secrets
  prove_proxy
  make_folders
  gate_cell_room
}

# All folders of the cell in one call. What already has the name of its own folder is looked at under the claim.
make_folders() { # sets STAGE, the folder in which the copy will be made
  local dir
  local -a dirs=()
  gate_write
  STAGE=$B/.syncing/$CELL.$$
  # From our own look ahead of time it is empty; a dead one's under our number the sync removes.
  [[ ! -e $STAGE && ! -L $STAGE ]] || is_empty_folder "$STAGE" || STAGE=''
  for dir in "$D/claims/$CELL" "$D/logs/$CELL" "$D/state" "$B/records" "$B/final_ckpts" "$S/cache" "$S/t/$CELL_INDEX" ${STAGE:+"$STAGE"}; do
    [[ -d $dir ]] || dirs+=("$dir")
  done
  [[ -e $CELL_DIR || -L $CELL_DIR ]] || dirs+=("$CELL_DIR")
  ((${#dirs[@]} == 0)) || mkdir -p -- "${dirs[@]}" 2>/dev/null || refuse_folders
  mark_scratch || refuse "$EX_NOROOM" "$S" "it cannot be written" "look at SCRATCH=$SCRATCH: room, rights"
  drop_dead_room
}

refuse_folders() { # reads make_folders' own: dirs
  local dir tier=data
  for dir in "${dirs[@]}"; do
    [[ -d $dir ]] || mkdir -p -- "$dir" 2>/dev/null || break
  done
  case $dir in "$D"/*) ;; "$B"/*) tier=durable ;; *) tier=scratch ;; esac
  refuse_write "$EX_NOROOM" "$dir" "the folder cannot be made" "$tier"
}

# Room that killed attempts have kept; a living runner's stays. In a container nobody may collect the dead: they stay as zombies.
drop_dead_room() {
  local REPLY file pid
  for file in "$D/state/.$CELL.json."*.tmp "$B/records/.$CELL.json."*.tmp; do
    pid=${file%.tmp}
    pid=${pid##*.}
    [[ ! -e $file ]] || start_ticks "$pid" || rm -f -- "$file"
  done
  # Where theirs was to be copied: a cell that never ends well is never synced, which would see to it.
  drop_own_leftovers "$CELL" || log "an earlier attempt's folder in $B/.syncing cannot be removed"
}

# The claim, then a clean folder, then the record that says running.
take_cell() {
  local REPLY rc=0
  CELL_RESUME=$((CLAIM_N > 0)) CELL_PID='' CELL_ALIVE=0 STOP_SIGNAL='' STOP_GRACE='' LIMIT_HIT='' WAKES=0 KILLER_PID='' WATCH_PID=''
  CELL_EXIT='' CELL_SIGNAL='' ENDED='' CELL_RC=0 PEAK_MEMORY='' OOM_BEFORE='' OOM_AFTER='' LOG_LOST=0 LOOKING=0
  trap 'on_stop TERM' TERM
  trap 'on_stop INT' INT
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  trap 'on_limit' USR2
  if ((PROBED)); then take_claim "$CELL" || rc=$?; else take_claim "$CELL" "${PROBES[@]}" || rc=$?; fi
  if ((rc == 0 && PROBED == 0)) && ! read_probes; then
    withdraw_claim
    refuse_probe "$REPLY"
  fi
  ((rc == 0)) || drop_room
  case $rc in
    0) ;;
    "$EX_COPY") refuse_probe "${PROBES[0]}" ;;
    "$EX_BUSY") refuse "$EX_BUSY" "cell $CELL" "another runner was quicker" "leave it to that one" ;;
    *) refuse "$EX_NOROOM" "$D/claims/$CELL" "the claim cannot be written" "look at the data tier: room, rights" ;;
  esac
  printf -v CELL_LOG '%s/logs/%s/attempt-%03d.log' "$D" "$CELL" "$ATTEMPT"
  # Whoever ran it before may have died and left the trainer alive.
  ((CLAIM_N == 0)) || { sweep_cell "$RUN_ID/$CELL/" '' "$GRACE_S" 0 && name_cut_files; }
  clean_folder
  [[ -d $CELL_DIR ]] || mkdir -p -- "$CELL_DIR" || refuse "$EX_NOROOM" "$CELL_DIR" "the folder cannot be made" "look at the data tier: room, rights"
  utc_now
  STARTED=$REPLY
  # Lost in a power cut, it is unknown, as it would be with it: the claim is flushed already.
  write_cell running '' '' begun || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights"
  trap - EXIT
  keep_room
  event running "$CELL" "$ATTEMPT" "process $$"
}

# What lies in the cell's folder is this run's only if an attempt of this run got as far as its record or its log.
clean_folder() {
  local n=1 to
  [[ -e $CELL_DIR || -L $CELL_DIR ]] || return 0
  if ((CLAIM_N > 0)); then
    if [[ -e $D/state/$CELL.json ]] || compgen -G "$D/logs/$CELL/attempt-*.log" >/dev/null; then return 0; fi
  fi
  if [[ -d $CELL_DIR && ! -L $CELL_DIR ]] && is_empty_folder "$CELL_DIR"; then return 0; fi
  mkdir -p -- "$D/quarantine" || refuse "$EX_NOROOM" "$D/quarantine" "the folder cannot be made" "look at the data tier: room, rights"
  while :; do
    printf -v to '%s/quarantine/%s--%03d' "$D" "$CELL" "$n"
    [[ -e $to || -L $to ]] || break
    n=$((n + 1))
  done
  mv -- "$CELL_DIR" "$to" || refuse "$EX_COPY" "$CELL_DIR" "no attempt of this run made it, and it cannot be moved to $to" "move it away by hand"
  log "cell $CELL: its folder held files of no attempt of this run: moved to $to"
}

is_empty_folder() { # <folder>
  local path
  [[ -r $1 ]] || return 1
  for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [[ ! -e $path && ! -L $path ]] || return 1
  done
}

# Empty files in the folder of a cell that is resumed: a hard stop may have left them for checkpoints. Named and left alone;
# which checkpoint is whole, only its trainer can tell.
name_cut_files() {
  local path n=0
  while IFS= read -r path; do
    n=$((n + 1))
    ((n <= 5)) || break
    log "cell $CELL: empty, perhaps cut by a hard stop: ${path//[[:cntrl:]]/?}; resume from an older one"
  done < <(find "$CELL_DIR" -type f -size 0 ! -name '.*' -print 2>/dev/null)
}

write_cell() { # <state> <class> <why> [how, as replace_file takes it; begun: no rename where there was no record]
  local REPLY url=''
  [[ ! -f $CELL_DIR/tracker_url ]] || { IFS= read -r -n 2000 url <"$CELL_DIR/tracker_url"; } 2>/dev/null || :
  record_open cell/1
  record_text run_id "$RUN_ID"
  record_text cell "$CELL"
  record_text state "$1"
  record_text class "$2"
  record_text why "$3"
  record_int attempt "$ATTEMPT" || return
  record_int exit "$CELL_EXIT" || return
  record_int signal "$CELL_SIGNAL" || return
  record_text started "$STARTED"
  record_text ended "$ENDED"
  record_int peak_memory_bytes "$PEAK_MEMORY" || return
  record_text gpu "$GPU_SAID"
  record_text command_sha256 "$COMMAND_SHA"
  record_text files_sha256 ''
  record_text tracker_url "$url"
  record_close
  if [[ ${4-} == begun ]]; then
    # Torn it is unknown, as it is without it; nothing older is lost.
    if [[ ! -e $D/state/$CELL.json && ! -L $D/state/$CELL.json ]]; then
      { printf '%s' "$RECORD" >"$D/state/$CELL.json"; } 2>/dev/null && read_text "$D/state/$CELL.json" && [[ $REPLY == "$RECORD" ]]
      return
    fi
    set -- "${@:1:3}" soon
  fi
  replace_file "$D/state/$CELL.json" "$RECORD" "${@:4}"
}

# The record that says finished, at first for this boot alone: its bytes are not flushed yet. Few are by the copy, which takes a
# moment; before the copy of more they are flushed here, and the record then says no more of a boot.
write_finished() { # returns: 0, or 74
  local REPLY looked=0
  [[ $LOOKING == 1 ]] || ! begin_look "$CELL" 2>/dev/null || LOOKING=1
  this_boot_id
  write_cell unsynced '' "$UNFLUSHED$REPLY" soon || return
  # What cannot be listed the sync will name.
  ((LOOKING == 0)) || ! end_look "$CELL" 2>/dev/null || looked=1
  if ((looked == 0)) || { ((LIST_BYTES < SMALL_BYTES)) && [[ $REPLY != unknown ]]; }; then return 0; fi
  find_behind
  keep_room
  write_cell unsynced '' '' behind ${BEHIND[@]+"${BEHIND[@]}"}
}

# What a finished cell has left, for the flush that stands before its record: a record that survives a power cut speaks of
# bytes that have survived it too. Into BEHIND.
find_behind() {
  local path
  BEHIND=()
  list_paths "$CELL_DIR" 2>/dev/null || return 0
  if ((${#LIST_PATHS[@]} > 500)); then
    sync
  else
    for path in "${LIST_PATHS[@]}"; do BEHIND+=("$CELL_DIR/$path"); done
  fi
}

# --- signals: the trap does the work, for a wait that has just begun would not look at a flag ---

on_stop() { # <signal>
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL ]] || { lengthen_grace && return 0; }
  STOP_SIGNAL=$1
  choose_grace "$1"
  LATE="signal $1: cell $CELL is told, and has $STOP_GRACE s to save"
  ((CELL_ALIVE == 0)) || forward_stop
}
forward_stop() {
  # A terminal that is closed means stop; trainers save on TERM, few know HUP.
  if [[ $STOP_SIGNAL == HUP ]]; then end_group TERM; else end_group "$STOP_SIGNAL"; fi
}
on_limit() {
  WAKES=$((WAKES + 1))
  [[ -z $STOP_SIGNAL$LIMIT_HIT ]] || return 0
  if ((WALL_S > 0 && (STALL_S == 0 || SECONDS - BEGAN >= WALL_S))); then
    LIMIT_HIT="wall limit of $WALL_S s"
  else
    LIMIT_HIT="stall limit: neither its log nor its folder changed for $STALL_S s"
  fi
  LATE="cell $CELL: $LIMIT_HIT; it has $GRACE_S s to save"
  ((CELL_ALIVE == 0)) || end_group TERM
}

# --- the attempt ---

# In the child, before it becomes the command.
prepare_child() {
  local REPLY names
  cell_env || { printf 'gpu-runbook: the proxy hook failed: %s\\n' "$REPLY" && return "$EX_GATE"; }
  cd -- "$CODE_DIR" || return
  names=$(compgen -e) || names=''
  printf 'gpu-runbook: environment names: %s\\n' "${names//$'\\n'/ }"
}

run_cell() {
  local REPLY
  oom_count
  OOM_BEFORE=$REPLY BEGAN=$SECONDS
  log_is_file || LOG_LOST=1
  ((LOG_LOST == 0)) || return 0
  printf 'gpu-runbook: cell %s attempt %s run %s started %s resume %s command %s environment %s gpu %s\\n' "$CELL" "$ATTEMPT" "$RUN_ID" "$STARTED" \\
    "$CELL_RESUME" "$COMMAND_SHA" "$ENV_SPEC" "${GPU_SAID:-none asked for}" 2>/dev/null >>"$CELL_LOG" || LOG_LOST=1
  ((LOG_LOST == 0)) || return 0
  if [[ -z $STOP_SIGNAL ]]; then
    put_text "$D/logs/$CELL/.peak" '' || :
    start_group "$CELL_LOG" prepare_child "$BASH" -c "$COMMAND"
    CELL_ALIVE=1
    [[ -z $STOP_SIGNAL ]] || forward_stop
    watch_cell $$ </dev/null >/dev/null 2>&1 &
    WATCH_PID=$!
    wait_group
    CELL_ALIVE=0
    # Looked at beside what follows, where what is required has a name of its own: a folder may get a file until the last process
    # of the cell is gone, and one that is found alive has all be looked at again.
    if ((CELL_RC == 0)) && names_files && begin_look "$CELL" 2>/dev/null; then LOOKING=1; fi
    stop_watchers
    ! read_text "$D/logs/$CELL/.peak" || PEAK_MEMORY=${REPLY%$'\\n'}
    [[ $PEAK_MEMORY =~ ^[0-9]+$ ]] || PEAK_MEMORY=''
    sweep_cell "$RUN_ID/$CELL/$ATTEMPT" "$CELL_PID" 5 "$MY_TICKS"
  fi
  utc_now
  ENDED=$REPLY
  oom_count
  OOM_AFTER=$REPLY
  if ! log_is_file || ! printf 'gpu-runbook: ended %s status %s\\n' "$ENDED" "$CELL_RC" 2>/dev/null >>"$CELL_LOG"; then LOG_LOST=1; fi
  ((CELL_RC < 0)) || CELL_EXIT=$CELL_RC
  ((CELL_RC <= 128 || CELL_RC >= 193)) || CELL_SIGNAL=$((CELL_RC - 128))
}

# What lies in the log's place and is no file is never opened: a FIFO would wait for ever.
log_is_file() {
  [[ -f $CELL_LOG || (! -e $CELL_LOG && ! -L $CELL_LOG) ]]
}

# From the facts of the attempt to its record. Returns run_one's exit code.
judge_end() {
  local REPLY='' missing='' LEAKS=''
  [[ ! -f $CELL_LOG ]] || find_leaks "$CELL_LOG"
  if [[ -n $LEAKS ]]; then
    log "warning: the log of cell $CELL holds the value of: $LEAKS; do not publish $CELL_LOG, and renew it"
    printf 'gpu-runbook: this log holds the value of: %s\\n' "$LEAKS" 2>/dev/null >>"$CELL_LOG" || :
  fi
  if ((LOG_LOST)); then
    judge_lost_log
  else
    has_evidence || missing=$REPLY
    if [[ $CELL_RC -eq 0 && -z $STOP_SIGNAL && -z $LIMIT_HIT && -z $missing ]]; then
      write_finished || refuse "$EX_NOROOM" "$D/state/$CELL.json" "it cannot be written" "look at the data tier: room, rights; then run this again"
      finish_sync
      return
    fi
    classify_end "$missing"
  fi
  write_failed
}

judge_lost_log() {
  local REPLY
  CLASS=disk_full WHY="its log $CELL_LOG could not be written to the end"
  if write_fault "${CELL_LOG%/*}"; then
    WHY="$REPLY; $WHY"
  elif [[ ! -d ${CELL_LOG%/*} || (-e $CELL_LOG && ! -w $CELL_LOG) ]] || ! log_is_file; then
    # No disk did that, and room would not help.
    CLASS=bug WHY="its log $CELL_LOG, or the folder of it, was removed, replaced or closed to us, so nobody knows what it has said"
  fi
  classify_disk
}

write_failed() {
  local state=failed number
  drop_room
  [[ $CLASS != preempted ]] || state=preempted
  write_cell "$state" "$CLASS" "$WHY" || log "the record of cell $CELL could not be written: it stays running under a claim that is dead, so unknown"
  event "$state" "$CELL" "$ATTEMPT" "$CLASS: $WHY"
  log "cell $CELL: $state, $CLASS: $WHY; log: $CELL_LOG"
  if [[ -n $STOP_SIGNAL ]]; then
    number=$(kill -l "$STOP_SIGNAL") || number=15
    return $((128 + number))
  fi
  [[ $CLASS != disk_full || $LOG_LOST == 0 ]] || return "$EX_NOROOM"
  [[ -z $LIMIT_HIT ]] && ((CELL_RC != 0)) || return "$EX_FAIL"
  return "$CELL_RC"
}

# The results into the bundle; the record says done only behind that. Returns 0, 65, 73 or 74.
finish_sync() {
  local rc=0 attempt
  sync_cell "$CELL" || rc=$?
  if ((rc == 0)); then
    event 'done' "$CELL" "$R_attempt" ''
    prune_cell
    return 0
  fi
  read_record "$D/state/$CELL.json" cell/1 "$RUN_ID" || return "$EX_INTEGRITY"
  attempt=$R_attempt
  case $rc in "$EX_INTEGRITY" | "$EX_NOROOM") ;; *) rc=$EX_COPY ;; esac
  # A link that leads nowhere, a file that nobody may read: the copies of other cells do not fail by it.
  [[ -z $OWN_FAULT ]] || rc=$EX_INTEGRITY
  drop_room
  find_behind
  cell_record unsynced "not in the bundle yet (code $rc)" "${R_files_sha256-}" && replace_file "$D/state/$CELL.json" "$RECORD" behind ${BEHIND[@]+"${BEHIND[@]}"} || :
  event unsynced "$CELL" "$attempt" "code $rc"
  ! write_fault "$B" || log "$REPLY, so nothing can be copied there: mount the durable tier for writing again; then the same call"
  log "cell $CELL: unsynced: it has finished, and its results lie in $CELL_DIR only; the next call copies again"
  return "$rc"
}

# What the job says may go once its results are committed. Nothing required, nothing outside, no folder's link followed.
prune_cell() {
  local pattern path item keep IFS=
  [[ -s $B/records/$CELL.json ]] || return 0
  for pattern in ${PRUNE[@]+"${PRUNE[@]}"}; do
    case /$pattern/ in */../* | *//*) continue ;; esac
    # shellcheck disable=SC2231 # the pattern is to expand; IFS is empty, so a blank in it does not split
    for path in "$CELL_DIR"/$pattern; do
      [[ -e $path || -L $path ]] || continue
      keep=0
      for item in "${REQUIRED[@]}"; do
        item=$CELL_DIR/${item%/}
        if [[ $item == "$path" || $item == "$path"/* || $path == "$item"/* || $path -ef $item ]]; then keep=1; fi
      done
      ((keep)) || rm -rf -- "${path:?}" || log "could not remove $path"
    done
  done
}

# lib/ahead.bash: a run_one that run_queue has begun ahead of time: told of its cell, it looks, and waits for the word to go.
# needs: exit file limits cell
# reads: PROXY_HOOK NEED_GPUS DATA_PATHS

# Which cell, and what run_queue knows of it already. Where nothing comes, run_queue is gone or has none left.
hear_cell() { # sets CELL and what else is handed over    returns: 1 where nothing comes
  # By bytes: in another locale a command's last byte, should it begin a character, takes the end of the line with it.
  local line n LC_ALL=C
  local -a said=()
  # No command of ours is to read what is meant for us.
  exec {TOLD_FD}<&0 </dev/null
  for n in 1 2 3 4 5 6; do
    IFS= read -r -u "$TOLD_FD" line && [[ $line == =* ]] || return 1
    said+=("${line#=}")
  done
  CELL=${said[0]} QUEUE_CELL=${said[0]} QUEUE_AT=${said[1]} QUEUE_SHA=${said[2]} QUEUE_COMMAND=${said[5]}
  # Which environment this is comes with the word to go; nobody is to ask for it before.
  export OMP_NUM_THREADS=${said[3]} ENV_SPEC=00000000
  [[ -z ${said[4]} ]] || export CUDA_VISIBLE_DEVICES=${said[4]} CUDA_DEVICE_ORDER=PCI_BUS_ID
}

# While another cell runs, without a word. Should there be one to say, it is found again and said when it is our turn: by us, or,
# where it refuses the cell, by a run_one that is begun then. GPUs, data and a proxy are not looked at while others use them.
prepare_ahead() { # sets PREPARED_AT
  PREPARED_AT=-1 STAGE=''
  [[ -z $PROXY_HOOK ]] && ((NEED_GPUS == 0 && ${#DATA_PATHS[@]} == 0)) || return 0
  exec {SAID_FD}>&2 2>/dev/null
  trap 'drop_room; exit "$EX_AGAIN"' EXIT
  LOGGED=0
  prepare
  # The probes too: what is behind the word to go has less to flush.
  if [[ $CELL_NEXT == run ]] && flush "${PROBES[@]}" && read_probes; then PROBED=1; fi
  trap drop_room EXIT
  exec 2>&"$SAID_FD" {SAID_FD}>&-
  ((LOGGED != 0)) || PREPARED_AT=$SECONDS
}

await_go() { # returns: 1 where the word does not come
  local line
  IFS= read -r -u "$TOLD_FD" line && [[ $line == 'go '* ]] || return 1
  ENV_SPEC=${line#go }
  # Run_queue had no cell when it would have asked.
  [[ -n $ENV_SPEC ]] || PREPARED_AT=-1
  exec {TOLD_FD}<&-
}

usage() {
  cat <<'USAGE'
usage: run_one.sh [--queue FILE] [--adopt] CELL | --wait

Runs the command that the queue gives CELL, once: in the code directory, in a process group of its own, its output in a log
of its own. It counts as done only when the command ends with 0, every required artifact is there and not empty, and
the copy in the bundle reads back as its source. A later call resumes: same folder, identical command, CELL_RESUME=1. A cell that
is done is not run again. TERM, INT, HUP and USR1 reach the whole group once; after the grace it is killed.

--queue FILE  take the command from FILE (default: the run's own queue, else queue.tsv beside this script)
--adopt       the box that had this run, or its claims, is gone for good: take over
--wait        for run_queue: wait to be told of a cell on standard input, and end where nothing comes

exit codes: 0 done and checked; the command's own code where it failed; 1 no evidence, a limit; 64 usage, 65 integrity,
69 missing, 73 no room, 74 not copied, 75 somebody runs it, 77 refused, 78 configuration, 128+n stopped by signal n
USAGE
}

parse_words() { # <words...>    sets CELL QUEUE_FILE ADOPT; returns 64
  CELL='' QUEUE_FILE='' ADOPT=false WAIT=false
  while (($#)); do
    case $1 in
      --queue)
        [[ -n ${2-} ]] || return "$EX_USAGE"
        QUEUE_FILE=$2
        shift
        ;;
      --adopt) ADOPT=true ;;
      --wait) WAIT=true ;;
      -*) return "$EX_USAGE" ;;
      *)
        [[ -z $CELL && -n $1 ]] || return "$EX_USAGE"
        CELL=$1
        ;;
    esac
    shift
  done
  if [[ $WAIT == true ]]; then [[ -z $CELL ]]; else [[ -n $CELL ]]; fi
}

main() {
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_words "$@" || { usage >&2 && return "$EX_USAGE"; }
  open_outputs
  # The caller's environment may have a STAGE.
  STAGE=''
  # Until the cell begins nothing of ours stays, whatever ends us: whoever looks again may find that another has run it.
  trap drop_room EXIT
  if [[ $WAIT == true ]]; then
    # Nothing was done: 0 would say that the cell is.
    hear_cell || return "$EX_AGAIN"
    prepare_ahead
    await_go || return "$EX_AGAIN"
    still_prepared || prepare
  else
    prepare
  fi
  case $CELL_NEXT in
    nothing) claim 'done already' "cell $CELL" "$B/records/$CELL.json" ;;
    sync)
      drop_dead_room
      finish_sync
      ;;
    run) run_attempt ;;
  esac
}

# All that is to be known, and to hold, before the cell is claimed. May be done twice.
prepare() {
  check_name "$CELL" cell
  open_run false '' "$ADOPT"
  begin_room
  find_cell
  CELL_DIR=$D/cells/$CELL
  judge_cell
  [[ $CELL_NEXT != run ]] || gate_cell
}

# Does what was looked at ahead of time hold? Not for long, and what costs nothing is looked at once more: the cell before may have
# taken a folder away, another runner may have begun this one.
still_prepared() {
  local claim
  ((PREPARED_AT >= 0 && SECONDS >= PREPARED_AT && SECONDS - PREPARED_AT <= 1)) && [[ -d $CODE_DIR && -d $D/state && -d $B/records ]] || return 1
  [[ $CELL_NEXT != run || (-d $D/logs/$CELL && -d $D/claims/$CELL) ]] || return 1
  printf -v claim '%s/claims/%s/%03d' "$D" "$CELL" $((${CLAIM_N:-0} + 1))
  [[ ! -e $claim ]]
}

run_attempt() {
  take_cell
  run_cell
  judge_end
}

#!/usr/bin/env bash
# run_queue.sh: run all cells of the queue that are not done yet; the same call continues where it was stopped.
# Generated; do not edit. Source: templates/box/run_queue.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=run_queue.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/kaggle/temp/hf}
# the interpreter
PY=${PY-python3}
# where it is mounted
readonly DURABLE_TIER_PATH=''
# what shows that the tier is there
readonly DURABLE_PROOF=none
# retries of a transient failure
readonly RETRY_MAX=2
# GPUs for one cell
readonly NEED_GPUS=0
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# files of one cell
readonly NEED_FILES=20
# host memory for one cell
readonly NEED_RAM_BYTES=1000000000
# expected seconds for one cell
readonly NEED_S=6
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# and how many files each must hold
readonly -a DATA_FILES=()
# and how many bytes; empty: not said
readonly -a DATA_SIZES=()
# and its digest, where it is one file
readonly -a DATA_SUMS=()
# and the list of its digests, relative to the code
readonly -a DATA_LISTS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# --- end of bound values ---

record_open() { # <schema>
  RECORD='{'$'\\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\\"\\\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\\n''  "'$1'": '$2
}
record_bool() { # <name> <true or false>
  case $2 in
    true | false) record_raw "$1" "$2" ;;
    *)
      log "a bug here: member $1 of a record is to be true or false and is '$2'"
      return "$EX_INTEGRITY"
      ;;
  esac
}
record_close() {
  RECORD+=$'\\n''}'$'\\n'
}

# lib/schedule.bash: cells into slots, judged by their records, counted so that the sum is always true.
# needs: exit log file record room run claim states roster idle
# reads: SLOTS SLOT_GPUS RETRY_MAX NEED_S ONLY SKIP_FAILED ADOPT SELF_DIR

# The plan: cells of the roster that this call is to see to. P_NAME, P_AT (their places in the roster), and P_PHASE:
# todo running | ok unsynced interrupted failed skipped busy. Only the first two are not final.
plan_cells() { # of the cells that have come since the last time
  local i name start=${#P_NAME[@]} first=''
  local -a new=()
  for ((i = ROSTER_N; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ -n $ONLY ]] || { new=("${QUEUE_NAMES[@]:ROSTER_N}") && break; }
    name=${QUEUE_NAMES[i]}
    [[ ,$ONLY, != *",$name,"* ]] || { new+=("$name") && P_AT+=("$i"); }
  done
  ROSTER_N=${#QUEUE_NAMES[@]}
  P_NAME+=(${new[@]+"${new[@]}"})
  [[ -n $ONLY ]] || P_AT=("${!P_NAME[@]}")
  # In the bundle: the usual case, of which there may be very many, and nothing to say of it.
  P_PHASE+=(${new[@]+"${new[@]/*/skipped}"})
  i=$((start - 1))
  for name in ${new[@]+"${new[@]}"}; do
    i=$((i + 1))
    [[ ${RECORD_OF[$name]-} != 1* ]] || continue
    first=${first:-$i}
    P_PHASE[i]=todo
    first_phase "$i"
  done
  ((start > 0)) || NEXT=${first:-${#P_NAME[@]}}
}

# What is done is recognised from the records read in one go; everything else says why it is run again.
first_phase() { # <index>
  local REPLY name=${P_NAME[$1]}
  state_now "$name"
  case $REPLY in
    'done') P_PHASE[$1]=skipped ;;
    pending) ;;
    failed)
      if [[ $SKIP_FAILED == true ]]; then
        P_PHASE[$1]=skipped
        LEFT_FAILED=$((LEFT_FAILED + 1))
        log "cell $name: failed before ($C_CLASS), left alone by --skip-failed"
      else
        log "cell $name: failed before ($C_CLASS): to run again"
      fi
      ;;
    unsynced)
      P_COPY[$1]=1
      log "cell $name: finished, but not in the bundle: to copy again"
      ;;
    unknown) log "cell $name: unknown${C_WHY:+ ($C_WHY)}: to resume" ;;
    *) log "cell $name: ${REPLY}: to resume" ;;
  esac
}

# Counts of phases: C_TODO C_RUNNING C_OK C_UNSYNCED C_INTERRUPTED C_FAILED C_SKIPPED C_BUSY.
count_phases() {
  local REPLY
  count_phase todo && C_TODO=$REPLY
  count_phase running && C_RUNNING=$REPLY
  count_phase ok && C_OK=$REPLY
  count_phase unsynced && C_UNSYNCED=$REPLY
  count_phase interrupted && C_INTERRUPTED=$REPLY
  count_phase failed && C_FAILED=$REPLY
  count_phase skipped && C_SKIPPED=$REPLY
  count_phase busy && C_BUSY=$REPLY
}
# Cells in a phase, into REPLY. No loop over all cells is run for it: the phases differ in their first letter.
count_phase() { # <phase>
  local -a those=()
  # shellcheck disable=SC2206 # the others become nothing and fall away; a phase is one plain word
  ((${#P_PHASE[@]} == 0)) || those=(${P_PHASE[@]/#[!${1:0:1}]*/})
  REPLY=${#those[@]}
}

# --- slots ---

readonly -a TICKS=(0.01 0.02 0.03 0.05 0.1 0.2 0.25)

# Begin cells in free slots, in order, while nothing speaks against it.
fill_slots() {
  local slot
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -z $STOPPING && -z $STOP_CODE && -z $PRUNE_WAITS ]] || return 0
    [[ -z ${SLOT_PID[slot]-} ]] || continue
    next_todo || return 0
    begin_cell "$slot" "$REPLY"
  done
}
next_todo() { # index of the next cell to run, into REPLY; 1: there is none
  while ((NEXT < ${#P_NAME[@]})); do
    REPLY=$NEXT
    [[ ${P_PHASE[NEXT]} != todo ]] || return 0
    NEXT=$((NEXT + 1))
  done
  return 1
}

# The next run_one is begun while this cell runs: it reads its own script meanwhile and, told which cell will probably be its,
# looks at what must hold before that. Then it waits for the word, by a pipe that nobody but us can write to: so it ends with us.
warm_up() { # [index of the cell]    sets WARM_PID WARM_INDEX GO_FD
  [[ -z $WARM_PID && -z $STOPPING$STOP_CODE ]] || return 0
  exec {GO_FD}<> <(:)
  QUEUE_PID=$$ OVERRIDES_SAID=1 bash "${RUN_ONE[@]}" --wait <"/proc/self/fd/$GO_FD" {GO_FD}>&- &
  WARM_PID=$! WARM_INDEX=''
  # Of several slots the one that will be free has its own GPUs.
  if (($# > 0 && SLOTS == 1)); then
    have_digest "$1"
    tell_warm "$1" "${P_AT[$1]}" "${SLOT_GPUS[0]-}" || :
  fi
}
# What run_one would else read, hash and find out again.
tell_warm() { # <index> <its place in the roster> <GPUs>    returns: 0, or 1 where this command would not fit into a pipe
  local command=${QUEUE_COMMANDS[$2]}
  [[ -n $WARM_PID ]] && ((${#command} <= 15000)) || return 1
  printf '=%s\\n' "${QUEUE_NAMES[$2]}" "$2" "${P_SHA[$1]-}" "$OMP_NUM_THREADS" "$3" "$command" >&"$GO_FD"
  WARM_INDEX=$1
}
# The first cell to run, told before all records are read: it will be the first that has none on the data tier, where a look is
# cheap. Should it be another, that one is begun cold.
tell_first() {
  local i
  [[ $SLOTS == 1 && -z $ONLY ]] || return 0
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ ! -e $D/state/${QUEUE_NAMES[i]}.json ]] || continue
    tell_warm "$i" "$i" "${SLOT_GPUS[0]-}" || :
    return 0
  done
}
begin_warm() { # <slot> <index>    returns: 0, or 1: it has to be begun cold
  [[ -n $WARM_PID && -z ${P_COLD[$2]-} && (-z $WARM_INDEX || $WARM_INDEX == "$2") ]] && kill -0 "$WARM_PID" 2>/dev/null || return 1
  if [[ -z $WARM_INDEX ]]; then
    have_digest "$2"
    tell_warm "$2" "${P_AT[$2]}" "${SLOT_GPUS[$1]-}" || return 1
  fi
  printf 'go %s\\n' "$ENV_SPEC" >&"$GO_FD"
  exec {GO_FD}>&-
  SLOT_PID[$1]=$WARM_PID WARM_PID=''
}
drop_warm() {
  [[ -n $WARM_PID ]] || return 0
  exec {GO_FD}>&-
  # It may hang at a mount that is dead; who stops us is not to wait for that.
  [[ -z $STOPPING ]] || kill -TERM "$WARM_PID" 2>/dev/null || :
  { wait "$WARM_PID"; } 2>/dev/null || :
  WARM_PID=''
}

begin_cell() { # <slot> <index>
  local REPLY
  P_RETRIES[$2]=${P_RETRIES[$2]-0} P_BLOWS[$2]=${P_BLOWS[$2]-0} P_PRUNED[$2]=${P_PRUNED[$2]-0}
  P_PHASE[$2]=running SLOT_INDEX[$1]=$2 SLOT_BEGAN[$1]=$SECONDS
  last_claim "${P_NAME[$2]}"
  SLOT_CLAIM[$1]=$CLAIM_N
  begin_warm "$1" "$2" || begin_cold "$1" "$2"
  # A signal that came between the fork and this line has not reached it.
  [[ -z $STOPPING ]] || kill -TERM "${SLOT_PID[$1]}" 2>/dev/null || :
}
begin_cold() { # <slot> <index>
  drop_warm
  have_digest "$2"
  # A very long command is no matter for an environment.
  export QUEUE_CELL=${P_NAME[$2]} QUEUE_AT=${P_AT[$2]} QUEUE_COMMAND=${QUEUE_COMMANDS[P_AT[$2]]} QUEUE_SHA=${P_SHA[$2]-}
  ((${#QUEUE_COMMAND} <= 15000)) || QUEUE_CELL='' QUEUE_COMMAND=''
  if [[ -n ${SLOT_GPUS[$1]-} ]]; then
    CUDA_VISIBLE_DEVICES=${SLOT_GPUS[$1]} CUDA_DEVICE_ORDER=PCI_BUS_ID bash "${RUN_ONE[@]}" "${P_NAME[$2]}" </dev/null &
  else
    bash "${RUN_ONE[@]}" "${P_NAME[$2]}" </dev/null &
  fi
  SLOT_PID[$1]=$!
}

# The digests of this cell's command and of those behind it, by one process instead of one for each cell, into P_SHA. Where
# that cannot be done, run_one makes its own.
have_digest() { # <index>
  local i fd
  local -a at=() fds=() paths=()
  [[ -z ${P_SHA[$1]-} && -z ${FEW_FDS-} ]] && command -v sha256sum >/dev/null 2>&1 || return 0
  for ((i = $1; i < ${#P_NAME[@]} && ${#at[@]} < 32; i++)); do
    [[ $i == "$1" || (${P_PHASE[i]} == todo && -z ${P_SHA[i]-}) ]] || continue
    { exec {fd}< <(printf '%s' "${QUEUE_COMMANDS[P_AT[i]]}"); } 2>/dev/null || { FEW_FDS=1 && break; }
    at+=("$i") fds+=("$fd") paths+=("/dev/fd/$fd")
  done
  [[ -n ${FEW_FDS-} ]] || take_digests || FEW_FDS=1
  for fd in ${fds[@]+"${fds[@]}"}; do exec {fd}<&-; done
}
take_digests() { # reads have_digest's own: at paths    returns: 1 where the shell may not open so much
  local i=0 line
  while IFS= read -r line; do
    [[ ${line:0:64} =~ ^[0-9a-f]{64}$ && ${line:66} == "${paths[i]-}" ]] || break
    P_SHA[at[i]]=${line:0:64}
    i=$((i + 1))
  done < <(exec sha256sum "${paths[@]}" 2>/dev/null)
}

# Wait until at least one slot may have ended. With one cell running this sleeps in wait, which a trap interrupts.
await_slot() {
  local REPLY slot pid='' n=0
  ! next_todo || warm_up "$REPLY"
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -z ${SLOT_PID[slot]-} ]] || { pid=${SLOT_PID[slot]} && n=$((n + 1)); }
  done
  if ((n == 1)); then
    { wait "$pid"; } 2>/dev/null || :
    say_late
  else
    # Short at first, for cells may be short; longer while nothing ends.
    idle "${TICKS[TICK]}"
    TICK=$((TICK < ${#TICKS[@]} - 1 ? TICK + 1 : TICK))
  fi
}

# Judge every slot whose run_one is gone. A child that bash has collected cannot be signalled any more.
reap_slots() {
  local slot rc of
  for ((slot = 0; slot < SLOTS; slot++)); do
    [[ -n ${SLOT_PID[slot]-} ]] || continue
    ! kill -0 "${SLOT_PID[slot]}" 2>/dev/null || continue
    # A signal that comes in the very moment in which run_one ends may cost bash that end: it would wait for who waits for us.
    [[ -z $STOPPING ]] || drop_warm
    rc=0
    { wait "${SLOT_PID[slot]}"; } 2>/dev/null || rc=$?
    of=("${SLOT_INDEX[slot]}" "$rc" "${SLOT_CLAIM[slot]}" "${SLOT_PID[slot]}" "${SLOT_BEGAN[slot]}")
    SLOT_PID[slot]=''
    TICK=0
    # Behind a good end nothing can speak against the next cell, which need not wait for our words about this one.
    ((rc != 0)) || fill_slots
    judge_slot "${of[@]}"
  done
}

# --- judging, by record and attempt number ---

judge_slot() { # <index> <run_one's exit code> <claims before it> <its pid> <when it began>
  local REPLY i=$1 rc=$2 name=${P_NAME[$1]} took=$((SECONDS - $5)) state=none
  R_class=''
  if read_record "$D/state/$name.json" cell/1 "$RUN_ID"; then state=${R_state-}; elif [[ -e $D/state/$name.json ]]; then state=unknown; fi
  if ! claimed_by "$name" "$3" "$4"; then
    if ((rc == EX_AGAIN)); then
      # Told ahead of time, it has found something that it left for another to say.
      P_PHASE[i]=todo P_COLD[i]=1
      ((NEXT <= i)) || NEXT=$i
      return 0
    fi
    # No attempt of ours: refused, busy, found done, or only the copy was made up for.
    if [[ $state == unsynced && $rc != 0 && $rc != "$EX_BUSY" ]]; then judge_unsynced "$i" "$rc"; else judge_refusal "$i" "$rc"; fi
  elif ((rc != 0)) && never_began "$name" "$state"; then
    judge_refusal "$i" "$rc"
  else
    case $state in
      'done') P_PHASE[i]=ok TOOK=$((TOOK + took)) TOOK_N=$((TOOK_N + 1)) ;;
      unsynced) judge_unsynced "$i" "$rc" ;;
      failed) judge_failed "$i" ;;
      *)
        ((rc != EX_NOROOM)) || stop_unwritten "$name"
        judge_interrupted "$i"
        ;;
    esac
  fi
  say_progress "$i" "$took"
}

stop_unwritten() { # <cell>
  local REPLY
  write_words "$D/state" "cell $1 has run, and its record could not be written" data
  stop_queue "$EX_NOROOM" "$FAULT_WHY; those of the next ones could not either; $FAULT_DO"
}

# Has this run_one taken a claim on the cell behind the N-th, CLAIM_OURS? Its exit code could be the trainer's own.
claimed_by() { # <cell> <claims before it> <pid>
  local n file pid rest
  last_claim "$1"
  for ((n = $2 + 1; n <= CLAIM_N; n++)); do
    printf -v file '%s/claims/%s/%03d' "$D" "$1" "$n"
    [[ -f $file ]] || continue
    { read -r rest rest pid rest <"$file"; } 2>/dev/null || continue
    [[ $pid != "$3" ]] || { CLAIM_OURS=$n && return 0; }
  done
  return 1
}

# Did our attempt end behind its claim and before the cell? Then the record is an older one's or none, the exit code run_one's.
never_began() { # <cell> <state>
  local log
  case $2 in
    none | unknown)
      printf -v log '%s/logs/%s/attempt-%03d.log' "$D" "$1" "$CLAIM_OURS"
      [[ ! -e $log ]]
      ;;
    *) [[ ${R_attempt-} =~ ^[0-9]+$ ]] && ((R_attempt < CLAIM_OURS)) ;;
  esac
}

# Run_one left without beginning an attempt: the record is as it was.
judge_refusal() { # <index> <exit code>
  local name=${P_NAME[$1]}
  case $2 in
    0) # it found the cell committed, by another runner or because it made up for the copy; or its word is worth nothing
      if [[ ! -s $B/records/$name.json ]]; then judge_interrupted "$1"; elif [[ -n ${P_COPY[$1]-} ]]; then P_PHASE[$1]=ok; else P_PHASE[$1]=skipped; fi
      ;;
    "$EX_BUSY") P_PHASE[$1]=busy ;;
    "$EX_INTEGRITY") P_PHASE[$1]=failed ;;
    "$EX_USAGE" | "$EX_MISSING" | "$EX_NOROOM" | "$EX_COPY" | "$EX_GATE" | "$EX_CONFIG")
      # What failed in this call and may not even be retried has failed.
      P_PHASE[$1]=todo
      ((P_RETRIES[$1] + P_PRUNED[$1] == 0)) || P_PHASE[$1]=failed
      stop_queue "$2" "cell $name was refused with $2; what refuses it refuses the others too"
      ;;
    *) judge_interrupted "$1" ;; # killed before its claim, or before its record
  esac
}

judge_unsynced() { # <index> <exit code>
  P_PHASE[$1]=unsynced
  case $2 in
    "$EX_NOROOM" | "$EX_COPY" | "$EX_MISSING") stop_queue "$2" "cell ${P_NAME[$1]} could not be copied (code $2); the next ones could not either" ;;
  esac
}

judge_failed() { # <index>    reads: R_class
  P_PHASE[$1]=failed
  case $R_class in
    transient)
      ((P_RETRIES[$1] < RETRY_MAX)) || return 0
      P_RETRIES[$1]=$((P_RETRIES[$1] + 1))
      again "$1" "transient, retry ${P_RETRIES[$1]} of $RETRY_MAX"
      ((P_RETRIES[$1] < 2)) || RETRY_PAUSE=10
      ;;
    disk_full)
      if ((P_PRUNED[$1] == 0)); then
        P_PRUNED[$1]=1 PRUNE_WAITS=1
        again "$1" "disk_full, once more after scratch is pruned"
      else
        stop_queue "$EX_NOROOM" "the disk is full also after pruning $S: expand it; nothing else is removed, and no cell is made smaller"
      fi
      ;;
  esac
}

# Stopped from outside, or run_one itself was killed: at once again, but not for ever.
judge_interrupted() { # <index>
  P_PHASE[$1]=interrupted
  [[ -z $STOPPING && -z $STOP_CODE ]] || return 0
  P_BLOWS[$1]=$((P_BLOWS[$1] + 1))
  ((P_BLOWS[$1] <= 5)) || { log "cell ${P_NAME[$1]}: interrupted ${P_BLOWS[$1]} times in this call: left" && return 0; }
  again "$1" "interrupted, resumed at once"
}

again() { # <index> <why>
  P_PHASE[$1]=todo
  ((NEXT <= $1)) || NEXT=$1
  event retry "${P_NAME[$1]}" - "$2"
  log "cell ${P_NAME[$1]}: $2"
}

stop_queue() { # <code> <why>
  [[ -z $STOP_CODE ]] || return 0
  STOP_CODE=$1
  log "no further cell is begun: $2"
}

# --- scratch, and only ours ---

# Empty S, when no cell runs: what we made below $SCRATCH/gpu-runbook/<run>, by the mark that we left there.
prune_scratch() {
  local REPLY mark=''
  PRUNE_WAITS=''
  # Who waits has made its folders there.
  drop_warm
  ! read_text "$S/.gpu-runbook-scratch" || mark=${REPLY%%$'\\n'*}
  if [[ $mark != "$RUN_ID" || -L $S || $S != */gpu-runbook/"$RUN" ]]; then
    log "scratch $S has no mark of this run: nothing is removed"
    return 0
  fi
  log "pruning scratch: $S"
  find "${S:?}" -xdev -mindepth 1 -depth ! -name .gpu-runbook-scratch -delete 2>/dev/null || log "not all of $S could be removed"
}

# --- words ---

say_progress() { # <index> <seconds>
  local REPLY left bar='' eta='not known' per
  count_phases
  left=$((C_TODO + C_RUNNING))
  if ((TOOK_N > 0)); then per=$((TOOK / TOOK_N)); else per=$NEED_S; fi
  span $(((left * per + SLOTS - 1) / SLOTS))
  eta=$REPLY
  [[ ! -t 2 ]] || { draw_bar $((${#P_NAME[@]} - left)) ${#P_NAME[@]} && bar="$REPLY "; }
  log "${bar}[$((${#P_NAME[@]} - left))/${#P_NAME[@]}] ${P_NAME[$1]}: ${P_PHASE[$1]} after $2 s; running $C_RUNNING, failed $C_FAILED, left $left, about $eta to go"
}
span() { # <seconds>    into REPLY
  if (($1 >= 7200)); then REPLY="$(($1 / 3600)) h $(($1 % 3600 / 60)) min"; elif (($1 >= 120)); then REPLY="$(($1 / 60)) min"; else REPLY="$1 s"; fi
}
draw_bar() { # <done> <all>    into REPLY
  local full='####################' none='....................' n=$((20 * $1 / $2))
  REPLY="[${full:0:n}${none:0:20-n}]"
}

# The sum, always printed: every planned cell is in exactly one of the four.
say_sum() {
  count_phases
  local started=$((C_OK + C_UNSYNCED + C_INTERRUPTED + C_RUNNING)) pending=$((C_TODO + C_BUSY)) text
  text="planned ${#P_NAME[@]} = started $started + skipped $C_SKIPPED + failed $C_FAILED + pending $pending"
  text+="; of the started: $C_OK ended well, $C_UNSYNCED not copied, $((C_INTERRUPTED + C_RUNNING)) interrupted; of the skipped: $((C_SKIPPED - LEFT_FAILED)) were done before, $LEFT_FAILED had failed"
  printf '%s\\n' "$text" || :
  event queue_end - - "$text"
}

# Before cells start side by side: the digests are read once, not by each of them. What does not hold, run_one refuses.
prove_ahead() {
  local i
  [[ -z $HF_HOME ]] || expand_path HF_HOME
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    [[ -n ${DATA_SUMS[i]}${DATA_LISTS[i]} ]] || continue
    prove_data "$i" now || log "$PROOF_WHAT: $PROOF_WHY"
  done
}

usage() {
  cat <<'USAGE'
usage: run_queue.sh [--queue FILE] [--slots N | --gpus LIST] [--shard I/N] [--only CELL,...] [--skip-failed] [--adopt] [--dry-run]

Runs each cell of the queue that is not done, by the run_one.sh beside it, and goes by the cells' records. Done cells are
skipped; failed, interrupted and unknown ones are run again with the identical command, resumed where they were. In the
same call only what was preempted, or failed for a passing reason, is retried; a full disk once, after our scratch was
emptied. A full disk or a lost tier stops the queue and leaves the rest pending. Lines appended to the queue are seen.

--queue FILE    take cells from FILE (default: queue.tsv beside this script); new ones are added to the run's own queue
--slots N       N cells at a time (default 1)
--gpus LIST     one cell per entry, pinned to it: 0,1 or UUIDs; an entry twice = two cells on that GPU
--shard I/N     of the source's cells, those whose index modulo N is I-1; a run keeps its shard
--only CELL,... these cells only
--skip-failed   leave failed cells alone
--adopt         the box that had this run is gone for good: take over
--dry-run       say what would be done; change nothing

exit codes: 0 every planned cell is done; 1 some failed; 64 usage, 65 integrity, 69 missing, 73 no room, 74 not copied,
75 the rest is run by somebody else, 77 refused, 78 configuration, 128+n stopped by signal n (cells: interrupted)
USAGE
}

parse_words() { # <words...>    returns 64
  QUEUE_FILE='' SLOTS=1 GPUS='' SHARD='' ONLY='' SKIP_FAILED=false ADOPT=false DRY=false
  local slots=''
  while (($#)); do
    case $1 in
      --skip-failed) SKIP_FAILED=true ;;
      --adopt) ADOPT=true ;;
      --dry-run) DRY=true ;;
      --queue | --slots | --gpus | --shard | --only)
        [[ -n ${2-} ]] || return "$EX_USAGE"
        case $1 in
          --queue) QUEUE_FILE=$2 ;;
          --slots) slots=$2 ;;
          --gpus) GPUS=$2 ;;
          --shard) SHARD=$2 ;;
          --only) ONLY=$2 ;;
        esac
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
  [[ -z $slots || (-z $GPUS && $slots =~ ^[1-9][0-9]{0,3}$) ]] || return "$EX_USAGE"
  SLOTS=${slots:-1}
  [[ -z $ONLY || $ONLY == *[!,]* ]] || return "$EX_USAGE"
  [[ -z $SHARD ]] || { [[ $SHARD =~ ^([1-9][0-9]{0,5})/([1-9][0-9]{0,5})$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])); } || return "$EX_USAGE"
  [[ -z $GPUS || $GPUS =~ ^[A-Za-z0-9-]+(,[A-Za-z0-9-]+)*$ ]] || return "$EX_USAGE"
}

# GPUs into slots: NEED_GPUS entries each. A scheduler's assignment is narrowed, never left.
assign_gpus() {
  local -a ids
  local i per=$((NEED_GPUS > 0 ? NEED_GPUS : 1)) id
  SLOT_GPUS=()
  if [[ -z $GPUS ]]; then
    ((NEED_GPUS == 0 || SLOTS == 1)) || refuse "$EX_USAGE" "--slots $SLOTS" "a cell needs $NEED_GPUS GPU(s), and nothing says which" "use --gpus, with an entry twice where two cells may share one"
    return 0
  fi
  IFS=, read -ra ids <<<"$GPUS"
  ((${#ids[@]} % per == 0)) || refuse "$EX_USAGE" "--gpus $GPUS" "a cell needs $per GPUs, and ${#ids[@]} is no multiple of it" "name as many"
  for id in "${ids[@]}"; do
    [[ -z ${CUDA_VISIBLE_DEVICES-} || ,$CUDA_VISIBLE_DEVICES, == *",$id,"* ]] ||
      refuse "$EX_GATE" "--gpus $GPUS" "GPU $id is not among those assigned here (CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES)" "name assigned ones, or leave --gpus out"
  done
  SLOTS=$((${#ids[@]} / per))
  for ((i = 0; i < SLOTS; i++)); do
    SLOT_GPUS[i]=$(IFS=, && printf '%s' "${ids[*]:i*per:per}")
  done
}

main() {
  local REPLY
  case ${1-} in -h | --help) usage && return 0 ;; esac
  parse_words "$@" || { usage >&2 && return "$EX_USAGE"; }
  open_outputs
  self_dir
  [[ -f $SELF_DIR/run_one.sh ]] || refuse "$EX_MISSING" "$SELF_DIR/run_one.sh" "it is not beside $PROG" "copy the whole folder box/ again"
  [[ -z $QUEUE_FILE || $QUEUE_FILE == /* ]] || QUEUE_FILE=$PWD/$QUEUE_FILE
  assign_gpus
  P_NAME=() P_AT=() P_SHA=() P_PHASE=() P_RETRIES=() P_BLOWS=() P_PRUNED=() P_COLD=() P_COPY=() SLOT_PID=() SLOT_INDEX=() SLOT_BEGAN=() SLOT_CLAIM=()
  NEXT=0 STOPPING='' STOP_CODE='' PRUNE_WAITS='' RETRY_PAUSE=0 TOOK=0 TOOK_N=0 TICK=0 LEFT_FAILED=0 WARM_PID='' ROSTER_N=0
  if [[ $DRY == true ]]; then
    dry_run
    return
  fi
  # Which environment this is takes longest to find out, the more so for a new run, which has to ask the interpreter.
  run_places
  if [[ -z ${ENV_SPEC-} ]]; then
    if [[ -e $D/.environment.key ]]; then begin_known || :; else begin_describing; fi
  fi
  open_run false "$SHARD" "$ADOPT"
  RUN_ONE=("$SELF_DIR/run_one.sh" --queue "$D/queue.tsv")
  [[ $ADOPT != true ]] || RUN_ONE+=(--adopt)
  warm_up
  begin_states
  merge_queue
  share_threads
  tell_first
  end_states
  plan_cells
  check_only
  know_environment
  ! next_todo || gate_write
  run_plan
  finish
}

check_only() {
  local name
  for name in ${ONLY//,/ }; do
    [[ " ${P_NAME[*]-} " == *" $name "* ]] || refuse "$EX_CONFIG" "--only $name" "no cell of the queue has this name" "names: ${QUEUE_NAMES[*]:0:5} \u2026"
  done
}

# Threads for a cell: what this box lets us use, shared by the slots; where a person has said it, theirs.
share_threads() {
  [[ -z ${OMP_NUM_THREADS-} ]] || return 0
  probe_cpus
  OMP_NUM_THREADS=$((CPUS / SLOTS > 0 ? CPUS / SLOTS : 1))
}
# What every cell would find out again.
know_environment() {
  local REPLY
  ENV_SPEC=${ENV_SPEC-}
  ! next_todo || env_spec
  ((SLOTS == 1)) || ! next_todo || prove_ahead
  export OMP_NUM_THREADS ENV_SPEC OVERRIDES_SAID=1 QUEUE_PID=$$
}

run_plan() {
  trap 'on_stop TERM' TERM
  trap 'on_stop INT' INT
  trap 'on_stop HUP' HUP
  trap 'on_stop USR1' USR1
  count_phases
  log "run $RUN_ID: ${#P_NAME[@]} cells planned, $C_SKIPPED to skip, $SLOTS at a time"
  while :; do
    fill_slots
    if still_running; then
      await_slot
      reap_slots
    elif [[ -n $STOPPING$STOP_CODE ]]; then
      break
    elif [[ -n $PRUNE_WAITS ]]; then
      prune_scratch
    elif next_todo; then
      pause_retry
    else
      # Dry: somebody may have appended lines meanwhile, or spoilt the source: then the sum is said all the same.
      source_changed || break
      (merge_queue) || { STOP_CODE=$? && continue; }
      merge_queue
      ((${#QUEUE_NAMES[@]} == ROSTER_N)) || plan_cells
      next_todo || break
    fi
  done
}
still_running() {
  [[ -n ${SLOT_PID[*]-} && ${SLOT_PID[*]} == *[0-9]* ]]
}
pause_retry() {
  # By rounds, for a clock may be set meanwhile.
  local rounds=$((RETRY_PAUSE * 2))
  RETRY_PAUSE=0
  while ((rounds-- > 0)) && [[ -z $STOPPING ]]; do idle 0.5; done
}

# Told to stop: the cells are told once and save; they are interrupted, not failed.
on_stop() { # <signal>
  local pid
  [[ -z $STOPPING ]] || return 0
  STOPPING=$1
  LATE="signal $1: no further cell is begun; those that run are told and may save"
  for pid in ${SLOT_PID[@]+"${SLOT_PID[@]}"}; do
    [[ -z $pid ]] || kill -TERM "$pid" 2>/dev/null || :
  done
}

# The sum, and the exit code: 0 only where every planned cell is done.
finish() {
  local number
  drop_warm
  say_late
  say_sum
  if [[ -n $STOPPING ]]; then
    number=$(kill -l "$STOPPING") || number=15
    return $((128 + number))
  fi
  [[ -z $STOP_CODE ]] || return "$STOP_CODE"
  ((C_FAILED + C_UNSYNCED + C_INTERRUPTED + LEFT_FAILED == 0)) || return "$EX_FAIL"
  ((C_BUSY == 0)) || return "$EX_BUSY"
  ((C_TODO == 0)) || return "$EX_FAIL"
}

# What would be done: cells, outputs, resources, time. Reads only.
dry_run() {
  local REPLY i n=0 rounds
  run_places
  if read_record "$D/run.json" run/1 || { [[ $B != "$D" ]] && read_record "$B/run.json" run/1; }; then
    RUN_ID=$R_run_id RUN_SHARD=$R_shard
  else
    RUN_ID='(none yet)' RUN_SHARD=${SHARD:-1/1}
  fi
  [[ -z $SHARD || $SHARD == "$RUN_SHARD" ]] || refuse "$EX_GATE" "run $RUN_ID" "it is of shard $RUN_SHARD, not $SHARD" "give --shard $RUN_SHARD, or a RUN of its own to each box"
  DRY_QUEUE=1 merge_queue
  read_states
  plan_cells
  check_only
  count_phases
  printf 'run %s (%s), shard %s, %s cells planned: %s to run, %s to skip\\n' "$RUN" "$RUN_ID" "$RUN_SHARD" "${#P_NAME[@]}" "$C_TODO" "$C_SKIPPED"
  for ((i = 0; i < ${#P_NAME[@]}; i++)); do
    [[ ${P_PHASE[i]} == todo ]] || continue
    n=$((n + 1))
    ((n <= 20)) || continue
    state_now "${P_NAME[i]}"
    printf '  %s (%s) -> %s\\n' "${P_NAME[i]}" "$REPLY" "$B/final_ckpts/${P_NAME[i]}"
  done
  ((n <= 20)) || printf '  and %s more\\n' $((n - 20))
  rounds=$(((C_TODO + SLOTS - 1) / SLOTS))
  span $((rounds * NEED_S))
  printf 'needs %s bytes and %s files on %s, %s bytes of memory and %s GPU(s) at a time, about %s with %s at a time\\n' \\
    $((C_TODO * NEED_DISK_BYTES)) $((C_TODO * NEED_FILES)) "$D" $((SLOTS * NEED_RAM_BYTES)) $((SLOTS * NEED_GPUS)) "$REPLY" "$SLOTS"
}

#!/usr/bin/env bash
# session.sh: one session of a notebook: bring back the run, run the queue under a clock, save, aggregate.
# Generated; do not edit. Source: templates/box/session.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=session.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the profile's name
readonly PROFILE=kaggle
# the job's name
readonly JOB=demo
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# the branch that a formal run is at
readonly BRANCH=main
# a session's queue stops after so many seconds, an hour before its cap; 0: no cap is known
readonly SESSION_S=28800
# what outlives a session: name, proof, path
readonly -a AWAY=(
  "input none /kaggle/input"
)
# data that must be there, relative to the code
readonly -a DATA_PATHS=()
# hf_home: below HF_HOME, not below the code
readonly -a DATA_UNDER=()
# --- end of bound values ---

# Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), into REPLY.
start_ticks() { # <pid>    returns: 1 where there is no such process, or only its zombie
  local stat fields
  REPLY=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The name in parentheses may hold blanks and parentheses itself: cut behind the last one.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]-} != [ZX] ]] || return 1
  REPLY=${fields[19]-}
  [[ -n $REPLY ]]
}
# No dead mount, driver or server makes us wait for ever: WORDS, ended after SECONDS where a `timeout` works here, killed where they
# do not heed that.
within() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 rc=0 begin=$SECONDS
  shift
  if ! command -v timeout >/dev/null 2>&1; then
    "$@"
  elif timeout -k 5 5 true 2>/dev/null; then
    timeout -k 5 "$limit" "$@" || rc=$?
  elif timeout 5 true 2>/dev/null; then
    timeout "$limit" "$@" || rc=$?
  else
    "$@"
  fi || return
  # Ended at the limit: by TERM under busybox (143), by KILL where TERM was not heeded (137). Before it, that is the words' own status.
  case $rc in 137 | 143) ((SECONDS - begin < limit)) || rc=124 ;; esac
  return "$rc"
}

SAVE_EVERY_S=${SAVE_EVERY_S-900} # between two copies to the storage that outlives the session

usage() {
  cat <<'USAGE'
usage: session.sh [--prepare] [--from DIR] [--save-to DIR] [--seconds N] [-- WORDS FOR run_queue.sh...]

What a fresh session of a notebook needs, in one call; the same call in the next session goes on.
  1. no code here yet: a file code.bundle (git bundle) is looked for on the storage that outlives a session and in
     DATA_DIR, and cloned; declared data that is not below the code is looked for there by its whole path, and linked;
     no run here yet: the earlier session's run folder is looked for there, copied and compared
     (not its box/ and code/, which each session gets anew)
  2. the queue (run_queue.sh --adopt), stopped in time for what follows; while it runs, what is new is copied to that
     storage, where it can be written
  3. the rest is copied, and the bundle is aggregated
Its last line says how the queue ended and where the run is to be found.

--prepare       1. alone: before preflight and smoke
--from DIR      the run's folder of an earlier session, or a folder that holds it
--save-to DIR   copy to DIR/<run>; default: gpu-runbook/<run> on that storage
--seconds N     stop the queue N seconds from now; default: an hour before the platform ends the session, 0: never

exit codes: 0 every cell is done and aggregated; 1 some cell is not: the next session goes on; 64 usage, 65 integrity,
69 missing, 73 no room, 74 a copy failed, 75 somebody else runs it, 77 refused, 78 configuration
USAGE
}

bad_usage() { # <why>
  printf '%s: %s\\n' "$PROG" "$1" >&2
  usage >&2
  exit "$EX_USAGE"
}
parse_words() { # <words...>    sets PREPARE FROM SAVE_TO SECONDS_LEFT QUEUE_WORDS
  PREPARE=false FROM='' SAVE_TO='' SECONDS_LEFT='' QUEUE_WORDS=()
  while (($# > 0)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --prepare) PREPARE=true ;;
      --from | --save-to | --seconds)
        [[ -n ${2-} ]] || bad_usage "$1 wants a value"
        case $1 in
          --from) FROM=$2 ;;
          --save-to) SAVE_TO=$2 ;;
          *)
            [[ $2 =~ ^[0-9]{1,8}$ ]] || bad_usage "--seconds wants a number"
            SECONDS_LEFT=$((10#$2))
            ;;
        esac
        shift
        ;;
      --) shift && QUEUE_WORDS=("$@") && break ;;
      *) bad_usage "'${1//[[:cntrl:]]/?}' is not known" ;;
    esac
    shift
  done
  [[ -z $FROM ]] || require_path FROM
  [[ -z $SAVE_TO ]] || require_path SAVE_TO
}

# How long this machine, or this container, has been up, into REPLY; empty where it cannot be told.
session_age() {
  local up
  start_ticks 1 && { read -r up _ <"${FAKE_ROOT-}/proc/uptime"; } 2>/dev/null && [[ $up =~ ^[0-9]+ ]] || { REPLY='' && return 0; }
  REPLY=$((${up%%.*} - REPLY / $(getconf CLK_TCK 2>/dev/null || echo 100)))
}

# The seconds that the queue has, into SECONDS_LEFT. The platform's clock began with the session, not with us.
set_clock() {
  local REPLY
  [[ -z $SECONDS_LEFT ]] || return 0
  SECONDS_LEFT=$SESSION_S
  ((SESSION_S > 0)) || return 0
  session_age
  if [[ -z $REPLY ]] || ((REPLY < 0 || REPLY > SESSION_S + 3600)); then
    log "how long this session has run already is not known: the queue gets $SESSION_S s from now; if it began long ago, give --seconds"
  else
    SECONDS_LEFT=$((SESSION_S - REPLY))
    ((SECONDS_LEFT >= 300)) ||
      refuse "$EX_GATE" "the session" "it began $REPLY s ago, and its queue would stop after $SESSION_S s" "begin a new session, or give --seconds if you know better"
    log "the session began $REPLY s ago: the queue stops in $SECONDS_LEFT s"
  fi
}

# The tiers that outlive a session and are here, into PLACES; of them the first that can be written, into SAVE_ROOT.
look_away() { # reads: AWAY, entries "name proof path"
  local REPLY one name proof path
  PLACES=() SAVE_ROOT=''
  for one in ${AWAY[@]+"${AWAY[@]}"}; do
    read -r name proof path <<<"$one"
    expand_path path
    REPLY=''
    if [[ ! -d $path ]] || { [[ $proof != none ]] && ! prove_tier "$path" "$proof"; }; then
      log "$name: $path is not there${REPLY:+ ($REPLY)}"
      continue
    fi
    PLACES+=("$path")
    [[ -n $SAVE_ROOT || ! -w $path ]] || SAVE_ROOT=$path/gpu-runbook
  done
  [[ -z $SAVE_TO ]] || SAVE_ROOT=$SAVE_TO
}

# The code, where there is none: from the one code.bundle that lies about. Its branch is the job's.
bring_code() { # reads: CODE_DIR BRANCH PLACES
  local file found='' new=$D/.code.new
  [[ ! -e $CODE_DIR ]] || return 0
  while IFS= read -r file; do
    [[ -z $found ]] || cmp -s -- "$found" "$file" ||
      refuse "$EX_GATE" "code.bundle" "there are two that differ: $found and $file" "leave one, or clone the right one to $CODE_DIR yourself"
    found=${found:-$file}
  done < <(look_for code.bundle '*')
  [[ -n $found ]] || refuse "$EX_MISSING" "$CODE_DIR" "the code is not there, and no code.bundle in ${PLACES[*]-} $DATA_DIR" "bring one: git bundle create code.bundle $BRANCH"
  rm -rf -- "${new:?}"
  git -c core.hooksPath=/dev/null clone -q -b "$BRANCH" -- "$found" "$new" || refuse "$EX_COPY" "$new" "git cannot clone $found" "is branch $BRANCH in it? git bundle verify $found"
  mv -- "$new" "$CODE_DIR" || refuse "$EX_COPY" "$CODE_DIR" "it cannot be put in place" "look at the data tier"
  log "code: $CODE_DIR at $(git -C "$CODE_DIR" rev-parse HEAD), from $found"
}
# Declared data that is not below the code: a link to where it is mounted. What is found twice or not at all is only said; the
# queue counts the data and refuses.
bring_data() { # reads: CODE_DIR PLACES DATA_PATHS DATA_UNDER
  local i place path hit
  local found=()
  for ((i = 0; i < ${#DATA_PATHS[@]}; i++)); do
    path=${DATA_PATHS[i]} found=()
    [[ ${DATA_UNDER[i]-} != hf_home && ! -e $CODE_DIR/$path ]] || continue
    for place in ${PLACES[@]+"${PLACES[@]}"}; do
      while IFS= read -r hit; do found+=("$hit"); done < <(timeout 300 find -L "$place" -maxdepth 6 -path "*/$path" -prune 2>/dev/null)
    done
    if ((${#found[@]} != 1)); then
      log "data $path: found ${#found[@]} times in ${PLACES[*]-nowhere}: link the right one to $CODE_DIR/$path yourself"
      continue
    fi
    if [[ $path == */* ]]; then mkdir -p -- "$CODE_DIR/${path%/*}"; fi
    ln -s -- "${found[0]}" "$CODE_DIR/$path" || refuse "$EX_COPY" "$CODE_DIR/$path" "the link cannot be made" "look at the data tier: can it hold links?"
    log "data $path: linked to ${found[0]}"
  done
}
# Files of this name some folders deep on the tiers that outlive a session, and in DATA_DIR itself. Prints.
look_for() { # <name> <pattern of the folder>
  local place
  for place in ${PLACES[@]+"${PLACES[@]}"}; do timeout 300 find -L "$place" -maxdepth 6 -name "$1" -path "*/$2" -type f 2>/dev/null || :; done
  if [[ -f $DATA_DIR/$1 ]]; then printf '%s\\n' "$DATA_DIR/$1"; fi
}

# A run folder of this job at FILE's place? Then it is compared with the best so far.
consider() { # <.../run.json>    sets FOUND FOUND_ID FOUND_AT
  local dir=${1%/run.json} at
  [[ $dir != "$D" && ! $dir -ef $D ]] || return 0
  if ! read_record "$1" run/1 || [[ ${R_job-} != "$JOB" || ${R_profile-} != "$PROFILE" ]]; then
    log "$dir is no run of $JOB on $PROFILE: left alone"
    return 0
  fi
  at=$(tail -n 1 -- "$dir/events.tsv" 2>/dev/null) || at=''
  at=${at%%$'\\t'*}
  [[ -z $FOUND || $FOUND_ID == "$R_run_id" ]] ||
    refuse "$EX_GATE" "run $RUN" "two runs of this name are here: $FOUND and $dir" "say which one with --from"
  [[ -n $FOUND && ! $at > $FOUND_AT ]] || FOUND=$dir FOUND_ID=$R_run_id FOUND_AT=$at
}
find_earlier() { # into FOUND, empty where there is none
  local place file
  FOUND='' FOUND_ID='' FOUND_AT=''
  if [[ -n $FROM ]]; then
    for file in "$FROM/run.json" "$FROM/$RUN/run.json"; do
      [[ ! -e $file ]] || consider "$file"
    done
    [[ -n $FOUND ]] || refuse "$EX_MISSING" "--from $FROM" "no run of $JOB on $PROFILE lies there" "give the folder that holds its run.json"
    return
  fi
  for place in ${SAVE_TO:+"$SAVE_TO"} ${PLACES[@]+"${PLACES[@]}"}; do
    if [[ -w $place ]]; then
      for file in "$place/$RUN/run.json" "$place/gpu-runbook/$RUN/run.json"; do
        [[ ! -e $file ]] || consider "$file"
      done
    else
      # Datasets and the output of an earlier version lie some folders deep.
      while IFS= read -r file; do consider "$file"; done < <(timeout 300 find -L "$place" -maxdepth 6 -name run.json -path "*/$RUN/run.json" 2>/dev/null)
    fi
  done
}

# Name and checksum of each file in a folder but box/, code/ and what a killed copy left, sorted.
sums_of() { # <folder>
  (cd -- "$1" && find . \\( -path ./box -o -path ./code -o -path ./.restore -o -name '.*.tmp' \\) -prune -o -type f -exec cksum {} + | LC_ALL=C sort)
}

# The earlier session's files to D: copied beside, compared, moved in; run.json last, for it says that a run is here.
restore() {
  local REPLY member name new=$D/.restore
  [[ ! -e $D/run.json ]] || { log "the run is here already: $D" && return 0; }
  find_earlier
  [[ -n $FOUND ]] || { log "no earlier session of this run is here (looked in: ${FROM:-${SAVE_TO:+$SAVE_TO }${PLACES[*]-nowhere}}): it begins anew" && return 0; }
  log "bringing back $FOUND"
  rm -rf -- "${new:?}"
  mkdir -p -- "$new" || refuse "$EX_NOROOM" "$new" "the folder cannot be made" "look at the data tier: room, rights"
  for member in "$FOUND"/* "$FOUND"/.[!.]*; do
    name=${member##*/}
    case $name in box | code | .restore | '*' | '.[!.]*') continue ;; esac
    [[ -e $member ]] || continue
    cp -R -- "$member" "$new/$name" || refuse "$EX_NOROOM" "$new/$name" "the copy failed" "make room on the data tier, and run this again"
  done
  chmod -R u+rwX -- "$new"
  find "$new" -name '.*.tmp' -type f -exec rm -f -- {} +
  [[ $(sums_of "$new") == "$(sums_of "$FOUND")" ]] || refuse "$EX_COPY" "$new" "it is not what $FOUND has" "run this again"
  for member in "$new"/* "$new"/.[!.]*; do
    name=${member##*/}
    if [[ $name != run.json && -e $member && ! -e $D/$name ]]; then
      mv -- "$member" "$D/$name" || refuse "$EX_COPY" "$D/$name" "it cannot be put in place" "look at the data tier"
    fi
  done
  flush "$D"
  mv -- "$new/run.json" "$D/run.json" || refuse "$EX_COPY" "$D/run.json" "it cannot be put in place" "look at the data tier"
  rm -rf -- "${new:?}"
  log "brought back: run $FOUND_ID, as it was at ${FOUND_AT:-a time that is not known}"
}

# The copy that lies where ours is to go must be of this run: another's is never overwritten.
check_save_place() {
  local there=$SAVE_ROOT/$RUN/run.json id=''
  [[ -n $SAVE_ROOT && -e $there ]] || return 0
  if read_record "$there" run/1; then id=$R_run_id; fi
  if [[ ! -e $D/run.json ]] || ! read_record "$D/run.json" run/1 || [[ -z $id || $R_run_id != "$id" ]]; then
    refuse "$EX_GATE" "${there%/run.json}" "it is the copy of another run (${id:-its record cannot be read})" "give this run another name (RUN), or another place (--save-to), or move that copy aside"
  fi
}

# What is new in D since the last call goes to SAVE_ROOT/<run>, each file whole or not at all. Records are taken as they are
# before the first byte is copied and put there behind the last one, so none of them speaks of files that are not there.
save() { # returns: 0, or 74 where something did not arrive
  local file rc=0 snap=$STAMPS/records
  local newer=()
  [[ -n $SAVE_ROOT && -e $D/run.json ]] || return 0
  [[ ! -e $STAMPS/last ]] || newer=(-newer "$STAMPS/last")
  : >"$STAMPS/next" && rm -rf -- "${snap:?}" && mkdir -p -- "$snap" "$SAVE_ROOT/$RUN" || return "$EX_COPY"
  for file in records state; do
    [[ ! -d $D/$file ]] || cp -Rp -- "$D/$file" "$snap/" || return "$EX_COPY"
  done
  while IFS= read -r -d '' file; do
    [[ $file == ./run.json ]] || save_file "$D" "$file" || rc=$EX_COPY
  done < <(cd -- "$D" && find . \\( -path ./box -o -path ./code -o -path ./.restore -o -path ./records -o -path ./state -o -name '.*.tmp' \\) -prune \\
    -o -type f ${newer[@]+"${newer[@]}"} -print0)
  ((rc == 0)) || return "$rc"
  while IFS= read -r -d '' file; do
    save_file "$snap" "$file" || rc=$EX_COPY
  done < <(cd -- "$snap" && find . -name '.*.tmp' -prune -o -type f ${newer[@]+"${newer[@]}"} -print0)
  ((rc != 0)) || save_file "$D" ./run.json || rc=$EX_COPY
  # Where something did not arrive the old stamp stays, and all that is newer is tried again.
  ((rc != 0)) || mv -f -- "$STAMPS/next" "$STAMPS/last"
  return "$rc"
}
save_file() { # <folder> <path in it, with ./ in front>
  local to=$SAVE_ROOT/$RUN/${2#./} part size
  size=$(wc -c 2>/dev/null <"$1/$2") || size=0
  part=${to%/*}/.${to##*/}.tmp
  mkdir -p -- "${to%/*}" || return "$EX_COPY"
  if cp -- "$1/$2" "$part" 2>/dev/null; then
    if reads_back "$1/$2" "$part" "$size"; then
      mv -f -- "$part" "$to" && return 0
    elif [[ $1/$2 -nt $STAMPS/next ]]; then
      # It was written meanwhile: newer than the stamp, it is taken by the next call, and by the last one when nothing writes.
      rm -f -- "$part"
      return 0
    fi
  fi
  rm -f -- "$part"
  # A checkpoint that was pruned meanwhile is no failure.
  [[ ! -e $1/$2 ]] || { log "$2 did not arrive at $to" && return "$EX_COPY"; }
}

# Is the copy what its source is? Of a log, which goes on growing while it is copied, at least what there was before.
reads_back() { # <source> <copy> <bytes of the source before>
  local said
  said=$(LC_ALL=C cmp -- "$1" "$2" 2>&1) && return 0
  [[ $said == *"EOF on $2"* ]] && (($(wc -c <"$2") >= $3))
}

stop_queue() { # <why>
  STOPPED=${STOPPED:-$1}
  kill -TERM "$QUEUE" 2>/dev/null || :
}
# The queue, until it ends, the clock runs out, or somebody stops us. Sets QUEUE_RC STOPPED.
run_under_clock() {
  local until=$((SECONDS + SECONDS_LEFT)) next=$((SECONDS + SAVE_EVERY_S))
  STOPPED='' QUEUE_RC=0
  bash "$SELF_DIR/run_queue.sh" --adopt ${QUEUE_WORDS[@]+"${QUEUE_WORDS[@]}"} &
  QUEUE=$!
  trap 'stop_queue "a signal"' TERM INT HUP
  while kill -0 "$QUEUE" 2>/dev/null; do
    idle 1
    if ((SECONDS_LEFT > 0 && SECONDS >= until)) && [[ -z $STOPPED ]]; then stop_queue 'the clock'; fi
    if ((SECONDS >= next)); then
      save || log "not everything arrived at $SAVE_ROOT: tried again in $SAVE_EVERY_S s"
      next=$((SECONDS + SAVE_EVERY_S))
    fi
  done
  wait "$QUEUE" || QUEUE_RC=$?
}

verdict() { # <aggregate's code> <save's code>
  local where="at $D, and nowhere else: bring it home before this session's disk goes"
  [[ -z $SAVE_ROOT ]] || where="at $D and, for the next session, at $SAVE_ROOT/$RUN"
  (($2 == 0)) || where="at $D; NOT all of it arrived at $SAVE_ROOT"
  printf 'session of run %s: the queue ended with %s%s, aggregate with %s; the run is %s\\n' "$RUN" "$QUEUE_RC" "${STOPPED:+ (stopped by $STOPPED)}" "$1" "$where"
}

main() {
  local aggregated=0 saved=0
  parse_words "$@"
  self_dir
  run_places
  [[ $PREPARE == true ]] || set_clock
  mkdir -p -- "$D" || refuse "$EX_NOROOM" "$D" "the folder cannot be made" "look at the data tier: room, rights"
  look_away
  bring_code
  bring_data
  restore
  [[ $PREPARE == false ]] || { log "prepared: $D" && return 0; }
  check_save_place
  STAMPS=$(mktemp -d) || refuse "$EX_NOROOM" "a temporary folder" "it cannot be made" "look at TMPDIR: room, rights"
  run_under_clock
  save || saved=$?
  if [[ -e $D/run.json ]]; then bash "$SELF_DIR/aggregate_to_fs.sh" || aggregated=$?; else aggregated=$EX_MISSING; fi
  save || saved=$?
  rm -rf -- "${STAMPS:?}"
  verdict "$aggregated" "$saved"
  case $QUEUE_RC in 0) ;; 1 | 129 | 130 | 143) QUEUE_RC=$EX_FAIL ;; esac
  ((QUEUE_RC == 0)) || return "$QUEUE_RC"
  ((aggregated == 0)) || return "$aggregated"
  return "$saved"
}

#!/usr/bin/env bash
# smoke.sh: a short trial on the box: the smoke command, its limit, its checkpoint, one record.
# Generated; do not edit. Source: templates/box/smoke.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=smoke.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# cache of Hugging Face; empty: the library's own place
HF_HOME=${HF_HOME-/kaggle/temp/hf}
# the interpreter
PY=${PY-python3}
# a file to source or an http address; empty: none
PROXY_HOOK=${PROXY_HOOK-}
# NAME=value lines, mode 600; empty: none
CRED_FILE=${CRED_FILE-}
# mirrors, exported to every cell
readonly -a MIRRORS=()
# checkpoints, relative to CELL_DIR; empty: not said
readonly CKPT_PATTERN=''
# what a complete one holds
readonly -a CKPT_FILES=()
# what is written last, in it or behind its name
readonly CKPT_MARKER=''
# the least that it holds
readonly CKPT_BYTES=0
# names of variables, never values
readonly -a SECRETS=()
# seconds that one checkpoint takes
readonly SAVE_S=2
# disk for one cell
readonly NEED_DISK_BYTES=10000000
# expected seconds for one cell
readonly NEED_S=6
# the short trial
readonly SMOKE_COMMAND="\\"\\$PY\\" train.py --epochs 1 --batches 2 --batch-size 8 --no-log --out \\"\\$CELL_DIR\\""
# the checkpoint that it must leave in CELL_DIR
readonly SMOKE_ARTIFACT=latest.pth
# seconds until it is stopped
readonly SMOKE_TIMEOUT_S=120
# --- end of bound values ---

this_host() { # into REPLY
  REPLY=
  { IFS= read -r REPLY <"${FAKE_ROOT-}/proc/sys/kernel/hostname"; } 2>/dev/null || REPLY=${HOSTNAME-unknown}
}
# Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), into REPLY.
start_ticks() { # <pid>    returns: 1 where there is no such process, or only its zombie
  local stat fields
  REPLY=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The name in parentheses may hold blanks and parentheses itself: cut behind the last one.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]-} != [ZX] ]] || return 1
  REPLY=${fields[19]-}
  [[ -n $REPLY ]]
}
same_process() { # <pid> <start ticks>
  local REPLY
  start_ticks "$1" && [[ $REPLY == "$2" ]]
}

# The two halves of it: stat runs beside us, while something else is done.
begin_stat() { # <path...>    sets STAT_FD for end_stat
  exec {STAT_FD}< <(
    while (($# > 500)); do
      TZ=UTC0 stat -L -c '%s|%i|%y|%z|%n' -- "${@:1:500}" 2>/dev/null
      shift 500
    done
    (($# == 0)) || TZ=UTC0 exec stat -L -c '%s|%i|%y|%z|%n' -- "$@" 2>/dev/null
  )
}
end_stat() {
  local line rest
  declare -gA STAT_OF
  STAT_OF=()
  while IFS= read -r line; do
    rest=${line#*|*|*|*|}
    STAT_OF[$rest]=${line%"|$rest"}
  done <&"$STAT_FD"
  exec {STAT_FD}<&-
}

# lib/compat.bash: the laptop's userland, be it GNU, busybox or BSD. Bash 3.2 is enough.
# needs: exit log

# Which dialect of stat is here: chosen once.
stat_dialect() {
  [[ -z ${STAT_DIALECT-} ]] || return 0
  if stat -c %s / >/dev/null 2>&1; then STAT_DIALECT=gnu; else STAT_DIALECT=bsd; fi
}

# Run WORDS, and end them after SECONDS. No `timeout` on a Mac. Standard input passes through.
bounded() { # <seconds> <words...>    returns: theirs, or 124
  local limit=$1 pid watch fired=0 rc=0
  shift
  "$@" <&0 &
  pid=$!
  # The watcher holds none of our pipes, so that nobody waits for its sleep.
  (
    fired=0
    # $! and not nap: a TERM may come before nap has its number. Before the sleep it is still the words' own.
    trap '[[ $! == "$pid" ]] || kill "$!" 2>/dev/null || :' EXIT
    trap 'exit "$fired"' TERM
    # A second at a time: a TERM in the midst of its start may leave one behind, with all that we have open.
    while ((limit-- > 0)); do
      sleep 1 &
      nap=$!
      wait "$nap" || exit 0
      # bash may lose the end of a child; its wait then lasts as long as there is another one: us.
      kill -0 "$pid" 2>/dev/null || exit 0
    done
    # Before the kill: we may be told to go as soon as the words have ended.
    fired=9
    kill -TERM "$pid" 2>/dev/null || exit 0
    sleep 2 &
    nap=$!
    wait "$nap"
    kill -KILL "$pid" 2>/dev/null
    exit 9
  ) </dev/null >/dev/null 2>&1 &
  watch=$!
  wait "$pid" || rc=$?
  kill -TERM "$watch" 2>/dev/null || :
  # What a program says that was ended is its own matter (ssh: 255); the watcher knows.
  wait "$watch" 2>/dev/null || fired=$?
  ((fired != 9)) || rc=124
  return "$rc"
}

# lib/steps.bash: which steps a log names, and which step a checkpoint says that it is of (bash 3.2, BSD userland too).
# needs: exit log compat
# reads: PY SMOKE_WORK

# Numbers that a log gives to its steps ("epoch 3", "step: 120", "iter=7"), one a line. Steps may begin anew in each epoch. So
# lines that have both count as (epoch + 1) times 10^9 and the step; else the epochs count where there is more than one of them;
# else the steps. KIND asks for one of the three (both, epoch, step); the word "kind" instead prints which one it would be. With
# "lines" each number stands behind that of its line and before how many there are ("epoch 2/40"; 0: it is not said).
smoke_steps() { # <log> [kind] [lines]    prints
  awk -v want="${2-}" -v lines="${3-}" -v q="'" '
    function number(word) {
      if (!match($0, "(^|[^A-Za-z0-9_])[\\"" q "]?" word "[] :=#[\\"" q "]*[0-9]+")) return ""
      word = substr($0, RSTART, RLENGTH)
      rest = substr($0, RSTART + RLENGTH)
      of = 0
      if (match(rest, /^ *(\\/|of) *[0-9]+/)) {
        of = substr(rest, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", of)
        of = substr(of, 1, 9) + 0
      }
      gsub(/[^0-9]/, "", word)
      return substr(word, 1, 9)
    }
    function put(value, line, total) {
      if (lines != "") printf "%d %.0f %d\\n", line, value, total
      else printf "%.0f\\n", value
    }
    {
      epoch = number("[Ee]poch")
      if (epoch != "") { epochs[++e] = epoch + 0; epoch_at[e] = NR; epoch_of[e] = of; if (epochs[e] != epochs[1]) several = 1 }
      step = number("([Gg]lobal_step|[Ss]tep|[Ii]ter|[Ii]teration)")
      if (step != "") { steps[++s] = step + 0; step_at[s] = NR; step_of[s] = of }
      if (epoch != "" && step != "") { both[++n] = (epoch + 1) * 1000000000 + step; both_at[n] = NR }
    }
    END {
      kind = n ? "both" : several || !s ? "epoch" : "step"
      if (want == "kind") { print kind; exit }
      if (want != "") kind = want
      if (kind == "both") for (i = 1; i <= n; i++) put(both[i], both_at[i], 0)
      if (kind == "epoch") for (i = 1; i <= e; i++) put(epochs[i], epoch_at[i], epoch_of[i])
      if (kind == "step") for (i = 1; i <= s; i++) put(steps[i], step_at[i], step_of[i])
    }' "$1"
}

# A step for people, into REPLY.
step_name() { # <number of smoke_steps> <kind>
  REPLY="${2/both/step} $1"
  [[ -z $1 ]] || (($1 < 1000000000)) || REPLY="epoch $(($1 / 1000000000 - 1)), step $(($1 % 1000000000))"
}

# What tells one state of a checkpoint (a file or a folder of files) from the next, into REPLY; empty where it is not there yet.
checkpoint_stamp() { # <path>
  stat_dialect
  REPLY=''
  [[ -e $1 && ! -L $1 ]] || return 0
  case $STAT_DIALECT in
    gnu) REPLY=$(find "$1" -type f -size +0 -exec stat -c '%n %s %i %Y %Z' {} + 2>/dev/null) || : ;;
    *) REPLY=$(find "$1" -type f -size +0 -exec stat -f '%N %z %i %m %c' {} + 2>/dev/null) || : ;;
  esac
}

# The epoch and the step that a checkpoint itself names: by the job's own Python, from JSON, a bare number, or what torch loads
# without running anything that lies in it. Sets CKPT_EPOCH and CKPT_STEP, each empty where it is not known.
checkpoint_says() { # <path>
  local name value
  CKPT_EPOCH='' CKPT_STEP=''
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  while read -r name value; do
    case $name in
      epoch) CKPT_EPOCH=$value ;;
      step) CKPT_STEP=$value ;;
    esac
  done < <(CUDA_VISIBLE_DEVICES='' bounded 60 "$PY" -I -W ignore -c '
import json, os, sys
NAMES = {"epoch": ("epoch", "epochs", "epochs_done", "current_epoch"),
         "step": ("global_step", "step", "steps", "iteration", "iter", "it", "n")}
def values(path):
    try:
        yield json.loads(open(path, encoding="utf-8").read(1 << 20))
    except (OSError, ValueError, RecursionError):
        pass
    if os.path.isfile(path) and open(path, "rb").read(2) in (b"PK", b"\\x80\\x02"):
        import torch
        yield torch.load(path, map_location="cpu", weights_only=True)
def look(value, depth=0):
    if isinstance(value, dict) and depth < 2:
        for kind, names in NAMES.items():
            for name in names:
                number = value.get(name)
                number = number.item() if getattr(number, "ndim", 1) == 0 else number
                if kind not in found and isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < 1e9:
                    found[kind] = int(number)
        for inner in list(value.values())[:100]:
            look(inner, depth + 1)
    elif depth == 0 and isinstance(value, int) and 0 <= value < 1e9:
        found["step"] = value
found, top = {}, sys.argv[1]
paths = [top] if os.path.isfile(top) else sorted(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)[:50]
for path in paths:
    try:
        for value in values(path):
            look(value)
    except Exception:
        pass
for kind, number in found.items():
    print(kind, number)
' "$1" 2>/dev/null </dev/null)
}

# lib/measure.bash: what a trial takes: time of a step, memory, size (bash 3.2, BSD userland too).
# needs: exit log steps
# reads: SMOKE_WORK SMOKE_LOG SMOKE_PID

# Milliseconds of a clock that nobody sets, where there is one, into REPLY.
now_ms() {
  local up
  if { read -r up _ </proc/uptime; } 2>/dev/null && [[ $up =~ ^([0-9]+)[.]([0-9][0-9])$ ]]; then
    REPLY=$((BASH_REMATCH[1] * 1000 + 10#${BASH_REMATCH[2]} * 10))
  else
    REPLY=$((SECONDS * 1000))
  fi
}

in_time() { # <limit in those milliseconds>    returns: 1 where it is past
  now_ms
  ((REPLY < $1))
}

# How many lines the log had, and when: a line in the file times whenever it grew. The log is open as 3.
note_lines() { # reads and sets: LINES_SEEN
  local line before=$LINES_SEEN REPLY
  while IFS= read -r line <&3; do LINES_SEEN=$((LINES_SEEN + 1)); done
  ((LINES_SEEN > before)) || return 0
  now_ms
  printf '%s %s\\n' "$REPLY" "$LINES_SEEN" >>"$SMOKE_WORK/times"
}

# The memory of the attempt's group: the largest sum of what its processes held, in kB, into the file peak. Where ps cannot say
# it, the file stays away.
note_memory() { # reads and sets: PEAK
  local now
  now=$({ ps -A -o pgid= -o rss= || ps -o pgid,rss; } 2>/dev/null | awk -v g="$SMOKE_PID" '$1 == g && $2 ~ /^[0-9]+$/ {n += $2} END {printf "%d", n}') || now=0
  ((now > PEAK)) || return 0
  PEAK=$now
  printf '%s\\n' "$PEAK" >"$SMOKE_WORK/peak"
}

# Beside an attempt, for so long: lines ten times a second, memory at first and then each second.
watch_attempt() { # <seconds>
  local REPLY until n=0 LINES_SEEN=0 PEAK=0
  now_ms
  until=$((REPLY + $1 * 1000))
  exec 3<"$SMOKE_LOG"
  while in_time "$until"; do
    # Whoever waits for the attempt was killed: nobody would record how it ends.
    kill -0 $$ 2>/dev/null || break
    note_lines
    ((n > 3 && n % 10 > 0)) || note_memory
    n=$((n + 1))
    sleep 0.1 2>/dev/null || sleep 1
  done
}

# What was measured of the attempt that has ended: MEASURED_STEP_MS, the time of one step (empty where its log named fewer than
# two, or they came too fast to be told apart), and MEASURED_TOTAL, how many steps it said that there are ("epoch 2/40").
measure_steps() {
  local REPLY kind end
  MEASURED_STEP_MS='' MEASURED_TOTAL=''
  # What came between the last look and the end.
  now_ms
  end="$REPLY 1000000000"
  kind=$(smoke_steps "$SMOKE_LOG" kind)
  read -r MEASURED_STEP_MS MEASURED_TOTAL < <(smoke_steps "$SMOKE_LOG" "$kind" lines | awk '
    FNR == NR { ms[++n] = $1; upto[n] = $2; next }
    {
      while (i < n && upto[i + 1] < $1) i++
      at = ms[i + 1]
      if ($3 + 0 > total) total = $3 + 0
      # Steps that begin anew: only those of the first epoch.
      if (!got) { got = 1; first = $2; start = at; whole = int($2 / 1000000000) }
      else if ($2 > first && int($2 / 1000000000) == whole && at > start) each = (at - start) / ($2 - first)
    }
    END { printf "%s %s\\n", (each ? int(each + 0.5) : "-"), (total ? total : "-") }' <(
    cat -- "$SMOKE_WORK/times" 2>/dev/null
    printf '%s\\n' "$end"
  ) -) || :
  MEASURED_STEP_MS=${MEASURED_STEP_MS#-} MEASURED_TOTAL=${MEASURED_TOTAL#-}
}

# What the attempt left in CELL_DIR. Sets MEASURED_BYTES and MEASURED_FILES.
measure_room() {
  read -r MEASURED_BYTES MEASURED_FILES < <(find "$SMOKE_WORK/cell" -type f -exec wc -c {} + 2>/dev/null |
    awk '{ if ($2 == "total" && NF == 2) next; b += $1; n++ } END { printf "%.0f %d\\n", b, n }') || MEASURED_BYTES='' MEASURED_FILES=''
}

# lib/smoke.bash: one short trial of the job's smoke command, on the box and on the laptop (bash 3.2, BSD userland too).
# needs: exit log path file record hash git proc compat measure negative
# reads: SMOKE_WHERE (box or laptop) SMOKE_RECORD (its file) SMOKE_ROOT (where scratch folders go) SMOKE_BOX_DIGEST
#        CODE_DIR PY SMOKE_COMMAND SMOKE_ARTIFACT SMOKE_TIMEOUT_S SAVE_S NEED_DISK_BYTES, and the function
#        smoke_env: exports a cell's environment for CELL_DIR CELL_ATTEMPT CELL_RESUME

# The commit that this trial speaks of: none where the tree holds anything else than a commit. Sets SMOKE_COMMIT.
smoke_commit() { # <folders of our own output...>
  local REPLY said
  SMOKE_COMMIT=none SMOKE_DIRT='there is no git on PATH'
  command -v git >/dev/null 2>&1 || return 0
  git_alone
  GIT_TOP=$CODE_DIR
  git_ask rev-parse --verify HEAD || {
    said=$(git_with "$GIT_ASK_S" rev-parse --verify HEAD 2>&1) || :
    SMOKE_DIRT="git names no commit in $CODE_DIR: ${said%%$'\\n'*}"
    return 0
  }
  git_open
  git_exempt "$@"
  git_look || { SMOKE_DIRT="git status failed" && return 0; }
  if ((${#GIT_DIRTY[@]} + ${#GIT_UNTRACKED[@]} > 0)); then
    SMOKE_DIRT="files in $GIT_TOP are in no commit"
    git_list >&2
    return 0
  fi
  SMOKE_COMMIT=$GIT_HEAD SMOKE_DIRT=''
}

# Is the code still what the trial began with? Where it is not, the trial speaks of no commit.
smoke_same_code() { # reads: SMOKE_OURS
  local before=$SMOKE_COMMIT
  [[ $before != none ]] || return 0
  smoke_commit "${SMOKE_OURS[@]}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_DIRT="the code changed while the trial ran, or the trial left files in it: ${SMOKE_DIRT:-it went from $before to $SMOKE_COMMIT}"
  [[ $SMOKE_COMMIT == "$before" ]] || SMOKE_COMMIT=none
}

# A scratch folder of our own: what a smoke makes never lies among results.
smoke_scratch() { # sets SMOKE_WORK
  local REPLY this
  if ! mkdir -p -- "$SMOKE_ROOT" || ! SMOKE_WORK=$(mktemp -d "$SMOKE_ROOT/smoke.$$.XXXXXX"); then
    refuse "$EX_NOROOM" "a scratch folder in $SMOKE_ROOT" "it cannot be made" "look at its room and rights, or set SCRATCH"
  fi
  SMOKE_PIDS=''
  trap 'smoke_clean $?' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  start_ticks $$ || :
  this="$$ ${REPLY:--} "
  this_host
  # The mark first: what holds anything is marked, however this ends.
  if ! printf '%s\\n' "$this$REPLY" >"$SMOKE_WORK/.smoke-of" || ! mkdir -p -- "$SMOKE_WORK/cell" "$SMOKE_WORK/tmp" "$SMOKE_WORK/t/0" "$SMOKE_WORK/cache"; then
    refuse "$EX_NOROOM" "$SMOKE_WORK" "it cannot be filled" "look at its room, its inodes and rights, or set SCRATCH"
  fi
}

# Scratch folders of smokes that were killed, with what still runs of them. Only our own, marked as that, of this machine; without
# a mark, where the process of its name has gone and it is empty: that one was killed before its first line.
smoke_leftovers() {
  local REPLY dir pid ticks host
  for dir in "$SMOKE_ROOT"/smoke.gone.*; do
    [[ ! -O $dir || -L $dir ]] || rm -rf -- "$dir"
  done
  for dir in "$SMOKE_ROOT"/smoke.[0-9]*; do
    [[ -O $dir && ! -L $dir && -d $dir ]] || continue
    pid='' ticks='' host=''
    [[ ! -s $dir/.smoke-of ]] || read -r pid ticks host <"$dir/.smoke-of" || continue
    this_host
    if [[ -z $pid ]]; then
      pid=${dir##*/smoke.} pid=${pid%%.*} ticks=- host=$REPLY
      [[ -z $(ls -A -- "$dir") || $(ls -A -- "$dir") == .smoke-of ]] || continue
    fi
    [[ $host == "$REPLY" && $pid =~ ^[1-9][0-9]*$ ]] || continue
    if [[ $ticks == - ]]; then ! kill -0 "$pid" 2>/dev/null || continue; else ! same_process "$pid" "$ticks" || continue; fi
    smoke_stragglers "$dir"
    # Its timed copy of a checkpoint is as large as one; a record that it was writing is none.
    rm -rf -- "${SMOKE_RECORD%/*}"/.{smoke,smoke.json,drill.json}."$pid.tmp"
    smoke_remove "$dir" && log "removed $dir of a smoke that was killed"
  done
}

# Under another name first: half removed it has perhaps no mark any more, and that name says that it may go.
smoke_remove() { # <scratch folder>
  local gone=$SMOKE_ROOT/smoke.gone.${1##*/smoke.}
  mv -- "$1" "$gone" 2>/dev/null || gone=$1
  rm -rf -- "${gone:?}"
}

# End what an attempt started and what left its group: known by CELL_DIR in its environment, where /proc shows it.
smoke_stragglers() { # <scratch folder>    sets SMOKE_STRAGGLERS: how many there were
  local file round found
  SMOKE_STRAGGLERS=0
  for round in 1 2 3 4 5; do
    found=$(grep -lsF -- "CELL_DIR=$1/cell" /proc/[0-9]*/environ 2>/dev/null) || :
    [[ -n $found ]] || return 0
    while IFS= read -r file; do
      file=${file#/proc/}
      kill -KILL "${file%/environ}" 2>/dev/null || continue
      ((round > 1)) || SMOKE_STRAGGLERS=$((SMOKE_STRAGGLERS + 1))
    done <<<"$found"
    sleep 0.1 2>/dev/null || sleep 1
  done
}
smoke_clean() { # <status>
  local pid
  trap - EXIT
  for pid in $SMOKE_PIDS; do kill -KILL -- "-$pid" 2>/dev/null || :; done
  smoke_stragglers "$SMOKE_WORK"
  smoke_remove "${SMOKE_WORK:?}"
  exit "$1"
}

# Start one attempt in a process group of its own. Sets SMOKE_PID.
smoke_launch() { # <attempt> <resume 0 or 1> <log>
  CELL_DIR=$SMOKE_WORK/cell CELL_ATTEMPT=$1 CELL_RESUME=$2 SMOKE_LOG=$3
  rm -f -- "$SMOKE_WORK/times" "$SMOKE_WORK/peak"
  : >"$SMOKE_LOG"
  set -m
  (
    cd -- "$CODE_DIR" || exit
    smoke_env || exit
    # A trial reports nothing to a tracker.
    export WANDB_MODE=disabled WANDB_SILENT=true COMET_MODE=disabled CLEARML_OFFLINE_MODE=1 NEPTUNE_MODE=offline SWANLAB_MODE=disabled
    export MLFLOW_TRACKING_URI=$SMOKE_WORK/tmp/mlruns
    # What an attempt is started with, as it is started.
    printf '%s\\0' "$CODE_DIR" bash -c "$SMOKE_RUN" >"$SMOKE_WORK/words$1" || exit
    exec bash -c "$SMOKE_RUN"
  ) </dev/null >"$3" 2>&1 &
  SMOKE_PID=$!
  smoke_guard &
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $SMOKE_PID"
}
# An attempt does not outlive whoever waits for it, also where that is killed. Ends by itself with the attempt's group.
smoke_guard() {
  while kill -0 -- "-$SMOKE_PID"; do
    kill -0 $$ || {
      kill -KILL -- "-$SMOKE_PID" || :
      break
    }
    sleep 0.2 || sleep 1
  done
} </dev/null >/dev/null 2>&1

# Wait for the attempt within the limit; the whole group ends with it. Sets SMOKE_EXIT and SMOKE_LATE.
smoke_wait() {
  local REPLY dog rc=0 until
  now_ms
  until=$((REPLY + SMOKE_TIMEOUT_S * 1000))
  set -m
  (
    # Whatever cannot be noted (a full disk): the limit holds.
    watch_attempt "$SMOKE_TIMEOUT_S" || :
    kill -TERM -- "-$SMOKE_PID" && kill -CONT -- "-$SMOKE_PID" || :
    sleep 10
    kill -KILL -- "-$SMOKE_PID"
  ) </dev/null >/dev/null 2>&1 &
  dog=$!
  set +m
  SMOKE_PIDS="$SMOKE_PIDS $dog"
  { wait "$SMOKE_PID" || rc=$?; } 2>/dev/null
  { kill -KILL -- "-$dog" && wait "$dog"; } >/dev/null 2>&1 || :
  kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
  SMOKE_PIDS=''
  SMOKE_LATE=0
  in_time "$until" || SMOKE_LATE=1
  smoke_stragglers "$SMOKE_WORK"
  ((SMOKE_STRAGGLERS == 0)) || log "warning: $SMOKE_STRAGGLERS process(es) of the trial outlived it and were ended"
  SMOKE_PEAK=''
  if { IFS= read -r SMOKE_PEAK <"$SMOKE_WORK/peak"; } 2>/dev/null && [[ $SMOKE_PEAK =~ ^[0-9]+$ ]]; then SMOKE_PEAK=$((SMOKE_PEAK * 1024)); else SMOKE_PEAK=''; fi
  SMOKE_EXIT=$rc
  measure_steps
  measure_room
}

# Digest and size of the artifact, a file or a folder of files. Sets SMOKE_SHA and SMOKE_BYTES.
smoke_digest() { # <path>
  local file list='' size REPLY
  SMOKE_SHA='' SMOKE_BYTES=0
  if [[ -f $1 ]]; then
    hash_file "$1" || return
    SMOKE_SHA=$REPLY
    SMOKE_BYTES=$(($(wc -c <"$1")))
    return 0
  fi
  while IFS= read -r file; do
    hash_file "$file" || return
    list+="$REPLY  ${file#"$1"/}"$'\\n'
    size=$(wc -c <"$file") || return
    SMOKE_BYTES=$((SMOKE_BYTES + size))
  done < <(find "$1" -type f | LC_ALL=C sort)
  [[ -n $list ]] || return 1
  hash_text "$list" && SMOKE_SHA=$REPLY
}

# Is the artifact of this trial? Not a link out of CELL_DIR, and made between its start and its end; of a folder, that holds for
# one file at least (what a trainer copies along may be older) and nothing is newer. Sets SMOKE_WHY.
smoke_fresh() { # <artifact>
  local dir=${1%/*} cell=$SMOKE_WORK/cell
  SMOKE_WHY="it left no $SMOKE_ARTIFACT in CELL_DIR"
  [[ ! -L $1 && -e $1 ]] || return 1
  dir=$(cd -P -- "$dir" && pwd -P) && cell=$(cd -P -- "$cell" && pwd -P) || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT lies outside of CELL_DIR, in $dir"
  [[ $dir/ == "$cell"/* ]] || return 1
  SMOKE_WHY="$SMOKE_ARTIFACT was not written by this trial: its time lies outside of it (or the clock was set meanwhile)"
  [[ ! $1 -ot $SMOKE_WORK/start && ! $1 -nt $SMOKE_WORK/end ]] || return 1
  [[ -d $1 ]] || return 0
  [[ -n $(find "$1" -type f ! -newer "$SMOKE_WORK/end" -newer "$SMOKE_WORK/start" | head -n 1) && -z $(find "$1" -type f -newer "$SMOKE_WORK/end" | head -n 1) ]]
}

# Did the trial write among results (X1)? While no run has begun there, nobody else does. Sets SMOKE_WHY.
smoke_spilled() { # reads: SMOKE_RESULTS (folders, may be none) HF_HOME    returns: 0 it did
  local found dir skip=() look=()
  for dir in ${SMOKE_RESULTS[@]+"${SMOKE_RESULTS[@]}"}; do [[ ! -d $dir ]] || look+=("$dir"); done
  ((${#look[@]} > 0)) || return 1
  for dir in "$CODE_DIR" "$SMOKE_ROOT" "${SMOKE_RECORD%/*}/drill.json" ${HF_HOME:+"$HF_HOME"}; do skip+=(-path "$dir" -prune -o); done
  found=$(bounded 60 find "${look[@]}" "${skip[@]}" -type f -newer "$SMOKE_WORK/start" -print 2>/dev/null </dev/null | head -n 1) || :
  [[ -n $found ]] || return 1
  found=${found//[[:cntrl:]]/?}
  if [[ -e ${SMOKE_RESULTS[0]}/run.json ]]; then
    log "warning: $found was written meanwhile, by the run or by the trial; a trial writes into CELL_DIR alone"
    return 1
  fi
  SMOKE_WHY="it wrote among results, outside of CELL_DIR: $found"
}

# Was it a real trial? Exit 0 in time, no traceback, and a fresh artifact. Sets SMOKE_RESULT and SMOKE_WHY.
smoke_judge() { # <log>
  local REPLY artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  SMOKE_RESULT=failed SMOKE_SHA='' SMOKE_BYTES=''
  now_ms
  SMOKE_SECONDS=$(((REPLY - SMOKE_BEGIN) / 1000))
  smoke_same_code
  : >"$SMOKE_WORK/end" || refuse "$EX_NOROOM" "$SMOKE_WORK" "there is no room for an empty file" "look at its inodes, or set SCRATCH"
  if ((SMOKE_LATE)); then
    SMOKE_WHY="it was not done in $SMOKE_TIMEOUT_S s"
  elif ((SMOKE_EXIT != 0)); then
    SMOKE_WHY="it ended with status $SMOKE_EXIT"
    case $SMOKE_EXIT in 126 | 127) SMOKE_WHY+=": a command of it cannot be run, or is not on PATH" ;; esac
  elif grep -q 'Traceback (most recent call last)' "$1"; then
    SMOKE_WHY="it ended with 0, but its log holds a traceback"
  elif ! smoke_fresh "$artifact" || smoke_spilled; then
    :
  elif ! smoke_digest "$artifact" || ((SMOKE_BYTES == 0)); then
    SMOKE_WHY="$SMOKE_ARTIFACT is empty or cannot be read"
    SMOKE_SHA='' SMOKE_BYTES=''
  else
    SMOKE_RESULT=passed SMOKE_WHY=$SMOKE_DIRT
  fi
}

# How long one checkpoint of this size takes on the disk where cells write theirs, rounded up. Sets SMOKE_SAVE_S.
smoke_time_save() {
  local REPLY begin to=${SMOKE_RECORD%/*}/.smoke.$$.tmp
  now_ms
  begin=$REPLY SMOKE_SAVE_S=''
  if cp -R -- "$SMOKE_WORK/cell/$SMOKE_ARTIFACT" "$to" 2>/dev/null && flush "$to"; then
    now_ms
    SMOKE_SAVE_S=$(((REPLY - begin) / 1000 + 1))
  fi
  rm -rf -- "$to"
  [[ -z $SMOKE_SAVE_S || $SMOKE_SAVE_S -le $SAVE_S ]] ||
    log "warning: one checkpoint took $SMOKE_SAVE_S s to save, the job says save_s: $SAVE_S"
  ((SMOKE_BYTES <= NEED_DISK_BYTES)) ||
    log "warning: one checkpoint has $SMOKE_BYTES bytes, the job's needs.disk_gb is $NEED_DISK_BYTES bytes for a whole cell"
}

smoke_write() { # <result> <exit> <seconds> <artifact digest> <save_s> <bytes> <who> <why>
  local REPLY
  record_open smoke/1
  record_text where "$SMOKE_WHERE"
  record_text result "$1"
  record_text commit "$SMOKE_COMMIT"
  record_text box_digest "$SMOKE_BOX_DIGEST"
  this_host
  record_text host "$REPLY"
  record_text code_dir "$CODE_DIR"
  record_text py "${SMOKE_PY-}"
  record_text env_spec "${SMOKE_ENV-}"
  record_int exit "$2" || return
  record_int seconds_s "$3" || return
  record_text artifact_sha256 "$4"
  record_int save_s "$5" || return
  record_int ckpt_bytes "$6" || return
  record_int steps "${SMOKE_STEPS_SEEN-}" || return
  record_int step_ms "${MEASURED_STEP_MS-}" || return
  record_int peak_memory_bytes "${SMOKE_PEAK-}" || return
  record_int cell_bytes "${MEASURED_BYTES-}" || return
  record_int cell_files "${MEASURED_FILES-}" || return
  record_text who "$7"
  record_text why "$8"
  utc_now
  record_text ended "$REPLY"
  # Over all lines above: a record that was edited by hand is found out.
  hash_text "$RECORD" || return
  record_text self_sha256 "$REPLY"
  record_close
  replace_file "$SMOKE_RECORD" "$RECORD"
}

smoke_waive() { # <WHO=WHY>
  local who=${1%%=*} why=${1#*=}
  [[ $1 == *=* && $who == *[![:space:]]* && $why == *[![:space:]]* ]] ||
    refuse "$EX_USAGE" "--waive $1" "a waiver names who waives and why" "--waive 'WHO=WHY'"
  smoke_write waived '' '' '' '' '' "$who" "$why" || return
  log "smoke WAIVED by $who: $why"
}

# From here on counts what the trial takes, and what it writes is fresh.
smoke_begin() {
  local REPLY
  now_ms
  SMOKE_BEGIN=$REPLY SMOKE_SAVE_S=''
  : >"$SMOKE_WORK/start"
}

smoke_trial() { # returns: 0 passed, 1 failed
  local log=$SMOKE_WORK/log
  SMOKE_CELL=smoke SMOKE_RUN=$SMOKE_COMMAND
  smoke_begin
  log "smoke: in $CODE_DIR, at most $SMOKE_TIMEOUT_S s: $SMOKE_COMMAND"
  smoke_launch 1 0 "$log"
  smoke_wait
  smoke_judge "$log"
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$log"
}

# A trial that failed is a result too: a line that stays, so that nobody pays for the same one twice without knowing (X4).
negative_file() { # sets NEGATIVE
  NEGATIVE=${SMOKE_RECORD%/*}/NEGATIVE_RESULTS.tsv
  # The box's own comes home under its name: the laptop's has another.
  [[ $SMOKE_WHERE == box ]] || NEGATIVE=${NEGATIVE%.tsv}.laptop.tsv
}
negative_add() {
  local NEGATIVE
  negative_file
  negative_line "$NEGATIVE" "$SMOKE_WHERE" "$SMOKE_COMMIT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_WHY" "$SMOKE_COMMAND"
}
negative_known() { # says so where this very trial has failed before
  local NEGATIVE line when='' where commit status seconds why command
  negative_file
  [[ -s $NEGATIVE && $SMOKE_COMMIT != none ]] || return 0
  while IFS=$'\\t' read -r line where commit status seconds why command; do
    if [[ $commit == "$SMOKE_COMMIT" && $command == "${SMOKE_COMMAND//[[:cntrl:]]/ }" ]]; then when="$line: $why (exit $status, $seconds s, on the $where)"; fi
  done <"$NEGATIVE"
  [[ -z $when ]] || log "warning: this command failed at this commit before, $when; see $NEGATIVE"
}

smoke_report() { # <log>
  tail -n 20 -- "$1" >&2
  SMOKE_STEPS_SEEN=$(smoke_steps "$1" | sort -u | wc -l) SMOKE_STEPS_SEEN=$((SMOKE_STEPS_SEEN))
  ((SMOKE_STEPS_SEEN > 0)) || SMOKE_STEPS_SEEN=''
  [[ $SMOKE_RESULT == passed ]] || negative_add
  smoke_write "$SMOKE_RESULT" "$SMOKE_EXIT" "$SMOKE_SECONDS" "$SMOKE_SHA" "$SMOKE_SAVE_S" "$SMOKE_BYTES" '' "$SMOKE_WHY" ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if [[ $SMOKE_RESULT != passed ]]; then
    printf '%s: smoke failed: %s; the end of its log stands above; mend it and run this again (%s)\\n' "$PROG" "$SMOKE_WHY" "$SMOKE_RECORD" >&2
    return "$EX_FAIL"
  fi
  [[ -z $SMOKE_WHY ]] || log "warning: this smoke speaks of no commit: $SMOKE_WHY; a formal run will ask for another one"
  claim passed "smoke on the $SMOKE_WHERE, $SMOKE_SECONDS s, checkpoint of $SMOKE_BYTES bytes" "$SMOKE_RECORD"
}

# The command line of both scripts. Sets SMOKE_RESUME and SMOKE_WAIVER.
smoke_flags() { # <arguments...>
  SMOKE_RESUME=0 SMOKE_WAIVER=''
  while (($#)); do
    case $1 in
      --resume) SMOKE_RESUME=1 ;;
      --waive)
        (($# > 1)) && [[ -n $2 ]] || return "$EX_USAGE"
        SMOKE_WAIVER=$2
        shift
        ;;
      *) return "$EX_USAGE" ;;
    esac
    shift
  done
}

# Everything behind the places: waiver, trial or resume drill.
smoke_go() { # <folders of our own output...>
  SMOKE_OURS=("$@")
  smoke_commit "$@"
  if [[ -n $SMOKE_WAIVER ]]; then
    smoke_waive "$SMOKE_WAIVER"
    return
  fi
  [[ $SMOKE_COMMAND == *[![:space:]]* ]] || refuse "$EX_CONFIG" "smoke" "the job's smoke command is empty" "write one in the job and compile again"
  negative_known
  smoke_leftovers
  smoke_scratch
  # Until this one has ended, no earlier record opens a gate.
  smoke_write failed '' '' '' '' '' '' 'it was started and has not ended' ||
    refuse "$EX_COPY" "$SMOKE_RECORD" "it cannot be written" "look at its disk: room, rights"
  if ((SMOKE_RESUME)); then smoke_drill; else smoke_trial; fi
}

# lib/drill.bash: the resume drill: start, SIGKILL behind a checkpoint, the identical command again (bash 3.2 too).
# needs: exit log hash record file smoke steps compat
# reads: SELF_QUEUE (the compiled queue.tsv) NEED_S
#
# It holds where the relaunched command begins at or behind the newest checkpoint that the killed attempt left, never before it,
# and makes a newer one. What the log says is believed of neither: the checkpoint is looked at too.

# The first cell of the queue: SMOKE_CELL and SMOKE_RUN. Not by read_queue, which needs bash 4: the laptop's may be 3.2.
drill_cell() { # returns: 0, or 1 where there is none
  local line LC_ALL=C
  [[ -f $SELF_QUEUE ]] || return 1
  while IFS= read -r line || [[ -n $line ]]; do
    line=${line#$'\\xef\\xbb\\xbf'}
    line=${line%$'\\r'}
    case $line in
      '#'*) continue ;;
      [A-Za-z0-9]*$'\\t'*[![:space:]]*) ;;
      *[![:space:]]*) return 1 ;;
      *) continue ;;
    esac
    SMOKE_CELL=${line%%$'\\t'*} SMOKE_RUN=${line#*$'\\t'}
    check_name "$SMOKE_CELL" "$SELF_QUEUE: cell"
    return 0
  done <"$SELF_QUEUE"
  return 1
}

# The largest step so far, of the kind that this log has; empty where there is none.
drill_last() { # <log>    into REPLY
  REPLY=$(smoke_steps "$1" | sort -n | tail -n 1) || REPLY=''
}

# Until a checkpoint is there that was made behind a step later than the first one: a relaunch that goes on from it can be told
# from one that begins anew. Then SIGKILL. DRILL_FLOOR is a step that the newest checkpoint is certainly not older than: it was
# in the log before that checkpoint was there.
drill_kill() { # <log> <limit>    returns: 0 killed in its midst, 1 not (WHY says it)
  local REPLY until artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT first last='' stamp='' rc=0 LINES_SEEN=0
  DRILL_FLOOR='' DRILL_STAMP=''
  exec 3<"$1"
  now_ms
  until=$((REPLY + $2 * 1000))
  while in_time "$until"; do
    kill -0 "$SMOKE_PID" 2>/dev/null || break
    note_lines
    # The log first: what it says now was said before a checkpoint that is found later.
    stamp=$last
    drill_last "$1"
    last=$REPLY
    checkpoint_stamp "$artifact"
    if [[ $REPLY != "$DRILL_STAMP" ]]; then
      DRILL_STAMP=$REPLY DRILL_FLOOR=$stamp
      first=$(smoke_steps "$1" | head -n 1)
      if [[ -n $DRILL_STAMP && -n $DRILL_FLOOR && -n $first ]] && ((DRILL_FLOOR > first)); then
        kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
        { wait "$SMOKE_PID" || rc=$?; } 2>/dev/null
        SMOKE_PIDS=''
        smoke_stragglers "$SMOKE_WORK"
        ((rc == 137)) || { WHY='it ended by itself just then' && return 1; }
        checkpoint_stamp "$artifact"
        [[ $REPLY == "$DRILL_STAMP" ]] || DRILL_STAMP=$REPLY DRILL_FLOOR=$last
        return 0
      fi
    fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  WHY="it ended, or ran $2 s, before it was seen to print two steps (like 'epoch 1') and to write $SMOKE_ARTIFACT behind the second"
  kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
  { wait "$SMOKE_PID" || :; } 2>/dev/null
  SMOKE_PIDS=''
  smoke_stragglers "$SMOKE_WORK"
  return 1
}

# The first attempt, killed in its midst. Sets DRILL_KIND DRILL_KILLED DRILL_FLOOR and what the checkpoint says of itself.
drill_first() { # <limit>    returns: 0, or 1 with the reason in WHY
  rm -rf -- "${SMOKE_WORK:?}/cell"
  mkdir -p -- "$SMOKE_WORK/cell"
  log "resume drill: $SMOKE_CELL, at most $1 s: $SMOKE_RUN"
  smoke_launch 1 0 "$SMOKE_WORK/log1"
  drill_kill "$SMOKE_WORK/log1" "$1" || { exec 3<&- && return 1; }
  exec 3<&-
  DRILL_KIND=$(smoke_steps "$SMOKE_WORK/log1" kind)
  DRILL_KILLED=$(smoke_steps "$SMOKE_WORK/log1" | sort -n | tail -n 1)
  measure_steps
  DRILL_STEP_MS=$MEASURED_STEP_MS DRILL_TOTAL=$MEASURED_TOTAL
  checkpoint_says "$SMOKE_WORK/cell/$SMOKE_ARTIFACT"
  DRILL_EPOCH=$CKPT_EPOCH DRILL_STEP=$CKPT_STEP DRILL_SAID=''
  case $DRILL_KIND in
    step) DRILL_SAID=$DRILL_STEP ;;
    epoch) DRILL_SAID=$DRILL_EPOCH ;;
  esac
  # A program may write its checkpoint beside the training: then the checkpoint's own word counts.
  if [[ -n $DRILL_SAID ]] && ((DRILL_SAID < DRILL_FLOOR)); then DRILL_FLOOR=$DRILL_SAID; fi
}

# The second attempt until it has made a checkpoint of its own, which is asked for its step while all stands still; a later one
# would no longer tell where it began. A smoke then goes on to its end; a cell takes long and is ended once it printed a step.
drill_second() { # <limit>    sets CKPT_EPOCH CKPT_STEP DRILL_NEWER
  local REPLY until artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  now_ms
  until=$((REPLY + $1 * 1000))
  CKPT_EPOCH='' CKPT_STEP='' DRILL_NEWER=0 SMOKE_EXIT=0 SMOKE_LATE=0
  while in_time "$until" && kill -0 "$SMOKE_PID" 2>/dev/null; do
    checkpoint_stamp "$artifact"
    if [[ $DRILL_NEWER == 0 && -n $REPLY && $REPLY != "$DRILL_STAMP" ]]; then
      DRILL_NEWER=1
      if [[ -n $DRILL_EPOCH$DRILL_STEP ]]; then
        kill -STOP -- "-$SMOKE_PID" 2>/dev/null || :
        checkpoint_says "$artifact"
        kill -CONT -- "-$SMOKE_PID" 2>/dev/null || :
      fi
    fi
    if ((DRILL_NEWER)) && [[ $SMOKE_CELL == smoke || -n $(smoke_steps "$SMOKE_WORK/log2" "$DRILL_KIND" | head -n 1) ]]; then break; fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  if [[ $SMOKE_CELL == smoke ]]; then
    smoke_wait
  else
    kill -0 "$SMOKE_PID" 2>/dev/null || { wait "$SMOKE_PID" || SMOKE_EXIT=$?; } 2>/dev/null
    kill -KILL -- "-$SMOKE_PID" 2>/dev/null || :
    { wait "$SMOKE_PID" || :; } 2>/dev/null
    SMOKE_PIDS=''
    smoke_stragglers "$SMOKE_WORK"
  fi
  # It may have ended between two looks.
  checkpoint_stamp "$artifact"
  if [[ $DRILL_NEWER == 0 && -n $REPLY && $REPLY != "$DRILL_STAMP" ]]; then
    DRILL_NEWER=1
    [[ -z $DRILL_EPOCH$DRILL_STEP ]] || checkpoint_says "$artifact"
  fi
}

# Did the second attempt go on? The reason why not into WHY; empty where it did.
drill_judge() { # reads: what both attempts left
  local REPLY again=$SMOKE_WORK/log2 floor
  WHY=''
  step_name "$DRILL_FLOOR" "$DRILL_KIND"
  floor=$REPLY
  # The smallest of all that it printed: "resuming at step 9" and then step 1 is no resume.
  DRILL_RESUMED=$(smoke_steps "$again" "$DRILL_KIND" | sort -n | head -n 1)
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  if ((SMOKE_EXIT != 0)); then
    WHY="the second attempt ended with status $SMOKE_EXIT"
  elif [[ -z $DRILL_RESUMED ]]; then
    WHY="the second attempt printed no step, so nobody knows where it began"
  elif ((DRILL_RESUMED < DRILL_FLOOR)); then
    WHY="the second attempt began at $REPLY again, before $floor of the newest checkpoint (killed at $DRILL_KILLED_NAME): it does not resume"
  fi
  [[ -z $WHY ]] || return 0
  if ((DRILL_NEWER == 0)); then
    WHY="the second attempt wrote no newer $SMOKE_ARTIFACT: only its log says that it went on"
    return 0
  fi
  drill_went_back epoch "$DRILL_EPOCH" "$CKPT_EPOCH" || return 0
  # Steps may begin anew in each epoch.
  [[ -n $DRILL_EPOCH && $DRILL_EPOCH != "$CKPT_EPOCH" ]] || drill_went_back step "$DRILL_STEP" "$CKPT_STEP" || return 0
  [[ -z $DRILL_SAID ]] || ((DRILL_RESUMED >= DRILL_SAID - 1)) ||
    WHY="the newest checkpoint of the killed attempt says $DRILL_KIND $DRILL_SAID, and the second attempt began at $DRILL_RESUMED: it does not resume"
}
drill_went_back() { # <word> <before> <after>    returns: 1, with WHY, where the checkpoint is of an earlier one than before
  [[ -n $2 && -n $3 ]] && (($3 < $2)) || return 0
  WHY="$SMOKE_ARTIFACT says $1 $2 when the first attempt is killed, and $1 $3 as soon as the second has written it: it does not resume"
  return 1
}

drill_write() { # <result> <why>
  local REPLY
  record_open drill/1
  record_text where "$SMOKE_WHERE"
  record_text result "$1"
  record_text commit "$SMOKE_COMMIT"
  record_text box_digest "$SMOKE_BOX_DIGEST"
  record_text cell "$SMOKE_CELL"
  record_text command_sha256 "$DRILL_DIGEST"
  record_text command_sha256_again "$DRILL_AGAIN"
  record_text killed "$DRILL_KILLED_NAME"
  step_name "$DRILL_FLOOR" "$DRILL_KIND"
  record_text checkpoint "$REPLY"
  record_text checkpoint_says "${DRILL_EPOCH:+epoch $DRILL_EPOCH }${DRILL_STEP:+step $DRILL_STEP}"
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  record_text resumed "${DRILL_RESUMED:+$REPLY}"
  record_int step_ms "$DRILL_STEP_MS"
  record_int steps_total "$DRILL_TOTAL"
  record_text why "$2"
  utc_now
  record_text ended "$REPLY"
  record_close
  replace_file "${SMOKE_RECORD%/*}/drill.json" "$RECORD" ||
    refuse "$EX_COPY" "${SMOKE_RECORD%/*}/drill.json" "it cannot be written" "look at its disk: room, rights"
}

# The second attempt of the same command, and what both come to. Sets WHY, empty where the drill holds.
drill_again() { # <limit>
  local REPLY
  step_name "$DRILL_KILLED" "$DRILL_KIND"
  DRILL_KILLED_NAME=$REPLY
  log "killed at $DRILL_KILLED_NAME; the identical command again"
  # Read anew from where it came: what is started again is what a relaunch would start.
  [[ $SMOKE_CELL == smoke ]] || drill_cell || SMOKE_RUN=''
  hash_file "$SMOKE_WORK/words1" || REPLY='' # what was started, and where
  DRILL_DIGEST=$REPLY DRILL_RESUMED=''
  smoke_begin
  smoke_launch 2 1 "$SMOKE_WORK/log2"
  drill_second "$1"
  hash_file "$SMOKE_WORK/words2" || REPLY=''
  DRILL_AGAIN=$REPLY
  WHY='the command of the two attempts is not the same'
  [[ -n $DRILL_DIGEST && $DRILL_DIGEST == "$DRILL_AGAIN" ]] || return 0
  drill_judge
}

smoke_drill() { # returns: 0 the second attempt went on, 1 it did not; refuses 77 where it cannot be seen
  local WHY='' limit=$SMOKE_TIMEOUT_S
  SMOKE_CELL=smoke SMOKE_RUN=$SMOKE_COMMAND
  if ! drill_first "$limit"; then
    tail -n 20 -- "$SMOKE_WORK/log1" >&2
    log "the smoke command cannot be killed in its midst: $WHY; the smoke first, then the drill with a cell of the queue"
    rm -rf -- "${SMOKE_WORK:?}/cell"
    mkdir -p -- "$SMOKE_WORK/cell"
    smoke_trial || return
    ((limit >= NEED_S)) || limit=$NEED_S
    drill_cell || refuse "$EX_GATE" "the resume drill" "the smoke command is too short for it, and $SELF_QUEUE has no cell to take instead" "give the smoke command a few more steps, and let it print them"
    if ! drill_first "$limit"; then
      tail -n 20 -- "$SMOKE_WORK/log1" >&2
      refuse "$EX_GATE" "the resume drill with cell $SMOKE_CELL" "$WHY" "let the command print its steps and write $SMOKE_ARTIFACT more often, or give the smoke command a few more steps"
    fi
  fi
  drill_again "$limit"
  drill_end
}

drill_end() { # reads: WHY    returns: as smoke_drill
  local REPLY result=passed
  [[ -z $WHY ]] || result=failed
  [[ $SMOKE_CELL == smoke ]] || WHY=${WHY:+"the drill with cell $SMOKE_CELL: $WHY"}
  drill_write "$result" "$WHY"
  step_name "$DRILL_RESUMED" "$DRILL_KIND"
  [[ $result != passed ]] || log "resumed: $SMOKE_CELL was killed at $DRILL_KILLED_NAME, went on at $REPLY"
  if [[ $SMOKE_CELL != smoke && $result == passed ]]; then
    claim passed "resume drill with cell $SMOKE_CELL on the $SMOKE_WHERE" "${SMOKE_RECORD%/*}/drill.json"
    return
  fi
  if [[ $SMOKE_CELL == smoke ]]; then smoke_judge "$SMOKE_WORK/log2"; else SMOKE_RESULT=failed; fi
  # Where it failed as a smoke too, its end says more than the drill.
  if [[ $result != passed ]] && [[ $SMOKE_CELL != smoke || $SMOKE_EXIT$SMOKE_LATE == 00 ]]; then
    SMOKE_RESULT=failed SMOKE_WHY=$WHY SMOKE_SHA='' SMOKE_BYTES=''
  fi
  [[ $SMOKE_RESULT != passed ]] || smoke_time_save
  smoke_report "$SMOKE_WORK/log2"
}

usage() {
  cat <<'USAGE'
usage: smoke.sh [--resume] [--waive WHO=WHY]

Runs the job's smoke command once in the code directory, within its limit, with trackers off and CELL_DIR in a scratch
folder that is removed afterwards. It passes only with status 0, no traceback and a fresh, non-empty checkpoint of the
declared name. The record D/smoke.json names commit and scripts; a formal run insists on it. It is never evidence.

--resume         kill the command with SIGKILL behind a checkpoint, give it again unchanged, and compare the step that it
                 begins at with that of the newest checkpoint. A smoke command that is too short for this is run as a
                 smoke, and then the first cell of the queue is taken. See drill.json beside smoke.json.
--waive WHO=WHY  do not run it; write down who says so and why

exit codes: 0 passed or waived, 1 failed, 64 usage, 69 missing, 73 no room, 74 not written, 77 refused, 78 configuration
USAGE
}

# The environment that a cell gets, with this trial's scratch folder for everything that is cached or temporary.
smoke_env() { # returns: 0, or 77
  CELL=$SMOKE_CELL CELL_INDEX=0 ATTEMPT=$CELL_ATTEMPT RUN_ID=smoke S=$SMOKE_WORK
  cell_env || { log "$REPLY" && return "$EX_GATE"; }
}

# Interpreter and environment that the trial is of: SMOKE_PY and SMOKE_ENV.
smoke_names() {
  local REPLY
  SMOKE_PY=$(type -P "$PY") || refuse "$EX_MISSING" "PY=$PY" "the interpreter is not there" "set PY to the python of the environment, by its path"
  describe_environment
  hash_text "$REPLY" || refuse "$EX_MISSING" "hashing" "it failed" "look at sha256sum or openssl"
  SMOKE_ENV=${REPLY:0:8}
}

main() {
  local REPLY
  case ${1-} in -h | --help) usage && return 0 ;; esac
  smoke_flags "$@" || { usage >&2 && return "$EX_USAGE"; }
  self_dir
  run_places asked
  read_secrets
  prove_proxy
  [[ -d $CODE_DIR ]] || refuse "$EX_MISSING" "cd $CODE_DIR" "the folder is not there" "put the code there, or set CODE_DIR to its work tree"
  [[ -d $D ]] || mkdir -p -- "$D" 2>/dev/null || refuse_write "$EX_NOROOM" "$D" "the folder cannot be made" data
  box_digest "$SELF_DIR" || refuse "$EX_MISSING" "$SELF_DIR" "its files cannot be read" "copy the whole folder box/ again"
  SELF_QUEUE=$SELF_DIR/queue.tsv SMOKE_WHERE=box SMOKE_RECORD=$D/smoke.json SMOKE_ROOT=$SCRATCH/gpu-runbook SMOKE_BOX_DIGEST=$REPLY
  [[ -n $SMOKE_WAIVER ]] || smoke_names
  SMOKE_RESULTS=("$D")
  [[ $B == "$D" ]] || SMOKE_RESULTS+=("$B")
  smoke_go "$D" "$B" "$SMOKE_ROOT"
}

#!/usr/bin/env bash
# status.sh: what the run is in now: every cell's state, progress, room, session. Reads only.
# Generated; do not edit. Source: templates/box/status.sh.j2
# To change it, edit the source or profiles/kaggle.yaml, then: make profile=kaggle
set -euo pipefail
shopt -u failglob # an exported BASHOPTS may have it
umask 077
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
# Numbers, sort order and messages do not follow the locale; names in UTF-8 stay whole.
if [[ -n ${LC_ALL-} ]]; then export LANG="$LC_ALL" && unset LC_ALL; fi
export LC_NUMERIC=C LC_COLLATE=C LC_MESSAGES=C
readonly PROG=status.sh

# --- bound values: profiles/kaggle.yaml x jobs/demo.yaml ---
# the run's name; a new one begins anew
RUN=${RUN-demo}
# tier working: survives ssh drop, stop, not restart, destroy
DATA_DIR=${DATA_DIR-/kaggle/working}
# no tier outlives the meter stop: results come home first
DURABLE_DIR=${DURABLE_DIR-}
# may be lost at any time
SCRATCH=${SCRATCH-/kaggle/temp}
# expected seconds for one cell
readonly NEED_S=6
# --- end of bound values ---

record_open() { # <schema>
  RECORD='{'$'\\n''  "schema": "'$1'"'
}
record_text() { # <name> <text>
  local REPLY=$2
  [[ $2 != *[\\"\\\\[:cntrl:]]* ]] || record_fit "$2"
  RECORD+=,$'\\n''  "'$1'": "'$REPLY'"'
}
record_raw() { # <name> <integer, true, false or null>
  RECORD+=,$'\\n''  "'$1'": '$2
}
# An integer, or null where the value is empty (not known).
record_int() { # <name> <digits or empty>
  if [[ -z $2 ]]; then
    record_raw "$1" null
  elif [[ $2 =~ ^-?[0-9]+$ ]]; then
    record_raw "$1" "$2"
  else
    log "a bug here: member $1 of a record is to be an integer and is '$2'"
    return "$EX_INTEGRITY"
  fi
}
# Read FILE into R_<member>. Lists are skipped. Only a whole record of the expected schema (and run) counts.
read_record() { # <file> <schema> [run id]    returns: 0 read, 1 not there, 2 unknown
  local REPLY file=$1 schema=$2 run_id=${3-} name names=" ${!R_*}"
  # Ours are in small letters: R_HOME and R_LIBS are the cell's affair.
  if [[ $names != *' R_'[!a-z]* ]]; then
    # shellcheck disable=SC2086 # names
    unset $names
  else
    for name in "${!R_@}"; do [[ $name != R_[a-z]* ]] || unset "$name"; done
  fi
  [[ -e $file || -L $file ]] || return 1
  read_text "$file" || return 2
  parse_record || return 2
  [[ ${R_schema-} == "$schema" ]] || return 2
  [[ -z $run_id || ${R_run_id-} == "$run_id" ]] || return 2
}

usage() {
  cat <<'USAGE'
usage: status.sh [--json]

Says what the run is in: each cell of its queue (pending, running, done, unsynced, failed, preempted, unknown), the attempt, how
long ago it last showed progress, an estimate of the time left, the session, free room. It reads, changes nothing, and does
not count what it could not look at: unknown is neither done nor never run.

--json  one record (docs/contracts.md, section 9), a line for each cell

exit codes: 0 it was looked at, 64 usage, 65 a record is damaged, 69 there is no run here, 78 configuration
USAGE
}

main() {
  local json=false
  case ${1-} in
    -h | --help) usage && return 0 ;;
    --json) json=true && shift ;;
  esac
  (($# == 0)) || { usage >&2 && return "$EX_USAGE"; }
  find_this_run
  look_at_cells
  look_at_run
  if [[ $json == true ]]; then print_json; else print_screen; fi
}

# The run's record and roster, from whichever tier has them. Begins nothing.
find_this_run() {
  local REPLY rc=0
  self_dir
  run_places
  read_record "$D/run.json" run/1 || rc=$?
  ((rc != 1)) || [[ $B == "$D" ]] || { rc=0 && read_record "$B/run.json" run/1 || rc=$?; }
  ((rc != 1)) || refuse "$EX_MISSING" "run $RUN" "there is neither $D/run.json nor $B/run.json" "start it, or set RUN, DATA_DIR and DURABLE_DIR to it"
  if ((rc != 0)); then
    if [[ -e $D/run.json || -L $D/run.json ]]; then record_fault "$D/run.json"; else record_fault "$B/run.json"; fi
    refuse "$EX_INTEGRITY" "the run's record" "$REPLY" "compare $D/run.json with $B/run.json"
  fi
  RUN_ID=$R_run_id
  ! no_file "$D/queue.tsv" || refuse "$EX_INTEGRITY" "$D/queue.tsv" "it is $REPLY, not the run's queue" "look at what made it, and move it away; run_queue.sh makes the queue anew"
  if [[ -e $D/queue.tsv ]]; then
    read_queue "$D/queue.tsv"
  else
    QUEUE_NAMES=() QUEUE_COMMANDS=()
  fi
}

# Every cell's state now, into NOW (parallel to QUEUE_NAMES), and the counts N_<state>.
look_at_cells() {
  local REPLY name
  NOW=() NOW_WHY=() N_pending=0 N_running=0 N_done=0 N_unsynced=0 N_failed=0 N_preempted=0 N_unknown=0
  read_states
  for name in ${QUEUE_NAMES[@]+"${QUEUE_NAMES[@]}"}; do
    state_now "$name"
    NOW+=("$REPLY") NOW_WHY+=("$C_WHY")
    case $REPLY in
      pending) N_pending=$((N_pending + 1)) ;;
      running) N_running=$((N_running + 1)) ;;
      'done') N_done=$((N_done + 1)) ;;
      unsynced) N_unsynced=$((N_unsynced + 1)) ;;
      failed) N_failed=$((N_failed + 1)) ;;
      preempted) N_preempted=$((N_preempted + 1)) ;;
      *) N_unknown=$((N_unknown + 1)) ;;
    esac
  done
}

# The formal run or else what the cells say, into RUN_STATE RUN_WHY SESSION; room; progress; estimate.
look_at_run() {
  local REPLY
  judge_formal
  RUN_STATE=$FORMAL_STATE RUN_WHY=$FORMAL_WHY
  case $FORMAL_STATE in
    starting | running | aggregating) SESSION=alive ;;
    unknown) SESSION=unknown ;;
    *) SESSION=gone ;;
  esac
  if [[ $FORMAL_STATE == none ]]; then
    RUN_WHY="not a formal run"
    if ((N_running > 0)); then
      RUN_STATE=running SESSION=alive
    elif ((${#QUEUE_NAMES[@]} == 0)); then
      RUN_STATE=starting RUN_WHY="the queue was never started"
    elif ((N_done == ${#QUEUE_NAMES[@]})); then
      RUN_STATE='done'
    elif ((N_pending + N_unknown + N_preempted > 0)); then
      RUN_STATE=idle
    else
      RUN_STATE=failed
    fi
  fi
  free_bytes "$D" || :
  BYTES_FREE=$REPLY
  free_inodes "$D" || :
  INODES_FREE=$REPLY
  last_progress
  estimate
}

# Seconds since the newest sign of life of a running cell, or since the last record: into PROGRESS_S.
last_progress() {
  local i name files=() newest='' now time
  PROGRESS_S=''
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    [[ ${NOW[i]} == running ]] || continue
    name=${QUEUE_NAMES[i]}
    files+=("$D/cells/$name" "$D/logs/$name")
  done
  ((${#files[@]} > 0)) || files=("$D/state")
  now=$(date +%s) || return 0
  while IFS= read -r time; do
    [[ $time =~ ^[0-9]+$ ]] || continue
    [[ -n $newest && $newest -ge $time ]] || newest=$time
  done < <(find "${files[@]}" -type f ! -name .alive ! -name .peak ! -name '*.sha256' -exec stat -c %Y {} + 2>/dev/null)
  [[ -z $newest ]] || PROGRESS_S=$((now > newest ? now - newest : 0))
}

# What is left, at the pace of the cells that are done: their mean where the records say it, else the job's own guess.
estimate() {
  local left=$((${#QUEUE_NAMES[@]} - N_done)) lanes=$((N_running > 0 ? N_running : 1))
  ETA_S=''
  ((left > 0)) || { ETA_S=0 && return 0; }
  cells_took
  if ((DONE_N > 0)); then ETA_S=$((DONE_S * left / DONE_N / lanes)); else ETA_S=$((NEED_S * left / lanes)); fi
}

print_json() {
  local REPLY i name line last
  record_open status/1
  record_text run_id "$RUN_ID"
  record_text state "$RUN_STATE"
  record_int planned "${#QUEUE_NAMES[@]}"
  for name in pending running 'done' unsynced failed preempted unknown; do
    line=N_$name
    record_int "$name" "${!line}"
  done
  record_int last_progress_s "$PROGRESS_S"
  record_int eta_s "$ETA_S"
  record_text session "$SESSION"
  record_int bytes_free "$BYTES_FREE"
  record_int inodes_free "$INODES_FREE"
  this_host
  record_text host "$REPLY"
  this_boot_id
  record_text boot_id "$REPLY"
  record_text why "$RUN_WHY"
  printf '%s,\\n' "$RECORD"
  last=$((${#QUEUE_NAMES[@]} - 1))
  ((last >= 0)) || { printf '  "cells": []\\n}\\n' && return 0; }
  printf '  "cells": [\\n'
  for ((i = 0; i <= last; i++)); do
    name=${QUEUE_NAMES[i]}
    [[ $i == "$last" ]] && line='' || line=,
    cell_record_of "$name"
    [[ ${NOW[i]} != 'done' ]] || C_CLASS='' C_WHY=''
    C_WHY=${C_WHY:-${NOW_WHY[i]}}
    printf '    {"cell": "%s", "state": "%s", "class": "%s", "attempt": %s, "why": "%s"}%s\\n' \\
      "$name" "${NOW[i]}" "$C_CLASS" "${C_ATTEMPT:-0}" "$C_WHY" "$line"
  done
  printf '  ]\\n}\\n'
}

print_screen() {
  local i name shown=0 hidden=0
  printf 'run %s (%s): %s%s\\n' "$RUN" "$RUN_ID" "$RUN_STATE" "${RUN_WHY:+ ($RUN_WHY)}"
  printf '  cells    planned %s = done %s + running %s + pending %s + failed %s + unsynced %s + preempted %s + unknown %s\\n' \\
    "${#QUEUE_NAMES[@]}" "$N_done" "$N_running" "$N_pending" "$N_failed" "$N_unsynced" "$N_preempted" "$N_unknown"
  printf '  progress %s s ago, about %s s to go; session %s\\n' "${PROGRESS_S:-not known}" "${ETA_S:-not known}" "$SESSION"
  printf '  room     %s bytes and %s inodes free at %s\\n' "${BYTES_FREE:-not known}" "${INODES_FREE:-not known}" "$D"
  for ((i = 0; i < ${#QUEUE_NAMES[@]}; i++)); do
    name=${QUEUE_NAMES[i]}
    case ${NOW[i]} in 'done' | pending) hidden=$((hidden + 1)) && continue ;; esac
    ((shown++ < 30)) || continue
    cell_record_of "$name"
    C_WHY=${C_WHY:-${NOW_WHY[i]}}
    [[ -z $C_CLASS ]] || C_WHY="$C_CLASS: $C_WHY"
    printf '  %-10s %s, attempt %s%s\\n' "${NOW[i]}" "$name" "${C_ATTEMPT:-0}" "${C_WHY:+, $C_WHY}"
  done
  ((shown <= 30)) || printf '  and %s more like these\\n' $((shown - 30))
  ((hidden == 0)) || printf '  and %s that are done or pending\\n' "$hidden"
}
''', digest="59a9e0b0e2fe609a2ce226858481b26ce6a9082543048ad28c738099e8015d5b": exec(compile(code, "install_cell.py", "exec"), {"__name__": "install_cell", "INDEX": index[index.index("\n"):], "TEXT": text[text.index("\n") + 1:-1]})
if __import__("hashlib").sha256("\0".join((code, index, text)).encode()).hexdigest() == digest else (
print("install_cell.py: refused: the cell; its text is not what was compiled: cut, changed or mangled on the way; "
"copy ALL of install_cell.py again, as plain text, into an empty cell", file=__import__("sys").stderr, flush=True),
(_ for _ in ()).throw(SystemExit(65))))())
