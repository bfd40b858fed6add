# lib/classify.bash: why did a cell end? A class with its evidence, for what to do next hangs on it.
# needs: exit log room evidence
# Never a guess: without evidence a death by signal is "killed", and an error is a "bug".
# reads: STOP_SIGNAL LIMIT_HIT CELL_RC CELL_LOG CELL_DIR D OOM_BEFORE OOM_AFTER

# A signal's name, into REPLY.
signal_name() { # <number>
  REPLY=$(kill -l "$1" 2>/dev/null) || REPLY=$1
  REPLY=SIG${REPLY#SIG}
}

# What a line says, in awk: the class, or nothing.
readonly CLASS_OF_LINE='
function class_of(l) {
  if (l ~ /No usable temporary directory found/) return "disk_full"
  if (l ~ /^AssertionError.*([Nn]a[Nn]|[Nn]on-?finite|not finite)([^a-z]|$)/) return "non_finite"
  # These name a mistake in the code, whatever words they quote.
  if (l ~ /^([A-Za-z_]+\.)*(TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NotImplementedError|ZeroDivisionError|FileNotFoundError|AssertionError)(:|$)/) return ""
  if (l ~ /No space left on device|Disk quota exceeded|[Ee]rrno 28[^0-9]|ENOSPC|[Ee]rrno 122[^0-9]|EDQUOT|iostream error|PytorchStreamWriter failed|inline_container.*(unexpected pos|write)|unexpected pos [0-9]+ vs|database or disk is full/) return "disk_full"
  if (l ~ /CUDA out of memory|(CUDA|HIP) error: out of memory|torch\.(cuda\.)?OutOfMemoryError|OutOfMemoryError: (CUDA|HIP)|HIP out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED.*([Oo]ut of memory|OOM|allocat)|ResourceExhaustedError.*OOM|XPU out of memory|CUDA driver error: out of memory|[Cc]uda failure [0-9]* .out of memory|OOM when allocating tensor|Error \[(CUDA|HIP)\]: out of memory/) return "oom_gpu"
  if (l ~ /^([A-Za-z_.]*\.)?(_ArrayMemoryError|MemoryError)|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: (can.t|not enough)|[Uu]nable to allocate [0-9.]+ [KMGT]iB|memory allocation of [0-9]+ bytes failed|insufficient shared memory|out of shared memory/) return "oom_host"
  if (l ~ /(worker|[Pp]rocess) .*killed by signal: Killed|: line [0-9]+: +[0-9]+ Killed/) return "killed"
  if (l ~ /(Temporary failure|failure) in name resolution|Name or service not known|getaddrinfo failed|Could not resolve host|Connection (reset|refused|aborted|timed out|broken)|ConnectionResetError|ConnectionRefusedError|RemoteDisconnected|Connection closed (by peer|unexpectedly)|Network is unreachable|No route to host|Max retries exceeded|Read timed out|ReadTimeout|ConnectTimeout|ConnectionError|ChunkedEncodingError|IncompleteRead|ProtocolError|ServerDisconnected|(HTTP|status|code|Error|error)[^0-9a-z]{1,8}(429|500|502|503|504)([^0-9]|$)|(429|500|502|503|504) (Client|Server) Error|Too Many Requests|Bad Gateway|Service Unavailable|Gateway Time-?out|TLS handshake|SSLEOFError|SSL: UNEXPECTED_EOF|wandb.*(CommError|run initialization has timed out|init.*timed out|ServiceStartTimeout)|CommError|[Ee]rrno (104|110|111|101|113)[^0-9]|Address already in use|EADDRINUSE|DistStoreError|socket has timed out|NCCL.*(unhandled system error|remote process exited|Timeout at)|collective operation timeout|LocalEntryNotFoundError|[Cc]heck your internet connection|[Cc]ouldn.t connect to (.http|server)|Failed to connect to .* port|SlowDown|reduce your request rate|stale (NFS )?file handle|Stale file handle/) return "transient"
  if (l ~ /[Ll]oss returned .* is (nan|NaN|inf)|[Ll]oss (is|was|became|has become|=+|:) *([Nn]a[Nn]|-?[Ii]nf)([^a-z]|$)|([Nn]a[Nn]|[Ii]nf|[Nn]on-?finite)( or [A-Za-z]+)? (loss|gradient|grad|values? (in|for)|encountered|found|detected|weights|metric)|[Nn]on-finite|not finite|contains? (NaN|nan|Inf|infinity)|FloatingPointError|returned nan values|contains either .inf., .nan.|Expected parameter .* but found invalid values|(gradient|grad)s? (norm )?(is|contains?|are) (nan|NaN|inf|non)|diverged/) return "non_finite"
  return ""
}
'

# The class that the end of a log speaks for, and the line: "class<TAB>line", or nothing. Walks back from the end through
# the last traceback: the line nearest the end that says something counts, and an exception that says nothing
# ends the walk (a bug), unless another one caused it. Warnings long before the end do not count.
classify_log() { # <log>    prints
  tail -c 65536 -- "$1" 2>/dev/null | tr -d '\000\r' | LC_ALL=C awk "$CLASS_OF_LINE"'
    # The last line of a traceback, or what a shell, a C++ library or a launcher prints in its place.
    function ends_it(l) {
      return l ~ /^([A-Za-z_][A-Za-z0-9_]*\.)*[A-Z][A-Za-z0-9_]*(Error|Exception|Timeout|Interrupt|Exit|Exhausted|Disconnected|Incomplete|Failure|Expired|Refused)(:|$)/ || l ~ /^ *what\(\):|^(Segmentation fault|Aborted|terminate called|Fatal Python error|AssertionError|Error executing job|Usage:|usage: )/
    }
    { sub(/^\[?rank ?[0-9]+\]?:? ?/, ""); sub(/[ \t]+$/, "") }
    /^gpu-runbook: / || /^$/ { next }
    { line[++n] = $0 }
    END {
      chained = 0; weak = ""
      for (i = n; i > 0 && i > n - 120; i--) {
        l = line[i]
        # A launcher only reports that a child has failed.
        if (l ~ /^([a-z_]+\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)(:|$)|DataLoader worker .*exited unexpectedly|^Aborted/) continue
        if (l ~ /^(During handling of the above exception|The above exception was the direct cause)/) { chained = 1; continue }
        # Lines of code in a traceback are quotations, not events.
        if (l ~ /^ +(File "|raise |return |[\^~]+$)/) continue
        c = (l ~ /^    / && !(l ~ /[Ee]rror/)) ? "" : class_of(l)
        # A milder sign counts only where it stands at the very end or is the error itself.
        if ((c == "transient" || c == "non_finite") && !ends_it(l) && !(l ~ /(Error|error|ERROR|fatal|FATAL|Fatal|failed|Failed|abort|Abort|stopping|Stopping|diverged|giving up)/) && i < n - 2) c = ""
        # The other ranks and the helping threads of a process that dies complain too: what it died of stands before.
        if (c == "transient" && weak == "" && (l ~ /NCCL|collective operation/ || (ends_it(l) && in_thread(i)))) weak = c "\t" l
        if (c != "" && !(weak != "" && c == "transient")) { print c "\t" l; exit }
        if (c == "" && ends_it(l) && !in_thread(i) && !(weak != "" && l ~ /^terminate called/)) { if (!chained && !followed_up(i)) exit; chained = 0 }
      }
      if (weak != "") print weak
    }
    # Is the exception at i one of a thread beside the main one?
    function in_thread(i,   j) {
      for (j = i - 1; j > 0 && j > i - 40; j--) if (line[j] ~ /^Traceback /) return j > 1 && line[j - 1] ~ /^Exception (in thread|ignored in)/
      return 0
    }
    # Is the exception at i itself the follower of an earlier one? Then the walk goes on to that.
    function followed_up(i,   j) {
      for (j = i - 1; j > 0 && j > i - 60; j--) {
        if (line[j] ~ /^(During handling of the above exception|The above exception was the direct cause)/) return 1
        if (ends_it(line[j])) return 0
      }
      return 0
    }'
}

# Class and why of an attempt that is not a success, into CLASS and WHY. Order: what we know, what the kernel says,
# what the exit status says, what the log says.
classify_end() { # <evidence missing: text or empty>
  local REPLY said class=''
  CLASS=bug WHY=''
  if [[ -n $STOP_SIGNAL ]]; then
    CLASS=preempted WHY="stopped from outside by SIG$STOP_SIGNAL"
    return 0
  elif [[ -n $LIMIT_HIT ]]; then
    classify_limit
    return 0
  elif ((CELL_RC > 128 && CELL_RC < 193)); then
    classify_signal $((CELL_RC - 128))
    [[ $CLASS == bug ]] || return 0
  elif ((CELL_RC == 0)); then
    CLASS=no_evidence WHY="it ended with 0, but $1"
    return 0
  fi
  said=$(classify_log "$CELL_LOG") || said=''
  if [[ -n $said ]]; then
    class=${said%%$'\t'*} said=${said#*$'\t'}
    CLASS=$class
    WHY="exit $CELL_RC; log: ${said:0:300}"
  fi
  [[ -n $WHY ]] || WHY="exit $CELL_RC; nothing in the log speaks for another cause; see its end"
  classify_disk
  if [[ $CLASS == bug || $CLASS == killed ]]; then oom_was_here && CLASS=oom_host WHY="exit $CELL_RC; the kernel killed $((OOM_AFTER - OOM_BEFORE)) process(es) of this cgroup for want of memory"; fi
  return 0
}

oom_was_here() { [[ -n $OOM_BEFORE && -n $OOM_AFTER ]] && ((OOM_AFTER > OOM_BEFORE)); }

classify_limit() {
  if looks_complete; then
    CLASS=stuck WHY="everything required is there, but it does not end: $LIMIT_HIT"
  elif [[ $LIMIT_HIT == stall* && $CELL_RESUME == 0 ]] && [[ -z $(find "$CELL_DIR" -type f -print 2>/dev/null | head -n 1) ]]; then
    # It never began: a start-up blip, worth the identical command once more.
    CLASS=transient WHY="$LIMIT_HIT, before it wrote its first file"
  else
    CLASS=timeout WHY=$LIMIT_HIT
  fi
}

classify_signal() { # <number>
  local REPLY name
  signal_name "$1"
  name=$REPLY
  case $name in
    SIGTERM | SIGINT | SIGHUP | SIGUSR1) CLASS=preempted WHY="$name from outside reached it, and not through us" ;;
    SIGKILL)
      if oom_was_here; then
        CLASS=oom_host WHY="SIGKILL, and the kernel's oom_kill counter of this cgroup rose from $OOM_BEFORE to $OOM_AFTER"
      elif [[ -n $OOM_BEFORE ]]; then
        CLASS=killed WHY="SIGKILL, cause unknown: the oom_kill counter of this cgroup did not move"
      else
        CLASS=killed WHY="SIGKILL, cause unknown: this box shows no oom_kill counter"
      fi
      ;;
    SIGSEGV | SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSYS | SIGTRAP) WHY="$name: it crashed" ;;
    *) CLASS=killed WHY="$name, cause unknown" ;;
  esac
}

# A full disk names its mount, free bytes and inodes. A log that blames a disk with room keeps the class and says so.
classify_disk() {
  local REPLY bytes
  [[ $CLASS == disk_full ]] || return 0
  free_bytes "$D" || :
  bytes=$REPLY
  free_inodes "$D" || :
  WHY="$D has ${bytes:-an unknown number of} bytes and ${REPLY:-an unknown number of} inodes free; $WHY"
}
