# lib/classify.bash: why did a cell end? A class with its evidence, for what to do next hangs on it.
# needs: exit log room evidence
# Never a guess: without evidence a death by signal is "killed", and an error is a "bug".
# reads: SECRET_NAMES SECRET_VALUES STOP_SIGNAL LIMIT_HIT CELL_RC CELL_LOG CELL_DIR D OOM_BEFORE OOM_AFTER

# A signal's name, into REPLY.
signal_name() { # <number>
  REPLY=$(kill -l "$1" 2>/dev/null) || REPLY=$1
  REPLY=SIG${REPLY#SIG}
}

# What a line says, in awk: the class, or nothing. By what a message is about (a word for the memory and one for the device, a
# word for the connection and one for its end), for each library says it in its own way. No {n,m}: not every awk knows it.
readonly CLASS_OF_LINE='
function class_of(l) {
  if (l ~ /No usable temporary directory found/) return "disk_full"
  if (l ~ /^AssertionError.*([Nn]a[Nn]|[Nn]on-?finite|not finite)([^a-z]|$)/) return "non_finite"
  # These name a mistake in the code, whatever words they quote.
  if (l ~ /^([A-Za-z_]+\.)*(TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NotImplementedError|ZeroDivisionError|FileNotFoundError|AssertionError)(:|$)/) return ""
  if (is_oom_shared(l)) return "oom_host"
  if (is_disk_full(l)) return "disk_full"
  if (is_oom_gpu(l)) return "oom_gpu"
  if (is_oom_host(l)) return "oom_host"
  if (is_killed(l)) return "killed"
  if (is_transient(l)) return "transient"
  if (is_non_finite(l)) return "non_finite"
  return ""
}
# Files of shared memory by their names: a disk that is full is another thing.
function is_oom_shared(l) {
  return l ~ /insufficient shared memory|out of shared memory|unable to (mmap|write to file|open shared memory).*\/(torch_|dev\/shm)/
}
function is_disk_full(l) {
  return l ~ /[Nn]o space left on (the )?d|[Dd]isk quota exceeded|[Ee]rrno ?=? ?28[^0-9]|ENOSPC|[Ee]rrno ?=? ?122[^0-9]|EDQUOT|StorageFull|DiskFull/ || l ~ /iostream error|PytorchStreamWriter failed|inline_container.*(unexpected pos|write)|unexpected pos [0-9]+ vs|[Ww]rite incomplete|fwrite.*(== size|[Ff]ailed)/ || l ~ /(disk|file ?system|volume|device) (or disk )?(is )?full|[Nn]ot enough (free )?(disk )?space|[Ii]nsufficient disk space/
}
function is_oom_gpu(l) {
  if (l ~ /CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|_ALLOC_FAILED|OOM when allocating tensor/) return 1
  if (l ~ /(RESOURCE_EXHAUSTED|[Rr]esource exhausted).*([Oo]ut of memory|OOM|allocat)|ResourceExhaustedError|gpu_memory_utilization|GPU memory utilization|memory for the cache blocks/) return 1
  if (l ~ /([Oo]ut of (the )?memory|[Ff]ailed to allocate|[Cc]annot allocate|memory allocation)/ && l ~ /CUDA|[Cc]uda|HIP|hip[A-Z]|GPU|MPS|XPU|NPU|device|BFC|bfc_|torch\.OutOf|cupy|cuMem/) return 1
  return l ~ /(^|[^a-z])OutOfMemoryError/ && !(l ~ /java\.|ray\./)
}
function is_oom_host(l) {
  if (l ~ /^([A-Za-z_.]*\.)?(_ArrayMemoryError|ArrowMemoryError|MemoryError)|std::bad_alloc|[Cc](annot|ould not|an.t) allocate (memory|vector|[0-9])|DefaultCPUAllocator: (can.t|not enough)|[Uu]nable to allocate [0-9.]+ [KMGT]iB/) return 1
  if (l ~ /memory allocation of [0-9]+ bytes failed|malloc of size [0-9]+ failed|[Oo]ut of memory allocating|(java|ray)\.[a-z.]*OutOfMemoryError|[Hh]eap out of memory|(runtime|fatal error): out of memory/) return 1
  return l ~ /[Oo][Oo][Mm][-_ ]?[Kk]ill|[Oo]ut of memory: Kill|[Ee]xceeded (job |step |its )?memory limit|low on memory|: Out Of Memory$|memory cgroup out of memory/
}
function is_killed(l) {
  return l ~ /(worker|[Pp]rocess) .*killed by signal: Killed|: line [0-9]+: +[0-9]+ Killed|task [0-9-]+: Killed/ || l ~ /(exit ?code|return ?code|returncode|status|code)[ :=]*-9([^0-9]|$)|(Signals\.|\()SIGKILL|(on|by|with) signal 9/
}
function is_transient(l) {
  # An answer that a repetition does not change.
  if (l ~ /40[1346] (Client Error|Unauthorized|Forbidden|Not Found)|[Ee]rror 40[134]|[Pp]ermission|Unauthorized|Forbidden|Access ?Denied|[Ii]nvalid (API|api|usage|credentials)|ncclInvalid/) return 0
  if (l ~ /(Temporary failure|failure) in name resolution|Name or service not known|getaddrinfo failed|([Cc]ould not|[Uu]nable to|[Cc]annot|[Ff]ailed to) (resolve|look ?up) |nodename nor servname|no such host/) return 1
  if (l ~ /[Cc]onnection (was |has been |is )?([a-z]+ )?(reset|refused|aborted|timed out|broken|closed|lost|terminated|dropped)|(ConnectionReset|ConnectionRefused|ConnectionAborted|Connection|Network|DistNetwork|DistStore|Protocol|Disconnected?)Error|ConnectionLost|RemoteDisconnected|[Ss]erver ?[Dd]isconnected|ConnectTimeout|ClientConnector|(Network|Host) is unreachable|No route to host|hung up unexpectedly|unexpected disconnect|early EOF|(send|sending|write|socket|connection|disconnect)[^a-z].*[Bb]roken pipe|got 0 bytes|network (error|issue|failure)|remote process exited/) return 1
  if (l ~ /([Rr]ead|[Rr]eceive|recv|[Cc]onnect|[Ss]ocket|[Hh]andshake|[Rr]equest|[Rr]esponse|[Oo]peration|initialization|[Dd]ownload|urlopen error|[Ww]aiting .*) ?(has |was )?[Tt]imed? ?out|(i\/o|I\/O|gateway|socket\.) ?timeout|(Read|Connect|Write|Pool|Request|Socket|Gateway|Net)[a-z]*Timeout(Error|Exception)?|^([a-z]+\.)*(timeout|TimeoutError): timed out|urlopen error .*timed out|Timed out (after|waiting)|[Tt]imed out after [0-9]+ ?(m?s|milli|seconds).*(wait|connect|receiv|download)/) return 1
  if (l ~ /Max retries exceeded|retries exhausted|ChunkedEncodingError|IncompleteRead|TLS handshake|SSLEOFError|SSLZeroReturn|SSL_ERROR_SYSCALL|(SSL|TLS)[^a-z].*([Ee][Oo][Ff]|closed|reset)/) return 1
  if (l ~ /(HTTP|status|code|Error|error)[^0-9a-z][^0-9a-z]?[^0-9a-z]?[^0-9a-z]?(429|500|502|503|504)([^0-9]|$)|(^|[^0-9])(429|500|502|503|504) (Client|Server|Too|Bad|Service|Gateway|Internal|GET|PUT|POST|HEAD)|Too Many Requests|Bad Gateway|Service ?Unavailable|Gateway Time-?out|too many (429|50[0-9])|StatusCode\.(UNAVAILABLE|DEADLINE)|SlowDown|reduce your request rate|Throttling|RequestTimeout|\(InternalError\)|[Rr]ate limit(ed)? exceeded/) return 1
  if (l ~ /^curl: \((5|6|7|16|18|28|35|52|55|56|92)\)|^wget: unable to|^Giving up\.|rsync error: (error in socket|timeout|.*\(code (10|12|30|35)\))|^ssh: connect to host|kex_exchange_identification/) return 1
  if (l ~ /wandb.*(CommError|run initialization has timed out|init.*timed out|ServiceStartTimeout)|CommError|[Ee]rrno (104|110|111|101|113)[^0-9]|Address already in use|EADDRINUSE/) return 1
  return l ~ /NCCL.*(unhandled system error|Timeout at)|nccl(Remote|System)Error|collective operation timeout|LocalEntryNotFoundError|[Cc]heck your internet connection|[Cc]ouldn.t (connect to (.http|server)|reach )|[Cc]ould not connect to|Failed to (connect to .* port|establish a new connection)|RendezvousConnectionError|[Ss]tale (NFS )?file handle|file should be of size/
}
function is_non_finite(l) {
  if (l ~ /[Ll]oss returned .* is (nan|NaN|inf)|[Ll]oss (is|was|became|has become|=+|:) *([Nn]a[Nn]|-?[Ii]nf)([^a-z]|$)|([Nn]a[Nn]|[Ii]nf|[Nn]on-?finite)( (or|and) [A-Za-z]+)? (loss|gradient|grad|values? (in|for)|encountered|found|detected|weights|metric)|[Nn]on-finite|not finite|contains? (NaN|nan|Inf|infinity|.inf|.nan)/) return 1
  if (l ~ /FloatingPointError|returned nan values|contains either .inf., .nan.|Expected parameter .* but found invalid values|(gradient|grad)s? (norm )?(is|contains?|are) (bad: )?(nan|NaN|inf|non)|diverged/) return 1
  return l ~ /(found|had|has|have|got|value|not contain) (any )?([Nn]a[Nn]s?|[Ii]nfs?|infinite)([^a-z]|$)|[Ll]oss scale.*(minimum|cannot decrease)|[Ii]nvalid loss|CheckNumerics/
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
    # What launchers and loggers put before a line: colours, the rank or actor, the time, words in brackets.
    {
      gsub(/\033\[[0-9;]*m/, "")
      while (sub(/^\[?rank ?[0-9]+\]?:? ?/, "") || sub(/^\([A-Za-z0-9_.]+ (\([^)]*\) )?pid=[0-9]+[^)]*\) ?/, "") || sub(/^[0-9][0-9][0-9][0-9][-\/][0-9][0-9][-\/][0-9][0-9][T ][0-9:.,]+Z? ?/, "") || sub(/^\[[^]]*\]:? ?/, "")) continue
      sub(/[ \t]+$/, "")
    }
    /^gpu-runbook: / || /^$/ { next }
    { line[++n] = $0 }
    END {
      chained = 0; weak = ""; broken = ""
      for (i = n; i > 0 && i > n - 120; i--) {
        l = line[i]
        # A launcher only reports that a child has failed.
        if (l ~ /^([a-z_]+\.)*(ChildFailedError|ProcessRaisedException|ProcessExitedException)(:|$)|DataLoader worker .*exited unexpectedly|^Aborted/) continue
        if (l ~ /^(During handling of the above exception|The above exception was the direct cause)/) { chained = 1; continue }
        # Lines of code in a traceback are quotations, not events.
        if (l ~ /^ +(File "|raise |return |[\^~]+$)/) continue
        if (broken == "" && is_broken(l)) broken = "bug\tthe machine, not the code: " l
        c = (l ~ /^    / && !(l ~ /[Ee]rror|WARNING|FATAL/)) ? "" : class_of(l)
        # A milder sign counts only where it stands at the very end or is the error itself.
        if ((c == "transient" || c == "non_finite") && !ends_it(l) && !(l ~ /(Error|error|ERROR|fatal|FATAL|Fatal|failed|Failed|abort|Abort|stopping|Stopping|diverged|giving up|[Ee]nding|[Tt]erminat|killed)/) && i < n - 2) c = ""
        # The other ranks, the workers and the helping threads of a process that dies complain too, and trackers still talk: what it
        # died of stands before. Only where nothing stands there it is this.
        if (c == "transient" && weak == "" && (is_complaint(l) || (ends_it(l) && in_thread(i)))) weak = c "\t" l
        if (c != "" && !(weak != "" && c == "transient")) { print c "\t" l; exit }
        if (c == "" && ends_it(l) && !in_thread(i) && !(weak != "" && l ~ /^terminate called/)) {
          if (!chained && !followed_up(i)) { weak = ""; break }
          chained = 0
        }
      }
      # Still a bug, for nothing is gained by running it again here; but another one has to look for it.
      if (broken != "") print broken; else if (weak != "") print weak
    }
    function is_broken(l) {
      return l ~ /ECC_UNCORRECTABLE|[Uu]ncorrectable ECC|fallen off the bus|GPU is lost|NVRM: Xid|Unable to determine the device handle|[Dd]river version is insufficient|[Dd]river\/library version mismatch|Found no NVIDIA driver|SYSTEM_DRIVER_MISMATCH|SystemNotReady|system not yet initialized|no kernel image is available|[Ee]rrno 5[^0-9]|Input\/output error|[Ee]rrno 30[^0-9]|Read-only file system/
    }
    function is_complaint(l) {
      return l ~ /NCCL|nccl|collective operation|gloo|TCPStore|c10d|Dist(Network|Store|Backend)Error|(reset|closed) by peer|[Bb]roken pipe|remote process|got 0 bytes|^wandb: |retry loop|[Rr]etry(ing)? /
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

# The last line of a log that is the program's own and says something, into REPLY; empty where there is none.
last_words() { # <log>
  REPLY=$(tail -c 65536 -- "$1" 2>/dev/null | LC_ALL=C tr -d '\000-\010\013-\037\177' | grep -a '[[:alnum:]]' | grep -av '^gpu-runbook: ' | tail -n 1) || :
  mask_secrets "$REPLY"
  REPLY=${REPLY:0:200}
}
# What a record quotes from a log travels home and is read by others: the value of a secret does not. Before any cut.
mask_secrets() { # <text>    into REPLY
  local i
  REPLY=$1
  [[ -n ${SECRET_NAMES[0]+x} ]] || return 0
  for ((i = 0; i < ${#SECRET_NAMES[@]}; i++)); do
    ((${#SECRET_VALUES[i]} < 6)) || REPLY=${REPLY//"${SECRET_VALUES[i]}"/[${SECRET_NAMES[i]}]}
  done
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
    mask_secrets "$said"
    WHY="exit $CELL_RC; log: ${REPLY:0:300}"
  fi
  if [[ -z $WHY ]]; then
    last_words "$CELL_LOG"
    WHY="exit $CELL_RC; ${REPLY:+its last words: $REPLY; }nothing in the log speaks for another cause"
  fi
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
    SIGXFSZ) CLASS=killed WHY="$name: a file met the limit of a file's size (ulimit -f)" ;;
    SIGXCPU) CLASS=killed WHY="$name: the limit of CPU time was met (ulimit -t)" ;;
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
