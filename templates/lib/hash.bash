# lib/hash.bash: SHA-256 by the quickest tool of the box.
# needs: exit log

# openssl uses the processor's SHA instructions; older sha256sum does not. Chosen once.
hash_tool() {
  case ${HASH_TOOL-} in openssl | sha256sum | shasum) return 0 ;; esac
  if command -v openssl >/dev/null 2>&1 && openssl dgst -sha256 -r </dev/null >/dev/null 2>&1; then
    HASH_TOOL=openssl
  elif command -v sha256sum >/dev/null 2>&1; then
    HASH_TOOL=sha256sum
  elif command -v shasum >/dev/null 2>&1; then
    HASH_TOOL=shasum
  else
    refuse "$EX_MISSING" "hashing" "no openssl, sha256sum or shasum on PATH" "install one of them"
  fi
}

# Become the tool: over the files named, or over standard input. To be called in a subshell only. It prints 64 digits, two
# characters, the name.
# shellcheck disable=SC2120 # without a word it reads standard input
exec_hash_tool() { # [files...]
  case $HASH_TOOL in
    openssl) exec openssl dgst -sha256 -r "$@" ;;
    sha256sum) exec sha256sum "$@" ;;
    shasum) exec shasum -a 256 "$@" ;;
  esac
}

hash_file() { # <file>    sets REPLY to 64 hex digits; returns 1 where it cannot be read
  REPLY=''
  # What is no file is not opened: a FIFO would wait for ever.
  [[ -f $1 ]] || return 1
  hash_tool
  REPLY=$({ exec_hash_tool <"$1"; } 2>/dev/null) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}

# For little: openssl hashes quicker, but starts three times as slowly.
hash_tool_small() {
  if command -v sha256sum >/dev/null 2>&1; then HASH_TOOL=sha256sum; else hash_tool; fi
}

hash_text() { # <text>    sets REPLY
  local HASH_TOOL=${HASH_TOOL-}
  hash_tool_small
  REPLY=$(exec_hash_tool < <(printf '%s' "$1")) || { REPLY= && return 1; }
  REPLY=${REPLY%% *}
  [[ $REPLY =~ ^[0-9a-f]{64}$ ]] || { REPLY= && return 1; }
}
