# Programs from Debian packages: unpacked, never installed, and run with the C library of their own suite.
# shellcheck shell=bash disable=SC2154 # variables of lib/common.sh

# Needed to install a package or to administer it, not to run a program from an unpacked tree.
unneeded_packages='^(perl.*|lib.*-perl|libperl.*|libgdbm.*|debconf.*|dpkg|adduser|passwd|login.*|systemd.*|init-.*'
unneeded_packages+='|sysv.*|ucf|ssl-cert|tar|usrmerge|sensible-utils|lsb-.*|gcc-.*-base|libllvm.*|libz3-.*|libc-bin'
unneeded_packages+='|libc-l10n|libc-gconv-modules-extra|locales.*|tzdata.*|postgresql-common.*|postgresql-client-common'
unneeded_packages+='|mysql-common|mariadb-common|galera.*)$'

# Asks apt, which knows both formats of source lists and what is switched off in them.
debian_mirror() {
    local mirror=${TOLLGATE_DEBIAN_MIRROR-}
    if [[ -z $mirror ]] && have apt-get; then
        mirror=$(apt-get update --print-uris 2>/dev/null |
            sed -nE "s,^'([a-z+]+:/+[^/' ]+/debian|mirror[^' ]*/debian\.list)/*/dists/.*,\1,p" | sort -u | head -n 1)
    fi
    [[ -n $mirror ]] || die "it is not installed in a fitting version, and apt has no Debian mirror to fetch it from." \
        "Install it${engine:+, set $(url_variable "$engine") to a server of yours}, or set TOLLGATE_DEBIAN_MIRROR"
    printf '%s\n' "$mirror"
}

# apt checks the suite's signature, the package lists by the hashes that are signed, and each package by the hash in its list.
# Options of the command line come after the machine's settings, so that none of those leaves a check out.
verified_apt() {
    quietly apt-get -o APT::Get::AllowUnauthenticated=false -o Acquire::AllowInsecureRepositories=false \
        -o Acquire::AllowWeakRepositories=false -o Acquire::AllowDowngradeToInsecureRepositories=false "$@"
}

# Unpacks the packages and all they depend on into DIR. apt gets a state of its own in which nothing is
# installed: the result does not depend on this machine, and the machine's package lists stay as they are.
unpack_debs() { # DIR SUITE PACKAGE...
    local dir=$1 suite=$2 apt=$1/apt mirror keyring trust='' packages deb
    shift 2
    mirror=$(debian_mirror)
    say "fetching $* of Debian $suite, this can take a minute"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/preferences.d" "$apt/debs"
    : >"$apt/status"
    for keyring in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
        if [[ -f $keyring ]]; then trust="[signed-by=$keyring] "; fi
    done
    printf 'deb %s%s %s main\n' "$trust" "$mirror" "$suite" >"$apt/sources.list"
    cat >"$apt/apt.conf" <<END
Dir::State "$apt";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::Etc::Preferences "-";
Dir::Etc::PreferencesParts "$apt/preferences.d";
APT::Sandbox::User "";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
END
    local -x APT_CONFIG=$apt/apt.conf
    retry verified_apt update
    packages=$(apt-get install --simulate "$@" | awk '/^Inst /{print $2}' | grep -Ev "$unneeded_packages")
    # shellcheck disable=SC2086 # one word for each package
    (cd "$apt/debs" && retry verified_apt download $packages)
    for deb in "$apt"/debs/*.deb; do
        dpkg-deb --extract "$deb" "$dir"
        printf '%s\n' "${deb##*/}" >>"$dir/packages.txt"
    done
    rm -rf "$apt"
}

# Puts a script in the place of each program, which runs it with the unpacked loader and libraries. It
# passes its own name on, because PostgreSQL finds its files relative to that.
wrap_programs() { # DIR PROGRAM...
    local dir=$1 program loader triplet
    shift
    loader=$(find "$dir" -maxdepth 4 -type f -name 'ld-linux*.so.*' -printf '%P\n' | head -n 1)
    triplet=$(uname -m)-linux-gnu
    for program in "$@"; do
        mv "$dir/$program" "$dir/$program.bin"
        cat >"$dir/$program" <<END
#!/bin/sh
root=\${0%/$program}
exec "\$root/$loader" --library-path "\$root/usr/lib/$triplet:\$root/lib/$triplet" --argv0 "\$0" "\$0.bin" "\$@"
END
        chmod 755 "$dir/$program"
    done
}
