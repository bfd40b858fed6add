# shellcheck disable=SC2016,SC2030,SC2031,SC2034,SC2154 # words for other shells; tests are subshells; bats sets status
load helper

setup() {
  common_setup
  PROG=test DETACH_DIR=''
  load_libs detach
  ID=t$BATS_TEST_NUMBER$$$RANDOM
  WORK=$BATS_TEST_TMPDIR
}
teardown() {
  rm -f "$WORK/hold"
  rm -rf "/tmp/gr-$EUID-$ID"
}

# Start a session that writes its number and lives while a file is there.
live() { # <primitive> <name>
  : >"$WORK/hold"
  detach_start "$1" "$DETACH_DIR/s" "$2" "$WORK/log" "$BASH" -c 'echo $$ >"$1/pid.$2"; while [ -e "$1/hold" ]; do sleep 0.05; done' x "$WORK" "$2"
  wait_for 30 test -s "$WORK/pid.$2"
}
gone() { # <pid>
  ! kill -0 "$1" 2>/dev/null
}

# F31 S58 case 56: without a terminal, a TERM or a standard input, and the session ends with its command.
@test "detach: tmux, screen and setsid start a session, see it alive, and see it gone" {
  local one
  need_tool tmux screen setsid
  unset TERM
  for one in tmux screen nohup; do
    rm -f "$WORK"/pid.*
    detach_dir "$ID" || fail "no folder"
    live "$one" "gr_$ID" </dev/null
    if [[ $one != nohup ]]; then
      detach_alive "$one" "$DETACH_DIR/s" "gr_$ID" || fail "$one: not seen alive"
      not detach_alive "$one" "$DETACH_DIR/s" "gr_${ID}0" || fail "$one: another name was taken for it" # case 50
      not detach_alive "$one" "$DETACH_DIR/s" "gr_" || fail "$one: a prefix was taken for it"
    fi
    rm "$WORK/hold"
    wait_for 30 gone "$(<"$WORK/pid.gr_$ID")"
    if [[ $one != nohup ]]; then
      sees_gone() { detach_alive "$one" "$DETACH_DIR/s" "gr_$ID" || [[ $? -eq 1 ]]; }
      wait_for 30 sees_gone
    fi
    rm -rf "$DETACH_DIR"
  done
}

# S59: setsid alone: its own kernel session, and a hang-up is ignored.
@test "detach: a setsid session leads itself and ignores a hang-up" {
  detach_dir "$ID"
  live nohup "gr_$ID"
  pid=$(<"$WORK/pid.gr_$ID")
  kill -HUP "$pid"
  [[ $(cut -d' ' -f6 "/proc/$pid/stat") == "$pid" ]]
  not gone "$pid"
}

# Case 53: the folder is ours, 0700, and never one that is there already, a link least of all.
@test "detach: a private socket folder, never somebody's" {
  detach_dir "$ID"
  [[ $(stat -c '%a %u' "$DETACH_DIR") == "700 $EUID" ]]
  run detach_dir "$ID"
  [[ $status -eq 74 ]]
  rmdir "$DETACH_DIR"
  mkdir "$WORK/other"
  ln -s "$WORK/other" "/tmp/gr-$EUID-$ID"
  run detach_dir "$ID"
  [[ $status -eq 74 && -z $(ls "$WORK/other") ]]
  rm "/tmp/gr-$EUID-$ID"
}

# T41 case 50: two sessions of one name live in two folders; ending one leaves the other.
@test "detach: the same session name twice is two sessions that do not meet" {
  local first second
  need_tool screen
  detach_dir "$ID"
  first=$DETACH_DIR
  live screen same
  detach_dir "${ID}b"
  second=$DETACH_DIR
  detach_alive screen "$first/s" same
  not detach_alive screen "$second/s" same
  rm "$WORK/hold"
  rm -rf "$second"
}

# Case 49: a tool that says 0 and runs nothing is found out by the trial.
@test "detach: a trial finds a tool that accepts a session and runs nothing" {
  mkdir "$WORK/bin"
  printf '#!/bin/sh\nexit 0\n' >"$WORK/bin/tmux"
  chmod +x "$WORK/bin/tmux"
  # Half a second instead of five: the sleep is what the trial polls with.
  printf '#!/bin/sh\nexit 0\n' >"$WORK/bin/sleep"
  chmod +x "$WORK/bin/sleep"
  PATH=$WORK/bin:$PATH
  not detach_trial tmux || fail "believed"
  [[ $REPLY == *'did not run'* ]]
  printf '#!/bin/sh\necho "unsafe permissions" >&2\nexit 1\n' >"$WORK/bin/tmux"
  not detach_trial tmux || fail "believed"
  [[ $REPLY == *'unsafe permissions'* ]]
}

# Case 54: screens of three generations disagree on -L and -Logfile; none of them is ever given either.
@test "detach: no multiplexer is asked to keep a log" {
  mkdir "$WORK/bin"
  printf '#!/bin/sh\nprintf "%%s\\n" "$*" >>"%s/argv"\nfor w; do case $w in -L* | -Logfile) exit 1 ;; esac; done\nexit 0\n' "$WORK" >"$WORK/bin/screen"
  chmod +x "$WORK/bin/screen"
  PATH=$WORK/bin:$PATH
  detach_dir "$ID"
  detach_start screen "$DETACH_DIR/s" gr_x "$WORK/log" true
  [[ $(<"$WORK/argv") == '-c /dev/null -dmS gr_x true' ]]
}

# Issue 5 item 4: the person's environment through a file of mode 600 that is gone after reading; odd values whole.
@test "detach: the environment comes from the file, not from the server" {
  export ODD=$'two\nlines "and" $(quotes)' ONLY_SERVER=1
  (unset ONLY_SERVER && umask 022 && umask 077 && detach_save_env "$WORK/env")
  [[ $(stat -c %a "$WORK/env") == 600 ]]
  run env -i "$BASH" -c 'source "$1"; load_libs detach; export ONLY_SERVER=1; detach_load_env "$2" && printf "%s|%s" "$ODD" "${ONLY_SERVER-unset}"' x "$ROOT/tests/bats/libs.bash" "$WORK/env"
  [[ $output == $'two\nlines "and" $(quotes)|unset' && ! -e $WORK/env ]]
  run detach_save_env /proc/nowhere/env
  [[ $status -ne 0 ]]
}

# Issue 5 item 1, case 49: a multiplexer that does not answer ends no look and no trial; it can then not be told what lives.
@test "detach: a server that is stopped and a tool that hangs cost seconds, not for ever" {
  local server
  need_tool tmux timeout
  mkdir "$WORK/bin"
  # One second in place of fifteen.
  printf '#!/bin/sh\n[ "$1" != 15 ] || { shift && set -- 1 "$@"; }\nexec %s "$@"\n' "$(type -P timeout)" >"$WORK/bin/timeout"
  chmod +x "$WORK/bin/timeout"
  PATH=$WORK/bin:$PATH
  detach_dir "$ID"
  live tmux "gr_$ID"
  server=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$(<"$WORK/pid.gr_$ID")/status")
  kill -STOP "$server"
  run detach_alive tmux "$DETACH_DIR/s" "gr_$ID"
  kill -CONT "$server"
  [[ $status -eq 2 ]]
  detach_alive tmux "$DETACH_DIR/s" "gr_$ID"
  rm "$WORK/hold"
  for tool in tmux screen; do
    printf '#!/bin/sh\nexec sleep 60\n' >"$WORK/bin/$tool"
    chmod +x "$WORK/bin/$tool"
    hash -r
    not detach_trial "$tool"
    [[ $REPLY == *"$tool did not answer"* ]] || fail "$tool: $REPLY"
    [[ -z $(ls -d "/tmp/gr-$EUID-try$$"* 2>/dev/null) ]]
  done
  mkdir "$DETACH_DIR/t"
  run detach_alive screen "$DETACH_DIR/t" x
  [[ $status -eq 2 ]]
}

# Case 84: what does not heed TERM is killed, and that it was ended has one status, by GNU's timeout and by busybox's.
@test "within: words that ignore TERM are ended, with 124, by each timeout" {
  local one
  need_tool timeout busybox
  for one in gnu busybox; do
    [[ $one == gnu ]] || busybox_path
    run within 1 sleep 1000
    [[ $status -eq 124 ]] || fail "$one: $status"
    run within 1 bash -c 'trap "" TERM; while :; do sleep 0.2; done'
    [[ $status -eq 124 ]] || fail "$one, TERM ignored: $status"
    run within 600 bash -c 'kill -TERM $$'
    [[ $status -eq 143 ]] || fail "$one, by another's TERM: $status"
  done
}
