//! The mounts of this process's mount namespace.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::failed;

/// A line of mountinfo.
pub(super) struct Mount<'a> {
    pub(super) device: &'a str,
    /// The mounted directory or file in its file system.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    /// The type of its file system.
    pub(super) kind: &'a str,
    /// The directory of an overlay whose files are those that are changed through the mount, as its mounter has
    /// written it.
    pub(super) upper: Option<PathBuf>,
}

/// Returns the text of the mountinfo of this process.
pub(super) fn read() -> io::Result<String> {
    fs::read_to_string("/proc/self/mountinfo").map_err(|e| failed("list the mounts", e))
}

impl<'a> Mount<'a> {
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ').skip(2);
        let device = words.next()?;
        let path = |word| PathBuf::from(OsString::from_vec(unescaped(word)));
        let (root, point) = (path(words.next()?), path(words.next()?));
        // After the options, of which a kernel may have more.
        let mut words = line.split_once(" - ")?.1.split(' ');
        let kind = words.next()?;
        let options = words.nth(1).unwrap_or_default();
        let upper = options
            .split(',')
            .find_map(|option| option.strip_prefix("upperdir="));
        Some(Self {
            device,
            root,
            point,
            kind,
            upper: upper.filter(|_| kind == "overlay").map(path),
        })
    }
}

/// Returns a word of mountinfo without its escapes, such as `\040` for a space.
fn unescaped(word: &str) -> Vec<u8> {
    let bytes = OsStr::new(word).as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        let code = rest.get(1..4).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = code {
            out.push(byte);
            rest = &rest[4..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Mount;

    #[test]
    fn a_line_has_paths_and_the_type_of_the_file_system() {
        let line =
            "29 1 0:26 /a\\040- /x\\040-\\040y rw,relatime shared:4 master:2 - cgroup2 none rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.device, mount.kind), ("0:26", "cgroup2"));
        assert_eq!(mount.root, Path::new("/a -"));
        assert_eq!(mount.point, Path::new("/x - y"));
        assert_eq!(mount.upper, None);
        let line = "3 1 0:2 / /m rw - overlay o rw,lowerdir=/l,upperdir=/u\\040p,workdir=/w";
        let overlay = Mount::parse(line).unwrap();
        assert_eq!(overlay.upper.as_deref(), Some(Path::new("/u p")));
        assert!(Mount::parse("29 1 0:26 / /x rw").is_none());
    }
}
