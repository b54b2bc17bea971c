# The nodes of a Citus cluster: a coordinator and two workers, built from the source. No test run needs them.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/postgres.sh
. "$scripts/lib/postgres.sh"

citus_version=13.2.2
citus_commit=cc91f4c29cc358f66e70eb1ef204a45999933926

citus_tree() { # DIR
    local dir=$1 root=$1/usr source=$1/citus from=${TOLLGATE_CITUS_SOURCE:-https://github.com/citusdata/citus} tool flags
    for tool in git cc make; do have "$tool" || die "building Citus needs $tool: install it"; done
    say "fetching the source of Citus $citus_version"
    quietly git clone --quiet --depth 1 --branch "v$citus_version" "$from" "$source" ||
        die "no source of Citus $citus_version at $from: set TOLLGATE_CITUS_SOURCE to a git repository that has it"
    [[ $(git -C "$source" rev-parse HEAD) == "$citus_commit" ]] ||
        die "the tag v$citus_version of $from is not the commit $citus_commit"
    unpack_debs "$dir" bookworm postgresql-15 postgresql-server-dev-15 libpq-dev libkrb5-dev liblz4-dev libzstd-dev \
        libpam0g-dev libselinux1-dev zlib1g-dev
    say "building Citus $citus_version, this takes a minute"
    flags="-Wno-error -I$root/include -I$root/include/mit-krb5 -I$root/include/$(uname -m)-linux-gnu"
    (
        cd "$source"
        PG_CONFIG=$root/lib/postgresql/15/bin/pg_config CPPFLAGS=$flags LDFLAGS=-L$root/lib/$(uname -m)-linux-gnu \
            quietly ./configure --without-libcurl --with-security-flags=no
        quietly make --jobs=2 with_llvm=no "COPT=$flags"
        quietly make install with_llvm=no "COPT=$flags"
    ) || die "Citus does not build on this machine: use Debian 12, or docker-compose.yml with its profile citus"
    wrap_programs "$dir" usr/lib/postgresql/15/bin/{postgres,initdb}
    rm -rf "$source" "$root"/lib/llvm* "$root"/lib/gcc "$root/include" "$root/share/doc"
}

# The nodes start side by side, and the first one builds.
obtain() {
    local tree lock
    mkdir -p "$cache"
    exec {lock}>"$cache/.citus.lock"
    if have flock; then flock "$lock"; fi
    tree=$(cached "citus-$citus_version-postgresql-15-bookworm" citus_tree)
    exec {lock}>&-
    printf '%s\n' "$tree/usr/lib/postgresql/15/bin"
}

# Every new database has the extension, on each node: it is in the template.
boot_node() {
    local bin data port
    bin=$(obtain)
    data=$(data_directory)
    port=$(free_port)
    quietly "${as_user[@]}" "$bin/initdb" --pgdata="$data" --username=postgres --auth=trust \
        --encoding=UTF8 --locale=C --no-sync || die "initdb failed"
    launch "$data" INT "$bin/postgres" -D "$data" -p "$port" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories= -c max_connections=400 -c "shared_buffers=${TOLLGATE_SERVERS_BUFFERS:-32}MB" \
        -c deadlock_timeout=200ms -c jit=off -c shared_preload_libraries=citus -c wal_level=logical \
        -c max_prepared_transactions=400 -c max_worker_processes=100 -c citus.node_conninfo=sslmode=prefer \
        -c citus.enable_statistics_collection=off -c citus.enable_create_database_propagation=on
    until accepts_connections "$data"; do
        kill -0 "$server_pid" 2>/dev/null || give_up "the server ended while starting"
        sleep 0.05
    done
    node_sql "$port" template1 'create extension citus'
    node_sql "$port" postgres 'create extension citus'
    publish "postgres://postgres@127.0.0.1:$port/postgres" accepts_connections "$data"
}

node_sql() { # PORT DATABASE STATEMENT
    quietly "$(client postgres)" --no-psqlrc --host=127.0.0.1 --port="$1" --username=postgres --dbname="$2" \
        --set=ON_ERROR_STOP=1 --command="$3" || give_up "it refuses: $3"
}
