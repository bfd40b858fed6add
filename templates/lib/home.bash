# lib/home.bash: is the bundle at home whole and verified, now? An earlier receipt is output, never input.
# needs: exit log record hash
# reads: VERB SELF_DIR INSTANCE LOCAL_DIR PROFILE, tier_lost of the script, ACCEPTS (PATH=WHY, for the bundle that the verb is about)

# Verify the bundle in FOLDER now; an earlier receipt counts for nothing. Sets DIGEST and BUNDLE_RUN.
check_bundle() { # <folder> <run id, or empty>
  local dir=$1 rc=0 cells
  hash_file "$dir/PULL_MANIFEST.json" || refuse "$EX_GATE" "$VERB" "there is no bundle at $dir" "pull the results first"
  DIGEST=$REPLY
  read_record "$dir/PULL_MANIFEST.json" pull_manifest/1 || refuse "$EX_GATE" "$VERB" "$dir/PULL_MANIFEST.json is not a whole manifest" "pull again"
  BUNDLE_RUN=${R_run_id-}
  if [[ -z $BUNDLE_RUN || -n $2 && $BUNDLE_RUN != "$2" ]]; then
    refuse "$EX_GATE" "$VERB" "the bundle at $dir is of run '$BUNDLE_RUN', not '$2'" "pull this run's results"
  fi
  cells=$(grep -cE '^    \{"cell": "[^"]*", "state": "(done|excepted)", "why": "[^"]*"\},?$' "$dir/PULL_MANIFEST.json") || cells=0
  [[ ${R_cells_expected-} =~ ^[1-9][0-9]*$ && $cells == "$R_cells_expected" ]] ||
    refuse "$EX_GATE" "$VERB" "the bundle at $dir has $cells of ${R_cells_expected:-?} cells done or excepted" "where the box has done more since, aggregate there and pull again; else finish them, or except them by name in aggregate_to_fs.sh, and pull"
  local total=${R_files_total-}
  [[ -f $SELF_DIR/verify_local.py ]] || refuse "$EX_MISSING" "$SELF_DIR/verify_local.py" "it is not beside this script" "compile again"
  command -v python3 >/dev/null 2>&1 || refuse "$EX_MISSING" "python3" "it is not on PATH, and nothing is torn down unverified" "install Python 3.9 or later"
  rm -f -- "${dir:?}/PULL_VERIFIED.json"
  local words=() one
  # What a person accepts is said of this bundle alone, not of others that the verb would take along.
  if [[ -z $2 ]]; then for one in ${ACCEPTS[@]+"${ACCEPTS[@]}"}; do words+=("--accept=$one"); done; fi
  python3 "$SELF_DIR/verify_local.py" "$dir" --run-id "$BUNDLE_RUN" ${words[@]+"${words[@]}"} || rc=$?
  ((rc == 0)) || refuse "$EX_GATE" "$VERB" "verify_local.py found the bundle at $dir not in order (exit $rc)" "pull again, then run this again"
  check_receipt "$dir" "$total"
}

check_receipt() { # <folder> <files of the manifest>
  local file=$1/PULL_VERIFIED.json
  read_record "$file" pull_verified/1 "$BUNDLE_RUN" || refuse "$EX_GATE" "$VERB" "verify_local.py left no receipt of run $BUNDLE_RUN at $file" "run it by hand and see"
  [[ ${R_manifest_sha256-} == "$DIGEST" && ${R_expected-} == "$2" && ${R_checked-} == "$2" && ${R_ok-} == "$2" && $2 -gt 0 && ${R_bad-} == 0 && ${R_unproven-} == 0 ]] ||
    refuse "$EX_GATE" "$VERB" "the receipt says ok ${R_ok:-?} of ${R_expected:-?}, bad ${R_bad:-?}, unproven ${R_unproven:-?}, of manifest ${R_manifest_sha256:-?}" "pull again, then run this again"
  check_unchanged "$1"
}

# Is the bundle still what was verified? Cheap, so it can be asked again right before the act. The time of the last change
# of a name or a file's bytes (ctime) cannot be set back, and a folder's shows that something in it was removed.
check_unchanged() { # <folder>
  local newer ref=$1/PULL_VERIFIED.json
  hash_file "$1/PULL_MANIFEST.json" && [[ $REPLY == "$DIGEST" ]] || refuse "$EX_GATE" "$VERB" "the manifest at $1 changed after it was verified" "run this again"
  local test=(-newer "$ref")
  # busybox may have no -cnewer.
  if find "$ref" -cnewer "$ref" >/dev/null 2>&1; then test=('(' -newer "$ref" -o -cnewer "$ref" ')'); fi
  newer=$(find "$1/final_ckpts" "$1/PULL_MANIFEST.json" "${test[@]}" 2>&1) || newer="something in $1"
  newer=${newer%%$'\n'*}
  [[ -z $newer ]] || refuse "$EX_GATE" "$VERB" "$newer changed after it was verified" "run this again"
}

# Other runs that the verb would take along have to be home as well.
judge_others() { # <WHERE KB RUN ID...>
  local line where size run id keep_digest=$DIGEST keep_run=$BUNDLE_RUN
  for line in "$@"; do
    read -r where size run id <<<"$line"
    tier_lost "$where" || continue
    if [[ ! $run =~ ^[A-Za-z0-9][A-Za-z0-9._=,+@-]{0,127}$ || -z $id || ! -f $LOCAL_DIR/$PROFILE.$run/PULL_MANIFEST.json ]]; then
      refuse "$EX_GATE" "$VERB $INSTANCE" "run $run ($size kB) lies on the $where tier, which it loses, and is not home" "pull it with RUN=$run, or delete its folder yourself if nobody needs it"
    fi
    log "run $run lies there too: verifying it as well"
    check_bundle "$LOCAL_DIR/$PROFILE.$run" "$id"
  done
  DIGEST=$keep_digest BUNDLE_RUN=$keep_run
}

# Nobody can look there: what this laptop knows to be on the same box has to be home as well.
judge_known_others() {
  local file dir keep_digest=$DIGEST keep_run=$BUNDLE_RUN
  tier_lost data || tier_lost durable || return 0
  for file in "$LOCAL_DIR/$PROFILE".*/box.json; do
    dir=${file%/box.json}
    [[ -e $file && $dir != "$L" ]] || continue
    read_record "$file" box/1 || refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer, and $file, of another run, cannot be read" "look at it; move it aside if that run was never there"
    [[ ${R_instance-} == "$INSTANCE" ]] || continue
    [[ -n ${R_run_id-} && -e $dir/PULL_MANIFEST.json ]] ||
      refuse "$EX_GATE" "$VERB $INSTANCE" "the box does not answer; run ${dir##*/"$PROFILE".} was begun on it too, and nothing of it is home" "start or reach the box and pull that run; move $dir aside if it never began"
    log "run ${dir##*/"$PROFILE".} was there too: verifying it as well"
    check_bundle "$dir" "$R_run_id"
  done
  DIGEST=$keep_digest BUNDLE_RUN=$keep_run
}
