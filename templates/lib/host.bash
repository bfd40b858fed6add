# lib/host.bash: HOST, as a person gives it.
# needs: exit log    reads: KIND HOST

# HOST becomes an argument of ssh: one that is no host is refused before ssh sees it.
check_host() { # sets HOST_NAME
  local name own
  [[ $KIND != owned ]] || { HOST_NAME=here && return 0; }
  [[ -n $HOST ]] || refuse "$EX_CONFIG" "HOST" "it is not set, so there is no box to talk to" "give the ssh alias or user@host as argument, or set HOST"
  if [[ ! $HOST =~ ^[A-Za-z0-9_][A-Za-z0-9._@-]*$ ]]; then
    refuse "$EX_CONFIG" "HOST '${HOST//[[:cntrl:]]/?}'" "it is no ssh alias and no user@host" "put port and key under an alias into ~/.ssh/config and give that"
  fi
  name=${HOST#*@}
  HOST_NAME=$HOST
  own=$(hostname 2>/dev/null) || own=${HOSTNAME-}
  case $name in
    localhost | localhost.* | "$own" | "${own%%.*}")
      refuse "$EX_CONFIG" "HOST '$HOST'" "that is this machine itself" "give the box's address; for a tunnel, an alias in ~/.ssh/config"
      ;;
  esac
}
