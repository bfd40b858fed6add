# lib/exit.bash: exit codes by name, the same in every script.
# needs:
# shellcheck disable=SC2034 # the whole table is here; a script uses the codes that it needs
{
  readonly EX_FAIL=1       # the work itself failed: a cell, a verification
  readonly EX_USAGE=64     # wrong call
  readonly EX_INTEGRITY=65 # a digest, manifest or record does not match
  readonly EX_MISSING=69   # something needed is missing or cannot be reached
  readonly EX_NOROOM=73    # no room: bytes or inodes
  readonly EX_COPY=74      # a copy is incomplete or could not be read back
  readonly EX_BUSY=75      # another runner holds it
  readonly EX_GATE=77      # refused: a precondition is not met
  readonly EX_CONFIG=78    # configuration is wrong
  readonly EX_AGAIN=79     # of run_one to run_queue alone: nothing was said nor begun, begin another
}
