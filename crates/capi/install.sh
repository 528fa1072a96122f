#!/bin/sh
# Builds libfullsend.so and puts it, the header and fullsend.pc under PREFIX (/usr/local):
#
#     crates/capi/install.sh [PREFIX]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-/usr/local}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
cd "$here/../.."
cargo build --release -p fullsend-capi
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
install -d "$prefix/lib/pkgconfig" "$prefix/include"
install -m 755 "${CARGO_TARGET_DIR:-target}/release/libfullsend.so" "$prefix/lib/"
install -m 644 "$here/include/fullsend.h" "$prefix/include/"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "$here/fullsend.pc.in" \
  >"$prefix/lib/pkgconfig/fullsend.pc"
echo "installed under $prefix; a program: cc program.c \$(pkg-config --cflags --libs fullsend)"
