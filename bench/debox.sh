# Shared by bench/debox-cost and bench/debox-apps: the libraries, and the tracers as commands to put in front of
# a program. Sourced after lib.sh, never run.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154

# The libraries stand beside the command, whichever that is.
library_folder=${headway%/*}

# The C library; false, with a word, where this tree has none.
build_library() {
    [ -d "$repository/crates/debox-so" ] || { say "this tree has no libdebox.so"; return 1; }
    [ -z "${HEADWAY:-}" ] || { [ -e "$library_folder/libdebox.so" ]; return; }
    (cd "$repository" && cargo build --quiet --release --locked --package headway-debox-so --target-dir target) ||
        die "libdebox.so does not build"
    [ -e "$library_folder/libdebox.so" ]
}

# The library `headway trace` puts into programs; it looks for it beside itself.
build_preload() {
    [ -d "$repository/crates/debox-preload" ] || { say "this tree has no preload library"; return 0; }
    [ -z "${HEADWAY:-}" ] || { [ -e "$library_folder/libdebox_preload.so" ]; return; }
    (cd "$repository" && cargo build --quiet --release --locked --package headway-debox-preload --target-dir target) ||
        die "libdebox_preload.so does not build"
}

# tracer_command COLUMN: sets `tracer`, the words to put before a command; false when there is none here.
tracer_command() {
    case $1 in
        preload|preload-stacks|attach)
            "$headway" trace --help >/dev/null 2>&1 || { say "leaving out $1: this headway has no trace command"; return 1; } ;;
        strace|strace-log) command -v strace >/dev/null || { say "leaving out $1: no strace here"; return 1; } ;;
        perf) command -v perf >/dev/null || { say "leaving out $1: no perf here"; return 1; } ;;
    esac
    case $1 in
        preload) tracer=("$headway" trace -o /dev/null --) ;;
        preload-stacks) tracer=("$headway" trace --stacks -o /dev/null --) ;;
        attach) tracer=("$headway" trace --attach -o /dev/null --) ;;
        strace) tracer=(strace -f -c -o /dev/null) ;;
        strace-log) tracer=(strace -f -o /dev/null) ;;
        perf) tracer=(perf trace -s -o /dev/null --) ;;
        *) die "$1: not a column this bench knows" ;;
    esac
}

# tool_line COLUMN: the version of the tool behind a column.
tool_line() {
    case $1 in
        strace) echo "- strace: $(strace -V | sed -n '1s/.*version //p')" ;;
        perf) echo "- perf: $(version_of perf)" ;;
    esac
}

# program_version NAME: that of a program which is traced.
program_version() {
    case $1 in
        postgres) "$postgres_programs/postgres" --version | sed 's/^[^0-9]*//; s/ .*//' ;;
        sqlite3) sqlite3 --version | sed 's/ .*//' ;;
        git) git --version | sed 's/.* //' ;;
        curl) curl --version | sed -n '1s/^curl \([^ ]*\).*/\1/p' ;;
        *) version_of "$1" ;;
    esac
}

# rotated_list ROUND ITEM…: the items, beginning with another one each round.
rotated_list() {
    local round=$1 count index
    shift
    count=$#
    for ((index = 0; index < count; index++)); do
        local at=$(((index + round - 1) % count + 1))
        echo "${!at}"
    done
}
