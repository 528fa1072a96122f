//! The file from which a script's `nstat` reads the stack's counters.

use std::fs;
use std::path::PathBuf;

use fullsend_blocking::Stack;

/// A file of `NAME VALUE` lines for the counters that are not zero.
#[derive(Debug)]
pub(crate) struct CountersFile {
    file: Option<PathBuf>,
    last_written: String,
}

impl CountersFile {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        let last_written = String::new();
        Self { file, last_written }
    }

    /// Writes the file if a counter has changed.
    pub(crate) fn write_if_changed(&mut self, stack: &Stack) {
        let Some(file) = &self.file else {
            return;
        };
        let counters = stack.counters().into_iter().filter(|(_, value)| *value > 0);
        let lines = counters.map(|(name, value)| format!("{name} {value}\n"));
        let text: String = lines.collect();
        if text == self.last_written {
            return;
        }
        match fs::write(file, &text) {
            Ok(()) => self.last_written = text,
            Err(error) => {
                eprintln!(
                    "fullsend: cannot write the counters to {}: {error}; name another file with \
                     counters=",
                    file.display()
                );
                self.file = None;
            }
        }
    }
}
