# libs.bash: a library with all that it needs, in the order in which the compiler puts them into a script.
LIBS_LOADED=' '
LIB_FOLDER=$(cd "${BASH_SOURCE[0]%/*}/../../templates/lib" && pwd)

load_libs() { # <names…>    sources templates/lib/NAME.bash behind what its second line says that it needs, each once
  local name needs
  for name in "$@"; do
    [[ $LIBS_LOADED != *" $name "* ]] || continue
    needs=$(sed -n '2s/^# needs://p' "$LIB_FOLDER/$name.bash")
    # shellcheck disable=SC2086 # names; two blanks end the list, what comes behind them are variables
    load_libs ${needs%%  *}
    # shellcheck source=/dev/null # a library of the project
    source "$LIB_FOLDER/$name.bash"
    LIBS_LOADED+="$name "
  done
}
