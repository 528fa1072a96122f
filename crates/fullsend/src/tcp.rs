//! TCP sockets.

mod listener;
mod options;
mod pending;
mod relay;
mod split;
mod stream;
mod write_quantum;

pub use listener::TcpListener;
pub use pending::{PendingConnection, TransparentListener};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
