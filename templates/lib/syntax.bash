# lib/syntax.bash: does what is going to run parse at all? Asked before anything is paid for (F3).
# needs: exit log git

# Does a command of the queue name this file of the work tree, by its path or as a Python module?
named_in_queue() { # <path in the work tree>    reads: QUEUE_COMMANDS
  local all="${SMOKE_COMMAND-} ${QUEUE_COMMANDS[*]-}" module=${1%.py}
  [[ $all =~ (^|[^A-Za-z0-9_.-])"$1"([^A-Za-z0-9_.-]|$) ]] && return 0
  [[ $1 == *.py && $all =~ -m\ +"${module//\//.}"([^A-Za-z0-9_.-]|$) ]]
}

# Python files of the work tree that PY cannot compile: "path<TAB>why", NUL behind each. Compiles in memory, leaves no file.
python_faults() { # prints
  [[ $("$PY" --version 2>&1 </dev/null) == 'Python 3'* ]] || return 0
  git_here ls-files -z -- '*.py' | (cd -- "$GIT_TOP" && "$PY" -I -W ignore -c '
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

# Shell files of the work tree that do not parse, in the same form. Files of another shell are none of bash's business.
shell_faults() { # prints
  local file first said
  while IFS= read -r -d '' file; do
    [[ -f $GIT_TOP/$file ]] || continue
    { IFS= read -r first <"$GIT_TOP/$file" || :; } 2>/dev/null
    [[ $first != '#!'* || $first =~ [/\ ](ba)?sh([[:space:]]|$) ]] || continue
    said=$("$BASH" -n -- "$GIT_TOP/$file" 2>&1) || printf '%s\t%s\0' "$file" "${said%%$'\n'*}"
  done < <(git_here ls-files -z -- '*.sh')
}

# Our own scripts must parse, and each file of the code that a command of the queue names. Another one that does not is
# only named: a repository may hold templates and examples that are no programs. Sets SYNTAX_SAID.
gate_syntax() { # reads: SELF_DIR GIT_TOP PY QUEUE_COMMANDS
  local file why said others=0
  for file in "$SELF_DIR"/*.sh; do
    said=$("$BASH" -n -- "$file" 2>&1) || refuse "$EX_GATE" "bash -n $file" "${said%%$'\n'*}" "copy the whole folder box/ again"
  done
  while IFS=$'\t' read -r -d '' file why; do
    why=${why//[[:cntrl:]]/ }
    ! named_in_queue "$file" || refuse "$EX_GATE" "the syntax of $GIT_TOP/$file" "$why" "mend it, commit and push it, and run the smoke again"
    others=$((others + 1))
    ((others > 5)) || log "warning: $GIT_TOP/${file//[[:cntrl:]]/?} does not parse: $why"
  done < <(shell_faults && python_faults)
  SYNTAX_SAID="box/ and the files that the queue names parse; others that do not: $others"
}
