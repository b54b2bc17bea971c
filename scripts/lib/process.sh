# Ports, and the life of a server process.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

answers() { # HOST PORT
    # shellcheck disable=SC2016 # the inner bash expands these
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null
}

# MySQL and MariaDB speak first, and only once they take queries; their ports open earlier than that.
greets() { # PORT
    # shellcheck disable=SC2016 # the inner bash expands these
    timeout 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0" && read -r -N 1 -u 3' "$1" 2>/dev/null
}

# Ports from 20000 to 31999 are not handed out to outgoing connections. The directory reserves the port,
# as the engines start side by side.
free_port() {
    local port try
    mkdir -p "$state/ports"
    for try in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        if mkdir "$state/ports/$port" 2>/dev/null && ! answers 127.0.0.1 "$port"; then
            printf '%s\n' "$port"
            return
        fi
    done
    die "found no free port in $try attempts"
}

# Makes an empty directory that only the user of the servers can read, and prints it.
data_directory() {
    local root
    root=$(cat "$state/data-root")
    rm -rf "${root:?}/$engine"
    mkdir -m 700 "$root/$engine"
    if ((EUID == 0)); then chown "$service_user" "$root/$engine"; fi
    printf '%s\n' "$root/$engine"
}

# Starts a server in the background, detached from the terminal and without the lock.
launch() { # DATA SIGNAL CMD...
    local data=$1 signal=$2
    shift 2
    mkdir -p "$state/log"
    record "$engine" data "$data"
    record "$engine" signal "$signal"
    setsid "${as_user[@]}" "$@" </dev/null >"$state/log/$engine.log" 2>&1 9>&- &
    server_pid=$!
    record "$engine" pid "$server_pid"
}

# Waits until TEST succeeds, then publishes the URL.
publish() { # URL TEST...
    local url=$1 deadline=$((SECONDS + 90))
    shift
    until "$@"; do
        if ! kill -0 "$server_pid" 2>/dev/null; then
            give_up "the server ended while starting"
        elif ((SECONDS > deadline)); then
            give_up "the server does not accept connections after 90 seconds"
        fi
        sleep 0.05
    done
    record "$engine" url "$url"
    say "$url"
}

give_up() { # REASON
    local log=$state/log/$engine.log
    tail -n 15 "$log" >&2
    stop_engines "$engine"
    die "$1; the log is $log. To use a server of your own, set $(url_variable "$engine")"
}

# A process that ended meanwhile is fine, one that cannot be signalled is not.
send() { # ENGINE SIGNAL
    if kill -s "$2" "$(recorded "$1" pid)" 2>/dev/null || ! process_runs "$1"; then return; fi
    die "cannot stop $1, pid $(recorded "$1" pid); run this as the user that started it"
}

stop_engines() { # ENGINE...
    local name deadline=$((SECONDS + 30))
    for name in "$@"; do
        if process_runs "$name"; then send "$name" "$(recorded "$name" signal)"; fi
    done
    for name in "$@"; do
        while process_runs "$name" && ((SECONDS < deadline)); do sleep 0.05; done
        if process_runs "$name"; then
            send "$name" KILL
            while process_runs "$name"; do sleep 0.05; done
        fi
        if [[ -f $state/$name/data ]]; then rm -rf "$(recorded "$name" data)"; fi
        rm -rf "${state:?}/$name"
    done
}

stop() {
    local name present=() stopped=()
    for name in "${engines[@]}"; do
        if [[ -d $state/$name ]]; then present+=("$name"); fi
        case $(condition "$name") in running | starting | docker) stopped+=("$name") ;; esac
    done
    stop_docker
    stop_engines "${present[@]}"
    if [[ -f $state/data-root ]]; then rm -rf "$(cat "$state/data-root")"; fi
    rm -rf "$state/data-root" "$state/log" "$state/ports"
    # Only what was made here is removed; the directory may be one that held other files before.
    rmdir "$state" 2>/dev/null || true
    say "stopped: ${stopped[*]:-nothing was running}"
}
