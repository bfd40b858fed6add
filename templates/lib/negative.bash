# lib/negative.bash: what failed is a result too: a line that stays, so that nobody pays for it twice without knowing (X4).
# needs: log

# One more line; it decides nothing, so a full disk here stops nothing.
negative_line() { # <file> <where> <commit> <exit> <seconds> <why> <command>
  local REPLY
  utc_now
  [[ -s $1 ]] || printf '# time\twhere\tcommit\texit\tseconds\twhy\tcommand\n' 2>/dev/null >"$1" || return 0
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$REPLY" "$2" "$3" "$4" "$5" "${6//[[:cntrl:]]/ }" "${7//[[:cntrl:]]/ }" 2>/dev/null >>"$1" || :
}
