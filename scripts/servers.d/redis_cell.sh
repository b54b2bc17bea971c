# Redis with the module redis-cell, which is built here. Only scripts/bench needs it, and does without if it must.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh
# shellcheck source=scripts/lib/redis.sh
. "$scripts/lib/redis.sh"

cell_version=0.2.2

# It is published as a library only, so it is built as the dependency of an empty package, at versions that are pinned.
build_cell() { # DIR
    local project=$1/project
    have cargo || die "building redis-cell needs cargo"
    say "building redis-cell $cell_version"
    mkdir -p "$project/src"
    : >"$project/src/lib.rs"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nredis-cell = "=%s"\n' \
        "$cell_version" >"$project/Cargo.toml"
    cp "$repo/scripts/packages/redis-cell/Cargo.lock" "$project"
    retry quietly cargo build --locked --quiet --release --package redis-cell --target-dir "$project/target" \
        --manifest-path "$project/Cargo.toml"
    mv "$project/target/release/libredis_cell.so" "$1/"
    rm -rf "$project"
}

obtain() {
    obtain_redis
    cached "redis-cell-$cell_version" build_cell >/dev/null
}

boot() {
    local module
    module=$(cached "redis-cell-$cell_version" build_cell)/libredis_cell.so
    boot_redis --appendonly no --loadmodule "$module"
}
