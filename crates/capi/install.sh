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
# As in build.rs.
soname=libfullsend.so.0
install -d "$prefix/lib/pkgconfig" "$prefix/include"
install -m 755 "${CARGO_TARGET_DIR:-target}/release/libfullsend.so" "$prefix/lib/libfullsend.so.$version"
ln -sf "libfullsend.so.$version" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/libfullsend.so"
install -m 644 "$here/include/fullsend.h" "$prefix/include/"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "$here/fullsend.pc.in" \
  >"$prefix/lib/pkgconfig/fullsend.pc"
echo "installed under $prefix; a program: cc program.c \$(pkg-config --cflags --libs fullsend)"

# Without an entry in its cache, the loader does not find the library when a program starts.
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" != 0 ] || ldconfig || true
if ! ldconfig -p 2>/dev/null | grep -qF "$prefix/lib/$soname"; then
  echo "the loader does not look into $prefix/lib. Run ldconfig as root if /etc/ld.so.conf lists" \
    "that folder; else start programs with LD_LIBRARY_PATH=$prefix/lib, or link them with" \
    "-Wl,-rpath,$prefix/lib"
fi
