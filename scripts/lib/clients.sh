# psql, sqlite3, and the mysql and mariadb clients, with their tools for dumps: installed ones, or those of Debian's packages.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# No older than the newest server: pg_dump refuses a newer one.
postgres_client_debs() { # DIR
    unpack_debs "$1" sid postgresql-client-18
    wrap_programs "$1" usr/lib/postgresql/18/bin/{psql,pg_dump,pg_restore}
}

mysql_client_debs() { # DIR
    unpack_debs "$1" sid mysql-client-core
    wrap_programs "$1" usr/bin/{mysql,mysqldump}
}

mariadb_client_debs() { # DIR
    unpack_debs "$1" bookworm mariadb-client
    wrap_programs "$1" usr/bin/{mariadb,mariadb-dump}
}

# Older than the library that the crate links, so that its tests show what such a shell reads.
sqlite_client_debs() { # DIR
    unpack_debs "$1" bookworm sqlite3
    wrap_programs "$1" usr/bin/sqlite3
}

# Prints the directory of an engine's unpacked clients.
client_copies() { # ENGINE
    local tree
    case $1 in
        postgres)
            tree=$(cached postgresql-client-18-sid postgres_client_debs)
            printf '%s\n' "$tree/usr/lib/postgresql/18/bin"
            ;;
        mysql)
            tree=$(cached mysql-client-tools-sid mysql_client_debs)
            printf '%s\n' "$tree/usr/bin"
            ;;
        mariadb)
            tree=$(cached mariadb-client-tools-bookworm mariadb_client_debs)
            printf '%s\n' "$tree/usr/bin"
            ;;
        sqlite)
            tree=$(cached sqlite-client-bookworm sqlite_client_debs)
            printf '%s\n' "$tree/usr/bin"
            ;;
    esac
}

# Prints the path of an engine's own client. MySQL 9's cannot log in to MariaDB, and MariaDB's not to MySQL 9.
client() { # ENGINE
    local program name=$1 directory
    if [[ $1 == postgres ]]; then name=psql; fi
    program=$(command -v "$name" || true)
    if [[ $1 == mysql && -n $program && $("$program" --version) == *MariaDB* ]]; then program=; fi
    if [[ -z $program || -n ${TOLLGATE_SERVERS_NO_INSTALLED-} ]]; then
        directory=$(client_copies "$1")
        program=$directory/$name
    fi
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
