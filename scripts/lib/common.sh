# Messages, and the directories and the user that everything else works with.
# shellcheck shell=bash disable=SC2034,SC2154 # the variables are used by the other files

# The engine a message is about; empty outside the work on one engine.
engine=

say() { printf '%s%s\n' "${engine:+$engine: }" "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

# Shows what CMD prints only when it fails.
quietly() {
    local output code
    if output=$("$@" 2>&1); then return; else code=$?; fi
    printf '%s\n' "$output" | tail -n 20 >&2
    return "$code"
}

# Mirrors drop a connection now and then; once more is enough to tell that from a real failure.
retry() {
    if "$@"; then return; fi
    say "that failed, trying once more"
    sleep 2
    "$@"
}

have() { command -v "$1" >/dev/null; }

# at_least 1.21 1.24.1: whether the second version is the first or newer.
at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

url_variable() {
    local name=${1^^}
    printf 'TOLLGATE_%s_URL' "$name"
}

state=${TOLLGATE_SERVERS_DIR:-$repo/target/servers}
[[ $state == /* ]] || state=$PWD/$state

if ((EUID == 0)); then
    # PostgreSQL refuses to run as root, so everything runs as an unprivileged user. That user cannot look
    # into root's home directory, and often not into the repository either: the cache lies in /var/cache
    # and the data in /var/tmp, which everyone may traverse and which, unlike /tmp, is hardly ever in memory.
    if id postgres >/dev/null 2>&1; then service_user=postgres; else service_user=nobody; fi
    as_user=(setpriv "--reuid=$service_user" "--regid=$(id -g "$service_user")" --init-groups --)
    cache=${XDG_CACHE_HOME:-/var/cache}/tollgate
else
    service_user=$(id -un 2>/dev/null || id -u)
    as_user=()
    cache=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}/tollgate
fi
