# lib/drill.bash: the resume drill: start, SIGKILL behind the first checkpoint, the identical command again (bash 3.2 too).
# needs: exit log smoke

# A step for people, into REPLY.
drill_name() { # <number of smoke_steps>
  REPLY="step $1"
  [[ -z $1 ]] || (($1 < 1000000000)) || REPLY="epoch $(($1 / 1000000000 - 1)), step $(($1 % 1000000000))"
}

# Until the first checkpoint is there and whole, while the attempt lives.
drill_await() { # returns: 0 it is there and the attempt still runs, 1 not
  local until=$((SECONDS + SMOKE_TIMEOUT_S)) artifact=$SMOKE_WORK/cell/$SMOKE_ARTIFACT
  while ((SECONDS < until)); do
    kill -0 "$SMOKE_PID" 2>/dev/null || return 1
    if [[ -e $artifact ]] && [[ -s $artifact || -d $artifact ]]; then
      kill -STOP -- "-$SMOKE_PID" 2>/dev/null || return 1
      [[ -n $(smoke_steps "$1") ]] && return 0
      kill -CONT -- "-$SMOKE_PID" 2>/dev/null || return 1
    fi
    sleep 0.05 2>/dev/null || sleep 1
  done
  return 1
}

smoke_drill() { # returns: 0 the second attempt went on, 1 it did not, or it could not be seen
  local REPLY first second killed begin=$SECONDS
  : >"$SMOKE_WORK/start"
  log "resume drill: $SMOKE_COMMAND"
  smoke_launch 1 0 "$SMOKE_WORK/log1"
  if ! drill_await "$SMOKE_WORK/log1"; then
    kill -CONT -- "-$SMOKE_PID" 2>/dev/null || :
    smoke_wait
    tail -n 20 -- "$SMOKE_WORK/log1" >&2
    refuse "$EX_GATE" "the resume drill" "the command ended, or was not seen to write $SMOKE_ARTIFACT and a line like 'epoch 1' before it, so it could not be killed in its midst" \
      "give the smoke command a few more steps, and let it print them"
  fi
  first=$(smoke_steps "$SMOKE_WORK/log1" | head -n 1)
  killed=$(smoke_steps "$SMOKE_WORK/log1" | tail -n 1)
  kill -KILL -- "-$SMOKE_PID"
  { wait "$SMOKE_PID" || :; } 2>/dev/null
  drill_name "$killed"
  killed=$REPLY
  log "killed at $killed, behind its first checkpoint; the identical command again"
  smoke_launch 2 1 "$SMOKE_WORK/log2"
  smoke_wait
  SMOKE_SECONDS=$((SECONDS - begin)) SMOKE_SAVE_S=''
  smoke_judge "$SMOKE_WORK/log2"
  second=$(smoke_steps "$SMOKE_WORK/log2" | head -n 1)
  drill_name "$second"
  if [[ $SMOKE_RESULT == passed && -z $second ]]; then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt printed no step, so nobody knows where it began"
  elif [[ $SMOKE_RESULT == passed ]] && ((second <= first)); then
    SMOKE_RESULT=failed SMOKE_WHY="the second attempt began at $REPLY again (killed at $killed): it does not resume"
  fi
  [[ $SMOKE_RESULT == passed ]] || SMOKE_SHA='' SMOKE_BYTES=''
  [[ $SMOKE_RESULT != passed ]] || { log "resumed: killed at $killed, went on at $REPLY" && smoke_time_save; }
  smoke_report "$SMOKE_WORK/log2"
}
