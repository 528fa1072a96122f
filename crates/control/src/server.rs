//! A server of a control socket on threads: one that accepts, and one for each client.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::path::{BoundSocket, SocketFile};
use crate::{Inspect, Listing, MAX_CLIENTS, MAX_LINE, Reply, Request, answer};

/// Time between attempts to accept a client after a failure.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The connections of the clients, each with a number.
type Clients = Arc<Mutex<Vec<(u64, UnixStream)>>>;

/// An open control socket. Dropping it closes the socket, disconnects its clients and removes its
/// file.
#[derive(Debug)]
pub struct Server {
    listener: Arc<UnixListener>,
    clients: Clients,
    _socket_file: SocketFile,
}

impl Server {
    /// Listens at `path` for clients that inspect `stack`. `init_thread` runs first on each thread.
    ///
    /// # Errors
    /// The errors of [`BoundSocket::bind`], and those of starting a thread.
    pub fn open<S: Inspect + Send + Sync + 'static>(
        path: &Path,
        stack: Weak<S>,
        init_thread: fn(),
    ) -> io::Result<Self> {
        let (listener, socket_file) = BoundSocket::bind(path)?.into_parts();
        let listener = Arc::new(listener);
        let clients = Clients::default();
        let (accepts, known) = (listener.clone(), clients.clone());
        let run = move || {
            init_thread();
            accept(&accepts, &known, &stack, init_thread);
        };
        thread::Builder::new()
            .name("fullsend-control".to_owned())
            .spawn(run)?;
        Ok(Self {
            listener,
            clients,
            _socket_file: socket_file,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Unblocks the threads in accept(2) and read(2).
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        for (_, client) in lock(&self.clients).iter() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

fn lock(clients: &Clients) -> std::sync::MutexGuard<'_, Vec<(u64, UnixStream)>> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept<S: Inspect + Send + Sync + 'static>(
    listener: &UnixListener,
    clients: &Clients,
    stack: &Weak<S>,
    init_thread: fn(),
) {
    let mut failures = 0_u64;
    for number in 0.. {
        let started = match listener.accept() {
            Ok((stream, _)) => spawn_client((number, stream), clients, stack, init_thread),
            // The server was dropped, which shuts the listener down.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                // For example, no descriptor is free. The client waits in the listener's queue.
                thread::sleep(ACCEPT_RETRY_DELAY);
                Err(error)
            }
        };
        if let Err(error) = started {
            failures += 1;
            // Clients may cause any number of failures.
            if failures.is_power_of_two() {
                tracing::warn!(%error, failures, "a client of the control socket was not accepted");
            }
        }
    }
}

/// Starts a thread for a client.
fn spawn_client<S: Inspect + Send + Sync + 'static>(
    (number, mut stream): (u64, UnixStream),
    clients: &Clients,
    stack: &Weak<S>,
    init_thread: fn(),
) -> io::Result<()> {
    {
        let mut all = lock(clients);
        if all.len() >= MAX_CLIENTS {
            drop(all);
            return send(&mut stream, &Reply::too_many_clients());
        }
        all.push((number, stream.try_clone()?));
    }
    let (known, stack) = (clients.clone(), stack.clone());
    let run = move || {
        init_thread();
        // An error means that the client has disconnected.
        let _ = serve(stream, &stack);
        lock(&known).retain(|(other, _)| *other != number);
    };
    let name = "fullsend-client".to_owned();
    let spawned = thread::Builder::new().name(name).spawn(run);
    if spawned.is_err() {
        lock(clients).retain(|(other, _)| *other != number);
    }
    spawned.map(drop)
}

fn send(stream: &mut UnixStream, reply: &Reply) -> io::Result<()> {
    stream.write_all(reply.to_line().as_bytes())
}

/// Answers the requests of a client until it disconnects or the stack is gone.
fn serve<S: Inspect>(mut stream: UnixStream, stack: &Weak<S>) -> io::Result<()> {
    let mut lines = BufReader::with_capacity(MAX_LINE, stream.try_clone()?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = MAX_LINE as u64 + 1;
        if lines.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.len() > MAX_LINE {
            return send(&mut stream, &Reply::too_long());
        }
        let Some(stack) = stack.upgrade() else {
            return send(&mut stream, &Reply::stopped());
        };
        match Request::parse(&line) {
            Ok(request) => {
                if let Some(listing) = Listing::of(&request) {
                    list(&mut stream, listing, &*stack)?;
                } else {
                    let reply = answer(&*stack, &request).unwrap_or_else(Reply::Error);
                    drop(stack);
                    send(&mut stream, &reply)?;
                }
            }
            Err(text) => send(&mut stream, &Reply::Error(text))?,
        }
    }
}

fn list(stream: &mut UnixStream, mut listing: Listing, stack: &impl Inspect) -> io::Result<()> {
    let mut count = 0u64;
    loop {
        match listing.next(stack) {
            Ok(Some(items)) => {
                count += items.len() as u64;
                let text: String = items.iter().map(Reply::to_line).collect();
                stream.write_all(text.as_bytes())?;
            }
            Ok(None) => return send(stream, &Reply::End(count.into())),
            Err(reply) => return send(stream, &reply),
        }
    }
}
