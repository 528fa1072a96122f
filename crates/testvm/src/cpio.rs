//! Archives in cpio's `newc` format, as the kernel unpacks an initramfs.

use std::collections::BTreeSet;

/// Mode bits of the file types.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// A growing archive. The folders of each path are added before it.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Adds an executable file. Paths begin without a slash.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | 0o755, (0, 0), content);
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    pub(crate) fn character_device(&mut self, path: &str, (major, minor): (u32, u32)) {
        self.parents(path);
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    pub(crate) fn folder(&mut self, path: &str) {
        self.parents(path);
        if self.folders.insert(path.to_owned()) {
            self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
        }
    }

    /// Returns the archive with its trailer.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            content.len() as u32,
            0,
            0,
            major,
            minor,
            path.len() as u32 + 1,
            0, // checksum, unused
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn a_file_in_a_folder() {
        let mut archive = Archive::default();
        archive.file("bin/sh", b"abc");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<_> = text.match_indices("070701").map(|(at, _)| at).collect();
        // The header has 110 bytes; it with the name, and the content, end at a multiple of four.
        assert_eq!(starts, [0, 116, 116 + 120 + 4]);
        assert!(text[110..].starts_with("bin\0"));
        assert_eq!(&text[116 + 14..116 + 22], "000081ED");
        assert!(text[116 + 110..].starts_with("bin/sh\0\0\0\0abc\0"));
        assert!(text[240 + 110..].starts_with("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
