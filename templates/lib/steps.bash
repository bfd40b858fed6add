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
      if (!match($0, "(^|[^A-Za-z0-9_])[\"" q "]?" word "[] :=#[\"" q "]*[0-9]+")) return ""
      word = substr($0, RSTART, RLENGTH)
      rest = substr($0, RSTART + RLENGTH)
      of = 0
      if (match(rest, /^ *(\/|of) *[0-9]+/)) {
        of = substr(rest, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", of)
        of = substr(of, 1, 9) + 0
      }
      gsub(/[^0-9]/, "", word)
      return substr(word, 1, 9)
    }
    function put(value, line, total) {
      if (lines != "") printf "%d %.0f %d\n", line, value, total
      else printf "%.0f\n", value
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
    if os.path.isfile(path) and open(path, "rb").read(2) in (b"PK", b"\x80\x02"):
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
