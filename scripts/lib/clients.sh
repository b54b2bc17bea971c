# psql, and the mysql and mariadb clients: installed ones, or those of Debian's packages.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

psql_debs() { # DIR
    unpack_debs "$1" trixie postgresql-client-17
    wrap_programs "$1" usr/lib/postgresql/17/bin/psql
}

mysql_client_debs() { # DIR
    unpack_debs "$1" sid mysql-client-core
    wrap_programs "$1" usr/bin/mysql
}

mariadb_client_debs() { # DIR
    unpack_debs "$1" bookworm mariadb-client-core
    wrap_programs "$1" usr/bin/mariadb
}

# Prints the path of an engine's own client. MySQL 9's cannot log in to MariaDB, and MariaDB's not to MySQL 9.
client() { # ENGINE
    local program tree
    case $1 in
        postgres) program=$(command -v psql || true) ;;
        mysql)
            program=$(command -v mysql || true)
            if [[ -n $program && $("$program" --version) == *MariaDB* ]]; then program=; fi
            ;;
        mariadb) program=$(command -v mariadb || true) ;;
    esac
    if [[ -n $program && -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]]; then
        printf '%s\n' "$program"
        return
    fi
    case $1 in
        postgres)
            tree=$(cached psql-trixie psql_debs)
            program=$tree/usr/lib/postgresql/17/bin/psql
            ;;
        mysql)
            tree=$(cached mysql-client-sid mysql_client_debs)
            program=$tree/usr/bin/mysql
            ;;
        mariadb)
            tree=$(cached mariadb-client-bookworm mariadb_client_debs)
            program=$tree/usr/bin/mariadb
            ;;
    esac
    printf '%s\n' "$program"
}

# Where a client looks for its server by itself: so no password is ever on a command line.
write_client_settings() ( # ENGINE URL DATABASE HOME
    local rest=${2#*://} host port user password=
    umask 077
    read -r host port < <(host_and_port "$2")
    user=${rest%%[/?]*}
    if [[ $user == *@* ]]; then user=${user%@*}; else user=; fi
    if [[ $user == *:* ]]; then password=${user#*:} user=${user%%:*}; fi
    mkdir -p "$4"
    if [[ $1 == postgres ]]; then
        printf '[%s]\nhost=%s\nport=%s\nuser=%s\npassword=%s\ndbname=%s\n' \
            app "$host" "$port" "$user" "$password" "$3" >"$4/.pg_service.conf"
    else
        printf '[client]\nprotocol=tcp\nhost=%s\nport=%s\nuser=%s\npassword="%s"\n[mysql]\ndatabase=%s\n' \
            "$host" "$port" "$user" "$password" "$3" >"$4/.my.cnf"
    fi
)
