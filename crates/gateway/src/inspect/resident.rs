//! The resident memory of the process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// The file in which the kernel reports the memory of this process, and the size of its unit, a page.
/// Both are read before the sandbox hides the kernel's files.
static STATM: OnceLock<Option<Statm>> = OnceLock::new();

struct Statm {
    file: File,
    page_bytes: u64,
}

fn statm() -> Option<&'static Statm> {
    let open = || {
        Some(Statm {
            file: File::open("/proc/self/statm").ok()?,
            page_bytes: rustix::param::page_size() as u64,
        })
    };
    STATM.get_or_init(open).as_ref()
}

/// Opens the file of [`resident_memory`]. Must be called before the process hides its files.
pub(crate) fn open_resident_memory() {
    let _ = statm();
}

/// Returns the resident memory of the process in bytes, or `None` if the kernel does not report it.
pub(crate) fn resident_memory() -> Option<u64> {
    let mut text = [0; 128];
    let statm = statm()?;
    let len = statm.file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * statm.page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_includes_what_the_process_has_written() {
        open_resident_memory();
        let before = resident_memory().unwrap();
        let written = vec![7_u8; 64 << 20];
        let after = resident_memory().unwrap();
        assert!(after >= before + (32 << 20), "{before} {after}");
        assert_eq!(written.iter().rposition(|&b| b == 7), Some((64 << 20) - 1));
    }
}
