# What the Redis servers have in common. Only scripts/bench needs them.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

redis_debs() { # DIR
    unpack_debs "$1" trixie redis-server
    wrap_programs "$1" usr/bin/redis-server
}

installed_redis() {
    local program version
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] || return 1
    program=$(command -v redis-server) || return 1
    version=$("$program" --version | sed -nE 's/.* v=([0-9.]+).*/\1/p')
    at_least 7.0 "$version" && printf '%s\n' "$program"
}

obtain_redis() {
    if installed_redis; then return; fi
    local tree
    tree=$(cached redis-trixie redis_debs)
    # In the packages redis-server is a name of redis-check-rdb, and knows what to do by it.
    printf '%s\n' "$tree/usr/bin/redis-server"
}

boot_redis() { # OPTION...
    local program data port
    program=$(obtain_redis)
    data=$(data_directory)
    port=$(free_port)
    # Its title would hide the data directory, by which the process is recognised.
    launch "$data" TERM "$program" --dir "$data" --bind 127.0.0.1 --port "$port" --set-proc-title no --save '' "$@"
    publish "redis://127.0.0.1:$port/" answers 127.0.0.1 "$port"
}
