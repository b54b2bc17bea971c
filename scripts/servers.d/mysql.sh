# MySQL 9; an installed MySQL from 8.0.16 on, which checks constraints, is taken as well.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

mysql_debs() { # DIR
    # Of Debian's suites only sid has MySQL itself; its version is whatever sid has on the day of the download.
    unpack_debs "$1" sid mysql-server-core
    wrap_programs "$1" usr/sbin/mysqld
}

# On many systems the name mysqld leads to MariaDB.
installed_mysql() {
    local program version
    [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]] || return 1
    program=$(PATH=$PATH:/usr/sbin command -v mysqld) || return 1
    version=$("$program" --no-defaults --version)
    [[ $version != *MariaDB* ]] && at_least 8.0.16 "$(sed -E 's/.*Ver ([0-9.]+).*/\1/' <<<"$version")" &&
        printf '%s\n' "$program"
}

obtain() {
    if installed_mysql; then return; fi
    local tree
    tree=$(cached mysql-sid mysql_debs)
    printf '%s\n' "$tree/usr/sbin/mysqld"
}

boot() {
    local program usr data port options
    program=$(obtain)
    data=$(data_directory)
    port=$(free_port)
    # Socket and pid file are relative to the data directory: the whole path could be too long. The redo log's option is
    # of 8.0.30.
    options=(--no-defaults --datadir="$data/db" --socket=socket --pid-file=pid --tmpdir="$data" --mysqlx=OFF
        --secure-file-priv= --loose-innodb-redo-log-capacity=64M)
    if [[ $program == "$cache"/* ]]; then
        usr=${program%/sbin/mysqld}
        options+=(--basedir="$usr" --plugin-dir="$usr/lib/mysql/plugin" --lc-messages-dir="$usr/share/mysql"
            --character-sets-dir="$usr/share/mysql/charsets")
    fi
    # Initialising makes root@localhost only, which does not cover TCP when names are not resolved.
    cat >"$data/root.sql" <<'END'
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
END
    quietly "${as_user[@]}" "$program" "${options[@]}" --initialize-insecure ||
        die "mysqld cannot initialise a data directory; to use a server of your own, set $(url_variable "$engine")"
    # The binary log stays on, because with it creating functions and procedures needs more privileges.
    launch "$data" TERM "$program" "${options[@]}" --init-file="$data/root.sql" --skip-name-resolve \
        --bind-address=127.0.0.1 --port="$port" --max-connections=400 --performance-schema=ON --sync-binlog=0 \
        --innodb-buffer-pool-size="${TOLLGATE_SERVERS_BUFFERS:-64}M" \
        --innodb-flush-log-at-trx-commit=2 --innodb-lock-wait-timeout=5
    publish "mysql://root@127.0.0.1:$port/mysql" greets "$port"
}
