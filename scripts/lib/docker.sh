# The same servers, and YugabyteDB, from docker-compose.yml.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

docker_answers() {
    [[ -z ${TOLLGATE_SERVERS_NO_DOCKER-} ]] && have docker &&
        docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1
}

compose() { docker compose --project-name tollgate --file "$repo/docker-compose.yml" "$@"; }

start_with_docker() { # [ENGINE...]
    local name address scheme services wanted=("$@") todo
    services=$(compose config --services)
    # shellcheck disable=SC2206 # one word for each service
    if (($# == 0)); then wanted=($services); fi
    for name in "${wanted[@]}"; do
        grep -qxF -- "$name" <<<"$services" ||
            die "docker-compose.yml has no $name, only: ${services//$'\n'/ }." \
                "Without Docker there are also: ${native_engines[*]}; set TOLLGATE_SERVERS_NO_DOCKER=1 for that"
    done
    choose "${wanted[@]}"
    if ((${#todo[@]} == 0)); then return; fi
    compose up --detach --wait "${todo[@]}"
    for name in "${todo[@]}"; do
        case $name in
            postgres*) scheme=postgres://postgres@ address=$(compose port "$name" 5432)/postgres ;;
            yugabyte) scheme=postgres://yugabyte@ address=$(compose port "$name" 5433)/yugabyte ;;
            *) scheme=mysql://root@ address=$(compose port "$name" 3306)/mysql ;;
        esac
        record "$name" docker yes
        record "$name" url "$scheme$address"
        engine=$name say "$scheme$address"
    done
}

stop_docker() {
    local name
    for name in "${engines[@]}"; do
        if [[ -f $state/$name/docker ]]; then
            compose down --volumes
            return
        fi
    done
}
