//! The serial console of a guest, read by a thread.

use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    text: String,
    ended: bool,
}

/// The output of a guest until now.
#[derive(Clone, Default)]
pub(crate) struct Console {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Console {
    /// Starts a thread that reads `output` to its end.
    pub(crate) fn read(mut output: impl Read + Send + 'static) -> Self {
        let console = Self::default();
        let reader = console.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match output.read(&mut buffer) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => break,
                    Ok(len) => reader.change(|state| {
                        // The serial line ends its lines with CR LF.
                        let text = String::from_utf8_lossy(&buffer[..len]).replace('\r', "");
                        state.text.push_str(&text);
                    }),
                }
            }
            reader.change(|state| state.ended = true);
        });
        console
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let (state, changed) = &*self.shared;
        change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }

    /// Returns everything that the guest has written.
    pub(crate) fn text(&self) -> String {
        let state = self.shared.0.lock();
        state.unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// Waits for a whole line after byte `from` that contains `marker`. Returns it and the position
    /// after it, or the reason why there will be none.
    #[allow(
        clippy::disallowed_methods,
        reason = "a guest runs in real time, and one that hangs must end its test"
    )]
    pub(crate) fn wait_for(
        &self,
        marker: &str,
        from: usize,
        timeout: Duration,
    ) -> Result<(String, usize), String> {
        let deadline = Instant::now() + timeout;
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find_line(&state.text, marker, from) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                let why = if state.ended {
                    "ended"
                } else {
                    "did not write it in time"
                };
                let text = &state.text;
                return Err(format!(
                    "no line with {marker:?}: the guest {why}. Console:\n{text}"
                ));
            }
            let waited = changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns the first whole line after byte `from` that contains `marker`, and the position after it.
fn find_line(text: &str, marker: &str, from: usize) -> Option<(String, usize)> {
    let at = from + text.get(from..)?.find(marker)?;
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = at + text[at..].find('\n')?;
    Some((text[start.max(from)..end].to_owned(), end + 1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Console;

    #[test]
    fn lines_are_found_in_order() {
        let console = Console::read(&b"boot\r\n@@ one 1\r\n@@ two\r\n@@ one 2\r\nlast"[..]);
        let long = Duration::from_secs(60);
        let (line, at) = console.wait_for("@@ one", 0, long).unwrap();
        assert_eq!(line, "@@ one 1");
        let (line, at) = console.wait_for("@@ one", at, long).unwrap();
        assert_eq!(line, "@@ one 2");
        // A line without its end may not be whole.
        let error = console.wait_for("last", at, long).unwrap_err();
        assert!(error.contains("the guest ended"), "{error}");
    }
}
