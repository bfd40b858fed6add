# crash_at.bash: kill the script before its CRASH_AT-th command. CRASH_AT=n BASH_ENV=tests/faults/crash_at.bash bash SCRIPT …
# With CRASH_COUNT=FILE the number of commands so far is written there at each of them: scripts have EXIT traps of their own. Only
# the script itself, not what it calls.
unset BASH_ENV
# shellcheck disable=SC2034 # the trap counts it
crash_count=0
set -T
# shellcheck disable=SC2154 # the environment sets it
trap '((++crash_count == ${CRASH_AT:-0})) && kill -9 $$ || :' DEBUG
if [[ -n ${CRASH_COUNT-} ]]; then trap 'echo "$((++crash_count))" >|"$CRASH_COUNT"' DEBUG; fi
