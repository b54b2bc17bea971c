# PgBouncer in transaction mode before PostgreSQL 15. Prepared statements need 1.21 or newer.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

pgbouncer_debs() { # DIR
    unpack_debs "$1" trixie pgbouncer
    wrap_programs "$1" usr/sbin/pgbouncer
}

installed_pgbouncer() {
    local program version
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] || return 1
    program=$(PATH=$PATH:/usr/sbin command -v pgbouncer) || return 1
    version=$("$program" --version | sed -n '1s/^PgBouncer //p')
    at_least 1.21 "$version" && printf '%s\n' "$program"
}

obtain() {
    if installed_pgbouncer; then return; fi
    local tree
    tree=$(cached pgbouncer-trixie pgbouncer_debs)
    printf '%s\n' "$tree/usr/sbin/pgbouncer"
}

decoded() { printf '%b' "${1//%/\\x}"; }

boot() {
    local program data port url host backend_port login user password=''
    url=$(recorded postgres15 url)
    [[ -n $url ]] || die "needs postgres15, which is not running"
    read -r host backend_port < <(host_and_port "$url")
    login=${url#*://} login=${login%%[/?]*}
    if [[ $login == *@* ]]; then login=${login%@*}; else login=postgres; fi
    user=$(decoded "${login%%:*}")
    if [[ $login == *:* ]]; then password=$(decoded "${login#*:}"); fi

    program=$(obtain)
    data=$(data_directory)
    port=$(free_port)
    printf '"%s" "%s"\n' "$user" "$password" >"$data/users.txt"
    # Any database name passes through, as each test makes its own; idle connections are dropped soon, or
    # those to databases that are gone would use up all that PostgreSQL allows.
    cat >"$data/pgbouncer.ini" <<END
[databases]
* = host=$host port=$backend_port
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = trust
auth_file = $data/users.txt
auth_user = $user
auth_dbname = postgres
pool_mode = transaction
max_prepared_statements = 200
max_client_conn = 500
server_idle_timeout = 5
ignore_startup_parameters = extra_float_digits
END
    if ((EUID == 0)); then chown "$service_user" "$data"/*; fi
    # INT and TERM would wait for clients to leave.
    launch "$data" QUIT "$program" "$data/pgbouncer.ini"
    publish "postgres://$login@127.0.0.1:$port/postgres" answers 127.0.0.1 "$port"
}
