# What the two PostgreSQL versions have in common.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# Prints the program directory of the newest installed server with a major version from MIN to MAX.
installed_postgres() { # MIN MAX
    local directory major
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] || return 1
    for directory in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin "$(dirname "$(command -v postgres || echo /none)")"; do
        [[ -x $directory/postgres && -x $directory/initdb ]] || continue
        major=$("$directory/postgres" --version | grep -oE '[0-9]+' | head -n 1)
        if ((major >= $1 && major <= $2)); then printf '%s %s\n' "$major" "$directory"; fi
    done | sort -snr -k 1,1 | sed -n '1s/^[0-9]* //p' | grep .
}

postgres_debs() { # DIR SUITE MAJOR
    local bin=usr/lib/postgresql/$3/bin
    unpack_debs "$1" "$2" "postgresql-$3"
    wrap_programs "$1" "$bin/postgres" "$bin/initdb"
}

accepts_connections() { # DATA
    [[ $(sed -n '8s/ *$//p' "$1/postmaster.pid" 2>/dev/null) == ready ]]
}

boot() {
    local bin data port
    bin=$(obtain)
    data=$(data_directory)
    port=$(free_port)
    quietly "${as_user[@]}" "$bin/initdb" --pgdata="$data" --username=postgres --auth=trust \
        --encoding=UTF8 --locale=C --no-sync ||
        die "initdb failed; to use a server of your own, set $(url_variable "$engine")"
    # fsync stays on, as the benchmarks are about durability too. Sockets are off: their path could be too long.
    launch "$data" INT "$bin/postgres" -D "$data" -p "$port" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories= -c max_connections=400 -c "shared_buffers=${TOLLGATE_SERVERS_BUFFERS:-32}MB" \
        -c deadlock_timeout=200ms -c jit=off
    publish "postgres://postgres@127.0.0.1:$port/postgres" accepts_connections "$data"
}
