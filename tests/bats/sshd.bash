# sshd.bash: a real sshd of the test's own, on a high port of loopback, and an `ssh` that knows the alias demo-pod.
# shellcheck disable=SC2154,SC2034 # bats sets BATS_…; the tests use what is set here
# reads: SSHD_ADDRESS to listen at, SSHD_VIA words before sshd (a network namespace)
# gives: sshd_start, sshd_stop, sshd_new_key, BOX_HOME (the box's home: its .bashrc is read), BOX_BIN (first on the box's PATH),
# SSHD_LOG, SSH_CALLS (one line per ssh that was started here). Call sshd_stop in teardown().

sshd_find() {
  SSHD=$(PATH=$PATH:/usr/sbin:/usr/local/sbin type -P sshd) || missing_tool sshd
}

sshd_start() { # sets SSHD_DIR SSHD_PORT SSHD_PID
  local try
  SSHD_DIR=$BATS_TEST_TMPDIR/sshd BOX_HOME=$BATS_TEST_TMPDIR/box-home BOX_BIN=$BATS_TEST_TMPDIR/box-path
  SSHD_LOG=$SSHD_DIR/log SSH_CALLS=$SSHD_DIR/calls
  mkdir -p "$SSHD_DIR/bin" "$BOX_HOME" "$BOX_BIN"
  sshd_find
  [[ -e $SSHD_DIR/host ]] || ssh-keygen -q -t ed25519 -N '' -f "$SSHD_DIR/host"
  [[ -e $SSHD_DIR/user ]] || ssh-keygen -q -t ed25519 -N '' -f "$SSHD_DIR/user"
  cp "$SSHD_DIR/user.pub" "$SSHD_DIR/authorized_keys"
  # What a login on the box does: its own home, its own PATH, its start-up file, then the command.
  cat >"$SSHD_DIR/login" <<LOGIN
#!$(type -P bash)
export HOME=$(printf %q "$BOX_HOME") PATH=$(printf %q "$BOX_BIN"):\${BOX_PATH_REST-$(printf %q "$REAL_PATH")}
[[ ! -e $(printf %q "$SSHD_DIR/box-path-rest") ]] || PATH=$(printf %q "$BOX_BIN"):\$(<$(printf %q "$SSHD_DIR/box-path-rest"))
cd "\$HOME"
[[ ! -f \$HOME/.bashrc ]] || source "\$HOME/.bashrc"
exec bash -c "\$SSH_ORIGINAL_COMMAND"
LOGIN
  chmod +x "$SSHD_DIR/login"
  [[ $EUID -ne 0 ]] || mkdir -p /run/sshd
  for try in 1 2 3 4 5 6 7 8 9 10; do
    SSHD_PORT=$((20000 + (RANDOM + $$ + try * 977) % 12000))
    sshd_launch && break
  done
  [[ -n ${SSHD_PID-} ]] || {
    cat "$SSHD_LOG" >&2
    return 1
  }
  sshd_client
}

sshd_launch() {
  printf '%s\n' "Port $SSHD_PORT" "ListenAddress ${SSHD_ADDRESS-127.0.0.1}" "HostKey $SSHD_DIR/host" "AuthorizedKeysFile $SSHD_DIR/authorized_keys" \
    'StrictModes no' 'UsePAM no' 'PidFile none' 'PasswordAuthentication no' 'MaxStartups 100' 'PrintMotd no' "ForceCommand $SSHD_DIR/login" \
    'PermitRootLogin prohibit-password' >"$SSHD_DIR/config"
  : >"$SSHD_LOG"
  ${SSHD_VIA[@]+"${SSHD_VIA[@]}"} "$SSHD" -D -e -f "$SSHD_DIR/config" >>"$SSHD_LOG" 2>&1 3>&- &
  SSHD_PID=$!
  wait_for 30 grep -qE 'Server listening|Cannot bind|fatal' "$SSHD_LOG" || :
  if grep -q 'Server listening' "$SSHD_LOG"; then return 0; fi
  kill "$SSHD_PID" 2>/dev/null || :
  SSHD_PID=''
  return 1
}

# The person's own ssh configuration: the alias, with port and key.
sshd_client() {
  printf '%s\n' 'Host demo-pod' " HostName ${SSHD_ADDRESS-127.0.0.1}" " Port $SSHD_PORT" " User $(id -un)" " IdentityFile $SSHD_DIR/user" \
    ' IdentitiesOnly yes' >"$SSHD_DIR/client"
  cat >"$SSHD_DIR/bin/ssh" <<SHIM
#!$(type -P bash)
printf '%q ' "\$@" >>$(printf %q "$SSH_CALLS")
printf '\n' >>$(printf %q "$SSH_CALLS")
exec $(PATH=$REAL_PATH type -P ssh) -F $(printf %q "$SSHD_DIR/client") "\$@"
SHIM
  chmod +x "$SSHD_DIR/bin/ssh"
  : >"$SSH_CALLS"
  PATH=$SSHD_DIR/bin:$PATH
  hash -r
}

sshd_new_key() { # the box has another host key from now on
  sshd_stop
  rm -f "$SSHD_DIR/host" "$SSHD_DIR/host.pub"
  ssh-keygen -q -t ed25519 -N '' -f "$SSHD_DIR/host"
  sshd_launch
}

sshd_stop() {
  [[ -n ${SSHD_PID-} ]] || return 0
  kill "$SSHD_PID" 2>/dev/null || :
  wait "$SSHD_PID" 2>/dev/null || :
  SSHD_PID=''
  # A login that puts a terminal in between outlives its connection.
  local file
  # shellcheck disable=SC2013 # paths of /proc
  for file in $(grep -lsF -- "$SSHD_DIR/login" /proc/[0-9]*/cmdline); do
    file=${file#/proc/}
    kill "${file%/cmdline}" 2>/dev/null || :
  done
}

box_without() { # <tool...>: a PATH on the box of what a box must have, less these
  local dir=$SSHD_DIR/box-tools tool found
  mkdir -p "$dir"
  for tool in $BOX_TOOLS $BOX_OPTIONAL bash rsync; do
    [[ " $* " != *" $tool "* ]] || continue
    if found=$(PATH=$REAL_PATH type -P "$tool"); then ln -sfn "$found" "$dir/$tool"; fi
  done
  printf '%s' "$dir" >"$SSHD_DIR/box-path-rest"
}
