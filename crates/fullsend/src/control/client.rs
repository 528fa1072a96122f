//! One client of the control socket: its requests, in order. The stack is not locked while the task
//! waits for the client.

use std::io;
use std::sync::Weak;

use fullsend_control::{Inspect, Listing, answer};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::capture::LiveCapture;
use super::{CaptureRequest, MAX_LINE, Reply, Request};
use crate::engine::{Group, Inspector};

pub(super) async fn serve(stream: UnixStream, group: Weak<Group>) {
    let (read, write) = stream.into_split();
    let mut client = Client {
        lines: LineReader {
            read: BufReader::with_capacity(MAX_LINE, read),
            line: Vec::new(),
        },
        write,
        group,
    };
    // An error means that the client has disconnected.
    while let Ok(true) = client.serve_request().await {}
}

struct Client {
    lines: LineReader,
    write: OwnedWriteHalf,
    group: Weak<Group>,
}

/// Reader of lines of bounded length.
struct LineReader {
    read: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
}

/// Result of reading a line.
enum ReadLine {
    Line,
    TooLong,
    End,
}

impl LineReader {
    /// Reads up to the end of a line. Cancel safe: the next call continues.
    async fn next(&mut self) -> io::Result<ReadLine> {
        loop {
            let available = self.read.fill_buf().await?;
            if available.is_empty() {
                return Ok(ReadLine::End);
            }
            let end = available.iter().position(|&byte| byte == b'\n');
            let take = end.map_or(available.len(), |at| at + 1);
            if self.line.len() + take > MAX_LINE {
                return Ok(ReadLine::TooLong);
            }
            self.line.extend_from_slice(&available[..take]);
            self.read.consume(take);
            if end.is_some() {
                return Ok(ReadLine::Line);
            }
        }
    }

    fn take_request(&mut self) -> Result<Request, String> {
        let request = Request::parse(&self.line);
        self.line.clear();
        request
    }
}

impl Client {
    /// Processes one request. Returns false at the end of the input.
    async fn serve_request(&mut self) -> io::Result<bool> {
        match self.lines.next().await? {
            ReadLine::End => return Ok(false),
            ReadLine::TooLong => {
                self.send(&Reply::too_long()).await?;
                return Ok(false);
            }
            ReadLine::Line => {}
        }
        match self.lines.take_request() {
            Ok(Request::Capture(mut capture_request)) => {
                // The client may be the guest of a gateway, which must not choose the memory that it
                // uses.
                let is_gateways = self
                    .inspector()
                    .is_some_and(|stack| stack.gateway().is_some());
                if is_gateways {
                    capture_request.buffer = None;
                }
                self.capture(&capture_request).await?;
            }
            Ok(request) => {
                if let Some(listing) = Listing::of(&request) {
                    self.list(listing).await?;
                } else {
                    let reply = self.inspector().map_or_else(Reply::stopped, |stack| {
                        answer(&stack, &request).unwrap_or_else(Reply::Error)
                    });
                    self.send(&reply).await?;
                }
            }
            Err(text) => self.send(&Reply::Error(text)).await?,
        }
        Ok(true)
    }

    fn inspector(&self) -> Option<Inspector> {
        self.group.upgrade()?.inspector()
    }

    async fn send(&mut self, reply: &Reply) -> io::Result<()> {
        self.write.write_all(reply.to_line().as_bytes()).await
    }

    async fn list(&mut self, mut listing: Listing) -> io::Result<()> {
        let mut count = 0u64;
        loop {
            let batch = self
                .inspector()
                .map_or_else(|| Err(Reply::stopped()), |stack| listing.next(&stack));
            match batch {
                Ok(Some(items)) => {
                    count += items.len() as u64;
                    let text: String = items.iter().map(Reply::to_line).collect();
                    self.write.write_all(text.as_bytes()).await?;
                    // A write that does not wait would keep the other tasks of this thread from
                    // running until the end of the list.
                    tokio::task::yield_now().await;
                }
                Ok(None) => return self.send(&Reply::End(count.into())).await,
                Err(reply) => return self.send(&reply).await,
            }
        }
    }

    async fn capture(&mut self, capture_request: &CaptureRequest) -> io::Result<()> {
        let Some(group) = self.group.upgrade() else {
            return self.send(&Reply::stopped()).await;
        };
        let started = LiveCapture::start(&group, capture_request);
        drop(group);
        let mut capture = match started {
            Ok(capture) => capture,
            Err(text) => return self.send(&Reply::Error(text)).await,
        };
        loop {
            tokio::select! {
                chunk = capture.next() => match chunk {
                    Some(bytes) => self.send_data(&bytes).await?,
                    None => break,
                },
                input = self.lines.next() => match input? {
                    ReadLine::End => break,
                    ReadLine::TooLong => return Err(io::ErrorKind::InvalidData.into()),
                    ReadLine::Line if self.lines.take_request() == Ok(Request::Stop) => break,
                    ReadLine::Line => {}
                }
            }
        }
        let (rest, summary) = capture.finish();
        self.send_data(&rest).await?;
        let summary = serde_json::to_value(summary).unwrap_or_default();
        self.send(&Reply::End(summary)).await
    }

    async fn send_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(&Reply::Data(bytes.len() as u64)).await?;
        self.write.write_all(bytes).await
    }
}
