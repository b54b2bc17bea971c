# What is running is remembered in $state: one directory for each engine, with the files url, and for a
# server started here also pid, data (its data directory) and signal (the one that stops it at once).
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

engines=(postgres15 postgres pgbouncer mysql mysql84 mariadb yugabyte citus citus_worker1 citus_worker2 redis redis_always redis_cell)

# Not readable for others, as the URL of a user's own server may hold a password.
record() ( # ENGINE KEY VALUE
    umask 077
    mkdir -p "$state/$1"
    printf '%s\n' "$3" >"$state/$1/$2"
)

recorded() { # ENGINE KEY
    [[ ! -f $state/$1/$2 ]] || cat "$state/$1/$2"
}

# Whether the recorded pid is still that server: by now the number may belong to another process.
process_runs() { # ENGINE
    local pid data arguments
    pid=$(recorded "$1" pid) data=$(recorded "$1" data)
    [[ -n $pid && -n $data ]] || return 1
    arguments=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || return 1
    [[ $arguments == *"$data"* ]]
} 2>/dev/null

# starting, running, died, stopped, docker or yours; "yours" is a server that was taken over.
condition() { # ENGINE
    if [[ ! -d $state/$1 ]]; then
        echo stopped
    elif [[ -f $state/$1/pid ]]; then
        if ! process_runs "$1"; then
            echo died
        elif [[ -f $state/$1/url ]]; then
            echo running
        else
            echo starting
        fi
    elif [[ -f $state/$1/docker ]]; then
        echo docker
    else
        echo yours
    fi
}

usable() { # ENGINE
    case $(condition "$1") in
        running | docker | yours) ;;
        *) return 1 ;;
    esac
}

# Calls FUNCTION for each usable engine; complains when there is none.
for_each_usable() { # FUNCTION
    local name found=
    for name in "${engines[@]}"; do
        if usable "$name"; then
            found=yes
            "$1" "$name"
        fi
    done
    [[ -n $found ]] || die "no server is running, start them with: scripts/servers start"
}

print_url() { recorded "$1" url; }

print_export() { printf 'export %s=%q\n' "$(url_variable "$1")" "$(recorded "$1" url)"; }

print_urls() { for_each_usable print_url; }

print_env() { for_each_usable print_export; }

print_status() {
    local name now
    for name in "${engines[@]}"; do
        now=$(condition "$name")
        printf '%-13s %-9s' "$name" "$now"
        case $now in
            died) printf 'see %s\n' "$state/log/$name.log" ;;
            *) printf '%s\n' "$(recorded "$name" url)" ;;
        esac
    done
}
