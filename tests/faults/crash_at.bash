# crash_at.bash: with BASH_ENV set to this file a script is killed before its CRASH_AT-th command, as by a power cut.
# shellcheck disable=SC2154 # CRASH_AT comes from the environment
# The script's own processes only: a shell that it starts begins to count anew, so it is left out.
unset BASH_ENV
crash_count=0
set -T
trap '((++crash_count != CRASH_AT)) || kill -9 $$' DEBUG
