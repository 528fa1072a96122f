//! TCP sockets.

mod listener;
mod options;
mod pending;
mod relay;
mod set;
mod socket;
mod split;
mod stream;
mod try_io;
mod write_quantum;

pub use listener::TcpListener;
pub use pending::{PendingConnection, TransparentListener};
pub use set::{SetStream, TcpSet};
pub use socket::TcpSocket;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::TcpStream;
