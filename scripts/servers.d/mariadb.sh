# MariaDB 10.11; an installed MariaDB from 10.6 on, which has JSON_TABLE, is taken as well.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

mariadb_debs() { # DIR
    # The client's package holds my_print_defaults, which mariadb-install-db calls.
    unpack_debs "$1" bookworm mariadb-server-core mariadb-client-core
    wrap_programs "$1" usr/sbin/mariadbd usr/bin/my_print_defaults usr/bin/resolveip
}

installed_mariadb() {
    local program version
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] || return 1
    program=$(PATH=$PATH:/usr/sbin command -v mariadbd) || return 1
    version=$("$program" --no-defaults --version)
    at_least 10.6 "$(sed -E 's/.*Ver ([0-9.]+).*/\1/' <<<"$version")" && have mariadb-install-db &&
        printf '%s\n' "$program"
}

obtain() {
    if installed_mariadb; then return; fi
    local tree
    tree=$(cached mariadb-10.11-bookworm mariadb_debs)
    printf '%s\n' "$tree/usr/sbin/mariadbd"
}

boot() {
    local program install=mariadb-install-db usr data port options
    program=$(obtain)
    data=$(data_directory)
    port=$(free_port)
    # In the usual /tmp, another MariaDB that starts would delete the temporary tables of this one.
    options=(--no-defaults --datadir="$data/db" --tmpdir="$data")
    if [[ $program == "$cache"/* ]]; then
        usr=${program%/sbin/mariadbd}
        install=$usr/bin/mariadb-install-db
        options+=(--basedir="$usr" --lc-messages-dir="$usr/share/mysql")
    fi
    quietly "${as_user[@]}" "$install" "${options[@]}" --auth-root-authentication-method=normal \
        --skip-test-db --skip-name-resolve ||
        die "mariadb-install-db failed; to use a server of your own, set $(url_variable "$engine")"
    if [[ -n ${usr-} ]]; then options+=(--plugin-dir="$usr/lib/mysql/plugin"); fi
    # The built-in character set is latin1, which every distribution's configuration replaces. The socket is
    # relative to the data directory: the whole path could be too long.
    launch "$data" TERM "$program" "${options[@]}" --socket=socket --pid-file=pid --skip-name-resolve \
        --bind-address=127.0.0.1 --port="$port" --max-connections=400 --character-set-server=utf8mb4 \
        --innodb-buffer-pool-size="${TOLLGATE_SERVERS_BUFFERS:-64}M" \
        --innodb-flush-log-at-trx-commit=2 --innodb-lock-wait-timeout=5
    publish "mysql://root@127.0.0.1:$port/mysql" greets "$port"
}
