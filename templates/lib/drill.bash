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
    line=${line#$'\xef\xbb\xbf'}
    line=${line%$'\r'}
    case $line in
      '#'*) continue ;;
      [A-Za-z0-9]*$'\t'*[![:space:]]*) ;;
      *[![:space:]]*) return 1 ;;
      *) continue ;;
    esac
    SMOKE_CELL=${line%%$'\t'*} SMOKE_RUN=${line#*$'\t'}
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
