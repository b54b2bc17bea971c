# A headless Chromium, which playwright-core drives: packages of the npm registry. For x86_64 only. Needs lib/node.sh.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh and lib/node.sh

# Runs lib/SCRIPT with Chromium, which unpacks 200 MB into DIR.
in_browser() { # DIR SCRIPT ARG...
    local dir=$1 script=$2 packages
    shift 2
    [[ $(uname -m) == x86_64 ]] || die "the registry has Chromium for x86_64 only"
    find_node
    packages=$(npm_packages site)
    cp "$repo/scripts/lib/$script" "$dir"
    ln -sfn "$packages/node_modules" "$dir/node_modules"
    # The package's own file names /tmp/fonts. Without a font, text is invisible and has no width.
    cat >"$dir/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>$dir/fonts</dir><cachedir>$dir/fonts-cache</cachedir></fontconfig>
END
    # With the first variable, the package also unpacks the libraries that Chromium needs, such as NSS.
    AWS_LAMBDA_JS_RUNTIME=nodejs22.x FONTCONFIG_FILE=$dir/fonts.conf TMPDIR=$dir "${node[@]}" "$dir/$script" "$@"
}
