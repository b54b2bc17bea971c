# What the programs of languages.d have in common. Each has `fetch`, which prints where the language's packages are, and
# `check PACKAGES ENGINE`, which runs what its pages show in the current directory, on the database at $DATABASE_URL.
# shellcheck shell=bash disable=SC2034 # variables that other files use

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/lib/common.sh
. "$repo/scripts/lib/common.sh"
# shellcheck source=scripts/lib/cache.sh
. "$repo/scripts/lib/cache.sh"
# shellcheck source=scripts/lib/debs.sh
. "$repo/scripts/lib/debs.sh"
tests=$repo/tests/languages

# Writes a page's programs: the blocks whose first line is a comment that is a file's name. What it shows at a shell's
# prompt becomes shown.1 and so on.
programs() { # PAGE
    awk '
        /^```/          { inside = !inside; first = inside; file = ""; next }
        first           { first = 0
                          if (/^(#|\/\/|--) [a-z_]+\.[a-z]+$/) file = $2
                          else if (/^\$ /) file = "shown." ++shown }
        inside && file  { print > file; lines++ }
        END             { exit !lines }
    ' "$repo/docs/languages/$1.md" || die "docs/languages/$1.md has no program"
}

# Runs what is shown at a prompt, and compares what that prints.
compare_shown() {
    local shown command output
    for shown in shown.*; do
        sed -n 's/^\$ //p' "$shown" | while read -r command; do
            # The substitution drops the empty lines at the end.
            output=$(bash -c "$command" 2>&1 </dev/null) || true
            printf '%s\n' "\$ $command" ${output:+"$output"}
        done | diff --unified --ignore-trailing-space --label 'the page' --label 'the run' "$shown" - || exit
    done
}
