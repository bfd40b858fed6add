# Property: hostile text pushed through the command lines of tmux, screen, setsid and ssh comes back equal and runs nothing.
# shellcheck disable=SC1003,SC2016,SC2030,SC2031,SC2034,SC2154 # words for other shells; tests are subshells; bats sets status
load helper
load sshd

setup() {
  common_setup
  PROG=test ID=q$BATS_TEST_NUMBER$$$RANDOM WORK=$BATS_TEST_TMPDIR DETACH_DIR=''
  load_libs detach ssh
  mkdir "$WORK/here" && cd "$WORK/here" || return
  make_values
}
teardown() {
  sshd_stop
  rm -rf "/tmp/gr-$EUID-$ID"
}

make_values() { # sets VALUES: what gets out of its quotes, if anything does, and random mixtures; the seed is said where a test fails
  local marks=("'" '"' '\' '$' '`' ' ' ';' '|' '&' '>' '<' '(' ')' '{' '}' '*' '?' '[' ']' '~' '#' '!' '%' '=' ',' '-' '^' $'\n' $'\t' $'\r' $'\e' x 7 é 算 $'\xff' '$(' '${' '%d' '#{' '#(' '\n')
  local n at value
  VALUES=('' ' ' '$(touch PWNED)' '`touch PWNED`' '"; touch PWNED; "' "'; touch PWNED; '" '\"; touch PWNED; \"' '; touch PWNED' '&& touch PWNED' '| touch PWNED'
    $'\ntouch PWNED\n' $'a\rtouch PWNED\n' '> PWNED' '-n' '--' '-S /tmp/x' '*' '~' '~root' '${HOME}' '$HOME' '!!' '\' 'a\' '#(touch PWNED)' '#{host}' '%%' '=x' 'A=1' '{a,b}'
    $'tab\there' $'\e[31m' $'\x01' $'\xff\xfe' 'é 算' "\$'\\n'" '$((1+1))' '<(touch PWNED)' 'EOF' "a'b\"c\`d\$e\\f" '%n' ';' '\;' '{' '}')
  RANDOM=${SEED:=$((RANDOM))}
  echo "SEED=$SEED"
  for ((n = 0; n < 40; n++)); do
    value=''
    for ((at = RANDOM % 12; at >= 0; at--)); do value+=${marks[RANDOM % ${#marks[@]}]}; done
    VALUES+=("$value")
  done
}

# The bytes of all values, each ended by NUL.
expected() { printf '%s\0' "${VALUES[@]}"; }
no_canary() { [[ -z $(find "$WORK" "$HOME" "${BOX_HOME:-$HOME}" -name '*PWNED*') ]] || fail_with 'something ran'; }

# Issue: quoting; case 8, S58. tmux hands the words to a shell on its way, screen and setsid do not.
@test "quoting: hostile words reach what tmux, screen and setsid start as they are" {
  local one
  need_tool tmux screen setsid
  expected >"$WORK/want"
  for one in tmux screen nohup; do
    detach_dir "$ID"
    rm -f "$WORK/got"
    detach_start "$one" "$DETACH_DIR/s" "gr_$ID" "$WORK/log" "$BASH" -c 'out=$1; shift; printf "%s\0" "$@" >"$out.tmp" && mv "$out.tmp" "$out"' x "$WORK/got" "${VALUES[@]}"
    wait_for 30 test -e "$WORK/got"
    cmp "$WORK/want" "$WORK/got" || fail_with "$one changed a word"
    no_canary
    rm -rf "$DETACH_DIR"
  done
}

# Case 8: an environment with hostile values goes through a file and comes back equal.
@test "quoting: a hostile environment is loaded as it was saved" {
  local n
  for ((n = 0; n < ${#VALUES[@]}; n++)); do export "HOSTILE_$n=${VALUES[n]}"; done
  detach_save_env "$WORK/env"
  for ((n = 0; n < ${#VALUES[@]}; n++)); do unset "HOSTILE_$n"; done
  detach_load_env "$WORK/env"
  for ((n = 0; n < ${#VALUES[@]}; n++)); do
    local name=HOSTILE_$n
    [[ ${!name-unset} == "${VALUES[n]}" ]] || fail_with "value $n came back as $(printf %q "${!name-unset}")"
  done
  no_canary
}

give_values() { # runs on the box
  local n name
  for ((n = 0; n < COUNT; n++)); do
    name=V_$n
    printf '%s\0' "${!name}"
  done
}

# Case 8, S58: values cross two shells, ours and the box's, as text on its standard input.
@test "quoting: hostile values reach a program on the box as they are, over ssh and here" {
  local n names=(COUNT) COUNT=${#VALUES[@]}
  sshd_start
  for ((n = 0; n < COUNT; n++)); do
    names+=("V_$n")
    printf -v "V_$n" '%s' "${VALUES[n]}"
  done
  expected >"$WORK/want"
  L=$WORK/l PROFILE=p RUN=r KEEPALIVE_S=15 KEEPALIVE_MAX=4 HOST=demo-pod HOST_NAME=demo-pod
  mkdir "$L"
  ssh_words
  for KIND in ssh-rental owned; do
    bytes_from_box give_values -- "${names[@]}" -- >"$WORK/got"
    cmp "$WORK/want" "$WORK/got" || fail_with "$KIND changed a value"
    no_canary
  done
}
