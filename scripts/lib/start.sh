# Starting engines. Each file in servers.d defines `obtain`, which prints where the engine's programs are
# and fetches them if need be, and `boot`, which starts the server from there.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

native_engines=(postgres15 postgres mysql mariadb pgbouncer)

# Runs FUNCTION of each engine side by side; those that fail are added to `failed`.
failed=()
side_by_side() { # FUNCTION ENGINE...
    local function=$1 name index pids=()
    shift
    # Background jobs do not notice the interrupt key by themselves.
    trap 'kill "${pids[@]}" 2>/dev/null; exit 130' INT TERM
    for name in "$@"; do
        (
            engine=$name
            # shellcheck source=/dev/null
            . "$scripts/servers.d/$name.sh"
            "$function"
        ) &
        pids+=($!)
    done
    index=0
    for name in "$@"; do
        wait "${pids[index]}" || failed+=("$name")
        index=$((index + 1))
    done
}

# The tests of dumps and restores need the tools of the engine's client.
fetch() {
    obtain >/dev/null
    client_copies "$engine" >/dev/null
}

# Takes over the user's own server, unless there is none at that address.
take_over() { # ENGINE URL
    local engine=$1 url=$2 host port
    read -r host port < <(host_and_port "$url")
    answers "$host" "$port" || return 1
    record "$engine" url "$url"
    say "using yours, from $(url_variable "$engine")"
}

host_and_port() { # URL
    local rest=${1#*://} port=5432
    if [[ $1 == mysql:* || $1 == mariadb:* ]]; then port=3306; fi
    rest=${rest%%[/?]*}
    rest=${rest##*@}
    if [[ $rest == *:* && $rest != *']' ]]; then port=${rest##*:} rest=${rest%:*}; fi
    rest=${rest#'['} rest=${rest%']'}
    printf '%s %s\n' "$rest" "$port"
}

# Of the engines named, those left to start once running ones and the user's own are set aside.
choose() { # ENGINE...
    local name variable unreachable=()
    todo=()
    for name in "$@"; do
        variable=$(url_variable "$name")
        if usable "$name"; then
            engine=$name say "already running"
        elif [[ -n ${!variable-} ]]; then
            take_over "$name" "${!variable}" || unreachable+=("$variable")
        else
            stop_engines "$name"
            todo+=("$name")
        fi
    done
    # Most likely these are left from `scripts/servers env` of a time before `stop`.
    ((${#unreachable[@]} == 0)) || die "no server answers where these variables point; start those servers," \
        "or, to have new ones started, run: unset ${unreachable[*]}"
}

make_data_root() {
    local root=$state/data
    mkdir -p "$state"
    if [[ -f $state/data-root && -d $(cat "$state/data-root") ]]; then return; fi
    if ((EUID == 0)); then root=$(mktemp -d /var/tmp/tollgate.XXXXXX); fi
    mkdir -p "$root"
    chmod 755 "$root"
    printf '%s\n' "$root" >"$state/data-root"
}

without_failed() { # ENGINE...
    local name
    for name in "$@"; do
        if [[ " ${failed[*]-} " != *" $name "* ]]; then printf '%s\n' "$name"; fi
    done
}

start_native() { # ENGINE...
    local name first=() last=()
    [[ $(uname -s) == Linux ]] || die "without Docker this works on Linux only;" \
        "start Docker, or set $(url_variable "$1") and its like to servers of yours"
    make_data_root
    if ! have sqlite3; then engine=sqlite client_copies sqlite >/dev/null; fi
    side_by_side fetch "$@"
    # PgBouncer needs the address of PostgreSQL, and Citus those of its workers.
    for name in $(without_failed "$@"); do
        case $name in
            pgbouncer | citus) last+=("$name") ;;
            *) first+=("$name") ;;
        esac
    done
    side_by_side boot "${first[@]}"
    side_by_side boot "${last[@]}"
}

start() { # [ENGINE...]
    local name wanted=("$@") todo
    # Citus is built from its source, also where Docker answers.
    if [[ " $* " != *" citus "* ]] && docker_answers; then start_with_docker "$@"; return; fi
    if (($# == 0)); then wanted=("${native_engines[@]}"); fi
    for name in "${wanted[@]}"; do
        [[ -f $scripts/servers.d/$name.sh ]] || die "unknown engine $name, or one that needs Docker;" \
            "without it there are: ${native_engines[*]}"
    done
    if [[ " ${wanted[*]} " == *" citus "* ]]; then wanted+=(citus_worker1 citus_worker2); fi
    if [[ " ${wanted[*]} " == *" pgbouncer "* && " ${wanted[*]} " != *" postgres15 "* ]]; then wanted+=(postgres15); fi
    choose "${wanted[@]}"
    if ((${#todo[@]} > 0)); then start_native "${todo[@]}"; fi
    ((${#failed[@]} == 0)) || die "not started: ${failed[*]}; the reason is further up." \
        "Instead, variables such as $(url_variable "${failed[0]}") can name servers of your own"
}
