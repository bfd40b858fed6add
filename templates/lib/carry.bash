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
    [[ -s $B/$name && $(<"$B/$name") == "$text" ]] || replace_file "$B/$name" "$text"$'\n' || return
  done
}
