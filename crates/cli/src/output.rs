//! Standard output and standard error of the program.
//!
//! `println!` panics when the reader of a pipe has closed it, as `head` does. Here a broken pipe on
//! standard output ends the program quietly, and one on standard error is ignored.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process;

/// An error with its causes, and with what to change where the cause is a limit of this process and not the named
/// file.
pub(crate) struct ErrorLine<'a>(pub(crate) &'a anyhow::Error);

impl fmt::Display for ErrorLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)?;
        let mut causes = self.0.chain().filter_map(|cause| cause.downcast_ref());
        let is_limit = |error: &io::Error| error.raw_os_error() == Some(nix::libc::EMFILE);
        if causes.any(is_limit) {
            f.write_str("; raise the limit of open files with `ulimit -n`")?;
        }
        Ok(())
    }
}

/// Exit status that a shell reports for a program ended by SIGPIPE: 128 plus the signal's number.
const BROKEN_PIPE: i32 = 128 + 13;

/// Standard output; a write into a broken pipe ends the program.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        exit_if_broken(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        exit_if_broken(io::stdout().flush())
    }
}

fn exit_if_broken<T>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit_broken_pipe(),
        result => result,
    }
}

/// Ends the program because the reader of its output has closed the pipe.
pub(crate) fn exit_broken_pipe() -> ! {
    process::exit(BROKEN_PIPE)
}

/// Writes to standard output, and ends the program if that fails. Used by `out!` and `outln!`.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if let Err(error) = Stdout.write_fmt(text) {
        print_error(format_args!("error: cannot write the output: {error}\n"));
        process::exit(1);
    }
}

/// Writes to standard error. Ignores failures, as they cannot be reported. Used by `err!` and `errln!`.
pub(crate) fn print_error(text: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_fmt(text);
}

/// Prints like `print!`, through [`Stdout`].
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::print(format_args!($($arg)*)) };
}

/// Prints like `println!`, through [`Stdout`].
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints like `eprint!`, but does not panic.
macro_rules! err {
    ($($arg:tt)*) => { $crate::output::print_error(format_args!($($arg)*)) };
}

/// Prints like `eprintln!`, but does not panic.
macro_rules! errln {
    ($($arg:tt)*) => { $crate::output::print_error(format_args!("{}\n", format_args!($($arg)*))) };
}
