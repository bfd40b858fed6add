# lib/syntax.bash: does what is going to run parse at all? Asked before anything is paid for (F3), on the laptop too (bash 3.2).
# needs: exit log git
# reads: CODE_DIR PY SMOKE_COMMAND QUEUE_COMMANDS

# Does a command of the queue name this file, by its path or as a Python module?
named_in_queue() { # <path in the code directory>
  local all="${SMOKE_COMMAND-} ${QUEUE_COMMANDS[*]-}" module=${1%.py}
  [[ $all =~ (^|[^A-Za-z0-9_.-])"$1"([^A-Za-z0-9_.-]|$) ]] && return 0
  [[ $1 == *.py && $all =~ -m\ +"${module//\//.}"([^A-Za-z0-9_.-]|$) ]]
}

# Files of the code directory by their ending, each with NUL behind it: those that git has or would take, all without git.
code_files() { # <ending>    prints
  local file
  (
    cd -- "$CODE_DIR" || exit
    git_alone
    within "$GIT_LOOK_S" git -c core.fsmonitor=false ls-files -z --cached --others --exclude-standard -- "*.$1" 2>/dev/null && exit
    while IFS= read -r -d '' file; do printf '%s\0' "${file#./}"; done < <(find . -name '.?*' -prune -o -type f -name "*.$1" -print0)
  )
}

# Python files that PY cannot compile: "path<TAB>why", NUL behind each. Compiles in memory, leaves no file.
python_faults() { # prints
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  code_files py | (cd -- "$CODE_DIR" && "$PY" -I -W ignore -c '
import os, sys
for name in sys.stdin.buffer.read().split(b"\0"):
    try:
        if name and os.path.isfile(name):
            compile(open(name, "rb").read(), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as why:
        sys.stdout.buffer.write(name + b"\t" + str(why).encode("utf-8", "replace") + b"\0")
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
    [[ $first != '#!'* || $first =~ [/\ ](ba)?sh([[:space:]]|$) ]] || continue
    said=$("$BASH" -n -- "$CODE_DIR/$file" 2>&1) || printf '%s\t%s\0' "$file" "${said%%$'\n'*}"
  done < <(code_files sh)
}

# Our own scripts must parse, and each file of the code that a command of the queue names. Another one that does not is
# only named: a repository may hold templates and examples that are no programs. Sets SYNTAX_SAID.
gate_syntax() { # <folders of ours...>
  local dir file why said others=0
  for dir in "$@"; do
    for file in "$dir"/*.sh; do
      [[ -f $file ]] || continue
      said=$("$BASH" -n -- "$file" 2>&1) || refuse "$EX_GATE" "bash -n $file" "${said%%$'\n'*}" "copy the whole folder ${dir##*/}/ again"
    done
  done
  while IFS=$'\t' read -r -d '' file why; do
    why=${why//[[:cntrl:]]/ }
    ! named_in_queue "$file" || refuse "$EX_GATE" "the syntax of $CODE_DIR/$file" "$why" "mend it, commit and push it, and run the smoke again"
    others=$((others + 1))
    ((others > 5)) || log "warning: $CODE_DIR/${file//[[:cntrl:]]/?} does not parse: $why"
  done < <(shell_faults && python_faults)
  SYNTAX_SAID="our scripts and the files that the queue names parse; others that do not: $others"
}
