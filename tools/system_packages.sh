#!/usr/bin/env bash
# Installs the system tools that the tests need where it may (root on Debian), else names all that are missing in one message.
set -euo pipefail
readonly PROG=system_packages.sh

# tool=package: the tool is looked for on PATH and in the sbin folders.
readonly -a NEEDED=(
  git=git ssh=openssh-client sshd=openssh-server screen=screen tmux=tmux rsync=rsync busybox=busybox
  slurmctld=slurm-wlm slurmd=slurm-wlm sbatch=slurm-wlm munged=munge openssl=openssl flock=util-linux ps=procps ip=iproute2
  strace=strace locale-gen=locales
)

missing() { # prints the packages whose tool is not there
  local pair
  for pair in "${NEEDED[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin type -P "${pair%%=*}" >/dev/null || printf '%s\n' "${pair#*=}"
  done | sort -u
}

main() {
  local -a wanted=()
  local package
  while read -r package; do wanted+=("$package"); done < <(missing)
  ((${#wanted[@]})) || return 0
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "$PROG: installing ${wanted[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    if { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } >&2; then return 0; fi
  fi
  wanted=()
  while read -r package; do wanted+=("$package"); done < <(missing)
  ((${#wanted[@]})) || return 0
  echo "$PROG: not there and not installable from here: ${wanted[*]} (Debian's names). The tests that need them are skipped and named; with CI set they fail." >&2
}

main "$@"
